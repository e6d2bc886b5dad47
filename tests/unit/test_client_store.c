/* SPDX-License-Identifier: Apache-2.0 */
/* The whole client with a real master and real providers, all in this process. */
#include "base/log.h"

#include "egmstore/egmstore.h"
#include "master/master_daemon.h"
#include "os/clock.h"
#include "os/net.h"
#include "test.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#define MIB (1u << 20)
#define BUFFER_BYTES (8u * MIB)

struct world {
    char dir[64];
    char address[64];
    struct egm_master_daemon *master;
    struct egm_provider *provider;
    struct egm_store *store;
    unsigned char *in, *out;
};

static void start_master(struct world *w, const char *address)
{
    struct egm_detail detail = {0};
    struct egm_master_daemon_options options = {.rpc_address = address,
                                                .core = egm_master_defaults()};

    options.core.session_ttl_ms = 3000;
    options.core.hold_ms = 200;
    ck_assert_msg(egm_master_daemon_create(&options, &w->master, &detail) == 0, "%s", detail.text);
    ck_assert_int_eq(egm_master_daemon_start(w->master), 0);
    egm_ignore(
        snprintf(w->address, sizeof(w->address), "%s", egm_master_daemon_rpc_address(w->master)),
        "fits");
}

static void stop_master(struct world *w)
{
    if (w->master) {
        egm_master_daemon_stop(w->master);
        egm_master_daemon_destroy(w->master);
        w->master = NULL;
    }
}

static void start_provider(struct world *w)
{
    struct egm_detail detail = {0};
    struct egm_provider_options options = {
        .master = w->address, .hostname = "127.0.0.1", .size_bytes = 64 * MIB};

    ck_assert_msg(egm_provider_open(&options, &w->provider, &detail) == 0, "%s", detail.text);
}

static void open_store(struct world *w, uint64_t segment_bytes)
{
    struct egm_detail detail = {0};
    struct egm_store_options options = {.master = w->address,
                                        .hostname = "127.0.0.1",
                                        .segment_bytes = segment_bytes,
                                        .deadline_ms = 5000};

    ck_assert_msg(egm_store_open(&options, &w->store, &detail) == 0, "%s", detail.text);
    ck_assert_int_eq(egm_register(w->store, w->in, BUFFER_BYTES, NULL), 0);
    ck_assert_int_eq(egm_register(w->store, w->out, BUFFER_BYTES, NULL), 0);
}

static void *pages(size_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    ck_assert_ptr_ne(at, MAP_FAILED);
    return at;
}

static void begin(struct world *w)
{
    *w = (struct world){0};
    egm_log_set_level(EGM_LOG_ERROR);
    egm_ignore(snprintf(w->dir, sizeof(w->dir), "/tmp/egm-test-XXXXXX"), "fits");
    ck_assert_ptr_nonnull(mkdtemp(w->dir));
    setenv("EGMSTORE_RUNTIME_DIR", w->dir, 1);
    w->in = pages(BUFFER_BYTES);
    w->out = pages(BUFFER_BYTES);
    for (size_t i = 0; i < BUFFER_BYTES; i++) {
        w->in[i] = (unsigned char)(i * 2654435761u >> 13);
    }
    start_master(w, "127.0.0.1:0");
}

static void end(struct world *w)
{
    egm_store_close(w->store);
    egm_provider_close(w->provider);
    stop_master(w);
    munmap(w->in, BUFFER_BYTES);
    munmap(w->out, BUFFER_BYTES);
    rmdir(w->dir);
}

static struct egm_key key_of(const char *text)
{
    return (struct egm_key){.data = text, .size = strlen(text)};
}

static struct egm_item item_of(const char *key, const struct iovec *iov, size_t count)
{
    return (struct egm_item){.key = key_of(key), .segments = iov, .segment_count = count};
}

static int64_t put_one(struct world *w, const char *key, size_t offset, size_t size)
{
    struct iovec iov = {w->in + offset, size};
    struct egm_item item = item_of(key, &iov, 1);
    int64_t result = 1;

    egm_ignore(egm_put(w->store, NULL, 1, &item, &result, NULL), "the result says it");
    return result;
}

