/* SPDX-License-Identifier: Apache-2.0 */
#include "core/eviction.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/mutant.h"

#include <errno.h>

#define NONE EGM_NO_OBJECT
#define MOST_HITS 3
#define MOST_PASSES \
    512                /* bounds one turn of the master's loop; then the oldest goes, read or not */
#define SMALL_SHARE 10 /* small aims at a tenth of the bytes */

int egm_eviction_init(struct egm_eviction *e, uint32_t ghost_room)
{
    uint32_t room = 64;
    while (room < ghost_room && room < (1u << 24)) {
        room *= 2;
    }
    *e = (struct egm_eviction){.ghost_room = room};
    for (int q = 0; q < EGM_QUEUE_COUNT; q++) {
        e->first[q] = NONE;
        e->last[q] = NONE;
    }
    e->ghosts = egm_calloc(room, sizeof *e->ghosts);
    e->ghost_seen = egm_calloc((size_t)room * 2, sizeof *e->ghost_seen);
    if (!e->ghosts || !e->ghost_seen) {
        egm_eviction_release(e);
        return -ENOMEM;
    }
    return 0;
}

void egm_eviction_release(struct egm_eviction *e)
{
    egm_free(e->ghosts);
    egm_free(e->ghost_seen);
    *e = (struct egm_eviction){0};
}

/* ---- ghosts: a ring of tags and, to ask for membership, an open table with backward-shift
 * deletion ---- */
static uint32_t tag_of(const struct egm_object *o)
{
    uint32_t tag = (uint32_t)(o->hash >> 32);
    return tag ? tag : 1;
}

static uint32_t seen_at(const struct egm_eviction *e, uint32_t tag)
{
    uint32_t mask = e->ghost_room * 2 - 1;
    uint32_t at = tag & mask;
    while (e->ghost_seen[at] && e->ghost_seen[at] != tag) {
        at = (at + 1) & mask;
    }
    return at;
}

static void forget(struct egm_eviction *e, uint32_t tag)
{
    uint32_t mask = e->ghost_room * 2 - 1;
    uint32_t hole = seen_at(e, tag);
    if (!e->ghost_seen[hole]) {
        return; /* its twin of the same tag was forgotten already */
    }
    for (uint32_t at = (hole + 1) & mask; e->ghost_seen[at]; at = (at + 1) & mask) {
        uint32_t home = e->ghost_seen[at] & mask;
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            e->ghost_seen[hole] = e->ghost_seen[at];
            hole = at;
        }
    }
    e->ghost_seen[hole] = 0;
}

static void remember(struct egm_eviction *e, uint32_t tag)
{
    if (e->ghost_count == e->ghost_room) {
        forget(e, e->ghosts[e->ghost_next]);
    } else {
        e->ghost_count++;
    }
    e->ghosts[e->ghost_next] = tag;
    e->ghost_next = (e->ghost_next + 1) & (e->ghost_room - 1);
    e->ghost_seen[seen_at(e, tag)] = tag;
}

/* ---- queues ---- */
static void push(struct egm_eviction *e, struct egm_directory *d, uint32_t id, enum egm_queue queue)
{
    struct egm_object *o = egm_object_at(d, id);
    o->queue = (uint8_t)queue;
    o->prev = e->last[queue];
    o->next = NONE;
    if (o->prev == NONE) {
        e->first[queue] = id;
    } else {
        egm_object_at(d, o->prev)->next = id;
    }
    e->last[queue] = id;
    e->bytes[queue] += o->size;
    e->counts[queue]++;
}

static void unlink_object(struct egm_eviction *e, struct egm_directory *d, uint32_t id)
{
    struct egm_object *o = egm_object_at(d, id);
    EGM_ASSERT(o->queue != EGM_QUEUE_NONE);
    if (o->prev == NONE) {
        e->first[o->queue] = o->next;
    } else {
        egm_object_at(d, o->prev)->next = o->next;
    }
    if (o->next == NONE) {
        e->last[o->queue] = o->prev;
    } else {
        egm_object_at(d, o->next)->prev = o->prev;
    }
    e->bytes[o->queue] -= o->size;
    e->counts[o->queue]--;
    o->queue = EGM_QUEUE_NONE;
    o->prev = NONE;
    o->next = NONE;
}

void egm_eviction_add(struct egm_eviction *e, struct egm_directory *d, uint32_t id)
{
    struct egm_object *o = egm_object_at(d, id);
    bool was_here = e->ghost_seen[seen_at(e, tag_of(o))] != 0;
    o->frequency = 0;
    push(e, d, id, was_here ? EGM_QUEUE_MAIN : EGM_QUEUE_SMALL);
}

void egm_eviction_hit(struct egm_object *o)
{
    if (o->frequency < MOST_HITS) {
        o->frequency++;
    }
}

void egm_eviction_remove(struct egm_eviction *e, struct egm_directory *d, uint32_t id, bool evicted)
{
    struct egm_object *o = egm_object_at(d, id);
    if (evicted && o->queue == EGM_QUEUE_SMALL) {
        remember(e, tag_of(o));
    }
    if (o->queue == EGM_QUEUE_MAIN) {
        e->deferred = 0;
    }
    unlink_object(e, d, id);
}

void egm_eviction_forget_deferred(struct egm_eviction *e)
{
    e->deferred = 0;
}

uint32_t egm_eviction_next(struct egm_eviction *e, struct egm_directory *d)
{
    for (uint32_t passes = 0;; passes++) {
        bool from_small =
            e->first[EGM_QUEUE_SMALL] != NONE &&
            (e->first[EGM_QUEUE_MAIN] == NONE ||
             (e->is_urgent && e->deferred >= e->counts[EGM_QUEUE_MAIN] && !EGM_MUTANT(39)) ||
             e->bytes[EGM_QUEUE_SMALL] * SMALL_SHARE >=
                 e->bytes[EGM_QUEUE_SMALL] + e->bytes[EGM_QUEUE_MAIN]);
        uint32_t id = e->first[from_small ? EGM_QUEUE_SMALL : EGM_QUEUE_MAIN];
        if (id == NONE) {
            return NONE;
        }
        struct egm_object *o = egm_object_at(d, id);
        if (o->frequency == 0 || passes == MOST_PASSES) {
            return id;
        }
        /* Read since the last look: small's move on to main, main's get another turn. Each pass
         * lowers a counter. */
        o->frequency = from_small ? 0 : (uint8_t)(o->frequency - 1);
        unlink_object(e, d, id);
        push(e, d, id, EGM_QUEUE_MAIN);
    }
}

void egm_eviction_defer(struct egm_eviction *e, struct egm_directory *d, uint32_t id)
{
    unlink_object(e, d, id);
    push(e, d, id, EGM_QUEUE_MAIN);
    e->deferred++;
}
