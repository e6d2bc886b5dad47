/* SPDX-License-Identifier: Apache-2.0 */
/* EXIST, PREFIX, GET_START, OP_END: look-ups in prefetched windows; read leases.
 *
 * A lease belongs to the operation {session, op}: while it runs, the objects' places are not reused
 * (I3 a), whatever is removed meanwhile. It is granted for a duration by the operation's bytes, and
 * each PING of the session moves it on by that duration, all objects as a whole; so it ends by
 * OP_END, with its session, or when its last renewal has run out. What is told to the requester
 * never reaches beyond what is kept here, the call's deadline, the session's time, and the
 * providers' own leases on the mounts involved (I13). Model: docs/design/0007. */
#include "base/alloc.h"
#include "base/checked.h"
#include "base/mutant.h"

#include "core/master_state.h"

#include <errno.h>

/* 256 MiB/s, of a slow wire: who is slower lives on renewals. */
#define LEASE_BYTES_PER_MS ((UINT64_C(256) << 20) / 1000)
/* As long as a session's ttl: a reader that is gone blocks nobody for longer than its session. */
#define LEASE_MOST_MS 10000u

/* ---- read ops ---- */
/* For how long the op may be leased from now on. */
static uint64_t lease_of(const struct egm_master *m, const struct egm_op *op)
{
    uint64_t ms = egm_min_u64(m->options.read_lease_ms + op->bytes / LEASE_BYTES_PER_MS,
                              egm_max_u64(LEASE_MOST_MS, m->options.read_lease_ms));
    /* A session whose time is up lives until the next tick: it is promised nothing beyond. */
    uint64_t until_ns = egm_min_u64(m->sessions[op->session].until_ns, op->deadline_ns);
    uint64_t ns = egm_min_u64(egm_ms(ms), until_ns > m->now_ns ? until_ns - m->now_ns : 0);
    for (uint32_t i = 0; i < op->mount_count && !EGM_MUTANT(31); i++) {
        ns = egm_min_u64(ns, egm_mount_lease_left(m, op->mounts[i]));
    }
    return ns;
}

/* False: it has no room for another mount. */
static bool add_mount(struct egm_op *op, uint32_t mount)
{
    for (uint32_t i = 0; i < op->mount_count; i++) {
        if (op->mounts[i] == mount) {
            return true;
        }
    }
    if (op->mount_count == EGM_OP_MOUNTS) {
        return false;
    }
    op->mounts[op->mount_count++] = mount;
    return true;
}

uint32_t egm_ops_renew(struct egm_master *m, uint32_t session, struct egm_buf *out)
{
    uint32_t count = 0;
    EGM_LIST_FOR_EACH (link, &m->ops) {
        struct egm_op *op = egm_container_of(link, struct egm_op, link);
        uint64_t ms = op->session == session ? lease_of(m, op) / 1000000 : 0;
        if (ms == 0 || count == EGM_MAX_RENEWALS) {
            continue;
        }
        if (!EGM_MUTANT(30)) {
            op->until_ns = egm_max_u64(op->until_ns, m->now_ns + egm_ms(ms));
        }
        egm_put_renewal(out, &(struct egm_renewal){.op = op->id, .lease_ms = (uint32_t)ms});
        count++;
    }
    return count;
}

void egm_op_end(struct egm_master *m, struct egm_op *op)
{
    egm_list_remove(&op->link);
    for (uint32_t i = 0; i < op->count; i++) {
        struct egm_object *o = egm_object_at(&m->directory, op->objects[i]);
        o->readers--;
        if (o->state == EGM_OBJECT_REMOVED && o->readers == 0) {
            egm_object_release(m, op->objects[i]);
        }
    }
    egm_free(op);
}

void egm_op_end_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                        struct egm_cursor cursor)
{
    (void)peer, (void)frame; /* one-way: nothing is answered */
    struct egm_op_end end;
    egm_take_op_end(&cursor, &end);
    uint32_t session = egm_session_find(m, end.session);
    for (struct egm_link *link = m->ops.prev; link != &m->ops && session != EGM_NONE;
         link = link->prev) {
        struct egm_op *op = egm_container_of(link, struct egm_op, link);
        if (op->id == end.op && op->session == session) {
            egm_op_end(m, op);
            return;
        }
    }
}

void egm_op_tick(struct egm_master *m)
{
    struct egm_link *link = m->ops.next;
    while (link != &m->ops) {
        struct egm_op *op = egm_container_of(link, struct egm_op, link);
        link = link->next;
        if (op->until_ns <= m->now_ns) {
            egm_op_end(m, op);
        }
    }
}

/* ---- look-ups ---- */
static void hold(struct egm_master *m, struct egm_object *o)
{
    o->hold_until_ns = m->now_ns + egm_ms(m->options.hold_ms);
    egm_eviction_hit(o);
}

