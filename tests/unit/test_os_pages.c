/* SPDX-License-Identifier: Apache-2.0 */
#include "os/pages.h"
#include "test.h"

#include <string.h>
#include <time.h>

static struct egm_pages *pages;
static struct egm_block_source source;

static void setup(void)
{
    ck_assert_int_eq(egm_pages_create(&pages), 0);
    source = egm_pages_source(pages);
}

START_TEST(blocks_are_aligned_zeroed_and_apart)
{
    enum {
        COUNT = 20
    };
    uint8_t *blocks[COUNT];

    setup();
    for (uint32_t i = 0; i < COUNT; i++) {
        blocks[i] = source.get(source.arg, EGM_BLOCK_SIZE);
        ck_assert_ptr_nonnull(blocks[i]);
        ck_assert_uint_eq((uintptr_t)blocks[i] % EGM_BLOCK_SIZE, 0);
        ck_assert(blocks[i][0] == 0 && memcmp(blocks[i], blocks[i] + 1, EGM_BLOCK_SIZE - 1) == 0);
        memset(blocks[i], (int)i + 1, EGM_BLOCK_SIZE);
        if (i % 5 == 4) { /* lets the thread catch up */
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        }
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        ck_assert_uint_eq(blocks[i][0], i + 1);
        ck_assert_uint_eq(blocks[i][EGM_BLOCK_SIZE - 1], i + 1);
        source.put(source.arg, blocks[i], EGM_BLOCK_SIZE);
    }
    egm_pages_destroy(pages);
}
END_TEST

START_TEST(it_ends_at_any_moment)
{
    for (int i = 0; i < 20; i++) {
        setup();
        if (i % 2) {
            nanosleep(&(struct timespec){.tv_nsec = i * 500000}, NULL);
        }
        source.put(source.arg, source.get(source.arg, EGM_BLOCK_SIZE), EGM_BLOCK_SIZE);
        egm_pages_destroy(pages);
    }
    egm_pages_destroy(NULL);
}
END_TEST

START_TEST(heap_of_pieces_runs_on_it)
{
    void *pieces[100];
    struct egm_pieces h;

    setup();
    ck_assert_int_eq(egm_pieces_init(&h, &source), 0);
    for (size_t i = 0; i < EGM_COUNT_OF(pieces); i++) {
        pieces[i] = egm_pieces_get(&h);
        ck_assert_ptr_nonnull(pieces[i]);
        memset(pieces[i], 1, EGM_PIECE_SIZE);
    }
    ck_assert(egm_pieces_is_sound(&h));
    for (size_t i = 0; i < EGM_COUNT_OF(pieces); i++) {
        egm_pieces_put(&h, pieces[i]);
    }
    egm_pieces_release(&h);
    egm_pages_destroy(pages);
}
END_TEST

EGM_TEST_MAIN("os_pages", blocks_are_aligned_zeroed_and_apart, it_ends_at_any_moment,
              heap_of_pieces_runs_on_it)
