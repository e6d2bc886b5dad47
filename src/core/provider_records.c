/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RECORDS, VERIFY and the data port's questions.
 *
 * A batch is read twice: once to check every record, once to apply them; so a malformed batch
 * changes nothing (P5). Grants and seals of a generation that is dead already are skipped: they are
 * late, not wrong. A grant or seal for which there is no memory is skipped as well and counted:
 * the object is then not reachable over tcp, which its requesters see as stale; no byte is at risk.
 *
 * A drop that meets running transfers leaves the entry dying and lets the batch's answer wait
 * (P2). Deferred answers are a ring of consecutive ids; an entry remembers the id that waits for
 * it. After a reconnect old ids mean nothing: reply_head has passed them. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/mutant.h"

#include "core/provider_state.h"
#include "wire/status.h"

#include <errno.h>
#include <string.h>

/* Bytes of a record without extents, and of an extent, on the wire. */
#define RECORD_LEAST (1 + 4 + 8 + 8 + 8 + 1)
#define EXTENT_BYTES 16

static uint32_t term_of(uint64_t generation)
{
    return (uint32_t)(generation >> EGM_GENERATION_TERM_SHIFT);
}

/* ---- deferred answers ---- */

static struct egm_deferred *deferred_at(struct egm_pcore *core, uint64_t id)
{
    if (id < core->reply_head || id - core->reply_head >= core->deferred_count) {
        return NULL;
    }
    return &core->deferred[id % EGM_PCORE_MAX_DEFERRED];
}

void egm_pcore_flush_deferred(struct egm_pcore *core)
{
    while (core->deferred_count > 0) {
        struct egm_deferred *head = &core->deferred[core->reply_head % EGM_PCORE_MAX_DEFERRED];
        if (head->waiting > 0) {
            return;
        }
        struct egm_records_reply reply = {.status = egm_status_to_wire(head->status),
                                          .sequence = head->sequence};
        size_t begin = egm_frame_begin(&core->out, EGM_MSG_RECORDS_REPLY, head->request);
        egm_put_records_reply(&core->out, &reply);
        egm_frame_end(&core->out, begin);
        core->reply_head++;
        core->deferred_count--;
    }
}

/* ---- records ---- */

struct one_record {
    struct egm_record head;
    uint32_t segment_index;
    uint64_t bytes; /* of all extents */
    struct egm_extent extents[EGM_MAX_EXTENTS];
};

/* Reads the next record; false if it is malformed. */
static bool take_record(const struct egm_pcore *core, struct egm_cursor *cursor,
                        struct one_record *ret)
{
    egm_take_record(cursor, &ret->head);
    const struct egm_record *head = &ret->head;
    if (!egm_cursor_expect(cursor, head->extent_count, EXTENT_BYTES, EGM_MAX_EXTENTS)) {
        return false;
    }
    for (uint8_t i = 0; i < head->extent_count; i++) {
        egm_take_extent(cursor, &ret->extents[i]);
    }
    if (cursor->failed) {
        return false;
    }
    if (head->kind == EGM_RECORD_FLOOR) {
        return head->extent_count == 0;
    }
    ret->segment_index = egm_pcore_segment_index(core, head->segment);
    if (head->kind < EGM_RECORD_GRANT || head->kind > EGM_RECORD_DROP || head->generation == 0 ||
        term_of(head->generation) > EGM_TERM_MAX ||
        !egm_pcore_extents_valid(core, ret->segment_index, ret->extents, head->extent_count,
                                 &ret->bytes)) {
        return false;
    }
    return head->kind != EGM_RECORD_SEAL || head->size <= ret->bytes;
}

static bool has_extents(const struct egm_live *live, uint32_t segment_index,
                        const struct egm_extent *extents, uint8_t extent_count)
{
    if (live->segment != segment_index || live->extent_count != extent_count) {
        return false;
    }
    const struct egm_extent *own = egm_live_extents(live);
    for (uint8_t i = 0; i < extent_count; i++) {
        if (own[i].offset != extents[i].offset || own[i].length != extents[i].length) {
            return false;
        }
    }
    return true;
}