/* Starts a request whose head is followed by keys. False: it was malformed, and the peer is going.
 */
static bool begin_keys(struct egm_master *m, struct egm_request *r, uint32_t key_count)
{
    if (!egm_cursor_expect(&r->cursor, key_count, EGM_KEY_CODED_LEAST, EGM_MAX_BATCH_KEYS)) {
        egm_master_violation(m, r->peer, "malformed key list");
        return false;
    }
    r->has_begun = true;
    r->count = key_count;
    r->reply_begin = egm_frame_begin(&r->reply, (uint16_t)(r->frame.type + 1), r->frame.request);
    return true;
}

/* Finds the next window of the request's keys. Returns its size, 0 at the end or when the list is
 * broken. */
static uint32_t find_window(struct egm_master *m, struct egm_request *r, struct egm_bytes *keys,
                            uint32_t *ret_ids)
{
    uint64_t hashes[EGM_FIND_WINDOW];
    uint32_t count = egm_request_keys(m, r, keys);
    egm_directory_find_many(&m->directory, r->tenant, keys, count, hashes, ret_ids);
    return count;
}

/* The window's objects that the session could get; the others become EGM_NO_OBJECT. */
static uint32_t find_visible(struct egm_master *m, struct egm_request *r, uint32_t *ret_ids)
{
    struct egm_bytes keys[EGM_FIND_WINDOW];
    uint32_t count = find_window(m, r, keys, ret_ids);
    for (uint32_t i = 0; i < count; i++) {
        if (ret_ids[i] != EGM_NO_OBJECT &&
            !egm_object_is_visible(m, egm_object_at(&m->directory, ret_ids[i]), r->session)) {
            ret_ids[i] = EGM_NO_OBJECT;
        }
    }
    return count;
}

static enum egm_step broken_keys(struct egm_master *m, struct egm_request *r)
{
    egm_master_violation(m, r->peer, "malformed keys");
    return EGM_STEP_DONE;
}

enum egm_step egm_exist_step(struct egm_master *m, struct egm_request *r)
{
    if (!r->has_begun) {
        struct egm_exist head;
        egm_take_exist(&r->cursor, &head);
        if (!begin_keys(m, r, head.key_count)) {
            return EGM_STEP_DONE;
        }
        r->flags = head.flags;
        egm_put_exist_reply(&r->reply, &(struct egm_exist_reply){.count = r->count});
    }
    uint32_t ids[EGM_FIND_WINDOW];
    for (uint32_t n = 0; n < EGM_TURN_KEYS && r->done < r->count;) {
        uint32_t count = find_visible(m, r, ids);
        uint8_t *flags = count > 0 ? egm_buf_extend(&r->reply, count) : NULL;
        if (!flags) {
            return broken_keys(m, r);
        }
        for (uint32_t i = 0; i < count; i++) {
            flags[i] = ids[i] != EGM_NO_OBJECT;
            if (flags[i] && !(r->flags & EGM_PROBE)) {
                hold(m, egm_object_at(&m->directory, ids[i]));
            }
        }
        r->done += count;
        n += count;
    }
    if (r->done < r->count) {
        return EGM_STEP_YIELD;
    }
    egm_master_reply(m, r->peer, &r->reply, r->reply_begin);
    return EGM_STEP_DONE;
}

enum egm_step egm_prefix_step(struct egm_master *m, struct egm_request *r)
{
    if (!r->has_begun) {
        struct egm_prefix head;
        egm_take_prefix(&r->cursor, &head);
        if (!begin_keys(m, r, head.key_count)) {
            return EGM_STEP_DONE;
        }
    }
    uint32_t ids[EGM_FIND_WINDOW];
    bool is_whole = true;
    for (uint32_t n = 0; n < EGM_TURN_KEYS && r->done < r->count && is_whole;) {
        uint32_t count = find_visible(m, r, ids);
        if (count == 0) {
            return broken_keys(m, r);
        }
        for (uint32_t i = 0; i < count && is_whole; i++) {
            is_whole = ids[i] != EGM_NO_OBJECT;
            if (is_whole) {
                hold(m, egm_object_at(&m->directory, ids[i]));
                r->result++;
            }
        }
        r->done += count;
        n += count;
    }
    if (is_whole && r->done < r->count) {
        return EGM_STEP_YIELD;
    }
    egm_put_count_reply(&r->reply, &(struct egm_count_reply){.count = r->result});
    egm_master_reply(m, r->peer, &r->reply, r->reply_begin);
    return EGM_STEP_DONE;
}

/* ---- GET_START ---- */
/* Replicas that may be read: on mounts whose lease runs. A put's entry names all of its replicas.
 */