static int64_t get_one(struct world *w, const char *key, size_t offset, size_t room)
{
    struct iovec iov = {w->out + offset, room};
    struct egm_item item = item_of(key, &iov, 1);
    int64_t result = 1;

    egm_ignore(egm_get(w->store, false, 1, &item, &result, NULL), "the result says it");
    return result;
}

static int exist_one(struct world *w, const char *key)
{
    struct egm_key k = key_of(key);
    int result = 7;

    egm_ignore(egm_exist(w->store, 1, &k, &result, NULL), "the result says it");
    return result;
}

/* ---- data ---- */

static void round_trips(struct world *w)
{
    struct iovec in[] = {{w->in, 1000}, {w->in + 5000, 3 * MIB}, {w->in + 4 * MIB, 17}};
    struct iovec out[] = {{w->out, 2 * MIB}, {w->out + 2 * MIB, 2 * MIB}};
    struct egm_item put = item_of("object", in, 3);
    struct egm_item get = item_of("object", out, 2);
    size_t total = 1000 + 3 * MIB + 17;
    int64_t result = 1;

    memset(w->out, 0, BUFFER_BYTES);
    ck_assert_int_eq(egm_put(w->store, NULL, 1, &put, &result, NULL), 0);
    ck_assert_int_eq(result, 0);
    ck_assert_int_eq(egm_get(w->store, false, 1, &get, &result, NULL), 0);
    ck_assert_int_eq(result, (int64_t)total);
    ck_assert_int_eq(memcmp(w->out, w->in, 1000), 0);
    ck_assert_int_eq(memcmp(w->out + 1000, w->in + 5000, 3 * MIB), 0);
    ck_assert_int_eq(memcmp(w->out + 1000 + 3 * MIB, w->in + 4 * MIB, 17), 0);
    ck_assert_int_eq(w->out[total], 0);
    /* a second put changes nothing and says 0 */
    ck_assert_int_eq(put_one(w, "object", 100, 50), 0);
    ck_assert_int_eq(get_one(w, "object", 0, BUFFER_BYTES), (int64_t)total);
}

START_TEST(object_comes_back_mapped)
{
    struct world w;
    struct egm_store_counters counters;

    begin(&w);
    start_provider(&w);
    open_store(&w, 0);
    round_trips(&w);
    egm_store_read_counters(w.store, &counters);
    ck_assert_uint_gt(counters.map_bytes_in, 3 * MIB);
    ck_assert_uint_eq(counters.tcp_bytes_in, 0);
    end(&w);
}
END_TEST

START_TEST(object_comes_back_over_tcp)
{
    struct world w;
    struct egm_store_counters counters;

    setenv("EGMSTORE_MAP", "0", 1);
    begin(&w);
    start_provider(&w);
    open_store(&w, 0);
    round_trips(&w);
    egm_store_read_counters(w.store, &counters);
    ck_assert_uint_eq(counters.map_bytes_in, 0);
    ck_assert_uint_gt(counters.tcp_bytes_out, 3 * MIB);
    end(&w);
}
END_TEST

START_TEST(object_comes_back_from_the_own_segment)
{
    struct world w;

    begin(&w);
    open_store(&w, 32 * MIB);
    round_trips(&w);
    end(&w);
}
END_TEST

