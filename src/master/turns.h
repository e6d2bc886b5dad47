/* SPDX-License-Identifier: Apache-2.0 */
/* Histogram of how long the loop's turns took: log-linear, 8 steps per power of two, so a quantile
 * is off by at most 12.5 %. Fixed size, no allocation; one thread. */
#ifndef EGM_MASTER_TURNS_H
#define EGM_MASTER_TURNS_H

#include <stdint.h>

#define EGM_TURNS_STEPS 8
#define EGM_TURNS_BUCKETS (62 * EGM_TURNS_STEPS)

struct egm_turns {
    uint64_t counts[EGM_TURNS_BUCKETS];
    uint64_t count, sum_ns, max_ns;
};

void egm_turns_add(struct egm_turns *t, uint64_t ns);
/* Upper edge of the bucket in which that share of the turns lies, at most max_ns; 0 when there are
 * none. share: 0..1. */
uint64_t egm_turns_quantile_ns(const struct egm_turns *t, double share);
/* Turns that took at most `ns`, to the precision of a bucket. */
uint64_t egm_turns_at_most(const struct egm_turns *t, uint64_t ns);

#endif
