/* SPDX-License-Identifier: Apache-2.0 */
#include "os/wait.h"

#include "base/checked.h"

#include "os/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#define SLICE_NS (100 * EGM_NS_PER_MS)
/* Of a wait without deadline and without slices: it begins anew. */
#define LONGEST_NS (3600 * EGM_NS_PER_S)

/* is_stopped_: by the check; next_look_ns_: of egm_wait_look, 0 while not set; closed_: NULL is
 * none. */
static _Thread_local struct egm_wait_ears self;

void egm_wait_on_interrupt(int (*check)(void *arg), void *arg)
{
    self.check_ = check;
    self.arg_ = arg;
    self.is_stopped_ = false;
    self.next_look_ns_ = 0;
}

void egm_wait_watch(const _Atomic bool *flag)
{
    self.closed_ = flag;
}

struct egm_wait_ears egm_wait_deaf(void)
{
    struct egm_wait_ears before = self;

    self = (struct egm_wait_ears){0};
    return before;
}

void egm_wait_hear(const struct egm_wait_ears *ears)
{
    self = *ears;
}

static bool must_stop(void)
{
    /* relaxed: a hint to stop; locks order everything else */
    return self.is_stopped_ ||
           (self.closed_ && atomic_load_explicit(self.closed_, memory_order_relaxed));
}

static void ask(void)
{
    struct egm_wait_ears before = self;

    if (before.check_) {
        self = (struct egm_wait_ears){0};
        before.is_stopped_ = before.check_(before.arg_) != 0;
        self = before;
    }
}

int egm_wait_look(void)
{
    if (self.check_ && !self.is_stopped_) {
        uint64_t now = egm_clock_ns();
        bool is_due = self.next_look_ns_ != 0 && now >= self.next_look_ns_;
        if (is_due || self.next_look_ns_ == 0) {
            self.next_look_ns_ = now + SLICE_NS;
        }
        if (is_due) {
            ask();
        }
    }
    return must_stop() ? EGM_E_CLOSED : 0;
}

/* How long the kernel may be waited in now. 0: the deadline has passed. */
static uint64_t slice(uint64_t deadline_ns)
{
    uint64_t now = egm_clock_ns();
    uint64_t longest_ns = self.check_ || self.closed_ ? SLICE_NS : LONGEST_NS;

    if (deadline_ns == 0) {
        return longest_ns;
    }
    return deadline_ns > now ? egm_min_u64(deadline_ns - now, longest_ns) : 0;
}

int egm_wait_fd(int fd, short events, uint64_t deadline_ns)
{
    struct pollfd p = {.fd = fd, .events = events};

    for (;;) {
        if (must_stop()) {
            return EGM_E_CLOSED;
        }
        uint64_t ns = slice(deadline_ns);
        struct timespec left = {.tv_sec = (time_t)(ns / EGM_NS_PER_S),
                                .tv_nsec = (long)(ns % EGM_NS_PER_S)};
        int n = ppoll(&p, 1, &left, NULL);
        if (n > 0) {
            return 0;
        }
        if (n < 0 && errno != EINTR) {
            return -errno;
        }
        if (ns == 0) {
            return EGM_E_TIMEOUT;
        }
        ask();
    }
}

void egm_wait_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

int egm_wait_cond(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns)
{
    struct timespec until;
    uint64_t ns = slice(deadline_ns);

    if (must_stop()) {
        return EGM_E_CLOSED;
    }
    if (ns == 0) {
        return EGM_E_TIMEOUT;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    ns += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(ns / EGM_NS_PER_S);
    until.tv_nsec = (long)(ns % EGM_NS_PER_S);
    if (pthread_cond_timedwait(cond, mutex, &until) == ETIMEDOUT && self.check_) {
        pthread_mutex_unlock(mutex);
        ask();
        pthread_mutex_lock(mutex);
    }
    return must_stop() ? EGM_E_CLOSED : 0;
}

int egm_wait_time(uint64_t at_ns)
{
    int r = egm_wait_fd(-1, 0, at_ns);

    return r == EGM_E_TIMEOUT ? 0 : r;
}
