/* SPDX-License-Identifier: Apache-2.0 */
#include "base/detail.h"

#include "test.h"

#include <limits.h>
#include <string.h>

START_TEST(every_own_code_has_a_name_and_a_text)
{
    for (int code = EGM_E_STALE; code >= EGM_E_NOT_PERMITTED; code--) {
        ck_assert_int_eq(strncmp(egm_error_name(code), "EGM_E_", 6), 0);
        ck_assert_str_ne(egm_strerror(code), "unknown error");
    }
    ck_assert_str_eq(egm_error_name(EGM_E_NOT_PERMITTED), "EGM_E_NOT_PERMITTED");
    ck_assert_str_eq(egm_error_name(EGM_E_STALE), "EGM_E_STALE");
}
END_TEST

START_TEST(errno_keeps_the_kernels_words)
{
    ck_assert_str_eq(egm_error_name(-ENOMEM), "ENOMEM");
    ck_assert_str_eq(egm_strerror(-ENOMEM), "Cannot allocate memory");
}
END_TEST

START_TEST(codes_of_no_table_are_survived)
{
    static const int codes[] = {-4095, -4096, -5000, EGM_E_NOT_PERMITTED - 1, INT_MIN};

    for (size_t i = 0; i < EGM_COUNT_OF(codes); i++) {
        ck_assert_str_eq(egm_strerror(codes[i]), "unknown error");
        ck_assert_str_eq(egm_error_name(codes[i]), "UNKNOWN");
        ck_assert(!egm_err_retryable(codes[i]));
        ck_assert_int_eq(egm_err_scope(codes[i]), EGM_SCOPE_OP);
    }
    ck_assert_str_eq(egm_strerror(0), "success");
    ck_assert_str_eq(egm_error_name(INT_MAX), "OK");
    ck_assert(!egm_err_retryable(3));
}
END_TEST

START_TEST(retry_and_scope_follow_the_cause)
{
    ck_assert(egm_err_retryable(EGM_E_STALE));
    ck_assert(egm_err_retryable(EGM_E_AGAIN));
    ck_assert(egm_err_retryable(-ECONNRESET));
    ck_assert(!egm_err_retryable(EGM_E_NO_SPACE));
    ck_assert(!egm_err_retryable(EGM_E_TIMEOUT));
    ck_assert(!egm_err_retryable(-EINVAL));
    ck_assert_int_eq(egm_err_scope(EGM_E_PROTO), EGM_SCOPE_CONNECTION);
    ck_assert_int_eq(egm_err_scope(-EPIPE), EGM_SCOPE_CONNECTION);
    ck_assert_int_eq(egm_err_scope(EGM_E_STALE), EGM_SCOPE_SEGMENT);
    ck_assert_int_eq(egm_err_scope(EGM_E_CLOSED), EGM_SCOPE_NODE);
    ck_assert_int_eq(egm_err_scope(EGM_E_NOT_FOUND), EGM_SCOPE_OP);
}
END_TEST

START_TEST(detail_is_filled_and_code_returned)
{
    struct egm_detail detail = {0};

    ck_assert_int_eq(egm_fail(&detail, EGM_E_LIMIT, "mount", "segment %d too large", 7),
                     EGM_E_LIMIT);
    ck_assert_int_eq(detail.code, EGM_E_LIMIT);
    ck_assert_str_eq(detail.stage, "mount");
    ck_assert_str_eq(detail.text, "segment 7 too large");
    ck_assert_int_eq(egm_fail(NULL, -EIO, "mount", "nobody reads this"), -EIO);
}
END_TEST

START_TEST(long_detail_is_cut_visibly)
{
    struct egm_detail detail;

    ck_assert_int_eq(
        egm_fail(&detail, -EIO, "a stage name that is longer than its field", "%999s", "x"), -EIO);
    ck_assert_uint_eq(strlen(detail.text), sizeof(detail.text) - 1);
    ck_assert_str_eq(detail.text + sizeof(detail.text) - 4, "...");
    ck_assert_uint_eq(strlen(detail.stage), sizeof(detail.stage) - 1);
    ck_assert_int_eq(egm_fail(&detail, -EIO, "s", "%383s", "x"), -EIO);
    ck_assert_str_eq(detail.text + sizeof(detail.text) - 4, "  x");
}
END_TEST

EGM_TEST_MAIN("base_errors", every_own_code_has_a_name_and_a_text, errno_keeps_the_kernels_words,
              codes_of_no_table_are_survived, retry_and_scope_follow_the_cause,
              detail_is_filled_and_code_returned, long_detail_is_cut_visibly)
