/* SPDX-License-Identifier: Apache-2.0 */
/* What the master has its providers record: grants and seals (for their data ports), drops and
 * floors (I12).
 *
 * Records gather per provider and leave as one RECORDS frame, at the end of a burst of events when
 * something in them is waited for, else after 10 ms. Frames are numbered and answered in order; a
 * drop counts as acknowledged only by the answer. After a reconnect everything unanswered is sent
 * again: records are idempotent at the provider. */
#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "base/mutant.h"

#include "core/master_state.h"

#include <errno.h>
#include <string.h>

#define QUIET_DELAY_NS 10000000u
#define BATCH_MOST 1000u
/* Batches on their way to one provider: one that is slow to record gathers its records here, not
 * there. */
#define UNANSWERED_MOST 64u
/* GRANT and SEAL records that wait: they leave in one frame, with a batch of drops and the floors.
 */
#define QUIET_MOST (EGM_MAX_RECORDS / 2)

static void put_places(struct egm_buf *out, struct egm_object_replica *r)
{
    for (uint32_t i = 0; i < r->place_count; i++) {
        struct egm_place place = egm_replica_places(r)[i];
        egm_put_extent(out, &(struct egm_extent){.offset = place.at * EGM_SLOT,
                                                 .length = place.count * EGM_SLOT});
    }
}

static void put_object_record(struct egm_buf *out, const struct egm_master *m, struct egm_object *o,
                              struct egm_object_replica *r, enum egm_record_kind kind)
{
    egm_put_record(out, &(struct egm_record){.kind = (uint8_t)kind,
                                             .segment = m->mounts[r->mount].segment,
                                             .generation = o->generation,
                                             .size = o->size,
                                             .checksum = o->checksum,
                                             .extent_count = r->place_count});
    put_places(out, r);
}

static void queue_drop(struct egm_provider_state *p, uint32_t id)
{
    if (p->drop_count == p->drop_room) {
        uint32_t room = p->drop_room ? p->drop_room * 2 : 256;
        uint32_t *grown = egm_realloc(p->drops, room * sizeof *grown);
        if (!grown) {
            p->has_lost_drops = true; /* egm_records_find_lost looks for them later */
            return;
        }
        p->drops = grown;
        p->drop_room = room;
    }
    p->drops[p->drop_count++] = id;
}

/* Too much for one frame: everything is told anew when the provider answers. */
static void limit_quiet(struct egm_provider_state *p)
{
    if (p->quiet.failed || p->quiet_count > QUIET_MOST) {
        egm_buf_clear(&p->quiet);
        p->quiet_count = 0;
        p->resync_at = 0;
    }
}

void egm_record_object(struct egm_master *m, uint32_t id, enum egm_record_kind kind)
{
    struct egm_object *o = egm_object_at(&m->directory, id);
    for (uint32_t i = 0; i < o->replica_count; i++) {
        struct egm_object_replica *r = &egm_object_replicas(o)[i];
        uint32_t provider = m->mounts[r->mount].provider;
        if (provider == EGM_NONE) {
            r->is_acked = true;
            continue;
        }
        struct egm_provider_state *p = &m->providers[provider];
        if (kind == EGM_RECORD_DROP) {
            queue_drop(p, id);
            continue;
        }
        if (p->quiet_count == 0) {
            p->quiet_since_ns = m->now_ns;
        }
        put_object_record(&p->quiet, m, o, r, kind);
        p->quiet_count++;
        p->is_urgent = p->is_urgent || p->tcp_slot_count > 0;
        limit_quiet(p);
    }
}

static void put_floor(struct egm_provider_state *p, const struct egm_directory *d, uint32_t tenant)
{
    const char *name = d->tenants[tenant].name;
    uint64_t hash = 0; /* FNV-1a: stable between masters, unlike the directory's seeded hash */
    for (const char *at = name; *at; at++) {
        hash = (hash ^ (uint8_t)*at) * UINT64_C(0x100000001b3);
    }
    egm_put_record(&p->quiet, &(struct egm_record){.kind = EGM_RECORD_FLOOR,
                                                   .generation = d->tenants[tenant].floor,
                                                   .size = hash});
    p->quiet_count++;
    p->is_urgent = true;
}

