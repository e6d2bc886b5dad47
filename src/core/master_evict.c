/* SPDX-License-Identifier: Apache-2.0 */
/* Making room: in the background so that a mount stays below its watermark, and inline when a put
 * finds none (I11).
 *
 * Whom it takes, in rounds: first objects nobody asked for lately; then held ones, since a hold is
 * a hint and never starves a put; then soft-pinned ones where that is allowed. Never: hard-pinned,
 * or read right now. A group goes whole or not at all. Each round passes over at most LOOKS objects
 * that it may not take, so that a turn stays short; a put is refused only when turn after turn all
 * of a mount's objects were passed over (I11). */
#include "base/checked.h"
#include "base/mutant.h"

#include "core/master_state.h"

#define LOOKS 1024
#define ROUNDS_OF_HITS \
    4 /* after as many times round, every object's counter of hits is down to 0 */
#define BACKGROUND_OBJECTS 512 /* a tick's worth */

enum round {
    ROUND_IDLE,
    ROUND_HELD,
    ROUND_HIDDEN, /* also what main hides in small; not before, or the newest goes first */
    ROUND_SOFT_PINNED,
    ROUND_COUNT
};

static bool may_take(const struct egm_master *m, const struct egm_object *o, enum round round)
{
    if (o->state != EGM_OBJECT_SEALED || (o->flags & EGM_OBJECT_HARD_PIN) || o->readers > 0) {
        return false;
    }
    if (o->soft_pin_until_ns > m->now_ns &&
        (round < ROUND_SOFT_PINNED || !m->options.evict_soft_pinned)) {
        return false;
    }
    return (round >= ROUND_HELD && !EGM_MUTANT(38)) || !egm_object_is_held(m, o);
}

static bool may_take_group(const struct egm_master *m, const struct egm_object *o, enum round round)
{
    if (o->group == EGM_NO_OBJECT) {
        return may_take(m, o, round);
    }
    for (uint32_t id = m->directory.groups[o->group].first; id != EGM_NO_OBJECT;) {
        const struct egm_object *member = egm_object_at(&m->directory, id);
        if (member->state != EGM_OBJECT_REMOVED && !may_take(m, member, round)) {
            return false;
        }
        id = member->group_next;
    }
    return true;
}

static uint64_t take_object(struct egm_master *m, uint32_t id)
{
    uint64_t size = egm_extents_rounded(egm_object_at(&m->directory, id)->size);
    m->counters.evicted_count++;
    m->counters.evicted_bytes += size;
    egm_object_remove(m, id, true);
    return size;
}

/* Removes the object, or its whole group in one step; returns the bytes that will come back. */
static uint64_t take(struct egm_master *m, uint32_t id)
{
    uint32_t group = egm_object_at(&m->directory, id)->group;
    if (group == EGM_NO_OBJECT) {
        return take_object(m, id);
    }
    uint64_t bytes = 0;
    uint32_t next;
    for (uint32_t member = m->directory.groups[group].first; member != EGM_NO_OBJECT;
         member = next) {
        const struct egm_object *o = egm_object_at(&m->directory, member);
        next = o->group_next;
        if (o->state == EGM_OBJECT_SEALED) {
            bytes += take_object(m, member);
        }
    }
    return bytes;
}

static uint32_t queued_count(const struct egm_eviction *e)
{
    return e->counts[EGM_QUEUE_SMALL] + e->counts[EGM_QUEUE_MAIN];
}

/* Hides victims of at least `bytes` bytes if it can, at most `most` of them and none above
 * `largest` bytes; returns what will come back. */
