/* SPDX-License-Identifier: Apache-2.0 */
/* Requester processes: the production core behind a stub of the client library.
 *
 * One call at a time over a `main` connection, and a `ping` connection for heartbeat and layout,
 * as the library's background thread has. A copy is a row of events: look whether the write may
 * go on, then, later, store the chunk without looking again. A pause between the two is a process
 * that was stopped inside memcpy. */
#include "sim_requester.h"

#include "core/requester.h"

#include <stdlib.h>
#include <string.h>

struct requester req_all[REQUESTERS];

static struct requester *of(int proc)
{
    return &req_all[w.procs[proc].index];
}

/* ---- links to the master ---- */
void req_send_buf(int conn, int proc, struct egm_buf *buf)
{
    if (buf->failed) {
        net_close(conn, proc);
    } else {
        net_send(conn, proc, buf->data, buf->len);
    }
    egm_buf_release(buf);
}

static void send_hello(int conn, int proc, uint64_t request)
{
    struct egm_buf buf;
    egm_buf_init(&buf, 4096);
    size_t begin = egm_frame_begin(&buf, EGM_MSG_HELLO, request);
    egm_put_hello(&buf, &(struct egm_hello){.version_min = 1,
                                            .version_max = 1,
                                            .role = EGM_ROLE_REQUESTER,
                                            .process = (uint64_t)proc,
                                            .cluster = egm_bytes_of("egmstore", 8)});
    egm_frame_end(&buf, begin);
    req_send_buf(conn, proc, &buf);
}

static void link_open(struct link *link, int proc)
{
    link->conn = net_connect(proc, pick_master(proc), CONTROL);
    if (link->conn < 0) {
        link->state = LINK_NONE;
        return;
    }
    link->state = LINK_HELLO;
    link->request = ++link->next_request;
    link->sent = local_ns(proc);
    send_hello(link->conn, proc, link->request);
}

void req_link_drop(struct link *link, int proc)
{
    if (link->conn >= 0) {
        net_close(link->conn, proc);
    }
    link->conn = -1;
    link->state = LINK_NONE;
}

void req_link_ask(struct link *link, int proc, enum request_kind what, struct egm_buf *buf)
{
    link->state = LINK_BUSY;
    link->asked = what;
    link->sent = local_ns(proc);
    req_send_buf(link->conn, proc, buf);
}

/* Another thread opens the session at the same time, over a connection of its own on which that
 * stays on its way for long. Nobody waits for its answer. */
static void late_twin(struct requester *r, int proc, const struct link *link)
{
    struct egm_buf buf;
    int conn = net_connect(proc, w.conns[link->conn].proc[1], CONTROL);
    if (conn < 0) {
        return;
    }
    totals.faults[FAULT_LATE_SESSION]++;
    send_hello(conn, proc, 1);
    net_hold(conn, proc, rnd(9 * SECOND));
    egm_buf_init(&buf, 1u << 20);
    egm_requester_encode_session(&r->core, &buf, 2);
    req_send_buf(conn, proc, &buf);
    net_close(conn, proc);
}

static void ask_session(struct requester *r, int proc, struct link *link)
{
    struct egm_buf buf;
    egm_buf_init(&buf, 1u << 20);
    egm_requester_encode_session(&r->core, &buf, ++link->next_request);
    link->request = link->next_request;
    bool is_late = w.is_chaos && rnd(100) < w.late_sessions;
    bool is_alone = is_late && chance(50);
    if (is_alone) { /* its sender turns to another connection, which may lead to another master */
        totals.faults[FAULT_LATE_SESSION]++;
        net_hold(link->conn, proc, rnd(9 * SECOND));
    }
    req_link_ask(link, proc, ASK_SESSION, &buf);
    if (is_alone) {
        req_link_drop(link, proc);
    } else if (is_late) {
        late_twin(r, proc, link);
    }
}

/* True when the link is idle and its master knows the session; else something that leads there is
 * under way. */
bool req_link_is_ready(struct requester *r, int proc, struct link *link)
{
    if (link->state == LINK_NONE) {
        link_open(link, proc);
        return false;
    }
    if (link->state != LINK_IDLE) {
        return false;
    }
    if (link->instance != r->core.instance) { /* a younger master was met meanwhile */
        req_link_drop(link, proc);
        return false;
    }
    if (r->core.state != EGM_SESSION_OPEN) {
        ask_session(r, proc, link);
        return false;
    }
    return true;
}

/* ---- attachments ---- */
void req_unmap(struct attachment *a)
{
    for (uint32_t i = 0; i < w.mapping_count; i++) {
        if (w.mappings[i].conn == a->conn) {
            w.mappings[i].is_mapped = false;
        }
    }
}

bool req_is_pinned(const struct requester *r)
{
    return r->call.is_running && r->call.is_copying;
}