/* Removals that were not queued for lack of memory. Only when no others are under way: those are
 * on a list. */
void egm_records_find_lost(struct egm_master *m, uint32_t provider)
{
    struct egm_provider_state *p = &m->providers[provider];
    if (!p->has_lost_drops || p->drop_count > 0 || !egm_list_is_empty(&p->batches)) {
        return;
    }
    p->has_lost_drops = false;
    for (uint32_t id = 0; id < m->directory.slot_count; id++) {
        struct egm_object *o = egm_object_at(&m->directory, id);
        for (uint32_t i = 0; i < o->replica_count && o->state == EGM_OBJECT_REMOVED; i++) {
            struct egm_object_replica *r = &egm_object_replicas(o)[i];
            if (!r->is_acked && m->mounts[r->mount].provider == provider) {
                queue_drop(p, id);
            }
        }
    }
}

static struct egm_batch *send_batch(struct egm_master *m, struct egm_provider_state *p)
{
    uint32_t drop_count = p->drop_count < BATCH_MOST ? p->drop_count : BATCH_MOST;
    struct egm_batch *batch = egm_alloc(sizeof *batch + drop_count * sizeof batch->drops[0]);
    if (!batch) {
        return NULL; /* stays queued */
    }
    *batch = (struct egm_batch){.sequence = ++p->next_sequence, .drop_count = drop_count};
    if (drop_count > 0) {
        memcpy(batch->drops, p->drops, drop_count * sizeof batch->drops[0]);
    }
    egm_buf_clear(&m->scratch);
    size_t begin = egm_frame_begin(&m->scratch, EGM_MSG_RECORDS, batch->sequence);
    egm_put_records(&m->scratch, &(struct egm_records){.sequence = batch->sequence,
                                                       .count = p->quiet_count + drop_count});
    (void)egm_buf_append(&m->scratch, p->quiet.data, p->quiet.len);
    for (uint32_t i = 0; i < drop_count; i++) {
        struct egm_object *o = egm_object_at(&m->directory, batch->drops[i]);
        for (uint32_t k = 0; k < o->replica_count; k++) {
            struct egm_object_replica *r = &egm_object_replicas(o)[k];
            if (m->mounts[r->mount].provider == (uint32_t)(p - m->providers)) {
                put_object_record(&m->scratch, m, o, r, EGM_RECORD_DROP);
            }
        }
    }
    p->drop_count -= drop_count;
    if (p->drop_count > 0) {
        memmove(p->drops, p->drops + drop_count, p->drop_count * sizeof p->drops[0]);
    }
    egm_buf_clear(&p->quiet);
    p->quiet_count = 0;
    p->is_urgent = false;
    egm_list_push_back(&p->batches, &batch->link);
    p->batch_count++;
    egm_master_reply(m, p->peer, &m->scratch, begin);
    return batch;
}

void egm_provider_flush(struct egm_master *m, uint32_t provider, bool force)
{
    struct egm_provider_state *p = &m->providers[provider];
    bool is_due = p->quiet_count > 0 && (p->is_urgent || force || p->quiet_count >= BATCH_MOST ||
                                         m->now_ns - p->quiet_since_ns >= QUIET_DELAY_NS);
    while (p->peer != EGM_NONE && p->leased_term && p->phase != EGM_PHASE_JOINING &&
           p->batch_count < UNANSWERED_MOST && (p->drop_count > 0 || is_due) && send_batch(m, p)) {
        is_due = false;
    }
}

void egm_record_floor(struct egm_master *m, uint32_t tenant, struct egm_request *request)
{
    for (uint32_t i = 0; i < m->provider_room; i++) {
        struct egm_provider_state *p = &m->providers[i];
        if (!p->id || p->peer == EGM_NONE || !p->leased_term) {
            continue; /* gets all floors when it is leased again */
        }
        put_floor(p, &m->directory, tenant);
        struct egm_batch *batch = send_batch(m, p);
        if (batch) {
            batch->floor_request = request;
            request->waiting++;
        } else {
            request->is_unsure = true;
        }
    }
}

