/* SPDX-License-Identifier: Apache-2.0 */
#include "os/clock.h"

#include "base/assert.h"

#include <errno.h>
#include <time.h>

uint64_t egm_clock_ns(void)
{
    struct timespec now;

    /* Cannot fail on a kernel that has the clock, which every one since 2.6.39 does. */
    EGM_ASSERT(clock_gettime(CLOCK_BOOTTIME, &now) == 0);
    return (uint64_t)now.tv_sec * EGM_NS_PER_S + (uint64_t)now.tv_nsec;
}

void egm_sleep_ns(uint64_t duration_ns)
{
    struct timespec left = {.tv_sec = (time_t)(duration_ns / EGM_NS_PER_S),
                            .tv_nsec = (long)(duration_ns % EGM_NS_PER_S)};

    while (clock_nanosleep(CLOCK_BOOTTIME, 0, &left, &left) == EINTR) {
    }
}
