/* SPDX-License-Identifier: Apache-2.0 */
/* The life of objects: the one function that changes their state, the one that gives their places
 * back, who may see them, and the sweep that takes away what went with its mount or lies below a
 * floor. States and rules D1-D5: directory.h. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/mutant.h"

#include "core/master_state.h"

#define SWEEP_SLOTS 2048 /* slab slots that one egm_master_run sweeps */

/* ---- the life of objects ---- */
static uint64_t replica_bytes(struct egm_object_replica *r)
{
    uint64_t slots = 0;
    for (uint32_t i = 0; i < r->place_count; i++) {
        slots += egm_replica_places(r)[i].count;
    }
    return slots * EGM_SLOT;
}

static bool is_legal(enum egm_object_state from, enum egm_object_state to)
{
    static const uint8_t next[EGM_OBJECT_STATE_COUNT] = {
        [EGM_OBJECT_FREE] = 1u << EGM_OBJECT_WRITING | 1u << EGM_OBJECT_QUARANTINED,
        [EGM_OBJECT_WRITING] =
            1u << EGM_OBJECT_SEALED | 1u << EGM_OBJECT_REMOVED | 1u << EGM_OBJECT_QUARANTINED,
        [EGM_OBJECT_SEALED] = 1u << EGM_OBJECT_REMOVED,
        [EGM_OBJECT_REMOVED] = 1u << EGM_OBJECT_FREE,
        [EGM_OBJECT_QUARANTINED] = 1u << EGM_OBJECT_REMOVED,
    };
    return next[from] >> to & 1u;
}

void egm_object_set_state(struct egm_master *m, uint32_t id, enum egm_object_state state)
{
    struct egm_object *o = egm_object_at(&m->directory, id);
    EGM_ASSERT(is_legal((enum egm_object_state)o->state, state));
    for (uint32_t i = 0; i < o->replica_count; i++) {
        struct egm_object_replica *r = &egm_object_replicas(o)[i];
        struct egm_mount_state *mount = &m->mounts[r->mount];
        uint64_t bytes = replica_bytes(r);
        if (o->state != EGM_OBJECT_FREE) {
            mount->bytes[o->state] -= bytes;
        }
        if (state != EGM_OBJECT_FREE) {
            mount->bytes[state] += bytes;
        }
    }
    struct egm_tenant *tenant = &m->directory.tenants[o->tenant];
    if (o->state == EGM_OBJECT_SEALED && o->generation >= tenant->floor) {
        tenant->sealed_count--;
    }
    if (state == EGM_OBJECT_SEALED) {
        tenant->sealed_count++;
    }
    o->state = (uint8_t)state;
}

/* Sealed objects may be evicted, hard-pinned ones never: those are in no queue. */
void egm_object_enqueue(struct egm_master *m, uint32_t id)
{
    struct egm_object *o = egm_object_at(&m->directory, id);
    if (o->state == EGM_OBJECT_SEALED && !(o->flags & EGM_OBJECT_HARD_PIN)) {
        egm_eviction_add(&m->mounts[egm_object_replicas(o)[0].mount].eviction, &m->directory, id);
    }
}

static void unqueue(struct egm_master *m, uint32_t id, bool evicted)
{
    struct egm_object *o = egm_object_at(&m->directory, id);
    if (o->queue != EGM_QUEUE_NONE) {
        egm_eviction_remove(&m->mounts[egm_object_replicas(o)[0].mount].eviction, &m->directory, id,
                            evicted);
    }
}

void egm_object_remove(struct egm_master *m, uint32_t id, bool evicted)
{
    struct egm_object *o = egm_object_at(&m->directory, id);
    if (o->state == EGM_OBJECT_SEALED) {
        egm_directory_remove_key(&m->directory, id);
        unqueue(m, id, evicted);
    } else {
        egm_session_unlink_write(m, id);
    }
    egm_object_set_state(m, id, EGM_OBJECT_REMOVED);
    egm_record_object(m, id, EGM_RECORD_DROP);
    egm_object_release(m, id);
}

