/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The live table and the fences.
 *
 * Entries lie in chunks that never move, so growing costs one small allocation; a free list threads
 * the unused ones. The index maps generations to entry numbers and holds every entry that is not
 * unused, dying ones included: a DROP that is repeated after a reconnect must find them again.
 *
 * Place of an extent: its first granule, or its first 4 KiB slot when it is shorter than a granule.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/mutant.h"

#include "core/provider_state.h"

#include <errno.h>
#include <string.h>

static uint64_t hash_of(uint64_t generation)
{
    uint64_t h = generation * UINT64_C(0x9e3779b97f4a7c15);

    h ^= h >> 32;
    return h * UINT64_C(0xd6e8feb86659fd93);
}

struct egm_live *egm_live_at(const struct egm_pcore *core, uint32_t live)
{
    EGM_ASSERT(live >> EGM_LIVE_CHUNK_BITS < core->chunk_count);
    return &core->chunks[live >> EGM_LIVE_CHUNK_BITS][live & (EGM_LIVE_CHUNK - 1)];
}

const struct egm_extent *egm_live_extents(const struct egm_live *live)
{
    return live->extent_count == 1 ? &live->one : live->many;
}

uint32_t egm_live_find(const struct egm_pcore *core, uint64_t generation)
{
    struct egm_index_iter it;
    uint32_t live;

    egm_index_find(&core->index, hash_of(generation), &it);
    while (egm_index_next(&it, &live)) {
        if (egm_live_at(core, live)->generation == generation) {
            return live;
        }
    }
    return EGM_NO_LIVE;
}

static int grow(struct egm_pcore *core)
{
    if (core->chunk_count == core->chunk_room) {
        uint32_t room = core->chunk_room ? core->chunk_room * 2 : 16;
        struct egm_live **chunks = egm_realloc(core->chunks, room * sizeof(*chunks));
        if (!chunks) {
            return -ENOMEM;
        }
        core->chunks = chunks;
        core->chunk_room = room;
    }
    struct egm_live *chunk = egm_calloc(EGM_LIVE_CHUNK, sizeof(*chunk));
    if (!chunk) {
        return -ENOMEM;
    }
    uint32_t base = core->chunk_count << EGM_LIVE_CHUNK_BITS;
    core->chunks[core->chunk_count++] = chunk;
    for (uint32_t i = 0; i < EGM_LIVE_CHUNK; i++) {
        chunk[i].next_free = i + 1 < EGM_LIVE_CHUNK ? base + i + 1 : core->first_free;
    }
    core->first_free = base;
    return 0;
}

uint32_t egm_live_add(struct egm_pcore *core, uint64_t generation, uint32_t segment,
                      const struct egm_extent *extents, uint8_t extent_count)
{
    struct egm_extent *many = NULL;

    EGM_ASSERT(extent_count > 0);
    if (core->first_free == EGM_NO_LIVE && grow(core) < 0) {
        return EGM_NO_LIVE;
    }
    if (extent_count > 1) {
        many = egm_alloc(extent_count * sizeof(*many));
        if (!many) {
            return EGM_NO_LIVE;
        }
        memcpy(many, extents, extent_count * sizeof(*many));
    }
    uint32_t live = core->first_free;
    if (egm_index_insert(&core->index, hash_of(generation), live) < 0) {
        egm_free(many);
        return EGM_NO_LIVE;
    }
    struct egm_live *entry = egm_live_at(core, live);
    core->first_free = entry->next_free;
    *entry = (struct egm_live){.generation = generation,
                               .segment = segment,
                               .state = EGM_LIVE_GRANTED,
                               .extent_count = extent_count,
                               .one = extents[0],
                               .many = many};
    core->live_count++;
    return live;
}

void egm_live_remove(struct egm_pcore *core, uint32_t live)
{
    struct egm_live *entry = egm_live_at(core, live);

    EGM_ASSERT(entry->state != EGM_LIVE_UNUSED && entry->readers == 0 && entry->writers == 0);
    bool was_there = egm_index_remove(&core->index, hash_of(entry->generation), live);
    EGM_ASSERT(was_there);
    egm_free(entry->many);
    *entry = (struct egm_live){.next_free = core->first_free};
    core->first_free = live;
    core->live_count--;
}

