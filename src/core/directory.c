/* SPDX-License-Identifier: Apache-2.0 */
#include "core/directory.h"

#include <errno.h>
#include <string.h>

#define XXH_INLINE_ALL
#include "base/alloc.h"
#include "base/assert.h"

#include <xxhash.h>

#define NONE EGM_NO_OBJECT

int egm_directory_init(struct egm_directory *d, uint64_t seed,
                       const struct egm_block_source *source)
{
    *d = (struct egm_directory){.free_first = NONE, .group_free_first = NONE, .seed = seed};
    int r = egm_pieces_init(&d->pieces, source);
    egm_key_heap_init(&d->keys, &d->pieces);
    if (r == 0) {
        r = egm_index_init(&d->by_key, 0, &d->pieces);
    }
    if (r == 0) {
        r = egm_index_init(&d->by_generation, 0, &d->pieces);
    }
    if (r == 0) {
        r = egm_index_init(&d->by_group, 0, &d->pieces);
    }
    if (r < 0) {
        egm_directory_release(d);
    }
    return r;
}

static void free_replicas(struct egm_object *o)
{
    struct egm_object_replica *replicas = egm_object_replicas(o);
    for (uint32_t i = 0; i < o->replica_count && replicas; i++) {
        if (replicas[i].place_count > 1) {
            egm_free(replicas[i].many);
        }
    }
    if (o->replica_count > 1) {
        egm_free(o->replicas.many);
    }
}

void egm_directory_release(struct egm_directory *d)
{
    for (uint32_t id = 0; id < d->slot_count; id++) {
        struct egm_object *o = egm_object_at(d, id);
        if (o->key) {
            free_replicas(o);
        }
    }
    for (uint32_t i = 0; i < d->chunk_count; i++) {
        egm_pieces_put(&d->pieces, d->chunks[i]);
    }
    for (uint32_t i = 0; i < d->tenant_count; i++) {
        egm_free(d->tenants[i].name);
    }
    for (uint32_t i = 0; i < d->group_count; i++) {
        egm_free(d->groups[i].name);
    }
    egm_free(d->chunks);
    egm_free(d->tenants);
    egm_free(d->groups);
    egm_index_release(&d->by_key);
    egm_index_release(&d->by_generation);
    egm_index_release(&d->by_group);
    egm_key_heap_release(&d->keys);
    egm_pieces_release(&d->pieces);
    *d = (struct egm_directory){.free_first = NONE, .group_free_first = NONE};
}

int egm_directory_tenant(struct egm_directory *d, struct egm_bytes name, uint32_t *ret_tenant)
{
    for (uint32_t i = 0; i < d->tenant_count; i++) {
        if (strlen(d->tenants[i].name) == name.size &&
            memcmp(d->tenants[i].name, name.data, name.size) == 0) {
            *ret_tenant = i;
            return 0;
        }
    }
    if (d->tenant_count == EGM_MAX_TENANTS) {
        return EGM_E_LIMIT;
    }
    struct egm_tenant *grown = egm_realloc(d->tenants, (d->tenant_count + 1) * sizeof *grown);
    if (!grown) {
        return -ENOMEM;
    }
    d->tenants = grown;
    char *copy = egm_strndup((const char *)name.data, name.size);
    if (!copy) {
        return -ENOMEM;
    }
    d->tenants[d->tenant_count] = (struct egm_tenant){.name = copy};
    *ret_tenant = d->tenant_count++;
    return 0;
}

uint64_t egm_directory_hash(const struct egm_directory *d, uint32_t tenant, struct egm_bytes key)
{
    return XXH3_64bits_withSeed(key.data, key.size, d->seed + tenant);
}

/* ---- the slab ---- */
static int add_chunk(struct egm_directory *d)
{
    if (d->chunk_count == d->chunk_room) {
        uint32_t room = d->chunk_room ? d->chunk_room * 2 : 16;
        struct egm_object **grown = egm_realloc(d->chunks, room * sizeof *grown);
        if (!grown) {
            return -ENOMEM;
        }
        d->chunks = grown;
        d->chunk_room = room;
    }
    d->chunks[d->chunk_count] = egm_pieces_get(&d->pieces);
    if (!d->chunks[d->chunk_count]) {
        return -ENOMEM;
    }
    d->chunk_count++;
    return 0;
}

static int take_slot(struct egm_directory *d, uint32_t *ret_id)
{
    if (d->free_first != NONE) {
        *ret_id = d->free_first;
        d->free_first = egm_object_at(d, *ret_id)->next;
        return 0;
    }
    if (d->slot_count == d->chunk_count * EGM_OBJECT_CHUNK) {
        if (d->slot_count >= EGM_MAX_OBJECTS) {
            return EGM_E_LIMIT;
        }
        int r = add_chunk(d);
        if (r < 0) {
            return r;
        }
    }
    *ret_id = d->slot_count++;
    return 0;
}

