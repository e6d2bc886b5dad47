/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: one life of a requester each. A live session may be granted things; when its ttl runs
 * out its read ops end and its writes are given up, which is quarantine unless every way to the
 * memory is closed (I3 c). The session's slot in the table stays until its last write is settled
 * and its last importer slot is free. */
#include "base/alloc.h"
#include "base/log.h"
#include "base/mutant.h"

#include "core/master_state.h"

#include <errno.h>
#include <string.h>

uint32_t egm_session_find(const struct egm_master *m, uint64_t id)
{
    struct egm_index_iter iter;
    uint32_t slot;
    egm_index_find(&m->session_index, id, &iter);
    while (egm_index_next(&iter, &slot)) {
        if (m->sessions[slot].id == id) {
            return slot;
        }
    }
    return EGM_NONE;
}

uint32_t egm_session_live(const struct egm_master *m, uint64_t id)
{
    uint32_t slot = id ? egm_session_find(m, id) : EGM_NONE;
    return slot != EGM_NONE && m->sessions[slot].is_live && m->sessions[slot].is_known ? slot
                                                                                       : EGM_NONE;
}

int egm_session_new(struct egm_master *m, uint64_t id, uint32_t *ret_slot)
{
    uint32_t slot = 0;
    while (slot < m->session_room && m->sessions[slot].id) {
        slot++;
    }
    if (slot == m->session_room) {
        uint32_t room = m->session_room ? m->session_room * 2 : 16;
        struct egm_session_state *grown =
            room <= EGM_MAX_SESSIONS ? egm_realloc(m->sessions, room * sizeof *grown) : NULL;
        if (!grown) {
            return room <= EGM_MAX_SESSIONS ? -ENOMEM : EGM_E_LIMIT;
        }
        m->sessions = grown;
        memset(grown + m->session_room, 0, (room - m->session_room) * sizeof *grown);
        m->session_room = room;
    }
    int r = egm_index_insert(&m->session_index, id, slot);
    if (r == 0) {
        m->sessions[slot] = (struct egm_session_state){.id = id, .first_write = EGM_NO_OBJECT};
        *ret_slot = slot;
    }
    return r;
}

/* What a SESSION lists is what the session wrote when it was encoded. It may be on its way for
 * long, in a network or in our own socket buffer, and be the youngest that we have heard of all the
 * same. So before anything follows from a write's not being in it, it has to bring a number that
 * was not there before the last of these:
 *   - a provider came with slots of the session: it may come from another master, under which the
 *     session has been granted writes there;
 *   - the session was granted a write: that SESSION may have been sent before this was asked for.
 * Then a write that is not listed has stopped, or its grant was not taken (S4 of requester.h). */
void egm_session_ask(struct egm_master *m, uint32_t session)
{
    m->sessions[session].is_known = false;
    m->sessions[session].challenge = 0;
}

void egm_session_maybe_free(struct egm_master *m, uint32_t slot)
{
    struct egm_session_state *s = &m->sessions[slot];
    if (s->is_live || s->first_write != EGM_NO_OBJECT || s->slot_count > 0) {
        return;
    }
    egm_index_remove(&m->session_index, s->id, slot);
    egm_free(s->name);
    egm_free(s->reach);
    egm_free(s->claims);
    *s = (struct egm_session_state){.first_write = EGM_NO_OBJECT};
}

/* ---- reach and suspicion ---- */
struct egm_reach *egm_session_reach(struct egm_master *m, uint32_t session, uint32_t mount)
{
    struct egm_session_state *s = &m->sessions[session];
    if (mount >= s->reach_count) {
        uint32_t count = m->mount_count;
        struct egm_reach *grown = egm_realloc(s->reach, count * sizeof *grown);
        if (!grown) {
            return NULL;
        }
        memset(grown + s->reach_count, 0, (count - s->reach_count) * sizeof *grown);
        s->reach = grown;
        s->reach_count = count;
    }
    return &s->reach[mount];
}

bool egm_session_reaches(const struct egm_master *m, uint32_t session, uint32_t mount)
{
    const struct egm_session_state *s = &m->sessions[session];
    return mount < s->reach_count && s->reach[mount].map_slots + s->reach[mount].tcp_slots > 0;
}

