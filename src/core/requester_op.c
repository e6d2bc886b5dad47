/* SPDX-License-Identifier: Apache-2.0 */
/* Passes, windows, requests and answers of put and get: the drawing is in requester.h.
 *
 * A window is built when the one before is finished, and stays as it is until its items have
 * results or go to the next pass: a request that failed on the way is sent again for the same
 * items. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"

#include "core/requester.h"
#include "wire/keys.h"
#include "wire/status.h"

#include <errno.h>
#include <string.h>

/* Smallest records of an answer. */
#define ENTRY_BYTES 30u
#define REPLICA_BYTES 5u
#define EXTENT_BYTES 16u

/* How often one item is asked for. The third try meets a pool that changes faster than we can copy,
 * or is broken. */
#define ATTEMPTS_MAX 3u

#define NS_PER_MS UINT64_C(1000000)

/* ---- passes and windows ---- */

static uint64_t window_bytes_max(const struct egm_op *op)
{
    return op->is_put ? EGM_WINDOW_PUT_BYTES : EGM_WINDOW_GET_BYTES;
}

/* O3 */
static void build_window(struct egm_op *op)
{
    uint64_t bytes = 0;

    op->window_count = 0;
    op->granted_count = 0;
    op->place_count = 0;
    op->extent_count = 0;
    for (; op->next < op->count && op->window_count < EGM_WINDOW_KEYS; op->next++) {
        struct egm_op_item *item = &op->items[op->next];
        if (item->state != EGM_ITEM_WAITING) {
            continue;
        }
        uint64_t left = window_bytes_max(op) - egm_min_u64(bytes, window_bytes_max(op));
        if (op->window_count > 0 && item->size > left) {
            break;
        }
        bytes += item->size;
        item->state = EGM_ITEM_ASKED;
        op->window[op->window_count++] = (uint32_t)op->next;
    }
}

static void finish_retries(struct egm_op *op, int code)
{
    for (size_t i = 0; i < op->count; i++) {
        if (op->items[i].state == EGM_ITEM_RETRY) {
            egm_op_item_finish(&op->items[i],
                               op->items[i].copy_status < 0 ? op->items[i].copy_status : code);
        }
    }
}

static void wait_until(struct egm_op *op, enum egm_op_step resume, uint64_t at_ns,
                       bool wants_layout)
{
    op->resume = resume;
    op->wait_until_ns = at_ns;
    op->wants_layout = wants_layout;
    op->step = EGM_OP_WAIT;
}

/* The window is finished: the next one, the next pass, or the end. */
static void advance(struct egm_op *op, uint64_t now_ns)
{
    uint64_t at_ns;

    build_window(op);
    if (op->window_count > 0) {
        op->step = EGM_OP_ASK;
        return;
    }
    if (!op->has_retries) {
        op->step = EGM_OP_DONE;
        return;
    }
    op->has_retries = false;
    int r = egm_retry_decide(&op->retry, op->retry_code, now_ns, &at_ns);
    if (r < 0) {
        finish_retries(op, r);
        op->step = EGM_OP_DONE;
        return;
    }
    for (size_t i = 0; i < op->count; i++) {
        if (op->items[i].state == EGM_ITEM_RETRY) {
            op->items[i].state = EGM_ITEM_WAITING;
        }
    }
    op->next = 0;
    build_window(op);
    wait_until(op, EGM_OP_ASK, at_ns, /*wants_layout=*/true);
}

static bool is_worth_a_retry(int code)
{
    switch (code) {
    case EGM_E_AGAIN:
    case EGM_E_STALE:
    case EGM_E_NOT_OWNER:
    case EGM_E_NOT_READY:
    case EGM_E_PEER_GONE:
    case EGM_E_TRANSFER:
        return true;
    default:
        return false;
    }
}

/* Asks for the item once more in the next pass, or decides it. */
static void retry_item(struct egm_op *op, struct egm_op_item *item, int code)
{
    bool is_waiting =
        code == EGM_E_AGAIN || code == EGM_E_NOT_READY; /* bounded by time, not by count */

    if (!is_worth_a_retry(code) || (!is_waiting && ++item->attempt_count >= ATTEMPTS_MAX)) {
        egm_op_item_finish(item, code);
        return;
    }
    item->state = EGM_ITEM_RETRY;
    item->copy_status = code;
    op->has_retries = true;
    op->retry_code = code;
}

