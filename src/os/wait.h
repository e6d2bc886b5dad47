/* SPDX-License-Identifier: Apache-2.0 */
/* Waits with a deadline that can be ended early: for a descriptor, for a condition, for time.
 * Deadlines are egm_clock_ns times; 0 means none.
 *
 * Two things make a thread's waits fail with EGM_E_CLOSED before that:
 *
 *   the check   is asked whether to go on; a language's runtime runs its signal handlers there
 *   the flag    somebody else sets it: the store that the thread works for is being closed
 *
 * Nobody wakes the thread for either. A thread that has one of them waits in slices of 100 ms and
 * looks in between (and when a signal interrupts it), so either is heard within a slice, whatever
 * is waited for and however it was sent; a thread that has none sleeps in one piece. */
#ifndef EGM_OS_WAIT_H
#define EGM_OS_WAIT_H

#include "base/detail.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* For this thread: `check` is called without any lock of a wait held. Once it has returned
 * non-zero, that wait and all later ones of this thread fail, until this is called again. It may
 * make calls of its own, which look at neither it nor the flag. NULL: nobody is asked. */
void egm_wait_on_interrupt(int (*check)(void *arg), void *arg);

/* For work that waits for nothing, between two pieces of it: asks the check when a slice has passed
 * since it was asked last. 0 or EGM_E_CLOSED. */
EGM_MUST_CHECK int egm_wait_look(void);

/* For this thread: waits fail while *flag is true. NULL: no flag. Borrowed until the next call. */
void egm_wait_watch(const _Atomic bool *flag);

/* What a thread's waits listen to, set aside: for an end that has to be orderly whatever was heard
 * before. */
struct egm_wait_ears {
    int (*check_)(void *arg);
    void *arg_;
    bool is_stopped_;
    uint64_t next_look_ns_;
    const _Atomic bool *closed_;
};
struct egm_wait_ears egm_wait_deaf(void);
void egm_wait_hear(const struct egm_wait_ears *ears);

/* Until `events` (of poll) may be possible; a descriptor that is ready is ready after the deadline
 * as well. 0, EGM_E_TIMEOUT, EGM_E_CLOSED or -errno. */
EGM_MUST_CHECK int egm_wait_fd(int fd, short events, uint64_t deadline_ns);

/* Until the condition may have changed: the caller looks, and waits again. The condition runs on
 * CLOCK_MONOTONIC; `mutex` is held before and after, and not while a check runs. 0, EGM_E_TIMEOUT
 * or EGM_E_CLOSED. */
EGM_MUST_CHECK int egm_wait_cond(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                 uint64_t deadline_ns);
/* A condition for it. */
void egm_wait_cond_init(pthread_cond_t *cond);

/* Until at_ns. 0 or EGM_E_CLOSED. */
EGM_MUST_CHECK int egm_wait_time(uint64_t at_ns);

#endif
