/* SPDX-License-Identifier: Apache-2.0 */
/* Master processes: the production core behind a stub shell. Everything that goes out is shown to
 * the oracle first. */
#include "base/alloc.h"

#include "core/master.h"
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PEERS 128

struct master {
    struct egm_master *core;
    uint64_t instance;
    int conns[PEERS]; /* by peer number; -1: free */
    uint64_t evicted;
};
static struct master masters[MASTERS];

static struct master *of(int proc)
{
    return &masters[w.procs[proc].index];
}

static int proc_of_master(const struct master *m)
{
    return proc_of(MASTER, (int)(m - masters));
}

const struct egm_master *master_core(int proc)
{
    return of(proc)->core;
}

int master_of_core(const struct egm_master *core)
{
    for (int i = 0; i < MASTERS; i++) {
        if (masters[i].core == core) {
            return proc_of(MASTER, i);
        }
    }
    return -1;
}

static void io_send(void *arg, uint32_t peer, const void *data, size_t size)
{
    struct master *m = arg;
    struct egm_frame frame;
    int proc = proc_of_master(m);
    int conn = m->conns[peer];
    if (conn < 0 || egm_frame_parse(data, &frame) < 0 || frame.length + EGM_FRAME_HEADER != size) {
        fail("the master sends something that is no frame");
        return;
    }
    int other = w.conns[conn].proc[1 - net_side(conn, proc)];
    if (w.procs[other].kind == REQUESTER && w.conns[conn].is_open[1 - net_side(conn, proc)]) {
        oracle_master_sends(proc, other, conn, &frame, (const uint8_t *)data + EGM_FRAME_HEADER);
    }
    net_send(conn, proc, data, size);
}

static void io_close(void *arg, uint32_t peer, const char *reason)
{
    struct master *m = arg;
    int conn = m->conns[peer];
    trace("master closes conn=%d reason=\"%s\"", conn, reason);
    if (conn >= 0) {
        net_hang_up(conn, proc_of_master(m));
    }
}

static uint64_t io_random(void *arg)
{
    (void)arg;
    return rnd(UINT64_MAX);
}

static int io_compile(void *arg, const char *pattern, void **ret_regex, char *text,
                      size_t text_size)
{
    (void)arg, (void)pattern, (void)ret_regex;
    (void)snprintf(text, text_size, "not simulated");
    return EGM_E_UNSUPPORTED;
}

static int io_match(void *arg, void *regex, const void *key, size_t size, uint64_t *cost_ns)
{
    (void)arg, (void)regex, (void)key, (void)size, (void)cost_ns;
    return 0;
}

static void io_free(void *arg, void *regex)
{
    (void)arg, (void)regex;
}

static void check(struct master *m)
{
    const char *broken = egm_master_check(m->core);
    if (broken) {
        fail("egm_master_check: %s", broken);
    }
}

static void settle(struct master *m, int proc)
{
    uint64_t now = local_ns(proc);
    for (int n = 0; egm_master_run(m->core, now) && n < 1000; n++) {
        check(m);
    }
    egm_master_flush(m->core, now);
    check(m);
}

void master_start(int proc)
{
    struct master *m = of(proc);
    const struct egm_master_io io = {.send = io_send,
                                     .close = io_close,
                                     .regex_compile = io_compile,
                                     .regex_match = io_match,
                                     .regex_free = io_free,
                                     .random = io_random,
                                     .arg = m};
    struct egm_master_options options = egm_master_defaults();
    *m = (struct master){.instance = rnd(UINT64_MAX) | 1};
    for (int i = 0; i < PEERS; i++) {
        m->conns[i] = -1;
    }
    options.instance = m->instance;
    options.hold_ms = 100;
    options.session_ttl_ms = 2000;
    options.segment_lease_ms = 3000;
    options.read_lease_ms = 700; /* a lost or late PING costs a long read its lease */
    options.put_timeout_ms = 1000;
    options.high_watermark = 0.9;
    if (egm_master_create(&options, &io, &m->core) < 0) {
        fail("a master cannot be created");
        return;
    }
    egm_master_tick(m->core, local_ns(proc));
    post(w.now + 30 * MS, EV_TICK, proc)->life = w.procs[proc].life;
}

void master_stop(int proc)
{
    struct master *m = of(proc);
    struct egm_master *core = m->core;
    m->core = NULL;
    if (core) {
        totals.evictions += egm_master_totals(core).evicted_count;
    }
    egm_master_destroy(core);
}

