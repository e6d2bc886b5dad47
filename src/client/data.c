/* SPDX-License-Identifier: Apache-2.0 */
/* put and get: turns the steps of core's operations into requests and copies.
 *
 * While a window is copied the call holds the view with which the window's places were resolved,
 * hence every attachment that it may use stays mapped. It holds no connection and no lock; guards
 * take store->lock for an instant per chunk.
 *
 * A put copies to all places of an item. A get reads from the best one and, if that fails, from the
 * next: mapped before tcp, trusted before suspect. A place that failed makes its provider suspect,
 * here for SUSPECT_S seconds, and at the master for this session (I6). */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/log.h"

#include "client/internal.h"
#include "os/clock.h"
#include "os/wait.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SUSPECT_S 10u
/* Notices that nobody waits for must not make a call late (I8: deadline + 100 ms). */
#define NOTICE_NS (50 * EGM_NS_PER_MS)
#define RANK_NONE 4u

struct guard {
    struct egm_store *store;
    struct egm_writing *write;   /* NULL: a read */
    struct egm_reading *reading; /* NULL: a write, or a mover that looks at the fences itself */
};

struct data_call {
    struct egm_store *store;
    const struct egm_put_params *params; /* put */
    struct egm_op op;
    uint64_t deadline_ns;
    struct egm_view *view; /* of the window being copied; NULL: none */

    struct egm_transfer *transfers;
    struct guard *guards;
    uint32_t *item_of;  /* transfer -> index in op.items */
    uint32_t *place_of; /* transfer -> index in op.places */
    size_t cap, count;
};

static int check_guard(void *arg)
{
    const struct guard *guard = arg;
    struct egm_store *store = guard->store;

    if (egm_store_is_dead(store)) {
        return EGM_E_CLOSED;
    }
    int r = egm_wait_look();
    if (r < 0 || (!guard->write && !guard->reading)) {
        return r;
    }
    pthread_mutex_lock(&store->lock);
    r = guard->write ? egm_requester_may_write(&store->requester, guard->write, egm_clock_ns())
                     : egm_requester_may_read(&store->requester, guard->reading, egm_clock_ns());
    pthread_mutex_unlock(&store->lock);
    return r;
}

/* ---- transfers ---- */

static int reserve(struct data_call *call, size_t count)
{
    if (count <= call->cap) {
        return 0;
    }
    egm_free(call->transfers);
    egm_free(call->guards);
    egm_free(call->item_of);
    egm_free(call->place_of);
    call->cap = 0;
    call->transfers = egm_alloc(count * sizeof(*call->transfers));
    call->guards = egm_alloc(count * sizeof(*call->guards));
    call->item_of = egm_alloc(count * sizeof(*call->item_of));
    call->place_of = egm_alloc(count * sizeof(*call->place_of));
    if (!call->transfers || !call->guards || !call->item_of || !call->place_of) {
        return -ENOMEM;
    }
    call->cap = count;
    return 0;
}

static void add_transfer(struct data_call *call, uint32_t item_index, uint32_t place_index,
                         const struct egm_attachment *attachment)
{
    const struct egm_op_item *item = &call->op.items[item_index];
    const struct egm_place *place = &call->op.places[place_index];
    struct egm_transfer *t = &call->transfers[call->count];
    struct guard *guard = &call->guards[call->count];

    *guard =
        (struct guard){.store = call->store,
                       .write = call->op.is_put ? &call->op.writes[place_index] : NULL,
                       .reading = call->op.is_put || attachment->is_map ? NULL : &call->op.reading};
    t->generation = item->generation;
    t->segment = place->segment;
    t->extent_count = place->extent_count;
    memcpy(t->extents, place->extents, place->extent_count * sizeof(*place->extents));
    t->iov = item->iov;
    t->iov_count = item->iov_count;
    t->length = item->object_size;
    t->is_write = call->op.is_put;
    t->has_checksum = item->checksum != 0; /* 0: whoever put it computed none */
    t->checksum = item->checksum;
    t->status = EGM_E_INTERNAL;
    t->guard = check_guard;
    t->guard_arg = guard;
    call->item_of[call->count] = item_index;
    call->place_of[call->count] = place_index;
    call->count++;
}

