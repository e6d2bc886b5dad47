/* SPDX-License-Identifier: Apache-2.0 */
/* Provider processes: the production core, its fence words, cells instead of bytes, importers and
 * a data port.
 *
 * Memory outlives its process as long as somebody has it mapped; a new life gets new memory and a
 * new epoch. A slot of kind map is freed only by looking at its lock, which the simulator knows
 * to be free when the mapping is gone. */
#include "base/alloc.h"

#include "core/provider_state.h" /* white box: who holds the lease */
#include "sim_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IMPORTERS 64
#define XFERS 32
#define VERIFIES 16

struct importer {
    bool is_used, is_answered, is_gone;
    int conn, requester;
    uint8_t kind;
    uint32_t slot;
    uint64_t request;
    int mapping;
    uint32_t xfer_count;
};

struct xfer {
    bool is_used, is_parked;
    uint32_t serial;
    int importer;
    uint32_t live, done, count;
    int writer;
    uint64_t parked_until;
    struct data_message m;
};

struct provider {
    struct egm_pcore *core;
    struct mem *mem;
    uint64_t id;
    int conn;
    bool is_greeted, is_draining;
    uint64_t instance, drain_until, mounted_at;
    struct importer importers[IMPORTERS];
    struct xfer xfers[XFERS];
    uint32_t serial;
    struct egm_pcore_verify verifies[VERIFIES];
    bool has_verify[VERIFIES];
};
static struct provider providers[PROVIDERS];

static struct provider *of(int proc)
{
    return &providers[w.procs[proc].index];
}

struct mem *mem_of(uint64_t epoch)
{
    struct mem *mem = w.mems;
    while (mem && mem->epoch != epoch) {
        mem = mem->next;
    }
    return mem;
}