static void give_slot(struct egm_directory *d, uint32_t id)
{
    struct egm_object *o = egm_object_at(d, id);
    *o = (struct egm_object){.next = d->free_first};
    d->free_first = id;
}

int egm_directory_new(struct egm_directory *d, uint32_t tenant, uint64_t hash, struct egm_bytes key,
                      uint32_t replica_count, uint32_t *ret_id)
{
    const uint8_t *copy = egm_key_heap_put(&d->keys, key.data, key.size);
    struct egm_object_replica *many =
        replica_count > 1 ? egm_calloc(replica_count, sizeof *many) : NULL;
    uint32_t id;
    int r = copy && (many || replica_count <= 1) ? take_slot(d, &id) : -ENOMEM;
    if (r < 0) {
        if (copy) {
            egm_key_heap_drop(&d->keys, copy, key.size);
        }
        egm_free(many);
        return r;
    }
    struct egm_object *o = egm_object_at(d, id);
    *o = (struct egm_object){.hash = hash,
                             .key = copy,
                             .key_size = (uint16_t)key.size,
                             .replica_count = (uint8_t)replica_count,
                             .tenant = tenant,
                             .prev = NONE,
                             .next = NONE,
                             .group = NONE,
                             .group_prev = NONE,
                             .group_next = NONE,
                             .session = NONE,
                             .waiter = NONE};
    if (many) {
        o->replicas.many = many;
    }
    d->object_count++;
    *ret_id = id;
    return 0;
}

/* Generations are consecutive numbers. The index multiplies by 2^64 over the golden ratio, which
 * spreads such numbers more evenly than chance would. Any mixing before it destroys that:
 * multiplying by the same number here once gave runs of a hundred. */
static uint64_t generation_hash(uint64_t generation)
{
    return generation;
}

int egm_directory_set_generation(struct egm_directory *d, uint32_t id, uint64_t generation)
{
    EGM_ASSERT(generation != 0); /* 0 stands for: not in the index yet */
    int r = egm_index_insert(&d->by_generation, generation_hash(generation), id);
    if (r == 0) {
        egm_object_at(d, id)->generation = generation;
    }
    return r;
}

static void leave_group(struct egm_directory *d, uint32_t id)
{
    struct egm_object *o = egm_object_at(d, id);
    if (o->group == NONE) {
        return;
    }
    struct egm_group *group = &d->groups[o->group];
    if (o->group_prev == NONE) {
        group->first = o->group_next;
    } else {
        egm_object_at(d, o->group_prev)->group_next = o->group_next;
    }
    if (o->group_next != NONE) {
        egm_object_at(d, o->group_next)->group_prev = o->group_prev;
    }
    if (--group->count == 0) {
        egm_index_remove(&d->by_group, group->hash, o->group);
        egm_free(group->name);
        *group = (struct egm_group){.first = d->group_free_first};
        d->group_free_first = o->group;
    }
    o->group = NONE;
}

void egm_directory_free(struct egm_directory *d, uint32_t id)
{
    struct egm_object *o = egm_object_at(d, id);
    leave_group(d, id);
    if (o->generation) {
        egm_index_remove(&d->by_generation, generation_hash(o->generation), id);
    }
    free_replicas(o);
    egm_key_heap_drop(&d->keys, o->key, o->key_size);
    give_slot(d, id);
    d->object_count--;
}

/* ---- by key ---- */
int egm_directory_add_key(struct egm_directory *d, uint32_t id)
{
    return egm_index_insert(&d->by_key, egm_object_at(d, id)->hash, id);
}

void egm_directory_remove_key(struct egm_directory *d, uint32_t id)
{
    bool was_there = egm_index_remove(&d->by_key, egm_object_at(d, id)->hash, id);
    EGM_ASSERT(was_there);
}

static bool has_key(const struct egm_object *o, uint32_t tenant, uint64_t hash,
                    struct egm_bytes key)
{
    return o->hash == hash && o->tenant == tenant && o->key_size == key.size &&
           memcmp(o->key, key.data, key.size) == 0;
}

uint32_t egm_directory_find(const struct egm_directory *d, uint32_t tenant, uint64_t hash,
                            struct egm_bytes key)
{
    struct egm_index_iter iter;
    uint32_t id;
    egm_index_find(&d->by_key, hash, &iter);
    while (egm_index_next(&iter, &id)) {
        if (has_key(egm_object_at(d, id), tenant, hash, key)) {
            return id;
        }
    }
    return NONE;
}

static void prefetch_object(const struct egm_directory *d, uint32_t id)
{
    const char *object = (const char *)egm_object_at(d, id);
    for (size_t at = 0; at < sizeof(struct egm_object); at += 64) {
        __builtin_prefetch(object + at);
    }
}

