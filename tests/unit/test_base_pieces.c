/* SPDX-License-Identifier: Apache-2.0 */
#include "base/index.h"
#include "base/pieces.h"

#include "test.h"

#include <string.h>

enum {
    MOST = 200
};

static uint32_t blocks_out;
static uint32_t blocks_got;

/* Blocks from base/alloc: each counts in the sweep's countdown besides the piece. */
static void *get_block(void *arg, size_t size)
{
    void *block = egm_alloc_aligned(size, size);

    (void)arg;
    if (block) {
        memset(block, 0, size);
        blocks_out++;
        blocks_got++;
    }
    return block;
}

static void put_block(void *arg, void *block, size_t size)
{
    (void)arg;
    memset(block, 0xee, size); /* whoever uses it still is found out */
    blocks_out--;
    egm_free(block);
}

static const struct egm_block_source source = {.get = get_block, .put = put_block};

static bool is_zero(const uint8_t *piece)
{
    return piece[0] == 0 && memcmp(piece, piece + 1, EGM_PIECE_SIZE - 1) == 0;
}

static uint8_t *get_piece(struct egm_pieces *h)
{
    uint8_t *piece = egm_pieces_get(h);

    ck_assert_ptr_nonnull(piece);
    ck_assert_uint_eq((uintptr_t)piece % EGM_PIECE_SIZE, 0);
    ck_assert(is_zero(piece));
    return piece;
}

START_TEST(pieces_are_aligned_zeroed_and_apart)
{
    const struct egm_block_source *sources[] = {NULL, &source};

    for (size_t s = 0; s < EGM_COUNT_OF(sources); s++) {
        struct egm_pieces h;
        uint8_t *pieces[MOST];

        ck_assert_int_eq(egm_pieces_init(&h, sources[s]), 0);
        for (uint32_t i = 0; i < MOST; i++) {
            pieces[i] = get_piece(&h);
            memset(pieces[i], (int)i + 1, EGM_PIECE_SIZE);
        }
        for (uint32_t i = 0; i < MOST; i++) {
            ck_assert_uint_eq(pieces[i][0], (uint8_t)(i + 1));
            ck_assert_uint_eq(pieces[i][EGM_PIECE_SIZE - 1], (uint8_t)(i + 1));
        }
        ck_assert(egm_pieces_is_sound(&h));
        for (uint32_t i = 0; i < MOST; i++) {
            egm_pieces_put(&h, pieces[i]);
        }
        egm_pieces_put(&h, NULL);
        ck_assert(egm_pieces_is_sound(&h));
        egm_pieces_release(&h);
        egm_pieces_release(&h);
    }
    ck_assert_uint_eq(blocks_out, 0);
}
END_TEST

START_TEST(free_blocks_go_back_but_one)
{
    struct egm_pieces h;
    uint8_t *pieces[MOST];

    ck_assert_int_eq(egm_pieces_init(&h, &source), 0);
    for (uint32_t i = 0; i < MOST; i++) {
        pieces[i] = get_piece(&h);
    }
    ck_assert_uint_eq(blocks_out, (MOST + EGM_PIECES_PER_BLOCK - 1) / EGM_PIECES_PER_BLOCK);
    ck_assert_uint_ge(egm_pieces_bytes(&h), blocks_out * EGM_BLOCK_SIZE);
    ck_assert_uint_le(egm_pieces_bytes(&h), blocks_out * EGM_BLOCK_SIZE + 8192);
    for (uint32_t i = 0; i < MOST; i++) {
        egm_pieces_put(&h, pieces[i]);
        ck_assert(egm_pieces_is_sound(&h));
    }
    ck_assert_uint_eq(blocks_out, 1);
    blocks_got = 0;
    for (uint32_t i = 0; i < 50; i++) { /* a piece that comes and goes costs no block */
        egm_pieces_put(&h, get_piece(&h));
    }
    ck_assert_uint_eq(blocks_got, 0);
    egm_pieces_release(&h);
    ck_assert_uint_eq(blocks_out, 0);
}
END_TEST