void egm_op_init(struct egm_op *op, bool is_put, struct egm_op_item *items, size_t count,
                 uint64_t deadline_ns, uint64_t gone_since_ns)
{
    /* Not all of it: the window is filled before it is read. */
    op->items = items;
    op->count = count;
    op->is_put = is_put;
    op->wants_layout = false;
    op->wait_until_ns = 0;
    op->resume = EGM_OP_DONE;
    op->retry = (struct egm_retry){.deadline_ns = deadline_ns, .gone_since_ns = gone_since_ns};
    op->next = 0;
    op->has_retries = false;
    op->is_answered = false;
    op->is_end_answered = false;
    op->retry_code = 0;
    op->reading = (struct egm_reading){0};
    egm_list_init(&op->reading.link);
    op->places = NULL;
    op->place_cap = 0;
    op->extents = NULL;
    op->extent_cap = 0;
    op->writes = NULL;
    op->write_cap = 0;
    op->set = (struct egm_write_set){0};
    egm_list_init(&op->set.link);
    advance(op, 0);
}

void egm_op_release(struct egm_op *op)
{
    EGM_ASSERT(!op->set.is_open && !op->reading.is_open);
    egm_free(op->places);
    egm_free(op->extents);
    egm_free(op->writes);
}

void egm_op_abort(struct egm_op *op, int code)
{
    for (size_t i = 0; i < op->count; i++) {
        if (op->items[i].state != EGM_ITEM_DONE) {
            egm_op_item_finish(&op->items[i], code);
        }
    }
    op->step = EGM_OP_DONE;
}

void egm_op_failed(struct egm_op *op, int code, uint64_t now_ns)
{
    uint64_t at_ns;
    int r = egm_retry_decide(&op->retry, code, now_ns, &at_ns);

    if (r < 0) {
        egm_op_abort(op, r);
        return;
    }
    wait_until(op, op->step, at_ns, code == EGM_E_NOT_READY || code == EGM_E_STALE);
}

void egm_op_resume(struct egm_op *op)
{
    EGM_ASSERT(op->step == EGM_OP_WAIT);
    op->wants_layout = false;
    op->step = op->resume;
}

bool egm_op_is_end_due(const struct egm_op *op)
{
    return op->step == EGM_OP_COPY || op->step == EGM_OP_END ||
           (op->step == EGM_OP_WAIT && op->resume == EGM_OP_END);
}

/* ---- requests ---- */

static uint32_t deadline_ms(const struct egm_op *op, uint64_t now_ns)
{
    uint64_t left_ns = op->retry.deadline_ns > now_ns ? op->retry.deadline_ns - now_ns : 0;

    return (uint32_t)egm_min_u64(egm_div_ceil_u64(left_ns, NS_PER_MS), UINT32_MAX);
}

static void put_keys(const struct egm_op *op, struct egm_buf *buf)
{
    struct egm_key_writer writer = {0};

    for (size_t i = 0; i < op->window_count; i++) {
        const struct egm_key *key = &op->items[op->window[i]].key;
        /* Sizes were checked before the item came here; a full buffer remembers. */
        egm_ignore(egm_put_key(&writer, buf, key->data, key->size), "see buf->failed");
    }
}

int egm_put_encode_ask(struct egm_op *op, const struct egm_requester *r,
                       const struct egm_put_params *params, struct egm_buf *buf, uint64_t request,
                       uint64_t now_ns)
{
    struct egm_put_start head = {.session = r->session,
                                 .deadline_ms = deadline_ms(op, now_ns),
                                 .flags = params->flags,
                                 .replica_count = params->replica_count,
                                 .soft_pin = params->soft_pin,
                                 .data_type = params->data_type,
                                 .soft_pin_ttl_ms = params->soft_pin_ttl_ms,
                                 .preferred_count = (uint32_t)params->preferred_count,
                                 .key_count = (uint32_t)op->window_count};
    size_t begin = egm_frame_begin(buf, EGM_MSG_PUT_START, request);

    egm_put_put_start(buf, &head);
    for (size_t i = 0; i < params->preferred_count; i++) {
        struct egm_name name = {
            .text = egm_bytes_of(params->preferred_names[i], strlen(params->preferred_names[i]))};
        egm_put_name(buf, &name);
    }
    for (size_t i = 0; i < op->window_count; i++) {
        const struct egm_op_item *item = &op->items[op->window[i]];
        struct egm_want want = {.size = item->size};
        if (item->group) {
            want.group = egm_bytes_of(item->group, strlen(item->group));
        }
        egm_put_want(buf, &want);
    }
    put_keys(op, buf);
    egm_frame_end(buf, begin);
    return buf->failed;
}

