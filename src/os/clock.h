/* SPDX-License-Identifier: Apache-2.0 */
/* The one clock: CLOCK_BOOTTIME in nanoseconds, so that a suspended machine's leases run out (I4).
 * @threadsafe */
#ifndef EGM_OS_CLOCK_H
#define EGM_OS_CLOCK_H

#include <stdint.h>

#define EGM_NS_PER_MS 1000000ull
#define EGM_NS_PER_S 1000000000ull

uint64_t egm_clock_ns(void);
void egm_sleep_ns(uint64_t duration_ns);

#endif
