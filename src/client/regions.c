/* SPDX-License-Identifier: Apache-2.0 */
#include "client/regions.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/limits.h"

#include <errno.h>
#include <string.h>

static int grow(struct egm_range_list *list, size_t more)
{
    if (list->cap - list->count >= more) {
        return 0;
    }
    size_t cap = egm_max_u64(list->cap * 2, list->count + more);
    cap = egm_max_u64(cap, 16);
    struct egm_range *ranges = egm_realloc(list->ranges, cap * sizeof(*ranges));
    if (!ranges) {
        return -ENOMEM;
    }
    list->ranges = ranges;
    list->cap = cap;
    return 0;
}

/* Replaces ranges [at, at + old) by `fresh`. Pre: there is room. */
static void splice(struct egm_range_list *list, size_t at, size_t old,
                   const struct egm_range *fresh, size_t count)
{
    size_t tail = list->count - at - old;

    if (tail > 0 && old != count) {
        memmove(list->ranges + at + count, list->ranges + at + old, tail * sizeof(*list->ranges));
    }
    if (count > 0) {
        memcpy(list->ranges + at, fresh, count * sizeof(*fresh));
    }
    list->count = list->count - old + count;
}

/* First index whose begin is > value (or >= with is_equal_in). */
static size_t first_after(const struct egm_range_list *list, uintptr_t value, bool is_equal_in)
{
    size_t low = 0;
    size_t high = list->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        uintptr_t begin = list->ranges[middle].begin;
        if (begin > value || (is_equal_in && begin == value)) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* Joins a range into the union. Pre: room for one more. */
static void join(struct egm_range_list *joined, struct egm_range range)
{
    size_t at = first_after(joined, range.begin, /*is_equal_in=*/true);

    if (at > 0 && joined->ranges[at - 1].end >= range.begin) {
        at--;
        range.begin = joined->ranges[at].begin;
    }
    size_t old = 0;
    while (at + old < joined->count && joined->ranges[at + old].begin <= range.end) {
        range.end = egm_max_u64(range.end, joined->ranges[at + old].end);
        old++;
    }
    splice(joined, at, old, &range, 1);
}

/* Takes a range out of the union: it lies inside one of its members. Pre: room for one more. */
static void cut(struct egm_range_list *joined, struct egm_range range)
{
    size_t at = first_after(joined, range.begin, /*is_equal_in=*/false);
    struct egm_range left[2];
    size_t count = 0;

    EGM_ASSERT(at > 0 && joined->ranges[at - 1].end >= range.end);
    struct egm_range whole = joined->ranges[--at];
    if (whole.begin < range.begin) {
        left[count++] = (struct egm_range){whole.begin, range.begin};
    }
    if (whole.end > range.end) {
        left[count++] = (struct egm_range){range.end, whole.end};
    }
    splice(joined, at, 1, left, count);
}

void egm_regions_release(struct egm_regions *regions)
{
    egm_free(regions->all.ranges);
    egm_free(regions->joined.ranges);
    *regions = (struct egm_regions){0};
}

int egm_regions_add(struct egm_regions *regions, uintptr_t begin, size_t size)
{
    struct egm_range range = {.begin = begin, .end = begin + size};

    EGM_ASSERT(size > 0 && range.end > range.begin);
    if (regions->all.count >= EGM_MAX_REGIONS) {
        return EGM_E_LIMIT;
    }
    if (grow(&regions->all, 1) < 0 || grow(&regions->joined, 1) < 0) {
        return -ENOMEM;
    }
    splice(&regions->all, first_after(&regions->all, begin, /*is_equal_in=*/false), 0, &range, 1);
    join(&regions->joined, range);
    regions->largest = egm_max_u64(regions->largest, size);
    return 0;
}

/* Joins what the remaining ranges still cover of `gone`. */
static void rejoin(struct egm_regions *regions, struct egm_range gone)
{
    for (size_t i = first_after(&regions->all, gone.end, /*is_equal_in=*/true); i > 0; i--) {
        struct egm_range range = regions->all.ranges[i - 1];
        if (range.end > gone.begin && range.end > range.begin) {
            range.begin = egm_max_u64(range.begin, gone.begin);
            range.end = egm_min_u64(range.end, gone.end);
            join(&regions->joined, range);
        }
        /* Nothing that begins further left can reach here. */
        if (gone.begin - egm_min_u64(gone.begin, regions->all.ranges[i - 1].begin) >
            regions->largest) {
            break;
        }
    }
}

int egm_regions_remove(struct egm_regions *regions, uintptr_t begin)
{
    size_t at = first_after(&regions->all, begin, /*is_equal_in=*/false);

    if (at == 0 || regions->all.ranges[at - 1].begin != begin) {
        return EGM_E_NOT_FOUND;
    }
    /* The union may grow by the second half of a cut, by what reaches in from the left (one piece,
     * all begin where the gone range did), and by a piece for each range that begins inside. */
    struct egm_range gone = regions->all.ranges[at - 1];
    size_t more = 2;
    for (size_t i = at; i < regions->all.count && regions->all.ranges[i].begin < gone.end; i++) {
        more++;
    }
    if (grow(&regions->joined, more) < 0) {
        return -ENOMEM;
    }
    splice(&regions->all, at - 1, 1, NULL, 0);
    cut(&regions->joined, gone);
    rejoin(regions, gone);
    return 0;
}

static bool holds(const struct egm_regions *regions, size_t i, uintptr_t begin, size_t size)
{
    const struct egm_range *range = &regions->joined.ranges[i];

    return i < regions->joined.count && begin >= range->begin && begin < range->end &&
           size <= range->end - begin;
}

bool egm_regions_cover(const struct egm_regions *regions, uintptr_t begin, size_t size,
                       size_t *hint)
{
    if (*hint < regions->joined.count && holds(regions, *hint, begin, size)) {
        return true;
    }
    size_t at = first_after(&regions->joined, begin, /*is_equal_in=*/false);
    if (at == 0 || !holds(regions, at - 1, begin, size)) {
        return false;
    }
    *hint = at - 1;
    return true;
}