START_TEST(every_item_of_a_batch_has_its_own_answer)
{
    struct world w;
    enum {
        COUNT = 7
    };
    static const char *const keys[COUNT] = {"a", "b", "a", "", "foreign", "nothing", "b"};
    struct iovec iov[COUNT];
    struct egm_item items[COUNT];
    int64_t results[COUNT];
    unsigned char *foreign;

    begin(&w);
    start_provider(&w);
    open_store(&w, 0);
    foreign = pages(4096);
    for (size_t i = 0; i < COUNT; i++) {
        iov[i] = (struct iovec){w.in + i * 4096, 4096};
        items[i] = item_of(keys[i], &iov[i], 1);
    }
    iov[4].iov_base = foreign;
    iov[5].iov_len = 0;
    ck_assert_int_eq(egm_put(w.store, NULL, COUNT, items, results, NULL), 0);
    ck_assert_int_eq(results[0], 0);
    ck_assert_int_eq(results[1], 0);
    ck_assert_int_eq(results[2], 0);
    ck_assert_int_eq(results[3], EGM_E_BAD_KEY);
    ck_assert_int_eq(results[4], EGM_E_UNREGISTERED);
    ck_assert_int_eq(results[5], EGM_E_INVALID);
    ck_assert_int_eq(results[6], 0);
    for (size_t i = 0; i < COUNT; i++) {
        iov[i] = (struct iovec){w.out + i * 4096, 4096};
    }
    iov[6].iov_len = 4095; /* too small by a byte: nothing is written */
    ck_assert_int_eq(egm_get(w.store, false, COUNT, items, results, NULL), 0);
    ck_assert_int_eq(results[0], 4096);
    ck_assert_int_eq(results[1], 4096);
    ck_assert_int_eq(results[2], 4096); /* the same object, into its own buffer */
    ck_assert_int_eq(results[5], EGM_E_NOT_FOUND);
    ck_assert_int_eq(results[6], EGM_E_TOO_LARGE);
    ck_assert_int_eq(memcmp(w.out, w.out + 2 * 4096, 4096), 0);
    ck_assert_int_eq(memcmp(w.out + 4096, w.in + 4096, 4096), 0);
    ck_assert_int_eq(w.out[6 * 4096], 0);
    char text[200];
    egm_store_last_error(w.store, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "of 7 objects failed"));
    munmap(foreign, 4096);
    end(&w);
}
END_TEST

START_TEST(batches_larger_than_a_window_work)
{
    struct world w;
    enum {
        COUNT = 2500
    };
    static char keys[COUNT][24];
    static struct iovec iov[COUNT];
    static struct egm_item items[COUNT];
    static int64_t results[COUNT];
    static struct egm_key list[COUNT];
    static int present[COUNT];
    size_t prefix = 0;

    begin(&w);
    start_provider(&w);
    open_store(&w, 0);
    for (size_t i = 0; i < COUNT; i++) {
        egm_ignore(snprintf(keys[i], sizeof(keys[i]), "batch/%zu", i), "fits");
        iov[i] = (struct iovec){w.in + i * 1000, 1000};
        items[i] = item_of(keys[i], &iov[i], 1);
        list[i] = items[i].key;
    }
    ck_assert_int_eq(egm_put(w.store, NULL, COUNT, items, results, NULL), 0);
    for (size_t i = 0; i < COUNT; i++) {
        ck_assert_int_eq(results[i], 0);
        iov[i].iov_base = w.out + i * 1000;
    }
    ck_assert_int_eq(egm_get(w.store, false, COUNT, items, results, NULL), 0);
    for (size_t i = 0; i < COUNT; i++) {
        ck_assert_int_eq(results[i], 1000);
    }
    ck_assert_int_eq(memcmp(w.in, w.out, COUNT * 1000), 0);
    ck_assert_int_eq(egm_longest_prefix(w.store, COUNT, list, &prefix, NULL), 0);
    ck_assert_uint_eq(prefix, COUNT);
    list[COUNT / 2] = key_of("absent");
    ck_assert_int_eq(egm_longest_prefix(w.store, COUNT, list, &prefix, NULL), 0);
    ck_assert_uint_eq(prefix, COUNT / 2);
    list[3] = key_of("");
    ck_assert_int_eq(egm_exist(w.store, COUNT, list, present, NULL), 0);
    for (size_t i = 0; i < COUNT; i++) {
        ck_assert_int_eq(present[i], i == COUNT / 2 ? 0 : i == 3 ? EGM_E_BAD_KEY : 1);
    }
    end(&w);
}
END_TEST

