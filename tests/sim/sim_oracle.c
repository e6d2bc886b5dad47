/* SPDX-License-Identifier: Apache-2.0 */
/* What everybody was told, and what must therefore hold. The rules are one-sided: they fail only
 * what no order of events can explain, so a call whose answer was lost constrains nothing.
 *
 * A write is one grant of one item: cells hold {write, index}. It is sealed at some time between
 * end_sent (the first PUT_END with success left) and acked (its answer came). */
#include "core/provider.h"
#include "sim.h"
#include "wire/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct write {
    int proc, key;
    uint64_t size, generation, instance, end_sent, acked;
    bool is_upsert, has_extents;
    uint64_t won; /* when its PUT_END put it into the directory: the step; 0: has not */
    uint64_t provider, epoch;
    uint32_t extent_count;
    struct egm_extent extents[EGM_MAX_EXTENTS];
};

struct removal {
    int key;
    uint64_t began, ended, instance;
};

static struct write *writes;
static uint32_t write_count, write_room;
static struct removal *removals;
static uint32_t removal_count, removal_room;

void oracle_reset(void)
{
    removal_count = 0;
    if (!writes) {
        write_room = 1024;
        writes = calloc(write_room, sizeof *writes);
    }
    write_count = 1; /* 0 is no write */
    writes[0] = (struct write){0};
}

static struct write *write_of(uint64_t id)
{
    return id > 0 && id < write_count ? &writes[id] : NULL;
}

static struct write *find_generation(uint64_t generation, uint64_t instance)
{
    for (uint32_t i = write_count; i-- > 1;) {
        if (writes[i].generation == generation && writes[i].instance == instance) {
            return &writes[i];
        }
    }
    return NULL;
}

uint64_t oracle_new_write(int proc, int key, uint64_t size, uint64_t generation, uint64_t instance,
                          bool is_upsert, const struct mem *mem)
{
    if (write_count == write_room) {
        write_room *= 2;
        writes = realloc(writes, write_room * sizeof *writes);
    }
    trace("write %u of key %d generation %llx provider %llu", write_count, key,
          (unsigned long long)generation, (unsigned long long)(mem ? mem->provider : 0));
    writes[write_count] = (struct write){.proc = proc,
                                         .key = key,
                                         .size = size,
                                         .generation = generation,
                                         .instance = instance,
                                         .is_upsert = is_upsert,
                                         .epoch = mem ? mem->epoch : 0,
                                         .provider = mem ? mem->provider : 0};
    return write_count++;
}

void oracle_note_place(uint64_t write_id, const struct egm_extent *extents, uint32_t count)
{
    struct write *write = write_of(write_id);
    write->has_extents = write->epoch != 0;
    write->extent_count = count;
    memcpy(write->extents, extents, count * sizeof extents[0]);
}

void oracle_end_sent(uint64_t write_id)
{
    struct write *write = write_of(write_id);
    if (write && !write->end_sent) {
        write->end_sent = w.now;
    }
}

void oracle_acked(uint64_t write_id)
{
    struct write *write = write_of(write_id);
    if (write && !write->acked) {
        write->acked = w.now;
    }
}

void oracle_removed(int key, uint64_t began, uint64_t instance)
{
    if (removal_count == removal_room) {
        removal_room = removal_room ? removal_room * 2 : 256;
        removals = realloc(removals, removal_room * sizeof *removals);
    }
    removals[removal_count++] =
        (struct removal){.key = key, .began = began, .ended = w.now, .instance = instance};
}

/* Surely gone before `at`: removed, or swapped by an upsert, after it was sealed for sure. */
static bool is_superseded(const struct write *write, uint64_t at)
{
    for (uint32_t i = 0; i < removal_count && write->acked; i++) {
        const struct removal *r = &removals[i];
        if ((r->key == write->key || r->key < 0) && r->instance == write->instance &&
            write->acked <= r->began && r->ended <= at) {
            return true;
        }
    }
    for (uint32_t i = 1; i < write_count && write->acked; i++) {
        const struct write *other = &writes[i];
        if (other->key == write->key && other->is_upsert && other->instance == write->instance &&
            other->acked && write->acked <= other->end_sent && other->acked <= at) {
            return true;
        }
    }
    return false;
}

