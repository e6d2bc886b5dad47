/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"

#include "test.h"

#include <string.h>

START_TEST(zero_bytes_give_a_pointer)
{
    EGM_CLEANUP(egm_freep) void *a = egm_alloc(0);
    EGM_CLEANUP(egm_freep) void *b = egm_calloc(0, 8);

    ck_assert_ptr_nonnull(a);
    ck_assert_ptr_nonnull(b);
}
END_TEST

START_TEST(overflowing_product_is_refused)
{
    volatile size_t n = SIZE_MAX / 2;

    ck_assert_ptr_null(egm_calloc(n, 3));
}
END_TEST

START_TEST(countdown_fails_exactly_one_allocation)
{
    void *p[4];

    egm_alloc_fail_after(2);
    ck_assert(egm_alloc_fail_is_armed());
    for (size_t i = 0; i < EGM_COUNT_OF(p); i++) {
        p[i] = egm_alloc(8);
    }
    ck_assert(!egm_alloc_fail_is_armed());
    ck_assert_ptr_nonnull(p[0]);
    ck_assert_ptr_nonnull(p[1]);
    ck_assert_ptr_null(p[2]);
    ck_assert_ptr_nonnull(p[3]);
    for (size_t i = 0; i < EGM_COUNT_OF(p); i++) {
        egm_free(p[i]);
    }
}
END_TEST

START_TEST(failed_realloc_keeps_the_old_block)
{
    char *p = egm_alloc(4);
    char *bigger;

    memcpy(p, "abc", 4);
    egm_alloc_fail_after(0);
    bigger = egm_realloc(p, 4096);
    ck_assert_ptr_null(bigger);
    ck_assert_str_eq(p, "abc");
    egm_free(p);
}
END_TEST

START_TEST(strndup_cuts_and_terminates)
{
    EGM_CLEANUP(egm_freep) char *cut = egm_strndup("abcdef", 3);
    EGM_CLEANUP(egm_freep) char *whole = egm_strndup("ab", 100);

    ck_assert_str_eq(cut, "abc");
    ck_assert_str_eq(whole, "ab");
}
END_TEST

EGM_TEST_MAIN("base_alloc", zero_bytes_give_a_pointer, overflowing_product_is_refused,
              countdown_fails_exactly_one_allocation, failed_realloc_keeps_the_old_block,
              strndup_cuts_and_terminates)