static void floor_is_recorded(struct egm_master *m, struct egm_batch *batch)
{
    struct egm_request *r = batch->floor_request;
    batch->floor_request = NULL;
    if (r && --r->waiting == 0 && egm_link_is_listed(&r->link)) {
        egm_list_remove(&r->link);
        egm_list_push_back(&m->runnable, &r->link);
    }
}

void egm_records_forget(struct egm_master *m, const struct egm_request *request)
{
    for (uint32_t i = 0; i < m->provider_room && request->waiting > 0; i++) {
        struct egm_provider_state *p = &m->providers[i];
        for (struct egm_link *link = p->id ? p->batches.next : &p->batches; link != &p->batches;
             link = link->next) {
            struct egm_batch *batch = egm_container_of(link, struct egm_batch, link);
            if (batch->floor_request == request) {
                batch->floor_request = NULL;
            }
        }
    }
}

void egm_records_reply_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                               struct egm_cursor cursor)
{
    (void)frame; /* batches are answered in order, by their sequence */
    struct egm_records_reply reply;
    egm_take_records_reply(&cursor, &reply);
    uint32_t provider = m->peers[peer].provider;
    if (egm_cursor_end(&cursor) < 0 || provider == EGM_NONE ||
        egm_list_is_empty(&m->providers[provider].batches)) {
        egm_master_violation(m, peer, "unexpected RECORDS_REPLY");
        return;
    }
    struct egm_provider_state *p = &m->providers[provider];
    struct egm_batch *batch = egm_container_of(p->batches.next, struct egm_batch, link);
    if (batch->sequence != reply.sequence || reply.status != 0) {
        egm_master_violation(m, peer, "RECORDS_REPLY out of order");
        return;
    }
    egm_list_remove(&batch->link);
    p->batch_count--;
    for (uint32_t i = 0; i < batch->drop_count; i++) {
        struct egm_object *o = egm_object_at(&m->directory, batch->drops[i]);
        for (uint32_t k = 0; k < o->replica_count; k++) {
            struct egm_object_replica *r = &egm_object_replicas(o)[k];
            r->is_acked = r->is_acked || m->mounts[r->mount].provider == provider;
        }
        egm_object_release(m, batch->drops[i]);
    }
    floor_is_recorded(m, batch);
    egm_free(batch);
    egm_master_wake(m);
}

void egm_records_requeue(struct egm_master *m, uint32_t provider)
{
    struct egm_provider_state *p = &m->providers[provider];
    egm_buf_clear(&p->quiet);
    p->quiet_count = 0;
    while (!egm_list_is_empty(&p->batches)) {
        struct egm_batch *batch =
            egm_container_of(egm_list_pop_front(&p->batches), struct egm_batch, link);
        p->batch_count--;
        for (uint32_t i = 0; i < batch->drop_count && !EGM_MUTANT(14); i++) {
            queue_drop(p, batch->drops[i]);
            egm_request_settle(m,
                               batch->drops[i]); /* it is out of reach: nobody waits for it (I12) */
        }
        floor_is_recorded(m, batch);
        egm_free(batch);
    }
    for (uint32_t t = 0; t < m->directory.tenant_count; t++) {
        if (m->directory.tenants[t].floor) {
            put_floor(p, &m->directory, t);
        }
    }
}

/* One piece of the slab for one provider. Records are idempotent there, so those it has already
 * do no harm. */
