/* SPDX-License-Identifier: Apache-2.0 */
#include "master/turns.h"

#include "base/checked.h"

/* Values below EGM_TURNS_STEPS have a bucket each; above, the exponent and the three bits behind
 * the leading one. */
static uint32_t bucket_of(uint64_t ns)
{
    if (ns < EGM_TURNS_STEPS) {
        return (uint32_t)ns;
    }
    uint32_t exponent = 63u - (uint32_t)__builtin_clzll(ns);
    uint32_t step = (uint32_t)(ns >> (exponent - 3)) & (EGM_TURNS_STEPS - 1);
    return (exponent - 2) * EGM_TURNS_STEPS + step;
}

/* Largest value of a bucket. */
static uint64_t top_of(uint32_t bucket)
{
    if (bucket < EGM_TURNS_STEPS) {
        return bucket;
    }
    uint32_t exponent = bucket / EGM_TURNS_STEPS + 2;
    uint64_t step = bucket % EGM_TURNS_STEPS + EGM_TURNS_STEPS;
    return ((step + 1) << (exponent - 3)) - 1;
}

void egm_turns_add(struct egm_turns *t, uint64_t ns)
{
    t->counts[bucket_of(ns)]++;
    t->count++;
    t->sum_ns += ns;
    t->max_ns = egm_max_u64(t->max_ns, ns);
}

uint64_t egm_turns_quantile_ns(const struct egm_turns *t, double share)
{
    uint64_t wanted = (uint64_t)(share * (double)t->count);
    uint64_t seen = 0;

    for (uint32_t i = 0; i < EGM_TURNS_BUCKETS && t->count > 0; i++) {
        seen += t->counts[i];
        if (seen > wanted || seen == t->count) {
            return egm_min_u64(top_of(i), t->max_ns);
        }
    }
    return 0;
}

uint64_t egm_turns_at_most(const struct egm_turns *t, uint64_t ns)
{
    uint64_t seen = 0;

    for (uint32_t i = 0; i < EGM_TURNS_BUCKETS && top_of(i) <= ns; i++) {
        seen += t->counts[i];
    }
    return seen;
}
