/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of copies and the threads that share them. Sizes are odd on purpose: around leaves,
 * chunks and pieces. TSan runs this file; what it cannot do is marked. */
#include "base/limits.h"

#include "mover/copy_batch.h"
#include "mover/copy_team.h"
#include "os/clock.h"
#include "os/host.h"
#include "os/memfd.h"
#include "os/thread.h"
#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHUNK ((size_t)EGM_COPY_CHUNK)
#define LEAF ((size_t)EGM_CHECKSUM_LEAF_BYTES)
#define THREADS 4u
#define ITEMS_MAX 64u

/* One item per size: from src to dst, both cut into pieces of their own length. */
struct world {
    char folder[64];
    size_t count;
    size_t sizes[ITEMS_MAX], at[ITEMS_MAX];
    size_t total;
    unsigned char *src, *dst;
    bool is_hashed;
    enum egm_copy_direction direction;
    uint64_t checksums[ITEMS_MAX];
    int statuses[ITEMS_MAX];
    int begun[ITEMS_MAX];
    _Atomic unsigned ended_count, checked_count, inside_count;

    size_t failing;  /* item whose second check fails; ITEMS_MAX: none */
    size_t refusing; /* item whose begin fails */
    _Atomic unsigned checks_of_failing;
    uint64_t deadline_ns;    /* of the check; 0: none */
    _Atomic bool is_closing; /* checks refuse */
    _Atomic bool is_slow;    /* checks take a millisecond */
};

static void make_folder(struct world *w)
{
    egm_ignore(snprintf(w->folder, sizeof(w->folder), "/tmp/egm-test-XXXXXX"), "fits");
    ck_assert_ptr_nonnull(mkdtemp(w->folder));
    setenv("EGMSTORE_RUNTIME_DIR", w->folder, 1);
    ck_assert_int_eq(egm_copy_team_configure(), 0);
}

static void begin_world(struct world *w, const size_t *sizes, size_t count)
{
    *w = (struct world){.failing = ITEMS_MAX, .refusing = ITEMS_MAX, .is_hashed = true};
    make_folder(w);
    ck_assert_uint_le(count, ITEMS_MAX);
    w->count = count;
    for (size_t i = 0; i < count; i++) {
        w->sizes[i] = sizes[i];
        w->at[i] = w->total;
        w->total += sizes[i];
    }
    w->src = calloc(1, w->total + 1);
    w->dst = calloc(1, w->total + 1);
    for (size_t i = 0; i + sizeof(uint64_t) <= w->total; i += sizeof(uint64_t)) {
        memcpy(w->src + i, &(uint64_t){(i + 1) * 0x9e3779b97f4a7c15u}, sizeof(uint64_t));
    }
    egm_copy_team_ref();
}

static void end_world(struct world *w)
{
    char path[96];

    egm_copy_team_unref();
    free(w->src);
    free(w->dst);
    egm_ignore(snprintf(path, sizeof(path), "%.63s/copy-threads", w->folder), "fits");
    unlink(path);
    rmdir(w->folder);
}

static struct iovec *cut(unsigned char *at, size_t size, size_t piece, size_t *ret_count)
{
    size_t count = size / piece + 2;
    struct iovec *pieces = malloc(count * sizeof(*pieces));

    *ret_count = 0;
    for (size_t done = 0; done < size; done += piece) {
        size_t left = size - done;
        pieces[(*ret_count)++] = (struct iovec){at + done, left < piece ? left : piece};
    }
    pieces[(*ret_count)++] = (struct iovec){at + size, 0};
    return pieces;
}

static int on_begin(void *arg, struct egm_copy_item *item)
{
    struct world *w = arg;
    size_t i = item->index;
    size_t dst_count, src_count;

    w->begun[i]++;
    if (i == w->refusing) {
        return EGM_E_STALE;
    }
    struct iovec *src = cut(w->src + w->at[i], w->sizes[i], 70001, &src_count);
    struct iovec *dst = cut(w->dst + w->at[i], w->sizes[i], 300007, &dst_count);
    struct iovec *both = malloc((src_count + dst_count) * sizeof(*both));
    memcpy(both, src, src_count * sizeof(*both));
    memcpy(both + src_count, dst, dst_count * sizeof(*both));
    free(src);
    free(dst);
    item->own = both;
    item->src = (struct egm_copy_list){both, src_count};
    item->dst = (struct egm_copy_list){both + src_count, dst_count};
    item->is_hashed = w->is_hashed;
    return 0;
}

