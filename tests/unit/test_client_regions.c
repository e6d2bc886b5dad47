/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory against a model that marks every unit of a small address space. */
#include "base/limits.h"

#include "client/regions.h"
#include "test.h"

#include <string.h>

#define BASE UINT64_C(0x100000)

static bool covers(const struct egm_regions *regions, uintptr_t begin, size_t size)
{
    size_t hint = 0;
    size_t wild = 12345;

    bool answer = egm_regions_cover(regions, begin, size, &hint);
    ck_assert_int_eq(answer, egm_regions_cover(regions, begin, size, &hint));
    ck_assert_int_eq(answer, egm_regions_cover(regions, begin, size, &wild));
    return answer;
}

START_TEST(neighbours_are_one_range)
{
    struct egm_regions regions = {0};

    ck_assert_int_eq(egm_regions_add(&regions, BASE, 100), 0);
    ck_assert_int_eq(egm_regions_add(&regions, BASE + 200, 100), 0);
    ck_assert(!covers(&regions, BASE + 50, 100));
    ck_assert_int_eq(egm_regions_add(&regions, BASE + 100, 100), 0);
    ck_assert(covers(&regions, BASE, 300));
    ck_assert(!covers(&regions, BASE, 301));
    ck_assert(!covers(&regions, BASE - 1, 2));
    ck_assert(!covers(&regions, BASE, SIZE_MAX));
    ck_assert_uint_eq(regions.joined.count, 1);
    egm_regions_release(&regions);
}
END_TEST

START_TEST(each_registration_needs_its_own_end)
{
    struct egm_regions regions = {0};

    ck_assert_int_eq(egm_regions_add(&regions, BASE, 1000), 0);
    ck_assert_int_eq(egm_regions_add(&regions, BASE, 1000), 0);
    ck_assert_int_eq(egm_regions_add(&regions, BASE + 100, 10), 0);
    ck_assert_int_eq(egm_regions_remove(&regions, BASE), 0);
    ck_assert(covers(&regions, BASE, 1000));
    ck_assert_int_eq(egm_regions_remove(&regions, BASE + 1), EGM_E_NOT_FOUND);
    ck_assert_int_eq(egm_regions_remove(&regions, BASE), 0);
    ck_assert(!covers(&regions, BASE, 1000));
    ck_assert(covers(&regions, BASE + 100, 10));
    ck_assert_int_eq(egm_regions_remove(&regions, BASE), EGM_E_NOT_FOUND);
    ck_assert_int_eq(egm_regions_remove(&regions, BASE + 100), 0);
    ck_assert_uint_eq(regions.joined.count, 0);
    egm_regions_release(&regions);
}
END_TEST

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Registrations in order of arrival, so that the youngest with a given begin goes first. */
struct model {
    struct egm_range ranges[64];
    size_t count;
    unsigned char depth[128];
};

static void model_mark(struct model *model, struct egm_range range, int by)
{
    for (uintptr_t at = range.begin; at < range.end; at++) {
        model->depth[at - BASE] = (unsigned char)(model->depth[at - BASE] + by);
    }
}

static void compare(const struct egm_regions *regions, const struct model *model)
{
    for (size_t begin = 0; begin < 128; begin++) {
        for (size_t size = 1; begin + size <= 128; size += 7) {
            bool is_in = true;
            for (size_t i = 0; i < size; i++) {
                is_in = is_in && model->depth[begin + i] > 0;
            }
            ck_assert_int_eq(covers(regions, BASE + begin, size), is_in);
        }
    }
    for (size_t i = 1; i < regions->joined.count; i++) {
        ck_assert_uint_lt(regions->joined.ranges[i - 1].end, regions->joined.ranges[i].begin);
    }
}

START_TEST(random_registrations_match_a_model)
{
    struct egm_regions regions = {0};
    struct model model = {0};
    uint32_t state = 42;

    for (int step = 0; step < 3000; step++) {
        if (model.count < 40 && next_random(&state) % 2 == 0) {
            struct egm_range range = {.begin = BASE + next_random(&state) % 100};
            range.end =
                range.begin + 1 + next_random(&state) % (next_random(&state) % 4 == 0 ? 28 : 4);
            ck_assert_int_eq(egm_regions_add(&regions, range.begin, range.end - range.begin), 0);
            model.ranges[model.count++] = range;
            model_mark(&model, range, 1);
        } else if (model.count > 0) {
            uintptr_t begin = model.ranges[next_random(&state) % model.count].begin;
            size_t youngest = model.count;
            while (model.ranges[--youngest].begin != begin) {
            }
            ck_assert_int_eq(egm_regions_remove(&regions, begin), 0);
            model_mark(&model, model.ranges[youngest], -1);
            memmove(&model.ranges[youngest], &model.ranges[youngest + 1],
                    (--model.count - youngest) * sizeof(model.ranges[0]));
        }
        if (step % 10 == 0) {
            compare(&regions, &model);
        }
    }
    egm_regions_release(&regions);
}
END_TEST

START_TEST(twenty_thousand_small_registrations)
{
    struct egm_regions regions = {0};
    size_t hint = 0;

    /* far apart, last first: the worst order */
    for (uintptr_t i = 20000; i > 0; i--) {
        ck_assert_int_eq(egm_regions_add(&regions, BASE + i * 8192, 4096), 0);
    }
    for (uintptr_t i = 1; i <= 20000; i++) {
        ck_assert(egm_regions_cover(&regions, BASE + i * 8192, 4096, &hint));
        ck_assert(!egm_regions_cover(&regions, BASE + i * 8192, 4097, &hint));
    }
    for (uintptr_t i = 1; i <= 20000; i++) {
        ck_assert_int_eq(egm_regions_remove(&regions, BASE + i * 8192), 0);
    }
    egm_regions_release(&regions);
}
END_TEST

START_TEST(number_of_registrations_is_bounded)
{
    struct egm_regions regions = {0};

    for (uintptr_t i = 0; i < EGM_MAX_REGIONS; i++) {
        ck_assert_int_eq(egm_regions_add(&regions, BASE + i * 16, 16), 0);
    }
    ck_assert_int_eq(egm_regions_add(&regions, BASE, 16), EGM_E_LIMIT);
    ck_assert(covers(&regions, BASE, EGM_MAX_REGIONS * 16));
    egm_regions_release(&regions);
}
END_TEST

static int add_and_remove(void *ctx)
{
    struct egm_regions regions = {0};
    int r = 0;

    (void)ctx;
    for (uintptr_t i = 0; r == 0 && i < 40; i++) {
        r = egm_regions_add(&regions, BASE + i * 100, i % 3 == 0 ? 1000 : 50);
    }
    for (uintptr_t i = 0; r == 0 && i < 40; i += 3) {
        r = egm_regions_remove(&regions, BASE + i * 100);
    }
    egm_regions_release(&regions);
    return r;
}

START_TEST(every_failing_allocation_is_survived)
{
    egm_test_sweep(add_and_remove, NULL);
}
END_TEST

EGM_TEST_MAIN("client_regions", neighbours_are_one_range, each_registration_needs_its_own_end,
              random_registrations_match_a_model, twenty_thousand_small_registrations,
              number_of_registrations_is_bounded, every_failing_allocation_is_survived)