void req_detach(struct requester *r, int proc, struct attachment *a)
{
    if (a->conn < 0) {
        return;
    }
    if (req_is_pinned(r)) {
        a->is_leaving = true; /* mappings go at pin count 0 */
        return;
    }
    req_unmap(a);
    net_close(a->conn, proc);
    *a = (struct attachment){.conn = -1};
}

static void attach(struct requester *r, int proc, const struct egm_layout_provider *p)
{
    int index = (int)(p->provider - 1000);
    struct attachment *a = &r->at[index];
    if (p->state != 1 || (a->conn >= 0 && a->epoch == p->epoch) ||
        r->core.state != EGM_SESSION_OPEN) {
        return;
    }
    if (a->conn >= 0) {
        req_detach(r, proc, a);
        if (a->conn >= 0) {
            return;
        }
    }
    bool is_map = r->prefers_map ? index != 2 : index == 0;
    int conn = net_connect(proc, proc_of(PROVIDER, index), is_map ? UNIX : DATA);
    if (conn < 0) {
        return;
    }
    *a = (struct attachment){.conn = conn,
                             .is_map = is_map,
                             .provider = p->provider,
                             .epoch = p->epoch,
                             .asked_at = local_ns(proc)};
    struct egm_buf buf;
    egm_buf_init(&buf, 4096);
    size_t begin = egm_frame_begin(&buf, EGM_MSG_ATTACH, 1);
    egm_put_attach(&buf, &(struct egm_attach){.provider = p->provider,
                                              .epoch = p->epoch,
                                              .session = r->core.session,
                                              .kind = is_map ? EGM_IMPORT_MAP : EGM_IMPORT_TCP});
    egm_frame_end(&buf, begin);
    req_send_buf(conn, proc, &buf);
}

void req_attach_all(struct requester *r, int proc)
{
    for (uint32_t i = 0; r->layout && i < r->layout->provider_count; i++) {
        attach(r, proc, &r->layout->providers[i]);
    }
    for (int i = 0; i < PROVIDERS; i++) {
        struct attachment *a = &r->at[i];
        if (a->conn >= 0 && ((a->is_leaving && !req_is_pinned(r)) ||
                             (!a->is_up && local_ns(proc) - a->asked_at > 3 * SECOND))) {
            req_detach(r, proc, a);
        }
    }
}

void req_attach_reply(struct requester *r, int proc, struct attachment *a, const uint8_t *payload,
                      uint32_t size)
{
    struct egm_cursor cursor = egm_cursor_of(payload, size);
    struct egm_attach_reply reply;
    struct egm_attached attached;
    egm_take_attach_reply(&cursor, &reply);
    if (reply.status != 0) {
        req_detach(r, proc, a);
        return;
    }
    egm_take_attached(&cursor, &attached);
    a->mapping = (int)attached.fence_size;
    a->mem = mem_of(a->epoch);
    a->is_up = true;
}

struct attachment *req_attachment_of(struct requester *r, const struct egm_place *place)
{
    if (!place->is_known) {
        return NULL;
    }
    struct attachment *a = &r->at[place->provider - 1000];
    return a->is_up && a->conn >= 0 && a->epoch == place->epoch ? a : NULL;
}

/* ---- life ---- */
void requester_start(int proc)
{
    struct requester *r = of(proc);
    memset(r, 0, sizeof *r);
    egm_requester_init(&r->core, rnd(UINT64_MAX) | 1, 1, (uint32_t)proc, "sim", "default");
    r->is_live = true;
    r->prefers_map = w.procs[proc].index % 2 == 0 || chance(50);
    r->main = (struct link){.conn = -1};
    r->ping = (struct link){.conn = -1};
    for (int i = 0; i < PROVIDERS; i++) {
        r->at[i] = (struct attachment){.conn = -1};
    }
    req_later(proc, EV_TICK, 0, rnd(50 * MS));
    req_later(proc, EV_NEXT_OP, 0, 100 * MS + rnd(100 * MS));
}

void requester_stop(int proc)
{
    struct requester *r = of(proc);
    if (!r->is_live) {
        return;
    }
    r->is_live = false;
    if (r->call.is_running && r->call.is_data) {
        if (r->call.op.set.is_open) {
            egm_requester_close_writes(&r->core, &r->call.op.set, /*is_ended=*/false);
        }
        if (r->call.op.reading.is_open) {
            egm_requester_close_read(&r->core, &r->call.op.reading);
        }
        egm_op_release(&r->call.op);
    }
    r->call.is_running = false;
    egm_layout_unref(r->call.view);
    r->call.view = NULL;
    egm_layout_unref(r->layout);
    r->layout = NULL;
    egm_requester_release(&r->core);
}

bool requester_is_idle(int proc)
{
    return !of(proc)->call.is_running;
}

