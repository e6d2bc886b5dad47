/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include "test.h"
#include "wire/keys.h"
#include "wire/status.h"

#include <string.h>

static uint64_t seed = 1442695040888963407u;

static uint64_t next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static void code(struct egm_buf *buf, const char *const *keys, size_t count)
{
    struct egm_key_writer writer = {0};
    for (size_t i = 0; i < count; i++) {
        ck_assert_int_eq(egm_put_key(&writer, buf, keys[i], strlen(keys[i])), 0);
    }
}

START_TEST(keys_come_back_as_they_went_in)
{
    static const char *const keys[] = {"a",   "ab", "ab",  "xab",  "b",  "bb",
                                       "bbb", "bb", "aXb", "aYYb", "aXb"};
    struct egm_buf buf;
    egm_buf_init(&buf, 1u << 20);
    code(&buf, keys, EGM_COUNT_OF(keys));
    static struct egm_key_reader reader;
    struct egm_cursor cursor = egm_cursor_of(buf.data, buf.len);
    for (size_t i = 0; i < EGM_COUNT_OF(keys); i++) {
        struct egm_bytes key = egm_take_key(&reader, &cursor);
        ck_assert_uint_eq(key.size, strlen(keys[i]));
        ck_assert_mem_eq(key.data, keys[i], key.size);
    }
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    egm_buf_release(&buf);
}
END_TEST

START_TEST(random_keys_of_all_sizes_come_back)
{
    enum {
        COUNT = 2000
    };
    static uint8_t keys[COUNT][EGM_MAX_KEY];
    static size_t sizes[COUNT];
    struct egm_buf buf;
    egm_buf_init(&buf, 32u << 20);
    struct egm_key_writer writer = {0};
    for (int i = 0; i < COUNT; i++) {
        sizes[i] = next_random() % 5 ? 1 + next_random() % 40 : 1 + next_random() % EGM_MAX_KEY;
        for (size_t k = 0; k < sizes[i];
             k++) { /* two letters: heads and tails overlap all the time */
            keys[i][k] = (uint8_t)('a' + (next_random() >> 20) % 2);
        }
        ck_assert_int_eq(egm_put_key(&writer, &buf, keys[i], sizes[i]), 0);
    }
    static struct egm_key_reader reader;
    struct egm_cursor cursor = egm_cursor_of(buf.data, buf.len);
    for (int i = 0; i < COUNT; i++) {
        struct egm_bytes key = egm_take_key(&reader, &cursor);
        ck_assert_uint_eq(key.size, sizes[i]);
        ck_assert_mem_eq(key.data, keys[i], sizes[i]);
    }
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    egm_buf_release(&buf);
}
END_TEST

START_TEST(keys_of_vllm_shrink_by_a_factor_of_nine)
{
    enum {
        COUNT = 65536,
        RANKS = 8
    };
    struct egm_buf buf;
    egm_buf_init(&buf, 64u << 20);
    struct egm_key_writer writer = {0};
    static char text[2][256];
    size_t plain = 0;
    uint64_t hash[4] = {0};
    for (int i = 0; i < COUNT; i++) {
        for (size_t k = 0; i % RANKS == 0 && k < EGM_COUNT_OF(hash); k++) {
            hash[k] = next_random();
        }
        /* contract/vllm-connector.md 3.1: model, ranks and a hash of 64 digits; one key per rank */
        int n = snprintf(
            text[i & 1], sizeof text[0],
            "/models/meta-llama/Llama-3.1-70B-Instruct-quantized.w8a8/snapshots/main@tp_rank:%d"
            "@pcp0@dcp0@pp_rank:0@group:0@%016llx%016llx%016llx%016llx",
            i % RANKS, (unsigned long long)hash[0], (unsigned long long)hash[1],
            (unsigned long long)hash[2], (unsigned long long)hash[3]);
        plain += (size_t)n;
        ck_assert_int_eq(egm_put_key(&writer, &buf, text[i & 1], (size_t)n), 0);
    }
    ck_assert_msg(buf.len * 9 < plain, "plain %zu coded %zu", plain, buf.len);
    egm_buf_release(&buf);
}
END_TEST

