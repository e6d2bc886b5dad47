/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator against a map of slots: random takes and gives, with everything compared after
 * each step. */
#include "core/extents.h"
#include "test.h"

#include <string.h>

enum {
    GRANULES = 96,
    SLOTS = GRANULES * 16,
    HELD = 400
};

static uint64_t seed;

static uint64_t next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

struct held {
    struct egm_place places[EGM_MAX_EXTENTS];
    uint32_t count;
};

static uint8_t map[SLOTS]; /* 1: taken by us */
static struct held held[HELD];
static uint32_t held_count;
static struct egm_extents x;

static uint64_t taken_slots(void)
{
    uint64_t count = 0;
    for (int i = 0; i < SLOTS; i++) {
        count += map[i];
    }
    return count;
}

static void check(void)
{
    ck_assert(egm_extents_is_sound(&x));
    ck_assert_uint_eq(x.free_bytes, (SLOTS - 16 - taken_slots()) * EGM_SLOT);
}

static void mark(struct egm_place place, uint8_t value)
{
    ck_assert(place.count > 0 && place.at >= 16 && place.at + place.count <= SLOTS);
    for (uint32_t i = place.at; i < place.at + place.count; i++) {
        ck_assert_msg(map[i] != value, "slot %u is %s twice", i, value ? "taken" : "given");
        map[i] = value;
    }
}

/* Longest row of granules of which no slot is taken. */
static uint32_t longest_run(void)
{
    uint32_t best = 0;
    uint32_t run = 0;
    for (uint32_t g = 1; g < GRANULES; g++) {
        bool is_free = true;
        for (uint32_t s = 0; s < 16; s++) {
            is_free = is_free && !map[g * 16 + s];
        }
        run = is_free ? run + 1 : 0;
        best = run > best ? run : best;
    }
    return best;
}

static void check_shape(const struct held *h, uint64_t bytes, uint32_t longest)
{
    uint64_t rounded = egm_extents_rounded(bytes);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < h->count; i++) {
        bool is_whole = h->places[i].at % 16 == 0 && h->places[i].count % 16 == 0;
        bool is_small = h->places[i].count < 16 && h->places[i].at % 16 + h->places[i].count <= 16;
        ck_assert(is_whole || is_small);
        sum += h->places[i].count * EGM_SLOT;
    }
    ck_assert_uint_eq(sum, rounded);
    ck_assert(h->count >= 1 && h->count <= EGM_MAX_EXTENTS);
    if (rounded / EGM_GRANULE <= longest) {
        ck_assert_msg(h->count == 1, "not contiguous though %u granules lay in a row", longest);
    }
}

static void take(void)
{
    if (held_count == HELD) {
        return;
    }
    uint64_t bytes = next_random() % 3 ? 1 + next_random() % EGM_GRANULE
                                       : 1 + next_random() % (20 * EGM_GRANULE);
    struct held *h = &held[held_count];
    uint32_t longest = longest_run();
    int r = egm_extents_take(&x, bytes, h->places, &h->count);
    if (r < 0) {
        ck_assert_int_eq(r, EGM_E_NO_SPACE);
        /* never refused while a row of that length is free */
        ck_assert(egm_extents_rounded(bytes) > (uint64_t)longest * EGM_GRANULE);
        return;
    }
    check_shape(h, bytes, longest);
    for (uint32_t i = 0; i < h->count; i++) {
        mark(h->places[i], 1);
    }
    held_count++;
}

static void give(void)
{
    if (held_count == 0) {
        return;
    }
    uint32_t which = (uint32_t)(next_random() % held_count);
    for (uint32_t i = 0; i < held[which].count; i++) {
        mark(held[which].places[i], 0);
        egm_extents_give(&x, held[which].places[i]);
        check();
    }
    held[which] = held[--held_count];
}

static void take_at(void)
{
    if (held_count == HELD) {
        return;
    }
    bool is_small = next_random() % 2;
    uint32_t g = 1 + (uint32_t)(next_random() % (GRANULES - 1));
    struct egm_place place = {.at = g * 16, .count = 16 * (1 + (uint32_t)(next_random() % 4))};
    if (is_small) {
        uint32_t slot = (uint32_t)(next_random() % 16);
        place =
            (struct egm_place){.at = g * 16 + slot, .count = 1 + (uint32_t)(next_random() % 15)};
    }
    bool is_possible =
        place.at + place.count <= SLOTS && (!is_small || place.at % 16 + place.count <= 16);
    bool is_free = is_possible;
    for (uint32_t i = place.at; is_free && i < place.at + place.count; i++) {
        is_free = !map[i];
    }
    int r = egm_extents_take_at(&x, place);
    ck_assert_int_eq(r, !is_possible ? EGM_E_INVALID : is_free ? 0 : EGM_E_NO_SPACE);
    if (r == 0) {
        mark(place, 1);
        held[held_count++] = (struct held){.places = {place}, .count = 1};
    }
}

