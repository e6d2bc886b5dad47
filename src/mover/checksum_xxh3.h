/* SPDX-License-Identifier: Apache-2.0 */
/* Body of every checksum_<width>.c. The including file defines XXH_VECTOR, EGM_VARIANT (the
 * table's symbol) and EGM_VARIANT_NAME first. XXH_INLINE_ALL makes all of XXH3 static in that file
 * and renames its symbols, so that builds of several widths can be linked into one program without
 * the linker picking one body for all of them. No include guard: included once per file by design.
 */
#define XXH_INLINE_ALL
#include "mover/checksum.h"
#include "mover/checksum_variant.h"

#include <xxhash.h>

_Static_assert(sizeof(XXH3_state_t) <= EGM_CHECKSUM_STATE_BYTES, "XXH3 state fits");
_Static_assert(_Alignof(XXH3_state_t) <= EGM_CHECKSUM_STATE_ALIGN, "XXH3 state is aligned");

static uint64_t variant_hash(const void *data, size_t size)
{
    return XXH3_64bits(data, size);
}

/* The calls below can fail only on a NULL state or NULL data, which checksum.c never passes. */
static void variant_start(void *state, uint64_t seed)
{
    XXH3_state_t *xxh = state;
    /* reset keeps the seed's secret if the state seems to have that seed already; raw memory may
     * seem so by chance */
    XXH3_INITSTATE(xxh);
    (void)XXH3_64bits_reset_withSeed(xxh, seed);
}

static void variant_feed(void *state, const void *data, size_t size)
{
    (void)XXH3_64bits_update(state, data, size);
}

static uint64_t variant_finish(const void *state)
{
    return XXH3_64bits_digest(state);
}

const struct egm_checksum_variant EGM_VARIANT = {
    .name = EGM_VARIANT_NAME,
    .hash = variant_hash,
    .start = variant_start,
    .feed = variant_feed,
    .finish = variant_finish,
};
