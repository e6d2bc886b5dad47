/* SPDX-License-Identifier: Apache-2.0 */
/* PUT_START: choose mounts, take places, make room when there is none. PUT_END: seal, or give up.
 *
 * Every put_start gets places of its own, whoever else writes the key; the first put_end seals,
 * later ones give theirs back and are told 0, since a sealed value is there (I9). An upsert's
 * put_end swaps. Placement weighs two random candidates by free bytes (power of two choices) and
 * walks all mounts once per key, which is cheap up to some hundred of them. Two corrections:
 * - a mount that is new gets no more than an equal share, however empty it is, while requesters
 *   attach to it and its pages are cold;
 * - consecutive keys of a batch that go to one provider alternate between its NUMA nodes, so that
 *   both memories work. */
#include "base/alloc.h"
#include "base/checked.h"
#include "base/mutant.h"

#include "core/master_state.h"

#include <errno.h>
#include <string.h>

#define PUT_FRAME_KEYS 4096u /* wants are walked once to find the keys: a bound on that turn */
#define NEW_MOUNT_NS UINT64_C(30000000000)

/* ---- placement ---- */
struct placement {
    uint32_t mounts[EGM_MAX_REPLICAS];
    struct egm_place places[EGM_MAX_REPLICAS][EGM_MAX_EXTENTS];
    uint32_t place_counts[EGM_MAX_REPLICAS];
    uint32_t count;
};

static bool is_taken(const struct egm_master *m, const struct placement *p, uint32_t mount)
{
    for (uint32_t i = 0; i < p->count; i++) {
        if (m->mounts[p->mounts[i]].provider == m->mounts[mount].provider) {
            return true;
        }
    }
    return false;
}

static bool is_candidate(const struct egm_master *m, const struct egm_request *r,
                         const struct placement *p, uint32_t mount, uint64_t rounded)
{
    return egm_mount_is_placeable(m, mount) && egm_session_reaches(m, r->session, mount) &&
           !egm_session_suspects(m, r->session, mount) &&
           rounded <= m->mounts[mount].size - EGM_GRANULE && !is_taken(m, p, mount);
}

/* 2: named by the caller; 1: on the caller's host and that was asked for; 0: any. */
static int preference(const struct egm_master *m, const struct egm_request *r, uint32_t mount)
{
    const struct egm_provider_state *p = &m->providers[m->mounts[mount].provider];
    for (uint32_t i = 0; i < r->preferred_count; i++) {
        if (strlen(p->name) == r->preferred[i].size &&
            memcmp(p->name, r->preferred[i].data, r->preferred[i].size) == 0) {
            return 2;
        }
    }
    return (r->put.flags & EGM_SAME_NODE) && p->host == m->sessions[r->session].host;
}

static bool is_new(const struct egm_master *m, uint32_t mount)
{
    return m->now_ns - m->mounts[mount].placeable_since_ns < NEW_MOUNT_NS;
}

/* The emptier of the two. Should only that one be new, a coin decides instead: of n mounts it is
 * drawn in 2/n of the cases, so its share is 1/n. */
static uint32_t better_of(const struct egm_master *m, uint32_t a, uint32_t b, bool coin)
{
    bool is_a = m->mounts[a].extents.free_bytes >= m->mounts[b].extents.free_bytes;
    uint32_t better = is_a ? a : b;
    uint32_t other = is_a ? b : a;
    return is_new(m, better) && !is_new(m, other) && coin ? other : better;
}

static uint64_t next_random(uint64_t random)
{
    return random * UINT64_C(6364136223846793005) + 1442695040888963407u;
}

/* The better of two candidates drawn at random from those with the highest preference; EGM_NONE if
 * there is none. */