/* Adds up what the transfers [begin, count) did. Under store->lock. */
static void count_bytes(struct data_call *call, size_t begin, bool is_map)
{
    struct egm_store_counters *counters = &call->store->counters;
    uint64_t *bytes = is_map
                          ? (call->op.is_put ? &counters->map_bytes_in : &counters->map_bytes_out)
                          : (call->op.is_put ? &counters->tcp_bytes_in : &counters->tcp_bytes_out);

    for (size_t i = begin; i < call->count; i++) {
        const struct egm_transfer *t = &call->transfers[i];
        if (t->status == 0) {
            *bytes += t->length;
        }
        counters->stale_reads += !call->op.is_put && t->status == EGM_E_STALE;
        counters->checksum_failures += !call->op.is_put && t->status == EGM_E_CHECKSUM;
    }
}

/* All notices of a call together end by its deadline + NOTICE_NS. */
static uint64_t notice_deadline(const struct data_call *call)
{
    return egm_min_u64(egm_clock_ns(), call->deadline_ns) + NOTICE_NS;
}

static void tell_suspect(struct data_call *call, uint32_t mount)
{
    struct egm_rpc rpc;
    struct egm_attachment *attachment = egm_view_find(call->view, mount);

    pthread_mutex_lock(&call->store->lock);
    uint64_t until_ns = egm_clock_ns() + SUSPECT_S * EGM_NS_PER_S;
    /* Told again when a second of it has passed: it must not end earlier at the master. */
    bool is_new = attachment && attachment->suspect_until_ns + EGM_NS_PER_S < until_ns;
    if (is_new) {
        attachment->suspect_until_ns = until_ns;
    }
    pthread_mutex_unlock(&call->store->lock);
    if (!is_new || egm_store_is_dead(call->store) ||
        egm_rpc_begin(call->store, notice_deadline(call), &rpc, NULL) < 0) {
        return;
    }
    egm_warn("transfer failed mount=%u, suspect for %u s", mount, SUSPECT_S);
    egm_requester_encode_suspect(&call->store->requester, &rpc.connection->out, mount, SUSPECT_S);
    egm_ignore(egm_rpc_post(call->store, &rpc), "the master finds out by itself");
}

static void tell_mismatch(struct data_call *call, const struct egm_op_item *item)
{
    struct egm_rpc rpc;

    if (egm_rpc_begin(call->store, notice_deadline(call), &rpc, NULL) < 0) {
        return;
    }
    egm_requester_encode_mismatch(&call->store->requester, &rpc.connection->out, item->generation,
                                  item->key);
    egm_ignore(egm_rpc_post(call->store, &rpc), "the next reader reports it again");
}

/* As mover.h tells them apart: time that runs out while bytes move, and objects that are gone, say
 * nothing against the provider. */
static bool is_providers_fault(int status)
{
    return status == EGM_E_PEER_GONE || status == EGM_E_TRANSFER;
}

/* Runs the transfers [begin, count), all of one attachment. */
static void run_transfers(struct data_call *call, struct egm_attachment *attachment, size_t begin,
                          uint64_t deadline_ns)
{
    if (begin == call->count) {
        return;
    }
    attachment->import->ops->transfer(attachment->import, call->transfers + begin,
                                      call->count - begin, deadline_ns);
    pthread_mutex_lock(&call->store->lock);
    count_bytes(call, begin, attachment->is_map);
    pthread_mutex_unlock(&call->store->lock);
    for (size_t i = begin; i < call->count; i++) {
        if (is_providers_fault(call->transfers[i].status)) {
            tell_suspect(call, call->op.places[call->place_of[i]].mount);
            return;
        }
    }
}

static struct egm_attachment *attachment_of(const struct data_call *call,
                                            const struct egm_place *place)
{
    return call->view && place->is_known ? egm_view_find(call->view, place->mount) : NULL;
}

/* The view's attachments in the order in which a window is copied: mapped ones first, since they
 * never wait for a peer and a silent one must not use up their time. NULL at the end. */
static struct egm_attachment *attachment_in_turn(const struct data_call *call, uint32_t turn)
{
    for (unsigned pass = 0; pass < 2 && call->view; pass++) {
        for (uint32_t i = 0; i < call->view->layout->provider_count; i++) {
            struct egm_attachment *attachment = call->view->attachments[i];
            if (attachment && attachment->is_map == (pass == 0) && turn-- == 0) {
                return attachment;
            }
        }
    }
    return NULL;
}