void egm_put_entry_of(struct egm_buf *out, struct egm_master *m, struct egm_object *o, int status)
{
    struct egm_entry entry = {.status = egm_status_to_wire(status)};
    if (!o || status < 0) {
        egm_put_entry(out, &entry);
        return;
    }
    struct egm_object_replica *replicas = egm_object_replicas(o);
    for (uint32_t i = 0; i < o->replica_count; i++) {
        entry.replica_count += egm_mount_is_leased(m, replicas[i].mount);
    }
    entry.data_type = o->data_type;
    entry.size = o->size;
    entry.checksum = o->checksum;
    entry.generation = o->generation;
    egm_put_entry(out, &entry);
    for (uint32_t i = 0; i < o->replica_count; i++) {
        if (!egm_mount_is_leased(m, replicas[i].mount)) {
            continue;
        }
        egm_put_replica(out, &(struct egm_replica){.mount = replicas[i].mount,
                                                   .extent_count = replicas[i].place_count});
        for (uint32_t k = 0; k < replicas[i].place_count; k++) {
            struct egm_place place = egm_replica_places(&replicas[i])[k];
            egm_put_extent(out, &(struct egm_extent){.offset = place.at * EGM_SLOT,
                                                     .length = place.count * EGM_SLOT});
        }
    }
}

static bool begin_get(struct egm_master *m, struct egm_request *r)
{
    struct egm_get_start head;
    egm_take_get_start(&r->cursor, &head);
    if (!begin_keys(m, r, head.key_count)) {
        return false;
    }
    if (head.op) {
        r->op = egm_alloc(sizeof *r->op + (size_t)r->count * sizeof r->op->objects[0]);
        if (!r->op) {
            egm_request_fail(m, r, -ENOMEM, NULL);
            return false;
        }
        *r->op = (struct egm_op){.id = head.op,
                                 .session = r->session,
                                 .deadline_ns =
                                     m->now_ns + egm_ms(egm_min_u64(head.deadline_ms, 3600000))};
        egm_list_init(&r->op->link);
    }
    egm_put_items_reply(&r->reply, &(struct egm_items_reply){.count = r->count});
    return true;
}

static void get_one(struct egm_master *m, struct egm_request *r, uint32_t id)
{
    if (id == EGM_NO_OBJECT) {
        m->counters.miss_count += r->op != NULL;
        egm_put_entry_of(&r->reply, m, NULL, EGM_E_NOT_FOUND);
        return;
    }
    struct egm_object *o = egm_object_at(&m->directory, id);
    int code = EGM_E_NOT_READY;
    for (uint32_t i = 0; i < o->replica_count && code != EGM_E_AGAIN; i++) {
        uint32_t mount = egm_object_replicas(o)[i].mount;
        if (egm_mount_is_leased(m, mount)) {
            code = !r->op || add_mount(r->op, mount) ? 0 : EGM_E_AGAIN;
        }
    }
    if (code < 0) {
        egm_put_entry_of(&r->reply, m, NULL, code);
        return;
    }
    hold(m, o);
    if (r->op) {
        o->readers++;
        r->op->objects[r->op->count++] = id;
        r->op->bytes += o->size;
        m->counters.hit_count++;
    }
    egm_put_entry_of(&r->reply, m, o, 0);
}

/* The request is over: its op, if any, is listed and leased from now on. What was found in earlier
 * turns was pinned since. Returns the duration to tell. */
static uint32_t list_op(struct egm_master *m, struct egm_request *r)
{
    struct egm_op *op = r->op;
    if (!op) {
        return 0;
    }
    uint64_t ms = lease_of(m, op) / 1000000;
    op->until_ns = m->now_ns + egm_ms(EGM_MUTANT(44) ? ms / 2 : ms);
    egm_list_push_back(&m->ops, &op->link);
    r->op = NULL;
    return (uint32_t)ms;
}

enum egm_step egm_get_step(struct egm_master *m, struct egm_request *r)
{
    if (!r->has_begun && !begin_get(m, r)) {
        return EGM_STEP_DONE;
    }
    if (egm_session_live(m, r->session_id) != r->session) {
        /* It ended while the request gave way; its number may be another's, whose PINGs must not
         * renew this op. */
        egm_request_fail(m, r, EGM_E_NOT_FOUND, NULL);
        return EGM_STEP_DONE;
    }
    uint32_t ids[EGM_FIND_WINDOW];
    for (uint32_t n = 0; n < EGM_TURN_KEYS && r->done < r->count;) {
        uint32_t count = find_visible(m, r, ids);
        if (count == 0) {
            return broken_keys(m, r);
        }
        for (uint32_t i = 0; i < count; i++) {
            get_one(m, r, ids[i]);
        }
        r->done += count;
        n += count;
    }
    if (r->done < r->count) {
        return EGM_STEP_YIELD;
    }
    egm_patch_u32(&r->reply, r->reply_begin + EGM_FRAME_HEADER + 4, list_op(m, r));
    egm_master_reply(m, r->peer, &r->reply, r->reply_begin);
    return EGM_STEP_DONE;
}
