/* SPDX-License-Identifier: Apache-2.0 */
/* Making room: in the background so that a mount stays below its watermark, and inline when a put
 * finds none (I11).
 *
 * Whom it takes, in rounds: first objects nobody asked for lately; then held ones, since a hold is
 * a hint and never starves a put; then soft-pinned ones where that is allowed. Never: hard-pinned,
 * or read right now. A group goes whole or not at all. Each round looks at no more than some LOOKS
 * objects that it may not take, so that a turn stays short, and the next turn goes on where it
 * stopped: the queues are gone over in laps, which all searches share. A put is refused only when
 * each mount that it could use was gone over in vain in a lap that began after its search did
 * (I11). So a search ends, however many mounts there are. */
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

/* Adds the members of a group that it looked at to *looks. */
static bool may_take_group(const struct egm_master *m, const struct egm_object *o, enum round round,
                           uint32_t *looks)
{
    if (o->group == EGM_NO_OBJECT) {
        return may_take(m, o, round);
    }
    for (uint32_t id = m->directory.groups[o->group].first; id != EGM_NO_OBJECT;) {
        const struct egm_object *member = egm_object_at(&m->directory, id);
        ++*looks;
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

/* No put could have taken the object that was met. */
static void note_passed(const struct egm_master *m, struct egm_mount_state *mt)
{
    if (mt->passed_count++ == 0) {
        mt->lap_search = m->search;
    }
    if (mt->passed_count >= (uint64_t)queued_count(&mt->eviction) * ROUNDS_OF_HITS) {
        mt->vain_search = mt->lap_search;
        mt->passed_count = 0;
    }
}

static bool is_exhausted(const struct egm_mount_state *mt, uint64_t search)
{
    return queued_count(&mt->eviction) == 0 || mt->vain_search >= search;
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
        uint32_t looks = 0;
        uint32_t passed = 0;
        uint32_t left = queued_count(e);
        e->is_urgent = round >= ROUND_HIDDEN;
        while (coming < bytes && most > 0 && looks < LOOKS && passed < left * ROUNDS_OF_HITS) {
            uint32_t id = egm_eviction_next(e, &m->directory);
            if (id == EGM_NO_OBJECT) {
                return coming;
            }
            const struct egm_object *o = egm_object_at(&m->directory, id);
            uint32_t cost = 1;
            if (o->size <= largest && may_take_group(m, o, round, &cost)) {
                coming += take(m, id);
                mt->passed_count = 0;
                most--;
            } else {
                egm_eviction_defer(e, &m->directory, id);
                looks += cost;
                passed++;
                if (round == ROUND_SOFT_PINNED && largest == UINT64_MAX) {
                    note_passed(m, mt);
                }
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
            for (uint32_t looks = 0; looks < LOOKS && id != EGM_NO_OBJECT; looks++) {
                struct egm_object *o = egm_object_at(&m->directory, id);
                for (uint32_t k = 1; k < o->replica_count; k++) {
                    if (egm_object_replicas(o)[k].mount == mount &&
                        may_take_group(m, o, ROUND_SOFT_PINNED, &looks)) {
                        return id;
                    }
                }
                id = o->next;
            }
        }
    }
    return EGM_NO_OBJECT;
}

enum egm_room egm_evict_for(struct egm_master *m, uint32_t mount, uint64_t bytes, uint64_t search)
{
    struct egm_mount_state *mt = &m->mounts[mount];
    uint64_t pending = mt->bytes[EGM_OBJECT_REMOVED];
    uint64_t hidden = 0;
    if (pending < bytes && !is_exhausted(mt, search)) {
        hidden = evict(m, mount, bytes - pending, UINT32_MAX, UINT64_MAX);
    }
    if (mt->bytes[EGM_OBJECT_REMOVED] > 0 && !EGM_MUTANT(41)) {
        return EGM_ROOM_COMES;
    }
    if (hidden > 0 || !is_exhausted(mt, search)) {
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