/* When copying of a put must stop so that PUT_END still gets through: what is written by then
 * counts. */
static uint64_t before_end(const struct data_call *call)
{
    uint64_t now = egm_clock_ns();
    uint64_t left_ns = call->deadline_ns > now ? call->deadline_ns - now : 0;

    return call->deadline_ns - egm_min_u64(left_ns / 8, EGM_NS_PER_S / 2);
}

/* ---- put: COPY ---- */

/* Gathers the window's places that lie with this attachment. */
static void gather_puts(struct data_call *call, const struct egm_attachment *attachment)
{
    struct egm_op *op = &call->op;

    for (size_t i = 0; i < op->window_count; i++) {
        struct egm_op_item *item = &op->items[op->window[i]];
        for (uint32_t p = 0; item->state == EGM_ITEM_GRANTED && p < item->place_count; p++) {
            if (attachment_of(call, &op->places[item->first_place + p]) == attachment) {
                add_transfer(call, op->window[i], item->first_place + p, attachment);
            }
        }
    }
}

static void copy_put(struct data_call *call)
{
    struct egm_op *op = &call->op;

    int r = reserve(call, op->place_count);
    uint64_t until_ns = before_end(call);
    struct egm_attachment *attachment;

    call->count = 0;
    for (uint32_t i = 0; r == 0 && (attachment = attachment_in_turn(call, i)); i++) {
        size_t begin = call->count;
        gather_puts(call, attachment);
        run_transfers(call, attachment, begin, until_ns);
    }
    pthread_mutex_lock(&call->store->lock);
    for (size_t i = 0; i < op->set.count; i++) {
        egm_requester_stop_write(&call->store->requester, &op->writes[i]);
    }
    pthread_mutex_unlock(&call->store->lock);
    for (size_t i = 0; i < op->window_count; i++) {
        struct egm_op_item *item = &op->items[op->window[i]];
        for (uint32_t p = 0; item->state == EGM_ITEM_GRANTED && p < item->place_count; p++) {
            if (r < 0 || !attachment_of(call, &op->places[item->first_place + p])) {
                egm_put_copied(op, item, r < 0 ? r : EGM_E_NOT_READY, 0);
            }
        }
    }
    for (size_t i = 0; i < call->count; i++) {
        egm_put_copied(op, &op->items[call->item_of[i]], call->transfers[i].status,
                       call->transfers[i].checksum);
    }
    egm_op_copy_done(op);
}

/* ---- get: COPY ---- */

static unsigned rank(struct egm_attachment *attachment, uint64_t now_ns)
{
    if (!attachment) {
        return RANK_NONE;
    }
    return (attachment->suspect_until_ns > now_ns ? 2u : 0u) + (attachment->is_map ? 0u : 1u);
}

/* The best place not yet tried, or place_count. Under store->lock. */
static unsigned choose(const struct data_call *call, const struct egm_op_item *item,
                       uint64_t now_ns)
{
    unsigned best = item->place_count;
    unsigned best_rank = RANK_NONE;

    for (unsigned p = 0; p < item->place_count; p++) {
        if (item->place_tried & 1u << p) {
            continue;
        }
        unsigned r = rank(attachment_of(call, &call->op.places[item->first_place + p]), now_ns);
        if (r < best_rank) {
            best = p;
            best_rank = r;
        }
    }
    return best;
}

/* Chooses a place for each item that still needs one: its index within the item, or place_count. */
static bool choose_all(struct data_call *call, uint8_t chosen[EGM_WINDOW_KEYS], bool *ret_has_other)
{
    struct egm_op *op = &call->op;
    uint64_t now = egm_clock_ns();
    bool has_any = false;

    *ret_has_other = false;
    pthread_mutex_lock(&call->store->lock);
    for (size_t i = 0; i < op->window_count; i++) {
        const struct egm_op_item *item = &op->items[op->window[i]];
        chosen[i] = UINT8_MAX;
        if (item->state == EGM_ITEM_GRANTED) {
            unsigned p = choose(call, item, now);
            if (p < item->place_count) {
                chosen[i] = (uint8_t)p;
                has_any = true;
                *ret_has_other =
                    *ret_has_other ||
                    item->place_count - (unsigned)__builtin_popcount(item->place_tried) > 1;
            }
        }
    }
    pthread_mutex_unlock(&call->store->lock);
    return has_any;
}

