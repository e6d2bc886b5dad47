/* SPDX-License-Identifier: Apache-2.0 */
/* What a master decides, judged at that instant by its own state: a walk over the slab and the
 * tables that shares no code with the decision. sim_oracle.c judges by what everybody was told.
 *
 *   I11  a put that is refused for lack of space, of a segment, or as too large
 *   I6   exist and get: present if and only if a sealed, visible replica is in reach
 *   I4   places are granted, or a lease is taken up, while nobody else's count of them runs
 *   I3 c, I5, I13  on each grant, also on those of puts that were parked
 *
 * The walks allocate nothing: the core may be running out of memory on purpose. */
#include "base/checked.h"

#include "core/master_state.h" /* white box */
#include "sim.h"

#include <string.h>

/* ---- the state, looked at afresh ---- */
static const struct egm_provider_state *provider_of(const struct egm_master *m, uint32_t mount)
{
    uint32_t provider = m->mounts[mount].provider;
    return provider == EGM_NONE ? NULL : &m->providers[provider];
}

/* Mounted, and leased to this master. */
static bool is_served(const struct egm_master *m, uint32_t mount)
{
    const struct egm_provider_state *p = provider_of(m, mount);
    return p && p->phase == EGM_PHASE_READY && m->now_ns < p->lease_until_ns;
}

static bool is_suspect(const struct egm_master *m, uint32_t session, uint32_t mount)
{
    const struct egm_session_state *s = &m->sessions[session];

    return mount < s->reach_count && m->now_ns < s->reach[mount].suspect_until_ns;
}

static bool is_read(const struct egm_master *m, uint32_t id)
{
    for (const struct egm_link *link = m->ops.next; link != &m->ops; link = link->next) {
        const struct egm_op *op = egm_container_of(link, struct egm_op, link);
        for (uint32_t i = 0; i < op->count; i++) {
            if (op->objects[i] == id) {
                return true;
            }
        }
    }
    return false;
}

/* ---- I11 ---- */
/* May new objects of that session and size go there? */
static bool is_open_to(const struct egm_master *m, uint32_t session, uint32_t mount, uint64_t bytes)
{
    const struct egm_session_state *s = &m->sessions[session];
    return is_served(m, mount) && m->mounts[mount].is_placeable_once &&
           provider_of(m, mount)->leased_term == m->term && mount < s->reach_count &&
           s->reach[mount].map_slots + s->reach[mount].tcp_slots > 0 &&
           !is_suspect(m, session, mount) && bytes <= m->mounts[mount].size - EGM_GRANULE;
}

static bool is_evictable_alone(const struct egm_master *m, uint32_t id)
{
    const struct egm_object *o = egm_object_at(&m->directory, id);
    bool is_pinned = o->flags & EGM_OBJECT_HARD_PIN ||
                     (o->soft_pin_until_ns > m->now_ns && !m->options.evict_soft_pinned);
    return o->state == EGM_OBJECT_SEALED && !is_pinned && !is_read(m, id);
}

static bool is_evictable(const struct egm_master *m, uint32_t id)
{
    const struct egm_object *o = egm_object_at(&m->directory, id);
    for (uint32_t i = 0; i < m->directory.slot_count && o->group != EGM_NO_OBJECT; i++) {
        const struct egm_object *member = egm_object_at(&m->directory, i);
        if (member->state != EGM_OBJECT_FREE && member->state != EGM_OBJECT_REMOVED &&
            member->group == o->group && !is_evictable_alone(m, i)) {
            return false;
        }
    }
    return is_evictable_alone(m, id);
}

struct room {
    bool is_taken[SLOTS]; /* and would stay so if all that may go went */
    bool is_awaited;      /* a removal there is not finished */
};

static void look_for_room(const struct egm_master *m, uint32_t mount, struct room *ret_room)
{
    memset(ret_room, 0, sizeof *ret_room);
    for (uint32_t id = 0; id < m->directory.slot_count; id++) {
        struct egm_object *o = egm_object_at(&m->directory, id);
        if (o->state == EGM_OBJECT_FREE) {
            continue;
        }
        bool is_going = o->state == EGM_OBJECT_REMOVED;
        bool may_go = is_going || is_evictable(m, id);
        for (uint32_t i = 0; i < o->replica_count; i++) {
            struct egm_object_replica *r = &egm_object_replicas(o)[i];
            if (r->mount != mount) {
                continue;
            }
            ret_room->is_awaited = ret_room->is_awaited || is_going;
            for (uint32_t p = 0; p < r->place_count && !may_go; p++) {
                const struct egm_place *place = &egm_replica_places(r)[p];
                memset(&ret_room->is_taken[place->at], 1, place->count);
            }
        }
    }
}

