/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life of the master's shell, and the turn. Model and rules T1..T4: shell.h.
 *
 * Ending. A signal or egm_master_daemon_stop wakes the loop; the next turn stops accepting and
 * reading, hands the providers' leases back and sends what is queued; when all of it is gone, or
 * after STOP_WAIT_NS, every handle is closed and the loop runs out. The signal handlers go first,
 * so that a second signal has its default effect at once.
 */
#include "master/master_daemon.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"

#include "master/regex.h"
#include "master/shell.h"
#include "os/clock.h"
#include "os/host.h"
#include "os/net.h"
#include "os/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define TICK_MS 20
#define TICK_NS (TICK_MS * EGM_NS_PER_MS)
/* What serving may take of a turn; with one window of the core behind it a turn stays below 300 us
 * (DESIGN 5). */
#define TURN_BUDGET_NS UINT64_C(120000)
/* Serving that took this much leaves no room for the core's parked requests in the same turn (T2).
 */
#define RUN_ROOM_NS UINT64_C(60000)
/* A gap between ticks that is no longer the scheduler's noise (T3). */
#define STALL_NS (200 * EGM_NS_PER_MS)
/* Reading everything after a stall ends here at the latest. */
#define DRAIN_NS (2 * EGM_NS_PER_S)
#define STOP_WAIT_NS (500 * EGM_NS_PER_MS)
#define JOBS_A_TURN 4
#define REAPS_A_TURN 32
/* Files kept for everything that is no connection: listeners, HTTP, logs. */
#define OTHER_FILES 384
#define MAX_CONNECTIONS 262144u
#define INPUT_SIZE 16384u

static const int stop_signals[2] = {SIGTERM, SIGINT};

/* ---- the core's io ---- */

static int compile_regex(void *arg, const char *pattern, void **ret_regex, char *text,
                         size_t text_size)
{
    struct egm_master_daemon *d = arg;
    struct egm_regex *regex;
    int r = egm_regex_compile(pattern, &d->regex_over_limit, &regex, text, text_size);

    if (r == 0) {
        *ret_regex = regex;
    }
    return r;
}

static int match_regex(void *arg, void *regex, const void *key, size_t size, uint64_t *cost_ns)
{
    uint64_t began_ns = egm_clock_ns();
    int r = egm_regex_match(regex, key, size);

    (void)arg;
    *cost_ns += egm_clock_ns() - began_ns;
    return r;
}

static void free_regex(void *arg, void *regex)
{
    (void)arg;
    egm_regex_free(regex);
}

static uint64_t draw_random(void *arg)
{
    (void)arg;
    return egm_random_u64();
}

/* ---- the turn ---- */

static void do_jobs(struct egm_master_daemon *d)
{
    for (int i = 0; i < JOBS_A_TURN && d->admin; i++) {
        struct egm_admin_job *job = egm_admin_take(d->admin);
        if (!job) {
            break;
        }
        egm_page_write(d, job);
        egm_admin_finish(d->admin, job);
    }
}

static void accept_waiting(struct egm_master_daemon *d)
{
    for (size_t i = 0; i < EGM_COUNT_OF(d->listeners); i++) {
        struct egm_listener *listener = &d->listeners[i];
        if (listener->is_ready) {
            listener->is_ready = egm_listener_accept(d, listener);
        }
    }
}

static void report(struct egm_master_daemon *d)
{
    struct egm_buf line;

    if (d->options.report_ms == 0 || d->now_ns < d->report_ns) {
        return;
    }
    d->report_ns = d->now_ns + d->options.report_ms * EGM_NS_PER_MS;
    egm_buf_init(&line, 1024);
    egm_page_summary(d, &line);
    egm_info("totals %s loop_turn_max_us=%" PRIu64, egm_buf_str(&line), d->turns.max_ns / 1000);
    egm_buf_release(&line);
}

