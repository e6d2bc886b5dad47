/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls (include/egmstore/provider.h): open, state, drain, close.
 *
 * open builds in this order and undoes in the reverse one: name and data port, memory and fences,
 * Unix socket, core, loop; then it waits until the master has mounted and leased the pool. Calls
 * come from any thread; close must be the last one. In a child after fork every call is harmless:
 * the struct is the parent's, only its pid is looked at. */
#include "egmstore/provider.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/buf.h"
#include "base/limits.h"

#include "mover/map/map.h"
#include "os/clock.h"
#include "os/fork.h"
#include "os/host.h"
#include "os/wait.h"
#include "provider/shell.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_MASTER_PORT 50051
#define DEFAULT_CLUSTER "egmstore"
#define DEFAULT_WAIT_MS 10000u
#define GOODBYE_MS 500u

static bool is_ours(const struct egm_provider *p)
{
    return p->pid == getpid();
}

/* Waits for a change; false when `deadline_ns` has passed or the thread must stop (os/wait.h). Lock
 * held. */
static bool wait_changed(struct egm_provider *p, uint64_t deadline_ns)
{
    return egm_wait_cond(&p->changed, &p->lock, deadline_ns) == 0;
}

/* ---- open ---- */

static int set_master(struct egm_provider *p, const char *master, struct egm_detail *reterr)
{
    struct egm_address address;
    bool is_unix = master && strncmp(master, "unix:", 5) == 0;

    if (!master || !master[0]) {
        master = "127.0.0.1";
    }
    if (is_unix) {
        int n = snprintf(p->master, sizeof(p->master), "%s", master);
        return n > 0 && (size_t)n < sizeof(p->master)
                   ? 0
                   : egm_fail(reterr, EGM_E_INVALID, "master", "the master's path is too long");
    }
    if (egm_parse_address(master, &address) < 0) {
        return egm_fail(reterr, EGM_E_INVALID, "master",
                        "'%.200s' is not a master address; write host:port or unix:/path", master);
    }
    if (!address.has_port) {
        address.has_port = true;
        address.port = DEFAULT_MASTER_PORT;
    }
    int n = egm_format_address(&address, p->master, sizeof(p->master));
    return n < 0 ? n : 0;
}

/* A name that others cannot use is worth a word as soon as there are others. */
static void warn_about_name(const struct egm_provider *p)
{
    struct egm_address name, master;

    if (egm_parse_address(p->hostname, &name) < 0 || egm_parse_address(p->master, &master) < 0) {
        return;
    }
    bool is_loopback = strcmp(name.host, "localhost") == 0 || strcmp(name.host, "::1") == 0 ||
                       strncmp(name.host, "127.", 4) == 0;
    if (is_loopback && !egm_host_is_local(master.host)) {
        egm_warn("name is only reachable on this host, but the master is elsewhere name=%s "
                 "master=%s, continuing",
                 p->hostname, p->master);
    }
}

static int open_unix(struct egm_provider *p, struct egm_detail *reterr)
{
    char address[128];
    int n = snprintf(p->unix_path, sizeof(p->unix_path), "%s/provider-%016" PRIx64 ".sock",
                     p->runtime_dir, p->id);

    if (n < 0 || (size_t)n >= sizeof(p->unix_path)) {
        p->unix_path[0] = '\0';
        return egm_fail(reterr, EGM_E_INVALID, "unix_socket",
                        "the runtime directory '%s' is too long for a socket; set "
                        "EGMSTORE_RUNTIME_DIR to a shorter one",
                        p->runtime_dir);
    }
    egm_ignore(snprintf(address, sizeof(address), "unix:%s", p->unix_path), "fits");
    int r = egm_net_listen(address, &p->unix_listener.fd, NULL, 0, reterr);
    if (r < 0) {
        p->unix_path[0] = '\0';
        return r;
    }
    p->unix_listener.is_unix = true;
    egm_fork_enter(p->unix_listener.fd);
    return 0;
}

