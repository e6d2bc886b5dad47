/* SPDX-License-Identifier: Apache-2.0 */
/* Mounts: whether objects may go there, who can reach them, and what must be known before.
 *
 * Importer slots are what providers report: which session has which segment mapped, or a data
 * connection to it. They decide whether a writer can still store (I3 c).
 *
 * A mount's allocator is set up only when every held map slot belongs to a session that has listed
 * its open writes since the provider's lease became ours (`is_known`), or is free: until then
 * anything there may still be written by a process that another master let in. The listed writes
 * start as QUARANTINED objects. This is I3 (c) across a master's restart. */
#include "base/alloc.h"
#include "base/log.h"
#include "base/mutant.h"

#include "core/master_state.h"

#include <errno.h>

bool egm_mount_is_mounted(const struct egm_master *m, uint32_t mount)
{
    uint32_t provider = m->mounts[mount].provider;
    return provider != EGM_NONE && m->providers[provider].phase == EGM_PHASE_READY;
}

bool egm_mount_is_leased(const struct egm_master *m, uint32_t mount)
{
    return egm_mount_is_mounted(m, mount) &&
           m->providers[m->mounts[mount].provider].lease_until_ns > m->now_ns;
}

uint64_t egm_mount_lease_left(const struct egm_master *m, uint32_t mount)
{
    uint32_t provider = m->mounts[mount].provider;
    uint64_t until_ns = provider != EGM_NONE ? m->providers[provider].lease_until_ns : 0;
    return until_ns > m->now_ns ? until_ns - m->now_ns : 0;
}

bool egm_mount_is_placeable(const struct egm_master *m, uint32_t mount)
{
    /* Not before its provider has accepted the term of what would be placed: a later master could
     * start below it (I13). */
    return m->mounts[mount].is_placeable_once && egm_mount_is_leased(m, mount) &&
           m->providers[m->mounts[mount].provider].leased_term == m->term;
}

const char *egm_mount_state_name(const struct egm_master *m, uint32_t mount)
{
    static const char *const names[] = {"joining", "ready", "draining", "disconnected", "gone"};
    const struct egm_provider_state *p = &m->providers[m->mounts[mount].provider];
    return p->phase == EGM_PHASE_READY && !m->mounts[mount].is_placeable_once ? "recovering"
                                                                              : names[p->phase];
}

/* The provider's mount of that segment, or EGM_NONE. */
static uint32_t mount_of(const struct egm_master *m, const struct egm_provider_state *p,
                         uint32_t segment)
{
    for (uint32_t i = p->first_mount; i < p->first_mount + p->mount_count; i++) {
        if (m->mounts[i].segment == segment) {
            return i;
        }
    }
    return EGM_NONE;
}

/* ---- slots ---- */
static int add_slot(struct egm_master *m, struct egm_provider_state *p, const struct egm_slot *slot)
{
    uint32_t mount = mount_of(m, p, slot->segment);
    uint32_t session = egm_session_find(m, slot->session);
    if (mount == EGM_NONE || slot->session == 0) {
        return EGM_E_INVALID;
    }
    bool is_new = session == EGM_NONE;
    int r = is_new ? egm_session_new(m, slot->session, &session) : 0;
    if (is_new && r == 0) {
        egm_session_ask(m, session);
    }
    struct egm_reach *reach = r == 0 ? egm_session_reach(m, session, mount) : NULL;
    if (reach && p->slot_count == p->slot_room) {
        uint32_t room = p->slot_room ? p->slot_room * 2 : 16;
        struct egm_held_slot *grown = egm_realloc(p->slots, room * sizeof *grown);
        if (grown) {
            p->slots = grown;
            p->slot_room = room;
        }
    }
    if (!reach || p->slot_count == p->slot_room) {
        if (is_new && r == 0) {
            egm_session_maybe_free(m, session);
        }
        return r < 0 ? r : -ENOMEM;
    }
    p->slots[p->slot_count++] = (struct egm_held_slot){
        .segment = slot->segment, .slot = slot->slot, .session = slot->session, .kind = slot->kind};
    if (slot->kind == EGM_IMPORT_MAP) {
        reach->map_slots++;
    } else {
        reach->tcp_slots++;
        p->tcp_slot_count++;
    }
    m->sessions[session].slot_count++;
    return 0;
}

/* Takes entry i out of the provider's list; what its session could reach through it is settled. */
static void remove_slot(struct egm_master *m, struct egm_provider_state *p, uint32_t i)
{
    struct egm_held_slot slot = p->slots[i];
    p->slots[i] = p->slots[--p->slot_count];
    uint32_t session = egm_session_find(m, slot.session);
    uint32_t mount = mount_of(m, p, slot.segment);
    if (slot.kind == EGM_IMPORT_TCP) {
        p->tcp_slot_count--;
    }
    if (session == EGM_NONE || mount == EGM_NONE) {
        return;
    }
    struct egm_reach *reach = egm_session_reach(m, session, mount);
    if (reach && slot.kind == EGM_IMPORT_MAP) {
        reach->map_slots--;
    } else if (reach) {
        reach->tcp_slots--;
    }
    m->sessions[session].slot_count--;
    egm_session_settle(m, session);
}