uint64_t tenant_hash(void)
{
    uint64_t hash = 0;
    for (const char *at = "default"; *at; at++) {
        hash = (hash ^ (uint8_t)*at) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* ---- life ---- */
void provider_start(int proc)
{
    struct provider *p = of(proc);
    char name[16];
    *p = (struct provider){.id = 1000u + (uint64_t)w.procs[proc].index, .conn = -1};
    p->mem = calloc(1, sizeof *p->mem);
    p->mem->epoch = ++w.next_epoch;
    p->mem->provider = p->id;
    p->mem->next = w.mems;
    w.mems = p->mem;
    (void)snprintf(name, sizeof name, "p%u", (unsigned)p->id);
    struct egm_pcore_segment segment = {.segment = 0,
                                        .size = SEGMENT_BYTES,
                                        .floor = &p->mem->floor,
                                        .granule_fence = p->mem->granule_fence,
                                        .slot_fence = p->mem->slot_fence};
    struct egm_pcore_options options = {.provider = p->id,
                                        .epoch = p->mem->epoch,
                                        .host = 1,
                                        .name = name,
                                        .unix_path = "u",
                                        .data_address = "d",
                                        .segments = &segment,
                                        .segment_count = 1};
    if (egm_pcore_create(&options, &p->core) < 0) {
        fail("a provider core cannot be created");
    }
    post(w.now + rnd(20 * MS), EV_TICK, proc)->life = w.procs[proc].life;
}

void provider_stop(int proc)
{
    struct provider *p = of(proc);
    for (int i = 0; i < XFERS; i++) {
        if (p->xfers[i].is_used && p->xfers[i].writer >= 0) {
            writer_close(p->xfers[i].writer);
        }
        p->xfers[i].is_used = false;
    }
    egm_pcore_destroy(p->core);
    p->core = NULL;
}

bool provider_is_leased_to(uint64_t provider, uint64_t epoch, uint64_t instance)
{
    int proc = proc_of(PROVIDER, (int)(provider - 1000));
    const struct provider *p = of(proc);
    return w.procs[proc].is_alive && p->mem->epoch == epoch
               ? p->core->term_instance == instance && local_ns(proc) < p->core->lease_until_ns
               : true; /* that life is over: nobody else can be granted anything there */
}

bool provider_is_alive(uint64_t provider, uint64_t epoch)
{
    int proc = proc_of(PROVIDER, (int)(provider - 1000));
    return w.procs[proc].is_alive && of(proc)->mem->epoch == epoch;
}

bool provider_has_floor(uint64_t provider, uint64_t epoch, uint64_t floor)
{
    int proc = proc_of(PROVIDER, (int)(provider - 1000));
    const struct provider *p = of(proc);
    return !w.procs[proc].is_alive || p->mem->epoch != epoch ||
           egm_pcore_floor_of(p->core, tenant_hash()) >= floor;
}

bool provider_is_connected_to(uint64_t provider, uint64_t epoch, int master, uint64_t since)
{
    int proc = proc_of(PROVIDER, (int)(provider - 1000));
    const struct provider *p = of(proc);
    return w.procs[proc].is_alive && p->mem->epoch == epoch && p->conn >= 0 &&
           !w.conns[p->conn].is_broken && !w.conns[p->conn].is_hung_up && p->mounted_at < since &&
           p->core->status.is_mounted && p->core->is_holder_here &&
           w.conns[p->conn].proc[1] == master && w.conns[p->conn].is_open[0] &&
           w.conns[p->conn].is_open[1] &&
           provider_is_leased_to(provider, epoch, master_instance(master));
}

/* ---- the connection to the master ---- */
static void send_frame(int conn, int proc, struct egm_buf *frame, size_t begin)
{
    egm_frame_end(frame, begin);
    net_send(conn, proc, frame->data, frame->len);
    egm_buf_release(frame);
}

static void connect_master(struct provider *p, int proc)
{
    struct egm_buf frame;
    p->conn = net_connect(proc, pick_master(proc), CONTROL);
    p->is_greeted = false;
    if (p->conn < 0) {
        return;
    }
    egm_buf_init(&frame, 4096);
    size_t begin = egm_frame_begin(&frame, EGM_MSG_HELLO, 1);
    egm_put_hello(&frame, &(struct egm_hello){.version_min = 1,
                                              .version_max = 1,
                                              .role = EGM_ROLE_PROVIDER,
                                              .process = p->id,
                                              .cluster = egm_bytes_of("egmstore", 8)});
    send_frame(p->conn, proc, &frame, begin);
}

static void lose_master(struct provider *p, int proc)
{
    if (p->conn >= 0) {
        net_close(p->conn, proc);
        p->conn = -1;
        egm_pcore_disconnected(p->core);
    }
}

static void answer_attach(struct provider *p, int proc, struct importer *im, int status)
{
    struct egm_buf frame;
    im->is_answered = true;
    if (status == 0 && im->kind == EGM_IMPORT_MAP) {
        /* What is passed to a socket that is closed at the other end maps nothing. */
        struct mapping *mapping = &w.mappings[im->mapping];
        mapping->is_mapped =
            w.conns[im->conn].is_open[0] && w.procs[mapping->proc].life == mapping->life;
    }
    egm_buf_init(&frame, 4096);
    size_t begin = egm_frame_begin(&frame, EGM_MSG_ATTACH_REPLY, im->request);
    egm_put_attach_reply(
        &frame, &(struct egm_attach_reply){.status = status == 0 ? 0 : -1, .count = status == 0});
    /* fence_size carries the number of the mapping: it stands for the passed descriptor. */
    if (status == 0) {
        egm_put_attached(&frame, &(struct egm_attached){.slot = im->slot,
                                                        .size = SEGMENT_BYTES,
                                                        .fence_size = (uint64_t)im->mapping});
    }
    send_frame(im->conn, proc, &frame, begin);
    (void)p;
}

static void try_xfer(struct provider *p, int proc, struct xfer *x);

/* Sends what the core has left, answers who waited for it. */
static void pump(struct provider *p, int proc)
{
    struct egm_buf *out = egm_pcore_out(p->core);
    size_t at = 0;
    if (out->failed && p->conn >= 0) {
        egm_buf_clear(out);
        lose_master(p, proc);
    }
    while (at < out->len && p->conn >= 0) {
        struct egm_frame frame;
        if (egm_frame_parse(out->data + at, &frame) < 0) {
            fail("the provider sends something that is no frame");
            break;
        }
        net_send(p->conn, proc, out->data + at, EGM_FRAME_HEADER + frame.length);
        at += EGM_FRAME_HEADER + frame.length;
    }
    egm_buf_clear(out);
    for (int i = 0; i < IMPORTERS; i++) {
        struct importer *im = &p->importers[i];
        int status = 0;
        if (!im->is_used || im->is_answered || im->is_gone) {
            continue;
        }
        enum egm_slot_state state = egm_pcore_slot_state(p->core, im->slot, &status);
        if (state == EGM_SLOT_HELD) {
            answer_attach(p, proc, im, 0);
        } else if (state == EGM_SLOT_REFUSED) {
            answer_attach(p, proc, im, status);
        }
    }
    for (int i = 0; i < XFERS; i++) {
        if (p->xfers[i].is_used && p->xfers[i].is_parked) {
            try_xfer(p, proc, &p->xfers[i]);
        }
    }
}

static void master_frame(struct provider *p, int proc, const struct event *e)
{
    struct egm_frame frame;
    if (egm_frame_parse(e->data, &frame) < 0) {
        return;
    }
    const uint8_t *payload = e->data + EGM_FRAME_HEADER;
    if (frame.type == EGM_MSG_HELLO_REPLY) {
        struct egm_cursor cursor = egm_cursor_of(payload, frame.length);
        struct egm_hello_reply reply;
        egm_take_hello_reply(&cursor, &reply);
        p->is_greeted = true;
        p->instance = reply.instance;
        egm_pcore_connected(p->core, reply.instance);
        return;
    }
    struct egm_pcore_verify verify;
    memory_begin();
    int r = egm_pcore_receive(p->core, local_ns(proc), &frame, payload, &verify);
    memory_end();
    if (frame.type == EGM_MSG_MOUNT_REPLY) {
        p->mounted_at = w.now;
    }
    if (r < 0 || egm_pcore_status(p->core).mount_status < 0) {
        trace("provider closes after %s code=%d", egm_message_name(frame.type), r);
        lose_master(p, proc);
    } else if (r == EGM_PCORE_VERIFY) {
        for (int i = 0; i < VERIFIES; i++) {
            if (!p->has_verify[i]) {
                p->has_verify[i] = true;
                p->verifies[i] = verify;
                struct event *v = post(w.now + rnd(20 * MS), EV_VERIFIED, proc);
                v->life = w.procs[proc].life;
                v->a = (uint64_t)i;
                break;
            }
        }
    }
}

/* ---- importers ---- */
static void attach(struct provider *p, int proc, int conn, const struct egm_frame *frame,
                   const uint8_t *payload)
{
    struct egm_cursor cursor = egm_cursor_of(payload, frame->length);
    struct egm_attach ask;
    int i = 0;
    egm_take_attach(&cursor, &ask);
    while (i < IMPORTERS && p->importers[i].is_used) {
        i++;
    }
    struct importer im = {.conn = conn,
                          .requester = w.conns[conn].proc[0],
                          .kind = ask.kind,
                          .request = frame->request};
    uint32_t slot = 0;
    int r = i == IMPORTERS || ask.epoch != p->mem->epoch ? EGM_E_STALE : 0;
    r = r == 0 ? egm_pcore_slot_take(p->core, ask.session, ask.kind, &slot) : r;
    if (r < 0) {
        answer_attach(p, proc, &im, r);
        net_close(conn, proc);
        return;
    }
    if (w.mapping_count == w.mapping_room) {
        w.mapping_room = w.mapping_room ? w.mapping_room * 2 : 64;
        w.mappings = realloc(w.mappings, w.mapping_room * sizeof *w.mappings);
    }
    im.is_used = true;
    im.slot = slot;
    im.mapping = (int)w.mapping_count++;
    w.mappings[im.mapping] =
        (struct mapping){.proc = im.requester, .conn = conn, .life = w.conns[conn].life[0]};
    p->importers[i] = im;
    w.conns[conn].tag[1] = i;
}

static void free_importer(struct provider *p, int proc, int index)
{
    struct importer *im = &p->importers[index];
    bool is_held = w.mappings[im->mapping].is_mapped && !EGM_MUTANT(8);
    if ((im->kind == EGM_IMPORT_MAP && is_held) || im->xfer_count > 0) {
        struct event *e = post(w.now + 30 * MS + rnd(200 * MS), EV_POLL, proc);
        e->life = w.procs[proc].life;
        e->a = (uint64_t)index;
        return;
    }
    egm_pcore_slot_free(p->core, im->slot);
    im->is_used = false;
}

static void importer_closed(struct provider *p, int proc, int index)
{
    if (index >= 0 && p->importers[index].is_used && !p->importers[index].is_gone) {
        p->importers[index].is_gone = true;
        free_importer(p, proc, index);
    }
}

/* ---- the data port ---- */
static void end_xfer(struct provider *p, int proc, struct xfer *x, int status)
{
    struct importer *im = &p->importers[x->importer];
    if (!x->is_parked && status != EGM_E_PROTO) {
        if (x->writer >= 0) {
            writer_close(x->writer);
        }
        egm_pcore_access_end(p->core, x->live, x->m.is_write);
    }
    x->is_used = false;
    im->xfer_count--;
    if (!im->is_gone) {
        struct egm_buf frame;
        x->m.status = status;
        x->m.cell_count = status == 0 && !x->m.is_write ? x->count : 0;
        egm_buf_init(&frame, 1u << 20);
        size_t begin = egm_frame_begin(
            &frame, x->m.is_write ? EGM_MSG_WRITE_REPLY : EGM_MSG_READ_REPLY, x->m.request);
        (void)egm_buf_append(&frame, &x->m,
                             offsetof(struct data_message, cells) +
                                 x->m.cell_count * sizeof(uint64_t));
        send_frame(im->conn, proc, &frame, begin);
    }
}

static void step_later(struct provider *p, int proc, struct xfer *x)
{
    uint64_t ns = 5000 + rnd(w.is_chaos && chance(3) ? 800 * MS : 100000);
    ns += w.is_chaos && rnd(1000) < w.stuck_copies ? rnd(7 * SECOND) : 0;
    struct event *e = post(w.now + ns, EV_XFER, proc);
    e->life = w.procs[proc].life;
    e->a = (uint64_t)(x - p->xfers);
    e->b = x->serial;
}

static void try_xfer(struct provider *p, int proc, struct xfer *x)
{
    struct egm_pcore_access access = {.is_write = x->m.is_write,
                                      .extent_count = (uint8_t)x->m.extent_count,
                                      .segment = x->m.segment,
                                      .generation = x->m.generation,
                                      .length = x->m.length,
                                      .extents = x->m.extents};
    int r = egm_pcore_access_begin(p->core, &access, &x->live);
    x->writer = -1;
    if (r == EGM_E_NOT_READY && local_ns(proc) < x->parked_until) {
        totals.parked += !x->is_parked;
        x->is_parked = true;
        return;
    }
    if (r < 0) {
        x->is_parked = true; /* nothing to end in the core */
        if (r == EGM_E_PROTO) {
            fail("an honest transfer is refused as a breach of the protocol");
        }
        end_xfer(p, proc, x, r == EGM_E_NOT_READY ? EGM_E_STALE : r);
        return;
    }
    x->is_parked = false;
    if (x->m.is_write) {
        struct writer writer = {.is_tcp = true,
                                .mem = p->mem,
                                .extent_count = x->m.extent_count,
                                .generation = x->m.generation,
                                .write_id = x->m.write_id,
                                .proc = proc,
                                .life = w.procs[proc].life};
        memcpy(writer.extents, x->m.extents, sizeof writer.extents);
        x->writer = writer_open(&writer);
    }
    step_later(p, proc, x);
}

static void begin_xfer(struct provider *p, int proc, int index, const uint8_t *payload, size_t size)
{
    struct importer *im = &p->importers[index];
    int i = 0;
    while (i < XFERS && p->xfers[i].is_used) {
        i++;
    }
    if (i == XFERS) {
        net_close(im->conn, proc);
        importer_closed(p, proc, index);
        return;
    }
    struct xfer *x = &p->xfers[i];
    *x = (struct xfer){.is_used = true, .serial = ++p->serial, .importer = index, .writer = -1};
    memcpy(&x->m, payload, size < sizeof x->m ? size : sizeof x->m);
    x->count = (uint32_t)((x->m.length + EGM_SLOT - 1) / EGM_SLOT);
    x->parked_until = local_ns(proc) + SECOND;
    im->xfer_count++;
    try_xfer(p, proc, x);
}

/* The shell asks between slices. A revoked transfer takes its connection along: nothing is answered
 * over it any more. */
static bool end_if_revoked(struct provider *p, int proc, struct xfer *x)
{
    struct importer *im = &p->importers[x->importer];
    int index = x->importer;
    bool is_revoked = egm_pcore_access_is_revoked(p->core, x->live, x->m.is_write);
    if (!im->is_gone && !is_revoked) {
        return false;
    }
    if (!im->is_gone) {
        net_close(im->conn, proc);
        importer_closed(p, proc, index);
    }
    end_xfer(p, proc, x, EGM_E_STALE);
    return true;
}

static void step_xfer(struct provider *p, int proc, struct xfer *x)
{
    if (end_if_revoked(p, proc, x)) {
        return;
    }
    for (uint32_t n = 0; n < 4 && x->done < x->count; n++, x->done++) {
        uint32_t slot = extent_slot(x->m.extents, x->m.extent_count, x->done);
        if (x->m.is_write) {
            p->mem->cells[slot] = x->m.write_id << 16 | x->done;
        } else {
            x->m.cells[x->done] = p->mem->cells[slot];
        }
    }
    if (x->done < x->count) {
        step_later(p, proc, x);
    } else {
        end_xfer(p, proc, x, 0);
    }
}

/* ---- drain (I14) ---- */
void provider_drain(int proc)
{
    struct provider *p = of(proc);
    if (p->is_draining) {
        return;
    }
    p->is_draining = true;
    p->drain_until = local_ns(proc) + 8 * SECOND;
    egm_pcore_unmount(p->core, EGM_UNMOUNT_DRAIN);
    pump(p, proc);
    for (int i = 0; i < IMPORTERS; i++) {
        if (p->importers[i].is_used && p->importers[i].is_answered && !p->importers[i].is_gone) {
            struct egm_buf frame;
            egm_buf_init(&frame, 256);
            size_t begin = egm_frame_begin(&frame, EGM_MSG_DETACH, 0);
            egm_put_detach(&frame, &(struct egm_detach){.provider = p->id, .epoch = p->mem->epoch});
            send_frame(p->importers[i].conn, proc, &frame, begin);
        }
    }
    post(w.now + 100 * MS, EV_RELEASE, proc)->life = w.procs[proc].life;
}

static void release(struct provider *p, int proc)
{
    bool is_held = false;
    for (int i = 0; i < IMPORTERS; i++) {
        is_held =
            is_held || (p->importers[i].is_used && w.mappings[p->importers[i].mapping].is_mapped);
    }
    bool is_over = local_ns(proc) >= p->drain_until;
    struct egm_pcore_status status = egm_pcore_status(p->core);
    if (status.slot_count == 0 || is_over) {
        if (status.slot_count == 0 && is_held) {
            fail("I14: a drained provider goes while an importer holds its memory");
        }
        egm_pcore_retire(p->core);
        process_kill(proc);
        struct event *e = post(w.now + 50 * MS + rnd(SECOND), EV_START, -1);
        e->a = (uint64_t)proc;
        return;
    }
    post(w.now + 100 * MS, EV_RELEASE, proc)->life = w.procs[proc].life;
}

/* ---- events ---- */
static void frame_event(struct provider *p, int proc, const struct event *e)
{
    struct egm_frame frame;
    if (e->conn == p->conn) {
        master_frame(p, proc, e);
        return;
    }
    if (w.conns[e->conn].kind == CONTROL || egm_frame_parse(e->data, &frame) < 0) {
        return; /* of an older connection to a master */
    }
    const uint8_t *payload = e->data + EGM_FRAME_HEADER;
    int index = w.conns[e->conn].tag[1];
    if (frame.type == EGM_MSG_ATTACH) {
        attach(p, proc, e->conn, &frame, payload);
    } else if (index >= 0 && p->importers[index].is_used && p->importers[index].is_answered) {
        begin_xfer(p, proc, index, payload, frame.length);
    }
}

void provider_event(const struct event *e)
{
    int proc = e->proc;
    struct provider *p = of(proc);
    switch (e->kind) {
    case EV_FRAME:
        frame_event(p, proc, e);
        break;
    case EV_CLOSED:
        if (e->conn == p->conn) {
            p->conn = -1;
            egm_pcore_disconnected(p->core);
        } else if (w.conns[e->conn].kind != CONTROL) {
            importer_closed(p, proc, w.conns[e->conn].tag[1]);
        }
        break;
    case EV_TICK:
        if (p->conn < 0) {
            connect_master(p, proc);
        }
        for (int i = 0; i < XFERS; i++) {
            if (p->xfers[i].is_used && !p->xfers[i].is_parked) {
                (void)end_if_revoked(p, proc, &p->xfers[i]);
            }
        }
        post(w.now + 50 * MS + rnd(100 * MS), EV_TICK, proc)->life = w.procs[proc].life;
        break;
    case EV_XFER:
        if (p->xfers[e->a].is_used && p->xfers[e->a].serial == e->b && !p->xfers[e->a].is_parked) {
            step_xfer(p, proc, &p->xfers[e->a]);
        }
        break;
    case EV_POLL:
        free_importer(p, proc, (int)e->a);
        break;
    case EV_VERIFIED:
        p->has_verify[e->a] = false;
        egm_pcore_verified(p->core, &p->verifies[e->a], /*matches=*/true);
        break;
    case EV_RELEASE:
        release(p, proc);
        return; /* the process may be gone */
    default:
        break;
    }
    pump(p, proc);
}
