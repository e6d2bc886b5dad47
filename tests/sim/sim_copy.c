/* SPDX-License-Identifier: Apache-2.0 */
/* Copies, step by step, and the read leases that GET_START promised. */
#include "sim_requester.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK 6 /* cells */

/* ---- fences, as the map mover looks at them ---- */
static bool is_dead(const struct mem *mem, uint64_t generation, const struct egm_extent *extents,
                    uint32_t count)
{
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load(&mem->floor) >= generation) {
        return true;
    }
    for (uint32_t i = 0; i < count; i++) {
        const _Atomic uint64_t *word = extents[i].length < EGM_GRANULE
                                           ? &mem->slot_fence[extents[i].offset / EGM_SLOT]
                                           : &mem->granule_fence[extents[i].offset / EGM_GRANULE];
        if (atomic_load(word) >= generation) {
            return true;
        }
    }
    return false;
}

/* ---- copying ---- */
void req_later(int proc, enum event_kind kind, uint64_t call, uint64_t ns)
{
    struct event *e = post(w.now + ns, kind, proc);
    e->life = w.procs[proc].life;
    e->a = call;
}

static void step_later(struct requester *r, int proc)
{
    uint64_t ns = 3000 + rnd(60000);
    if (w.is_chaos && chance(2)) {
        ns += rnd(300 * MS);
    }
    if (w.is_chaos && rnd(1000) < w.stuck_copies) { /* this thread alone: the heartbeat goes on */
        ns += rnd(7 * SECOND);
    }
    r->call.was_paused = r->call.was_paused || ns > 100 * MS;
    req_later(proc, EV_COPY, r->call.id, ns);
}

static void list_places(struct call *c)
{
    c->list_count = 0;
    for (size_t i = 0; i < c->op.window_count; i++) {
        struct egm_op_item *item = &c->items[c->op.window[i]];
        for (uint32_t p = 0; item->state == EGM_ITEM_GRANTED && p < item->place_count; p++) {
            if (c->op.is_put || !(item->place_tried >> p & 1)) {
                c->list_item[c->list_count] = c->op.window[i];
                c->list_place[c->list_count++] = item->first_place + p;
                if (!c->op.is_put) {
                    break; /* one place of each item at a time */
                }
            }
        }
    }
    c->at = 0;
    c->cell = 0;
    c->is_chunk_open = false;
    c->copy_status = 0;
}

static void begin_put_copy(struct requester *r, int proc)
{
    struct call *c = &r->call;
    list_places(c);
    for (uint32_t i = 0; i < c->list_count; i++) {
        const struct egm_op_item *item = &c->items[c->list_item[i]];
        const struct egm_place *place = &c->op.places[c->list_place[i]];
        struct attachment *a = req_attachment_of(r, place);
        if (i == 0 || c->list_item[i] != c->list_item[i - 1]) {
            c->write_ids[c->list_item[i]] =
                oracle_new_write(proc, c->keys[c->list_item[i]], item->size, item->generation,
                                 c->answered_by, c->flags & EGM_UPSERT, a ? a->mem : NULL);
            oracle_note_place(c->write_ids[c->list_item[i]], place->extents, place->extent_count);
        }
        c->writer[i] = -1;
        bool may_begin =
            egm_requester_may_write(&r->core, &c->op.writes[c->list_place[i]], local_ns(proc)) == 0;
        /* A grant that waited while its place was taken back, say because this requester's mapping
         * went and came anew, is told by the fence before the first store. */
        if (a && a->is_map && may_begin &&
            !is_dead(a->mem, item->generation, place->extents, place->extent_count)) {
            struct writer writer = {.mem = a->mem,
                                    .extent_count = place->extent_count,
                                    .generation = item->generation,
                                    .write_id = c->write_ids[c->list_item[i]],
                                    .proc = proc,
                                    .life = w.procs[proc].life};
            memcpy(writer.extents, place->extents, place->extent_count * sizeof writer.extents[0]);
            c->writer[i] = writer_open(&writer);
        }
    }
}

void req_copy_begin(struct requester *r, int proc)
{
    struct call *c = &r->call;
    c->is_copying = true;
    if (c->op.is_put) {
        begin_put_copy(r, proc);
    } else {
        list_places(c);
    }
    step_later(r, proc);
}

static uint32_t cells_of(const struct call *c)
{
    return (uint32_t)((c->items[c->list_item[c->at]].object_size + EGM_SLOT - 1) / EGM_SLOT);
}