static void apply_live(struct egm_pcore *core, const struct one_record *record)
{
    const struct egm_record *head = &record->head;

    /* Our master has gone on to a newer term and has not told by LEASE yet: the next master's term
     * must be above it all the same. */
    core->term = (uint32_t)egm_max_u64(core->term, term_of(head->generation));
    if (egm_pcore_is_dead(core, record->segment_index, head->generation, record->extents,
                          head->extent_count)) {
        return;
    }
    uint32_t live = egm_live_find(core, head->generation);
    if (live == EGM_NO_LIVE) {
        live = egm_live_add(core, head->generation, record->segment_index, record->extents,
                            head->extent_count);
        if (live == EGM_NO_LIVE) {
            core->status.lost_record_count++;
            return;
        }
    }
    struct egm_live *entry = egm_live_at(core, live);
    if (head->kind == EGM_RECORD_SEAL && entry->state == EGM_LIVE_GRANTED) {
        entry->state = EGM_LIVE_SEALED;
        entry->size = head->size;
        entry->checksum = head->checksum;
    }
}

static void apply_drop(struct egm_pcore *core, const struct one_record *record, uint64_t reply)
{
    const struct egm_record *head = &record->head;

    egm_pcore_fence(core, record->segment_index, head->generation, record->extents,
                    head->extent_count);
    uint32_t live = egm_live_find(core, head->generation);
    if (live == EGM_NO_LIVE) {
        return;
    }
    struct egm_live *entry = egm_live_at(core, live);
    /* The same places, or the master contradicts its own grant: dead are then both. */
    egm_pcore_fence(core, entry->segment, head->generation, egm_live_extents(entry),
                    entry->extent_count);
    if (entry->readers == 0 && entry->writers == 0) {
        egm_live_remove(core, live);
        return;
    }
    entry->state = EGM_LIVE_DYING;
    if (!deferred_at(core, entry->reply) && !EGM_MUTANT(18)) {
        entry->reply = reply;
        deferred_at(core, reply)->waiting++;
    }
}

static int apply_floor(struct egm_pcore *core, const struct egm_record *head)
{
    for (uint32_t i = 0; i < core->floor_count; i++) {
        if (core->floors[i].tenant == head->size) {
            core->floors[i].floor = egm_max_u64(core->floors[i].floor, head->generation);
            return 0;
        }
    }
    if (core->floor_count == EGM_PCORE_MAX_FLOORS) {
        return EGM_E_LIMIT;
    }
    if (core->floor_count == core->floor_room) {
        uint32_t room = core->floor_room ? core->floor_room * 2 : 16;
        struct egm_tenant_floor *floors = egm_realloc(core->floors, room * sizeof(*floors));
        if (!floors) {
            return -ENOMEM;
        }
        core->floors = floors;
        core->floor_room = room;
    }
    core->floors[core->floor_count++] =
        (struct egm_tenant_floor){.tenant = head->size, .floor = head->generation};
    return 0;
}

uint64_t egm_pcore_floor_of(const struct egm_pcore *core, uint64_t tenant)
{
    for (uint32_t i = 0; i < core->floor_count; i++) {
        if (core->floors[i].tenant == tenant) {
            return core->floors[i].floor;
        }
    }
    return 0;
}

/* Whether the master of this connection holds the lease of our term (I13). */
static bool is_master_ours(const struct egm_pcore *core)
{
    return core->is_holder_here && core->term_instance == core->instance;
}

int egm_pcore_records(struct egm_pcore *core, const struct egm_frame *frame,
                      struct egm_cursor cursor)
{
    struct egm_records head;
    struct one_record record;

