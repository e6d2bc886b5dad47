/* SPDX-License-Identifier: Apache-2.0 */
/* REMOVE, REMOVE_ALL, REMOVE_MATCHING. All answer only when each reachable provider has recorded
 * what went (I12).
 *
 * A forced REMOVE_ALL raises its tenant's floor: everything older is invisible at once, however
 * much it is, and a sweep takes it away later. The others walk keys or the slab and give way every
 * EGM_TURN_KEYS of them; one that matches a pattern also as soon as matching alone took MATCH_NS,
 * since a key may cost anything from a tenth of a microsecond to some hundred (master/regex.c). */
#include "base/alloc.h"
#include "base/checked.h"
#include "base/mutant.h"

#include "core/master_state.h"

#include <errno.h>
#include <string.h>

#define MATCH_NS 100000u
#define WAIT_MS 10000u /* for a provider that is connected but does not answer */

/* Also what no get would find now, because its provider is away: it must not come back with it
 * (I12). */
static bool is_removable(const struct egm_master *m, const struct egm_object *o)
{
    return o->state == EGM_OBJECT_SEALED && o->generation >= m->directory.tenants[o->tenant].floor;
}

static bool is_busy(const struct egm_master *m, const struct egm_object *o, bool force)
{
    return !force && (o->readers > 0 || egm_object_is_held(m, o));
}

static void remove_and_wait(struct egm_master *m, struct egm_request *r, uint32_t id)
{
    uint64_t generation = egm_object_at(&m->directory, id)->generation;
    egm_object_remove(m, id, false);
    /* The slot may be free already, or another object's. */
    if (egm_object_at(&m->directory, id)->generation == generation &&
        egm_object_is_unrecorded(m, id)) {
        egm_request_wait(m, r, id);
    }
}

/* The end of all three: parks until what was removed is recorded, then sends `reply`. */
static enum egm_step finish(struct egm_master *m, struct egm_request *r)
{
    if (r->waiting == 0 && r->is_unsure) {
        egm_request_fail(m, r, -ENOMEM, "the master is short of memory, ask again");
        return EGM_STEP_DONE;
    }
    if (r->waiting == 0 || EGM_MUTANT(13)) {
        egm_master_reply(m, r->peer, &r->reply, r->reply_begin);
        return EGM_STEP_DONE;
    }
    if (m->now_ns < r->deadline_ns) {
        return EGM_STEP_PARK;
    }
    egm_request_fail(m, r, EGM_E_TIMEOUT, "a provider has not recorded the removal in time");
    return EGM_STEP_DONE;
}

/* ---- by key ---- */
static int remove_one(struct egm_master *m, struct egm_request *r, struct egm_bytes key)
{
    uint64_t hash = egm_directory_hash(&m->directory, r->tenant, key);
    uint32_t id = egm_directory_find(&m->directory, r->tenant, hash, key);
    struct egm_object *o = id == EGM_NO_OBJECT ? NULL : egm_object_at(&m->directory, id);
    if (!o || !is_removable(m, o)) {
        return EGM_E_NOT_FOUND;
    }
    if (is_busy(m, o, r->flags & EGM_FORCE)) {
        return EGM_E_LEASED;
    }
    remove_and_wait(m, r, id);
    return 0;
}

enum egm_step egm_remove_step(struct egm_master *m, struct egm_request *r)
{
    if (!r->has_begun) {
        struct egm_remove head;
        egm_take_remove(&r->cursor, &head);
        if (!egm_cursor_expect(&r->cursor, head.key_count, EGM_KEY_CODED_LEAST,
                               EGM_MAX_BATCH_KEYS)) {
            egm_master_violation(m, r->peer, "malformed REMOVE");
            return EGM_STEP_DONE;
        }
        r->has_begun = true;
        r->count = head.key_count;
        r->flags = head.flags;
        r->deadline_ns = m->now_ns + egm_ms(WAIT_MS);
        r->reply_begin = egm_frame_begin(&r->reply, EGM_MSG_REMOVE_REPLY, r->frame.request);
        egm_put_results_reply(&r->reply, &(struct egm_results_reply){.count = r->count});
    }
    for (uint32_t n = 0; n < EGM_TURN_KEYS && r->done < r->count; n++, r->done++) {
        struct egm_bytes key = egm_take_key(&r->keys, &r->cursor);
        if (r->cursor.failed) {
            egm_master_violation(m, r->peer, "malformed keys in REMOVE");
            return EGM_STEP_DONE;
        }
        egm_put_result(&r->reply,
                       &(struct egm_result){.status = egm_status_to_wire(remove_one(m, r, key))});
    }
    return r->done < r->count ? EGM_STEP_YIELD : finish(m, r);
}