int egm_slots_set(struct egm_master *m, struct egm_provider_state *p, const struct egm_slot *slots,
                  uint32_t count)
{
    uint32_t before = p->slot_count;
    for (uint32_t i = 0; i < count; i++) {
        int r = add_slot(m, p, &slots[i]);
        if (r < 0 && r != EGM_E_INVALID) { /* that one is of no segment, and reaches nothing */
            return r;
        }
    }
    while (before > 0) { /* the new list is in place: what the old one alone reached is settled */
        remove_slot(m, p, --before);
    }
    return 0;
}

void egm_slots_drop(struct egm_master *m, struct egm_provider_state *p)
{
    while (p->slot_count > 0) {
        remove_slot(m, p, p->slot_count - 1);
    }
}

void egm_slot_change_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                             struct egm_cursor cursor)
{
    struct egm_slot_change change;
    egm_take_slot_change(&cursor, &change);
    struct egm_provider_state *p = egm_provider_of_peer(m, peer);
    if (egm_cursor_end(&cursor) < 0 || !p || p->id != change.provider || p->epoch != change.epoch ||
        (change.kind != EGM_IMPORT_MAP && change.kind != EGM_IMPORT_TCP)) {
        egm_master_violation(m, peer, "malformed SLOT_CHANGE");
        return;
    }
    int r = 0;
    if (change.state == 0) {
        for (uint32_t i = 0; i < p->slot_count; i++) {
            if (p->slots[i].segment == change.segment && p->slots[i].slot == change.slot &&
                p->slots[i].kind == change.kind) {
                remove_slot(m, p, i);
                egm_mount_resolve(m, change.session);
                break;
            }
        }
    } else if (egm_session_live(m, change.session) == EGM_NONE) {
        r = EGM_E_NOT_FOUND; /* the requester opens its session again, then attaches */
    } else {
        r = add_slot(m, p,
                     &(struct egm_slot){.segment = change.segment,
                                        .slot = change.slot,
                                        .session = change.session,
                                        .kind = change.kind,
                                        .state = 1});
        egm_master_wake(m);
    }
    egm_buf_clear(&m->scratch);
    size_t begin = egm_frame_begin(&m->scratch, EGM_MSG_SLOT_CHANGE_REPLY, frame->request);
    egm_put_result(&m->scratch, &(struct egm_result){.status = egm_status_to_wire(r)});
    egm_master_reply(m, peer, &m->scratch, begin);
}

/* ---- allocators ---- */
static void give_claimed(struct egm_master *m, uint32_t mount, const struct egm_place *places,
                         uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        egm_extents_give(&m->mounts[mount].extents, places[i]);
    }
}

/* Takes the claim's places; those that no segment has are left out, since nobody can be granted
 * them either. 0, or EGM_E_AGAIN and nothing changed: another claim has some of them. */
static int take_claimed(struct egm_master *m, uint32_t mount, const struct egm_claim *claim,
                        struct egm_place *ret_places, uint32_t *ret_count)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < claim->write.extent_count; i++) {
        const struct egm_extent *extent = &claim->extents[i];
        struct egm_place place = {.at = (uint32_t)(extent->offset / EGM_SLOT),
                                  .count = (uint32_t)(extent->length / EGM_SLOT)};
        bool is_possible =
            extent->offset / EGM_SLOT <= UINT32_MAX && extent->length / EGM_SLOT <= UINT32_MAX;
        int r = is_possible ? egm_extents_take_at(&m->mounts[mount].extents, place) : EGM_E_INVALID;
        if (r == EGM_E_NO_SPACE) {
            give_claimed(m, mount, ret_places, taken);
            return EGM_E_AGAIN;
        }
        if (r == 0) {
            ret_places[taken++] = place;
        }
    }
    *ret_count = taken;
    return 0;
}

/* A write of an earlier life: its places belong to a QUARANTINED object until its session says it
 * has stopped. Two may claim one place: the earlier of them had to be seen as stopped before the
 * other was granted, but lists what it was given to the end of its window. One object owns the
 * place (I2), so the second waits, and the mount with it, until the first is settled. */
