/* SPDX-License-Identifier: Apache-2.0 */
/* Calls: what to do next, what an answer means, when to give up. Follows src/client's data.c and
 * rpc.c. */
#include "sim_requester.h"

#include <stdlib.h>
#include <string.h>

/* ---- calls ---- */
static void finish(struct requester *r, int proc)
{
    struct call *c = &r->call;
    uint64_t now = local_ns(proc);
    if (now > c->deadline + 150 * MS && !c->was_paused) {
        fail("I8: a call returned %llu ms after its deadline",
             (unsigned long long)((now - c->deadline) / MS));
    }
    bool is_all_ok = true;
    for (int i = 0; i < c->key_count; i++) {
        int64_t result = c->is_data ? c->items[i].result : c->results[i];
        mix((uint64_t)result);
        trace("requester %d call %llu kind %d key %d result %lld", w.procs[proc].index,
              (unsigned long long)c->id, c->kind, c->keys[i], (long long)result);
        is_all_ok = is_all_ok && result >= 0;
    }
    totals.calls[c->kind]++;
    totals.ok[c->kind] += is_all_ok;
    if (r->final) {
        r->is_final_ok = is_all_ok;
        r->final = 0;
    }
    if (c->is_data) {
        egm_op_release(&c->op);
    }
    egm_layout_unref(c->view);
    c->view = NULL;
    c->is_running = false;
    req_drop_leases(c);
    req_later(proc, EV_NEXT_OP, 0, 200000 + rnd(20 * MS));
}

void req_leave_window(struct requester *r)
{
    struct call *c = &r->call;
    if (egm_op_is_end_due(&c->op)) {
        return;
    }
    if (c->op.set.is_open) {
        egm_requester_close_writes(&r->core, &c->op.set, c->op.is_end_answered);
    }
    if (c->op.reading.is_open) {
        egm_requester_close_read(&r->core, &c->op.reading);
    }
}

static void ask_call(struct requester *r, int proc, struct egm_buf *buf)
{
    r->call.sent_true = w.now;
    r->main.request = r->main.next_request;
    req_link_ask(&r->main, proc, ASK_CALL, buf);
}

static void ask_data(struct requester *r, int proc)
{
    struct call *c = &r->call;
    struct egm_buf buf;
    uint64_t now = local_ns(proc);
    static const struct egm_put_params put = {.replica_count = 1};
    struct egm_put_params params = put;
    params.flags = c->flags;
    params.replica_count = c->id % 7 == 0 ? 2 : 1;
    params.flags |= c->id % 19 == 0 && !r->final ? EGM_HARD_PIN : 0;
    params.soft_pin = c->id % 13 == 0;
    egm_buf_init(&buf, 1u << 20);
    egm_requester_mark(&r->core, &c->op.set);
    uint64_t request = ++r->main.next_request;
    c->is_promise_void = false;
    int code = c->op.is_put
                   ? egm_put_encode_ask(&c->op, &r->core, &params, &buf, request, now)
                   : egm_get_encode_ask(&c->op, &r->core, r->core.next_op++, &buf, request, now);
    if (code < 0) {
        egm_buf_release(&buf);
        egm_op_abort(&c->op, code);
        return;
    }
    ask_call(r, proc, &buf);
}

static void end_data(struct requester *r, int proc)
{
    struct call *c = &r->call;
    struct egm_buf buf;
    egm_buf_init(&buf, 1u << 20);
    if (c->op.is_put) {
        if (egm_put_encode_end(&c->op, &r->core, &buf, ++r->main.next_request) == 0) {
            for (size_t i = 0; i < c->op.window_count; i++) {
                const struct egm_op_item *item = &c->items[c->op.window[i]];
                if (item->state == EGM_ITEM_GRANTED && item->copy_status == 0) {
                    oracle_end_sent(c->write_ids[c->op.window[i]]);
                }
            }
        }
        ask_call(r, proc, &buf);
        return;
    }
    if (egm_get_encode_end(&c->op, &r->core, &buf) == 0 && r->main.state == LINK_IDLE) {
        net_send(r->main.conn, proc, buf.data, buf.len);
    }
    egm_buf_release(&buf);
    req_drop_leases(c);
    egm_get_ended(&c->op, local_ns(proc));
}