static int on_check(void *arg, const struct egm_copy_item *item, uint64_t at)
{
    struct world *w = arg;
    int r = 0;

    if (at % EGM_COPY_CHUNK != 0) {
        return EGM_E_INVALID;
    }
    atomic_fetch_add(&w->inside_count, 1);
    atomic_fetch_add(&w->checked_count, 1);
    if (atomic_load(&w->is_slow)) {
        egm_sleep_ns(EGM_NS_PER_MS);
    }
    if (atomic_load(&w->is_closing)) {
        r = EGM_E_CLOSED;
    } else if (w->deadline_ns != 0 && egm_clock_ns() >= w->deadline_ns) {
        r = EGM_E_TIMEOUT;
    } else if (item->index == w->failing && atomic_fetch_add(&w->checks_of_failing, 1) == 1) {
        r = EGM_E_PEER_GONE;
    }
    atomic_fetch_sub(&w->inside_count, 1);
    return r;
}

static void on_end(void *arg, struct egm_copy_item *item, int status)
{
    struct world *w = arg;

    free(item->own);
    w->statuses[item->index] = status;
    w->checksums[item->index] = status == 0 && item->is_hashed ? item->checksum : 0;
    atomic_fetch_add(&w->ended_count, 1);
}

static void on_fail(void *arg, size_t index, int status)
{
    struct world *w = arg;

    w->statuses[index] = status;
    atomic_fetch_add(&w->ended_count, 1);
}

static const struct egm_copy_batch_ops ops = {
    .begin = on_begin, .check = on_check, .end = on_end, .fail = on_fail};

static struct egm_copy_batch batch_of(struct world *w)
{
    return (struct egm_copy_batch){
        .ops = &ops, .arg = w, .direction = w->direction, .count = w->count, .bytes = w->total};
}

static void check_item(const struct world *w, size_t i)
{
    ck_assert_int_eq(w->statuses[i], 0);
    ck_assert_int_eq(memcmp(w->dst + w->at[i], w->src + w->at[i], w->sizes[i]), 0);
    if (w->is_hashed) {
        ck_assert_uint_eq(w->checksums[i], egm_checksum_of(w->src + w->at[i], w->sizes[i]));
    }
}

/* Nothing of the batch may still run (I7). */
static unsigned run_with(struct world *w, unsigned thread_count)
{
    struct egm_copy_batch batch = batch_of(w);

    unsigned joined = egm_copy_batch_run_with(&batch, thread_count);
    ck_assert_uint_eq(atomic_load(&w->inside_count), 0);
    ck_assert_uint_eq(atomic_load(&w->ended_count), w->count);
    return joined;
}

static const size_t odd_sizes[] = {2 * CHUNK + 12345, 1,     CHUNK - 1,        CHUNK,
                                   CHUNK + 1,         0,     LEAF - 1,         LEAF + 1,
                                   5 * CHUNK,         65536, 2 * CHUNK - LEAF, 3 * CHUNK + 7};

/* Threads of the team: by name, because sanitizers have threads of their own. */
static unsigned helper_total(void)
{
    DIR *dir = opendir("/proc/self/task");
    unsigned count = 0;

    ck_assert_ptr_nonnull(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[300], name[32] = "";
        egm_ignore(snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name), "fits");
        FILE *file = fopen(path, "re");
        if (file) {
            count += fgets(name, sizeof(name), file) && strncmp(name, "egm-copy", 8) == 0;
            fclose(file);
        }
    }
    closedir(dir);
    return count;
}

START_TEST(odd_sizes_arrive_whole_with_their_checksums)
{
    for (unsigned threads = 1; threads <= THREADS; threads += THREADS - 1) {
        for (int d = 0; d < 2 * EGM_COPY_DIRECTION_COUNT; d++) {
            struct world w;
            begin_world(&w, odd_sizes, EGM_COUNT_OF(odd_sizes));
            w.direction = (enum egm_copy_direction)(d / 2);
            w.is_hashed = d % 2 == 0;
            run_with(&w, threads);
            for (size_t i = 0; i < w.count; i++) {
                ck_assert_int_eq(w.begun[i], 1);
                check_item(&w, i);
            }
            end_world(&w);
        }
    }
}
END_TEST