/* ---- many ---- */
static void begin_count(struct egm_master *m, struct egm_request *r)
{
    r->has_begun = true;
    r->deadline_ns = m->now_ns + egm_ms(WAIT_MS);
}

static enum egm_step finish_count(struct egm_master *m, struct egm_request *r)
{
    egm_buf_clear(&r->reply);
    r->reply_begin = egm_frame_begin(&r->reply, (uint16_t)(r->frame.type + 1), r->frame.request);
    egm_put_count_reply(&r->reply, &(struct egm_count_reply){.count = r->result});
    return finish(m, r);
}

/* Looks at the next slots of the slab; true when the walk is over. match NULL: every key. */
static bool scan(struct egm_master *m, struct egm_request *r)
{
    uint32_t end = (uint32_t)egm_min_u64(r->scan + EGM_TURN_KEYS, m->directory.slot_count);
    uint64_t cost_ns = 0;
    for (; r->scan < end && cost_ns < MATCH_NS; r->scan++) {
        struct egm_object *o = egm_object_at(&m->directory, r->scan);
        if (o->state != EGM_OBJECT_SEALED || o->tenant != r->tenant || !is_removable(m, o) ||
            is_busy(m, o, r->flags & EGM_FORCE)) {
            continue;
        }
        if (r->regex &&
            m->io.regex_match(m->io.arg, r->regex, o->key, o->key_size, &cost_ns) <= 0) {
            continue;
        }
        remove_and_wait(m, r, r->scan);
        r->result++;
    }
    r->count = EGM_TURN_KEYS + 1; /* counts as a long request for the turn */
    return r->scan >= m->directory.slot_count;
}

enum egm_step egm_remove_all_step(struct egm_master *m, struct egm_request *r)
{
    if (!r->has_begun) {
        struct egm_remove_all head;
        egm_take_remove_all(&r->cursor, &head);
        if (egm_cursor_end(&r->cursor) < 0) {
            egm_master_violation(m, r->peer, "malformed REMOVE_ALL");
            return EGM_STEP_DONE;
        }
        begin_count(m, r);
        r->flags = head.flags;
        if (head.flags & EGM_FORCE) {
            struct egm_tenant *tenant = &m->directory.tenants[r->tenant];
            r->result = tenant->sealed_count;
            tenant->floor = egm_master_generation(m) + 1;
            tenant->sealed_count = 0;
            egm_record_floor(m, r->tenant, r);
            egm_master_sweep(m);
        }
    }
    if (!(r->flags & EGM_FORCE) && !scan(m, r)) {
        return EGM_STEP_YIELD;
    }
    return finish_count(m, r);
}

enum egm_step egm_remove_matching_step(struct egm_master *m, struct egm_request *r)
{
    if (!r->has_begun) {
        struct egm_remove_matching head;
        char pattern[EGM_MAX_REGEX + 1];
        char reason[256] = "the pattern is empty, longer than 4096 bytes, or holds a zero byte";
        egm_take_remove_matching(&r->cursor, &head);
        if (egm_cursor_end(&r->cursor) < 0) {
            egm_master_violation(m, r->peer, "malformed REMOVE_MATCHING");
            return EGM_STEP_DONE;
        }
        bool is_usable = head.pattern.size > 0 && head.pattern.size <= EGM_MAX_REGEX &&
                         !memchr(head.pattern.data, 0, head.pattern.size);
        if (is_usable) {
            memcpy(pattern, head.pattern.data, head.pattern.size);
            pattern[head.pattern.size] = '\0';
        }
        if (!is_usable ||
            m->io.regex_compile(m->io.arg, pattern, &r->regex, reason, sizeof reason) < 0) {
            egm_request_fail(m, r, EGM_E_INVALID, reason);
            return EGM_STEP_DONE;
        }
        begin_count(m, r);
        r->flags = head.flags;
    }
    return scan(m, r) ? finish_count(m, r) : EGM_STEP_YIELD;
}