static void tick(struct egm_master_daemon *d)
{
    uint64_t gap_ns = d->now_ns - d->last_tick_ns;

    if (gap_ns < TICK_NS) {
        return;
    }
    if (gap_ns > STALL_NS && !d->is_stalled) {
        /* what came meanwhile may not have been polled yet: the next turn sees it, reads it, and
         * then judges */
        d->is_stalled = true;
        return;
    }
    if (d->is_stalled) {
        egm_connections_serve(d, d->now_ns + DRAIN_NS);
        d->is_stalled = false;
    }
    d->last_tick_ns = d->now_ns;
    egm_master_tick(d->core, d->now_ns);
    egm_connections_tick(d);
    report(d);
}

/* Everything a turn does while the master serves. True: there is more to do at once. */
static bool work(struct egm_master_daemon *d, uint64_t begin_ns)
{
    bool has_more = false;
    bool was_run = d->is_run_first;

    if (was_run) {
        has_more = egm_master_run(d->core, d->now_ns);
        d->now_ns = egm_clock_ns();
    }
    do_jobs(d);
    accept_waiting(d);
    d->now_ns = egm_clock_ns();
    /* a flood of new connections or of questions takes nothing from those that are served */
    egm_connections_serve(d, (was_run ? begin_ns : d->now_ns) + TURN_BUDGET_NS);
    tick(d);
    d->now_ns = egm_clock_ns();
    d->is_run_first = !was_run && d->now_ns - begin_ns > RUN_ROOM_NS;
    if (!was_run && !d->is_run_first) {
        has_more = egm_master_run(d->core, d->now_ns);
    }
    egm_master_flush(d->core, d->now_ns);
    return has_more || d->is_run_first || d->is_stalled || !egm_list_is_empty(&d->ready) ||
           d->listeners[0].is_ready || d->listeners[1].is_ready;
}