void oracle_got(int key, uint64_t began, uint64_t size, uint64_t generation, uint64_t instance,
                const uint64_t *cells, uint32_t count)
{
    uint64_t id = cells[0] >> 16;
    const struct write *write = write_of(id);
    for (uint32_t i = 0; i < count; i++) {
        mix(cells[i]);
        if (cells[i] != (id << 16 | i)) {
            fail("I1: a get of key %d delivered cell %u of write %llu where cell %u of write %llu "
                 "belongs (generation %llx)",
                 key, (unsigned)(cells[i] & 0xffff), (unsigned long long)(cells[i] >> 16), i,
                 (unsigned long long)id, (unsigned long long)generation);
            return;
        }
    }
    if (!write || write->key != key || write->size != size || write->generation != generation) {
        fail("I1: a get of key %d delivered write %llu, of key %d size %llu generation %llx", key,
             (unsigned long long)id, write ? write->key : -1,
             (unsigned long long)(write ? write->size : 0),
             (unsigned long long)(write ? write->generation : 0));
    } else if (!write->end_sent) {
        fail("I1: a get of key %d delivered write %llu, whose put never completed", key,
             (unsigned long long)id);
    } else if (write->instance == instance && is_superseded(write, began)) {
        fail("I12/I9: a get of key %d delivered write %llu, which was removed or swapped before "
             "the get began",
             key, (unsigned long long)id);
    }
}

void oracle_exists(int key, uint64_t began, uint64_t instance)
{
    for (uint32_t i = 1; i < write_count; i++) {
        const struct write *write = &writes[i];
        if (write->key == key && write->end_sent && write->instance == instance &&
            !is_superseded(write, began)) {
            return;
        }
    }
    /* A stray PUT_END with the right generation may seal nothing: a write without end_sent never
     * exists. */
    fail("I6: key %d exists although every write of it was removed or never ended", key);
}

uint64_t oracle_any_generation(int proc)
{
    uint32_t from = write_count > 8 ? write_count - 8 : 1;
    uint32_t i = from + (uint32_t)rnd(write_count - from + 1);
    return i < write_count && writes[i].proc != proc && !writes[i].end_sent ? writes[i].generation
                                                                            : 0;
}

/* ---- extents and writers ---- */
bool extents_overlap(const struct egm_extent *a, uint32_t a_count, const struct egm_extent *b,
                     uint32_t b_count)
{
    for (uint32_t i = 0; i < a_count; i++) {
        for (uint32_t k = 0; k < b_count; k++) {
            if (a[i].offset < b[k].offset + b[k].length &&
                b[k].offset < a[i].offset + a[i].length) {
                return true;
            }
        }
    }
    return false;
}

uint32_t extent_slot(const struct egm_extent *extents, uint32_t count, uint32_t index)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t slots = extents[i].length / EGM_SLOT;
        if (index < slots) {
            return (uint32_t)(extents[i].offset / EGM_SLOT) + index;
        }
        index -= (uint32_t)slots;
    }
    return UINT32_MAX;
}

static const struct writer *find_overlap(const struct mem *mem, const struct egm_extent *extents,
                                         uint32_t count, uint64_t generation)
{
    for (int i = 0; i < WRITERS; i++) {
        const struct writer *other = &w.writers[i];
        if (other->is_active && other->mem == mem && other->generation != generation &&
            extents_overlap(other->extents, other->extent_count, extents, count)) {
            return other;
        }
    }
    return NULL;
}