static void gather_gets(struct data_call *call, const uint8_t chosen[EGM_WINDOW_KEYS],
                        const struct egm_attachment *attachment)
{
    struct egm_op *op = &call->op;

    for (size_t i = 0; i < op->window_count; i++) {
        if (chosen[i] == UINT8_MAX) {
            continue;
        }
        uint32_t place = op->items[op->window[i]].first_place + chosen[i];
        if (attachment_of(call, &op->places[place]) == attachment) {
            add_transfer(call, op->window[i], place, attachment);
        }
    }
}

static void apply_gets(struct data_call *call)
{
    struct egm_op *op = &call->op;

    for (size_t i = 0; i < call->count; i++) {
        struct egm_op_item *item = &op->items[call->item_of[i]];
        int status = call->transfers[i].status;
        /* With another replica to try, a slow provider costs its share of the deadline, not the
         * item. */
        if (status == EGM_E_TIMEOUT && egm_clock_ns() < call->deadline_ns) {
            status = EGM_E_PEER_GONE;
        }
        egm_get_copied(op, item, call->place_of[i] - item->first_place, status);
        if (status == EGM_E_CHECKSUM) {
            tell_mismatch(call, item);
        }
    }
}

static void copy_get(struct data_call *call)
{
    struct egm_op *op = &call->op;
    uint8_t chosen[EGM_WINDOW_KEYS];
    bool has_other;

    int r = reserve(call, op->window_count);
    for (size_t i = 0; r < 0 && i < op->window_count; i++) {
        struct egm_op_item *item = &op->items[op->window[i]];
        if (item->state == EGM_ITEM_GRANTED) {
            egm_get_copied(op, item, 0, r);
        }
    }
    while (r == 0 && call->view && choose_all(call, chosen, &has_other)) {
        uint64_t now = egm_clock_ns();
        uint64_t left_ns = call->deadline_ns > now ? call->deadline_ns - now : 0;
        struct egm_attachment *attachment;
        call->count = 0;
        for (uint32_t i = 0; (attachment = attachment_in_turn(call, i)); i++) {
            size_t begin = call->count;
            gather_gets(call, chosen, attachment);
            run_transfers(call, attachment, begin,
                          has_other ? now + left_ns / 2 : call->deadline_ns);
        }
        apply_gets(call);
    }
    egm_op_copy_done(op);
}

/* ---- steps ---- */

static void ask(struct data_call *call)
{
    struct egm_store *store = call->store;
    struct egm_op *op = &call->op;
    struct egm_rpc rpc;
    uint64_t op_id;
    int r = egm_clock_ns() >= call->deadline_ns ? EGM_E_TIMEOUT : 0;

    if (r == 0) {
        r = egm_rpc_begin(store, call->deadline_ns, &rpc, NULL);
    }
    if (r < 0) {
        egm_op_failed(op, r, egm_clock_ns());
        return;
    }
    pthread_mutex_lock(&store->lock);
    egm_requester_mark(&store->requester, &op->set);
    op_id = store->requester.next_op++;
    pthread_mutex_unlock(&store->lock);
    struct egm_buf *out = &rpc.connection->out;
    r = op->is_put
            ? egm_put_encode_ask(op, &store->requester, call->params, out, rpc.request,
                                 egm_clock_ns())
            : egm_get_encode_ask(op, &store->requester, op_id, out, rpc.request, egm_clock_ns());
    if (r < 0) {
        egm_rpc_end(store, &rpc, 0);
        egm_op_abort(op, r);
        return;
    }
    r = egm_rpc_exchange(store, &rpc,
                         op->is_put ? EGM_MSG_PUT_START_REPLY : EGM_MSG_GET_START_REPLY);
    if (r < 0) {
        egm_op_failed(op, r, egm_clock_ns());
        return;
    }
    call->view = egm_view_acquire(store);
    r = egm_op_take_answer(op, rpc.connection->in.data, rpc.connection->in.len,
                           call->view ? call->view->layout : NULL, rpc.connection->instance,
                           egm_clock_ns());
    if (op->step == EGM_OP_COPY) {
        pthread_mutex_lock(&store->lock);
        if (op->is_put) {
            egm_requester_open_writes(&store->requester, &op->set);
        } else {
            egm_requester_open_read(&store->requester, &op->reading, rpc.sent_ns);
        }
        pthread_mutex_unlock(&store->lock);
    }
    egm_rpc_end(store, &rpc, r);
}

