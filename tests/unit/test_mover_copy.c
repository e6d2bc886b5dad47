/* SPDX-License-Identifier: Apache-2.0 */
/* Checksum and copy: fixed numbers that the distribution's libxxhash gave, and random lists
 * against a naive reference. */
#include "base/checked.h"

#include "mover/checksum.h"
#include "mover/copy_kernel.h"
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LEAF ((size_t)EGM_CHECKSUM_LEAF_BYTES)
#define GUARD 0xA5u
#define AREA_BYTES ((size_t)3 << 20)

static uint64_t random_state;

static void seed(uint64_t value)
{
    random_state = value;
}

/* splitmix64: repeatable, and good enough to cut lists. */
static uint64_t random_u64(void)
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t random_below(size_t bound)
{
    return (size_t)(random_u64() % bound);
}

/* Pieces are mostly small or leaf-sized, now and then empty: the cuts that matter. */
static size_t random_piece_size(void)
{
    static const size_t usual[] = {0,    1,    63,       64,   65,       1023,     1024,  1025,
                                   4096, 8192, LEAF - 1, LEAF, LEAF + 1, 3 * LEAF, 65536, 200000};
    return random_below(3) == 0 ? random_below(70000) : usual[random_below(EGM_COUNT_OF(usual))];
}

static unsigned char *new_area(size_t size)
{
    unsigned char *area = malloc(size);
    ck_assert_ptr_nonnull(area);
    return area;
}

static void fill_pattern(unsigned char *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        data[i] = (unsigned char)(((uint32_t)i + 1u) * 2654435761u >> 24);
    }
}

static void fill_random(unsigned char *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        data[i] = (unsigned char)random_u64();
    }
}

static bool use_policy(const char *name)
{
    int r = egm_copy_use_policy(name);
    if (r == EGM_E_UNSUPPORTED) {
        return false;
    }
    ck_assert_int_eq(r, 0);
    return true;
}

static const char *const policies[] = {"plain", "nt", "nt-sse2", "nt-avx512"};

/* ---- checksum ---- */

START_TEST(every_variant_gives_the_fixed_values)
{
    static const struct {
        size_t size;
        uint64_t value;
    } vectors[] = {
        {0, 0x2d06800538d394c2u},       {1, 0x576d31948c8f2c0fu},     {63, 0xb952c9a4c787987cu},
        {64, 0x1461ce999d8de2a3u},      {65, 0xf369014c60e3c6d0u},    {240, 0xc8e5bdd3780b6bf0u},
        {241, 0xb89f20caf05598cbu},     {16383, 0x5eb06005e149e815u}, {16384, 0x2227cdf014455e43u},
        {16385, 0xff57695b07681644u},   {32768, 0xf352ea32c9c937a7u}, {100000, 0x8ec31eaf99792841u},
        {1048583, 0xe1aaf0a1609272c4u},
    };
    unsigned char *data = new_area(AREA_BYTES);
    const struct egm_checksum_variant *variant;
    struct egm_checksum c;

    fill_pattern(data, AREA_BYTES);
    ck_assert_ptr_nonnull(egm_checksum_variant_at(0));
    for (size_t v = 0; (variant = egm_checksum_variant_at(v)); v++) {
        for (size_t i = 0; i < EGM_COUNT_OF(vectors); i++) {
            egm_checksum_init_with(&c, variant, vectors[i].size);
            egm_checksum_update(&c, data, vectors[i].size);
            ck_assert_msg(egm_checksum_final(&c) == vectors[i].value, "variant %s, size %zu",
                          egm_checksum_variant_name(variant), vectors[i].size);
            ck_assert_uint_eq(egm_checksum_of(data, vectors[i].size), vectors[i].value);
        }
    }
    free(data);
}
END_TEST

