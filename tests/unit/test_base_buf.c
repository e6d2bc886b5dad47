/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include "test.h"

#include <string.h>

START_TEST(empty_buffer_is_an_empty_string)
{
    struct egm_buf b;

    egm_buf_init(&b, 10);
    ck_assert_str_eq(egm_buf_str(&b), "");
    ck_assert_ptr_null(b.data);
    ck_assert_int_eq(egm_buf_append(&b, NULL, 0), 0);
    ck_assert_str_eq(egm_buf_str(&b), "");
    egm_buf_release(&b);
}
END_TEST

START_TEST(content_is_kept_over_growth)
{
    struct egm_buf b;

    egm_buf_init(&b, 1u << 20);
    for (unsigned i = 0; i < 10000; i++) {
        ck_assert_int_eq(egm_buf_append(&b, &i, sizeof(i)), 0);
    }
    ck_assert_uint_eq(b.len, 40000);
    ck_assert_uint_eq(b.data[b.len], 0);
    for (unsigned i = 0; i < 10000; i++) {
        unsigned v;

        memcpy(&v, b.data + i * sizeof(v), sizeof(v));
        ck_assert_uint_eq(v, i);
    }
    egm_buf_release(&b);
    ck_assert_uint_eq(b.len, 0);
}
END_TEST

START_TEST(bound_is_exact_and_nothing_is_cut)
{
    struct egm_buf b;

    egm_buf_init(&b, 8);
    ck_assert_int_eq(egm_buf_append(&b, "1234567", 7), 0);
    ck_assert_int_eq(egm_buf_append(&b, "89", 2), EGM_E_LIMIT);
    ck_assert_uint_eq(b.len, 7);
    ck_assert_str_eq(egm_buf_str(&b), "1234567");
    egm_buf_clear(&b);
    ck_assert_int_eq(egm_buf_append(&b, "12345678", 8), 0);
    ck_assert_uint_le(b.cap, 9);
    ck_assert_int_eq(egm_buf_printf(&b, "%s", ""), 0);
    ck_assert_int_eq(egm_buf_printf(&b, "x"), EGM_E_LIMIT);
    ck_assert_str_eq(egm_buf_str(&b), "12345678");
    egm_buf_release(&b);
}
END_TEST

START_TEST(length_near_size_max_does_not_wrap)
{
    struct egm_buf b;

    egm_buf_init(&b, SIZE_MAX - 1);
    ck_assert_int_eq(egm_buf_append(&b, "abc", 3), 0);
    ck_assert_ptr_null(egm_buf_extend(&b, SIZE_MAX - 2));
    ck_assert_int_eq(b.failed, EGM_E_LIMIT);
    egm_buf_release(&b);
}
END_TEST

START_TEST(failure_is_sticky_until_clear)
{
    struct egm_buf b;

    egm_buf_init(&b, 4);
    ck_assert_ptr_null(egm_buf_extend(&b, 5));
    ck_assert_int_eq(b.failed, EGM_E_LIMIT);
    ck_assert_int_eq(egm_buf_append(&b, "a", 1), EGM_E_LIMIT);
    ck_assert_int_eq(egm_buf_printf(&b, "a"), EGM_E_LIMIT);
    ck_assert_uint_eq(b.len, 0);
    egm_buf_clear(&b);
    ck_assert_int_eq(egm_buf_append(&b, "a", 1), 0);
    egm_buf_release(&b);
}
END_TEST

START_TEST(printf_appends_behind_what_is_there)
{
    struct egm_buf b;

    egm_buf_init(&b, 10000);
    ck_assert_int_eq(egm_buf_append(&b, "n=", 2), 0);
    ck_assert_int_eq(egm_buf_printf(&b, "%d %s", 42, "ok"), 0);
    ck_assert_str_eq(egm_buf_str(&b), "n=42 ok");
    ck_assert_int_eq(egm_buf_printf(&b, "%2000s", "x"), 0);
    ck_assert_uint_eq(b.len, 2007);
    egm_buf_release(&b);
}
END_TEST

static int fill(void *ctx)
{
    struct egm_buf b;
    int r;

    (void)ctx;
    egm_buf_init(&b, 1u << 16);
    for (int i = 0; i < 3000; i++) {
        egm_buf_printf(&b, "%d ", i);
    }
    r = b.failed;
    ck_assert_ptr_eq(b.data ? memchr(b.data, 0, b.len) : NULL, NULL);
    egm_buf_release(&b);
    return r;
}

START_TEST(every_failed_allocation_is_reported)
{
    egm_test_sweep(fill, NULL);
}
END_TEST

EGM_TEST_MAIN("base_buf", empty_buffer_is_an_empty_string, content_is_kept_over_growth,
              bound_is_exact_and_nothing_is_cut, length_near_size_max_does_not_wrap,
              failure_is_sticky_until_clear, printf_appends_behind_what_is_there,
              every_failed_allocation_is_reported)