static bool fits_below_granule(const struct room *room, uint32_t slots)
{
    uint32_t row = 0;
    for (uint32_t at = EGM_SLOTS_PER_GRANULE; at < SLOTS; at++) {
        row = at % EGM_SLOTS_PER_GRANULE == 0 ? 0 : row; /* within one granule */
        row = room->is_taken[at] ? 0 : row + 1;
        if (row == slots) {
            return true;
        }
    }
    return false;
}

/* As many free granules are enough wherever they lie, since a segment is too small for more rows of
 * them than an object may have extents. */
static_assert(GRANULES / 2 <= EGM_MAX_EXTENTS, "else the longest rows have to be chosen");
static bool fits_granules(const struct room *room, uint32_t granules)
{
    uint32_t count = 0;
    for (uint32_t g = 1; g < GRANULES; g++) {
        bool is_free = true;
        for (uint32_t s = 0; s < EGM_SLOTS_PER_GRANULE; s++) {
            is_free = is_free && !room->is_taken[g * EGM_SLOTS_PER_GRANULE + s];
        }
        count += is_free;
    }
    return count >= granules;
}

static bool fits(const struct room *room, uint64_t bytes)
{
    return bytes < EGM_GRANULE ? fits_below_granule(room, (uint32_t)(bytes / EGM_SLOT))
                               : fits_granules(room, (uint32_t)(bytes / EGM_GRANULE));
}

/* Without a segment that is open to the put: why. */
static int why_closed(const struct egm_master *m, uint64_t bytes)
{
    int why = EGM_E_NO_SEGMENT;
    for (uint32_t i = 0; i < m->mount_count; i++) {
        const struct egm_provider_state *p = provider_of(m, i);
        if (p && (p->phase == EGM_PHASE_READY || p->phase == EGM_PHASE_JOINING)) {
            bool is_large = bytes > m->mounts[i].size - EGM_GRANULE;
            why = is_large && why != EGM_E_NOT_READY ? EGM_E_TOO_LARGE : EGM_E_NOT_READY;
        }
    }
    return why;
}

static void trace_objects(const struct egm_master *m, uint32_t mount)
{
    for (uint32_t id = 0; id < m->directory.slot_count; id++) {
        struct egm_object *o = egm_object_at(&m->directory, id);
        for (uint32_t i = 0; o->state != EGM_OBJECT_FREE && i < o->replica_count; i++) {
            struct egm_object_replica *r = &egm_object_replicas(o)[i];
            if (r->mount == mount) {
                trace("  object %u generation=%llx state=%u replica=%u/%u size=%llu pinned=%d "
                      "group=%d readers=%u queue=%u evictable=%d",
                      id, (unsigned long long)o->generation, o->state, i, o->replica_count,
                      (unsigned long long)o->size, o->flags & EGM_OBJECT_HARD_PIN, (int)o->group,
                      o->readers, o->queue, is_evictable(m, id));
            }
        }
    }
}

static void check_no_space(const struct egm_master *m, const struct egm_request *r, uint64_t bytes)
{
    bool is_any = false;
    bool is_awaited = false;
    uint32_t found = EGM_NONE;
    totals.no_space++;
    for (uint32_t i = 0; i < m->mount_count; i++) {
        struct room room;
        if (!is_open_to(m, r->session, i, bytes)) {
            continue;
        }
        is_any = true;
        look_for_room(m, i, &room);
        is_awaited = is_awaited || room.is_awaited;
        found = fits(&room, bytes) ? i : found;
    }
    if (!is_any) {
        fail("I11: a put of %llu bytes finds no space where no segment is open to it",
             (unsigned long long)bytes);
    } else if (found != EGM_NONE && !(is_awaited && m->now_ns >= r->deadline_ns)) {
        fail("I11: a put of %llu bytes finds no space, but mount %u has it or can make it "
             "(removals awaited: %s; deadline passed: %s)",
             (unsigned long long)bytes, found, is_awaited ? "yes" : "no",
             m->now_ns >= r->deadline_ns ? "yes" : "no");
        trace_objects(m, found);
    }
}

