/* SPDX-License-Identifier: Apache-2.0 */
/* What an operator sees, and the self-check. Every number is computed from the structures that own
 * it (kind 21 of the fault list: a gauge kept aside drifts). */
#include "base/alloc.h"
#include "base/checked.h"

#include "core/master_state.h"

#include <string.h>

static uint64_t used_bytes(const struct egm_mount_state *mount)
{
    return mount->bytes[EGM_OBJECT_WRITING] + mount->bytes[EGM_OBJECT_SEALED] +
           mount->bytes[EGM_OBJECT_REMOVED] + mount->bytes[EGM_OBJECT_QUARANTINED];
}

static uint64_t quarantined_bytes(const struct egm_mount_state *mount)
{
    return mount->is_placeable_once ? mount->bytes[EGM_OBJECT_QUARANTINED] : mount->size;
}

struct egm_master_totals egm_master_totals(const struct egm_master *m)
{
    struct egm_master_totals totals = m->counters;
    totals.term = m->term;
    for (uint32_t i = 0; i < m->directory.tenant_count; i++) {
        totals.object_count += m->directory.tenants[i].sealed_count;
    }
    for (uint32_t i = 0; i < m->mount_count; i++) {
        const struct egm_mount_state *mount = &m->mounts[i];
        if (mount->provider == EGM_NONE) {
            continue;
        }
        if (m->providers[mount->provider].phase == EGM_PHASE_LOST) {
            /* Absent, like what lies there (I6). Its queues hold what has its first replica on it.
             */
            uint64_t hidden =
                mount->eviction.counts[EGM_QUEUE_SMALL] + mount->eviction.counts[EGM_QUEUE_MAIN];
            totals.object_count -= egm_min_u64(hidden, totals.object_count);
            continue;
        }
        totals.mount_count++;
        totals.capacity_bytes += mount->size;
        totals.used_bytes += used_bytes(mount);
        totals.quarantined_bytes += quarantined_bytes(mount);
    }
    for (uint32_t i = 0; i < m->provider_room; i++) {
        totals.provider_count += m->providers[i].id != 0;
    }
    for (uint32_t i = 0; i < m->session_room; i++) {
        totals.session_count += m->sessions[i].is_live;
    }
    return totals;
}

void egm_master_each_mount(const struct egm_master *m, uint64_t now_ns,
                           void (*fn)(void *arg, const struct egm_mount_stat *), void *arg)
{
    (void)now_ns;
    for (uint32_t i = 0; i < m->mount_count; i++) {
        const struct egm_mount_state *mount = &m->mounts[i];
        if (mount->provider == EGM_NONE) {
            continue;
        }
        const struct egm_provider_state *p = &m->providers[mount->provider];
        struct egm_mount_stat stat = {.name = p->name,
                                      .data_address = p->data_address,
                                      .provider = p->id,
                                      .epoch = p->epoch,
                                      .size_bytes = mount->size,
                                      .free_bytes = mount->extents.free_bytes,
                                      .writing_bytes = mount->bytes[EGM_OBJECT_WRITING],
                                      .sealed_bytes = mount->bytes[EGM_OBJECT_SEALED],
                                      .removed_bytes = mount->bytes[EGM_OBJECT_REMOVED],
                                      .quarantined_bytes = quarantined_bytes(mount),
                                      .mount = i,
                                      .segment = mount->segment,
                                      .unresolved_count = mount->unresolved,
                                      .state = egm_mount_state_name(m, i)};
        for (uint32_t s = 0; s < p->slot_count; s++) {
            stat.slot_count += p->slots[s].segment == mount->segment;
        }
        fn(arg, &stat);
    }
}

enum egm_walk egm_master_next_key(const struct egm_master *m, uint32_t *cursor, uint32_t *looks,
                                  struct egm_bytes *ret_key)
{
    for (; *cursor<m->directory.slot_count && * looks> 0; (*looks)--) {
        struct egm_object *o = egm_object_at(&m->directory, (*cursor)++);
        if (egm_object_is_visible(m, o, EGM_NONE)) {
            (*looks)--;
            *ret_key = egm_bytes_of(o->key, o->key_size);
            return EGM_WALK_KEY;
        }
    }
    return *cursor < m->directory.slot_count ? EGM_WALK_PAUSE : EGM_WALK_END;
}

