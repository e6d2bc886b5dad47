/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction's hit rates on three traces, beside those of LRU on the same trace and capacity. */
#include "core/eviction.h"
#include "test.h"

#include <math.h>
#include <string.h>

enum {
    KEYS = 20000,
    CAPACITY = 1000
};

static uint64_t seed;

static uint64_t next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static double zipf_sums[KEYS];

static void prepare_zipf(double exponent)
{
    double sum = 0;
    for (int i = 0; i < KEYS; i++) {
        sum += 1.0 / pow(i + 1, exponent);
        zipf_sums[i] = sum;
    }
}

static uint32_t zipf(void)
{
    double at = (double)(next_random() >> 11) * 0x1p-53 * zipf_sums[KEYS - 1];
    uint32_t low = 0;
    uint32_t high = KEYS - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (zipf_sums[middle] < at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static uint32_t trace_zipf(uint32_t step)
{
    (void)step;
    return zipf();
}

/* Reads by popularity, and every so often somebody walks over 2,000 keys that nobody reads again.
 */
static uint32_t trace_scan_mix(uint32_t step)
{
    uint32_t phase = step % 10000;
    if (phase < 2000) {
        return KEYS / 2 + (step / 10000 * 2000 + phase) % (KEYS / 2);
    }
    return zipf() / 4;
}

static uint32_t trace_loop(uint32_t step)
{
    return step % (CAPACITY + CAPACITY / 4);
}

/* ---- LRU: a clock of last uses, the oldest goes ---- */
static double lru_rate(uint32_t (*trace)(uint32_t), uint32_t steps)
{
    static uint32_t used_at[KEYS];
    static bool is_in[KEYS];
    static uint32_t queue[4000000]; /* key by time of use; stale entries are skipped */
    memset(used_at, 0, sizeof used_at);
    memset(is_in, 0, sizeof is_in);
    uint32_t count = 0;
    uint32_t tail = 0;
    uint32_t hits = 0;
    for (uint32_t step = 0; step < steps; step++) {
        uint32_t key = trace(step);
        hits += is_in[key];
        if (!is_in[key]) {
            is_in[key] = true;
            count++;
        }
        used_at[key] = step;
        queue[step] = key;
        while (count > CAPACITY) {
            uint32_t old = queue[tail];
            if (is_in[old] && used_at[old] == tail) {
                is_in[old] = false;
                count--;
            }
            tail++;
        }
    }
    return (double)hits / steps;
}

static double our_rate(uint32_t (*trace)(uint32_t), uint32_t steps)
{
    static uint32_t ids[KEYS];
    struct egm_directory d;
    struct egm_eviction e;
    uint32_t tenant;
    ck_assert_int_eq(egm_directory_init(&d, 1, NULL), 0);
    ck_assert_int_eq(egm_directory_tenant(&d, egm_bytes_of("t", 1), &tenant), 0);
    ck_assert_int_eq(egm_eviction_init(&e, CAPACITY), 0);
    for (uint32_t i = 0; i < KEYS; i++) {
        ids[i] = EGM_NO_OBJECT;
    }
    uint32_t count = 0;
    uint32_t hits = 0;
    for (uint32_t step = 0; step < steps; step++) {
        uint32_t key = trace(step);
        if (ids[key] != EGM_NO_OBJECT) {
            hits++;
            egm_eviction_hit(egm_object_at(&d, ids[key]));
            continue;
        }
        while (count >= CAPACITY) {
            uint32_t victim = egm_eviction_next(&e, &d);
            ck_assert_uint_ne(victim, EGM_NO_OBJECT);
            uint32_t gone;
            memcpy(&gone, egm_object_at(&d, victim)->key, sizeof gone);
            egm_eviction_remove(&e, &d, victim, /*evicted=*/true);
            egm_directory_free(&d, victim);
            ids[gone] = EGM_NO_OBJECT;
            count--;
        }
        ck_assert_int_eq(
            egm_directory_new(&d, tenant,
                              egm_directory_hash(&d, tenant, egm_bytes_of(&key, sizeof key)),
                              egm_bytes_of(&key, sizeof key), 1, &ids[key]),
            0);
        egm_object_at(&d, ids[key])->size = 1;
        egm_eviction_add(&e, &d, ids[key]);
        count++;
    }
    ck_assert_uint_eq(e.counts[EGM_QUEUE_SMALL] + e.counts[EGM_QUEUE_MAIN], count);
    ck_assert_uint_eq(e.bytes[EGM_QUEUE_SMALL] + e.bytes[EGM_QUEUE_MAIN], count);
    egm_eviction_release(&e);
    egm_directory_release(&d);
    return (double)hits / steps;
}

static void compare(const char *name, uint32_t (*trace)(uint32_t), uint32_t steps,
                    double least_gain)
{
    seed = 42;
    double lru = lru_rate(trace, steps);
    seed = 42;
    double ours = our_rate(trace, steps);
    printf("%s: hit rate %.4f, lru %.4f\n", name, ours, lru);
    ck_assert_msg(ours >= lru + least_gain, "%s: hit rate %.4f, lru %.4f, gain below %.4f", name,
                  ours, lru, least_gain);
}

START_TEST(popularity_alone_is_served_no_worse_than_by_lru)
{
    prepare_zipf(0.9);
    compare("zipf", trace_zipf, 1000000, 0.0);
}
END_TEST

START_TEST(scan_does_not_wash_out_what_is_read)
{
    prepare_zipf(0.9);
    compare("scan mix", trace_scan_mix, 1000000, 0.02);
}
END_TEST

START_TEST(loop_slightly_larger_than_the_pool_still_hits)
{
    compare("loop", trace_loop, 300000, 0.05);
}
END_TEST

START_TEST(deferred_object_does_not_come_up_at_once)
{
    struct egm_directory d;
    struct egm_eviction e;
    uint32_t tenant;
    uint32_t ids[3];
    ck_assert_int_eq(egm_directory_init(&d, 1, NULL), 0);
    ck_assert_int_eq(egm_directory_tenant(&d, egm_bytes_of("t", 1), &tenant), 0);
    ck_assert_int_eq(egm_eviction_init(&e, 4), 0);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(egm_directory_new(
                             &d, tenant, egm_directory_hash(&d, tenant, egm_bytes_of(&i, sizeof i)),
                             egm_bytes_of(&i, sizeof i), 1, &ids[i]),
                         0);
        egm_object_at(&d, ids[i])->size = 10;
        egm_eviction_add(&e, &d, ids[i]);
    }
    ck_assert_uint_eq(egm_eviction_next(&e, &d), ids[0]);
    egm_eviction_defer(&e, &d, ids[0]);
    ck_assert_uint_eq(egm_eviction_next(&e, &d), ids[1]);
    egm_eviction_remove(&e, &d, ids[1], true);
    ck_assert_uint_eq(egm_eviction_next(&e, &d), ids[2]);
    egm_eviction_remove(&e, &d, ids[2], true);
    ck_assert_uint_eq(egm_eviction_next(&e, &d), ids[0]);
    egm_eviction_remove(&e, &d, ids[0], false);
    ck_assert_uint_eq(egm_eviction_next(&e, &d), EGM_NO_OBJECT);
    egm_eviction_release(&e);
    egm_directory_release(&d);
}
END_TEST

START_TEST(ghosts_survive_any_order_of_forgetting)
{
    struct egm_directory d;
    struct egm_eviction e;
    uint32_t tenant;
    ck_assert_int_eq(egm_directory_init(&d, 1, NULL), 0);
    ck_assert_int_eq(egm_directory_tenant(&d, egm_bytes_of("t", 1), &tenant), 0);
    ck_assert_int_eq(egm_eviction_init(&e, 64), 0);
    for (uint32_t i = 0; i < 5000; i++) {
        uint32_t id;
        uint32_t key = i % 300;
        ck_assert_int_eq(
            egm_directory_new(&d, tenant,
                              egm_directory_hash(&d, tenant, egm_bytes_of(&key, sizeof key)),
                              egm_bytes_of(&key, sizeof key), 1, &id),
            0);
        egm_object_at(&d, id)->size = 1;
        egm_eviction_add(&e, &d, id);
        ck_assert_uint_eq(egm_eviction_next(&e, &d), id);
        egm_eviction_remove(&e, &d, id, true);
        egm_directory_free(&d, id);
        uint32_t seen = 0;
        for (uint32_t k = 0; k < e.ghost_room * 2; k++) {
            seen += e.ghost_seen[k] != 0;
        }
        ck_assert_msg(seen <= e.ghost_count, "%u tags in the table, %u in the ring", seen,
                      e.ghost_count);
    }
    egm_eviction_release(&e);
    egm_directory_release(&d);
}
END_TEST

EGM_TEST_MAIN("core_eviction", popularity_alone_is_served_no_worse_than_by_lru,
              scan_does_not_wash_out_what_is_read, loop_slightly_larger_than_the_pool_still_hits,
              deferred_object_does_not_come_up_at_once, ghosts_survive_any_order_of_forgetting)