void requester_final(int proc, enum final_call what)
{
    struct requester *r = of(proc);
    r->final = what;
    r->is_final_ok = false;
    req_later(proc, EV_NEXT_OP, 0, 0);
}

bool requester_final_is_ok(int proc)
{
    return of(proc)->is_final_ok;
}

bool requester_waits_for(int proc, uint64_t request, struct waiting_call *ret)
{
    const struct requester *r = of(proc);
    const struct call *c = &r->call;
    if (!c->is_running || r->main.state != LINK_BUSY || r->main.asked != ASK_CALL ||
        r->main.request != request) {
        return false;
    }
    *ret = (struct waiting_call){.kind = c->kind,
                                 .is_forced = c->flags & EGM_FORCE,
                                 .key_count = c->key_count,
                                 .began = c->began};
    memcpy(ret->keys, c->keys, sizeof ret->keys);
    return true;
}

/* A confused requester ends somebody else's write. */
void requester_stray_end(int proc)
{
    struct requester *r = of(proc);
    uint64_t generation = oracle_any_generation(proc);
    if (r->ping.state != LINK_IDLE || generation == 0 || r->core.state != EGM_SESSION_OPEN) {
        return;
    }
    struct egm_buf buf;
    egm_buf_init(&buf, 4096);
    size_t begin = egm_frame_begin(&buf, EGM_MSG_PUT_END, 0);
    egm_put_put_end(&buf, &(struct egm_put_end){.session = r->core.session, .count = 1});
    egm_put_ended(&buf, &(struct egm_ended){.generation = generation, .outcome = (uint8_t)rnd(2)});
    egm_frame_end(&buf, begin);
    totals.faults[FAULT_STRAY_END]++;
    req_send_buf(r->ping.conn, proc, &buf);
}

/* ---- events ---- */
static void ping(struct requester *r, int proc)
{
    struct egm_buf buf;
    uint64_t now = local_ns(proc);
    if (r->ping.state > LINK_NONE && r->ping.state != LINK_IDLE &&
        now - r->ping.sent > 2 * SECOND) {
        req_link_drop(&r->ping, proc);
    }
    if (!req_link_is_ready(r, proc, &r->ping)) {
        return;
    }
    egm_buf_init(&buf, 1u << 20);
    bool is_layout_due = r->wants_layout || !r->layout || r->layout->instance != r->ping.instance ||
                         r->layout->version < r->core.layout_version;
    if (is_layout_due) {
        r->wants_layout = false;
        egm_requester_encode_layout(&r->core, &buf, ++r->ping.next_request);
        r->ping.request = r->ping.next_request;
        req_link_ask(&r->ping, proc, ASK_LAYOUT, &buf);
    } else if (now - r->pinged_at > 400 * MS) {
        r->pinged_at = now;
        egm_requester_encode_ping(&r->core, &buf, ++r->ping.next_request);
        r->ping.request = r->ping.next_request;
        if (w.is_chaos && chance(5)) { /* the master hears it twice; one answer is looked at */
            net_send(r->ping.conn, proc, buf.data, buf.len);
        }
        req_link_ask(&r->ping, proc, ASK_PING, &buf);
    } else {
        egm_buf_release(&buf);
    }
}

static void hello_reply(struct requester *r, int proc, struct link *link, const uint8_t *payload,
                        uint32_t size)
{
    struct egm_cursor cursor = egm_cursor_of(payload, size);
    struct egm_hello_reply reply;
    egm_take_hello_reply(&cursor, &reply);
    link->state = LINK_IDLE;
    link->instance = reply.instance;
    (void)egm_requester_meet(&r->core, reply.instance);
    (void)proc;
}

static void link_frame(struct requester *r, int proc, struct link *link, const struct event *e)
{
    struct egm_frame frame;
    if (egm_frame_parse(e->data, &frame) < 0 || frame.request != link->request) {
        return; /* a stray PUT_END's answer */
    }
    const uint8_t *payload = e->data + EGM_FRAME_HEADER;
    if (link->state == LINK_HELLO) {
        hello_reply(r, proc, link, payload, frame.length);
    } else if (link->state == LINK_BUSY) {
        link->state = LINK_IDLE;
        if (link->asked == ASK_SESSION) {
            (void)!egm_requester_take_session_reply(&r->core, payload, frame.length, link->instance,
                                                    link->sent);
        } else if (link->asked == ASK_PING) {
            (void)!egm_requester_take_ping_reply(&r->core, payload, frame.length, link->instance,
                                                 EGM_MUTANT(28) ? local_ns(proc) : link->sent);
        } else if (link->asked == ASK_LAYOUT) {
            struct egm_layout_snapshot *layout;
            if (egm_layout_parse(payload, frame.length, link->instance, &layout) == 0) {
                egm_layout_unref(r->layout);
                r->layout = layout;
                req_attach_all(r, proc);
            }
        } else if (r->call.is_running) {
            if (r->call.is_data) {
                req_data_answer(r, proc, payload, frame.length);
            } else {
                req_simple_answer(r, proc, payload, frame.length);
            }
            return;
        }
    }
    if (link == &r->main) {
        req_drive(r, proc);
    } else {
        ping(r, proc);
    }
}

