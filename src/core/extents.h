/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator of one segment: which places of it are taken. Pure; the master's, one instance per
 * mount.
 *
 * Model. A segment is a row of granules (64 KiB). A place is a run of 4 KiB slots {at, count}; it
 * is either whole granules, or 1..15 slots inside one *cut* granule. Granule 0 is reserved for the
 * movers' self-test and never given out.
 *
 *   free run  maximal row of free granules. Its length stands at its first and last granule
 *             (boundary tags); its first is linked into the bin of its size. Bins are powers of
 *             two cut in four, as in TLSF.
 *   cut       16 slots, the free ones in a 16-bit map; linked by the longest free row in it
 *             (1..15). When all are free it is whole again.
 *   taken     neither.
 *
 * E1 Two neighbouring free runs never exist: giving back joins.
 * E2 Free bytes = free granules * 64 KiB + free slots of cut granules * 4 KiB.
 *
 * An allocation is contiguous when any run is long enough (good fit: a look through up to 16 of its
 * own bin, else the first of the next larger one); else the longest runs are taken, up to
 * EGM_MAX_EXTENTS places. All or nothing. Cost: O(1) but for that look; 16 bytes a granule. */
#ifndef EGM_CORE_EXTENTS_H
#define EGM_CORE_EXTENTS_H

#include "base/limits.h"

#include "egmstore/errors.h"

#include <stdbool.h>
#include <stdint.h>

/* In slots of 4 KiB. */
struct egm_place {
    uint32_t at;
    uint32_t count;
};

#define EGM_EXTENT_BINS 128

struct egm_granule;

struct egm_extents {
    struct egm_granule *granules_;
    uint32_t granule_count;
    uint32_t bins_[EGM_EXTENT_BINS]; /* first free run of the bin, or NONE */
    uint64_t bin_map_[2];
    uint32_t
        cut_[EGM_SLOTS_PER_GRANULE]; /* [n]: first cut granule whose longest free row is n slots */
    uint64_t free_bytes;
};

/* Covers size_bytes rounded down to granules (at least two). 0, EGM_E_LIMIT or -ENOMEM. */
EGM_MUST_CHECK int egm_extents_init(struct egm_extents *x, uint64_t size_bytes);
void egm_extents_release(struct egm_extents *x);

/* Takes places for `bytes` (> 0). Writes up to EGM_MAX_EXTENTS of them. 0, or EGM_E_NO_SPACE and
 * nothing changed. */
EGM_MUST_CHECK int egm_extents_take(struct egm_extents *x, uint64_t bytes,
                                    struct egm_place *ret_places, uint32_t *ret_count);

/* Takes exactly this place if all of it is free (recovery). Costs a walk to the start of its run. 0
 * or EGM_E_NO_SPACE, EGM_E_INVALID when it is no possible place. */
EGM_MUST_CHECK int egm_extents_take_at(struct egm_extents *x, struct egm_place place);

/* Gives back a place that was taken, as a whole. */
void egm_extents_give(struct egm_extents *x, struct egm_place place);

/* What `bytes` take up: rounded to slots below a granule, to granules above. */
uint64_t egm_extents_rounded(uint64_t bytes);

/* Checks E1, E2 and the links by a full walk; for tests and the simulator. */
bool egm_extents_is_sound(const struct egm_extents *x);

#endif
