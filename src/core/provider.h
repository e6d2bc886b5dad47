/* SPDX-License-Identifier: Apache-2.0 */
/* A provider's decisions: whom its memory belongs to at the moment, who can reach it, and what may
 * be copied. Pure.
 *
 * Model. The shell (src/provider, or the simulator) owns memory, sockets and time. It tells the
 * core what happened and sends what the core leaves in `out` to the master. Nothing here waits:
 * what must wait is remembered and answered from the event that ends the wait.
 *
 *   term and lease   One master instance at a time may grant (I13). A LEASE of another instance is
 *                    refused while the old lease runs; an older term, or the same term from another
 *                    instance, is refused always. A newer term first kills everything of the terms
 *                    before (floor of all fences), then waits until no transfer of it runs, then is
 *                    answered. Only a holder that raises its own term on the connection on which it
 *                    holds the lease kills nothing: its directory goes on.
 *   fences           One number per place, only ever raised, with release stores: "generations up
 *                    to this are dead here". Raised before a DROP is acknowledged (I3b); a map
 *                    reader's proof rests on that.
 *   live table       What may be copied over the data port: generation -> extents, granted (one may
 *                    write) or sealed (all may read). An entry that is dropped while a transfer
 *                    runs becomes dying: nobody may start on it, and the acknowledgement of the
 *                    drop waits for the last transfer. A write that still runs when its entry is
 *                    sealed is revoked, and keeps readers waiting until it has ended.
 *   slots            Importer numbers. FREE -> ASSIGNING (the master is being told) -> HELD ->
 *                    FREEING (told that it is provably gone) -> FREE; or ASSIGNING -> REFUSED. Only
 *                    a HELD slot's importer is given anything. Slots outlive connections: MOUNT
 *                    lists those that are taken.
 *
 * Invariants: P1 a fence never falls. P2 RECORDS are answered in order, and only when no transfer
 * runs on what they dropped. P3 a slot number is given again only after the master acknowledged
 * that it is free. P4 a transfer begins only on an entry that is alive, with exactly its extents.
 * P5 whatever the peer sends is checked whole before any of it is applied; a negative result of
 * egm_pcore_receive means: close this connection.
 *
 * Not threadsafe: one mutex of the shell's covers the core. Fence words alone are read by others
 * without it. */
#ifndef EGM_CORE_PROVIDER_H
#define EGM_CORE_PROVIDER_H

#include "base/buf.h"
#include "base/limits.h"

#include "wire/messages.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct egm_pcore;

/* Segments of one provider: one per NUMA node and GPU. */
#define EGM_PCORE_MAX_SEGMENTS 64

struct egm_pcore_segment {
    uint32_t segment; /* its number on the wire */
    uint32_t numa_node;
    uint64_t size; /* bytes, a multiple of EGM_GRANULE */
    /* Words of the fence file, zero at the start; borrowed until destroy. Only the core writes
     * them. */
    _Atomic uint64_t *floor;
    _Atomic uint64_t *granule_fence; /* size / EGM_GRANULE words */
    _Atomic uint64_t *slot_fence;    /* size / EGM_SLOT words */
};

/* Strings are copied. */
struct egm_pcore_options {
    uint64_t provider, epoch, host;
    const char *name, *unix_path, *data_address;
    const struct egm_pcore_segment *segments;
    uint32_t segment_count;
};

/* 0, EGM_E_INVALID, EGM_E_LIMIT or -ENOMEM. */
EGM_MUST_CHECK int egm_pcore_create(const struct egm_pcore_options *options,
                                    struct egm_pcore **ret_core);
void egm_pcore_destroy(struct egm_pcore *core);

/* ---- the connection to the master ---- */

/* HELLO was exchanged with this master instance: MOUNT goes out. */
void egm_pcore_connected(struct egm_pcore *core, uint64_t instance);
void egm_pcore_disconnected(struct egm_pcore *core);

/* A VERIFY to be computed by the shell; no drop of the generation is acknowledged before
 * egm_pcore_verified. */