START_TEST(pieces_of_any_size_give_the_value_of_the_whole)
{
    unsigned char *data = new_area(AREA_BYTES);
    const struct egm_checksum_variant *variant;
    struct egm_checksum c;

    seed(1);
    fill_random(data, AREA_BYTES);
    for (size_t v = 0; (variant = egm_checksum_variant_at(v)); v++) {
        for (unsigned round = 0; round < 60; round++) {
            size_t size = random_below(400000), shift = random_below(65), at = 0;
            egm_checksum_init_with(&c, variant, size);
            while (at < size) {
                size_t take = (size_t)egm_min_u64(random_piece_size(), size - at);
                egm_checksum_update(&c, data + shift + at, take);
                at += take;
            }
            ck_assert_uint_eq(egm_checksum_final(&c), egm_checksum_of(data + shift, size));
        }
    }
    free(data);
}
END_TEST

/* Checks a checksum at `c`, whose memory held `fill` before, but for one word with the very seed
 * that init will ask for: an uninitialised state that seems to have been prepared for that seed. */
static void check_dirty(const struct egm_checksum_variant *variant, struct egm_checksum *c,
                        size_t word, int fill, struct iovec data)
{
    memset((void *)c, fill, sizeof *c);
    memcpy((unsigned char *)c + word * 8, &(uint64_t){data.iov_len}, 8);
    egm_checksum_init_with(c, variant, data.iov_len);
    egm_checksum_update(c, data.iov_base, 777);
    egm_checksum_update(c, (unsigned char *)data.iov_base + 777, data.iov_len - 777);
    ck_assert_uint_eq(egm_checksum_final(c), egm_checksum_of(data.iov_base, data.iov_len));
}

START_TEST(address_and_earlier_content_of_the_state_do_not_matter)
{
    /* 31 leaves: XXH3 keeps what it derives from a seed in the state only beyond 240 bytes of input
     */
    struct iovec data = {new_area(31 * LEAF), 31 * LEAF};
    unsigned char *room = new_area(sizeof(struct egm_checksum) + 64);
    const struct egm_checksum_variant *variant;

    fill_pattern(data.iov_base, data.iov_len);
    for (size_t v = 0; (variant = egm_checksum_variant_at(v)); v++) {
        for (size_t at = 0; at < 64; at += _Alignof(struct egm_checksum)) {
            check_dirty(variant, (struct egm_checksum *)(void *)(room + at), 0, 0xff, data);
        }
        for (size_t word = 0; word < sizeof(struct egm_checksum) / 8; word++) {
            check_dirty(variant, (struct egm_checksum *)(void *)room, word, 0, data);
        }
    }
    free(data.iov_base);
    free(room);
}
END_TEST

START_TEST(length_and_every_byte_count)
{
    unsigned char data[300] = {0};
    uint64_t whole = egm_checksum_of(data, 300);

    ck_assert_uint_ne(egm_checksum_of(data, 299), whole);
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = 1;
        ck_assert_uint_ne(egm_checksum_of(data, 300), whole);
        data[i] = 0;
    }
}
END_TEST

START_TEST(feeding_more_than_the_object_stops_the_process)
{
    struct egm_checksum c;
    egm_checksum_init(&c, 3);
    egm_checksum_update(&c, "abcd", 4);
}
END_TEST

START_TEST(final_before_the_last_byte_stops_the_process)
{
    struct egm_checksum c;
    egm_checksum_init(&c, 3);
    egm_checksum_update(&c, "ab", 2);
    (void)egm_checksum_final(&c);
}
END_TEST

/* ---- copy ---- */

/* One side of a copy: a list whose pieces lie in one area, with a guard byte or more between them.
 */
struct side {
    unsigned char *area;
    struct iovec *pieces;
    size_t count;
};

#define SIDE_PIECES 4096u

static struct side new_side(void)
{
    struct side side = {.area = new_area(AREA_BYTES)};
    side.pieces = calloc(SIDE_PIECES, sizeof *side.pieces);
    ck_assert_ptr_nonnull(side.pieces);
    return side;
}

static void free_side(struct side *side)
{
    free(side->area);
    free(side->pieces);
}

