/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every unit test file shares: one main, and checks that hold for all tests.
 *
 *     #include "test.h"
 *     START_TEST(lease_expires_while_put_in_flight) { ... } END_TEST
 *     EGM_TEST_MAIN("core_lease", lease_expires_while_put_in_flight, ...)
 *
 * Check forks a process per test, so a crash or a leftover of one does not touch the next. Each
 * test must close what it opened: the number of open descriptors is compared at its end. Under ASan
 * the same holds for memory, because the leak check runs when the test's process exits.
 *
 * EGM_TEST_EXCLUDE lists tests not to run ("a_test,another_test"): an emulator cannot do what a few
 * of them need. Each is named on standard output; one that no file has goes unnoticed here, so who
 * sets it counts them.
 *
 * egm_test_sweep() runs a piece of code with its first, second, third... allocation failing, until
 * it gets through.
 */
#ifndef EGM_TEST_H
#define EGM_TEST_H

#include "base/alloc.h"
#include "base/checked.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EGM_TEST_TIMEOUT_S 60

static int egm_test_fd_count_before;

static int egm_test_fd_count(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    ck_assert_ptr_nonnull(dir);
    while (readdir(dir)) {
        count++;
    }
    closedir(dir);
    return count;
}

static void egm_test_setup(void)
{
    egm_test_fd_count_before = egm_test_fd_count();
}

static void egm_test_teardown(void)
{
    egm_alloc_fail_after(-1);
    ck_assert_msg(egm_test_fd_count() == egm_test_fd_count_before,
                  "the test left %d descriptors open",
                  egm_test_fd_count() - egm_test_fd_count_before);
}

/* Calls run(ctx) with the N-th allocation failing, N = 0, 1, 2..., until a run meets no failure.
 * run must undo all it did, and return 0, or -ENOMEM if the failure stopped it. The last run must
 * return 0. */
__attribute__((unused)) static void egm_test_sweep(int (*run)(void *ctx), void *ctx)
{
    for (int64_t n = 0;; n++) {
        bool is_untouched;
        int r;

        egm_alloc_fail_after(n);
        r = run(ctx);
        is_untouched = egm_alloc_fail_is_armed();
        egm_alloc_fail_after(-1);
        ck_assert_msg(r == 0 || r == -ENOMEM, "failing allocation %ld gave %d", (long)n, r);
        if (is_untouched) {
            ck_assert_int_eq(r, 0);
            ck_assert_msg(n > 0, "nothing was allocated: the sweep tests nothing");
            return;
        }
    }
}

static bool egm_test_is_excluded(const char *name)
{
    const char *list = getenv("EGM_TEST_EXCLUDE");
    size_t length = strlen(name);

    for (const char *at = list ? strstr(list, name) : NULL; at; at = strstr(at + 1, name)) {
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0')) {
            printf("excluded: %s\n", name);
            return true;
        }
    }
    return false;
}

/* Runs all tests; those of `aborting` pass by dying of SIGABRT, as a failed assertion does. */
static int egm_test_run_with_aborts(const char *name, const TTest *const *tests, size_t count,
                                    const TTest *const *aborting, size_t aborting_count)
{
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);
    SRunner *runner = srunner_create(suite);
    int failed_count;

    tcase_set_timeout(tcase, EGM_TEST_TIMEOUT_S);
    tcase_add_checked_fixture(tcase, egm_test_setup, egm_test_teardown);
    for (size_t i = 0; i < count; i++) {
        if (!egm_test_is_excluded(tests[i]->name)) {
            tcase_add_test(tcase, tests[i]);
        }
    }
    for (size_t i = 0; i < aborting_count; i++) {
        tcase_add_test_raise_signal(tcase, aborting[i], SIGABRT);
    }
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_ENV);
    failed_count = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed_count == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#define EGM_TEST_MAIN(name, ...)                                                    \
    int main(void)                                                                  \
    {                                                                               \
        const TTest *const tests[] = {__VA_ARGS__};                                 \
                                                                                    \
        return egm_test_run_with_aborts(name, tests, EGM_COUNT_OF(tests), NULL, 0); \
    }

#endif