static void drive_data(struct requester *r, int proc)
{
    struct call *c = &r->call;
    for (;;) {
        uint64_t now = local_ns(proc);
        switch (c->op.step) {
        case EGM_OP_ASK:
            if (now >= c->deadline) {
                egm_op_failed(&c->op, EGM_E_TIMEOUT, now);
                break;
            }
            if (!req_link_is_ready(r, proc, &r->main)) {
                return;
            }
            ask_data(r, proc);
            if (c->op.step == EGM_OP_ASK) {
                return;
            }
            break;
        case EGM_OP_COPY:
            if (!c->is_copying) {
                req_copy_begin(r, proc);
            }
            return;
        case EGM_OP_END:
            if (c->op.is_put && now >= c->deadline) {
                egm_op_failed(&c->op, EGM_E_TIMEOUT, now);
                break;
            }
            if (c->op.is_put && !req_link_is_ready(r, proc, &r->main)) {
                return;
            }
            end_data(r, proc);
            if (c->op.is_put) {
                return;
            }
            break;
        case EGM_OP_WAIT:
            req_leave_window(r);
            if (c->op.wants_layout) {
                r->wants_layout = true;
            }
            if (!c->is_waiting_timer) {
                uint64_t left = c->op.wait_until_ns > now ? c->op.wait_until_ns - now : 0;
                c->is_waiting_timer = true;
                req_later(proc, EV_TIMER, c->id, left + left / 500 + 1000);
            }
            return;
        case EGM_OP_DONE:
            req_leave_window(r);
            finish(r, proc);
            return;
        }
        req_leave_window(r);
    }
}

static void drive_simple(struct requester *r, int proc)
{
    struct call *c = &r->call;
    struct egm_buf buf;
    if (!req_link_is_ready(r, proc, &r->main)) {
        return;
    }
    egm_buf_init(&buf, 1u << 20);
    uint64_t request = ++r->main.next_request;
    if (c->kind == CALL_EXIST) {
        (void)!egm_exist_encode(&r->core, &buf, request, 0, c->names, (size_t)c->key_count);
    } else if (c->kind == CALL_REMOVE) {
        (void)!egm_remove_encode(&r->core, &buf, request, c->flags, c->names, (size_t)c->key_count);
    } else {
        egm_remove_all_encode(&r->core, &buf, request, c->flags);
    }
    /* A removal that is asked for again begins again: what an unanswered one did counts for
     * nothing. */
    c->began = w.now;
    ask_call(r, proc, &buf);
}

void req_drive(struct requester *r, int proc)
{
    if (!r->call.is_running) {
        return;
    }
    if (r->call.is_data) {
        drive_data(r, proc);
    } else {
        drive_simple(r, proc);
    }
}

void req_finish_simple(struct requester *r, int proc, int code)
{
    for (int i = 0; i < r->call.key_count; i++) {
        r->call.results[i] = code;
    }
    finish(r, proc);
}

static void simple_failed(struct requester *r, int proc, int code)
{
    uint64_t at;
    int give_up = egm_retry_decide(&r->call.retry, code, local_ns(proc), &at);
    if (give_up < 0) {
        req_finish_simple(r, proc, give_up);
    } else if (!r->call.is_waiting_timer) {
        r->call.is_waiting_timer = true;
        req_later(proc, EV_TIMER, r->call.id, at - local_ns(proc) + MS);
    }
}

void req_simple_answer(struct requester *r, int proc, const uint8_t *payload, uint32_t size)
{
    struct call *c = &r->call;
    uint64_t count;
    int code;
    if (c->kind == CALL_REMOVE_ALL) {
        code = egm_count_parse(payload, size, UINT64_MAX, &count, NULL, 0);
        c->results[0] = 0;
        if (code == 0 && (c->flags & EGM_FORCE)) {
            oracle_removed(-1, c->began, r->main.instance);
        }
    } else if (c->kind == CALL_REMOVE) {
        code = egm_results_parse(payload, size, (size_t)c->key_count, c->results);
        for (int i = 0; i < c->key_count && code == 0; i++) {
            if (c->results[i] == 0) {
                oracle_removed(c->keys[i], c->began, r->main.instance);
            }
        }
    } else {
        code = egm_exist_parse(payload, size, (size_t)c->key_count, c->results);
        for (int i = 0; i < c->key_count && code == 0; i++) {
            if (c->results[i] == 1) {
                oracle_exists(c->keys[i], c->began, r->main.instance);
            }
        }
    }
    if (code == EGM_E_NOT_FOUND) {
        egm_requester_lose(&r->core, r->core.session_count);
    }
    if (code < 0) {
        simple_failed(r, proc, code);
    } else {
        finish(r, proc);
    }
}