/* A handle that was never initialised has no type. */
static void close_handle(void *handle)
{
    if (((uv_handle_t *)handle)->type != UV_UNKNOWN_HANDLE && !uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

static void close_listener(struct egm_listener *listener)
{
    if (listener->is_open) {
        uv_poll_stop(&listener->poll);
        close_handle(&listener->poll);
        listener->is_open = false;
        listener->is_ready = false;
    }
    if (listener->fd >= 0) {
        close(listener->fd);
        listener->fd = -1;
    }
}

static void close_signals(struct egm_master_daemon *d)
{
    for (size_t i = 0; d->options.takes_signals && i < EGM_COUNT_OF(d->signals); i++) {
        close_handle(&d->signals[i]);
    }
}

static void close_everything(struct egm_master_daemon *d)
{
    egm_connections_close_all(d);
    close_listener(&d->listeners[0]);
    close_listener(&d->listeners[1]);
    close_signals(d);
    close_handle(&d->check);
    close_handle(&d->idle);
    close_handle(&d->timer);
    close_handle(&d->wake);
}

/* A turn while stopping: sends what is left, then closes everything. */
static void wind_down(struct egm_master_daemon *d)
{
    if (d->stop_ns == 0) {
        d->stop_ns = d->now_ns;
        egm_info("master stopping connections=%u", d->connection_count);
        close_signals(d);
        close_listener(&d->listeners[0]);
        close_listener(&d->listeners[1]);
        egm_ignore(uv_idle_stop(&d->idle), "cannot fail");
        egm_master_release_leases(d->core);
        egm_master_flush(d->core, d->now_ns);
    }
    egm_connections_flush(d);
    if (egm_connections_have_output(d) && d->now_ns - d->stop_ns < STOP_WAIT_NS) {
        return; /* the timer brings the next turn */
    }
    close_everything(d);
}

static void nothing_idle(uv_idle_t *idle)
{
    (void)idle;
}

/* What this thread has had of a CPU: unlike the clock, it does not count when others had it. */
static uint64_t cpu_ns(void)
{
    struct timespec t = {0};

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * EGM_NS_PER_S + (uint64_t)t.tv_nsec;
}

static void on_check(uv_check_t *check)
{
    struct egm_master_daemon *d = check->data;
    uint64_t begin_ns = egm_clock_ns();
    uint64_t begin_cpu_ns = cpu_ns();

    d->now_ns = begin_ns;
    /* acquire: pairs with the release in egm_master_daemon_stop */
    if (d->is_stopping || atomic_load_explicit(&d->is_stop_wanted, memory_order_acquire)) {
        d->is_stopping = true;
        wind_down(d);
        return;
    }
    bool has_more = work(d, begin_ns);
    egm_connections_flush(d);
    egm_connections_reap(d, REAPS_A_TURN);
    has_more = has_more || !egm_list_is_empty(&d->dirty) || !egm_list_is_empty(&d->dying);
    if (has_more != (uv_is_active((uv_handle_t *)&d->idle) != 0)) {
        egm_ignore(has_more ? uv_idle_start(&d->idle, nothing_idle) : uv_idle_stop(&d->idle),
                   "cannot fail with a callback");
    }
    egm_turns_add(&d->turns, egm_clock_ns() - begin_ns);
    egm_turns_add(&d->cpu_turns, cpu_ns() - begin_cpu_ns);
}

/* The timer and the wake-up only end the poll; the turn behind it does the work. */
static void on_timer(uv_timer_t *timer)
{
    (void)timer;
}

static void on_wake(uv_async_t *wake)
{
    (void)wake;
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct egm_master_daemon *d = handle->data;

    egm_info("signal received signal=%d", number);
    d->is_stopping = true;
}

static void wake_loop(void *arg)
{
    struct egm_master_daemon *d = arg;

    egm_ignore(uv_async_send(&d->wake), "a closed loop needs no waking");
}

/* ---- create ---- */

static int listen_tcp(struct egm_master_daemon *d, const char *address, struct egm_detail *reterr)
{
    int r =
        egm_net_listen(address, &d->listeners[0].fd, d->rpc_address, sizeof(d->rpc_address), NULL);

    if (r == -EADDRINUSE) {
        return egm_fail(reterr, r, "listen",
                        "cannot listen at %s: the address is in use; stop the other process or "
                        "choose another --port",
                        address);
    }
    return r < 0 ? egm_fail(reterr, r, "listen",
                            "cannot listen at %s: %s; check the address and --port", address,
                            egm_strerror(r))
                 : 0;
}

/* <runtime folder>/master-<port>.sock */
static int listen_unix(struct egm_master_daemon *d, struct egm_detail *reterr)
{
    struct egm_address address;
    char folder[EGM_UNIX_ADDRESS_TEXT];
    int r = egm_parse_address(d->rpc_address, &address);

    if (r == 0) {
        r = egm_runtime_dir(folder, sizeof(folder), reterr);
    }
    if (r < 0) {
        return r;
    }
    int n = snprintf(d->unix_address, sizeof(d->unix_address), "unix:%s/master-%u.sock", folder,
                     address.port);
    if (n < 0 || (size_t)n >= sizeof(d->unix_address)) {
        d->unix_address[0] = '\0';
        return egm_fail(reterr, EGM_E_LIMIT, "listen",
                        "the runtime folder's path '%s' is too long; set EGMSTORE_RUNTIME_DIR",
                        folder);
    }
    r = egm_net_listen(d->unix_address, &d->listeners[1].fd, NULL, 0, reterr);
    if (r < 0) {
        d->unix_address[0] = '\0'; /* not ours to remove */
    }
    return r;
}

static int listen_http(struct egm_master_daemon *d, const char *address, struct egm_detail *reterr)
{
    int fd;
    int r = egm_net_listen(address, &fd, d->http_address, sizeof(d->http_address), NULL);

    if (r < 0) {
        return egm_fail(reterr, r, "listen",
                        "cannot listen at %s for metrics: %s; stop the other process, choose "
                        "another --metrics-port, or turn it "
                        "off with 0",
                        address, egm_strerror(r));
    }
    r = egm_admin_create(fd, wake_loop, d, &d->admin, reterr);
    if (r < 0) {
        close(fd);
    }
    return r;
}

/* As many files as the system lets us have; returns how many that is. */
static uint64_t raise_file_limit(void)
{
    struct rlimit limit = {0};

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0) {
        return 1024;
    }
    rlim_t wanted = limit.rlim_max > MAX_CONNECTIONS + OTHER_FILES ? MAX_CONNECTIONS + OTHER_FILES
                                                                   : limit.rlim_max;
    if (limit.rlim_cur < wanted) {
        struct rlimit raised = {.rlim_cur = wanted, .rlim_max = limit.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &raised) == 0) {
            return wanted;
        }
    }
    return limit.rlim_cur;
}

