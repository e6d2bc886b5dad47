/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/checked.h"

#include "test.h"

#include <signal.h>

START_TEST(overflow_is_refused_and_leaves_the_result)
{
    uint64_t v = 7;
    size_t n = 7;

    ck_assert_int_eq(egm_mul_u64(&v, UINT64_C(1) << 32, UINT64_C(1) << 32), EGM_E_LIMIT);
    ck_assert_int_eq(egm_add_u64(&v, UINT64_MAX, 1), EGM_E_LIMIT);
    ck_assert_uint_eq(v, 7);
    ck_assert_int_eq(egm_mul_size(&n, SIZE_MAX, 2), EGM_E_LIMIT);
    ck_assert_int_eq(egm_add_size(&n, SIZE_MAX, 1), EGM_E_LIMIT);
    ck_assert_uint_eq(n, 7);
}
END_TEST

START_TEST(largest_values_that_fit_are_exact)
{
    uint64_t v;
    size_t n;

    ck_assert_int_eq(egm_mul_u64(&v, UINT64_MAX / 5, 5), 0);
    ck_assert_uint_eq(v, UINT64_MAX / 5 * 5);
    ck_assert_int_eq(egm_add_u64(&v, UINT64_MAX - 1, 1), 0);
    ck_assert_uint_eq(v, UINT64_MAX);
    ck_assert_int_eq(egm_mul_size(&n, 3, 4), 0);
    ck_assert_uint_eq(n, 12);
    ck_assert_int_eq(egm_add_size(&n, n, n), 0);
    ck_assert_uint_eq(n, 24);
}
END_TEST

START_TEST(alignment_at_its_edges)
{
    ck_assert_uint_eq(egm_align_up(0, 4096), 0);
    ck_assert_uint_eq(egm_align_up(1, 4096), 4096);
    ck_assert_uint_eq(egm_align_up(4096, 4096), 4096);
    ck_assert_uint_eq(egm_align_up(UINT64_MAX - 4095, 4096), UINT64_MAX - 4095);
    ck_assert_uint_eq(egm_align_down(4095, 4096), 0);
    ck_assert_uint_eq(egm_align_down(UINT64_MAX, 4096), UINT64_MAX - 4095);
    ck_assert(egm_is_pow2(1) && egm_is_pow2(UINT64_C(1) << 63));
    ck_assert(!egm_is_pow2(0) && !egm_is_pow2(3));
    ck_assert_uint_eq(egm_div_ceil_u64(0, 7), 0);
    ck_assert_uint_eq(egm_div_ceil_u64(8, 7), 2);
    ck_assert_uint_eq(egm_div_ceil_u64(UINT64_MAX, 1), UINT64_MAX);
    ck_assert_uint_eq(egm_div_ceil_u64(UINT64_MAX, 2), UINT64_C(1) << 63);
    ck_assert_uint_eq(egm_min_u64(1, 2), 1);
    ck_assert_uint_eq(egm_max_u64(1, 2), 2);
}
END_TEST

START_TEST(alignment_that_would_wrap_aborts)
{
    (void)egm_align_up(UINT64_MAX, 4096);
}
END_TEST

START_TEST(failed_assertion_aborts)
{
    EGM_ASSERT(1 == 1);
    EGM_ASSERT(1 == 2);
}
END_TEST

START_TEST(container_is_found_from_a_member)
{
    struct pair {
        int first;
        int second;
    } pair = {1, 2};
    int *member = &pair.second;

    ck_assert_ptr_eq(egm_container_of(member, struct pair, second), &pair);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {overflow_is_refused_and_leaves_the_result,
                                  largest_values_that_fit_are_exact, alignment_at_its_edges,
                                  container_is_found_from_a_member};
    const TTest *const aborting[] = {alignment_that_would_wrap_aborts, failed_assertion_aborts};

    return egm_test_run_with_aborts("base_checked", tests, EGM_COUNT_OF(tests), aborting,
                                    EGM_COUNT_OF(aborting));
}