static uint32_t choose_mount(struct egm_master *m, const struct egm_request *r,
                             const struct placement *p, uint64_t rounded)
{
    uint32_t drawn[2] = {EGM_NONE, EGM_NONE};
    uint32_t seen = 0;
    int best = -1;
    uint64_t random = m->mount_count > 1 ? egm_master_random(m) : 0;
    for (uint32_t i = 0; i < m->mount_count; i++) {
        if (!is_candidate(m, r, p, i, rounded)) {
            continue;
        }
        int wish = preference(m, r, i);
        if (wish > best) {
            best = wish;
            seen = 0;
        }
        if (wish == best) { /* reservoir of two */
            seen++;
            if (seen <= 2) {
                drawn[seen - 1] = i;
                drawn[1] = seen == 1 ? EGM_NONE : drawn[1];
            } else if ((random = next_random(random)) >> 33 < (UINT64_C(2) << 31) / seen) {
                drawn[random >> 32 & 1] = i;
            }
        }
    }
    return drawn[1] == EGM_NONE ? drawn[0]
                                : better_of(m, drawn[0], drawn[1], next_random(random) >> 63);
}

/* Where `mount` is on the NUMA node of the key before, at the same provider: the emptiest of its
 * mounts on another node that has the room; else `mount`. */
static uint32_t alternate(const struct egm_master *m, const struct egm_request *r,
                          const struct placement *p, uint32_t mount, uint64_t rounded)
{
    const struct egm_mount_state *mounts = m->mounts;
    if (mount == EGM_NONE || r->last_mount == EGM_NONE ||
        mounts[r->last_mount].provider != mounts[mount].provider ||
        mounts[r->last_mount].numa_node != mounts[mount].numa_node) {
        return mount;
    }
    const struct egm_provider_state *provider = &m->providers[mounts[mount].provider];
    uint32_t best = mount;
    for (uint32_t i = 0; i < provider->mount_count; i++) {
        uint32_t at = provider->first_mount + i;
        uint64_t free_bytes = mounts[at].extents.free_bytes;
        if (mounts[at].numa_node != mounts[mount].numa_node && free_bytes >= rounded &&
            (best == mount || free_bytes > mounts[best].extents.free_bytes) &&
            is_candidate(m, r, p, at, rounded)) {
            best = at;
        }
    }
    return best;
}

/* Takes places on `mount`, or else on any other candidate. */
static bool take_places(struct egm_master *m, const struct egm_request *r, struct placement *p,
                        uint32_t mount, uint64_t size, uint64_t rounded)
{
    for (uint32_t n = 0; n <= m->mount_count; n++) {
        uint32_t at = n == 0 ? mount : n - 1;
        if ((n == 0 || is_candidate(m, r, p, at, rounded)) &&
            egm_extents_take(&m->mounts[at].extents, size, p->places[p->count],
                             &p->place_counts[p->count]) == 0) {
            p->mounts[p->count++] = at;
            return true;
        }
    }
    return false;
}

/* Has room made on `mount`, or else on any other candidate (I11). False: there is none to make. */
static bool make_room(struct egm_master *m, struct egm_request *r, const struct placement *p,
                      uint32_t mount, uint64_t rounded)
{
    if (r->search == 0) {
        r->search = ++m->search;
    }
    enum egm_room room = egm_evict_for(m, mount, rounded, r->search);
    for (uint32_t i = 0; i < m->mount_count && room == EGM_ROOM_NONE; i++) {
        if (i != mount && is_candidate(m, r, p, i, rounded)) {
            room = egm_evict_for(m, i, rounded, r->search);
        }
    }
    r->is_seeking = room == EGM_ROOM_SOUGHT;
    r->search = room == EGM_ROOM_COMES ? 0 : r->search;
    return room != EGM_ROOM_NONE;
}

static void give_places(struct egm_master *m, struct placement *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        for (uint32_t k = 0; k < p->place_counts[i]; k++) {
            egm_extents_give(&m->mounts[p->mounts[i]].extents, p->places[i][k]);
        }
    }
}

/* 0, EGM_E_NO_SEGMENT, EGM_E_NOT_READY, EGM_E_TOO_LARGE: whether any mount could ever take
 * `rounded` bytes now. */