static void frame_event(struct requester *r, int proc, const struct event *e)
{
    struct egm_frame frame;
    if (e->conn == r->main.conn) {
        link_frame(r, proc, &r->main, e);
        return;
    }
    if (e->conn == r->ping.conn) {
        link_frame(r, proc, &r->ping, e);
        return;
    }
    for (int i = 0; i < PROVIDERS; i++) {
        struct attachment *a = &r->at[i];
        if (a->conn != e->conn || egm_frame_parse(e->data, &frame) < 0) {
            continue;
        }
        if (frame.type == EGM_MSG_ATTACH_REPLY) {
            req_attach_reply(r, proc, a, e->data + EGM_FRAME_HEADER, frame.length);
        } else if (frame.type == EGM_MSG_DETACH) {
            req_detach(r, proc, a);
        } else {
            req_remote_answer(r, proc, e->data + EGM_FRAME_HEADER, frame.length);
        }
        return;
    }
}

static void closed_event(struct requester *r, int proc, const struct event *e)
{
    if (e->conn == r->ping.conn) {
        r->ping.conn = -1;
        r->ping.state = LINK_NONE;
        return;
    }
    if (e->conn == r->main.conn) {
        bool was_call = r->main.state == LINK_BUSY && r->main.asked == ASK_CALL;
        r->main.conn = -1;
        r->main.state = LINK_NONE;
        if (was_call || r->call.is_running) {
            req_call_failed(r, proc, EGM_E_PEER_GONE);
        }
        return;
    }
    for (int i = 0; i < PROVIDERS; i++) {
        struct attachment *a = &r->at[i];
        if (a->conn == e->conn) {
            bool is_map = a->is_map;
            if (req_is_pinned(r) && is_map) {
                a->is_leaving =
                    true; /* the provider is gone; its memory is still mapped while we copy */
                continue;
            }
            struct call *c = &r->call;
            bool is_waited_for = c->is_running && c->is_copying && c->is_remote &&
                                 req_attachment_of(r, &c->op.places[c->list_place[c->at]]) == a;
            req_unmap(a);
            *a = (struct attachment){.conn = -1};
            if (is_waited_for) {
                req_place_done(r, proc, EGM_E_PEER_GONE);
            }
        }
    }
}

static void deadline_event(struct requester *r, int proc)
{
    struct call *c = &r->call;
    if (c->is_data && c->is_copying) {
        if (c->is_remote) {
            req_place_done(r, proc, EGM_E_TIMEOUT);
        }
        return; /* the copy looks at the deadline itself */
    }
    if (r->main.state == LINK_BUSY || r->main.state == LINK_HELLO) {
        req_link_drop(&r->main, proc);
    }
    if (!c->is_data) {
        req_finish_simple(r, proc, EGM_E_TIMEOUT);
    } else if (c->op.step == EGM_OP_ASK || c->op.step == EGM_OP_END) {
        egm_op_failed(&c->op, EGM_E_TIMEOUT, local_ns(proc));
        req_leave_window(r);
        req_drive(r, proc);
    }
}

void requester_event(const struct event *e)
{
    int proc = e->proc;
    struct requester *r = of(proc);
    bool is_ours = r->call.is_running && e->a == r->call.id;
    switch (e->kind) {
    case EV_FRAME:
        frame_event(r, proc, e);
        break;
    case EV_CLOSED:
        closed_event(r, proc, e);
        break;
    case EV_TICK:
        ping(r, proc);
        req_attach_all(r, proc);
        if (r->call.is_running && r->main.state == LINK_NONE && !r->call.is_copying &&
            !r->call.is_waiting_timer) {
            req_drive(r, proc);
        }
        req_later(proc, EV_TICK, 0, 30 * MS + rnd(60 * MS));
        break;
    case EV_NEXT_OP:
        req_next_call(r, proc);
        break;
    case EV_COPY:
        if (is_ours && r->call.is_copying) {
            req_copy_step(r, proc);
        }
        break;
    case EV_TIMER:
        if (is_ours) {
            r->call.is_waiting_timer = false;
            if (r->call.is_data && r->call.op.step == EGM_OP_WAIT) {
                egm_op_resume(&r->call.op);
            }
            req_drive(r, proc);
        }
        break;
    case EV_DEADLINE:
        if (is_ours) {
            deadline_event(r, proc);
        }
        break;
    default:
        break;
    }
}

void requester_was_paused(int proc)
{
    of(proc)->call.was_paused = true;
}
