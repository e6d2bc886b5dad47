/* SPDX-License-Identifier: Apache-2.0 */
/* Records and frames: what goes in comes out, and nothing that is cut or lies about a count gets
 * through. */
#include "base/buf.h"
#include "base/limits.h"

#include "test.h"
#include "wire/messages.h"

#include <string.h>

static uint64_t seed = 88172645463325252u;

static uint64_t next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static uint8_t text_pool[70000];

static void fill_text_pool(void)
{
    for (size_t i = 0; i < sizeof text_pool; i++) {
        text_pool[i] = (uint8_t)next_random();
    }
}

static struct egm_bytes random_text(void)
{
    uint32_t size = next_random() % 8 == 0 ? 0 : (uint32_t)(next_random() % 300);
    return egm_bytes_of(text_pool + next_random() % 1000, size);
}

/* One macro per field type: fill it at random, compare two of them. */
#define FILL_u8(at) at = (uint8_t)next_random();
#define FILL_u16(at) at = (uint16_t)next_random();
#define FILL_u32(at) at = (uint32_t)next_random();
#define FILL_u64(at) at = next_random();
#define FILL_i32(at) at = (int32_t)next_random();
#define FILL_str(at) at = random_text();
#define SAME_u8(a, b) ck_assert_uint_eq(a, b);
#define SAME_u16(a, b) ck_assert_uint_eq(a, b);
#define SAME_u32(a, b) ck_assert_uint_eq(a, b);
#define SAME_u64(a, b) ck_assert_uint_eq(a, b);
#define SAME_i32(a, b) ck_assert_int_eq(a, b);
#define SAME_str(a, b)                     \
    ck_assert_uint_eq((a).size, (b).size); \
    ck_assert((a).size == 0 || memcmp((a).data, (b).data, (a).size) == 0);
#define FILL(type, field) FILL_##type(value.field)
#define SAME(type, field) SAME_##type(value.field, back.field)

/* A record survives the way over the wire; cut at any byte it fails, and a failed cursor stays at
 * zeroes. */
#define RECORD_TEST(record)                                                      \
    static void check_##record(void)                                             \
    {                                                                            \
        struct egm_buf buf;                                                      \
        egm_buf_init(&buf, 1u << 20);                                            \
        for (int round = 0; round < 20; round++) {                               \
            struct egm_##record value, back;                                     \
            EGM_FIELDS_##record(FILL) egm_buf_clear(&buf);                       \
            egm_put_##record(&buf, &value);                                      \
            ck_assert_int_eq(buf.failed, 0);                                     \
            struct egm_cursor cursor = egm_cursor_of(buf.data, buf.len);         \
            egm_take_##record(&cursor, &back);                                   \
            ck_assert_int_eq(egm_cursor_end(&cursor), 0);                        \
            EGM_FIELDS_##record(SAME) for (size_t cut = 0; cut < buf.len; cut++) \
            {                                                                    \
                uint8_t *exact = egm_alloc(cut);                                 \
                ck_assert_ptr_nonnull(exact);                                    \
                memcpy(exact, buf.data, cut);                                    \
                cursor = egm_cursor_of(exact, cut);                              \
                egm_take_##record(&cursor, &back);                               \
                ck_assert_int_eq(egm_cursor_end(&cursor), EGM_E_PROTO);          \
                ck_assert_uint_eq(egm_take_u32(&cursor), 0);                     \
                egm_free(exact);                                                 \
            }                                                                    \
        }                                                                        \
        egm_buf_release(&buf);                                                   \
    }
EGM_RECORDS(RECORD_TEST)

START_TEST(every_record_survives_the_wire_and_none_survives_a_cut)
{
    fill_text_pool();
#define CALL(record) check_##record();
    EGM_RECORDS(CALL)
}
END_TEST

START_TEST(text_longer_than_its_length_field_fails_the_buffer)
{
    struct egm_buf buf;
    egm_buf_init(&buf, 1u << 20);
    struct egm_name name = {.text = egm_bytes_of(text_pool, 65535)};
    egm_put_name(&buf, &name);
    ck_assert_int_eq(buf.failed, 0);
    name.text.size = 65536;
    egm_put_name(&buf, &name);
    ck_assert_int_eq(buf.failed, EGM_E_LIMIT);
    egm_buf_release(&buf);
}
END_TEST