void egm_object_release(struct egm_master *m, uint32_t id)
{
    struct egm_object *o = egm_object_at(&m->directory, id);
    bool is_acked = true;
    for (uint32_t i = 0; i < o->replica_count; i++) {
        is_acked = is_acked && egm_object_replicas(o)[i].is_acked;
    }
    egm_request_settle(m, id);
    if (!is_acked) {
        return;
    }
    if (o->readers > 0 && !EGM_MUTANT(12)) {
        return; /* keeps I3 (a) */
    }
    egm_object_set_state(m, id, EGM_OBJECT_FREE);
    for (uint32_t i = 0; i < o->replica_count; i++) {
        struct egm_object_replica *r = &egm_object_replicas(o)[i];
        struct egm_mount_state *mount = &m->mounts[r->mount];
        for (uint32_t p = 0; p < r->place_count && mount->provider != EGM_NONE; p++) {
            egm_extents_give(&mount->extents, egm_replica_places(r)[p]);
        }
    }
    egm_directory_free(&m->directory, id);
    egm_master_wake(m);
}

bool egm_object_is_visible(const struct egm_master *m, struct egm_object *o, uint32_t session)
{
    if (o->state != EGM_OBJECT_SEALED ||
        (o->generation < m->directory.tenants[o->tenant].floor && !EGM_MUTANT(7))) {
        return false;
    }
    for (uint32_t i = 0; i < o->replica_count; i++) {
        uint32_t mount = egm_object_replicas(o)[i].mount;
        bool is_in_reach =
            EGM_MUTANT(42) ? egm_mount_is_mounted(m, mount) : egm_mount_is_leased(m, mount);
        if (is_in_reach && !egm_session_suspects(m, session, mount)) {
            return true;
        }
    }
    return false;
}

bool egm_object_is_held(const struct egm_master *m, const struct egm_object *o)
{
    return o->hold_until_ns > m->now_ns;
}

/* ---- sweeps ---- */
/* An object lost some of its replicas with their mounts: goes on with the others. */
static void strip_replicas(struct egm_master *m, uint32_t id)
{
    struct egm_object *o = egm_object_at(&m->directory, id);
    struct egm_object_replica *replicas = egm_object_replicas(o);
    unqueue(m, id, false);
    uint8_t kept = 0;
    for (uint32_t i = 0; i < o->replica_count; i++) {
        if (m->mounts[replicas[i].mount].provider != EGM_NONE) {
            replicas[kept++] = replicas[i];
        } else if (replicas[i].place_count > 1) {
            egm_free(replicas[i].many);
        }
    }
    if (kept == 1) {
        struct egm_object_replica last = replicas[0];
        egm_free(replicas);
        o->replicas.one = last;
    }
    o->replica_count = kept;
    egm_object_enqueue(m, id);
}

static void sweep_object(struct egm_master *m, uint32_t id)
{
    struct egm_object *o = egm_object_at(&m->directory, id);
    if (o->state == EGM_OBJECT_FREE) {
        return;
    }
    uint32_t gone = 0;
    for (uint32_t i = 0; i < o->replica_count; i++) {
        struct egm_object_replica *r = &egm_object_replicas(o)[i];
        if (m->mounts[r->mount].provider == EGM_NONE) {
            r->is_acked = true;
            gone++;
        }
    }
    bool is_below = !EGM_MUTANT(7) && o->state == EGM_OBJECT_SEALED &&
                    o->generation < m->directory.tenants[o->tenant].floor;
    if (o->state == EGM_OBJECT_REMOVED) {
        egm_object_release(m, id);
    } else if (is_below || gone == o->replica_count) {
        egm_object_remove(m, id, false);
    } else if (gone > 0) {
        strip_replicas(m, id);
    }
}

static void release_retired_mounts(struct egm_master *m)
{
    for (uint32_t i = 0; i < m->mount_count; i++) {
        if (m->mounts[i].provider == EGM_NONE) {
            egm_extents_release(&m->mounts[i].extents);
            egm_eviction_release(&m->mounts[i].eviction);
        }
    }
}

/* Objects of gone mounts and below floors go a slab's piece at a time, so that nobody waits for a
 * sweep (B48). */
void egm_object_sweep(struct egm_master *m)
{
    uint32_t end = m->sweep_at + SWEEP_SLOTS < m->directory.slot_count ? m->sweep_at + SWEEP_SLOTS
                                                                       : m->directory.slot_count;
    for (; m->sweep_at < end; m->sweep_at++) {
        sweep_object(m, m->sweep_at);
    }
    if (m->sweep_at >= m->directory.slot_count) {
        m->sweep_is_on = m->sweep_again;
        m->sweep_again = false;
        m->sweep_at = 0;
        if (!m->sweep_is_on) {
            release_retired_mounts(m);
        }
    }
}

void egm_master_sweep(struct egm_master *m)
{
    m->sweep_again = m->sweep_is_on;
    m->sweep_is_on = true;
}
