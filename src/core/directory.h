/* SPDX-License-Identifier: Apache-2.0 */
/* The directory: every object the master knows, by key and by generation. Pure; owned by the master
 * core.
 *
 * An object is one generation of one key: its size, checksum and replicas. Objects live in a slab
 * and are named by their slot there (uint32_t, egm_object_id); a slot is reused only after
 * egm_directory_free. States, and the legal moves:
 *
 *     put_start            put_end              remove, evict, unmount, loser of two put_ends
 *   ----------> WRITING ----------> SEALED -----------------------> REMOVED --> (freed)
 *                  |                                                   ^
 *                  +----------> QUARANTINED ---------------------------+
 *                    writer lost     the writer is proved gone (I3 c)
 *
 * D1 Only SEALED objects are in the key index, at most one per {tenant, key}. D2 Every object is in
 * the generation index. D3 An extent of a mount is owned by exactly one object (I2), whose state is
 * the extent's state; the mount's byte counters change in egm_object_set_state only (I10). D4 A
 * REMOVED object is freed when each of its replicas is acknowledged by its provider and no read op
 * refers to it. D5 An object below its tenant's floor is invisible whatever its state (I12).
 *
 * Look-ups come in windows: egm_directory_find_many prefetches index entries, objects and keys of
 * up to EGM_FIND_WINDOW keys before it compares any, because at a million objects each of these is
 * a cache miss. */
#ifndef EGM_CORE_DIRECTORY_H
#define EGM_CORE_DIRECTORY_H

#include "base/assert.h"
#include "base/index.h"
#include "base/pieces.h"

#include "core/extents.h"
#include "core/key_heap.h"
#include "wire/messages.h"

#include <stdbool.h>
#include <stdint.h>

#define EGM_NO_OBJECT UINT32_MAX
#define EGM_FIND_WINDOW 32

enum egm_object_state {
    EGM_OBJECT_FREE = 0,
    EGM_OBJECT_WRITING,
    EGM_OBJECT_SEALED,
    EGM_OBJECT_REMOVED,
    EGM_OBJECT_QUARANTINED,
    EGM_OBJECT_STATE_COUNT,
};

enum egm_object_flags {
    EGM_OBJECT_HARD_PIN = 1u << 0,
    EGM_OBJECT_UPSERT = 1u << 1,
    EGM_OBJECT_DROPPING = 1u << 2
};

/* A replica's places on one mount. */
struct egm_object_replica {
    uint32_t mount; /* index in the master's mount table */
    uint8_t place_count;
    bool is_acked; /* REMOVED: the provider has recorded the removal, or is gone */
    union {
        struct egm_place one;   /* place_count == 1 */
        struct egm_place *many; /* owned */
    };
};

struct egm_object {
    /* The first cache line is what a look-up reads. */
    uint64_t hash;
    const uint8_t *key; /* in the directory's key heap */
    uint64_t generation;
    uint64_t hold_until_ns;
    uint64_t size;
    uint64_t checksum;
    uint16_t key_size;
    uint8_t state; /* enum egm_object_state */
    uint8_t flags;
    uint8_t replica_count;
    uint8_t data_type;
    uint8_t frequency; /* eviction: hits since the last look, 0..3 */
    uint8_t queue;     /* eviction queue it is in */
    uint32_t tenant;
    uint32_t readers; /* read ops that refer to it */

    uint32_t prev,
        next; /* eviction queue (SEALED) or its session's writes (WRITING, QUARANTINED) */
    uint32_t group_prev, group_next; /* members of its group */
    uint32_t group;                  /* slot of the group, or EGM_NO_OBJECT */
    uint32_t session;                /* WRITING, QUARANTINED: slot of the writer's session */
    uint32_t waiter;            /* REMOVED: index of who waits for its record; or EGM_NO_OBJECT */
    uint64_t soft_pin_until_ns; /* 0: none */
    uint64_t began_ns;          /* WRITING: when */
    union {
        struct egm_object_replica one;   /* replica_count == 1 */
        struct egm_object_replica *many; /* owned */
    } replicas;
};

struct egm_tenant {
    char *name;
    uint64_t floor; /* generations below are dead */
    uint64_t sealed_count;
};

struct egm_group {
    uint64_t hash;
    char *name; /* NULL: slot unused */
    uint32_t tenant;
    uint32_t first;
    uint32_t count;
};