bool egm_session_suspects(const struct egm_master *m, uint32_t session, uint32_t mount)
{
    if (session == EGM_NONE) {
        return false;
    }
    const struct egm_session_state *s = &m->sessions[EGM_MUTANT(43) ? 0 : session];
    return mount < s->reach_count && s->reach[mount].suspect_until_ns > m->now_ns;
}

void egm_suspect_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                         struct egm_cursor cursor)
{
    (void)peer, (void)frame; /* one-way */
    struct egm_suspect suspect;
    egm_take_suspect(&cursor, &suspect);
    uint32_t session = egm_session_live(m, suspect.session);
    if (egm_cursor_end(&cursor) < 0 || session == EGM_NONE || suspect.mount >= m->mount_count) {
        return;
    }
    struct egm_reach *reach = egm_session_reach(m, session, suspect.mount);
    if (reach) { /* without memory for it the requester tells again in some seconds */
        uint32_t seconds = suspect.seconds < 60 ? suspect.seconds : 60;
        reach->suspect_until_ns = m->now_ns + egm_ms(seconds * 1000u);
    }
}

/* ---- a session's writes ---- */
void egm_session_link_write(struct egm_master *m, uint32_t session, uint32_t id)
{
    struct egm_session_state *s = &m->sessions[session];
    struct egm_object *o = egm_object_at(&m->directory, id);
    s->challenge = 0; /* what was listed in answer to it says nothing of this write */
    o->session = session;
    o->prev = EGM_NO_OBJECT;
    o->next = s->first_write;
    if (s->first_write != EGM_NO_OBJECT) {
        egm_object_at(&m->directory, s->first_write)->prev = id;
    }
    s->first_write = id;
}

void egm_session_unlink_write(struct egm_master *m, uint32_t id)
{
    struct egm_object *o = egm_object_at(&m->directory, id);
    uint32_t session = o->session;
    if (session == EGM_NONE) {
        return;
    }
    if (o->prev == EGM_NO_OBJECT) {
        m->sessions[session].first_write = o->next;
    } else {
        egm_object_at(&m->directory, o->prev)->next = o->next;
    }
    if (o->next != EGM_NO_OBJECT) {
        egm_object_at(&m->directory, o->next)->prev = o->prev;
    }
    o->prev = EGM_NO_OBJECT;
    o->next = EGM_NO_OBJECT;
    o->session = EGM_NONE;
    egm_session_maybe_free(m, session);
}

/* Can the writer still store into some replica without being refused? TCP writers are refused once
 * the provider has recorded the removal; map writers only when their slots are free. */
static bool writer_may_reach(const struct egm_master *m, struct egm_object *o)
{
    const struct egm_session_state *s = &m->sessions[o->session];
    for (uint32_t i = 0; i < o->replica_count; i++) {
        uint32_t mount = egm_object_replicas(o)[i].mount;
        if (m->mounts[mount].provider != EGM_NONE && mount < s->reach_count &&
            s->reach[mount].map_slots > 0 && !EGM_MUTANT(1)) {
            return true;
        }
    }
    return false;
}

void egm_session_settle(struct egm_master *m, uint32_t session)
{
    uint32_t id = m->sessions[session].first_write;
    while (id != EGM_NO_OBJECT) {
        struct egm_object *o = egm_object_at(&m->directory, id);
        uint32_t next = o->next;
        bool is_cut_off = true;
        for (uint32_t i = 0; i < o->replica_count; i++) {
            is_cut_off =
                is_cut_off && !egm_session_reaches(m, session, egm_object_replicas(o)[i].mount);
        }
        if (is_cut_off || (o->state == EGM_OBJECT_QUARANTINED && !writer_may_reach(m, o))) {
            egm_object_remove(m, id, false);
        }
        id = next;
    }
    egm_session_maybe_free(m, session);
}

void egm_write_give_up(struct egm_master *m, uint32_t id)
{
    struct egm_object *o = egm_object_at(&m->directory, id);
    if (!writer_may_reach(m, o) || (EGM_MUTANT(22) && o->state == EGM_OBJECT_QUARANTINED) ||
        (EGM_MUTANT(23) && m->sessions[o->session].is_live)) {
        egm_object_remove(m, id, false);
    } else if (o->state == EGM_OBJECT_WRITING) {
        egm_object_set_state(m, id, EGM_OBJECT_QUARANTINED);
    }
}