static int open_core(struct egm_provider *p, struct egm_detail *reterr)
{
    uint64_t granules_at = EGM_SLOT / sizeof(uint64_t);
    char unix_address[128];
    struct egm_pcore_segment segments[EGM_POOL_SEGMENTS];
    struct egm_pcore_options options = {.provider = p->id,
                                        .epoch = p->epoch,
                                        .host = egm_host_id(),
                                        .name = p->hostname,
                                        .unix_path = unix_address,
                                        .data_address = p->data_address,
                                        .segments = segments,
                                        .segment_count = p->segment_count};

    for (uint32_t i = 0; i < p->segment_count; i++) {
        const struct egm_fence_file *fence = &p->segments[i].fence;
        segments[i] = (struct egm_pcore_segment){.segment = i,
                                                 .numa_node = p->segments[i].numa_node,
                                                 .size = p->segments[i].size,
                                                 .floor = &fence->words[EGM_FENCE_W_FLOOR],
                                                 .granule_fence = &fence->words[granules_at],
                                                 .slot_fence = &fence->words[fence->slot_word]};
    }
    egm_ignore(snprintf(unix_address, sizeof(unix_address), "%s", p->unix_path), "fits");
    int r = egm_pcore_create(&options, &p->core);
    return r < 0 ? egm_fail(reterr, r, "core", "cannot set up the provider: %s", egm_strerror(r))
                 : 0;
}