static int why_no_candidate(const struct egm_master *m, uint64_t rounded)
{
    bool is_any = false;
    bool fits = false;
    for (uint32_t i = 0; i < m->mount_count; i++) {
        uint32_t provider = m->mounts[i].provider;
        if (provider == EGM_NONE) {
            continue;
        }
        /* A provider that is lost counts as gone: waiting for it would cost each put seconds. */
        enum egm_provider_phase phase = m->providers[provider].phase;
        if ((phase == EGM_PHASE_JOINING && !EGM_MUTANT(45)) || phase == EGM_PHASE_READY) {
            is_any = true;
            fits = fits || rounded <= m->mounts[i].size - EGM_GRANULE;
        }
    }
    return !is_any ? EGM_E_NO_SEGMENT : !fits ? EGM_E_TOO_LARGE : EGM_E_NOT_READY;
}

/* 0: placed. EGM_E_AGAIN: room is being made, come back when woken. Else final for this key. */
static int place(struct egm_master *m, struct egm_request *r, uint64_t size,
                 struct placement *ret_placement)
{
    uint64_t rounded = egm_extents_rounded(size);
    uint32_t wanted = r->put.replica_count ? r->put.replica_count : 1;
    struct placement *p = ret_placement;
    p->count = 0;
    while (p->count < wanted) {
        uint32_t mount = alternate(m, r, p, choose_mount(m, r, p, rounded), rounded);
        if (mount == EGM_NONE) {
            break;
        }
        if (!take_places(m, r, p, mount, size, rounded)) {
            if (p->count > 0) {
                break; /* fewer copies than asked for are better than none */
            }
            return make_room(m, r, p, mount, rounded) ? EGM_E_AGAIN : EGM_E_NO_SPACE;
        }
    }
    return p->count > 0 ? 0 : why_no_candidate(m, rounded);
}

/* ---- a granted write ---- */
static int set_replicas(struct egm_object *o, const struct placement *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        struct egm_object_replica *replica = &egm_object_replicas(o)[i];
        replica->mount = p->mounts[i];
        if (p->place_counts[i] == 1) {
            replica->one = p->places[i][0];
        } else {
            replica->many = egm_alloc(p->place_counts[i] * sizeof *replica->many);
            if (!replica->many) {
                return -ENOMEM; /* place_count is still 0: nothing of this replica is owned */
            }
            memcpy(replica->many, p->places[i], p->place_counts[i] * sizeof *replica->many);
        }
        replica->place_count = (uint8_t)p->place_counts[i];
    }
    return 0;
}

static void set_attributes(struct egm_master *m, const struct egm_request *r, struct egm_object *o)
{
    uint64_t ttl_ms = r->put.soft_pin_ttl_ms ? r->put.soft_pin_ttl_ms : m->options.soft_pin_ttl_ms;
    o->size = r->want.size;
    o->data_type = r->put.data_type;
    o->began_ns = m->now_ns;
    o->flags = (uint8_t)((r->put.flags & EGM_HARD_PIN ? EGM_OBJECT_HARD_PIN : 0u) |
                         (r->put.flags & EGM_UPSERT ? EGM_OBJECT_UPSERT : 0u));
    if (r->put.soft_pin == 1) {
        o->soft_pin_until_ns = m->now_ns + egm_ms(egm_min_u64(ttl_ms, 86400000));
    }
}

static bool reaches_by_tcp(const struct egm_master *m, uint32_t session, const struct placement *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        if (m->sessions[session].reach[p->mounts[i]].tcp_slots > 0) {
            return true;
        }
    }
    return false;
}

static int grant(struct egm_master *m, struct egm_request *r, struct placement *p, uint32_t *ret_id)
{
    uint32_t id;
    int code = egm_directory_new(&m->directory, r->tenant, r->key_hash, r->key, p->count, &id);
    if (code < 0) {
        give_places(m, p);
        return code;
    }
    struct egm_object *o = egm_object_at(&m->directory, id);
    set_attributes(m, r, o);
    code = set_replicas(o, p);
    if (code == 0) {
        code = egm_directory_set_generation(&m->directory, id, egm_master_generation(m));
    }
    if (code == 0 && r->want.group.size > 0) {
        code = egm_directory_join_group(&m->directory, id, r->want.group);
    }
    if (code < 0) {
        give_places(m, p);
        egm_directory_free(&m->directory, id);
        return code;
    }
    egm_session_link_write(m, r->session, id);
    egm_object_set_state(m, id, EGM_OBJECT_WRITING);
    if (reaches_by_tcp(m, r->session, p)) {
        egm_record_object(m, id, EGM_RECORD_GRANT);
    }
    *ret_id = id;
    return 0;
}