/* Cuts `size` bytes into random pieces with random gaps. */
static void cut_randomly(struct side *side, size_t size)
{
    size_t at = 1 + random_below(130);

    memset(side->area, (int)GUARD, AREA_BYTES);
    side->count = 0;
    while (size > 0 || (side->count < 3 && random_below(2))) {
        size_t take = (size_t)egm_min_u64(random_piece_size(), size);
        if (side->count + 2 >= SIDE_PIECES) {
            take = size;
        }
        side->pieces[side->count++] = (struct iovec){take > 0 ? side->area + at : NULL, take};
        at += take + 1 + random_below(100);
        size -= take;
    }
    ck_assert_uint_le(at, AREA_BYTES);
}

static struct egm_copy_list list_of(const struct side *side)
{
    return (struct egm_copy_list){side->pieces, side->count};
}

/* The naive reference: byte by byte between a side and flat memory. */
static void spread(struct side *side, const unsigned char *flat)
{
    for (size_t i = 0; i < side->count; i++) {
        for (size_t k = 0; k < side->pieces[i].iov_len; k++) {
            ((unsigned char *)side->pieces[i].iov_base)[k] = *flat++;
        }
    }
}

/* Fails unless `side` holds exactly `flat` in its pieces and guards everywhere else. (One check
 * per loop: Check records each, which takes longer than the comparison.) */
static void check_side(struct side *side, const unsigned char *flat)
{
    size_t bad_pieces = 0, bad_guards = 0;

    for (size_t i = 0; i < side->count; i++) {
        size_t size = side->pieces[i].iov_len;
        if (size == 0) {
            continue;
        }
        bad_pieces += memcmp(side->pieces[i].iov_base, flat, size) != 0;
        memset(side->pieces[i].iov_base, (int)GUARD, size);
        flat += size;
    }
    ck_assert_uint_eq(bad_pieces, 0);
    for (size_t i = 0; i < AREA_BYTES; i++) {
        bad_guards += side->area[i] != GUARD;
    }
    ck_assert_uint_eq(bad_guards, 0);
}

static void check_random_copy(enum egm_copy_direction direction, struct side *dst, struct side *src,
                              unsigned char *flat, bool is_stepped)
{
    size_t size = random_below(4) == 0 ? random_below(70000) : random_below(600000), done = 0;
    struct egm_checksum checksum;
    struct egm_copy c;

    fill_random(flat, size);
    cut_randomly(dst, size);
    cut_randomly(src, size);
    spread(src, flat);
    egm_checksum_init(&checksum, size);
    if (is_stepped) {
        ck_assert_int_eq(egm_copy_init(&c, direction, list_of(dst), list_of(src), &checksum), 0);
        while (egm_copy_left(&c) > 0) {
            size_t max = 1 + random_piece_size();
            size_t moved = egm_copy_step(&c, max);
            ck_assert_uint_eq(moved, egm_min_u64(max, size - done));
            done += moved;
            ck_assert_uint_eq(egm_copy_left(&c), size - done);
        }
        ck_assert_uint_eq(egm_copy_step(&c, 1), 0);
    } else {
        ck_assert_int_eq(egm_copy_all(direction, list_of(dst), list_of(src), &checksum), 0);
    }
    ck_assert_uint_eq(egm_checksum_final(&checksum), egm_checksum_of(flat, size));
    check_side(dst, flat);
    check_side(src, flat);
}

static void check_random_copies(bool is_stepped)
{
    struct side dst = new_side(), src = new_side();
    unsigned char *flat = new_area(AREA_BYTES);

    seed(is_stepped ? 2 : 3);
    for (size_t p = 0; p < EGM_COUNT_OF(policies); p++) {
        for (unsigned round = 0; round < 15 && use_policy(policies[p]); round++) {
            check_random_copy(EGM_COPY_IN, &dst, &src, flat, is_stepped);
            check_random_copy(EGM_COPY_OUT, &dst, &src, flat, is_stepped);
        }
    }
    free(flat);
    free_side(&dst);
    free_side(&src);
}

