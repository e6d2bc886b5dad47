/* SPDX-License-Identifier: Apache-2.0 */
/* Which addresses the caller has registered: a counted multiset of ranges, and their union.
 *
 * Ranges may repeat and overlap; each registration is undone by one removal with the same address
 * (B87). What a data call asks is only whether a piece lies in the union, so the union is kept
 * beside the ranges: disjoint, sorted, neighbours joined, found by binary search (B86). A removal
 * recomputes the union within the range that went, from the ranges that still reach into it.
 *
 * Adding in ascending order is O(log n) amortised, elsewhere an insertion moves array elements. Not
 * threadsafe. */
#ifndef EGM_CLIENT_REGIONS_H
#define EGM_CLIENT_REGIONS_H

#include "egmstore/errors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct egm_range {
    uintptr_t begin, end; /* end is behind the last byte */
};

struct egm_range_list {
    struct egm_range *ranges;
    size_t count, cap;
};

struct egm_regions {
    struct egm_range_list all;    /* ascending by begin; equal begins in order of arrival */
    struct egm_range_list joined; /* the union */
    uintptr_t largest;            /* no range in `all` was ever longer, bytes */
};

void egm_regions_release(struct egm_regions *regions);

/* Pre: size > 0 and begin + size does not wrap. 0, -ENOMEM, or EGM_E_LIMIT beyond
 * EGM_MAX_REGIONS. */
EGM_MUST_CHECK int egm_regions_add(struct egm_regions *regions, uintptr_t begin, size_t size);

/* Undoes the youngest registration that begins there. 0, EGM_E_NOT_FOUND, or -ENOMEM (then nothing
 * changed). */
EGM_MUST_CHECK int egm_regions_remove(struct egm_regions *regions, uintptr_t begin);

/* Whether all of it is registered. *hint speeds up the next question about a near address; start
 * with 0. */
bool egm_regions_cover(const struct egm_regions *regions, uintptr_t begin, size_t size,
                       size_t *hint);

#endif