static void accept_peer(struct master *m, int proc, int conn)
{
    for (uint32_t peer = 0; peer < PEERS; peer++) {
        if (m->conns[peer] < 0) {
            if (egm_master_connected(m->core, local_ns(proc), peer) == 0) {
                m->conns[peer] = conn;
                w.conns[conn].tag[net_side(conn, proc)] = (int)peer;
                return;
            }
            break;
        }
    }
    net_close(conn, proc);
}

static void receive(struct master *m, int proc, const struct event *e)
{
    struct egm_frame frame;
    int peer = w.conns[e->conn].tag[e->side];
    if (peer < 0 || egm_frame_parse(e->data, &frame) < 0) {
        return;
    }
    uint8_t *payload = NULL;
    if (frame.length > 0) {
        payload = egm_alloc(frame.length);
        memcpy(payload, e->data + EGM_FRAME_HEADER, frame.length);
    }
    bool is_end = frame.type == EGM_MSG_PUT_END;
    if (is_end) {
        oracle_before_end(proc, &frame, payload);
    }
    if (!is_end) {
        memory_begin();
    }
    w.asking_conn = e->conn;
    w.asking_request = frame.request;
    watch_asked(&frame, payload);
    egm_master_receive(m->core, local_ns(proc), (uint32_t)peer, &frame, payload);
    w.asking_conn = -1;
    memory_end();
    if (is_end) {
        oracle_after_end(proc);
    }
}

void master_event(const struct event *e)
{
    int proc = e->proc;
    struct master *m = of(proc);
    if (e->kind == EV_ACCEPT) {
        accept_peer(m, proc, e->conn);
    } else if (e->kind == EV_FRAME) {
        receive(m, proc, e);
    } else if (e->kind == EV_CLOSED) {
        int peer = w.conns[e->conn].tag[e->side];
        if (peer >= 0) {
            w.conns[e->conn].tag[e->side] = -1;
            m->conns[peer] = -1;
            egm_master_disconnected(m->core, local_ns(proc), (uint32_t)peer);
        }
    } else if (e->kind == EV_TICK) {
        egm_master_tick(m->core, local_ns(proc));
        post(w.now + 20 * MS + rnd(20 * MS), EV_TICK, proc)->life = w.procs[proc].life;
    }
    settle(m, proc);
}

/* ---- looking inside ---- */
struct look {
    uint32_t mount;
    const char *wrong;
    uint32_t count;
    uint64_t quarantined;
};

uint64_t master_instance(int proc)
{
    return of(proc)->instance;
}

bool master_query(int proc, int key, uint64_t *ret_offset, uint64_t *ret_provider)
{
    struct egm_replica_stat replicas[EGM_MAX_REPLICAS];
    uint32_t count;
    const char *name = key_name(key);
    if (egm_master_query(of(proc)->core, local_ns(proc), egm_bytes_of(name, strlen(name)), replicas,
                         &count) < 0) {
        return false;
    }
    *ret_offset = replicas[0].offset;
    *ret_provider = strtoull(replicas[0].name + 1, NULL, 10);
    return true;
}

static void look_free(void *arg, const struct egm_mount_stat *stat)
{
    struct look *look = arg;
    look->count++;
    if (strcmp(stat->state, "ready") != 0) {
        look->wrong = "a mount is not ready";
    } else if (stat->writing_bytes || stat->quarantined_bytes) {
        look->wrong =
            stat->writing_bytes ? "bytes are still being written" : "bytes are still quarantined";
    } else if (stat->removed_bytes) {
        look->wrong = "removed bytes have not come back";
    } else if (stat->free_bytes + stat->sealed_bytes != stat->size_bytes - EGM_GRANULE) {
        look->wrong = "free bytes are missing";
    } else if (stat->sealed_bytes && look->mount == 1) {
        look->wrong = "objects are left after remove_all";
    }
}

const char *master_reclaimed(int proc)
{
    struct look look = {.mount = 1};
    egm_master_each_mount(of(proc)->core, local_ns(proc), look_free, &look);
    return look.wrong ? look.wrong : look.count != PROVIDERS ? "a provider has not mounted" : NULL;
}

static void look_quarantine(void *arg, const struct egm_mount_stat *stat)
{
    struct look *look = arg;
    look->quarantined += stat->quarantined_bytes;
}

void master_peek(void)
{
    for (int i = 0; i < MASTERS; i++) {
        int proc = proc_of(MASTER, i);
        if (w.procs[proc].is_alive) {
            struct look look = {0};
            egm_master_each_mount(of(proc)->core, local_ns(proc), look_quarantine, &look);
            totals.quarantines += look.quarantined > 0;
        }
    }
}
