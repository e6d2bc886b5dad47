/* SPDX-License-Identifier: Apache-2.0 */
#include "base/limits.h"

#include "core/key_heap.h"
#include "test.h"

#include <string.h>

static struct egm_pieces pieces;
static struct egm_key_heap heap;

static void setup(void)
{
    ck_assert_int_eq(egm_pieces_init(&pieces, NULL), 0);
    egm_key_heap_init(&heap, &pieces);
}

static void teardown(void)
{
    egm_key_heap_release(&heap);
    ck_assert_uint_eq(egm_pieces_bytes(&pieces), 0);
    egm_pieces_release(&pieces);
}

static void make(uint8_t *key, size_t size, uint32_t salt)
{
    for (size_t i = 0; i < size; i++) {
        key[i] = (uint8_t)(i * 7 + size + salt * 31);
    }
}

static const uint8_t *put(size_t size, uint32_t salt)
{
    uint8_t key[EGM_MAX_KEY];

    make(key, size, salt);
    return egm_key_heap_put(&heap, key, size);
}

static bool is_whole(const uint8_t *stored, size_t size, uint32_t salt)
{
    uint8_t key[EGM_MAX_KEY];

    make(key, size, salt);
    return memcmp(stored, key, size) == 0;
}

START_TEST(keys_of_every_size_are_kept)
{
    static const uint8_t *keys[EGM_MAX_KEY + 1];

    setup();
    for (size_t size = 1; size <= EGM_MAX_KEY; size++) {
        keys[size] = put(size, 3);
        ck_assert(keys[size] != NULL);
    }
    ck_assert(egm_key_heap_is_sound(&heap));
    for (size_t size = 1; size <= EGM_MAX_KEY; size++) {
        ck_assert(is_whole(keys[size], size, 3));
        egm_key_heap_drop(&heap, keys[size], size);
    }
    ck_assert(egm_key_heap_is_sound(&heap));
    ck_assert_uint_eq(heap.key_count, 0);
    ck_assert_uint_le(egm_pieces_bytes(&pieces), EGM_KEY_CLASSES * EGM_PIECE_SIZE);
    teardown();
}
END_TEST

START_TEST(little_is_wasted)
{
    static const size_t sizes[] = {1, 8, 9, 150, 200, 256, 257, 300, 1000, 4096};

    for (size_t i = 0; i < EGM_COUNT_OF(sizes); i++) {
        size_t count = 4000000 / (sizes[i] + 8);

        setup();
        for (size_t n = 0; n < count; n++) {
            ck_assert(egm_key_heap_put(&heap, (const uint8_t[EGM_MAX_KEY]){0}, sizes[i]) != NULL);
        }
        double per_key = (double)egm_pieces_bytes(&pieces) / (double)count;
        ck_assert_msg(per_key <= (double)sizes[i] * 1.15 + 8, "%zu bytes take %g", sizes[i],
                      per_key);
        teardown();
    }
}
END_TEST

START_TEST(empty_pieces_go_back)
{
    enum {
        COUNT = 5000
    };
    static const uint8_t *keys[COUNT];

    setup();
    for (uint32_t i = 0; i < COUNT; i++) {
        keys[i] = put(150, i);
    }
    ck_assert_uint_gt(egm_pieces_bytes(&pieces), 10 * EGM_PIECE_SIZE);
    for (uint32_t i = 0; i < COUNT; i++) {
        egm_key_heap_drop(&heap, keys[i], 150);
        ck_assert(i % 100 != 0 || egm_key_heap_is_sound(&heap));
    }
    ck_assert_uint_eq(egm_pieces_bytes(&pieces), EGM_PIECE_SIZE);
    teardown();
}
END_TEST

START_TEST(random_traffic_keeps_every_key)
{
    enum {
        COUNT = 4000
    };
    static const uint8_t *keys[COUNT];
    static size_t sizes[COUNT];
    uint64_t random = 5;

    setup();
    for (uint32_t step = 0; step < 60000; step++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        uint32_t i = (uint32_t)(random >> 33) % COUNT;
        if (keys[i]) {
            if (!is_whole(keys[i], sizes[i], i)) {
                ck_abort_msg("key %u is damaged", i);
            }
            egm_key_heap_drop(&heap, keys[i], sizes[i]);
            keys[i] = NULL;
        } else {
            sizes[i] = 1 + (random >> 20) % (step % 3 ? 64 : EGM_MAX_KEY);
            keys[i] = put(sizes[i], i);
        }
        if (step % 1000 == 0) {
            ck_assert(egm_key_heap_is_sound(&heap));
        }
    }
    teardown(); /* with the keys that are left */
}
END_TEST

static int fill(void *ctx)
{
    int r = 0;

    (void)ctx;
    setup();
    for (uint32_t i = 0; i < 2000 && r == 0; i++) {
        const uint8_t *key = put(1 + i % 200, i);
        r = key ? 0 : -ENOMEM;
    }
    ck_assert(egm_key_heap_is_sound(&heap));
    teardown();
    return r;
}

START_TEST(every_allocation_may_fail)
{
    egm_test_sweep(fill, NULL);
}
END_TEST

EGM_TEST_MAIN("core_key_heap", keys_of_every_size_are_kept, little_is_wasted, empty_pieces_go_back,
              random_traffic_keeps_every_key, every_allocation_may_fail)