static void give_up_writes(struct egm_master *m, uint32_t session)
{
    uint32_t id = m->sessions[session].first_write;
    while (id != EGM_NO_OBJECT) {
        uint32_t next = egm_object_at(&m->directory, id)->next;
        egm_write_give_up(m, id);
        id = next;
    }
}

static void end_ops(struct egm_master *m, uint32_t session)
{
    struct egm_link *link = m->ops.next;
    while (link != &m->ops) {
        struct egm_op *op = egm_container_of(link, struct egm_op, link);
        link = link->next;
        if (op->session == session) {
            egm_op_end(m, op);
        }
    }
}

static void expire(struct egm_master *m, uint32_t session)
{
    struct egm_session_state *s = &m->sessions[session];
    s->is_live = false;
    end_ops(m, session);
    give_up_writes(m, session); /* may free the session */
    egm_session_maybe_free(m, session);
}

/* An un-ended put is given up after put_timeout_ms although its session lives: the writer is told
 * to stop by PING. */
static void give_up_old_writes(struct egm_master *m, uint32_t session)
{
    uint64_t timeout_ns = egm_ms(m->options.put_timeout_ms);
    uint32_t id = m->sessions[session].first_write;
    while (id != EGM_NO_OBJECT) {
        struct egm_object *o = egm_object_at(&m->directory, id);
        uint32_t next = o->next;
        if ((o->state == EGM_OBJECT_WRITING || EGM_MUTANT(22)) &&
            m->now_ns - o->began_ns > timeout_ns) {
            egm_write_give_up(m, id);
        }
        id = next;
    }
}

void egm_session_tick(struct egm_master *m)
{
    for (uint32_t i = 0; i < m->session_room; i++) {
        if (!m->sessions[i].id) {
            continue;
        }
        if (m->sessions[i].is_live && m->sessions[i].until_ns <= m->now_ns) {
            egm_warn("session expired session=%016llx name=%s",
                     (unsigned long long)m->sessions[i].id, m->sessions[i].name);
            expire(m, i);
        } else {
            give_up_old_writes(m, i);
        }
    }
}

/* ---- messages ---- */
/* Reads the claims. 0, EGM_E_PROTO or -ENOMEM. */
static int take_claims(struct egm_cursor *cursor, uint32_t count, struct egm_claim **ret_claims)
{
    struct egm_claim *claims = NULL;
    if (count > 0) {
        if (!egm_cursor_expect(cursor, count, 29 + 16, EGM_MAX_BATCH_KEYS)) {
            return EGM_E_PROTO;
        }
        claims = egm_calloc(count, sizeof *claims);
        if (!claims) {
            return -ENOMEM;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        egm_take_open_write(cursor, &claims[i].write);
        if (claims[i].write.generation == 0 || claims[i].write.extent_count == 0 ||
            claims[i].write.extent_count > EGM_MAX_EXTENTS) {
            cursor->failed = EGM_E_PROTO;
            break;
        }
        for (uint32_t e = 0; e < claims[i].write.extent_count; e++) {
            egm_take_extent(cursor, &claims[i].extents[e]);
        }
    }
    if (egm_cursor_end(cursor) < 0) {
        egm_free(claims);
        return EGM_E_PROTO;
    }
    *ret_claims = claims;
    return 0;
}

/* Of this life of the master: a quarantined write that is not among the claims has stopped. */
static void settle_unclaimed(struct egm_master *m, uint32_t session)
{
    struct egm_session_state *s = &m->sessions[session];
    uint32_t id = s->first_write;
    while (id != EGM_NO_OBJECT) {
        struct egm_object *o = egm_object_at(&m->directory, id);
        uint32_t next = o->next;
        bool is_claimed = o->state != EGM_OBJECT_QUARANTINED;
        for (uint32_t i = 0; i < s->claim_count && !is_claimed && !EGM_MUTANT(16); i++) {
            is_claimed = s->claims[i].write.generation == o->generation;
        }
        if (!is_claimed) {
            egm_object_remove(m, id, false);
        }
        id = next;
    }
}

static bool is_listing_needed(const struct egm_master *m, const struct egm_session_state *s)
{
    bool is_needed = !s->is_known && !EGM_MUTANT(33);
    for (uint32_t id = s->first_write; id != EGM_NO_OBJECT && !is_needed && !EGM_MUTANT(32);
         id = egm_object_at(&m->directory, id)->next) {
        is_needed = egm_object_at(&m->directory, id)->state == EGM_OBJECT_QUARANTINED;
    }
    return is_needed;
}

/* 0, EGM_E_STALE, or EGM_E_AGAIN: it has to answer the challenge first. */
static int judge_opening(struct egm_master *m, struct egm_session_state *s,
                         const struct egm_session *head)
{
    if (EGM_MUTANT(27)) {
        return 0;
    }
    if (head->opening < s->opening) {
        return EGM_E_STALE; /* overtaken: what it lists is not what the session writes now (I3 c) */
    }
    if (!is_listing_needed(m, s) || (s->challenge && head->challenge == s->challenge)) {
        return 0;
    }
    if (!s->challenge) {
        s->challenge = m->io.random(m->io.arg) | 1;
    }
    return EGM_E_AGAIN;
}

/* A write that this life of the master granted to the session, and whose places are still its
 * object's: it goes on. Not if a mount is gone, for its memory may come back under another. */
static bool is_own_write(struct egm_master *m, uint32_t session, uint64_t generation)
{
    uint32_t id = egm_directory_find_generation(&m->directory, generation);
    struct egm_object *o = id != EGM_NO_OBJECT ? egm_object_at(&m->directory, id) : NULL;
    if (!o || o->state != EGM_OBJECT_WRITING || o->session != session) {
        return false;
    }
    for (uint32_t i = 0; i < o->replica_count; i++) {
        if (m->mounts[egm_object_replicas(o)[i].mount].provider == EGM_NONE) {
            return false;
        }
    }
    return true;
}

/* What another life granted is claimed, and must stop. */
static void set_claims(struct egm_master *m, uint32_t session, struct egm_claim *claims,
                       uint32_t count)
{
    struct egm_session_state *s = &m->sessions[session];
    egm_free(s->claims);
    s->claims = claims;
    s->claim_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!is_own_write(m, session, claims[i].write.generation)) {
            claims[s->claim_count++] = claims[i];
        }
    }
}