    egm_take_records(&cursor, &head);
    if (!egm_cursor_expect(&cursor, head.count, RECORD_LEAST, EGM_MAX_RECORDS) ||
        head.sequence <= core->last_sequence) {
        return EGM_E_PROTO;
    }
    struct egm_cursor again = cursor;
    for (uint32_t i = 0; i < head.count; i++) {
        if (!take_record(core, &cursor, &record)) {
            return EGM_E_PROTO;
        }
    }
    if (egm_cursor_end(&cursor) < 0) {
        return EGM_E_PROTO;
    }
    if (core->deferred_count == EGM_PCORE_MAX_DEFERRED) {
        return EGM_E_LIMIT;
    }
    core->last_sequence = head.sequence;
    uint64_t id = core->reply_head + core->deferred_count++;
    struct egm_deferred *deferred = &core->deferred[id % EGM_PCORE_MAX_DEFERRED];
    *deferred = (struct egm_deferred){.request = frame->request, .sequence = head.sequence};
    if (!is_master_ours(core)) {
        deferred->status = EGM_E_STALE;
        head.count = 0;
    }
    for (uint32_t i = 0; i < head.count; i++) {
        bool is_taken = take_record(core, &again, &record);
        EGM_ASSERT(is_taken);
        int r = 0;
        if (record.head.kind == EGM_RECORD_DROP) {
            apply_drop(core, &record, id);
        } else if (record.head.kind == EGM_RECORD_FLOOR) {
            r = apply_floor(core, &record.head);
        } else {
            apply_live(core, &record);
        }
        if (r < 0) {
            deferred->status = r;
        }
    }
    egm_pcore_flush_deferred(core);
    return 0;
}

/* ---- transfers ---- */

int egm_pcore_access_begin(struct egm_pcore *core, const struct egm_pcore_access *access,
                           uint32_t *ret_live)
{
    uint64_t bytes;
    uint32_t segment = egm_pcore_segment_index(core, access->segment);

    if (access->generation == 0 || access->length == 0 ||
        !egm_pcore_extents_valid(core, segment, access->extents, access->extent_count, &bytes) ||
        access->skip > bytes || access->length > bytes - access->skip) {
        return EGM_E_PROTO;
    }
    if (egm_pcore_is_dead(core, segment, access->generation, access->extents,
                          access->extent_count)) {
        return EGM_E_STALE;
    }
    uint32_t live = egm_live_find(core, access->generation);
    if (live == EGM_NO_LIVE) {
        return EGM_E_NOT_READY;
    }
    struct egm_live *entry = egm_live_at(core, live);
    if (entry->state == EGM_LIVE_DYING) {
        return EGM_E_STALE;
    }
    if (!has_extents(entry, segment, access->extents, access->extent_count)) {
        return EGM_E_PROTO;
    }
    if (access->is_write) {
        if (entry->state != EGM_LIVE_GRANTED) {
            return EGM_E_STALE;
        }
        entry->writers++;
    } else {
        /* A writer that still runs after the seal could tear what is read. */
        if (entry->state != EGM_LIVE_SEALED || entry->writers > 0) {
            return EGM_E_NOT_READY;
        }
        if (access->skip > entry->size || access->length > entry->size - access->skip) {
            return EGM_E_PROTO;
        }
        entry->readers++;
    }
    *ret_live = live;
    return 0;
}

/* A write that its SEAL finds running is an orphan. Its session named this generation in PUT_END,
 * and it does that when each WRITE of the generation was answered (a WRITE has ended here before it
 * is answered) or its connection was given up, the bytes having gone over another one. So the
 * orphan's connection is one that its requester has left: what else is under way on it, of this
 * generation or of others, is given up as well, and closing it takes nothing from a writer that
 * goes on. The bytes that it has stored are those of the same put at the same places, and nobody
 * reads before it has ended, so nothing torn is seen. Without this it would end when the kernel
 * finds the peer gone, after half a minute, and no reader be let in until then. */
bool egm_pcore_access_is_revoked(const struct egm_pcore *core, uint32_t live, bool is_write)
{
    uint8_t state = egm_live_at(core, live)->state;

    return state == EGM_LIVE_DYING || (is_write && state == EGM_LIVE_SEALED);
}