static int create(struct egm_provider **ret_provider)
{
    const char *cluster = getenv("EGMSTORE_CLUSTER");
    struct egm_provider *p = egm_calloc(1, sizeof(*p));
    pthread_condattr_t attr;

    if (!p) {
        return -ENOMEM;
    }
    p->pid = getpid();
    p->id = egm_random_u64();
    p->epoch = egm_random_u64();
    p->process = egm_random_u64();
    p->reserved_fd = -1;
    p->unix_listener.fd = -1;
    p->tcp_listener.fd = -1;
    for (uint32_t i = 0; i < EGM_POOL_SEGMENTS; i++) {
        p->segments[i].fence.fd = -1;
    }
    egm_ignore(snprintf(p->cluster, sizeof(p->cluster), "%s",
                        cluster && cluster[0] ? cluster : DEFAULT_CLUSTER),
               "a longer name differs from everybody's and is refused");
    egm_list_init(&p->connections);
    egm_list_init(&p->peers);
    EGM_ASSERT(pthread_mutex_init(&p->lock, NULL) == 0);
    EGM_ASSERT(pthread_condattr_init(&attr) == 0);
    EGM_ASSERT(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
    EGM_ASSERT(pthread_cond_init(&p->changed, &attr) == 0);
    pthread_condattr_destroy(&attr);
    *ret_provider = p;
    return 0;
}

/* Undoes everything that open has done so far. */
static void destroy(struct egm_provider *p)
{
    egm_shell_loop_stop(p);
    egm_pcore_destroy(p->core);
    egm_fork_close(p->unix_listener.fd);
    egm_fork_close(p->tcp_listener.fd);
    egm_fork_close(p->reserved_fd);
    if (p->unix_path[0]) {
        egm_ignore(unlink(p->unix_path), "the next provider has another name");
    }
    egm_shell_pool_close(p);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    egm_free(p);
}

static void say_goodbye(struct egm_provider *p);

static int wait_ready(struct egm_provider *p, uint32_t wait_ms, struct egm_detail *reterr)
{
    uint64_t deadline = egm_clock_ns() + wait_ms * EGM_NS_PER_MS;
    int r = 0;

    pthread_mutex_lock(&p->lock);
    while (p->state != EGM_PROVIDER_READY) {
        struct egm_pcore_status status = egm_pcore_status(p->core);
        bool is_final = status.mount_status < 0 && !egm_err_retryable(status.mount_status);
        if (!is_final && wait_changed(p, deadline)) {
            continue;
        }
        if (status.mount_status < 0) {
            r = egm_fail(reterr, status.mount_status, "mount", "the master %s refused the pool: %s",
                         p->master, status.mount_reason);
        } else if (p->is_connected) {
            r = egm_fail(reterr, EGM_E_TIMEOUT, "mount",
                         "the master %s did not take the pool within %u ms", p->master, wait_ms);
        } else {
            r = egm_fail(reterr, EGM_E_PEER_GONE, "connect",
                         "no master at %s within %u ms (%.200s); start it or give its address",
                         p->master, wait_ms,
                         p->last_error.text[0] ? p->last_error.text : "connection lost");
        }
        break;
    }
    pthread_mutex_unlock(&p->lock);
    return r;
}

int egm_provider_open(const struct egm_provider_options *options,
                      struct egm_provider **ret_provider, struct egm_detail *reterr)
{
    struct egm_plan_segment plan[EGM_POOL_SEGMENTS];
    uint32_t count;
    int r = egm_shell_plan(options->size_bytes, plan, &count, reterr);

    return r < 0 ? r : egm_shell_open(options, plan, count, ret_provider, reterr);
}

int egm_shell_open(const struct egm_provider_options *options, const struct egm_plan_segment *plan,
                   uint32_t count, struct egm_provider **ret_provider, struct egm_detail *reterr)
{
    struct egm_provider *p;
    int r = create(&p);

    if (r < 0) {
        return egm_fail(reterr, r, "open", "no memory for the provider");
    }
    r = set_master(p, options->master, reterr);
    if (r == 0) {
        r = egm_runtime_dir(p->runtime_dir, sizeof(p->runtime_dir), reterr);
    }
    if (r == 0) {
        r = egm_shell_names(p, options, reterr);
    }
    if (r == 0) {
        warn_about_name(p);
        r = egm_shell_pool_open(p, options, plan, count, reterr);
    }
    if (r == 0) {
        egm_shell_sweep(p);
        r = open_unix(p, reterr);
    }
    if (r == 0) {
        r = open_core(p, reterr);
    }
    if (r == 0) {
        r = egm_shell_loop_start(p, reterr);
    }
    if (r == 0) {
        r = wait_ready(p, options->wait_master_ms ? options->wait_master_ms : DEFAULT_WAIT_MS,
                       reterr);
        if (r < 0) { /* the master may have taken the pool, its answer being late or lost */
            say_goodbye(p);
        }
    }
    if (r < 0) {
        destroy(p);
        return r;
    }
    egm_info("provider ready name=%s bytes=%" PRIu64 " segments=%u kind=%s page_bytes=%" PRIu64
             " data=%s",
             p->hostname, p->size, p->segment_count, p->segments[0].mem.ops->name,
             p->segments[0].mem.file.page_size, p->data_address[0] ? p->data_address : "off");
    *ret_provider = p;
    return 0;
}

/* ---- looking ---- */

enum egm_provider_state egm_provider_state(struct egm_provider *provider)
{
    if (!is_ours(provider)) {
        return EGM_PROVIDER_GONE;
    }
    pthread_mutex_lock(&provider->lock);
    enum egm_provider_state state = provider->state;
    pthread_mutex_unlock(&provider->lock);
    return state;
}

const char *egm_provider_hostname(const struct egm_provider *provider)
{
    return provider->hostname;
}

uint64_t egm_provider_capacity(const struct egm_provider *provider)
{
    return provider->size;
}

/* ---- leaving ---- */

/* Appends who still can reach the memory; returns how many. Lock held. */
static uint32_t name_importers(struct egm_provider *p, struct egm_buf *text)
{
    uint32_t count = 0;

    EGM_LIST_FOR_EACH (link, &p->peers) {
        const struct egm_peer *peer = egm_container_of(link, struct egm_peer, link);
        if (peer->state == EGM_PEER_WAITING || peer->state == EGM_PEER_IMPORTER ||
            peer->state == EGM_PEER_DYING) {
            egm_ignore(egm_buf_printf(text, "%ssession %016" PRIx64 " pid %u", count ? ", " : "",
                                      peer->session, peer->who.pid),
                       "a cut list is still a list");
            count++;
        }
    }
    EGM_LIST_FOR_EACH (link, &p->connections) {
        const struct egm_data *c = egm_container_of(link, struct egm_data, link);
        egm_ignore(egm_buf_printf(text, "%ssession %016" PRIx64 " over tcp", count ? ", " : "",
                                  c->session),
                   "a cut list is still a list");
        count++;
    }
    return count;
}

int egm_provider_drain(struct egm_provider *provider, uint32_t timeout_ms,
                       struct egm_detail *reterr)
{
    struct egm_provider *p = provider;
    uint64_t deadline = egm_clock_ns() + timeout_ms * EGM_NS_PER_MS;
    struct egm_buf text;
    uint32_t count;

    if (!is_ours(p)) {
        return egm_fail(reterr, EGM_E_CLOSED, "drain", "the provider belongs to another process");
    }
    egm_buf_init(&text, 300);
    pthread_mutex_lock(&p->lock);
    if (p->drain_since_ns == 0) {
        p->drain_since_ns = egm_clock_ns();
        p->state = EGM_PROVIDER_DRAINING;
        egm_pcore_unmount(p->core, EGM_UNMOUNT_DRAIN);
        egm_ignore(uv_async_send(&p->wake), "the tick would notice as well");
    }
    do {
        egm_buf_clear(&text);
        count = name_importers(p, &text);
    } while ((count > 0 || !p->is_detaching) && wait_changed(p, deadline));
    bool is_clean = count == 0 && p->is_detaching;
    if (is_clean) {
        p->state = EGM_PROVIDER_GONE;
    }
    pthread_mutex_unlock(&p->lock);
    int r = 0;
    if (!is_clean && count == 0) {
        r = egm_fail(reterr, EGM_E_TIMEOUT, "drain",
                     "the master did not hide the pool's objects within %u ms", timeout_ms);
    } else if (!is_clean) {
        r = egm_fail(reterr, -EBUSY, "drain", "%u importers still hold memory after %u ms: %s",
                     count, timeout_ms, egm_buf_str(&text));
    }
    egm_buf_release(&text);
    return r;
}

/* Tells the master, unless a drain did; waits a moment for it to have heard. */
static void say_goodbye(struct egm_provider *p)
{
    uint64_t deadline = egm_clock_ns() + GOODBYE_MS * EGM_NS_PER_MS;
    struct egm_buf text;

    egm_buf_init(&text, 1000);
    pthread_mutex_lock(&p->lock);
    if (p->is_connected && !egm_pcore_status(p->core).is_unmounted) {
        egm_pcore_unmount(p->core, EGM_UNMOUNT_NOW);
        egm_ignore(uv_async_send(&p->wake), "the tick would notice as well");
        while (p->is_connected && !egm_pcore_status(p->core).is_unmounted &&
               wait_changed(p, deadline)) {
        }
    }
    /* Whoever still maps the memory reads nothing valid from it any more. */
    egm_pcore_retire(p->core);
    if (name_importers(p, &text) > 0) {
        egm_warn("provider leaves while importers hold its memory importers=\"%s\", continuing",
                 egm_buf_str(&text));
    }
    pthread_mutex_unlock(&p->lock);
    egm_buf_release(&text);
}

void egm_provider_close(struct egm_provider *provider)
{
    /* A child has neither the threads nor the fds; what is left of the struct is the parent's. */
    if (!provider || !is_ours(provider)) {
        return;
    }
    say_goodbye(provider);
    egm_info("provider closed name=%s", provider->hostname);
    destroy(provider);
}