static void check_closed(const struct egm_master *m, const struct egm_request *r, uint64_t bytes,
                         int code)
{
    totals.closed += code == EGM_E_NO_SEGMENT;
    totals.too_large += code == EGM_E_TOO_LARGE;
    for (uint32_t i = 0; i < m->mount_count; i++) {
        if (is_open_to(m, r->session, i, bytes)) {
            fail("I11: a put of %llu bytes is answered %d although mount %u is open to it",
                 (unsigned long long)bytes, code, i);
            return;
        }
    }
    if (code != why_closed(m, bytes)) {
        fail("I11: a put of %llu bytes is answered %d instead of %d", (unsigned long long)bytes,
             code, why_closed(m, bytes));
    }
}

/* ---- grants ---- */
static uint32_t extents_of(struct egm_object_replica *r, struct egm_extent *ret_extents)
{
    for (uint32_t i = 0; i < r->place_count; i++) {
        struct egm_place place = egm_replica_places(r)[i];
        ret_extents[i] =
            (struct egm_extent){.offset = place.at * EGM_SLOT, .length = place.count * EGM_SLOT};
    }
    return r->place_count;
}

static void check_grant(const struct egm_master *m, uint32_t id)
{
    struct egm_object *o = egm_object_at(&m->directory, id);
    struct egm_extent extents[EGM_MAX_EXTENTS];
    totals.grants++;
    for (uint32_t i = 0; i < o->replica_count; i++) {
        struct egm_object_replica *r = &egm_object_replicas(o)[i];
        const struct egm_provider_state *p = provider_of(m, r->mount);
        if (!p) {
            fail("a grant names mount %u, which is nobody's", r->mount);
            return;
        }
        oracle_granted(master_of_core(m), o->generation, p->id, p->epoch, extents,
                       extents_of(r, extents));
    }
}

void egm_sim_put_decided(const struct egm_master *m, const struct egm_request *r, uint64_t size,
                         uint32_t id, int code)
{
    uint64_t bytes = egm_extents_rounded(size);
    if (id != EGM_NO_OBJECT) {
        check_grant(m, id);
    } else if (code == EGM_E_NO_SPACE) {
        check_no_space(m, r, bytes);
    } else if (code == EGM_E_NO_SEGMENT || code == EGM_E_TOO_LARGE || code == EGM_E_NOT_READY) {
        check_closed(m, r, bytes, code);
    }
}

/* ---- I4: whoever counts on these places, nobody else was given them ---- */
void watch_taken_up(const char *what, const struct mem *mem, uint64_t generation,
                    const struct egm_extent *extents, uint32_t count)
{
    /* Of a life that is over nobody holds a lease, and nobody is given anything of it either. */
    for (int i = 0; i < MASTERS && mem && provider_is_alive(mem->provider, mem->epoch); i++) {
        int proc = proc_of(MASTER, i);
        const struct egm_master *m = master_core(proc);
        if (!w.procs[proc].is_alive || !m ||
            !provider_is_leased_to(mem->provider, mem->epoch, master_instance(proc))) {
            continue; /* what an old master believes is not the truth */
        }
        for (uint32_t id = 0; id < m->directory.slot_count; id++) {
            struct egm_object *o = egm_object_at(&m->directory, id);
            struct egm_extent theirs[EGM_MAX_EXTENTS];
            for (uint32_t k = 0; o->state != EGM_OBJECT_FREE && k < o->replica_count; k++) {
                struct egm_object_replica *r = &egm_object_replicas(o)[k];
                const struct egm_provider_state *p = provider_of(m, r->mount);
                if (p && p->epoch == mem->epoch && o->generation != generation &&
                    extents_overlap(theirs, extents_of(r, theirs), extents, count)) {
                    fail("I4: the holder of a %s of generation %llx counts on places that "
                         "generation %llx has",
                         what, (unsigned long long)generation, (unsigned long long)o->generation);
                    return;
                }
            }
        }
    }
}

/* ---- I6 ---- */
/* The EXIST or GET_START that is being worked on. It has at most BATCH keys, so it is answered in
 * the step in which it came. */
static struct {
    uint64_t session;
    uint32_t count;
    char names[BATCH][16];
    struct egm_bytes keys[BATCH];
} asked;