int egm_master_query(struct egm_master *m, uint64_t now_ns, struct egm_bytes key,
                     struct egm_replica_stat replicas[EGM_MAX_REPLICAS], uint32_t *ret_count)
{
    m->now_ns = now_ns; /* what is visible depends on leases */
    for (uint32_t tenant = 0; tenant < m->directory.tenant_count; tenant++) {
        if (strcmp(m->directory.tenants[tenant].name, "default") != 0) {
            continue;
        }
        uint32_t id = egm_directory_find(&m->directory, tenant,
                                         egm_directory_hash(&m->directory, tenant, key), key);
        struct egm_object *o = id == EGM_NO_OBJECT ? NULL : egm_object_at(&m->directory, id);
        if (!o || !egm_object_is_visible(m, o, EGM_NONE)) {
            break;
        }
        for (uint32_t i = 0; i < o->replica_count; i++) {
            struct egm_object_replica *r = &egm_object_replicas(o)[i];
            uint32_t provider = m->mounts[r->mount].provider;
            replicas[i] = (struct egm_replica_stat){
                .name = provider == EGM_NONE ? "" : m->providers[provider].name,
                .offset = egm_replica_places(r)[0].at * EGM_SLOT,
                .size = o->size};
        }
        *ret_count = o->replica_count;
        return 0;
    }
    return EGM_E_NOT_FOUND;
}

/* ---- JSON ---- */
static void json_string(struct egm_buf *out, const char *text)
{
    (void)egm_buf_append(out, "\"", 1);
    for (const char *at = text ? text : ""; *at; at++) {
        if ((unsigned char)*at < 0x20 || *at == '"' || *at == '\\') {
            (void)egm_buf_printf(out, "\\u%04x", (unsigned char)*at);
        } else {
            (void)egm_buf_append(out, at, 1);
        }
    }
    (void)egm_buf_append(out, "\"", 1);
}

struct json_mounts {
    struct egm_buf *out;
    bool has_one;
};

static void mount_json(void *arg, const struct egm_mount_stat *stat)
{
    struct json_mounts *json = arg;
    (void)egm_buf_printf(json->out, "%s{\"name\":", json->has_one ? "," : "");
    json->has_one = true;
    json_string(json->out, stat->name);
    (void)egm_buf_printf(
        json->out,
        ",\"provider\":\"%016llx\",\"epoch\":\"%016llx\",\"segment\":%u,\"state\":\"%s\",\"size_"
        "bytes\":%llu,"
        "\"free_bytes\":%llu,\"writing_bytes\":%llu,\"sealed_bytes\":%llu,\"removed_bytes\":%llu,"
        "\"quarantined_bytes\":%llu,\"importers\":%u,\"unresolved\":%u,\"data_address\":",
        (unsigned long long)stat->provider, (unsigned long long)stat->epoch, stat->segment,
        stat->state, (unsigned long long)stat->size_bytes, (unsigned long long)stat->free_bytes,
        (unsigned long long)stat->writing_bytes, (unsigned long long)stat->sealed_bytes,
        (unsigned long long)stat->removed_bytes, (unsigned long long)stat->quarantined_bytes,
        stat->slot_count, stat->unresolved_count);
    json_string(json->out, stat->data_address);
    (void)egm_buf_append(json->out, "}", 1);
}

void egm_master_stat_json(const struct egm_master *m, uint64_t now_ns, struct egm_buf *out)
{
    struct egm_master_totals t = egm_master_totals(m);
    (void)egm_buf_printf(out,
                         "{\"instance\":\"%016llx\",\"term\":%u,\"objects\":%llu,\"capacity_"
                         "bytes\":%llu,\"used_bytes\":%llu,"
                         "\"quarantined_bytes\":%llu,\"evicted_objects\":%llu,\"evicted_bytes\":%"
                         "llu,\"get_hits\":%llu,"
                         "\"get_misses\":%llu,\"puts\":%llu,\"put_failures\":%llu,\"no_space\":%"
                         "llu,\"stalls\":%llu,\"mounts\":[",
                         (unsigned long long)m->options.instance, t.term,
                         (unsigned long long)t.object_count, (unsigned long long)t.capacity_bytes,
                         (unsigned long long)t.used_bytes, (unsigned long long)t.quarantined_bytes,
                         (unsigned long long)t.evicted_count, (unsigned long long)t.evicted_bytes,
                         (unsigned long long)t.hit_count, (unsigned long long)t.miss_count,
                         (unsigned long long)t.put_count, (unsigned long long)t.put_fail_count,
                         (unsigned long long)t.no_space_count, (unsigned long long)t.stalls);
    struct json_mounts json = {.out = out};
    egm_master_each_mount(m, now_ns, mount_json, &json);
    (void)egm_buf_printf(out, "],\"sessions\":[");
    bool has_one = false;
    for (uint32_t i = 0; i < m->session_room; i++) {
        const struct egm_session_state *s = &m->sessions[i];
        if (s->id) {
            (void)egm_buf_printf(
                out,
                "%s{\"session\":\"%016llx\",\"pid\":%u,\"live\":%s,\"importer_slots\":%u,\"name\":",
                has_one ? "," : "", (unsigned long long)s->id, s->pid,
                s->is_live ? "true" : "false", s->slot_count);
            json_string(out, s->name);
            (void)egm_buf_append(out, "}", 1);
            has_one = true;
        }
    }
    (void)egm_buf_printf(out, "]}");
}