START_TEST(random_steps_agree_with_a_map_of_slots)
{
    for (uint64_t round = 1; round <= 12; round++) {
        seed = round * 0x9e3779b97f4a7c15u;
        memset(map, 0, sizeof map);
        held_count = 0;
        ck_assert_int_eq(egm_extents_init(&x, GRANULES * EGM_GRANULE + 5), 0);
        for (int step = 0; step < 4000; step++) {
            uint64_t what = next_random() % 10;
            if (what < 5) {
                take();
            } else if (what < 6) {
                take_at();
            } else {
                give();
            }
            check();
        }
        while (held_count > 0) {
            give();
        }
        ck_assert_uint_eq(longest_run(), GRANULES - 1);
        uint32_t count;
        ck_assert_int_eq(egm_extents_take(&x, (GRANULES - 1) * EGM_GRANULE, held[0].places, &count),
                         0);
        ck_assert_uint_eq(count, 1);
        egm_extents_release(&x);
    }
}
END_TEST

START_TEST(too_scattered_is_refused_and_changes_nothing)
{
    ck_assert_int_eq(egm_extents_init(&x, GRANULES * EGM_GRANULE), 0);
    struct egm_place places[EGM_MAX_EXTENTS];
    uint32_t count;
    for (uint32_t g = 2; g < GRANULES; g += 2) { /* every second granule is taken */
        ck_assert_int_eq(egm_extents_take_at(&x, (struct egm_place){.at = g * 16, .count = 16}), 0);
    }
    uint64_t free_bytes = x.free_bytes;
    ck_assert(free_bytes > 17 * EGM_GRANULE);
    ck_assert_int_eq(egm_extents_take(&x, 17 * EGM_GRANULE, places, &count), EGM_E_NO_SPACE);
    ck_assert_uint_eq(x.free_bytes, free_bytes);
    ck_assert(egm_extents_is_sound(&x));
    ck_assert_int_eq(egm_extents_take(&x, 16 * EGM_GRANULE, places, &count), 0);
    ck_assert_uint_eq(count, 16);
    egm_extents_release(&x);
}
END_TEST

START_TEST(bounds_and_impossible_places_are_refused)
{
    ck_assert_int_eq(egm_extents_init(&x, 2 * EGM_GRANULE - 1), EGM_E_LIMIT);
    ck_assert_int_eq(egm_extents_init(&x, EGM_MAX_SEGMENT_BYTES + 1), EGM_E_LIMIT);
    ck_assert_int_eq(egm_extents_init(&x, 8 * EGM_GRANULE), 0);
    const struct egm_place impossible[] = {
        {0, 16},   {0, 1},   {16, 0},          {15, 1},          {17, 16},       {16, 17},
        {120, 16}, {127, 2}, {16, UINT32_MAX}, {UINT32_MAX, 16}, {UINT32_MAX, 1}};
    for (size_t i = 0; i < EGM_COUNT_OF(impossible); i++) {
        ck_assert_msg(egm_extents_take_at(&x, impossible[i]) == EGM_E_INVALID, "case %zu", i);
    }
    ck_assert(egm_extents_is_sound(&x));
    struct egm_place places[EGM_MAX_EXTENTS];
    uint32_t count;
    ck_assert_int_eq(egm_extents_take(&x, EGM_MAX_OBJECT_BYTES, places, &count), EGM_E_NO_SPACE);
    egm_extents_release(&x);
}
END_TEST

START_TEST(rounding_is_by_slots_below_a_granule_and_by_granules_above)
{
    ck_assert_uint_eq(egm_extents_rounded(1), EGM_SLOT);
    ck_assert_uint_eq(egm_extents_rounded(EGM_SLOT), EGM_SLOT);
    ck_assert_uint_eq(egm_extents_rounded(EGM_SLOT + 1), 2 * EGM_SLOT);
    ck_assert_uint_eq(egm_extents_rounded(15 * EGM_SLOT), 15 * EGM_SLOT);
    ck_assert_uint_eq(egm_extents_rounded(15 * EGM_SLOT + 1), EGM_GRANULE);
    ck_assert_uint_eq(egm_extents_rounded(EGM_GRANULE + 1), 2 * EGM_GRANULE);
}
END_TEST

START_TEST(small_objects_share_a_granule_and_give_it_back_whole)
{
    ck_assert_int_eq(egm_extents_init(&x, 3 * EGM_GRANULE), 0);
    struct egm_place small[16];
    uint32_t count;
    for (int i = 0; i < 16; i++) {
        ck_assert_int_eq(egm_extents_take(&x, 100, &small[i], &count), 0);
        ck_assert_uint_eq(small[i].at / 16, small[0].at / 16);
    }
    ck_assert_uint_eq(x.free_bytes, EGM_GRANULE);
    for (int i = 0; i < 16; i++) {
        egm_extents_give(&x, small[(i * 7) % 16]);
        ck_assert(egm_extents_is_sound(&x));
    }
    ck_assert_int_eq(egm_extents_take(&x, 2 * EGM_GRANULE, small, &count), 0);
    ck_assert_uint_eq(count, 1);
    egm_extents_release(&x);
}
END_TEST

static int init_and_release(void *ctx)
{
    (void)ctx;
    struct egm_extents y;
    int r = egm_extents_init(&y, 8 * EGM_GRANULE);
    if (r == 0) {
        egm_extents_release(&y);
    }
    return r;
}

START_TEST(allocation_failure_is_reported)
{
    egm_test_sweep(init_and_release, NULL);
}
END_TEST

EGM_TEST_MAIN("core_extents", random_steps_agree_with_a_map_of_slots,
              too_scattered_is_refused_and_changes_nothing,
              bounds_and_impossible_places_are_refused,
              rounding_is_by_slots_below_a_granule_and_by_granules_above,
              small_objects_share_a_granule_and_give_it_back_whole, allocation_failure_is_reported)