static int quarantine_claim(struct egm_master *m, uint32_t mount, uint32_t session,
                            const struct egm_claim *claim)
{
    struct egm_directory *d = &m->directory;
    struct egm_place *places = egm_calloc(claim->write.extent_count, sizeof *places);
    uint32_t taken = 0;
    uint32_t id;
    struct egm_bytes key = egm_bytes_of("?", 1);
    uint32_t tenant = m->sessions[session].tenant;
    int r = places ? take_claimed(m, mount, claim, places, &taken) : -ENOMEM;
    if (r == 0) {
        r = taken > 0
                ? egm_directory_new(d, tenant, egm_directory_hash(d, tenant, key), key, 1, &id)
                : EGM_E_INVALID;
    }
    if (r < 0) {
        give_claimed(m, mount, places, taken);
        egm_free(places);
        return r;
    }
    struct egm_object *o = egm_object_at(d, id);
    o->replicas.one = (struct egm_object_replica){.mount = mount, .place_count = (uint8_t)taken};
    if (taken > 1) {
        o->replicas.one.many = places;
    } else {
        o->replicas.one.one = places[0];
        egm_free(places);
    }
    r = egm_directory_set_generation(d, id, claim->write.generation);
    if (r < 0) {
        give_claimed(m, mount, egm_replica_places(&o->replicas.one), taken);
        egm_directory_free(d, id);
        return r;
    }
    egm_session_link_write(m, session, id);
    egm_object_set_state(m, id, EGM_OBJECT_QUARANTINED);
    return 0;
}

/* Is the claimed write's object on this mount already there, from a try that ran out of memory? */
static bool is_quarantined(const struct egm_master *m, uint32_t mount, uint32_t session,
                           uint64_t generation)
{
    uint32_t id = m->sessions[session].first_write;
    while (id != EGM_NO_OBJECT) {
        struct egm_object *o = egm_object_at(&m->directory, id);
        if (o->generation == generation && egm_object_replicas(o)[0].mount == mount) {
            return true;
        }
        id = o->next;
    }
    return false;
}

/* 0, or EGM_E_AGAIN or -ENOMEM: some claim has no object yet, and nothing may be placed. */
static int quarantine_claims(struct egm_master *m, uint32_t mount, uint32_t session)
{
    const struct egm_mount_state *mt = &m->mounts[mount];
    const struct egm_provider_state *p = &m->providers[mt->provider];
    for (uint32_t c = 0; c < m->sessions[session].claim_count; c++) {
        const struct egm_claim *claim = &m->sessions[session].claims[c];
        if (claim->write.provider != p->id || claim->write.epoch != p->epoch ||
            claim->write.segment != mt->segment ||
            is_quarantined(m, mount, session, claim->write.generation)) {
            continue;
        }
        int r = quarantine_claim(m, mount, session, claim);
        if (r < 0 && r != EGM_E_INVALID) { /* an impossible place cannot be granted either */
            return r;
        }
    }
    return 0;
}

/* A claim that cannot be honoured yet leaves the mount as it is, recovering; the next tick tries
 * again. */
static void set_up_allocator(struct egm_master *m, uint32_t mount)
{
    struct egm_mount_state *mt = &m->mounts[mount];
    int r = mt->extents.granule_count ? 0 : egm_extents_init(&mt->extents, mt->size);
    for (uint32_t s = 0; s < m->session_room && r == 0; s++) {
        r = m->sessions[s].id ? quarantine_claims(m, mount, s) : 0;
    }
    if (r == EGM_E_AGAIN) {
        return;
    }
    if (r < 0) {
        egm_error("out of memory, a segment cannot be used yet provider=%s segment=%u",
                  m->providers[mt->provider].name, mt->segment);
        return;
    }
    mt->is_placeable_once = true;
    mt->placeable_since_ns = m->now_ns;
    egm_master_wake(m);
}

void egm_mount_resolve_one(struct egm_master *m, uint32_t mount)
{
    struct egm_mount_state *mt = &m->mounts[mount];
    const struct egm_provider_state *p = &m->providers[mt->provider];
    if (p->phase != EGM_PHASE_READY || m->now_ns < p->read_until_ns) {
        return; /* another master may still grant there; or somebody may still read */
    }
    mt->unresolved = 0;
    for (uint32_t i = 0; i < p->slot_count; i++) {
        uint32_t session = egm_session_find(m, p->slots[i].session);
        if (p->slots[i].segment == mt->segment && p->slots[i].kind == EGM_IMPORT_MAP &&
            (session == EGM_NONE || !m->sessions[session].is_known)) {
            mt->unresolved++;
        }
    }
    if (mt->unresolved == 0 || EGM_MUTANT(15)) {
        set_up_allocator(m, mount);
    }
}

void egm_mount_resolve(struct egm_master *m, uint64_t session)
{
    (void)session;
    for (uint32_t i = 0; i < m->mount_count; i++) {
        if (m->mounts[i].provider != EGM_NONE && !m->mounts[i].is_placeable_once) {
            egm_mount_resolve_one(m, i);
        }
    }
}