START_TEST(random_lists_copy_like_the_reference)
{
    check_random_copies(/*is_stepped=*/false);
}
END_TEST

START_TEST(steps_of_any_size_copy_like_the_reference)
{
    check_random_copies(/*is_stepped=*/true);
}
END_TEST

static void check_flat_copy(enum egm_copy_direction direction, size_t size, size_t dst_shift,
                            size_t src_shift, bool is_hashed)
{
    unsigned char *dst = new_area(size + 130), *src = new_area(size + 130);
    struct iovec to = {dst + 1 + dst_shift, size}, from = {src + src_shift, size};
    struct egm_checksum checksum;

    memset(dst, (int)GUARD, size + 130);
    fill_random(src, size + 130);
    egm_checksum_init(&checksum, size);
    ck_assert_int_eq(egm_copy_all(direction, (struct egm_copy_list){&to, 1},
                                  (struct egm_copy_list){&from, 1}, is_hashed ? &checksum : NULL),
                     0);
    ck_assert_msg(memcmp(to.iov_base, from.iov_base, size) == 0, "size %zu", size);
    ck_assert_uint_eq(dst[dst_shift], GUARD);
    ck_assert_uint_eq(dst[1 + dst_shift + size], GUARD);
    if (is_hashed) {
        ck_assert_uint_eq(egm_checksum_final(&checksum), egm_checksum_of(from.iov_base, size));
    }
    free(dst);
    free(src);
}

START_TEST(boundary_sizes_and_addresses_copy_exactly)
{
    static const size_t sizes[] = {
        0,     1,          63,           64,       65,           1023,     1024,  1025,
        4095,  4096,       4097,         LEAF - 1, LEAF,         LEAF + 1, 65535, 65536,
        65537, 65536 + 63, 65536 + 1024, 70000,    5 * LEAF - 1, 5 * LEAF};
    static const size_t shifts[] = {0, 1, 31, 62, 63, 64};

    seed(4);
    for (size_t p = 0; p < EGM_COUNT_OF(policies) && use_policy(policies[p]); p++) {
        for (size_t i = 0; i < EGM_COUNT_OF(sizes) * EGM_COUNT_OF(shifts); i++) {
            size_t size = sizes[i / EGM_COUNT_OF(shifts)], shift = shifts[i % EGM_COUNT_OF(shifts)];
            size_t other = shifts[random_below(EGM_COUNT_OF(shifts))];
            check_flat_copy(EGM_COPY_IN, size, shift, other, /*is_hashed=*/true);
            check_flat_copy(EGM_COPY_OUT, size, shift, other, /*is_hashed=*/true);
            check_flat_copy(EGM_COPY_IN, size, other, shift, /*is_hashed=*/false);
            check_flat_copy(EGM_COPY_OUT, size, other, shift, /*is_hashed=*/false);
        }
    }
}
END_TEST

START_TEST(empty_lists_copy_nothing)
{
    struct iovec empty[2] = {{NULL, 0}, {NULL, 0}};
    struct egm_checksum checksum;

    egm_checksum_init(&checksum, 0);
    ck_assert_int_eq(egm_copy_all(EGM_COPY_IN, (struct egm_copy_list){NULL, 0},
                                  (struct egm_copy_list){empty, 2}, &checksum),
                     0);
    ck_assert_uint_eq(egm_checksum_final(&checksum), egm_checksum_of("", 0));
}
END_TEST

START_TEST(lists_of_unequal_length_are_refused)
{
    unsigned char byte[2] = {1, 2};
    struct iovec one = {byte, 1}, two = {byte, 2};

    ck_assert_int_eq(egm_copy_all(EGM_COPY_OUT, (struct egm_copy_list){&one, 1},
                                  (struct egm_copy_list){&two, 1}, NULL),
                     EGM_E_INVALID);
}
END_TEST