static void choose_connection_limit(struct egm_master_daemon *d)
{
    uint64_t files = raise_file_limit();
    uint64_t room = files > 2 * OTHER_FILES ? files - OTHER_FILES : files / 2;
    uint64_t wanted = d->options.max_connections ? d->options.max_connections : MAX_CONNECTIONS;

    d->max_connections = (uint32_t)egm_min_u64(room, egm_min_u64(wanted, MAX_CONNECTIONS));
}

static int open_loop(struct egm_master_daemon *d)
{
    int r = uv_loop_init(&d->loop);

    if (r < 0) {
        return r;
    }
    d->has_loop = true;
    r = uv_async_init(&d->loop, &d->wake, on_wake);
    if (r == 0) {
        r = uv_check_init(&d->loop, &d->check);
    }
    if (r == 0) {
        r = uv_idle_init(&d->loop, &d->idle);
    }
    if (r == 0) {
        r = uv_timer_init(&d->loop, &d->timer);
    }
    d->check.data = d;
    return r;
}

static int create_core(struct egm_master_daemon *d, struct egm_detail *reterr)
{
    int r = egm_pages_create(&d->pages);

    if (r < 0) {
        return egm_fail(reterr, r, "pages", "cannot start a thread: %s", egm_strerror(r));
    }
    const struct egm_master_io io = {.send = egm_connection_send,
                                     .close = egm_connection_close,
                                     .regex_compile = compile_regex,
                                     .regex_match = match_regex,
                                     .regex_free = free_regex,
                                     .random = draw_random,
                                     .arg = d,
                                     .blocks = egm_pages_source(d->pages)};
    const char *cluster = d->options.core.cluster ? d->options.core.cluster : "egmstore";
    size_t size = strlen(cluster);

    if (size == 0 || size >= sizeof(d->cluster)) {
        return egm_fail(reterr, EGM_E_INVALID, "cluster", "the cluster id must have 1..%zu bytes",
                        sizeof(d->cluster) - 1);
    }
    memcpy(d->cluster, cluster, size + 1);
    d->options.core.cluster = d->cluster;
    if (d->options.core.instance == 0) {
        d->options.core.instance = egm_random_u64();
    }
    r = egm_master_create(&d->options.core, &io, &d->core);
    return r < 0 ? egm_fail(reterr, r, "core", "cannot create the master: %s", egm_strerror(r)) : 0;
}

static int open_daemon(struct egm_master_daemon *d, struct egm_detail *reterr)
{
    const char *http_address = d->options.http_address;
    int r = create_core(d, reterr);

    if (r < 0) {
        return r;
    }
    d->input = egm_alloc(INPUT_SIZE);
    r = d->input ? open_loop(d) : -ENOMEM;
    if (r < 0) {
        return egm_fail(reterr, r, "loop", "cannot create the loop: %s", egm_strerror(r));
    }
    r = listen_tcp(d, d->options.rpc_address, reterr);
    if (r == 0 && !d->options.is_unix_off) {
        r = listen_unix(d, reterr);
    }
    if (r == 0 && http_address) {
        r = listen_http(d, http_address, reterr);
    }
    d->options.rpc_address = NULL; /* borrowed until here */
    d->options.http_address = NULL;
    d->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return r;
}

int egm_master_daemon_create(const struct egm_master_daemon_options *options,
                             struct egm_master_daemon **ret_daemon, struct egm_detail *reterr)
{
    struct egm_master_daemon *d = egm_calloc(1, sizeof(*d));

    if (!d) {
        return egm_fail(reterr, -ENOMEM, "create", "out of memory");
    }
    d->options = *options;
    d->listeners[0].fd = d->listeners[1].fd = d->spare_fd = -1;
    egm_list_init(&d->ready);
    egm_list_init(&d->dirty);
    egm_list_init(&d->fresh);
    egm_list_init(&d->dying);
    choose_connection_limit(d);
    int r = open_daemon(d, reterr);
    if (r < 0) {
        egm_master_daemon_destroy(d);
        return r;
    }
    *ret_daemon = d;
    return 0;
}

