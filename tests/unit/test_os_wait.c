/* SPDX-License-Identifier: Apache-2.0 */
#include "os/clock.h"
#include "os/wait.h"
#include "test.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define MS EGM_NS_PER_MS

enum way {
    FOR_FD,
    FOR_COND,
    FOR_TIME,
    WAYS
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond;
static int pipe_ends[2];

static void begin(void)
{
    egm_wait_cond_init(&cond);
    ck_assert_int_eq(pipe(pipe_ends), 0);
}

static void end(void)
{
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    pthread_cond_destroy(&cond);
}

/* Waits for what never comes. */
static int wait_in_vain(enum way way, uint64_t deadline_ns)
{
    int r = 0;

    switch (way) {
    case FOR_FD:
        return egm_wait_fd(pipe_ends[0], POLLIN, deadline_ns);
    case FOR_COND:
        pthread_mutex_lock(&lock);
        while (r == 0) {
            r = egm_wait_cond(&cond, &lock, deadline_ns);
        }
        pthread_mutex_unlock(&lock);
        return r;
    default:
        return egm_wait_time(deadline_ns);
    }
}

static uint64_t ms_since(uint64_t since_ns)
{
    return (egm_clock_ns() - since_ns) / MS;
}

START_TEST(waits_end_at_their_deadline)
{
    begin();
    for (enum way way = FOR_FD; way < WAYS; way++) {
        uint64_t since = egm_clock_ns();
        ck_assert_int_eq(wait_in_vain(way, since + 250 * MS), way == FOR_TIME ? 0 : EGM_E_TIMEOUT);
        ck_assert_uint_ge(ms_since(since), 250);
        ck_assert_uint_le(ms_since(since), 400);
    }
    end();
}
END_TEST

static int count_looks(void *arg)
{
    unsigned *looks = arg;

    /* nobody holds the lock while this runs */
    ck_assert_int_eq(pthread_mutex_trylock(&lock), 0);
    pthread_mutex_unlock(&lock);
    return ++*looks == 3;
}

START_TEST(check_is_asked_in_every_kind_of_wait_and_ends_it)
{
    begin();
    for (enum way way = FOR_FD; way < WAYS; way++) {
        unsigned looks = 0;
        uint64_t since = egm_clock_ns();
        egm_wait_on_interrupt(count_looks, &looks);
        ck_assert_int_eq(wait_in_vain(way, since + 10000 * MS), EGM_E_CLOSED);
        ck_assert_uint_eq(looks, 3);
        ck_assert_uint_le(ms_since(since), 500);
        /* later waits as well, without asking again */
        ck_assert_int_eq(wait_in_vain(FOR_COND, egm_clock_ns() + 10000 * MS), EGM_E_CLOSED);
        ck_assert_uint_eq(looks, 3);
        egm_wait_on_interrupt(NULL, NULL);
        ck_assert_int_eq(wait_in_vain(FOR_FD, egm_clock_ns() + 10 * MS), EGM_E_TIMEOUT);
    }
    end();
}
END_TEST

static void *raise_flag(void *arg)
{
    egm_sleep_ns(150 * MS);
    *(_Atomic bool *)arg = true;
    return NULL;
}

static int wait_inside(void *arg)
{
    *(int *)arg = egm_wait_time(egm_clock_ns() + MS);
    return 0;
}

START_TEST(flag_ends_every_kind_of_wait_but_not_those_of_the_check)
{
    static _Atomic bool is_closing;
    int inside; /* the check stays behind the loop */
    pthread_t thread;

    begin();
    for (enum way way = FOR_FD; way < WAYS; way++) {
        inside = 1;
        uint64_t since = egm_clock_ns();
        is_closing = false;
        egm_wait_watch(&is_closing);
        egm_wait_on_interrupt(wait_inside, &inside);
        ck_assert_int_eq(pthread_create(&thread, NULL, raise_flag, &is_closing), 0);
        ck_assert_int_eq(wait_in_vain(way, since + 10000 * MS), EGM_E_CLOSED);
        ck_assert_uint_le(ms_since(since), 400);
        ck_assert_int_eq(inside, 0);
        pthread_join(thread, NULL);
    }
    egm_wait_watch(NULL);
    ck_assert_int_eq(wait_in_vain(FOR_FD, egm_clock_ns() + 10 * MS), EGM_E_TIMEOUT);
    end();
}
END_TEST

START_TEST(work_asks_the_check_once_a_slice)
{
    unsigned looks = 0;
    unsigned rounds = 0;
    uint64_t since = egm_clock_ns();

    ck_assert_int_eq(egm_wait_look(), 0);
    egm_wait_on_interrupt(count_looks, &looks);
    while (egm_wait_look() == 0) {
        rounds++;
    }
    ck_assert_uint_eq(looks, 3);
    ck_assert_uint_gt(rounds, 100);
    ck_assert_uint_ge(ms_since(since), 300);
    ck_assert_int_eq(egm_wait_look(), EGM_E_CLOSED);
    ck_assert_uint_eq(looks, 3);
    egm_wait_on_interrupt(NULL, NULL);
}
END_TEST

START_TEST(descriptor_that_is_ready_is_ready_after_the_deadline_too)
{
    begin();
    ck_assert_int_eq(egm_wait_fd(pipe_ends[1], POLLOUT, 1), 0);
    ck_assert_int_eq(egm_wait_fd(pipe_ends[0], POLLIN, 1), EGM_E_TIMEOUT);
    end();
}
END_TEST

static int refuse(void *arg)
{
    (void)arg;
    return 1;
}

START_TEST(deaf_thread_waits_whatever_it_has_heard)
{
    begin();
    egm_wait_on_interrupt(refuse, NULL);
    for (enum way way = FOR_FD; way < WAYS; way++) {
        ck_assert_int_eq(wait_in_vain(way, egm_clock_ns() + 10000 * MS), EGM_E_CLOSED);
        struct egm_wait_ears ears = egm_wait_deaf();
        uint64_t since = egm_clock_ns();
        ck_assert_int_eq(wait_in_vain(way, since + 150 * MS), way == FOR_TIME ? 0 : EGM_E_TIMEOUT);
        ck_assert_uint_ge(ms_since(since), 149);
        egm_wait_hear(&ears);
        ck_assert_int_eq(wait_in_vain(way, egm_clock_ns() + 10000 * MS), EGM_E_CLOSED);
    }
    end();
}
END_TEST

EGM_TEST_MAIN("os_wait", waits_end_at_their_deadline,
              check_is_asked_in_every_kind_of_wait_and_ends_it,
              flag_ends_every_kind_of_wait_but_not_those_of_the_check,
              work_asks_the_check_once_a_slice,
              descriptor_that_is_ready_is_ready_after_the_deadline_too,
              deaf_thread_waits_whatever_it_has_heard)