static int put_one(struct egm_master *m, struct egm_request *r, uint32_t *ret_id)
{
    uint32_t there = egm_directory_find(&m->directory, r->tenant, r->key_hash, r->key);
    if (there != EGM_NO_OBJECT && !(r->put.flags & EGM_UPSERT) &&
        egm_object_is_visible(m, egm_object_at(&m->directory, there), r->session)) {
        return EGM_E_EXISTS;
    }
    if (r->want.size == 0 || r->want.size > EGM_MAX_OBJECT_BYTES ||
        r->want.group.size > EGM_MAX_NAME ||
        (r->want.group.size > 0 && memchr(r->want.group.data, 0, r->want.group.size))) {
        return EGM_E_INVALID;
    }
    struct placement placement;
    int code = place(m, r, r->want.size, &placement);
    if (code < 0) {
        return code;
    }
    r->last_mount = placement.mounts[0];
    r->search = 0;
    return grant(m, r, &placement, ret_id);
}

/* ---- PUT_START ---- */
static int begin_put(struct egm_master *m, struct egm_request *r)
{
    egm_take_put_start(&r->cursor, &r->put);
    if (r->cursor.failed || r->put.preferred_count > EGM_COUNT_OF(r->preferred) ||
        r->put.key_count > PUT_FRAME_KEYS || r->put.replica_count > EGM_MAX_REPLICAS ||
        r->put.soft_pin > 2) {
        return EGM_E_PROTO;
    }
    for (r->preferred_count = 0; r->preferred_count < r->put.preferred_count;
         r->preferred_count++) {
        struct egm_name name;
        egm_take_name(&r->cursor, &name);
        r->preferred[r->preferred_count] = name.text;
    }
    r->want_cursor = r->cursor;
    for (uint32_t i = 0; i < r->put.key_count; i++) {
        egm_take_want(&r->cursor, &r->want);
    }
    if (!egm_cursor_expect(&r->cursor, r->put.key_count, EGM_KEY_CODED_LEAST, PUT_FRAME_KEYS)) {
        return EGM_E_PROTO;
    }
    r->count = r->put.key_count;
    r->deadline_ns = m->now_ns + egm_ms(egm_min_u64(r->put.deadline_ms, 30000));
    r->last_mount = EGM_NONE;
    struct placement none = {0};
    if (r->count > 0 && choose_mount(m, r, &none, 1) == EGM_NONE) {
        int code = why_no_candidate(m, 1);
        egm_sim_put_decided(m, r, 1, EGM_NO_OBJECT, code);
        return code;
    }
    r->reply_begin = egm_frame_begin(&r->reply, EGM_MSG_PUT_START_REPLY, r->frame.request);
    egm_put_items_reply(&r->reply,
                        &(struct egm_items_reply){.lease_ms = (uint32_t)m->options.session_ttl_ms,
                                                  .count = r->count});
    return 0;
}

/* Decodes the next keys and has loaded what they will touch. False: they are malformed. */
static bool look_ahead(struct egm_master *m, struct egm_request *r)
{
    size_t used = 0;
    uint32_t count = 0;
    while (count < EGM_PUT_AHEAD && r->done + count < r->count &&
           used + EGM_MAX_KEY <= sizeof r->ahead_bytes) {
        struct egm_bytes key = egm_take_key(&r->keys, &r->cursor);
        if (r->cursor.failed) {
            return false;
        }
        uint8_t *copy = memcpy(r->ahead_bytes + used, key.data, key.size);
        used += key.size;
        uint64_t hash = egm_directory_hash(&m->directory, r->tenant, key);
        egm_directory_prefetch_new(&m->directory, hash, egm_master_generation_ahead(m, count));
        r->ahead[count++] =
            (struct egm_ahead_key){.key = egm_bytes_of(copy, key.size), .hash = hash};
    }
    r->ahead_count = count;
    r->ahead_at = 0;
    return true;
}