START_TEST(one_object_is_shared)
{
    const size_t size = 24 * CHUNK + 99;
    unsigned joined = 0;
    struct world w;

    begin_world(&w, &size, 1);
    atomic_store(&w.is_slow, true); /* 25 ms: time for a helper to wake up */
    for (int i = 0; i < 100 && joined < 2; i++) {
        atomic_store(&w.ended_count, 0);
        joined = run_with(&w, 2);
        check_item(&w, 0);
    }
    ck_assert_uint_eq(joined, 2);
    ck_assert_uint_eq(helper_total(), 1);
    end_world(&w);
    ck_assert_uint_eq(helper_total(), 0);
}
END_TEST

START_TEST(failing_piece_stops_its_object_and_no_other)
{
    const size_t sizes[] = {6 * CHUNK, 12 * CHUNK, 6 * CHUNK + 1};

    for (unsigned threads = 1; threads <= THREADS; threads += THREADS - 1) {
        struct world w;
        begin_world(&w, sizes, EGM_COUNT_OF(sizes));
        w.failing = 1;
        run_with(&w, threads);
        ck_assert_int_eq(w.statuses[1], EGM_E_PEER_GONE);
        /* those whose check had passed before go on: one chunk each */
        ck_assert_uint_le(atomic_load(&w.checks_of_failing), 2 * threads);
        check_item(&w, 0);
        check_item(&w, 2);
        end_world(&w);
    }
}
END_TEST

START_TEST(refused_object_is_ended_and_the_others_copied)
{
    for (unsigned threads = 1; threads <= THREADS; threads += THREADS - 1) {
        struct world w;
        begin_world(&w, odd_sizes, EGM_COUNT_OF(odd_sizes));
        w.refusing = 0;
        run_with(&w, threads);
        ck_assert_int_eq(w.statuses[0], EGM_E_STALE);
        for (size_t i = 1; i < w.count; i++) {
            check_item(&w, i);
        }
        end_world(&w);
    }
}
END_TEST

START_TEST(deadline_ends_the_batch_within_a_chunk_on_all_threads)
{
    size_t sizes[8];
    struct world w;

    for (size_t i = 0; i < EGM_COUNT_OF(sizes); i++) {
        sizes[i] = 8 * CHUNK;
    }
    begin_world(&w, sizes, EGM_COUNT_OF(sizes));
    atomic_store(&w.is_slow, true);
    w.deadline_ns = egm_clock_ns() + 10 * EGM_NS_PER_MS;
    run_with(&w, THREADS);
    ck_assert_int_eq(w.statuses[w.count - 1], EGM_E_TIMEOUT);
    ck_assert_uint_lt(atomic_load(&w.checked_count), 64);
    for (size_t i = 0; i < w.count; i++) {
        ck_assert(w.statuses[i] == 0 || w.statuses[i] == EGM_E_TIMEOUT);
    }
    end_world(&w);
}
END_TEST

static void *close_soon(void *arg)
{
    struct world *w = arg;

    egm_sleep_ns(10 * EGM_NS_PER_MS);
    atomic_store(&w->is_closing, true);
    return NULL;
}

/* As a store closes: checks refuse, the call returns, the import goes, and with it the threads. */
START_TEST(close_while_a_batch_runs)
{
    const size_t sizes[] = {40 * CHUNK, 40 * CHUNK};
    struct world w;
    pthread_t thread;

    begin_world(&w, sizes, EGM_COUNT_OF(sizes));
    atomic_store(&w.is_slow, true);
    ck_assert_int_eq(pthread_create(&thread, NULL, close_soon, &w), 0);
    run_with(&w, THREADS);
    ck_assert_int_eq(w.statuses[1], EGM_E_CLOSED);
    ck_assert_uint_lt(atomic_load(&w.checked_count), 80);
    end_world(&w);
    pthread_join(thread, NULL);
    ck_assert_uint_eq(helper_total(), 0);
}
END_TEST

static void *run_some(void *arg)
{
    struct world *w = arg;
    struct egm_copy_batch batch = batch_of(w);

    for (int i = 0; i < 5; i++) {
        (void)egm_copy_batch_run_with(&batch, THREADS);
    }
    return NULL;
}