START_TEST(removed_objects_are_gone)
{
    struct world w;
    struct egm_key keys[2] = {key_of("k1"), key_of("absent")};
    int results[2];
    uint64_t count = 0;
    struct egm_object_info info;

    begin(&w);
    start_provider(&w);
    open_store(&w, 0);
    ck_assert_int_eq(put_one(&w, "k1", 0, 5000), 0);
    ck_assert_int_eq(put_one(&w, "k2", 0, 5000), 0);
    ck_assert_int_eq(put_one(&w, "other", 0, 5000), 0);
    ck_assert_int_eq(egm_query(w.store, 1, keys, &info, NULL), 0);
    ck_assert_int_eq(info.status, 0);
    ck_assert_uint_eq(info.size, 5000);
    ck_assert_str_eq(info.replicas[0].provider, egm_provider_hostname(w.provider));
    ck_assert_int_eq(egm_remove(w.store, true, 2, keys, results, NULL), 0);
    ck_assert_int_eq(results[0], 0);
    ck_assert_int_eq(results[1], EGM_E_NOT_FOUND);
    ck_assert_int_eq(exist_one(&w, "k1"), 0);
    ck_assert_int_eq(get_one(&w, "k1", 0, 5000), EGM_E_NOT_FOUND);
    ck_assert_int_eq(egm_remove_matching(w.store, "^k", true, &count, NULL), 0);
    ck_assert_uint_eq(count, 1);
    struct egm_detail detail = {0};
    ck_assert_int_eq(egm_remove_matching(w.store, "(", true, &count, &detail), EGM_E_INVALID);
    ck_assert_uint_gt(strlen(detail.text), 20);
    ck_assert_int_eq(egm_remove_all(w.store, true, &count, NULL), 0);
    ck_assert_uint_eq(count, 1);
    ck_assert_int_eq(exist_one(&w, "other"), 0);
    end(&w);
}
END_TEST

struct worker {
    struct world *w;
    unsigned index;
    unsigned errors;
};

static void *work(void *arg)
{
    struct worker *worker = arg;
    struct world *w = worker->w;
    size_t at = worker->index * MIB;

    for (unsigned i = 0; i < 60; i++) {
        char key[32];
        size_t size = 1 + i * 7919 % 200000;
        egm_ignore(snprintf(key, sizeof(key), "t%u/%u", worker->index, i), "fits");
        worker->errors += put_one(w, key, at + i, size) != 0;
        worker->errors += exist_one(w, key) != 1;
        worker->errors += get_one(w, key, at, MIB) != (int64_t)size;
        worker->errors += memcmp(w->out + at, w->in + at + i, size) != 0;
    }
    return NULL;
}

START_TEST(threads_do_not_disturb_each_other)
{
    struct world w;
    struct worker workers[7];
    pthread_t threads[7];

    begin(&w);
    start_provider(&w);
    open_store(&w, 0);
    for (unsigned i = 0; i < 7; i++) {
        workers[i] = (struct worker){&w, i, 0};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < 7; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_uint_eq(workers[i].errors, 0);
    }
    end(&w);
}
END_TEST

/* ---- registration ---- */

START_TEST(only_mapped_memory_can_be_registered)
{
    struct world w;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *two = NULL;

    begin(&w);
    open_store(&w, 0);
    two = pages(2 * page);
    munmap(two + page, page);
    ck_assert_int_eq(egm_register(w.store, two, page, NULL), 0);
    ck_assert_int_eq(egm_register(w.store, two, 2 * page, NULL), EGM_E_INVALID);
    ck_assert_int_eq(egm_register(w.store, NULL, 1, NULL), EGM_E_INVALID);
    ck_assert_int_eq(egm_register(w.store, two, 0, NULL), EGM_E_INVALID);
    ck_assert_int_eq(egm_register(w.store, two, SIZE_MAX, NULL), EGM_E_INVALID);
    ck_assert_int_eq(egm_unregister(w.store, two + 1, NULL), EGM_E_NOT_FOUND);
    ck_assert_int_eq(egm_unregister(w.store, two, NULL), 0);
    ck_assert_int_eq(mprotect(two, page, PROT_NONE), 0);
    ck_assert_int_eq(egm_register(w.store, two, page, NULL), EGM_E_INVALID);
    munmap(two, page);
    end(&w);
}
END_TEST

/* ---- lives and deaths ---- */