static void resync_some(struct egm_master *m, uint32_t provider)
{
    struct egm_provider_state *p = &m->providers[provider];
    uint32_t end = (uint32_t)egm_min_u64(p->resync_at + BATCH_MOST, m->directory.slot_count);
    for (; p->resync_at < end; p->resync_at++) {
        struct egm_object *o = egm_object_at(&m->directory, p->resync_at);
        bool is_writing = o->state == EGM_OBJECT_WRITING;
        for (uint32_t i = 0; i < o->replica_count && (is_writing || o->state == EGM_OBJECT_SEALED);
             i++) {
            struct egm_object_replica *r = &egm_object_replicas(o)[i];
            if (m->mounts[r->mount].provider == provider) {
                put_object_record(&p->quiet, m, o, r,
                                  is_writing ? EGM_RECORD_GRANT : EGM_RECORD_SEAL);
                p->quiet_count++;
                p->is_urgent = true;
            }
        }
    }
    if (p->resync_at >= m->directory.slot_count) {
        p->resync_at = EGM_NONE;
    }
    limit_quiet(p);
}

/* Not while it cannot be sent: it goes on when the provider has answered. */
static bool may_resync(const struct egm_provider_state *p)
{
    return p->id && p->resync_at != EGM_NONE && p->peer != EGM_NONE && p->leased_term &&
           p->phase != EGM_PHASE_JOINING && p->quiet_count < BATCH_MOST &&
           p->batch_count < UNANSWERED_MOST;
}

bool egm_records_resync(struct egm_master *m)
{
    bool has_more = false;
    for (uint32_t i = 0; i < m->provider_room; i++) {
        struct egm_provider_state *p = &m->providers[i];
        if (may_resync(p)) {
            resync_some(m, i);
            has_more = has_more || p->resync_at != EGM_NONE;
        }
    }
    return has_more;
}

void egm_records_release(struct egm_provider_state *p)
{
    while (!egm_list_is_empty(&p->batches)) {
        egm_free(egm_container_of(egm_list_pop_front(&p->batches), struct egm_batch, link));
    }
    egm_buf_release(&p->quiet);
    egm_free(p->drops);
}

/* ---- verification after a requester saw a checksum mismatch ---- */
void egm_mismatch_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                          struct egm_cursor cursor)
{
    (void)peer, (void)frame; /* one-way */
    struct egm_mismatch mismatch;
    egm_take_mismatch(&cursor, &mismatch);
    uint32_t id = cursor.failed ? EGM_NO_OBJECT
                                : egm_directory_find_generation(&m->directory, mismatch.generation);
    if (id == EGM_NO_OBJECT || egm_object_at(&m->directory, id)->state != EGM_OBJECT_SEALED) {
        return;
    }
    struct egm_object *o = egm_object_at(&m->directory, id);
    for (uint32_t i = 0; i < o->replica_count; i++) {
        struct egm_object_replica *r = &egm_object_replicas(o)[i];
        uint32_t provider = m->mounts[r->mount].provider;
        if (provider == EGM_NONE || m->providers[provider].peer == EGM_NONE) {
            continue;
        }
        egm_buf_clear(&m->scratch);
        size_t begin = egm_frame_begin(&m->scratch, EGM_MSG_VERIFY, o->generation);
        egm_put_verify(&m->scratch, &(struct egm_verify){.generation = o->generation,
                                                         .segment = m->mounts[r->mount].segment,
                                                         .size = o->size,
                                                         .checksum = o->checksum,
                                                         .extent_count = r->place_count});
        put_places(&m->scratch, r);
        egm_master_reply(m, m->providers[provider].peer, &m->scratch, begin);
    }
}

void egm_verify_reply_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                              struct egm_cursor cursor)
{
    struct egm_result result;
    egm_take_result(&cursor, &result);
    if (egm_cursor_end(&cursor) < 0) {
        egm_master_violation(m, peer, "malformed VERIFY_REPLY");
        return;
    }
    uint32_t id = egm_directory_find_generation(&m->directory, frame->request);
    if (egm_status_from_wire(result.status) == EGM_E_CHECKSUM && id != EGM_NO_OBJECT &&
        egm_object_at(&m->directory, id)->state == EGM_OBJECT_SEALED) {
        egm_error("an object's bytes are damaged, it is removed generation=%016llx",
                  (unsigned long long)frame->request);
        egm_object_remove(m, id, false);
    }
}