START_TEST(lists_whose_length_overflows_are_refused)
{
    unsigned char byte;
    struct iovec pieces[2] = {{&byte, SIZE_MAX}, {&byte, 1}};
    struct iovec none = {&byte, 0};
    size_t bytes = 7;

    ck_assert_int_eq(egm_copy_list_bytes((struct egm_copy_list){pieces, 2}, &bytes), EGM_E_LIMIT);
    ck_assert_uint_eq(bytes, 7);
    ck_assert_int_eq(egm_copy_list_bytes((struct egm_copy_list){pieces, 1}, &bytes), 0);
    ck_assert_uint_eq(bytes, SIZE_MAX);
    ck_assert_int_eq(egm_copy_all(EGM_COPY_OUT, (struct egm_copy_list){&none, 1},
                                  (struct egm_copy_list){pieces, 2}, NULL),
                     EGM_E_LIMIT);
}
END_TEST

START_TEST(a_step_of_nothing_moves_nothing)
{
    unsigned char from[4] = "abc", to[4] = "xyz";
    struct iovec src = {from, 4}, dst = {to, 4};
    struct egm_copy c;

    ck_assert_int_eq(egm_copy_init(&c, EGM_COPY_IN, (struct egm_copy_list){&dst, 1},
                                   (struct egm_copy_list){&src, 1}, NULL),
                     0);
    ck_assert_uint_eq(egm_copy_step(&c, 0), 0);
    ck_assert_uint_eq(egm_copy_left(&c), 4);
    ck_assert_str_eq((char *)to, "xyz");
}
END_TEST

/* A pool that somebody else rewrites all the time. */
struct rewriter {
    _Atomic uint64_t *words;
    size_t count;
    atomic_bool must_stop;
};

static void *rewrite(void *arg)
{
    struct rewriter *w = arg;
    /* relaxed: only stops the loop */
    for (uint64_t value = 0; !atomic_load_explicit(&w->must_stop, memory_order_relaxed); value++) {
        for (size_t i = 0; i < w->count; i++) {
            /* relaxed: the reader is meant to race */
            atomic_store_explicit(&w->words[i], value, memory_order_relaxed);
        }
    }
    return NULL;
}

/* Copies a changing source; returns how often the result was torn. The hash must fit the delivered
 * bytes each time. */
static unsigned count_torn_copies(struct rewriter *w, unsigned char *dst)
{
    const size_t size = w->count * sizeof *w->words;
    struct iovec src = {(void *)w->words, size}, to = {dst, size};
    struct egm_checksum checksum;
    unsigned torn = 0;

    for (unsigned round = 0; round < 200; round++) {
        egm_checksum_init(&checksum, size);
        ck_assert_int_eq(egm_copy_all(EGM_COPY_OUT, (struct egm_copy_list){&to, 1},
                                      (struct egm_copy_list){&src, 1}, &checksum),
                         0);
        ck_assert_uint_eq(egm_checksum_final(&checksum), egm_checksum_of(dst, size));
        torn += memcmp(dst, dst + 8, size - 8) != 0;
    }
    return torn;
}

START_TEST(get_hashes_the_delivered_bytes_of_a_changing_source)
{
    struct rewriter w = {.count = 160 * 1024 / 8};
    unsigned char *dst = new_area(w.count * 8);
    unsigned torn = 0;
    pthread_t thread;

    w.words = calloc(w.count, sizeof *w.words);
    ck_assert_ptr_nonnull(w.words);
    ck_assert_int_eq(pthread_create(&thread, NULL, rewrite, &w), 0);
    for (size_t p = 0; p < EGM_COUNT_OF(policies); p++) {
        if (use_policy(policies[p])) {
            torn += count_torn_copies(&w, dst);
        }
    }
    atomic_store_explicit(&w.must_stop, true, memory_order_relaxed); /* only stops the loop */
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_msg(torn > 0, "no copy was torn, so nothing was tested");
    free((void *)w.words);
    free(dst);
}
END_TEST

/* ---- policy ---- */

static const char *name_of(enum egm_copy_direction direction)
{
    return egm_copy_policy_name(direction);
}