void watch_asked(const struct egm_frame *frame, const uint8_t *payload)
{
    static struct egm_key_reader reader;
    struct egm_cursor cursor = egm_cursor_of(payload, frame->length);
    asked.count = 0;
    if (frame->type == EGM_MSG_EXIST) {
        struct egm_exist head;
        egm_take_exist(&cursor, &head);
        asked.session = head.session;
        asked.count = head.key_count;
    } else if (frame->type == EGM_MSG_GET_START) {
        struct egm_get_start head;
        egm_take_get_start(&cursor, &head);
        asked.session = head.session;
        asked.count = head.key_count;
    }
    memset(&reader, 0, sizeof reader);
    for (uint32_t i = 0; i < asked.count; i++) {
        struct egm_bytes key = egm_take_key(&reader, &cursor);
        if (cursor.failed || i == BATCH || key.size > sizeof asked.names[i]) {
            fail("a requester of the simulator asks for keys that it does not have");
            asked.count = 0;
            return;
        }
        memcpy(asked.names[i], key.data, key.size);
        asked.keys[i] = egm_bytes_of(asked.names[i], key.size);
    }
}

/* The instant's truth for one session. */
static bool is_present(const struct egm_master *m, uint32_t session, struct egm_bytes key)
{
    uint32_t tenant = m->sessions[session].tenant;
    for (uint32_t id = 0; id < m->directory.slot_count; id++) {
        struct egm_object *o = egm_object_at(&m->directory, id);
        if (o->state != EGM_OBJECT_SEALED || o->tenant != tenant || o->key_size != key.size ||
            memcmp(o->key, key.data, key.size) != 0 ||
            o->generation < m->directory.tenants[tenant].floor) {
            continue;
        }
        for (uint32_t i = 0; i < o->replica_count; i++) {
            uint32_t mount = egm_object_replicas(o)[i].mount;
            const struct egm_provider_state *p = provider_of(m, mount);
            if (is_served(m, mount) && !is_suspect(m, session, mount) &&
                provider_is_leased_to(p->id, p->epoch, m->options.instance)) {
                return true;
            }
        }
    }
    return false;
}

uint64_t watch_sealed(int master, int key)
{
    const struct egm_master *m = master_core(master);
    const char *name = key_name(key);
    for (uint32_t id = 0; id < m->directory.slot_count; id++) {
        const struct egm_object *o = egm_object_at(&m->directory, id);
        if (o->state == EGM_OBJECT_SEALED && o->key_size == strlen(name) &&
            memcmp(o->key, name, o->key_size) == 0) {
            return o->generation;
        }
    }
    return 0;
}

static void check_presence(const struct egm_master *m, const char *what, uint32_t i, bool is_there)
{
    uint32_t session = EGM_NONE;
    for (uint32_t s = 0; s < m->session_room; s++) {
        session = m->sessions[s].id == asked.session ? s : session;
    }
    if (session == EGM_NONE) {
        fail("I6: %s is answered to no session", what);
        return;
    }
    bool is_true = is_present(m, session, asked.keys[i]);
    totals.presence[is_true]++;
    if (is_true != is_there) {
        fail("I6: %s says that key %.*s is %s, it is %s", what, (int)asked.keys[i].size,
             (const char *)asked.keys[i].data, is_there ? "present" : "absent",
             is_true ? "present" : "absent");
    }
}

void watch_exist_reply(int master, const uint8_t *payload, uint32_t size)
{
    const struct egm_master *m = master_core(master);
    struct egm_cursor cursor = egm_cursor_of(payload, size);
    struct egm_exist_reply head;
    egm_take_exist_reply(&cursor, &head);
    for (uint32_t i = 0; head.status == 0 && i < head.count && i < asked.count; i++) {
        struct egm_flag flag;
        egm_take_flag(&cursor, &flag);
        check_presence(m, "exist", i, flag.value != 0);
    }
}

void watch_get_reply(int master, const uint8_t *payload, uint32_t size)
{
    const struct egm_master *m = master_core(master);
    struct egm_cursor cursor = egm_cursor_of(payload, size);
    struct egm_items_reply head;
    egm_take_items_reply(&cursor, &head);
    for (uint32_t i = 0; head.status == 0 && i < head.count && i < asked.count; i++) {
        struct egm_entry entry;
        egm_take_entry(&cursor, &entry);
        check_presence(m, "get", i, entry.status == 0);
        for (uint32_t k = 0; k < entry.replica_count; k++) {
            struct egm_replica replica;
            egm_take_replica(&cursor, &replica);
            for (uint32_t x = 0; x < replica.extent_count; x++) {
                struct egm_extent extent;
                egm_take_extent(&cursor, &extent);
            }
        }
    }
}