void req_data_answer(struct requester *r, int proc, const uint8_t *payload, uint32_t size)
{
    struct call *c = &r->call;
    int code;
    if (c->op.step == EGM_OP_ASK) {
        egm_layout_unref(c->view);
        c->view = r->layout ? egm_layout_ref(r->layout) : NULL;
        c->answered_by = r->main.instance;
        code = egm_op_take_answer(&c->op, payload, size, c->view, r->main.instance, local_ns(proc));
        if (c->op.step == EGM_OP_COPY && c->op.is_put) {
            egm_requester_open_writes(&r->core, &c->op.set);
        } else if (c->op.step == EGM_OP_COPY) {
            egm_requester_open_read(&r->core, &c->op.reading, r->main.sent);
            req_note_leases(r, proc);
        }
    } else {
        bool is_granted[BATCH] = {false};
        for (size_t i = 0; i < c->op.window_count; i++) {
            const struct egm_op_item *item = &c->items[c->op.window[i]];
            is_granted[c->op.window[i]] = item->state == EGM_ITEM_GRANTED && item->copy_status == 0;
        }
        code = egm_put_take_end_answer(&c->op, payload, size, local_ns(proc));
        for (int i = 0; i < c->key_count; i++) {
            if (is_granted[i] && c->items[i].state == EGM_ITEM_DONE && c->items[i].result == 0) {
                oracle_acked(c->write_ids[i]);
            }
        }
    }
    if (code == EGM_E_NOT_FOUND) {
        egm_requester_lose(&r->core, r->core.session_count);
    }
    if (code == EGM_E_PROTO) {
        fail("an honest answer is refused as a breach of the protocol");
    }
    req_leave_window(r);
    req_drive(r, proc);
}

void req_call_failed(struct requester *r, int proc, int code)
{
    if (!r->call.is_running) {
        return;
    }
    if (r->call.is_data) {
        if (r->call.op.step == EGM_OP_ASK || r->call.op.step == EGM_OP_END) {
            egm_op_failed(&r->call.op, code, local_ns(proc));
            req_leave_window(r);
            req_drive(r, proc);
        }
    } else {
        simple_failed(r, proc, code);
    }
}

/* ---- choosing calls ---- */
static uint64_t random_size(bool is_final)
{
    if (is_final) {
        return 1 + rnd(3 * EGM_GRANULE); /* everybody's fits at once */
    }
    uint64_t kind = rnd(10);
    if (kind == 9 && chance(15)) { /* most of a segment, or more than any has */
        return GRANULES / 2 * EGM_GRANULE + rnd((GRANULES / 2 + 2) * EGM_GRANULE);
    }
    return 1 + rnd(kind < 5 ? 15 * EGM_SLOT : kind < 8 ? 4 * EGM_GRANULE : 14 * EGM_GRANULE);
}

static void begin_call(struct requester *r, int proc, int kind, int key_count)
{
    struct call *c = &r->call;
    uint64_t now = local_ns(proc);
    memset(c, 0, sizeof *c);
    c->is_running = true;
    c->kind = kind;
    c->is_data = kind == CALL_PUT || kind == CALL_UPSERT || kind == CALL_GET;
    c->id = ++r->next_call;
    c->began = w.now;
    c->began_local = now;
    c->deadline = now + DEADLINE;
    c->key_count = key_count;
    c->flags = kind == CALL_UPSERT ? EGM_UPSERT : 0;
    if (kind == CALL_REMOVE || kind == CALL_REMOVE_ALL) {
        c->flags = r->final || chance(70) ? EGM_FORCE : 0;
    }
    for (int i = 0; i < key_count; i++) {
        c->keys[i] = r->final ? w.procs[proc].index : (int)rnd(KEYS);
        const char *name = key_name(c->keys[i]);
        c->names[i] = (struct egm_key){.data = name, .size = strlen(name)};
        egm_op_item_init(&c->items[i], c->names[i], NULL, 0,
                         kind == CALL_GET ? SEGMENT_BYTES : random_size(r->final != 0));
        c->results[i] = EGM_E_TIMEOUT;
        if (kind != CALL_GET && !r->final && chance(15)) {
            c->items[i].group = chance(50) ? "g" : "h";
        }
    }
    if (c->is_data) {
        egm_op_init(&c->op, kind != CALL_GET, c->items, (size_t)key_count, c->deadline, 0);
    }
    c->retry = (struct egm_retry){.deadline_ns = c->deadline};
    req_later(proc, EV_DEADLINE, c->id, DEADLINE + DEADLINE / 1000);
    req_drive(r, proc);
}

void req_next_call(struct requester *r, int proc)
{
    if (r->call.is_running) {
        return;
    }
    if (r->final) {
        begin_call(r, proc,
                   r->final == FINAL_REMOVE_ALL ? CALL_REMOVE_ALL
                   : r->final == FINAL_PUT      ? CALL_UPSERT
                                                : CALL_GET,
                   1);
        return;
    }
    if (w.is_draining) {
        return;
    }
    uint64_t what = rnd(100);
    int count = 1 + (int)rnd(BATCH);
    if (what < 33) {
        begin_call(r, proc, CALL_PUT, count);
    } else if (what < 45) {
        begin_call(r, proc, CALL_UPSERT, 1 + (int)rnd(2));
    } else if (what < 85) {
        begin_call(r, proc, CALL_GET, count);
    } else if (what < 92) {
        begin_call(r, proc, CALL_EXIST, count);
    } else if (what < 99) {
        begin_call(r, proc, CALL_REMOVE, 1 + (int)rnd(2));
    } else {
        begin_call(r, proc, CALL_REMOVE_ALL, 1);
    }
}