START_TEST(without_a_segment_puts_say_so_at_once)
{
    struct world w;

    begin(&w);
    open_store(&w, 0);
    uint64_t before = egm_clock_ns();
    ck_assert_int_eq(put_one(&w, "k", 0, 100), EGM_E_NO_SEGMENT);
    ck_assert_uint_lt(egm_clock_ns() - before, EGM_NS_PER_S);
    ck_assert_int_eq(get_one(&w, "k", 0, 100), EGM_E_NOT_FOUND);
    end(&w);
}
END_TEST

static int open_at(const char *address, struct egm_detail *reterr)
{
    struct egm_store_options options = {
        .master = address, .hostname = "127.0.0.1", .deadline_ms = 400};
    struct egm_store *store = NULL;
    uint64_t before = egm_clock_ns();
    int r = egm_store_open(&options, &store, reterr);

    ck_assert_uint_lt(egm_clock_ns() - before, 2 * EGM_NS_PER_S);
    ck_assert_ptr_null(store);
    return r;
}

START_TEST(open_without_a_master_fails_in_time_with_a_reason)
{
    struct egm_detail detail = {0};
    char address[64];
    int fd;

    egm_log_set_level(EGM_LOG_ERROR);
    ck_assert_int_eq(open_at("127.0.0.1:1", &detail), EGM_E_PEER_GONE);
    ck_assert_ptr_nonnull(strstr(detail.text, "127.0.0.1:1"));
    ck_assert_int_eq(open_at("nonsense:port:x", &detail), EGM_E_INVALID);
    /* one that takes connections and says nothing */
    ck_assert_int_eq(egm_net_listen("127.0.0.1:0", &fd, address, sizeof(address), NULL), 0);
    ck_assert_int_eq(open_at(address, &detail), EGM_E_TIMEOUT);
    close(fd);
}
END_TEST

START_TEST(wildcard_names_and_unknown_protocols_are_refused)
{
    struct egm_detail detail = {0};
    struct egm_store *store = NULL;
    struct egm_store_options options = {.hostname = "0.0.0.0"};

    egm_log_set_level(EGM_LOG_ERROR);
    ck_assert_int_eq(egm_store_open(&options, &store, &detail), EGM_E_INVALID);
    options = (struct egm_store_options){.protocol = "rdma", .strict_protocol = true};
    ck_assert_int_eq(egm_store_open(&options, &store, &detail), EGM_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(detail.text, "rdma"));
}
END_TEST

START_TEST(calls_fail_in_time_without_master_and_work_again_with_the_next)
{
    struct world w;

    begin(&w);
    start_provider(&w);
    open_store(&w, 0);
    ck_assert_int_eq(put_one(&w, "before", 0, 5000), 0);
    ck_assert_int_eq(egm_store_health(w.store), 0);
    stop_master(&w);
    uint64_t before = egm_clock_ns();
    ck_assert_int_lt(put_one(&w, "k", 0, 100), 0);
    ck_assert_int_lt(get_one(&w, "before", 0, 5000), 0);
    ck_assert_int_lt(exist_one(&w, "before"), 0);
    ck_assert_int_lt(egm_store_health(w.store), 0);
    ck_assert_uint_lt(egm_clock_ns() - before, 16 * EGM_NS_PER_S);
    start_master(&w, w.address);
    int64_t result = -1;
    before = egm_clock_ns();
    while (result != 0 && egm_clock_ns() - before < 15 * EGM_NS_PER_S) {
        result = put_one(&w, "after", 4096, 5000);
        egm_sleep_ns(100 * EGM_NS_PER_MS);
    }
    ck_assert_int_eq(result, 0);
    ck_assert_int_eq(get_one(&w, "after", 0, 5000), 5000);
    ck_assert_int_eq(memcmp(w.out, w.in + 4096, 5000), 0);
    ck_assert_int_eq(egm_store_health(w.store), 0);
    end(&w);
}
END_TEST