START_TEST(callers_share_the_helpers)
{
    static struct world worlds[3];
    pthread_t threads[3];

    for (size_t i = 0; i < 3; i++) {
        begin_world(&worlds[i], odd_sizes, EGM_COUNT_OF(odd_sizes));
    }
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_some, &worlds[i]), 0);
    }
    for (size_t i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        for (size_t k = 0; k < worlds[i].count; k++) {
            check_item(&worlds[i], k);
        }
    }
    for (size_t i = 0; i < 3; i++) {
        end_world(&worlds[i]);
    }
}
END_TEST

START_TEST(small_batches_make_no_thread)
{
    struct world w;

    ck_assert_int_eq(setenv("EGMSTORE_COPY_THREADS", "2", 1), 0);
    begin_world(&w, (const size_t[]){EGM_COPY_TEAM_LEAST_BYTES - 1}, 1);
    struct egm_copy_batch batch = batch_of(&w);
    egm_copy_batch_run(&batch);
    check_item(&w, 0);
    ck_assert_uint_eq(helper_total(), 0);
    end_world(&w);
}
END_TEST

START_TEST(one_by_configuration_makes_no_thread)
{
    struct egm_copy_team_choice choice;
    struct world w;

    ck_assert_int_eq(setenv("EGMSTORE_COPY_THREADS", "1", 1), 0);
    begin_world(&w, (const size_t[]){EGM_COPY_TEAM_LEAST_BYTES}, 1);
    struct egm_copy_batch batch = batch_of(&w);
    egm_copy_batch_run(&batch);
    check_item(&w, 0);
    ck_assert_uint_eq(helper_total(), 0);
    egm_copy_team_read(&choice);
    ck_assert_uint_eq(choice.thread_count, 1);
    ck_assert(choice.is_given);
    end_world(&w);
}
END_TEST

START_TEST(configuration_is_a_number_or_auto)
{
    static const char *const good[] = {"", "0", "auto", "1", "16"};
    static const char *const bad[] = {"17", "-1", "two", "2x", " "};

    for (size_t i = 0; i < EGM_COUNT_OF(good); i++) {
        setenv("EGMSTORE_COPY_THREADS", good[i], 1);
        ck_assert_int_eq(egm_copy_team_configure(), 0);
    }
    for (size_t i = 0; i < EGM_COUNT_OF(bad); i++) {
        setenv("EGMSTORE_COPY_THREADS", bad[i], 1);
        ck_assert_int_eq(egm_copy_team_configure(), EGM_E_INVALID);
    }
}
END_TEST

START_TEST(measurement_comes_after_the_first_large_batch_and_leaves_what_it_chose)
{
    struct egm_copy_team_choice choice;
    struct world w;

    ck_assert_int_eq(setenv("EGMSTORE_COPY_THREADS", "auto", 1), 0);
    begin_world(&w, (const size_t[]){EGM_COPY_TEAM_LEAST_BYTES}, 1);
    ck_assert_uint_eq(helper_total(), 0);
    struct egm_copy_batch batch = batch_of(&w);
    egm_copy_batch_run(&batch);
    check_item(&w, 0);
    egm_copy_team_measure(egm_clock_ns() + 20 * EGM_NS_PER_S);
    egm_copy_team_read(&choice);
    if (choice.thread_count > 0) { /* 0: too busy a machine */
        ck_assert_uint_le(choice.thread_count, egm_cpus_allowed());
        ck_assert(choice.thread_count == 1 || choice.gain > 0);
    }
    atomic_store(&w.ended_count, 0);
    egm_copy_batch_run(&batch);
    check_item(&w, 0);
    end_world(&w);
    ck_assert_uint_eq(helper_total(), 0);
}
END_TEST

/* A program that ends right after its batch. */
START_TEST(measurement_gives_way_to_the_end)
{
    struct world w;

    ck_assert_int_eq(setenv("EGMSTORE_COPY_THREADS", "auto", 1), 0);
    for (unsigned delay_ms = 0; delay_ms <= 16; delay_ms += 8) {
        begin_world(&w, (const size_t[]){EGM_COPY_TEAM_LEAST_BYTES}, 1);
        struct egm_copy_batch batch = batch_of(&w);
        egm_copy_batch_run(&batch);
        egm_sleep_ns(delay_ms * EGM_NS_PER_MS);
        end_world(&w);
        ck_assert_uint_eq(helper_total(), 0);
    }
}
END_TEST