static void copy_end(struct requester *r, int proc)
{
    struct call *c = &r->call;
    c->is_copying = false;
    if (c->op.is_put) {
        for (size_t i = 0; i < c->op.set.count; i++) {
            egm_requester_stop_write(&r->core, &c->op.writes[i]);
        }
    }
    egm_op_copy_done(&c->op);
    req_attach_all(r, proc);
    req_drive(r, proc);
}

/* The place under work is finished: tells the operation, goes to the next. */
void req_place_done(struct requester *r, int proc, int status)
{
    struct call *c = &r->call;
    uint32_t index = c->list_item[c->at];
    struct egm_op_item *item = &c->items[index];
    struct egm_place *place = &c->op.places[c->list_place[c->at]];
    c->is_remote = false;
    if (c->op.is_put) {
        if (c->writer[c->at] >= 0) {
            writer_close(c->writer[c->at]);
            c->writer[c->at] = -1;
        }
        egm_put_copied(&c->op, item, status, 0);
    } else {
        if (status == 0) {
            oracle_got(c->keys[index], c->sent_true, item->object_size, item->generation,
                       c->answered_by, c->cells, cells_of(c));
            totals.hits++;
        }
        egm_get_copied(&c->op, item, c->list_place[c->at] - item->first_place, status);
    }
    if (status == EGM_E_PEER_GONE && r->main.state == LINK_IDLE) {
        struct egm_buf buf;
        egm_buf_init(&buf, 4096);
        egm_requester_encode_suspect(&r->core, &buf, place->mount, 1);
        req_send_buf(r->main.conn, proc, &buf);
    }
    c->at++;
    c->cell = 0;
    c->is_chunk_open = false;
    if (c->at == c->list_count && !c->op.is_put) {
        list_places(c); /* another place for those that failed */
    }
    if (c->at == c->list_count) {
        copy_end(r, proc);
    } else {
        step_later(r, proc);
    }
}

static void ask_remote(struct requester *r, int proc, struct attachment *a)
{
    struct call *c = &r->call;
    const struct egm_op_item *item = &c->items[c->list_item[c->at]];
    const struct egm_place *place = &c->op.places[c->list_place[c->at]];
    static struct data_message m;
    m = (struct data_message){.is_write = c->op.is_put,
                              .segment = place->segment,
                              .extent_count = place->extent_count,
                              .generation = item->generation,
                              .write_id = c->write_ids[c->list_item[c->at]],
                              .length = item->object_size,
                              .request = ++r->next_data};
    memcpy(m.extents, place->extents, place->extent_count * sizeof m.extents[0]);
    struct egm_buf buf;
    egm_buf_init(&buf, 1u << 20);
    size_t begin = egm_frame_begin(&buf, m.is_write ? EGM_MSG_WRITE : EGM_MSG_READ, m.request);
    (void)egm_buf_append(&buf, &m, offsetof(struct data_message, cells));
    egm_frame_end(&buf, begin);
    c->is_remote = true;
    c->remote_request = m.request;
    req_send_buf(a->conn, proc, &buf);
}

static void copy_chunk(struct requester *r, int proc, const struct attachment *a)
{
    struct call *c = &r->call;
    const struct egm_op_item *item = &c->items[c->list_item[c->at]];
    const struct egm_place *place = &c->op.places[c->list_place[c->at]];
    uint32_t count = cells_of(c);
    for (uint32_t n = 0; n < CHUNK && c->cell < count; n++, c->cell++) {
        uint32_t slot = extent_slot(place->extents, place->extent_count, c->cell);
        if (c->op.is_put) {
            a->mem->cells[slot] = c->write_ids[c->list_item[c->at]] << 16 | c->cell;
        } else {
            c->cells[c->cell] = a->mem->cells[slot];
        }
    }
    c->is_chunk_open = false;
    if (c->cell < count) {
        step_later(r, proc);
        return;
    }
    bool is_stale = !c->op.is_put && !EGM_MUTANT(2) &&
                    is_dead(a->mem, item->generation, place->extents, place->extent_count);
    req_place_done(r, proc, is_stale ? EGM_E_STALE : 0);
}