START_TEST(objects_of_a_provider_that_left_are_absent)
{
    struct world w;

    begin(&w);
    start_provider(&w);
    open_store(&w, 0);
    ck_assert_int_eq(put_one(&w, "k", 0, 5000), 0);
    egm_provider_close(w.provider);
    w.provider = NULL;
    uint64_t before = egm_clock_ns();
    while (exist_one(&w, "k") != 0 && egm_clock_ns() - before < 10 * EGM_NS_PER_S) {
        egm_sleep_ns(20 * EGM_NS_PER_MS);
    }
    ck_assert_int_eq(exist_one(&w, "k"), 0);
    ck_assert_int_eq(get_one(&w, "k", 0, 5000), EGM_E_NOT_FOUND);
    start_provider(&w);
    ck_assert_int_eq(put_one(&w, "k", 0, 5000), 0);
    ck_assert_int_eq(get_one(&w, "k", 0, 5000), 5000);
    end(&w);
}
END_TEST

START_TEST(child_of_fork_has_a_dead_store_and_the_parent_a_living_one)
{
    struct world w;
    int status;

    begin(&w);
    start_provider(&w);
    open_store(&w, 0);
    ck_assert_int_eq(put_one(&w, "k", 0, 5000), 0);
    pid_t child = fork();
    if (child == 0) {
        bool is_dead =
            put_one(&w, "x", 0, 10) == EGM_E_CLOSED && get_one(&w, "k", 0, 5000) == EGM_E_CLOSED &&
            exist_one(&w, "k") == EGM_E_CLOSED && egm_store_health(w.store) == EGM_E_CLOSED;
        egm_store_close(w.store);
        _exit(is_dead ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert_int_eq(get_one(&w, "k", 0, 5000), 5000);
    end(&w);
}
END_TEST

/* ---- a master that stands still ---- */

/* A master in a process of its own, so that it can be stopped; with a provider if wanted. */
static pid_t fork_master(struct world *w, bool has_provider)
{
    int ends[2];

    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        start_master(w, "127.0.0.1:0");
        if (has_provider) {
            start_provider(w);
        }
        if (write(ends[1], w->address, sizeof(w->address)) < 0) {
            _exit(1);
        }
        for (;;) {
            pause(); /* it is killed */
        }
    }
    ck_assert_int_gt(read(ends[0], w->address, sizeof(w->address)), 0);
    close(ends[0]);
    close(ends[1]);
    return child;
}

static void stop_process(pid_t process)
{
    int status;

    ck_assert_int_eq(kill(process, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(process, &status, WUNTRACED), process);
    ck_assert(WIFSTOPPED(status));
}

static void kill_master(pid_t master)
{
    int status;

    ck_assert_int_eq(kill(master, SIGKILL), 0);
    ck_assert_int_eq(waitpid(master, &status, 0), master);
}

static void *ask_for_one(void *arg)
{
    struct worker *worker = arg;

    worker->errors = (unsigned)-exist_one(worker->w, "k");
    return NULL;
}

START_TEST(stopped_master_costs_the_deadline_and_close_ends_the_wait)
{
    struct world w;
    struct worker workers[3] = {{&w, 0, 0}, {&w, 1, 0}, {&w, 2, 0}};
    pthread_t threads[3];

    begin(&w);
    stop_master(&w);
    pid_t master = fork_master(&w, /*has_provider=*/false);
    setenv("EGMSTORE_DEADLINE_MS", "700", 1);
    open_store(&w, 0);
    ck_assert_int_eq(exist_one(&w, "k"), 0);
    stop_process(master);
    uint64_t before = egm_clock_ns();
    ck_assert_int_eq(exist_one(&w, "k"), EGM_E_TIMEOUT);
    ck_assert_int_eq(put_one(&w, "k", 0, 10), EGM_E_TIMEOUT);
    ck_assert_int_eq(get_one(&w, "k", 0, 10), EGM_E_TIMEOUT);
    uint64_t took = egm_clock_ns() - before;
    ck_assert_uint_ge(took, 3 * 690 * EGM_NS_PER_MS);
    ck_assert_uint_le(took, 3 * 800 * EGM_NS_PER_MS);
    egm_store_close(w.store);

    ck_assert_int_eq(kill(master, SIGCONT), 0);
    setenv("EGMSTORE_DEADLINE_MS", "20000", 1);
    open_store(&w, 0);
    ck_assert_int_eq(exist_one(&w, "k"), 0);
    stop_process(master);
    /* one has the open connection, the others wait for a greeting */
    for (unsigned i = 0; i < 3; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, ask_for_one, &workers[i]), 0);
    }
    egm_sleep_ns(200 * EGM_NS_PER_MS);
    before = egm_clock_ns();
    egm_store_close(w.store);
    w.store = NULL;
    ck_assert_uint_le(egm_clock_ns() - before, 2 * EGM_NS_PER_S);
    for (unsigned i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq((int)workers[i].errors, -EGM_E_CLOSED);
    }
    kill_master(master);
    end(&w);
}
END_TEST

