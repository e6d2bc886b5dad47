/* SPDX-License-Identifier: Apache-2.0 */
/* What the provider's core knows; shared by core/provider*.c only. */
#ifndef EGM_CORE_PROVIDER_STATE_H
#define EGM_CORE_PROVIDER_STATE_H

#include "base/index.h"

#include "core/provider.h"

#define EGM_NO_LIVE UINT32_MAX
#define EGM_GENERATION_TERM_SHIFT 44
#define EGM_TERM_MAX ((UINT32_C(1) << 20) - 1)

/* Unanswered RECORDS. The master sends one batch each 10 ms or so; this many unanswered means that
 * it does not wait. */
#define EGM_PCORE_MAX_DEFERRED 256

/* Tenants with a floor. Each comes from a remove_all of that tenant. */
#define EGM_PCORE_MAX_FLOORS 16384

/* VERIFYs being computed; each may read gigabytes. */
#define EGM_PCORE_MAX_VERIFIES 16

/* Bytes waiting for the master: replies of 36 bytes and a MOUNT with all slots (4,096 x 64
 * segments x 18 bytes). */
#define EGM_PCORE_OUT_MAX (UINT64_C(8) << 20)

#define EGM_LIVE_CHUNK_BITS 10
#define EGM_LIVE_CHUNK (1u << EGM_LIVE_CHUNK_BITS)

enum egm_live_state {
    EGM_LIVE_UNUSED = 0,
    EGM_LIVE_GRANTED = 1,
    EGM_LIVE_SEALED = 2,
    EGM_LIVE_DYING = 3
};

struct egm_live {
    uint64_t generation;
    uint64_t size, checksum; /* sealed */
    uint64_t reply;          /* dying: the deferred RECORDS that waits for it; 0: none */
    uint32_t segment;        /* index into segments */
    uint32_t readers, writers;
    uint32_t next_free;
    uint8_t state;       /* enum egm_live_state */
    bool is_lease_bound; /* dying: the LEASE reply waits for it */
    uint8_t extent_count;
    struct egm_extent one;   /* extent_count 1 */
    struct egm_extent *many; /* else; owned */
};

struct egm_deferred {
    uint64_t request, sequence;
    int status;
    uint32_t waiting; /* dying entries */
};

struct egm_slot_entry {
    uint8_t state, kind;
    uint32_t refs; /* tcp connections; 1 for map */
    uint64_t session;
    uint64_t request; /* of the first SLOT_CHANGE under way, one id per segment; 0: none */
    uint64_t left;    /* bit per segment: its reply is missing */
    int status;       /* REFUSED: why */
};

struct egm_tenant_floor {
    uint64_t tenant, floor;
};

struct egm_pcore {
    uint64_t provider, epoch, host;
    char *name, *unix_path, *data_address;
    struct egm_pcore_segment segments[EGM_PCORE_MAX_SEGMENTS];
    uint32_t segment_count;

    /* connection */
    bool is_connected;
    uint64_t connection; /* counts connections */
    uint64_t instance;   /* of the master at the other end */
    uint64_t next_request;
    uint64_t mount_request, unmount_request; /* 0: none under way */
    uint64_t last_sequence;
    struct egm_buf out;
    struct egm_pcore_status status;
    bool is_draining;
    uint8_t unmount_mode;

    /* lease */
    uint32_t term;           /* accepted last; 0: none yet */
    uint64_t term_instance;  /* who brought it */
    uint64_t lease_until_ns; /* of term_instance */
    bool is_holder_here;     /* term_instance was leased to on this connection */
    bool is_lease_waiting;   /* for lease_blockers */
    uint64_t lease_request;  /* LEASE that is waiting */
    uint32_t lease_blockers; /* dying entries it waits for */

    /* live table */
    struct egm_live **chunks;
    uint32_t chunk_count, chunk_room;
    uint32_t first_free;
    uint32_t live_count; /* dying ones included */
    struct egm_index index;
    struct egm_deferred deferred[EGM_PCORE_MAX_DEFERRED]; /* ring */
    uint64_t reply_head;                                  /* id of the oldest; ids start at 1 */
    uint32_t deferred_count;
    uint32_t verify_count;

    struct egm_tenant_floor *floors;
    uint32_t floor_count, floor_room;

    struct egm_slot_entry *slots; /* EGM_MAX_SLOTS */
    uint32_t slot_top;            /* slots from here on have never been used */
};

/* provider_records.c */
int egm_pcore_records(struct egm_pcore *core, const struct egm_frame *frame,
                      struct egm_cursor cursor);
int egm_pcore_verify_message(struct egm_pcore *core, const struct egm_frame *frame,
                             struct egm_cursor cursor, struct egm_pcore_verify *ret_verify);
/* provider_live.c */
uint32_t egm_live_find(const struct egm_pcore *core, uint64_t generation);
struct egm_live *egm_live_at(const struct egm_pcore *core, uint32_t live);
const struct egm_extent *egm_live_extents(const struct egm_live *live);
/* EGM_NO_LIVE when memory is out. */
uint32_t egm_live_add(struct egm_pcore *core, uint64_t generation, uint32_t segment,
                      const struct egm_extent *extents, uint8_t extent_count);
void egm_live_remove(struct egm_pcore *core, uint32_t live);
/* Takes everything out that a new term kills; what is being copied becomes dying and holds up the
 * LEASE reply. */
void egm_live_kill_all(struct egm_pcore *core);
void egm_live_release(struct egm_pcore *core);
/* Index of a segment, or segment_count. */
uint32_t egm_pcore_segment_index(const struct egm_pcore *core, uint32_t segment);
/* True if every extent lies in the segment outside its reserved granule, is aligned and nothing
 * wraps. */
bool egm_pcore_extents_valid(const struct egm_pcore *core, uint32_t segment_index,
                             const struct egm_extent *extents, uint8_t extent_count,
                             uint64_t *ret_bytes);
bool egm_pcore_is_dead(const struct egm_pcore *core, uint32_t segment_index, uint64_t generation,
                       const struct egm_extent *extents, uint8_t extent_count);
void egm_pcore_fence(struct egm_pcore *core, uint32_t segment_index, uint64_t generation,
                     const struct egm_extent *extents, uint8_t extent_count);
void egm_pcore_floor(struct egm_pcore *core, uint64_t floor);
/* provider.c */
void egm_pcore_accept_lease(struct egm_pcore *core, uint64_t request);
/* provider_records.c: answers what no longer waits. */
void egm_pcore_flush_deferred(struct egm_pcore *core);

#endif