static uint64_t evict(struct egm_master *m, uint32_t mount, uint64_t bytes, uint32_t most,
                      uint64_t largest)
{
    struct egm_mount_state *mt = &m->mounts[mount];
    struct egm_eviction *e = &mt->eviction;
    uint64_t coming = 0;
    for (enum round round = ROUND_IDLE; round < ROUND_COUNT && coming < bytes; round++) {
        uint32_t passed = 0;
        uint32_t left = queued_count(e);
        e->is_urgent = round >= ROUND_HIDDEN;
        while (coming < bytes && most > 0 && passed < LOOKS && passed < left * ROUNDS_OF_HITS) {
            uint32_t id = egm_eviction_next(e, &m->directory);
            if (id == EGM_NO_OBJECT) {
                return coming;
            }
            const struct egm_object *o = egm_object_at(&m->directory, id);
            if (o->size <= largest && may_take_group(m, o, round)) {
                coming += take(m, id);
                mt->passed_count = 0;
                most--;
            } else {
                egm_eviction_defer(e, &m->directory, id);
                mt->passed_count += round == ROUND_SOFT_PINNED && largest == UINT64_MAX;
                passed++;
            }
        }
    }
    return coming;
}

/* An object that may go and has a replica on `mount`, in the queue of another mount: it stands in
 * that of its first replica. Only the oldest LOOKS of each queue are looked at. */
static uint32_t find_elsewhere(const struct egm_master *m, uint32_t mount)
{
    for (uint32_t i = 0; i < m->mount_count; i++) {
        const struct egm_eviction *e = &m->mounts[i].eviction;
        for (int q = EGM_QUEUE_SMALL; q < EGM_QUEUE_COUNT && m->mounts[i].provider != EGM_NONE;
             q++) {
            uint32_t id = e->first[q];
            for (uint32_t n = 0; n < LOOKS && id != EGM_NO_OBJECT; n++) {
                struct egm_object *o = egm_object_at(&m->directory, id);
                for (uint32_t k = 1; k < o->replica_count; k++) {
                    if (egm_object_replicas(o)[k].mount == mount &&
                        may_take_group(m, o, ROUND_SOFT_PINNED)) {
                        return id;
                    }
                }
                id = o->next;
            }
        }
    }
    return EGM_NO_OBJECT;
}

/* Was every object of the mount's queues passed over, whatever its hits, since one could be taken?
 * If not, the next turn goes on where this one stopped. */
static bool is_exhausted(struct egm_mount_state *mt)
{
    if (mt->passed_count < (uint64_t)queued_count(&mt->eviction) * ROUNDS_OF_HITS) {
        return false;
    }
    mt->passed_count = 0;
    return true;
}

enum egm_room egm_evict_for(struct egm_master *m, uint32_t mount, uint64_t bytes)
{
    struct egm_mount_state *mt = &m->mounts[mount];
    uint64_t pending = mt->bytes[EGM_OBJECT_REMOVED];
    if (pending < bytes) {
        (void)evict(m, mount, bytes - pending, UINT32_MAX, UINT64_MAX);
    }
    /* When nothing is on its way, free places may be too scattered for sixteen of them: give up a
     * little more. */
    if ((mt->bytes[EGM_OBJECT_REMOVED] > 0 && !EGM_MUTANT(41)) ||
        evict(m, mount, bytes, UINT32_MAX, UINT64_MAX) > 0) {
        return EGM_ROOM_COMES;
    }
    if (!is_exhausted(mt)) {
        return EGM_ROOM_SOUGHT;
    }
    uint32_t id = find_elsewhere(m, mount);
    if (id == EGM_NO_OBJECT || EGM_MUTANT(40)) {
        /* What a gone mount shares with this one is in no queue until the sweep has found it. */
        return m->sweep_is_on && !EGM_MUTANT(40) ? EGM_ROOM_COMES : EGM_ROOM_NONE;
    }
    (void)take(m, id);
    return EGM_ROOM_COMES;
}

void egm_evict_tick(struct egm_master *m)
{
    for (uint32_t i = 0; i < m->mount_count; i++) {
        struct egm_mount_state *mt = &m->mounts[i];
        if (!egm_mount_is_placeable(m, i)) {
            continue;
        }
        egm_eviction_forget_deferred(&mt->eviction);
        uint64_t keep = (uint64_t)((double)mt->size * (1.0 - m->options.high_watermark));
        uint64_t have = mt->extents.free_bytes + mt->bytes[EGM_OBJECT_REMOVED];
        if (have < keep) {
            /* An object above the whole reserve goes only when a put needs its place. */
            (void)evict(m, i, keep - have, BACKGROUND_OBJECTS, keep);
        }
    }
}