START_TEST(counts_beyond_what_can_follow_are_refused_before_anything_is_read)
{
    uint8_t bytes[64] = {0};
    const uint64_t hostile[] = {UINT32_MAX, UINT64_MAX, UINT64_MAX / 16, UINT64_MAX / 16 + 1, 5};
    for (size_t i = 0; i < EGM_COUNT_OF(hostile); i++) {
        struct egm_cursor cursor = egm_cursor_of(bytes, sizeof bytes);
        ck_assert(!egm_cursor_expect(&cursor, hostile[i], 16, 1u << 20));
        ck_assert_int_eq(cursor.failed, EGM_E_PROTO);
    }
    struct egm_cursor cursor = egm_cursor_of(bytes, sizeof bytes);
    ck_assert(egm_cursor_expect(&cursor, 4, 16, 4));
    ck_assert(!egm_cursor_expect(&cursor, 4, 16, 3));
    ck_assert(!egm_cursor_expect(&cursor, 0, 16, 3)); /* a failure stays */
    cursor = egm_cursor_of(NULL, 0);
    ck_assert(egm_cursor_expect(&cursor, 0, 16, 4));
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
}
END_TEST

static void put_header(struct egm_buf *buf)
{
    egm_buf_init(buf, 2 * EGM_MAX_FRAME);
    size_t begin = egm_frame_begin(buf, EGM_MSG_PING, 0x1122334455667788u);
    egm_put_u32(buf, 7);
    egm_frame_end(buf, begin);
    ck_assert_int_eq(buf->failed, 0);
}

START_TEST(frame_headers_are_checked_field_by_field)
{
    struct egm_buf buf;
    struct egm_frame frame;
    put_header(&buf);
    ck_assert_uint_eq(buf.len, EGM_FRAME_HEADER + 4);
    ck_assert_int_eq(egm_frame_parse(buf.data, &frame), 0);
    ck_assert_uint_eq(frame.type, EGM_MSG_PING);
    ck_assert_uint_eq(frame.length, 4);
    ck_assert_uint_eq(frame.request, 0x1122334455667788u);
    ck_assert_mem_eq(buf.data, "EGM1", 4);
    for (size_t at = 0; at < 16; at++) {
        uint8_t header[EGM_FRAME_HEADER];
        memcpy(header, buf.data, sizeof header);
        header[at] ^= 0x80;
        int want = at < 4    ? EGM_E_PROTO
                   : at < 6  ? EGM_E_VERSION
                   : at < 8  ? 0
                   : at < 11 ? 0
                             : EGM_E_LIMIT;
        want = at >= 12 ? EGM_E_PROTO : want;
        ck_assert_msg(egm_frame_parse(header, &frame) == want, "byte %zu", at);
    }
    egm_buf_release(&buf);
}
END_TEST

START_TEST(next_version_is_spoken_but_not_the_one_after)
{
    struct egm_buf buf;
    struct egm_frame frame;
    put_header(&buf);
    const struct {
        uint8_t version;
        int code;
    } cases[] = {{0, EGM_E_VERSION}, {1, 0}, {2, 0}, {3, EGM_E_VERSION}};
    for (size_t i = 0; i < EGM_COUNT_OF(cases); i++) {
        buf.data[4] = cases[i].version;
        ck_assert_int_eq(egm_frame_parse(buf.data, &frame), cases[i].code);
    }
    egm_buf_release(&buf);
}
END_TEST

START_TEST(message_names_are_known_and_numbers_are_unique)
{
#define NAME(number, name, head) ck_assert_str_eq(egm_message_name(number), #name);
    EGM_MESSAGES(NAME)
    ck_assert_str_eq(egm_message_name(0), "unknown");
    ck_assert_str_eq(egm_message_name(65535), "unknown");
}
END_TEST

EGM_TEST_MAIN("wire_messages", every_record_survives_the_wire_and_none_survives_a_cut,
              text_longer_than_its_length_field_fails_the_buffer,
              counts_beyond_what_can_follow_are_refused_before_anything_is_read,
              frame_headers_are_checked_field_by_field,
              next_version_is_spoken_but_not_the_one_after,
              message_names_are_known_and_numbers_are_unique)