/* Takes the next key and its want. False: they are malformed. */
static bool next_key(struct egm_master *m, struct egm_request *r)
{
    if (r->ahead_at == r->ahead_count && !look_ahead(m, r)) {
        return false;
    }
    r->key = r->ahead[r->ahead_at].key;
    r->key_hash = r->ahead[r->ahead_at].hash;
    r->ahead_at++;
    egm_take_want(&r->want_cursor, &r->want);
    r->has_key = true;
    return true;
}

enum egm_step egm_put_step(struct egm_master *m, struct egm_request *r)
{
    if (!r->has_begun) {
        r->has_begun = true;
        int code = begin_put(m, r);
        if (code == EGM_E_PROTO) {
            egm_master_violation(m, r->peer, "malformed PUT_START");
            return EGM_STEP_DONE;
        }
        if (code < 0) {
            egm_request_fail(m, r, code, NULL);
            return EGM_STEP_DONE;
        }
    }
    /* If it expired while this was parked, its grants went with it. If it was only asked what it
     * writes, it keeps them: what it lists before it knows of them settles nothing (link_write). */
    if (egm_session_find(m, r->session_id) != r->session || !m->sessions[r->session].is_live) {
        egm_request_fail(m, r, EGM_E_NOT_FOUND, NULL);
        return EGM_STEP_DONE;
    }
    for (uint32_t n = 0; r->done < r->count; n++) {
        if (n == EGM_TURN_KEYS) {
            return EGM_STEP_YIELD;
        }
        if (!r->has_key && !next_key(m, r)) {
            egm_master_violation(m, r->peer, "malformed keys in PUT_START");
            return EGM_STEP_DONE;
        }
        uint32_t id = EGM_NO_OBJECT;
        int code = put_one(m, r, &id);
        if (code == EGM_E_AGAIN && m->now_ns < r->deadline_ns) {
            return r->is_seeking ? EGM_STEP_YIELD : EGM_STEP_PARK;
        }
        code = code == EGM_E_AGAIN ? EGM_E_NO_SPACE : code;
        m->counters.no_space_count += code == EGM_E_NO_SPACE;
        egm_sim_put_decided(m, r, r->want.size, id, code);
        egm_put_entry_of(&r->reply, m,
                         id == EGM_NO_OBJECT ? NULL : egm_object_at(&m->directory, id), code);
        r->has_key = false;
        r->done++;
    }
    egm_master_reply(m, r->peer, &r->reply, r->reply_begin);
    return EGM_STEP_DONE;
}

/* ---- PUT_END ---- */
/* A sealed value that nobody removed and whose provider is there, be its lease late: it stands
 * (I9). */
static bool is_standing(const struct egm_master *m, struct egm_object *o)
{
    bool is_mounted = false;
    for (uint32_t i = 0; i < o->replica_count; i++) {
        is_mounted = is_mounted || egm_mount_is_mounted(m, egm_object_replicas(o)[i].mount);
    }
    return is_mounted && o->generation >= m->directory.tenants[o->tenant].floor;
}

static int seal(struct egm_master *m, uint32_t id, uint64_t checksum)
{
    struct egm_object *o = egm_object_at(&m->directory, id);
    uint32_t mounted = 0;
    for (uint32_t i = 0; i < o->replica_count; i++) {
        mounted += egm_mount_is_mounted(m, egm_object_replicas(o)[i].mount);
    }
    if (o->generation < m->directory.tenants[o->tenant].floor || mounted == 0) {
        egm_object_remove(m, id, false);
        return mounted == 0 ? EGM_E_PEER_GONE : EGM_E_STALE;
    }
    uint32_t there =
        egm_directory_find(&m->directory, o->tenant, o->hash, egm_bytes_of(o->key, o->key_size));
    if (there != EGM_NO_OBJECT && !(o->flags & EGM_OBJECT_UPSERT) && !EGM_MUTANT(11) &&
        is_standing(m, egm_object_at(&m->directory, there))) {
        egm_object_remove(m, id, false); /* keeps I9: the first one stands */
        return 0;
    }
    int code = egm_directory_add_key(&m->directory, id);
    if (code < 0) {
        egm_object_remove(m, id, false);
        return code;
    }
    if (there != EGM_NO_OBJECT) {
        egm_object_remove(m, there, false);
    }
    egm_session_unlink_write(m, id);
    o->checksum = checksum;
    egm_object_set_state(m, id, EGM_OBJECT_SEALED);
    egm_object_enqueue(m, id);
    egm_record_object(m, id, EGM_RECORD_SEAL);
    if (mounted < o->replica_count) {
        egm_master_sweep(m); /* replicas on mounts that went meanwhile are stripped */
    }
    m->counters.put_count++;
    return 0;
}

