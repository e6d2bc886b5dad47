/* SPDX-License-Identifier: Apache-2.0 */
/* EXIST, PREFIX, GET_START, OP_END: look-ups in prefetched windows; read leases.
 *
 * A lease belongs to the operation {session, op}: while it runs, the objects' places are not reused
 * (I3 a), whatever is removed meanwhile. It ends by OP_END, at its deadline, or with its session.
 * The duration told to the requester never reaches beyond the provider's own lease on the mounts
 * involved (I13). */
#include "base/alloc.h"
#include "base/checked.h"
#include "base/mutant.h"

#include "core/master_state.h"

#include <errno.h>

/* ---- read ops ---- */
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

void egm_op_end_message(struct egm_master *m, struct egm_cursor cursor)
{
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
    r->deadline_ns = m->now_ns + egm_ms(egm_min_u64(head.deadline_ms, 3600000));
    /* A session whose time is up lives until the next tick: it is promised nothing beyond. */
    uint64_t until_ns = egm_max_u64(m->sessions[r->session].until_ns, m->now_ns);
    r->result = egm_min_u64(head.deadline_ms, (until_ns - m->now_ns) / 1000000);
    if (head.op) {
        r->op = egm_alloc(sizeof *r->op + (size_t)r->count * sizeof r->op->objects[0]);
        if (!r->op) {
            egm_request_fail(m, r, -ENOMEM, NULL);
            return false;
        }
        *r->op = (struct egm_op){.id = head.op, .session = r->session};
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
    uint64_t lease_ns = 0;
    for (uint32_t i = 0; i < o->replica_count; i++) {
        uint32_t mount = egm_object_replicas(o)[i].mount;
        if (egm_mount_is_leased(m, mount)) {
            lease_ns = egm_max_u64(
                lease_ns, m->providers[m->mounts[mount].provider].lease_until_ns - m->now_ns);
        }
    }
    if (lease_ns == 0) {
        egm_put_entry_of(&r->reply, m, NULL, EGM_E_NOT_READY);
        return;
    }
    hold(m, o);
    if (r->op) {
        o->readers++;
        r->op->objects[r->op->count++] = id;
        r->result = egm_min_u64(r->result, lease_ns / 1000000);
        m->counters.hit_count++;
    }
    egm_put_entry_of(&r->reply, m, o, 0);
}

/* The objects found so far stay leased while the request gives way: it is listed from the first one
 * on. */
static void list_op(struct egm_master *m, struct egm_request *r)
{
    if (r->op) {
        r->op->until_ns = EGM_MUTANT(44) ? m->now_ns + egm_ms(r->result / 4) : r->deadline_ns;
        egm_list_push_back(&m->ops, &r->op->link);
        r->op = NULL;
    }
}

enum egm_step egm_get_step(struct egm_master *m, struct egm_request *r)
{
    if (!r->has_begun && !begin_get(m, r)) {
        return EGM_STEP_DONE;
    }
    uint32_t ids[EGM_FIND_WINDOW];
    for (uint32_t n = 0; n < EGM_TURN_KEYS && r->done < r->count;) {
        uint32_t count = find_visible(m, r, ids);
        if (count == 0) {
            list_op(m, r);
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
    list_op(m, r);
    /* Only now is the shortest lease among the mounts known. */
    egm_patch_u32(&r->reply, r->reply_begin + EGM_FRAME_HEADER + 4, (uint32_t)r->result);
    egm_master_reply(m, r->peer, &r->reply, r->reply_begin);
    return EGM_STEP_DONE;
}