void egm_directory_find_many(const struct egm_directory *d, uint32_t tenant,
                             const struct egm_bytes *keys, uint32_t count, uint64_t *ret_hashes,
                             uint32_t *ret_ids)
{
    EGM_ASSERT(count <= EGM_FIND_WINDOW);
    struct egm_index_iter iters[EGM_FIND_WINDOW];
    for (uint32_t i = 0; i < count; i++) {
        ret_hashes[i] = egm_directory_hash(d, tenant, keys[i]);
        egm_index_prefetch(&d->by_key, ret_hashes[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        egm_index_find(&d->by_key, ret_hashes[i], &iters[i]);
        if (egm_index_next(&iters[i], &ret_ids[i])) {
            prefetch_object(d, ret_ids[i]);
        } else {
            ret_ids[i] = NONE;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (ret_ids[i] != NONE) {
            const uint8_t *key = egm_object_at(d, ret_ids[i])->key;
            for (uint32_t at = 0; at < keys[i].size; at += 64) {
                __builtin_prefetch(key + at);
            }
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        while (ret_ids[i] != NONE &&
               !has_key(egm_object_at(d, ret_ids[i]), tenant, ret_hashes[i], keys[i])) {
            if (!egm_index_next(&iters[i], &ret_ids[i])) {
                ret_ids[i] = NONE;
            }
        }
    }
}

uint32_t egm_directory_find_generation(const struct egm_directory *d, uint64_t generation)
{
    struct egm_index_iter iter;
    uint32_t id;
    egm_index_find(&d->by_generation, generation_hash(generation), &iter);
    while (egm_index_next(&iter, &id)) {
        if (egm_object_at(d, id)->generation == generation) {
            return id;
        }
    }
    return NONE;
}

void egm_directory_prefetch_new(const struct egm_directory *d, uint64_t hash, uint64_t generation)
{
    egm_index_prefetch(&d->by_key, hash);
    egm_index_prefetch(&d->by_generation, generation_hash(generation));
}

void egm_directory_prefetch_many(const struct egm_directory *d, const uint64_t *generations,
                                 uint32_t count)
{
    EGM_ASSERT(count <= EGM_FIND_WINDOW);
    uint32_t ids[EGM_FIND_WINDOW];
    for (uint32_t i = 0; i < count; i++) {
        egm_index_prefetch(&d->by_generation, generation_hash(generations[i]));
    }
    for (uint32_t i = 0; i < count; i++) {
        struct egm_index_iter iter;
        egm_index_find(&d->by_generation, generation_hash(generations[i]), &iter);
        if (egm_index_next(&iter, &ids[i])) { /* the first candidate is nearly always the one */
            prefetch_object(d, ids[i]);
        } else {
            ids[i] = NONE;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] != NONE) {
            egm_index_prefetch(&d->by_key, egm_object_at(d, ids[i])->hash);
        }
    }
}

/* ---- groups ---- */
static int new_group(struct egm_directory *d, uint32_t tenant, uint64_t hash, struct egm_bytes name,
                     uint32_t *ret_group)
{
    uint32_t slot = d->group_free_first;
    if (slot == NONE) {
        if ((d->group_count & (d->group_count - 1)) == 0) { /* grows by doubling */
            size_t room = d->group_count ? (size_t)d->group_count * 2 : 1;
            struct egm_group *grown = egm_realloc(d->groups, room * sizeof *grown);
            if (!grown) {
                return -ENOMEM;
            }
            d->groups = grown;
        }
        slot = d->group_count;
    }
    char *copy = egm_strndup((const char *)name.data, name.size);
    if (!copy) {
        return -ENOMEM;
    }
    int r = egm_index_insert(&d->by_group, hash, slot);
    if (r < 0) {
        egm_free(copy);
        return r;
    }
    if (slot == d->group_count) {
        d->group_count++;
    } else {
        d->group_free_first = d->groups[slot].first;
    }
    d->groups[slot] =
        (struct egm_group){.hash = hash, .name = copy, .tenant = tenant, .first = NONE};
    *ret_group = slot;
    return 0;
}

static int find_group(struct egm_directory *d, uint32_t tenant, struct egm_bytes name,
                      uint32_t *ret_group)
{
    uint64_t hash = egm_directory_hash(d, tenant, name);
    struct egm_index_iter iter;
    uint32_t slot = EGM_NO_OBJECT;
    egm_index_find(&d->by_group, hash, &iter);
    while (egm_index_next(&iter, &slot)) {
        const struct egm_group *group = &d->groups[slot];
        if (group->tenant == tenant && strlen(group->name) == name.size &&
            memcmp(group->name, name.data, name.size) == 0) {
            *ret_group = slot;
            return 0;
        }
    }
    return new_group(d, tenant, hash, name, ret_group);
}

int egm_directory_join_group(struct egm_directory *d, uint32_t id, struct egm_bytes name)
{
    struct egm_object *o = egm_object_at(d, id);
    uint32_t slot = EGM_NO_OBJECT;
    int r = find_group(d, o->tenant, name, &slot);
    if (r < 0) {
        return r;
    }
    struct egm_group *group = &d->groups[slot];
    o->group = slot;
    o->group_next = group->first;
    if (group->first != NONE) {
        egm_object_at(d, group->first)->group_prev = id;
    }
    group->first = id;
    group->count++;
    return 0;
}