int egm_get_encode_ask(struct egm_op *op, const struct egm_requester *r, uint64_t op_id,
                       struct egm_buf *buf, uint64_t request, uint64_t now_ns)
{
    struct egm_get_start head = {.session = r->session,
                                 .op = op_id,
                                 .deadline_ms = deadline_ms(op, now_ns),
                                 .key_count = (uint32_t)op->window_count};
    size_t begin = egm_frame_begin(buf, EGM_MSG_GET_START, request);

    op->reading.op_id = op_id;
    egm_put_get_start(buf, &head);
    put_keys(op, buf);
    egm_frame_end(buf, begin);
    return buf->failed;
}

/* ---- answers ---- */

/* Room for every place and extent that a payload of this size can name. */
static int reserve(struct egm_op *op, size_t payload_size)
{
    size_t place_max = payload_size / (REPLICA_BYTES + EXTENT_BYTES) + 1;
    size_t extent_max = payload_size / EXTENT_BYTES + 1;

    if (op->place_cap < place_max) {
        egm_free(op->places);
        op->place_cap = 0;
        op->places = egm_alloc(place_max * sizeof(*op->places));
        if (!op->places) {
            return -ENOMEM;
        }
        op->place_cap = place_max;
    }
    if (op->extent_cap < extent_max) {
        egm_free(op->extents);
        op->extent_cap = 0;
        op->extents = egm_alloc(extent_max * sizeof(*op->extents));
        if (!op->extents) {
            return -ENOMEM;
        }
        op->extent_cap = extent_max;
    }
    if (op->is_put && op->write_cap < place_max) {
        egm_free(op->writes);
        op->write_cap = 0;
        op->writes = egm_alloc(place_max * sizeof(*op->writes));
        if (!op->writes) {
            return -ENOMEM;
        }
        op->write_cap = place_max;
    }
    return 0;
}

static bool is_extent_sane(const struct egm_extent *extent)
{
    return extent->length > 0 && extent->length % EGM_SLOT == 0 && extent->offset % EGM_SLOT == 0 &&
           extent->offset < EGM_MAX_SEGMENT_BYTES &&
           extent->length <= EGM_MAX_SEGMENT_BYTES - extent->offset;
}

/* Reads one replica into the next place; its extents must hold `size` bytes. */
static bool take_place(struct egm_op *op, struct egm_cursor *cursor, uint64_t size)
{
    struct egm_replica replica;
    uint64_t room = 0;

    egm_take_replica(cursor, &replica);
    if (cursor->failed || replica.extent_count == 0 ||
        !egm_cursor_expect(cursor, replica.extent_count, EXTENT_BYTES, EGM_MAX_EXTENTS)) {
        return false;
    }
    struct egm_extent *extents = &op->extents[op->extent_count];
    for (uint8_t i = 0; i < replica.extent_count; i++) {
        egm_take_extent(cursor, &extents[i]);
        if (!is_extent_sane(&extents[i])) {
            return false;
        }
        room += extents[i].length; /* 16 * 2^44 at most */
    }
    op->extent_count += replica.extent_count;
    op->places[op->place_count++] = (struct egm_place){
        .mount = replica.mount, .extents = extents, .extent_count = replica.extent_count};
    return room >= size;
}

/* Reads one entry into its item's fields; statuses are applied only when the whole answer has been
 * read (O5). */
static bool take_entry(struct egm_op *op, struct egm_cursor *cursor, struct egm_op_item *item)
{
    struct egm_entry entry;

    egm_take_entry(cursor, &entry);
    if (cursor->failed || entry.status > 0 || entry.replica_count > EGM_MAX_REPLICAS) {
        return false;
    }
    item->copy_status = egm_status_from_wire(entry.status);
    item->first_place = (uint32_t)op->place_count;
    item->place_count = entry.replica_count;
    item->place_tried = 0;
    item->generation = entry.generation;
    item->checksum = entry.checksum;
    item->object_size = op->is_put ? item->size : entry.size;
    if (entry.status != 0) {
        return entry.replica_count == 0;
    }
    if (entry.replica_count == 0 || entry.generation == 0 || item->object_size == 0 ||
        item->object_size > EGM_MAX_OBJECT_BYTES) {
        return false;
    }
    for (uint8_t i = 0; i < entry.replica_count; i++) {
        if (!take_place(op, cursor, item->object_size)) {
            return false;
        }
    }
    return true;
}

