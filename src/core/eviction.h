/* SPDX-License-Identifier: Apache-2.0 */
/* Which object goes first when a mount is full: S3-FIFO, one instance per mount. Pure.
 *
 * Three queues of objects in order of arrival: `small` takes what is new, `main` what was read
 * while in small (or is back soon after it left), and `ghost` remembers only the hashes of what
 * left small unread. A scan of keys that nobody reads again passes through small and leaves main
 * alone. A hit costs no move, only a counter (0..3). Small aims at a tenth of the bytes.
 *
 * Victims come out of egm_eviction_next in order of policy; the caller decides whether each may go
 * (pinned, held, read) and calls egm_eviction_remove or, to pass over it, egm_eviction_defer. When
 * it is urgent and all of main was passed over, small is next, however little is in it.
 * Source: J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.
 * tests/unit/test_core_eviction.c compares its hit rates with LRU's on traces. */
#ifndef EGM_CORE_EVICTION_H
#define EGM_CORE_EVICTION_H

#include "core/directory.h"

enum egm_queue {
    EGM_QUEUE_NONE = 0,
    EGM_QUEUE_SMALL,
    EGM_QUEUE_MAIN,
    EGM_QUEUE_COUNT
};

struct egm_eviction {
    uint32_t first[EGM_QUEUE_COUNT]; /* oldest */
    uint32_t last[EGM_QUEUE_COUNT];  /* newest */
    uint64_t bytes[EGM_QUEUE_COUNT];
    uint32_t counts[EGM_QUEUE_COUNT];
    uint32_t *ghosts;     /* ring of hash tags, a power of two long */
    uint32_t *ghost_seen; /* open table of the tags in the ring */
    uint32_t ghost_room, ghost_count, ghost_next;
    uint32_t deferred; /* how often, since main gave up an object */
    bool is_urgent;    /* the caller's: nothing can go by the order of the queues alone */
};

/* `ghost_room` is rounded up to a power of two: how many departed objects are remembered. */
EGM_MUST_CHECK int egm_eviction_init(struct egm_eviction *e, uint32_t ghost_room);
void egm_eviction_release(struct egm_eviction *e);

void egm_eviction_add(struct egm_eviction *e, struct egm_directory *d, uint32_t id);
void egm_eviction_hit(struct egm_object *o);
/* Takes the object out of its queue; `evicted` remembers it as a ghost when it left small. */
void egm_eviction_remove(struct egm_eviction *e, struct egm_directory *d, uint32_t id,
                         bool evicted);
/* What was passed over may go by now: main is asked again. */
void egm_eviction_forget_deferred(struct egm_eviction *e);
/* The next victim by policy, still in its queue; EGM_NO_OBJECT when there is none. */
uint32_t egm_eviction_next(struct egm_eviction *e, struct egm_directory *d);
/* Moves it to the end of main: it cannot go now, since it is in use. In small, a few such objects
 * would be met again and again and hide main. */
void egm_eviction_defer(struct egm_eviction *e, struct egm_directory *d, uint32_t id);

#endif
