/* SPDX-License-Identifier: Apache-2.0 */
/* Connections. Frames within one stay in order; everything else is open: delays, breaks that each
 * side notices at its own time after a random prefix of what was under way has arrived,
 * partitions that hold frames back, peers that die. So what was sent over an old connection may
 * well arrive after what was sent over a new one. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static uint64_t delay(enum conn_kind kind)
{
    uint64_t d = 20000 + rnd(kind == UNIX ? 100000 : 400000);
    if (w.is_chaos && chance(2)) {
        d += rnd(50 * MS);
    }
    if (w.is_chaos && kind == CONTROL && rnd(400) < w.late_frames) {
        d += rnd(6 * SECOND); /* and all that follow on this connection wait behind it */
    }
    if (w.now < w.slow_until && kind != UNIX) {
        d += rnd(1500 * MS);
    }
    return d;
}

int net_side(int conn, int proc)
{
    return w.conns[conn].proc[0] == proc ? 0 : 1;
}

static void post_to(int conn, int side, uint64_t time, enum event_kind kind, const void *data,
                    size_t size)
{
    const struct conn *c = &w.conns[conn];
    struct event *e = post(time, kind, c->proc[side]);
    e->life = c->life[side];
    e->conn = conn;
    e->side = side;
    if (size > 0) {
        e->data = malloc(size);
        memcpy(e->data, data, size);
        e->size = size;
    }
}

static bool is_blocked(int a, int b)
{
    return w.blocked_until[a][b] > w.now;
}

int net_connect(int proc, int target, enum conn_kind kind)
{
    if (target < 0 || !w.procs[target].is_alive || (kind != UNIX && is_blocked(proc, target))) {
        return -1;
    }
    if (w.conn_count == w.conn_room) {
        w.conn_room = w.conn_room ? w.conn_room * 2 : 256;
        w.conns = realloc(w.conns, w.conn_room * sizeof *w.conns);
    }
    int conn = (int)w.conn_count++;
    w.conns[conn] = (struct conn){.kind = kind,
                                  .proc = {proc, target},
                                  .life = {w.procs[proc].life, w.procs[target].life},
                                  .is_open = {true, true},
                                  .tag = {-1, -1}};
    w.conns[conn].last[0] = w.now + delay(kind);
    post_to(conn, 1, w.conns[conn].last[0], EV_ACCEPT, NULL, 0);
    return conn;
}

void net_send(int conn, int proc, const void *data, size_t size)
{
    struct conn *c = &w.conns[conn];
    int side = net_side(conn, proc);
    if (!c->is_open[side]) {
        return;
    }
    uint64_t at = w.now + delay(c->kind);
    uint64_t blocked = w.blocked_until[c->proc[side]][c->proc[1 - side]];
    if (c->kind != UNIX && blocked > w.now) {
        at += blocked - w.now;
    }
    struct egm_frame frame;
    if (w.is_chaos && w.late_frames && egm_frame_parse(data, &frame) == 0) {
        /* A younger SESSION, over another connection, may overtake one; a PUT_END may come when its
         * write was given up and is known to have stopped. */
        uint32_t percent = frame.type == EGM_MSG_SESSION   ? 15
                           : frame.type == EGM_MSG_PUT_END ? 5
                                                           : 0;
        at += chance(percent) ? rnd(6 * SECOND) : 0;
    }
    at = at > c->last[side] ? at : c->last[side];
    c->last[side] = at;
    if (!c->is_broken || at <= c->cut[side]) {
        post_to(conn, 1 - side, at, EV_FRAME, data, size);
    }
}

void net_hold(int conn, int proc, uint64_t ns)
{
    uint64_t *last = &w.conns[conn].last[net_side(conn, proc)];
    *last = w.now + ns > *last ? w.now + ns : *last;
}

void net_close(int conn, int proc)
{
    struct conn *c = &w.conns[conn];
    int side = net_side(conn, proc);
    if (!c->is_open[side]) {
        return;
    }
    c->is_open[side] = false;
    uint64_t at = w.now + delay(c->kind);
    post_to(conn, 1 - side, at > c->last[side] ? at : c->last[side], EV_CLOSED, NULL, 0);
}

/* Closes for the other side now and for this one by an event, as a shell does that must not call
 * back at once. */
void net_hang_up(int conn, int proc)
{
    struct conn *c = &w.conns[conn];
    int side = net_side(conn, proc);
    if (c->is_open[side]) {
        net_close(conn, proc);
        c->is_hung_up = true;
        c->is_open[side] = true;
        post_to(conn, side, w.now, EV_CLOSED, NULL, 0);
    }
}

void net_break(int conn)
{
    struct conn *c = &w.conns[conn];
    if (c->is_broken || c->kind == UNIX) {
        return;
    }
    c->is_broken = true;
    for (int side = 0; side < 2; side++) {
        c->cut[side] = w.now + rnd(chance(30) ? 3 * SECOND : 5 * MS);
    }
    for (int side = 0; side < 2; side++) {
        uint64_t at = c->cut[1 - side] + rnd(chance(20) ? 3 * SECOND : 20 * MS);
        post_to(conn, side, at, EV_CLOSED, NULL, 0);
    }
}

void net_process_died(int proc)
{
    for (uint32_t i = 0; i < w.conn_count; i++) {
        struct conn *c = &w.conns[i];
        for (int side = 0; side < 2; side++) {
            if (c->proc[side] == proc && c->is_open[side] && c->life[side] == w.procs[proc].life) {
                c->is_open[side] = false;
                uint64_t at = w.now + rnd(c->kind != UNIX && chance(20) ? 4 * SECOND : 20 * MS);
                post_to((int)i, 1 - side, at > c->last[side] ? at : c->last[side], EV_CLOSED, NULL,
                        0);
            }
        }
    }
}