/* Reads all of the answer. 0, the head's status, or EGM_E_PROTO. */
static int take_all(struct egm_op *op, const void *payload, size_t size)
{
    struct egm_cursor cursor = egm_cursor_of(payload, size);
    struct egm_items_reply reply;

    op->place_count = 0;
    op->extent_count = 0;
    egm_take_items_reply(&cursor, &reply);
    if (cursor.failed || reply.status > 0) {
        return EGM_E_PROTO;
    }
    if (reply.status != 0) {
        return egm_cursor_end(&cursor) < 0 ? EGM_E_PROTO : egm_status_from_wire(reply.status);
    }
    if (reply.count != op->window_count ||
        !egm_cursor_expect(&cursor, reply.count, ENTRY_BYTES, EGM_WINDOW_KEYS)) {
        return EGM_E_PROTO;
    }
    op->reading.lease_ms = reply.lease_ms;
    for (size_t i = 0; i < op->window_count; i++) {
        if (!take_entry(op, &cursor, &op->items[op->window[i]])) {
            return EGM_E_PROTO;
        }
    }
    return egm_cursor_end(&cursor);
}

static void resolve(struct egm_op *op, const struct egm_layout_snapshot *layout, uint64_t instance)
{
    for (size_t i = 0; i < op->place_count; i++) {
        struct egm_place *place = &op->places[i];
        const struct egm_layout_mount *mount =
            layout && layout->instance == instance ? egm_layout_find(layout, place->mount) : NULL;
        place->is_known = mount != NULL;
        if (mount) {
            const struct egm_layout_provider *provider = &layout->providers[mount->provider_index];
            place->segment = mount->segment;
            place->provider = provider->provider;
            place->epoch = provider->epoch;
        }
    }
}

static void apply_put(struct egm_op *op, struct egm_op_item *item)
{
    int status = item->copy_status;

    if (status == EGM_E_EXISTS) {
        egm_op_item_finish(item, 0); /* I9: somebody's value is there, and stays */
    } else if (status != 0) {
        retry_item(op, item, status);
    } else {
        item->state = EGM_ITEM_GRANTED;
        op->granted_count++;
    }
}

static void apply_get(struct egm_op *op, struct egm_op_item *item)
{
    int status = item->copy_status;

    if (status == EGM_E_AGAIN) {
        retry_item(op, item, status);
    } else if (status != 0) {
        egm_op_item_finish(item, status);
    } else {
        op->granted_count++; /* leased, whether it fits or not */
        if (item->object_size > item->size) {
            egm_op_item_finish(item, EGM_E_TOO_LARGE);
        } else {
            item->state = EGM_ITEM_GRANTED;
        }
    }
}

static void list_writes(struct egm_op *op)
{
    for (size_t i = 0; i < op->window_count; i++) {
        const struct egm_op_item *item = &op->items[op->window[i]];
        for (uint32_t p = item->first_place;
             item->state == EGM_ITEM_GRANTED && p < item->first_place + item->place_count; p++) {
            const struct egm_place *place = &op->places[p];
            op->writes[p] = (struct egm_writing){.generation = item->generation,
                                                 .provider = place->provider,
                                                 .epoch = place->epoch,
                                                 .segment = place->segment,
                                                 .extent_count = (uint8_t)place->extent_count,
                                                 .state = EGM_WRITE_OPEN,
                                                 .extents = place->extents};
        }
    }
    op->set.writes = op->writes;
    op->set.count = op->place_count;
}

int egm_op_take_answer(struct egm_op *op, const void *payload, size_t size,
                       const struct egm_layout_snapshot *layout, uint64_t instance, uint64_t now_ns)
{
    EGM_ASSERT(op->step == EGM_OP_ASK);
    int r = reserve(op, size);

    if (r == 0) {
        r = take_all(op, payload, size);
    }
    if (r < 0) {
        egm_op_failed(op, r, now_ns);
        return r == EGM_E_PROTO || r == -ENOMEM || r == EGM_E_NOT_FOUND ? r : 0;
    }
    op->is_answered = true;
    op->retry.gone_since_ns = 0;
    resolve(op, layout, instance);
    for (size_t i = 0; i < op->window_count; i++) {
        struct egm_op_item *item = &op->items[op->window[i]];
        if (op->is_put) {
            apply_put(op, item);
        } else {
            apply_get(op, item);
        }
    }
    if (op->granted_count == 0) {
        advance(op, now_ns);
        return 0;
    }
    if (op->is_put) {
        op->is_end_answered = false;
        list_writes(op);
    }
    op->step = EGM_OP_COPY;
    return 0;
}

/* ---- copying ---- */