/* ---- run ---- */

static int start_handles(struct egm_master_daemon *d)
{
    int r = uv_check_start(&d->check, on_check);

    if (r == 0) {
        r = uv_timer_start(&d->timer, on_timer, TICK_MS, TICK_MS);
    }
    for (size_t i = 0; r == 0 && d->options.takes_signals && i < EGM_COUNT_OF(d->signals); i++) {
        r = uv_signal_init(&d->loop, &d->signals[i]);
        d->signals[i].data = d;
        if (r == 0) {
            r = uv_signal_start(&d->signals[i], on_signal, stop_signals[i]);
        }
    }
    egm_listener_open(d, &d->listeners[0]);
    egm_listener_open(d, &d->listeners[1]);
    return r;
}

int egm_master_daemon_run(struct egm_master_daemon *d, struct egm_detail *reterr)
{
    int r = start_handles(d);

    if (r < 0) {
        return egm_fail(reterr, r, "loop", "cannot start the loop: %s", egm_strerror(r));
    }
    d->now_ns = d->last_tick_ns = egm_clock_ns();
    d->report_ns = d->now_ns + d->options.report_ms * EGM_NS_PER_MS;
    egm_master_tick(d->core, d->now_ns);
    egm_info("master serving rpc=%s unix=%s http=%s cluster=%s connections_max=%u", d->rpc_address,
             d->unix_address[0] ? d->unix_address : "off",
             d->http_address[0] ? d->http_address : "off", d->cluster, d->max_connections);
    egm_ignore(uv_run(&d->loop, UV_RUN_DEFAULT), "returns when all handles are closed");
    egm_info("master stopped");
    return 0;
}

static void *run_thread(void *arg)
{
    egm_ignore(egm_master_daemon_run(arg, NULL), "logged where it happens");
    return NULL;
}

int egm_master_daemon_start(struct egm_master_daemon *d)
{
    int r = egm_thread_start(&d->thread, "egm-master", run_thread, d);

    d->has_thread = r == 0;
    return r;
}

void egm_master_daemon_stop(struct egm_master_daemon *d)
{
    /* release: pairs with the acquire in on_check */
    atomic_store_explicit(&d->is_stop_wanted, true, memory_order_release);
    wake_loop(d);
    if (d->has_thread) {
        pthread_join(d->thread, NULL);
        d->has_thread = false;
    }
}

static void close_loop(struct egm_master_daemon *d)
{
    if (!d->has_loop) {
        return;
    }
    /* never run, or run out: closing what is left takes one more look */
    if (uv_loop_alive(&d->loop) || uv_loop_close(&d->loop) == UV_EBUSY) {
        close_everything(d);
        egm_ignore(uv_run(&d->loop, UV_RUN_DEFAULT), "only close callbacks");
        egm_ignore(uv_loop_close(&d->loop), "nothing is left");
    }
    d->has_loop = false;
}

void egm_master_daemon_destroy(struct egm_master_daemon *d)
{
    if (!d) {
        return;
    }
    egm_admin_destroy(d->admin); /* before the loop that it wakes */
    d->admin = NULL;
    close_loop(d);
    close_listener(&d->listeners[0]);
    close_listener(&d->listeners[1]);
    if (d->unix_address[0]) {
        egm_ignore(unlink(d->unix_address + strlen("unix:")), "gone already");
    }
    if (d->spare_fd >= 0) {
        close(d->spare_fd);
    }
    egm_master_destroy(d->core);
    egm_pages_destroy(d->pages); /* behind the core that uses it */
    egm_free(d->connections);
    egm_free(d->free_peers);
    egm_free(d->input);
    egm_free(d);
}

const char *egm_master_daemon_rpc_address(const struct egm_master_daemon *d)
{
    return d->rpc_address;
}

const char *egm_master_daemon_unix_address(const struct egm_master_daemon *d)
{
    return d->unix_address;
}

const char *egm_master_daemon_http_address(const struct egm_master_daemon *d)
{
    return d->http_address;
}