START_TEST(nobody_helps_without_a_slot)
{
    const size_t size = 20 * CHUNK;
    char path[96];
    struct world w;

    begin_world(&w, &size, 1);
    egm_ignore(snprintf(path, sizeof(path), "%.63s/copy-threads", w.folder), "fits");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0660);
    ck_assert_int_ge(fd, 0);
    for (unsigned i = 0; i < egm_cpus_online(); i++) {
        ck_assert_int_eq(egm_lock_set(fd, i), 0); /* other processes, as it were */
    }
    atomic_store(&w.is_slow, true);
    ck_assert_uint_eq(run_with(&w, 2), 1);
    check_item(&w, 0);
    close(fd);
    unsigned joined = 1;
    for (int i = 0; i < 100 && joined < 2; i++) {
        atomic_store(&w.ended_count, 0);
        joined = run_with(&w, 2);
    }
    ck_assert_uint_eq(joined, 2);
    end_world(&w);
}
END_TEST

/* TSan ends a child of many threads that starts one; in ASan's child malloc may hang. */
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
/* In the child: no helper, no fd, no reference; then a team of its own. */
static int use_in_child(struct world *w, int fd_count)
{
    struct egm_copy_batch batch = batch_of(w);

    if (helper_total() != 0 || egm_test_fd_count() != fd_count) {
        return 1;
    }
    if (egm_copy_batch_run_with(&batch, 2) != 1) { /* not referenced */
        return 2;
    }
    egm_copy_team_ref();
    unsigned joined = 1;
    for (int i = 0; i < 100 && joined < 2; i++) {
        joined = egm_copy_batch_run_with(&batch, 2);
    }
    egm_copy_team_unref();
    return joined != 2                             ? 3
           : memcmp(w->dst, w->src, w->total) != 0 ? 4
           : helper_total() != 0                   ? 5
                                                   : 0;
}

static void *run_until_closed(void *arg)
{
    struct world *w = arg;
    struct egm_copy_batch batch = batch_of(w);

    while (!atomic_load(&w->is_closing)) {
        (void)egm_copy_batch_run_with(&batch, THREADS);
    }
    return NULL;
}

START_TEST(child_of_a_fork_has_no_team_and_may_make_its_own)
{
    const size_t sizes[] = {16 * CHUNK + 5, 3 * CHUNK};
    struct world busy, w;
    pthread_t thread;
    int fd_count = egm_test_fd_count();

    begin_world(&busy, sizes, EGM_COUNT_OF(sizes));
    begin_world(&w, sizes, EGM_COUNT_OF(sizes));
    atomic_store(&w.is_slow, true);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_until_closed, &busy), 0);
    for (int i = 0; i < 20; i++) {
        int status;
        pid_t child = fork(); /* while helpers are at work */
        if (child == 0) {
            _exit(use_in_child(&w, fd_count));
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFEXITED(status));
        ck_assert_int_eq(WEXITSTATUS(status), 0);
    }
    atomic_store(&busy.is_closing, true);
    pthread_join(thread, NULL);
    end_world(&w);
    end_world(&busy);
}
END_TEST
#endif

struct sweep {
    struct world *w;
};

static int run_once(void *ctx)
{
    struct world *w = ((struct sweep *)ctx)->w;

    atomic_store(&w->ended_count, 0);
    run_with(w, 1);
    for (size_t i = 0; i < w->count; i++) {
        if (w->statuses[i] < 0) {
            return w->statuses[i];
        }
        check_item(w, i);
    }
    return 0;
}

START_TEST(missing_memory_fails_objects_and_leaks_nothing)
{
    struct world w;

    begin_world(&w, odd_sizes, EGM_COUNT_OF(odd_sizes));
    egm_test_sweep(run_once, &(struct sweep){.w = &w});
    end_world(&w);
}
END_TEST

EGM_TEST_MAIN("mover_team", odd_sizes_arrive_whole_with_their_checksums, one_object_is_shared,
              failing_piece_stops_its_object_and_no_other,
              refused_object_is_ended_and_the_others_copied,
              deadline_ends_the_batch_within_a_chunk_on_all_threads, close_while_a_batch_runs,
              callers_share_the_helpers, small_batches_make_no_thread,
              one_by_configuration_makes_no_thread, configuration_is_a_number_or_auto,
              measurement_comes_after_the_first_large_batch_and_leaves_what_it_chose,
              measurement_gives_way_to_the_end, nobody_helps_without_a_slot,
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
              child_of_a_fork_has_no_team_and_may_make_its_own,
#endif
              missing_memory_fails_objects_and_leaks_nothing)
