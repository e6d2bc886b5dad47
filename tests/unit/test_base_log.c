/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

struct record {
    int count;
    enum egm_log_level level;
    char text[4096];
};

static void keep(void *ctx, enum egm_log_level level, const char *message, size_t len)
{
    struct record *record = ctx;

    ck_assert_uint_lt(len, sizeof(record->text));
    record->count++;
    record->level = level;
    memcpy(record->text, message, len);
    record->text[len] = '\0';
}

START_TEST(level_comes_from_the_environment)
{
    setenv("EGMSTORE_LOG", "DEBUG", 1);
    ck_assert(egm_log_enabled(EGM_LOG_DEBUG));
    ck_assert(!egm_log_enabled(EGM_LOG_TRACE));
}
END_TEST

START_TEST(wrong_level_means_info)
{
    setenv("EGMSTORE_LOG", "loud", 1);
    ck_assert(egm_log_enabled(EGM_LOG_INFO));
    ck_assert(!egm_log_enabled(EGM_LOG_DEBUG));
}
END_TEST

START_TEST(arguments_of_a_level_that_is_off_are_not_evaluated)
{
    struct record record = {0};
    int evaluated = 0;

    egm_log_set_sink(keep, &record);
    egm_log_set_level(EGM_LOG_WARN);
    egm_info("info is off n=%d", ++evaluated);
    ck_assert_int_eq(evaluated, 0);
    egm_warn("warn is on n=%d", ++evaluated);
    ck_assert_int_eq(record.count, 1);
    ck_assert_int_eq(record.level, EGM_LOG_WARN);
    ck_assert_str_eq(record.text, "warn is on n=1");
}
END_TEST

START_TEST(message_is_one_line_and_errno_survives)
{
    struct record record = {0};

    egm_log_set_sink(keep, &record);
    errno = 77;
    egm_log(EGM_LOG_ERROR, "key=%s", "a\nforged line\x1b[31m");
    ck_assert_int_eq(errno, 77);
    ck_assert_str_eq(record.text, "key=a forged line [31m");
}
END_TEST

START_TEST(long_message_is_cut)
{
    struct record record = {0};

    egm_log_set_sink(keep, &record);
    egm_log(EGM_LOG_ERROR, "%3000s", "x");
    ck_assert_uint_eq(strlen(record.text), 1999);
}
END_TEST

START_TEST(gate_lets_one_line_pass_and_counts_the_rest)
{
    struct egm_log_gate gate = {0};
    struct record record = {0};

    egm_log_set_sink(keep, &record);
    for (int i = 0; i < 100; i++) {
        egm_log_gated(&gate, EGM_LOG_ERROR, "peer sent rubbish i=%d", i);
    }
    ck_assert_int_eq(record.count, 1);
    ck_assert_str_eq(record.text, "peer sent rubbish i=0");
    atomic_store_explicit(&gate.next_ms, 0, memory_order_relaxed); /* as if a second had passed */
    egm_log_gated(&gate, EGM_LOG_ERROR, "peer sent rubbish i=%d", 100);
    ck_assert_str_eq(record.text, "peer sent rubbish i=100 suppressed=99");
}
END_TEST

static void *log_many(void *ctx)
{
    for (int i = 0; i < 500; i++) {
        egm_error("line of thread=%s", (const char *)ctx);
    }
    return NULL;
}

/* Reads what went to stderr and checks that each line is whole. */
static void check_lines(int fd, int wanted_count)
{
    static char text[1u << 20];
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    int count = 0;

    ck_assert_int_gt(n, 0);
    text[n] = '\0';
    for (char *line = text; *line != '\0'; count++) {
        char *end = strchr(line, '\n');

        ck_assert_ptr_nonnull(end);
        /* 2026-01-01T00:00:00.000Z error line of thread=aaaa */
        ck_assert_int_eq(end - line, 24 + 1 + 5 + 1 + 19);
        ck_assert_int_eq(strncmp(line + 23, "Z error line of thread=", 23), 0);
        line = end + 1;
    }
    ck_assert_int_eq(count, wanted_count);
}

START_TEST(lines_of_two_threads_do_not_mix_on_stderr)
{
    char path[] = "/tmp/egmstore-test-log-XXXXXX";
    int fd = mkstemp(path);
    int saved = dup(STDERR_FILENO);
    pthread_t threads[2];
    char names[2][8] = {"aaaa", "bbbb"};
    int flags;

    ck_assert_int_ge(fd, 0);
    unlink(path);
    flags = fcntl(fd, F_GETFL);
    ck_assert_int_eq(fcntl(fd, F_SETFL, flags | O_APPEND), 0);
    ck_assert_int_ge(dup2(fd, STDERR_FILENO), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, log_many, names[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    ck_assert_int_ge(dup2(saved, STDERR_FILENO), 0);
    close(saved);
    check_lines(fd, 1000);
    close(fd);
}
END_TEST

EGM_TEST_MAIN("base_log", level_comes_from_the_environment, wrong_level_means_info,
              arguments_of_a_level_that_is_off_are_not_evaluated,
              message_is_one_line_and_errno_survives, long_message_is_cut,
              gate_lets_one_line_pass_and_counts_the_rest,
              lines_of_two_threads_do_not_mix_on_stderr)