static void end_put(struct data_call *call)
{
    struct egm_store *store = call->store;
    struct egm_op *op = &call->op;
    struct egm_rpc rpc;
    int r = egm_rpc_begin(store, call->deadline_ns, &rpc, NULL);

    if (r == 0) {
        r = egm_put_encode_end(op, &store->requester, &rpc.connection->out, rpc.request);
        if (r < 0) {
            egm_rpc_end(store, &rpc, 0);
        } else {
            r = egm_rpc_exchange(store, &rpc, EGM_MSG_PUT_END_REPLY);
        }
    }
    if (r < 0) {
        egm_op_failed(op, r, egm_clock_ns());
        return;
    }
    r = egm_put_take_end_answer(op, rpc.connection->in.data, rpc.connection->in.len,
                                egm_clock_ns());
    egm_rpc_end(store, &rpc, r);
}

static void end_get(struct data_call *call)
{
    struct egm_store *store = call->store;
    struct egm_rpc rpc;

    if (egm_rpc_begin(store, notice_deadline(call), &rpc, NULL) == 0) {
        if (egm_get_encode_end(&call->op, &store->requester, &rpc.connection->out) < 0) {
            egm_rpc_end(store, &rpc, 0);
        } else {
            egm_ignore(egm_rpc_post(store, &rpc), "the lease runs out by itself");
        }
    }
    egm_get_ended(&call->op, egm_clock_ns());
}

/* The window is over: its writes and its reading leave their lists, its view is let go. */
static void leave_window(struct data_call *call)
{
    struct egm_store *store = call->store;
    struct egm_op *op = &call->op;

    if (egm_op_is_end_due(op)) {
        return;
    }
    if (op->set.is_open) {
        /* Aborted with step DONE while items had no answer to PUT_END: then the master must hear
         * that they stopped. An ended generation that is reported once more is unknown there, which
         * changes nothing. */
        pthread_mutex_lock(&store->lock);
        egm_requester_close_writes(&store->requester, &op->set, op->is_end_answered);
        pthread_mutex_unlock(&store->lock);
    }
    if (op->reading.is_open) {
        pthread_mutex_lock(&store->lock);
        egm_requester_close_read(&store->requester, &op->reading);
        pthread_mutex_unlock(&store->lock);
    }
    egm_view_release(store, call->view);
    call->view = NULL;
}

static void run(struct data_call *call)
{
    struct egm_op *op = &call->op;

    while (op->step != EGM_OP_DONE) {
        if (egm_store_is_dead(call->store) && op->step != EGM_OP_COPY) {
            egm_op_abort(op, EGM_E_CLOSED);
            break;
        }
        switch (op->step) {
        case EGM_OP_ASK:
            ask(call);
            break;
        case EGM_OP_COPY:
            if (op->is_put) {
                copy_put(call);
            } else {
                copy_get(call);
            }
            break;
        case EGM_OP_END:
            if (op->is_put) {
                end_put(call);
            } else {
                end_get(call);
            }
            break;
        case EGM_OP_WAIT:
            if (op->wants_layout) {
                egm_store_wake(call->store);
            }
            egm_store_wait(call->store, op->wait_until_ns);
            egm_op_resume(op);
            break;
        case EGM_OP_DONE:
            break;
        }
        leave_window(call);
    }
    leave_window(call);
}

/* ---- the calls ---- */

static void describe(const struct egm_op_item *items, size_t count, bool is_put,
                     struct egm_detail *reterr)
{
    const struct egm_op_item *first = NULL;
    size_t failed_count = 0;
    char key[65];