static int open_session(struct egm_master *m, const struct egm_session *head,
                        struct egm_claim *claims, uint64_t *ret_challenge)
{
    uint32_t tenant;
    struct egm_bytes name = head->tenant.size ? head->tenant : egm_bytes_of("default", 7);
    int r = egm_directory_tenant(&m->directory, name, &tenant);
    uint32_t slot = egm_session_find(m, head->session);
    bool is_new = r == 0 && slot == EGM_NONE;
    if (is_new) {
        r = egm_session_new(m, head->session, &slot);
    }
    if (r == 0 && !is_new) {
        r = judge_opening(m, &m->sessions[slot], head);
        *ret_challenge = m->sessions[slot].challenge;
    }
    char *copy = r == 0 ? egm_strndup((const char *)head->name.data, head->name.size) : NULL;
    if (!copy) {
        egm_free(claims);
        if (slot != EGM_NONE) {
            egm_session_maybe_free(m, slot); /* if it was made just now */
        }
        return r < 0 ? r : -ENOMEM;
    }
    struct egm_session_state *s = &m->sessions[slot];
    egm_free(s->name);
    s->name = copy;
    s->opening = head->opening;
    s->host = head->host;
    s->pid = head->pid;
    s->tenant = tenant;
    set_claims(m, slot, claims, head->write_count);
    s->is_live = true;
    s->is_known = true;
    s->until_ns = m->now_ns + egm_ms(m->options.session_ttl_ms);
    settle_unclaimed(m, slot);
    egm_mount_resolve(m, head->session);
    return 0;
}

void egm_session_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                         struct egm_cursor cursor)
{
    struct egm_session head;
    struct egm_claim *claims = NULL;
    uint64_t challenge = 0;
    egm_take_session(&cursor, &head);
    int r = cursor.failed || head.session == 0 || head.name.size > EGM_MAX_NAME ||
                    head.tenant.size > EGM_MAX_NAME || memchr(head.tenant.data, 0, head.tenant.size)
                ? EGM_E_PROTO
                : take_claims(&cursor, head.write_count, &claims);
    if (r == EGM_E_PROTO) {
        egm_master_violation(m, peer, "malformed SESSION");
        return;
    }
    if (r == 0) {
        r = open_session(m, &head, claims, &challenge);
    }
    egm_buf_clear(&m->scratch);
    size_t begin = egm_frame_begin(&m->scratch, EGM_MSG_SESSION_REPLY, frame->request);
    egm_put_session_reply(&m->scratch,
                          &(struct egm_session_reply){.status = egm_status_to_wire(r),
                                                      .ttl_ms = (uint32_t)m->options.session_ttl_ms,
                                                      .layout = m->layout,
                                                      .challenge = challenge});
    egm_master_reply(m, peer, &m->scratch, begin);
}