void req_copy_step(struct requester *r, int proc)
{
    struct call *c = &r->call;
    if (c->list_count == 0 || c->is_remote) {
        if (c->list_count == 0) {
            copy_end(r, proc);
        }
        return;
    }
    struct egm_op_item *item = &c->items[c->list_item[c->at]];
    struct egm_place *place = &c->op.places[c->list_place[c->at]];
    struct egm_writing *write = c->op.is_put ? &c->op.writes[c->list_place[c->at]] : NULL;
    struct attachment *a = req_attachment_of(r, place);
    if (c->is_chunk_open && a) { /* it was allowed when it was looked at, however long ago */
        totals.faults[FAULT_LATE_STORE] +=
            write && egm_requester_may_write(&r->core, write, local_ns(proc)) < 0;
        copy_chunk(r, proc, a);
        return;
    }
    int status = !a ? EGM_E_NOT_READY : local_ns(proc) >= c->deadline ? EGM_E_TIMEOUT : 0;
    if (status == 0 && write) {
        status = egm_requester_may_write(&r->core, write, local_ns(proc));
    } else if (status == 0 && !a->is_map) {
        status = egm_requester_may_read(&r->core, &c->op.reading, local_ns(proc)); /* R2 */
    }
    if (status == 0 && write && a->is_map &&
        is_dead(a->mem, item->generation, place->extents, place->extent_count)) {
        status = EGM_E_STALE;
    }
    if (status == 0 && write && a->is_map && c->writer[c->at] < 0) {
        status = EGM_E_NOT_READY; /* attached only since the copy began */
    }
    if (status < 0) {
        req_place_done(r, proc, status);
    } else if (a->is_map) {
        c->is_chunk_open = true;
        step_later(r, proc);
    } else {
        ask_remote(r, proc, a);
    }
}

void req_remote_answer(struct requester *r, int proc, const uint8_t *payload, size_t size)
{
    struct call *c = &r->call;
    static struct data_message m;
    memcpy(&m, payload, size < sizeof m ? size : sizeof m);
    if (!c->is_running || !c->is_copying || !c->is_remote || m.request != c->remote_request) {
        return;
    }
    memcpy(c->cells, m.cells, m.cell_count * sizeof m.cells[0]);
    req_place_done(r, proc, m.status);
}

/* ---- read leases: where the window lies; until when is the core's to say (R1) ---- */
void req_note_leases(struct requester *r, int proc)
{
    struct call *c = &r->call;

    req_drop_leases(c);
    for (uint32_t i = 0; i < c->op.place_count && i < BATCH * 4; i++) {
        const struct egm_place *place = &c->op.places[i];
        struct read_lease *lease = &c->leases[i];
        *lease = (struct read_lease){.is_active = place->is_known && !c->is_promise_void,
                                     .mem = place->is_known ? mem_of(place->epoch) : NULL,
                                     .extent_count = place->extent_count,
                                     .instance = c->answered_by};
        memcpy(lease->extents, place->extents, place->extent_count * sizeof lease->extents[0]);
    }
    for (size_t n = 0; n < c->op.window_count; n++) {
        const struct egm_op_item *item = &c->items[c->op.window[n]];
        for (uint32_t i = item->first_place; i < item->first_place + item->place_count; i++) {
            const struct read_lease *lease = &c->leases[i];
            if (i < BATCH * 4 && lease->is_active &&
                egm_requester_may_read(&r->core, &c->op.reading, local_ns(proc)) == 0) {
                watch_taken_up("read lease", lease->mem, item->generation, lease->extents,
                               lease->extent_count);
            }
        }
    }
}

void req_drop_leases(struct call *c)
{
    for (uint32_t i = 0; i < BATCH * 4; i++) {
        c->leases[i].is_active = false;
    }
}

bool requester_reads(const struct mem *mem, const struct egm_extent *extents, uint32_t count)
{
    for (int i = 0; i < REQUESTERS; i++) {
        int proc = proc_of(REQUESTER, i);
        const struct call *c = &req_all[i].call;
        for (int k = 0; k < BATCH * 4 && w.procs[proc].is_alive && c->is_running; k++) {
            const struct read_lease *lease = &c->leases[k];
            if (lease->is_active && lease->mem == mem &&
                egm_requester_may_read(&req_all[i].core, &c->op.reading, local_ns(proc)) == 0 &&
                extents_overlap(lease->extents, lease->extent_count, extents, count)) {
                return true;
            }
        }
    }
    return false;
}

void requester_forget_leases(uint64_t instance)
{
    for (int i = 0; i < REQUESTERS; i++) {
        req_all[i].call.is_promise_void = true; /* its answer may be under way */
        for (int k = 0; k < BATCH * 4; k++) {
            struct read_lease *lease = &req_all[i].call.leases[k];
            lease->is_active = lease->is_active && lease->instance != instance;
        }
    }
}