struct egm_directory {
    struct egm_pieces pieces;   /* memory of slab, full chunks of the indexes and keys */
    struct egm_object **chunks; /* slab, a piece each */
    uint32_t chunk_count, chunk_room;
    struct egm_key_heap keys;
    uint32_t slot_count;   /* slots ever used */
    uint32_t free_first;   /* free slots, linked by next */
    uint32_t object_count; /* in use */
    struct egm_index by_key, by_generation, by_group;
    struct egm_tenant *tenants;
    uint32_t tenant_count;
    struct egm_group *groups;
    uint32_t group_count, group_free_first;
    uint64_t seed; /* of the key hash: random per master, so that nobody can aim at one chain */
};

/* `source` as for egm_pieces_init; NULL: base/alloc. On an error nothing is left to release. The
 * struct must not move: its parts point at its heap. */
EGM_MUST_CHECK int egm_directory_init(struct egm_directory *d, uint64_t seed,
                                      const struct egm_block_source *source);
void egm_directory_release(struct egm_directory *d);

#define EGM_OBJECT_CHUNK ((uint32_t)(EGM_PIECE_SIZE / sizeof(struct egm_object)))
static_assert(sizeof(struct egm_object) == 128, "512 to a piece, none across cache lines");
static inline struct egm_object *egm_object_at(const struct egm_directory *d, uint32_t id)
{
    return &d->chunks[id / EGM_OBJECT_CHUNK][id % EGM_OBJECT_CHUNK];
}

static inline struct egm_object_replica *egm_object_replicas(struct egm_object *o)
{
    return o->replica_count == 1 ? &o->replicas.one : o->replicas.many;
}

static inline struct egm_place *egm_replica_places(struct egm_object_replica *r)
{
    return r->place_count == 1 ? &r->one : r->many;
}

/* The tenant's number, made on first use. EGM_E_LIMIT above EGM_MAX_TENANTS. */
EGM_MUST_CHECK int egm_directory_tenant(struct egm_directory *d, struct egm_bytes name,
                                        uint32_t *ret_tenant);

uint64_t egm_directory_hash(const struct egm_directory *d, uint32_t tenant, struct egm_bytes key);

/* A new object in state FREE with a copy of the key and room for its replicas (zeroed). In no index
 * yet. */
EGM_MUST_CHECK int egm_directory_new(struct egm_directory *d, uint32_t tenant, uint64_t hash,
                                     struct egm_bytes key, uint32_t replica_count,
                                     uint32_t *ret_id);
EGM_MUST_CHECK int egm_directory_set_generation(struct egm_directory *d, uint32_t id,
                                                uint64_t generation);
/* Back to the slab, out of the generation index and its group. Pre: in no queue and not in the key
 * index. */
void egm_directory_free(struct egm_directory *d, uint32_t id);

EGM_MUST_CHECK int egm_directory_add_key(struct egm_directory *d, uint32_t id);
void egm_directory_remove_key(struct egm_directory *d, uint32_t id);

/* The SEALED object of the key, visible or not, or EGM_NO_OBJECT. */
uint32_t egm_directory_find(const struct egm_directory *d, uint32_t tenant, uint64_t hash,
                            struct egm_bytes key);
/* The same for up to EGM_FIND_WINDOW keys at once. ret_hashes and ret_ids have `count` entries. */
void egm_directory_find_many(const struct egm_directory *d, uint32_t tenant,
                             const struct egm_bytes *keys, uint32_t count, uint64_t *ret_hashes,
                             uint32_t *ret_ids);
uint32_t egm_directory_find_generation(const struct egm_directory *d, uint64_t generation);

/* Starts loading what adding an object of that hash and generation will touch. */
void egm_directory_prefetch_new(const struct egm_directory *d, uint64_t hash, uint64_t generation);
/* Loads the objects of up to EGM_FIND_WINDOW generations, and starts loading what sealing them will
 * touch. */
void egm_directory_prefetch_many(const struct egm_directory *d, const uint64_t *generations,
                                 uint32_t count);

/* Joins the object to the group of that name (made on first use). */
EGM_MUST_CHECK int egm_directory_join_group(struct egm_directory *d, uint32_t id,
                                            struct egm_bytes name);

#endif