/* The session says that its write of this generation has stopped for good. */
static void write_has_stopped(struct egm_master *m, uint32_t session, uint64_t generation)
{
    struct egm_session_state *s = &m->sessions[session];
    /* Copies of one object that an earlier master granted are claims, and objects, of their own. */
    for (uint32_t i = s->claim_count; i-- > 0;) {
        if (s->claims[i].write.generation == generation) {
            s->claims[i] = s->claims[--s->claim_count];
        }
    }
    uint32_t next;
    for (uint32_t id = s->first_write; id != EGM_NO_OBJECT; id = next) {
        next = egm_object_at(&m->directory, id)->next;
        if (egm_object_at(&m->directory, id)->generation == generation) {
            egm_object_remove(m, id, false);
        }
    }
}

/* Appends the generations whose writer must stop, QUARANTINED ones and claims; returns how many. */
static uint32_t put_revoked(struct egm_master *m, uint32_t session, struct egm_buf *out)
{
    const struct egm_session_state *s = &m->sessions[session];
    uint32_t count = 0;
    uint32_t id = s->first_write;
    while (id != EGM_NO_OBJECT) {
        const struct egm_object *o = egm_object_at(&m->directory, id);
        if (o->state == EGM_OBJECT_QUARANTINED) {
            egm_put_generation(out, &(struct egm_generation){.value = o->generation});
            count++;
        }
        id = o->next;
    }
    for (uint32_t i = 0; i < s->claim_count; i++) {
        egm_put_generation(out, &(struct egm_generation){.value = s->claims[i].write.generation});
        count++;
    }
    return count;
}

void egm_ping_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                      struct egm_cursor cursor)
{
    struct egm_ping ping;
    egm_take_ping(&cursor, &ping);
    if (!egm_cursor_expect(&cursor, ping.stopped_count, 8, EGM_MAX_BATCH_KEYS)) {
        egm_master_violation(m, peer, "malformed PING");
        return;
    }
    uint32_t session = egm_session_live(m, ping.session);
    struct egm_ping_reply reply = {
        .status = session == EGM_NONE ? egm_status_to_wire(EGM_E_NOT_FOUND) : 0,
        .ttl_ms = (uint32_t)m->options.session_ttl_ms,
        .layout = m->layout};
    if (session != EGM_NONE) {
        m->sessions[session].until_ns = m->now_ns + egm_ms(m->options.session_ttl_ms);
        for (uint32_t i = 0; i < ping.stopped_count; i++) {
            struct egm_generation stopped;
            egm_take_generation(&cursor, &stopped);
            write_has_stopped(m, session, stopped.value);
        }
    }
    egm_buf_clear(&m->scratch);
    size_t begin = egm_frame_begin(&m->scratch, EGM_MSG_PING_REPLY, frame->request);
    egm_put_ping_reply(&m->scratch, &reply);
    if (session != EGM_NONE) {
        size_t counts = m->scratch.len - 8; /* the head's last two fields */
        uint32_t revoked_count = put_revoked(m, session, &m->scratch);
        uint32_t renewed_count = egm_ops_renew(m, session, &m->scratch);
        egm_patch_u32(&m->scratch, counts, revoked_count);
        egm_patch_u32(&m->scratch, counts + 4, renewed_count);
    }
    egm_master_reply(m, peer, &m->scratch, begin);
}

void egm_session_end_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                             struct egm_cursor cursor)
{
    struct egm_session_end end;
    egm_take_session_end(&cursor, &end);
    uint32_t session = egm_session_live(m, end.session);
    if (egm_cursor_end(&cursor) < 0) {
        egm_master_violation(m, peer, "malformed SESSION_END");
        return;
    }
    if (session != EGM_NONE) {
        expire(m, session);
    }
    egm_buf_clear(&m->scratch);
    size_t begin = egm_frame_begin(&m->scratch, EGM_MSG_SESSION_END_REPLY, frame->request);
    egm_put_result(&m->scratch, &(struct egm_result){.status = 0});
    egm_master_reply(m, peer, &m->scratch, begin);
}