/* ---- self-check ---- */
/* What an earlier master granted: its copies share a generation, and each is an object of its own
 * here. */
static bool is_claimed(const struct egm_object *o)
{
    return o->key_size == 1 && o->key[0] == '?' &&
           (o->state == EGM_OBJECT_QUARANTINED || o->state == EGM_OBJECT_REMOVED);
}

static const char *check_objects(const struct egm_master *m,
                                 uint64_t (*bytes)[EGM_OBJECT_STATE_COUNT], uint64_t *sealed)
{
    for (uint32_t id = 0; id < m->directory.slot_count; id++) {
        struct egm_object *o = egm_object_at(&m->directory, id);
        if (o->state == EGM_OBJECT_FREE) {
            continue;
        }
        uint32_t found = egm_directory_find_generation(&m->directory, o->generation);
        if (found != id && (found == EGM_NO_OBJECT ||
                            (!is_claimed(o) && !is_claimed(egm_object_at(&m->directory, found))))) {
            return "D2: an object is not found by its generation";
        }
        uint32_t by_key = egm_directory_find(&m->directory, o->tenant, o->hash,
                                             egm_bytes_of(o->key, o->key_size));
        if (o->state == EGM_OBJECT_SEALED ? by_key != id : by_key == id) {
            return "D1: the key index does not hold just the sealed objects";
        }
        if ((o->state == EGM_OBJECT_WRITING || o->state == EGM_OBJECT_QUARANTINED) &&
            o->session == EGM_NONE) {
            return "a write has no session";
        }
        for (uint32_t i = 0; i < o->replica_count; i++) {
            struct egm_object_replica *r = &egm_object_replicas(o)[i];
            for (uint32_t p = 0; p < r->place_count; p++) {
                bytes[r->mount][o->state] += egm_replica_places(r)[p].count * EGM_SLOT;
            }
        }
        if (o->state == EGM_OBJECT_SEALED &&
            o->generation >= m->directory.tenants[o->tenant].floor) {
            sealed[o->tenant]++;
        }
    }
    return NULL;
}

static const char *check_mounts(const struct egm_master *m,
                                uint64_t (*bytes)[EGM_OBJECT_STATE_COUNT])
{
    for (uint32_t i = 0; i < m->mount_count; i++) {
        const struct egm_mount_state *mount = &m->mounts[i];
        if (mount->provider == EGM_NONE || !mount->is_placeable_once) {
            continue;
        }
        for (int state = EGM_OBJECT_WRITING; state < EGM_OBJECT_STATE_COUNT; state++) {
            if (mount->bytes[state] != bytes[i][state]) {
                return "D3: a mount's byte counter differs from its objects";
            }
        }
        if (mount->extents.free_bytes + used_bytes(mount) != mount->size - EGM_GRANULE) {
            return "I10: free and used bytes do not add up to the capacity";
        }
        if (!egm_extents_is_sound(&mount->extents)) {
            return "E1/E2: the allocator is not sound";
        }
    }
    return NULL;
}

const char *egm_master_check(const struct egm_master *m)
{
    uint64_t(*bytes)[EGM_OBJECT_STATE_COUNT] = egm_calloc(m->mount_count + 1, sizeof *bytes);
    uint64_t *sealed = egm_calloc(m->directory.tenant_count + 1, sizeof *sealed);
    const char *broken = bytes && sealed ? check_objects(m, bytes, sealed) : "out of memory";
    for (uint32_t i = 0; i < m->directory.tenant_count && !broken; i++) {
        broken = sealed[i] != m->directory.tenants[i].sealed_count
                     ? "a tenant's count differs from its objects"
                     : NULL;
    }
    broken = broken ? broken : check_mounts(m, bytes);
    if (!broken && (!egm_key_heap_is_sound(&m->directory.keys) ||
                    m->directory.keys.key_count != m->directory.object_count)) {
        broken = "K1-K3: the keys' memory is not sound";
    }
    if (!broken && !egm_pieces_is_sound(&m->directory.pieces)) {
        broken = "P1: the tables' memory is not sound";
    }
    egm_free(bytes);
    egm_free(sealed);
    return broken;
}