int writer_open(const struct writer *writer)
{
    const struct writer *other =
        find_overlap(writer->mem, writer->extents, writer->extent_count, writer->generation);
    if (other) {
        fail("I3: generation %llx begins to be written where a %s of generation %llx may still "
             "store",
             (unsigned long long)writer->generation, other->is_zombie ? "dead writer" : "writer",
             (unsigned long long)other->generation);
    }
    watch_taken_up("write", writer->mem, writer->generation, writer->extents, writer->extent_count);
    for (int i = 0; i < WRITERS; i++) {
        if (!w.writers[i].is_active) {
            w.writers[i] = *writer;
            w.writers[i].is_active = true;
            return i;
        }
    }
    fail("the simulator has no room for another writer");
    return -1;
}

void writer_close(int id)
{
    if (!w.writers[id].is_zombie) {
        w.writers[id].is_active = false;
    }
}

/* ---- what a master does ---- */
void oracle_granted(int master, uint64_t generation, uint64_t provider, uint64_t epoch,
                    const struct egm_extent *extents, uint32_t count)
{
    const struct mem *mem = mem_of(epoch);
    for (uint32_t i = 0; i < count; i++) {
        if (extents[i].offset < EGM_GRANULE || extents[i].length == 0 ||
            extents[i].offset + extents[i].length > SEGMENT_BYTES) {
            fail("a grant lies outside of its segment");
            return;
        }
    }
    if (!provider_is_leased_to(provider, epoch, master_instance(master))) {
        fail("I13: master %d grants on provider %d, which does not regard it as the holder of its "
             "lease",
             master, (int)(provider - 1000));
    }
    const struct writer *writer = find_overlap(mem, extents, count, generation);
    if (writer) {
        fail("I3c: generation %llx is granted where a %s of generation %llx may still store",
             (unsigned long long)generation, writer->is_zombie ? "dead writer" : "writer",
             (unsigned long long)writer->generation);
    }
    if (requester_reads(mem, extents, count)) {
        fail("I3a/I4: generation %llx is granted where a read lease runs by its holder's count",
             (unsigned long long)generation);
    }
    for (uint32_t i = 1; i < write_count; i++) {
        if (writes[i].generation == generation && writes[i].epoch == epoch) {
            fail("I5: generation %llx is granted twice", (unsigned long long)generation);
        }
    }
}

static bool is_fenced(const struct mem *mem, uint64_t generation, const struct egm_extent *extents,
                      uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const _Atomic uint64_t *word = extents[i].length < EGM_GRANULE
                                           ? &mem->slot_fence[extents[i].offset / EGM_SLOT]
                                           : &mem->granule_fence[extents[i].offset / EGM_GRANULE];
        if (atomic_load(word) < generation && atomic_load(&mem->floor) < generation) {
            return false;
        }
    }
    return true;
}

/* I12: what this answer says was removed is recorded by every provider that could hear of it. */
static void check_recorded(int master, int key, uint64_t began)
{
    uint32_t latest = 0;
    for (uint32_t i = 1; i < write_count && key >= 0; i++) {
        bool is_later = writes[i].key == key && writes[i].won > writes[latest].won &&
                        writes[i].instance == master_instance(master);
        latest = is_later ? i : latest;
    }
    for (uint32_t i = 1; i < write_count; i++) {
        const struct write *write = &writes[i];
        bool is_meant = key < 0 || i == latest;
        if (!is_meant || !write->acked || !write->won || write->acked > began ||
            write->instance != master_instance(master) || !write->has_extents ||
            !provider_is_connected_to(write->provider, write->epoch, master, began)) {
            continue;
        }
        bool is_recorded =
            key < 0 ? provider_has_floor(write->provider, write->epoch, write->generation) ||
                          is_fenced(mem_of(write->epoch), write->generation, write->extents,
                                    write->extent_count)
                    : is_fenced(mem_of(write->epoch), write->generation, write->extents,
                                write->extent_count);
        if (!is_recorded) {
            fail("I12: a removal of key %d is answered before provider %d has recorded it",
                 write->key, (int)(write->provider - 1000));
            return;
        }
    }
}