START_TEST(environment_overrides_the_measurement)
{
    ck_assert_int_eq(setenv("EGMSTORE_COPY", "plain", 1), 0);
    ck_assert_int_eq(egm_copy_probe(), 0);
    ck_assert_str_eq(name_of(EGM_COPY_IN), "plain");
    ck_assert_str_eq(name_of(EGM_COPY_OUT), "plain");
    ck_assert_int_eq(setenv("EGMSTORE_COPY", "nt", 1), 0);
    int r = egm_copy_probe();
    if (r == EGM_E_UNSUPPORTED) {
        ck_assert_str_eq(name_of(EGM_COPY_IN), "plain");
        return;
    }
    ck_assert_int_eq(r, 0);
    ck_assert_int_eq(strncmp(name_of(EGM_COPY_IN), "nt-", 3), 0);
    ck_assert_int_eq(strncmp(name_of(EGM_COPY_OUT), "nt-", 3), 0);
}
END_TEST

START_TEST(unknown_policy_is_refused_and_changes_nothing)
{
    ck_assert_int_eq(egm_copy_use_policy("plain"), 0);
    ck_assert_int_eq(setenv("EGMSTORE_COPY", "fastest", 1), 0);
    ck_assert_int_eq(egm_copy_probe(), EGM_E_INVALID);
    ck_assert_int_eq(setenv("EGMSTORE_COPY", "", 1), 0);
    ck_assert_int_eq(egm_copy_probe(), EGM_E_INVALID);
    ck_assert_str_eq(name_of(EGM_COPY_IN), "plain");
}
END_TEST

START_TEST(the_whole_batch_decides_for_its_gets)
{
    unsigned char *src = new_area(1u << 20), *dst = new_area(1u << 20);
    struct iovec from = {src, 1u << 20}, to = {dst, 1u << 20};
    struct egm_copy c;

    if (use_policy("nt")) {
        ck_assert_int_eq(egm_copy_init(&c, EGM_COPY_OUT, (struct egm_copy_list){&to, 1},
                                       (struct egm_copy_list){&from, 1}, NULL),
                         0);
        ck_assert_str_eq(c.kernel_->name, "plain");
        egm_copy_join_batch(&c, EGM_COPY_CACHED_OUT_BYTES);
        ck_assert_str_eq(c.kernel_->name, "plain");
        egm_copy_join_batch(&c, EGM_COPY_CACHED_OUT_BYTES + 1u);
        ck_assert_str_ne(c.kernel_->name, "plain");
    }
    free(src);
    free(dst);
}
END_TEST

START_TEST(measurement_chooses_a_kernel_that_runs)
{
    ck_assert_int_eq(unsetenv("EGMSTORE_COPY"), 0);
    ck_assert_int_eq(egm_copy_probe(), 0);
    for (int d = 0; d < EGM_COPY_DIRECTION_COUNT; d++) {
        ck_assert_int_eq(egm_copy_use_policy(name_of((enum egm_copy_direction)d)), 0);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        every_variant_gives_the_fixed_values,
        pieces_of_any_size_give_the_value_of_the_whole,
        address_and_earlier_content_of_the_state_do_not_matter,
        length_and_every_byte_count,
        random_lists_copy_like_the_reference,
        steps_of_any_size_copy_like_the_reference,
        boundary_sizes_and_addresses_copy_exactly,
        empty_lists_copy_nothing,
        lists_of_unequal_length_are_refused,
        lists_whose_length_overflows_are_refused,
        a_step_of_nothing_moves_nothing,
        get_hashes_the_delivered_bytes_of_a_changing_source,
        environment_overrides_the_measurement,
        unknown_policy_is_refused_and_changes_nothing,
        the_whole_batch_decides_for_its_gets,
        measurement_chooses_a_kernel_that_runs,
    };
    const TTest *const aborting[] = {
        feeding_more_than_the_object_stops_the_process,
        final_before_the_last_byte_stops_the_process,
    };

    return egm_test_run_with_aborts("mover_copy", tests, EGM_COUNT_OF(tests), aborting,
                                    EGM_COUNT_OF(aborting));
}