void egm_put_copied(struct egm_op *op, struct egm_op_item *item, int status, uint64_t checksum)
{
    EGM_ASSERT(op->step == EGM_OP_COPY && item->state == EGM_ITEM_GRANTED);
    item->checksum = checksum;
    if (item->copy_status == 0) {
        item->copy_status = status;
    }
}

void egm_get_copied(struct egm_op *op, struct egm_op_item *item, unsigned place, int status)
{
    EGM_ASSERT(op->step == EGM_OP_COPY && item->state == EGM_ITEM_GRANTED &&
               place < item->place_count);
    item->place_tried |= (uint8_t)(1u << place);
    if (status == 0) {
        egm_op_item_finish(item, (int64_t)item->object_size);
        egm_retry_reset(&op->retry);
        return;
    }
    /* A mismatch says most about the object: it is what the caller hears if all places fail. */
    if (item->copy_status != EGM_E_CHECKSUM) {
        item->copy_status = status;
    }
    if (status == EGM_E_TIMEOUT || status == EGM_E_CLOSED || status == EGM_E_INVALID ||
        status == -ENOMEM) {
        egm_op_item_finish(item, status);
    }
}

void egm_op_copy_done(struct egm_op *op)
{
    EGM_ASSERT(op->step == EGM_OP_COPY);
    for (size_t i = 0; !op->is_put && i < op->window_count; i++) {
        struct egm_op_item *item = &op->items[op->window[i]];
        if (item->state == EGM_ITEM_GRANTED) {
            retry_item(op, item, item->copy_status != 0 ? item->copy_status : EGM_E_NOT_READY);
        }
    }
    op->step = EGM_OP_END;
}

/* ---- ending ---- */

int egm_put_encode_end(struct egm_op *op, const struct egm_requester *r, struct egm_buf *buf,
                       uint64_t request)
{
    struct egm_put_end head = {.session = r->session, .count = (uint32_t)op->granted_count};
    size_t begin = egm_frame_begin(buf, EGM_MSG_PUT_END, request);

    egm_put_put_end(buf, &head);
    for (size_t i = 0; i < op->window_count; i++) {
        const struct egm_op_item *item = &op->items[op->window[i]];
        if (item->state == EGM_ITEM_GRANTED) {
            struct egm_ended ended = {.generation = item->generation,
                                      .checksum = item->checksum,
                                      .outcome = item->copy_status == 0 ? 0 : 1};
            egm_put_ended(buf, &ended);
        }
    }
    egm_frame_end(buf, begin);
    return buf->failed;
}

int egm_get_encode_end(struct egm_op *op, const struct egm_requester *r, struct egm_buf *buf)
{
    struct egm_op_end head = {.session = r->session, .op = op->reading.op_id};
    size_t begin = egm_frame_begin(buf, EGM_MSG_OP_END, 0);

    egm_put_op_end(buf, &head);
    egm_frame_end(buf, begin);
    return buf->failed;
}

static void apply_end(struct egm_op *op, struct egm_op_item *item, int status)
{
    if (item->copy_status != 0) {
        retry_item(op, item, item->copy_status);
    } else if (status == 0) {
        egm_op_item_finish(item, 0);
        egm_retry_reset(&op->retry);
    } else {
        /* The master does not have this write (any more): it was revoked, or another master
         * reigns. */
        retry_item(op, item, status == EGM_E_NOT_FOUND ? EGM_E_STALE : status);
    }
}

int egm_put_take_end_answer(struct egm_op *op, const void *payload, size_t size, uint64_t now_ns)
{
    EGM_ASSERT(op->step == EGM_OP_END && op->is_put);
    int statuses[EGM_WINDOW_KEYS];
    int r = egm_results_parse(payload, size, op->granted_count, statuses);

    if (r < 0) {
        egm_op_failed(op, r, now_ns);
        return r == EGM_E_PROTO || r == EGM_E_NOT_FOUND ? r : 0;
    }
    op->is_end_answered = true;
    op->retry.gone_since_ns = 0;
    size_t next = 0;
    for (size_t i = 0; i < op->window_count; i++) {
        struct egm_op_item *item = &op->items[op->window[i]];
        if (item->state == EGM_ITEM_GRANTED) {
            apply_end(op, item, statuses[next++]);
        }
    }
    advance(op, now_ns);
    return 0;
}

void egm_get_ended(struct egm_op *op, uint64_t now_ns)
{
    EGM_ASSERT(op->step == EGM_OP_END && !op->is_put);
    advance(op, now_ns);
}