static void remove_reply(int master, const struct waiting_call *call, const uint8_t *payload,
                         uint32_t size)
{
    struct egm_cursor cursor = egm_cursor_of(payload, size);
    struct egm_results_reply head;
    egm_take_results_reply(&cursor, &head);
    for (uint32_t i = 0; head.status == 0 && i < head.count && i < (uint32_t)call->key_count; i++) {
        struct egm_result result;
        egm_take_result(&cursor, &result);
        if (result.status == 0) {
            check_recorded(master, call->keys[i], call->began);
        }
    }
}

void oracle_master_sends(int master, int requester, int conn, const struct egm_frame *frame,
                         const uint8_t *payload)
{
    struct waiting_call call;
    bool is_now = conn == w.asking_conn && frame->request == w.asking_request;
    if (is_now && frame->type == EGM_MSG_EXIST_REPLY) {
        watch_exist_reply(master, payload, frame->length);
    } else if (is_now && frame->type == EGM_MSG_GET_START_REPLY) {
        watch_get_reply(master, payload, frame->length);
    }
    if (!requester_waits_for(requester, frame->request, &call)) {
        return;
    }
    if (frame->type == EGM_MSG_REMOVE_REPLY && call.kind == CALL_REMOVE) {
        remove_reply(master, &call, payload, frame->length);
    } else if (frame->type == EGM_MSG_REMOVE_ALL_REPLY && call.kind == CALL_REMOVE_ALL &&
               call.is_forced) {
        struct egm_cursor cursor = egm_cursor_of(payload, frame->length);
        struct egm_count_reply reply;
        egm_take_count_reply(&cursor, &reply);
        if (reply.status == 0) {
            check_recorded(master, -1, call.began);
        }
    }
}

/* ---- I9: PUT_END never takes a value away that another put sealed ---- */
struct ending {
    int key;
    uint64_t offset, provider;
    bool was_there, is_twin; /* twin: another one of its key came earlier in the same frame */
    struct write *write;
};
static struct ending endings[32];
static uint32_t ending_count;

void oracle_before_end(int master, const struct egm_frame *frame, const uint8_t *payload)
{
    struct egm_cursor cursor = egm_cursor_of(payload, frame->length);
    struct egm_put_end head;
    egm_take_put_end(&cursor, &head);
    ending_count = 0;
    for (uint32_t i = 0; i < head.count && ending_count < 32; i++) {
        struct egm_ended ended;
        egm_take_ended(&cursor, &ended);
        struct write *write = find_generation(ended.generation, master_instance(master));
        if (write) {
            struct ending *e = &endings[ending_count++];
            *e = (struct ending){.key = write->key, .write = write};
            e->was_there = master_query(master, write->key, &e->offset, &e->provider);
            for (uint32_t k = 0; k + 1 < ending_count; k++) {
                e->is_twin = e->is_twin || endings[k].key == e->key;
            }
        }
    }
}

void oracle_after_end(int master)
{
    for (uint32_t i = 0; i < ending_count; i++) {
        const struct ending *e = &endings[i];
        uint64_t offset, provider;
        bool is_there = master_query(master, e->key, &offset, &provider);
        if (watch_sealed(master, e->key) == e->write->generation) {
            e->write->won = w.steps;
            trace("write %d has won key %d", (int)(e->write - writes), e->key);
        }
        if (e->write->is_upsert || e->is_twin) {
            continue;
        }
        if (e->was_there && is_there && (offset != e->offset || provider != e->provider)) {
            fail("I9: a put of key %d that came second took the first one's place", e->key);
        }
        if (e->was_there && !is_there) {
            fail("I5/I9: a PUT_END made the sealed key %d go away", e->key);
        }
    }
    ending_count = 0;
}

const char *key_name(int key)
{
    static const char *const names[KEYS] = {"k:alpha:0", "k:alpha:1", "k:alpha:2", "k:alpha:3",
                                            "k:beta:0",  "k:beta:1",  "k:beta:2",  "k:gamma",
                                            "delta",     "e",         "zeta:long", "z"};
    return names[key];
}