/* Only the requester's allocations fail: the others are in the child. */
START_TEST(get_without_memory_says_so)
{
    struct world w;
    bool is_untouched = false;

    begin(&w);
    stop_master(&w);
    pid_t master = fork_master(&w, /*has_provider=*/true);
    open_store(&w, 0);
    ck_assert_int_eq(put_one(&w, "k", 0, 5000), 0);
    for (int64_t n = 0; !is_untouched; n++) {
        egm_alloc_fail_after(n);
        int64_t r = get_one(&w, "k", 0, 5000);
        is_untouched = egm_alloc_fail_is_armed();
        egm_alloc_fail_after(-1);
        ck_assert_msg(r == 5000 || (r == -ENOMEM && !is_untouched), "allocation %ld gave %ld",
                      (long)n, (long)r);
    }
    egm_store_close(w.store);
    w.store = NULL;
    kill_master(master);
    end(&w);
}
END_TEST

/* ---- signals ---- */

static int stop_at_the_second_look(void *arg)
{
    unsigned *looks = arg;

    return ++*looks >= 2;
}

START_TEST(check_ends_calls_that_only_try_again)
{
    struct world w;
    struct egm_store_options options = {
        .master = "127.0.0.1:1", .hostname = "127.0.0.1", .deadline_ms = 20000};
    struct egm_store *store;
    unsigned looks = 0;

    begin(&w);
    start_provider(&w);
    open_store(&w, 0);
    ck_assert_int_eq(put_one(&w, "k", 0, 5000), 0);
    stop_master(&w);
    for (unsigned i = 0; i < 4; i++) {
        uint64_t before = egm_clock_ns();
        looks = 0;
        egm_on_interrupt(stop_at_the_second_look, &looks);
        int64_t r = i == 0   ? put_one(&w, "x", 0, 100)
                    : i == 1 ? get_one(&w, "k", 0, 5000)
                    : i == 2 ? exist_one(&w, "k")
                             : egm_store_open(&options, &store, NULL);
        ck_assert_int_eq(r, EGM_E_CLOSED);
        ck_assert_uint_le(egm_clock_ns() - before, EGM_NS_PER_S);
        ck_assert_uint_eq(looks, 2);
    }
    egm_on_interrupt(NULL, NULL);
    end(&w);
}
END_TEST

/* libuv opens two descriptors for the process, once, and keeps them. */
__attribute__((constructor)) static void use_libuv_once(void)
{
    uv_loop_t loop;

    if (uv_loop_init(&loop) == 0) {
        egm_ignore(uv_loop_close(&loop), "it is empty");
    }
}

EGM_TEST_MAIN("client_store", object_comes_back_mapped, object_comes_back_over_tcp,
              object_comes_back_from_the_own_segment, every_item_of_a_batch_has_its_own_answer,
              batches_larger_than_a_window_work, removed_objects_are_gone,
              threads_do_not_disturb_each_other, only_mapped_memory_can_be_registered,
              without_a_segment_puts_say_so_at_once,
              open_without_a_master_fails_in_time_with_a_reason,
              wildcard_names_and_unknown_protocols_are_refused,
              calls_fail_in_time_without_master_and_work_again_with_the_next,
              objects_of_a_provider_that_left_are_absent,
              child_of_fork_has_a_dead_store_and_the_parent_a_living_one,
              stopped_master_costs_the_deadline_and_close_ends_the_wait, get_without_memory_says_so,
              check_ends_calls_that_only_try_again)