    for (size_t i = 0; i < count; i++) {
        if (items[i].result < 0) {
            first = first ? first : &items[i];
            failed_count++;
        }
    }
    if (!first) {
        return;
    }
    size_t length = egm_min_u64(first->key.size, sizeof(key) - 1);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = ((const unsigned char *)first->key.data)[i];
        key[i] = isprint(c) ? (char)c : '?';
    }
    key[length] = '\0';
    egm_ignore(egm_fail(reterr, (int)first->result, is_put ? "put" : "get",
                        "%zu of %zu objects failed; the first: '%s%s': %s", failed_count, count,
                        key, length < first->key.size ? "..." : "",
                        egm_strerror((int)first->result)),
               "told to the caller");
}

static int run_call(struct egm_store *store, const struct egm_put_params *params,
                    struct egm_op_item *items, size_t count, uint64_t deadline_ns,
                    struct egm_detail *reterr)
{
    struct data_call call = {.store = store, .params = params, .deadline_ns = deadline_ns};
    bool is_put = params != NULL;

    pthread_mutex_lock(&store->lock);
    uint64_t gone_since_ns = store->gone_since_ns;
    pthread_mutex_unlock(&store->lock);
    egm_op_init(&call.op, is_put, items, count, deadline_ns, gone_since_ns);
    run(&call);
    bool is_answered = call.op.is_answered;
    egm_op_release(&call.op);
    egm_free(call.transfers);
    egm_free(call.guards);
    egm_free(call.item_of);
    egm_free(call.place_of);

    uint64_t failed_count = 0;
    for (size_t i = 0; i < count; i++) {
        failed_count += items[i].result < 0;
    }
    pthread_mutex_lock(&store->lock);
    if (is_put) {
        store->counters.puts += count - failed_count;
        store->counters.put_failures += failed_count;
    } else {
        store->counters.gets += count - failed_count;
        store->counters.get_failures += failed_count;
    }
    pthread_mutex_unlock(&store->lock);
    describe(items, count, is_put, reterr);
    /* Nothing could be tried: the master never took part, and every item says the same. */
    return !is_answered && failed_count == count && count > 0 ? (int)items[0].result : 0;
}

static bool is_attached_by_name(const struct egm_view *view, const char *name)
{
    for (uint32_t i = 0; i < view->layout->provider_count; i++) {
        if (view->attachments[i] && strcmp(view->layout->providers[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether the put names, or needs, more providers than are attached. */
static bool wants_more_providers(struct egm_store *store, const struct egm_put_params *params)
{
    struct egm_view *view = egm_view_acquire(store);
    uint32_t attached = 0;
    bool is_wanting = !view;

    for (uint32_t i = 0; view && i < view->layout->provider_count; i++) {
        attached += view->attachments[i] != NULL;
    }
    for (size_t i = 0; view && i < params->preferred_count && !is_wanting; i++) {
        is_wanting = !is_attached_by_name(view, params->preferred_names[i]);
    }
    is_wanting = is_wanting || attached < params->replica_count;
    egm_view_release(store, view);
    return is_wanting;
}

/* A provider that joined within the last heartbeat may not be attached yet. The master places only
 * where this session reaches, so a put that names it would go elsewhere. */
static void look_for_providers(struct egm_store *store, uint64_t deadline_ns)
{
    uint64_t now = egm_clock_ns();

    pthread_mutex_lock(&store->lock);
    bool is_due = now >= store->next_look_ns;
    store->next_look_ns = is_due ? now + EGM_NS_PER_S : store->next_look_ns;
    pthread_mutex_unlock(&store->lock);
    if (is_due) {
        egm_background_refresh(store, egm_min_u64(deadline_ns, now + EGM_NS_PER_S / 2));
    }
}

int egm_client_put(struct egm_store *store, const struct egm_put_params *params,
                   struct egm_op_item *items, size_t count, uint64_t deadline_ns,
                   struct egm_detail *reterr)
{
    if ((params->preferred_count > 0 || params->replica_count > 1) &&
        wants_more_providers(store, params)) {
        look_for_providers(store, deadline_ns);
    }
    return run_call(store, params, items, count, deadline_ns, reterr);
}

int egm_client_get(struct egm_store *store, struct egm_op_item *items, size_t count,
                   uint64_t deadline_ns, struct egm_detail *reterr)
{
    return run_call(store, NULL, items, count, deadline_ns, reterr);
}