void egm_pcore_access_end(struct egm_pcore *core, uint32_t live, bool was_write)
{
    struct egm_live *entry = egm_live_at(core, live);
    uint32_t *running = was_write ? &entry->writers : &entry->readers;

    EGM_ASSERT(*running > 0);
    (*running)--;
    if (entry->state != EGM_LIVE_DYING || entry->readers > 0 || entry->writers > 0) {
        return;
    }
    struct egm_deferred *deferred = deferred_at(core, entry->reply);
    bool is_lease_bound = entry->is_lease_bound;
    egm_live_remove(core, live);
    if (deferred) {
        deferred->waiting--;
        egm_pcore_flush_deferred(core);
    }
    if (is_lease_bound) {
        core->lease_blockers--;
        if (core->lease_blockers == 0 && core->is_lease_waiting) {
            egm_pcore_accept_lease(core, core->lease_request);
        }
    }
}

/* ---- verify ---- */

static void answer_verify(struct egm_pcore *core, uint64_t request, int status)
{
    struct egm_result result = {.status = egm_status_to_wire(status)};
    size_t begin = egm_frame_begin(&core->out, EGM_MSG_VERIFY_REPLY, request);

    egm_put_result(&core->out, &result);
    egm_frame_end(&core->out, begin);
}

int egm_pcore_verify_message(struct egm_pcore *core, const struct egm_frame *frame,
                             struct egm_cursor cursor, struct egm_pcore_verify *ret_verify)
{
    struct egm_verify head;
    struct egm_pcore_verify verify = {.live_ = EGM_NO_LIVE};
    uint64_t bytes;

    egm_take_verify(&cursor, &head);
    if (!egm_cursor_expect(&cursor, head.extent_count, EXTENT_BYTES, EGM_MAX_EXTENTS)) {
        return EGM_E_PROTO;
    }
    for (uint8_t i = 0; i < head.extent_count; i++) {
        egm_take_extent(&cursor, &verify.extents[i]);
    }
    uint32_t segment = egm_pcore_segment_index(core, head.segment);
    if (egm_cursor_end(&cursor) < 0 ||
        !egm_pcore_extents_valid(core, segment, verify.extents, head.extent_count, &bytes) ||
        head.size > bytes || head.generation == 0) {
        return EGM_E_PROTO;
    }
    if (core->verify_count == EGM_PCORE_MAX_VERIFIES) {
        answer_verify(core, frame->request, EGM_E_AGAIN);
        return EGM_PCORE_DONE;
    }
    uint32_t live = egm_live_find(core, head.generation);
    if (egm_pcore_is_dead(core, segment, head.generation, verify.extents, head.extent_count) ||
        (live != EGM_NO_LIVE && egm_live_at(core, live)->state == EGM_LIVE_DYING)) {
        answer_verify(core, frame->request, EGM_E_STALE);
        return EGM_PCORE_DONE;
    }
    if (live != EGM_NO_LIVE) {
        egm_live_at(core, live)->readers++;
        verify.live_ = live;
    }
    verify.request = frame->request;
    verify.connection_ = core->connection;
    verify.generation = head.generation;
    verify.size = head.size;
    verify.checksum = head.checksum;
    verify.segment = head.segment;
    verify.extent_count = head.extent_count;
    core->verify_count++;
    *ret_verify = verify;
    return EGM_PCORE_VERIFY;
}

void egm_pcore_verified(struct egm_pcore *core, const struct egm_pcore_verify *verify, bool matches)
{
    int status = matches ? 0 : EGM_E_CHECKSUM;

    EGM_ASSERT(core->verify_count > 0);
    core->verify_count--;
    /* Dropped meanwhile: the bytes may be somebody else's, so they prove nothing. */
    if (egm_pcore_is_dead(core, egm_pcore_segment_index(core, verify->segment), verify->generation,
                          verify->extents, verify->extent_count)) {
        status = EGM_E_STALE;
    }
    if (core->is_connected && verify->connection_ == core->connection) {
        answer_verify(core, verify->request, status);
    }
    if (verify->live_ != EGM_NO_LIVE) {
        egm_pcore_access_end(core, verify->live_, /*was_write=*/false);
    }
}