struct egm_pcore_verify {
    uint64_t request, generation, size, checksum;
    uint64_t connection_; /* answered only on the connection that asked */
    uint32_t segment;
    uint32_t live_; /* entry held, or none */
    uint8_t extent_count;
    struct egm_extent extents[EGM_MAX_EXTENTS];
};

enum egm_pcore_event {
    EGM_PCORE_DONE = 0,
    EGM_PCORE_VERIFY = 1
};

/* One frame of the master's. Returns enum egm_pcore_event (VERIFY: *ret_verify is filled), or a
 * negative code: close the connection. payload is borrowed. */
EGM_MUST_CHECK int egm_pcore_receive(struct egm_pcore *core, uint64_t now_ns,
                                     const struct egm_frame *frame, const uint8_t *payload,
                                     struct egm_pcore_verify *ret_verify);
void egm_pcore_verified(struct egm_pcore *core, const struct egm_pcore_verify *verify,
                        bool matches);

/* Frames for the master. The shell sends and clears; `failed` in it means: close the connection. */
struct egm_buf *egm_pcore_out(struct egm_pcore *core);

/* No more placement; enum egm_unmount_mode. Attaching is refused from now on. */
void egm_pcore_unmount(struct egm_pcore *core, uint8_t mode);

/* Everything is dead from now on: called before the memory goes. */
void egm_pcore_retire(struct egm_pcore *core);

struct egm_pcore_status {
    bool is_mounted;   /* MOUNT was accepted on this connection */
    bool is_leased;    /* and a lease was, in this life */
    bool is_unmounted; /* the master acknowledged UNMOUNT */
    int mount_status;  /* 0, or why the last MOUNT was refused */
    char mount_reason[160];
    uint32_t term;
    uint32_t slot_count; /* taken, whatever their state */
    uint32_t live_count;
    uint64_t lost_record_count; /* grants and seals that did not fit in memory */
};
struct egm_pcore_status egm_pcore_status(const struct egm_pcore *core);

/* ---- importers ---- */

enum egm_slot_state {
    EGM_SLOT_FREE = 0,
    EGM_SLOT_ASSIGNING = 1,
    EGM_SLOT_HELD = 2,
    EGM_SLOT_FREEING = 3,
    EGM_SLOT_REFUSED = 4,
};

/* Takes a slot for the session and tells the master. A tcp session has one, counted by
 * connections. The answer is there when egm_pcore_slot_state leaves ASSIGNING. EGM_E_NOT_READY: no
 * master, try again; EGM_E_CLOSED: draining; EGM_E_LIMIT. */
EGM_MUST_CHECK int egm_pcore_slot_take(struct egm_pcore *core, uint64_t session, uint8_t kind,
                                       uint32_t *ret_slot);
/* ret_status (may be NULL): the master's refusal when REFUSED. */
enum egm_slot_state egm_pcore_slot_state(const struct egm_pcore *core, uint32_t slot,
                                         int *ret_status);
/* map: its lock is provably free. tcp: one connection ended and none of its transfers runs. */
void egm_pcore_slot_free(struct egm_pcore *core, uint32_t slot);

/* ---- the data port ---- */

struct egm_pcore_access {
    bool is_write;
    uint8_t extent_count;
    uint32_t segment;
    uint64_t generation, skip, length;
    const struct egm_extent *extents; /* borrowed until return */
};

/* May this transfer start? 0: it runs until egm_pcore_access_end(*ret_live). EGM_E_NOT_READY: the
 * master has not said yet, ask again after the next RECORDS, for up to a second. EGM_E_STALE:
 * never again. EGM_E_PROTO: ranges that no honest peer sends, close. */
EGM_MUST_CHECK int egm_pcore_access_begin(struct egm_pcore *core,
                                          const struct egm_pcore_access *access,
                                          uint32_t *ret_live);
/* True when the running transfer should stop, and its connection be closed: it works on something
 * dead, or writes what has been sealed meanwhile. */
bool egm_pcore_access_is_revoked(const struct egm_pcore *core, uint32_t live, bool is_write);
void egm_pcore_access_end(struct egm_pcore *core, uint32_t live, bool was_write);

/* The highest floor heard for a tenant's hash; 0: none. */
uint64_t egm_pcore_floor_of(const struct egm_pcore *core, uint64_t tenant);

#endif