START_TEST(random_traffic_keeps_the_heap_sound)
{
    struct egm_pieces h;
    uint8_t *pieces[MOST] = {0};
    uint64_t random = 1;

    ck_assert_int_eq(egm_pieces_init(&h, &source), 0);
    for (uint32_t step = 0; step < 5000; step++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        uint32_t i = (uint32_t)(random >> 33) % MOST;
        if (pieces[i]) {
            if (pieces[i][7] != (uint8_t)(i | 1u)) {
                ck_abort_msg("piece %u was overwritten", i);
            }
            egm_pieces_put(&h, pieces[i]);
            pieces[i] = NULL;
        } else {
            pieces[i] = get_piece(&h);
            memset(pieces[i], (int)(i | 1u), EGM_PIECE_SIZE);
        }
        if (step % 50 == 0) {
            ck_assert(egm_pieces_is_sound(&h));
        }
    }
    for (uint32_t i = 0; i < MOST; i++) {
        egm_pieces_put(&h, pieces[i]);
    }
    egm_pieces_release(&h);
    ck_assert_uint_eq(blocks_out, 0);
}
END_TEST

static uint64_t hash(uint32_t i)
{
    return (i + 1) * UINT64_C(0xD6E8FEB86659FD93);
}

/* An index over a heap of pieces, large enough for several pieces and growths. */
static int fill(void *ctx)
{
    struct egm_pieces h;
    struct egm_index ix;
    uint32_t count = 0;
    int r = egm_pieces_init(&h, ctx);

    r = r == 0 ? egm_index_init(&ix, 0, &h) : r;
    if (r < 0) {
        egm_pieces_release(&h);
        return r;
    }
    while (r == 0 && count < 40000) {
        r = egm_index_insert(&ix, hash(count), count);
        count += r == 0;
    }
    ck_assert(egm_pieces_is_sound(&h));
    ck_assert_uint_le(egm_index_bytes(&ix), 40000 * 30);
    for (uint32_t i = 0; i < count; i++) {
        if (!egm_index_remove(&ix, hash(i), i)) {
            ck_abort_msg("entry %u is lost", i);
        }
    }
    egm_index_release(&ix);
    egm_pieces_release(&h);
    return r;
}

START_TEST(every_failed_allocation_leaves_a_whole_index_and_heap)
{
    egm_test_sweep(fill, NULL);
    egm_test_sweep(fill, (void *)&source);
    ck_assert_uint_eq(blocks_out, 0);
}
END_TEST

/* Enough blocks that the table of their descriptors grows. */
static int grow(void *ctx)
{
    static void *pieces[40 * EGM_PIECES_PER_BLOCK];
    struct egm_pieces h;
    uint32_t count = 0;
    int r = egm_pieces_init(&h, ctx);

    while (r == 0 && count < EGM_COUNT_OF(pieces)) {
        pieces[count] = egm_pieces_get(&h);
        r = pieces[count] ? 0 : -ENOMEM;
        count += r == 0;
    }
    ck_assert(egm_pieces_is_sound(&h));
    while (count > 0) {
        egm_pieces_put(&h, pieces[--count]);
    }
    egm_pieces_release(&h);
    return r;
}

START_TEST(many_blocks)
{
    ck_assert_int_eq(grow((void *)&source), 0);
    for (int64_t n = 0; n < 1400; n += 33) {
        egm_alloc_fail_after(n);
        int r = grow((void *)&source);
        egm_alloc_fail_after(-1);
        ck_assert(r == 0 || r == -ENOMEM);
        ck_assert_uint_eq(blocks_out, 0);
    }
}
END_TEST

EGM_TEST_MAIN("base_pieces", pieces_are_aligned_zeroed_and_apart, free_blocks_go_back_but_one,
              random_traffic_keeps_the_heap_sound,
              every_failed_allocation_leaves_a_whole_index_and_heap, many_blocks)