START_TEST(empty_and_overlong_keys_are_not_coded)
{
    static uint8_t key[EGM_MAX_KEY + 1];
    struct egm_buf buf;
    egm_buf_init(&buf, 1u << 20);
    struct egm_key_writer writer = {0};
    ck_assert_int_eq(egm_put_key(&writer, &buf, key, 0), EGM_E_BAD_KEY);
    ck_assert_int_eq(egm_put_key(&writer, &buf, key, EGM_MAX_KEY + 1), EGM_E_BAD_KEY);
    ck_assert_uint_eq(buf.len, 0);
    ck_assert_int_eq(egm_put_key(&writer, &buf, key, EGM_MAX_KEY), 0);
    egm_buf_release(&buf);
}
END_TEST

static bool is_refused(const uint8_t *bytes, size_t size)
{
    static struct egm_key_reader reader;
    reader = (struct egm_key_reader){0};
    struct egm_cursor cursor = egm_cursor_of(bytes, size);
    struct egm_bytes key = {0};
    while (!cursor.failed && egm_cursor_left(&cursor) > 0) {
        key = egm_take_key(&reader, &cursor);
    }
    ck_assert(!cursor.failed || key.size == 0);
    return cursor.failed;
}

START_TEST(hostile_codes_are_refused)
{
    const struct {
        const char *bytes;
        size_t size;
    } cases[] = {
        {"\0\0\0\0\0\0", 6},                           /* an empty key */
        {"\1\0\0\0\0\0", 6},                           /* a head of nothing */
        {"\0\0\1\0\0\0", 6},                           /* a tail of nothing */
        {"\0\0\0\0\2\0a", 7},                          /* middle beyond the end */
        {"\0\0\0\0\1\0a\1\0\1\0\0\0", 13},             /* head and tail overlap */
        {"\0\0\0\0\1\0a\377\377\377\377\377\377", 13}, /* all lengths at their most */
        {"\0\0\0\0\1", 5},                             /* cut */
    };
    for (size_t i = 0; i < EGM_COUNT_OF(cases); i++) {
        ck_assert_msg(is_refused((const uint8_t *)cases[i].bytes, cases[i].size), "case %zu", i);
    }
    ck_assert(!is_refused((const uint8_t *)"\0\0\0\0\1\0a\1\0\0\0\0\0",
                          13)); /* the same key again is fine */
}
END_TEST

START_TEST(keys_that_grow_beyond_the_bound_by_repetition_are_refused)
{
    struct egm_buf buf;
    egm_buf_init(&buf, 1u << 20);
    static uint8_t key[EGM_MAX_KEY];
    struct egm_key_writer writer = {0};
    ck_assert_int_eq(egm_put_key(&writer, &buf, key, sizeof key), 0);
    uint8_t code_bytes[] = {0, 16, 0, 0, 1, 0, 'x'}; /* head 4096, one more byte */
    ck_assert_int_eq(egm_buf_append(&buf, code_bytes, sizeof code_bytes), 0);
    ck_assert(is_refused(buf.data, buf.len));
    egm_buf_release(&buf);
}
END_TEST

START_TEST(statuses_map_both_ways_and_errnos_do_not_cross)
{
#define BOTH(number, code)                                 \
    ck_assert_int_eq(egm_status_to_wire(code), -(number)); \
    ck_assert_int_eq(egm_status_from_wire(-(number)), code);
    EGM_STATUSES(BOTH)
    ck_assert_int_eq(egm_status_to_wire(0), 0);
    ck_assert_int_eq(egm_status_from_wire(0), 0);
    ck_assert_int_eq(egm_status_to_wire(-ENOMEM), egm_status_to_wire(EGM_E_INTERNAL));
    ck_assert_int_eq(egm_status_to_wire(INT32_MIN), egm_status_to_wire(EGM_E_INTERNAL));
    ck_assert_int_eq(egm_status_from_wire(-26), EGM_E_PROTO);
    ck_assert_int_eq(egm_status_from_wire(INT32_MIN), EGM_E_PROTO);
    ck_assert_int_eq(egm_status_from_wire(-5001), EGM_E_PROTO);
}
END_TEST

EGM_TEST_MAIN("wire_keys", keys_come_back_as_they_went_in, random_keys_of_all_sizes_come_back,
              keys_of_vllm_shrink_by_a_factor_of_nine, empty_and_overlong_keys_are_not_coded,
              hostile_codes_are_refused, keys_that_grow_beyond_the_bound_by_repetition_are_refused,
              statuses_map_both_ways_and_errnos_do_not_cross)