static int end_one(struct egm_master *m, uint32_t session, const struct egm_ended *ended)
{
    uint32_t id = EGM_MUTANT(3) ? m->sessions[session].first_write
                                : egm_directory_find_generation(&m->directory, ended->generation);
    if (id == EGM_NO_OBJECT) {
        return EGM_E_NOT_OWNER;
    }
    struct egm_object *o = egm_object_at(&m->directory, id);
    if (o->state == EGM_OBJECT_SEALED) {
        return ended->outcome == 0 && o->checksum == ended->checksum
                   ? 0
                   : EGM_E_NOT_OWNER; /* asked twice (I5) */
    }
    if ((o->session != session && !EGM_MUTANT(9)) || o->state == EGM_OBJECT_REMOVED) {
        return EGM_E_NOT_OWNER;
    }
    if (o->state == EGM_OBJECT_WRITING && ended->outcome == 0) {
        return seal(m, id, ended->checksum);
    }
    bool was_revoked = o->state == EGM_OBJECT_QUARANTINED;
    m->counters.put_fail_count++;
    egm_object_remove(m, id, false); /* the writer says that it has stopped: that settles I3 (c) */
    return was_revoked ? EGM_E_STALE : 0;
}

/* Has loaded what the next entries, from the cursor on, will touch. */
static void look_ahead_ended(struct egm_master *m, struct egm_cursor cursor, uint32_t count)
{
    uint64_t generations[EGM_FIND_WINDOW];
    count = count < EGM_FIND_WINDOW ? count : EGM_FIND_WINDOW;
    for (uint32_t i = 0; i < count; i++) {
        struct egm_ended ended;
        egm_take_ended(&cursor, &ended);
        generations[i] = ended.generation;
    }
    egm_directory_prefetch_many(&m->directory, generations, count);
}

enum egm_step egm_put_end_step(struct egm_master *m, struct egm_request *r)
{
    if (!r->has_begun) {
        struct egm_put_end head;
        egm_take_put_end(&r->cursor, &head);
        if (!egm_cursor_expect(&r->cursor, head.count, 17, EGM_MAX_BATCH_KEYS) ||
            egm_cursor_left(&r->cursor) != head.count * 17u) {
            egm_master_violation(m, r->peer, "malformed PUT_END");
            return EGM_STEP_DONE;
        }
        r->has_begun = true;
        r->count = head.count;
        r->reply_begin = egm_frame_begin(&r->reply, EGM_MSG_PUT_END_REPLY, r->frame.request);
        egm_put_results_reply(&r->reply, &(struct egm_results_reply){.count = r->count});
    }
    for (uint32_t n = 0; n < EGM_TURN_KEYS && r->done < r->count; n++, r->done++) {
        if (n % EGM_FIND_WINDOW == 0) {
            look_ahead_ended(m, r->cursor, r->count - r->done);
        }
        struct egm_ended ended;
        egm_take_ended(&r->cursor, &ended);
        int code = end_one(m, r->session, &ended);
        egm_put_result(&r->reply, &(struct egm_result){.status = egm_status_to_wire(code)});
    }
    if (r->done < r->count) {
        return EGM_STEP_YIELD;
    }
    egm_master_reply(m, r->peer, &r->reply, r->reply_begin);
    return EGM_STEP_DONE;
}