void egm_live_kill_all(struct egm_pcore *core)
{
    for (uint32_t i = 0; i < core->chunk_count << EGM_LIVE_CHUNK_BITS; i++) {
        struct egm_live *entry = egm_live_at(core, i);
        if (entry->state == EGM_LIVE_UNUSED) {
            continue;
        }
        if (entry->readers == 0 && entry->writers == 0) {
            egm_live_remove(core, i);
            continue;
        }
        entry->state = EGM_LIVE_DYING;
        if (!entry->is_lease_bound) {
            entry->is_lease_bound = true;
            core->lease_blockers++;
        }
    }
}

void egm_live_release(struct egm_pcore *core)
{
    for (uint32_t i = 0; i < core->chunk_count << EGM_LIVE_CHUNK_BITS; i++) {
        egm_free(egm_live_at(core, i)->many);
    }
    for (uint32_t i = 0; i < core->chunk_count; i++) {
        egm_free(core->chunks[i]);
    }
    egm_free(core->chunks);
    egm_index_release(&core->index);
}

uint32_t egm_pcore_segment_index(const struct egm_pcore *core, uint32_t segment)
{
    uint32_t i = 0;

    while (i < core->segment_count && core->segments[i].segment != segment) {
        i++;
    }
    return i;
}

bool egm_pcore_extents_valid(const struct egm_pcore *core, uint32_t segment_index,
                             const struct egm_extent *extents, uint8_t extent_count,
                             uint64_t *ret_bytes)
{
    uint64_t bytes = 0;

    if (segment_index >= core->segment_count || extent_count == 0 ||
        extent_count > EGM_MAX_EXTENTS) {
        return false;
    }
    uint64_t size = core->segments[segment_index].size;
    for (uint8_t i = 0; i < extent_count; i++) {
        uint64_t offset = extents[i].offset;
        uint64_t length = extents[i].length;
        /* Compared, never added: neither sum can wrap once these hold. */
        if (length == 0 || length > size || offset > size - length || offset < EGM_GRANULE ||
            length % EGM_SLOT != 0) {
            return false;
        }
        bool is_small = length < EGM_GRANULE;
        if (offset % (is_small ? EGM_SLOT : EGM_GRANULE) != 0 ||
            (is_small && offset / EGM_GRANULE != (offset + length - 1) / EGM_GRANULE)) {
            return false;
        }
        bytes += length;
    }
    *ret_bytes = bytes;
    return true;
}

static _Atomic uint64_t *fence_of(const struct egm_pcore_segment *segment,
                                  const struct egm_extent *extent)
{
    return extent->length < EGM_GRANULE ? &segment->slot_fence[extent->offset / EGM_SLOT]
                                        : &segment->granule_fence[extent->offset / EGM_GRANULE];
}

bool egm_pcore_is_dead(const struct egm_pcore *core, uint32_t segment_index, uint64_t generation,
                       const struct egm_extent *extents, uint8_t extent_count)
{
    const struct egm_pcore_segment *segment = &core->segments[segment_index];

    /* relaxed: only this core writes these words */
    if (atomic_load_explicit(segment->floor, memory_order_relaxed) >= generation) {
        return true;
    }
    for (uint8_t i = 0; i < extent_count; i++) {
        if (atomic_load_explicit(fence_of(segment, &extents[i]), memory_order_relaxed) >=
            generation) {
            return true;
        }
    }
    return false;
}

/* Keeps P1. */
static void raise_word(_Atomic uint64_t *word, uint64_t generation)
{
    /* relaxed: only this core writes these words */
    if (atomic_load_explicit(word, memory_order_relaxed) < generation) {
        /* release: pairs with the acquire fence of a map reader before it loads this word; bytes
         * that are written to the place later are seen only by who also sees the fence */
        atomic_store_explicit(word, generation, memory_order_release);
    }
}

void egm_pcore_fence(struct egm_pcore *core, uint32_t segment_index, uint64_t generation,
                     const struct egm_extent *extents, uint8_t extent_count)
{
    const struct egm_pcore_segment *segment = &core->segments[segment_index];

    for (uint8_t i = 0; i < extent_count && !EGM_MUTANT(5); i++) {
        raise_word(fence_of(segment, &extents[i]), generation);
    }
}

void egm_pcore_floor(struct egm_pcore *core, uint64_t floor)
{
    for (uint32_t i = 0; i < core->segment_count; i++) {
        raise_word(core->segments[i].floor, floor);
    }
}
