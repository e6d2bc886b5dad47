/* SPDX-License-Identifier: Apache-2.0 */
/* Everything the master core knows, and the functions its files offer one another. Not included
 * outside src/core/master*. */
#ifndef EGM_CORE_MASTER_STATE_H
#define EGM_CORE_MASTER_STATE_H

#include "base/list.h"

#include "core/directory.h"
#include "core/eviction.h"
#include "core/master.h"
#include "wire/keys.h"
#include "wire/status.h"

#define EGM_NONE UINT32_MAX
/* A request gives way after as many keys: ~50 us of look-ups, ~100 us of puts; twice that when a
 * table grows. A turn may take 300 us. */
#define EGM_TURN_KEYS 256

/* ---- peers: connections ---- */
struct egm_peer {
    bool is_open, is_greeted;
    uint8_t role;
    uint32_t provider; /* role provider, after MOUNT: slot, or EGM_NONE */
};

/* ---- sessions ---- */
/* How a session reaches one mount. A session may hold several slots for a moment (re-attached while
 * the old one dies). */
struct egm_reach {
    uint16_t map_slots, tcp_slots;
    uint64_t suspect_until_ns; /* 0: never was */
};

/* A write that the session said is open from an earlier life of the master, on a mount that is not
 * here yet. */
struct egm_claim {
    struct egm_open_write write;
    struct egm_extent extents[EGM_MAX_EXTENTS];
};

struct egm_session_state {
    uint64_t id; /* 0: slot unused */
    uint64_t host;
    uint64_t opening;   /* of the youngest SESSION */
    uint64_t challenge; /* that SESSION must bring (egm_session_ask); 0: none given yet */
    uint32_t pid, tenant;
    char *name;
    bool is_live; /* false: its ttl ran out; kept while writes or slots of it are left */
    /* It has listed its open writes since each provider that it can reach has joined. */
    bool is_known;
    uint64_t until_ns;
    uint32_t first_write; /* its WRITING and QUARANTINED objects, linked by prev/next */
    uint32_t slot_count;
    struct egm_reach *reach; /* by mount */
    uint32_t reach_count;
    struct egm_claim *claims;
    uint32_t claim_count;
};

/* ---- providers and mounts ---- */
enum egm_provider_phase {
    EGM_PHASE_JOINING,
    EGM_PHASE_READY,
    EGM_PHASE_DRAINING,
    EGM_PHASE_LOST,
    EGM_PHASE_GONE
};

/* One RECORDS frame that the provider has not answered yet. */
struct egm_batch {
    struct egm_link link;
    uint64_t sequence;
    struct egm_request *floor_request; /* it carries a floor that this request waits for; or NULL */
    uint32_t drop_count;
    uint32_t drops[]; /* objects */
};

struct egm_held_slot {
    uint32_t segment, slot;
    uint64_t session;
    uint8_t kind;
};

struct egm_provider_state {
    uint64_t id; /* 0: slot unused */
    uint64_t epoch, host;
    char *name, *unix_path, *data_address;
    enum egm_provider_phase phase;
    uint32_t peer; /* EGM_NONE: disconnected */
    uint64_t lost_at_ns;
    uint64_t lease_until_ns, lease_asked_ns, lease_next_ns;
    /* Until then read leases may run that name its memory by mounts that are gone: nothing is
     * placed there (I3 a). */
    uint64_t read_until_ns;
    uint32_t term;        /* told by the last LEASE */
    uint32_t leased_term; /* accepted from us; 0 until the first lease was granted */
    uint32_t tcp_slot_count;
    uint32_t first_mount, mount_count; /* in m->mounts, consecutive */
    struct egm_held_slot *slots;
    uint32_t slot_count, slot_room;
    uint32_t *drops; /* REMOVED objects not yet sent */
    uint32_t drop_count, drop_room;
    bool has_lost_drops;  /* memory was out when one was to be queued */
    struct egm_buf quiet; /* encoded GRANT and SEAL records not yet sent */
    uint32_t quiet_count;
    bool is_urgent; /* quiet must leave with this flush: somebody may wait for it */
    uint64_t quiet_since_ns;
    uint64_t next_sequence;
    uint32_t resync_at;      /* next slab slot whose records are sent again; EGM_NONE: all were */
    struct egm_link batches; /* egm_batch, oldest first */
    uint32_t batch_count;
};

/* A life of a provider that was given up while read leases may still name its memory. A MOUNT that
 * was long on its way does that to the living, which then comes back as new, also after another
 * life of the same provider came between. */
#define EGM_GONE_LIVES 16
struct egm_gone_life {
    uint64_t epoch, read_until_ns;
};

struct egm_mount_state {
    uint32_t provider; /* slot; EGM_NONE: mount number retired */
    uint32_t segment;
    uint32_t numa_node; /* of its provider's host */
    uint64_t size;
    bool is_placeable_once; /* its allocator is set up: all old writers are resolved */
    uint64_t placeable_since_ns;
    uint32_t unresolved; /* held map slots whose session has not re-attached in this life of the
                               master */
    struct egm_extents extents;
    struct egm_eviction eviction;
    /* Searches for room go over the queues in laps (master_evict.c). */
    uint64_t passed_count; /* this lap's objects so far that no put could have taken */
    uint64_t lap_search;   /* m->search when this lap began */
    uint64_t vain_search;  /* m->search when the last lap began in which nothing could be taken */
    uint64_t bytes[EGM_OBJECT_STATE_COUNT]; /* rounded, by object state */
};

/* ---- read ops ---- */
#define EGM_OP_MOUNTS \
    64 /* of one op; what lies on further ones is asked for again, in another op */

struct egm_op {
    struct egm_link link;
    uint64_t id;
    uint32_t session;
    uint64_t until_ns;    /* of its lease; each PING of the session moves it on */
    uint64_t deadline_ns; /* the call's: no lease reaches beyond */
    uint64_t bytes;       /* of its objects: they size the lease */
    uint32_t mount_count; /* that its entries name */
    uint32_t mounts[EGM_OP_MOUNTS];
    uint32_t count;
    uint32_t objects[];
};

/* ---- requests that outlive one event ---- */
enum egm_step {
    EGM_STEP_DONE,
    EGM_STEP_YIELD,
    EGM_STEP_PARK
};

/* A key of a PUT_START, decoded before its turn so that what it touches is loaded meanwhile. */
struct egm_ahead_key {
    struct egm_bytes key; /* in the request's ahead_bytes */
    uint64_t hash;
};
#define EGM_PUT_AHEAD 16 /* about the cache lines that a core fetches at a time */

struct egm_request {
    struct egm_link link; /* in m->runnable or m->parked */
    uint32_t peer;
    struct egm_frame frame;
    uint8_t *payload; /* owned */
    struct egm_cursor cursor;
    enum egm_step (*step)(struct egm_master *, struct egm_request *);
    bool has_begun;
    uint32_t session;
    uint64_t session_id; /* the slot may be another session's when the request goes on */
    uint32_t tenant;
    uint32_t count, done; /* keys */
    uint64_t deadline_ns;
    uint64_t result;          /* REMOVE_*: objects removed so far */
    uint64_t wait_generation; /* REMOVE*: newest generation that must be acknowledged */
    uint32_t waiting;         /* removals not yet acknowledged */
    bool
        is_unsure; /* memory was out: some removal is not waited for, so success must not be told */
    uint8_t flags;
    struct egm_buf reply; /* frame under construction */
    size_t reply_begin;
    void *regex;
    uint32_t scan; /* next slot of a scan over the slab */
    /* PUT_START */
    struct egm_put_start put;
    struct egm_bytes preferred[EGM_MAX_PREFERRED];
    uint32_t preferred_count;
    struct egm_cursor want_cursor; /* over the want records */
    uint32_t last_mount;           /* of the key before; or EGM_NONE */
    bool is_seeking;               /* room: goes on next turn */
    uint64_t search;               /* for room; 0: none is on */
    bool has_key;                  /* the key under work was taken before the request was parked */
    struct egm_bytes key;
    uint64_t key_hash;
    struct egm_want want;
    struct egm_ahead_key ahead[EGM_PUT_AHEAD]; /* decoded keys, from ahead_at on still to do */
    uint32_t ahead_count, ahead_at;
    /* GET_START */
    struct egm_op *op;
    struct egm_key_reader keys; /* from here on not zeroed */
    uint8_t ahead_bytes[2 * EGM_MAX_KEY];
};

/* A removal that a request waits for; the object's `waiter` is its index. An object is removed
 * once, so one request waits for it at most. */
struct egm_waiter {
    uint32_t object;
    struct egm_request *request;
};

struct egm_master {
    struct egm_master_options options;
    struct egm_master_io io;
    char cluster[128];
    uint32_t term;
    uint64_t counter; /* of generations in this term */
    uint64_t layout;  /* version: grows with every change of providers */
    uint64_t now_ns, last_tick_ns;
    uint64_t random; /* state of egm_master_random */

    struct egm_directory directory;
    struct egm_peer *peers;
    uint32_t peer_room;
    struct egm_session_state *sessions;
    uint32_t session_room;
    struct egm_index session_index;
    struct egm_provider_state *providers;
    uint32_t provider_room;
    struct egm_gone_life gone[EGM_GONE_LIVES];
    uint64_t gone_until_ns; /* of lives that found no entry: it holds for every epoch */
    struct egm_mount_state *mounts;
    uint32_t mount_count;
    uint64_t search; /* number of the last search for room that began */

    struct egm_link ops;
    struct egm_link runnable, parked; /* requests */
    struct egm_waiter *waiters;
    uint32_t waiter_count, waiter_room;
    uint32_t sweep_at; /* next slab slot of the running sweep */
    bool sweep_is_on, sweep_again;
    struct egm_buf scratch; /* replies that are built in one go */
    uint8_t *window_bytes;  /* EGM_FIND_WINDOW keys */
    struct egm_master_totals counters;
};

/* ---- master.c ---- */
struct egm_request;
void egm_master_reply(struct egm_master *m, uint32_t peer, struct egm_buf *frame, size_t begin);
void egm_master_violation(struct egm_master *m, uint32_t peer, const char *what);
/* Wakes every parked request: an obstacle may be gone. */
void egm_master_wake(struct egm_master *m);
uint64_t egm_master_generation(struct egm_master *m);
/* The generation that comes `n` after the next one, unless the term changes. */
uint64_t egm_master_generation_ahead(const struct egm_master *m, uint32_t n);
/* For placement: fast, seeded once; nobody gains by guessing it. */
uint64_t egm_master_random(struct egm_master *m);
static inline uint64_t egm_ms(uint64_t ms)
{
    return ms * 1000000u;
}

/* ---- master_object.c: the life of objects ---- */
/* The only place where an object changes state: legal moves, mounts' byte counters, tenant's count
 * (D3, I10). */
void egm_object_set_state(struct egm_master *m, uint32_t id, enum egm_object_state state);
/* Hides the object at once and has every provider record it; its places come back when I3 allows.
 * From any state but REMOVED. `evicted` remembers it as a ghost. */
void egm_object_remove(struct egm_master *m, uint32_t id, bool evicted);
/* Puts a sealed object into its eviction queue. */
void egm_object_enqueue(struct egm_master *m, uint32_t id);
/* Frees the object when D4 holds. */
void egm_object_release(struct egm_master *m, uint32_t id);
/* True when a get by this session would find it (I6, D5). session EGM_NONE: any. */
bool egm_object_is_visible(const struct egm_master *m, struct egm_object *o, uint32_t session);
bool egm_object_is_held(const struct egm_master *m, const struct egm_object *o);
/* Starts a walk over all objects that removes those of retired mounts and below floors. */
void egm_master_sweep(struct egm_master *m);
/* A turn's share of that walk. Pre: m->sweep_is_on. */
void egm_object_sweep(struct egm_master *m);

/* ---- master_session.c ---- */
void egm_session_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                         struct egm_cursor cursor);
void egm_ping_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                      struct egm_cursor cursor);
void egm_session_end_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                             struct egm_cursor cursor);
void egm_suspect_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                         struct egm_cursor cursor);
uint32_t egm_session_find(const struct egm_master *m, uint64_t id); /* live or not; EGM_NONE */
/* Live session of that id that has said what it writes, or EGM_NONE. */
uint32_t egm_session_live(const struct egm_master *m, uint64_t id);
void egm_session_tick(struct egm_master *m);
EGM_MUST_CHECK int egm_session_new(struct egm_master *m, uint64_t id, uint32_t *ret_slot);
/* It has to say anew what it writes: until then it is not known. */
void egm_session_ask(struct egm_master *m, uint32_t session);
/* A slot of the session became free: its writes that nobody can reach any more are settled (I3 c).
 */
void egm_session_settle(struct egm_master *m, uint32_t session);
void egm_session_maybe_free(struct egm_master *m, uint32_t slot);
void egm_session_link_write(struct egm_master *m, uint32_t session, uint32_t id);
void egm_session_unlink_write(struct egm_master *m, uint32_t id);
bool egm_session_suspects(const struct egm_master *m, uint32_t session, uint32_t mount);
struct egm_reach *egm_session_reach(struct egm_master *m, uint32_t session,
                                    uint32_t mount); /* NULL: no memory */
bool egm_session_reaches(const struct egm_master *m, uint32_t session, uint32_t mount);
/* The writer can write no more, or may still: removes or quarantines the object accordingly. */
void egm_write_give_up(struct egm_master *m, uint32_t id);

/* ---- master_provider.c ---- */
void egm_mount_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                       struct egm_cursor cursor);
void egm_unmount_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                         struct egm_cursor cursor);
void egm_lease_reply_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                             struct egm_cursor cursor);
void egm_records_reply_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                               struct egm_cursor cursor);
void egm_layout_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                        struct egm_cursor cursor);
void egm_mismatch_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                          struct egm_cursor cursor);
void egm_verify_reply_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                              struct egm_cursor cursor);
void egm_provider_disconnected(struct egm_master *m, uint32_t provider);
void egm_provider_tick(struct egm_master *m);
void egm_provider_flush(struct egm_master *m, uint32_t provider, bool force);
void egm_provider_release(struct egm_provider_state *p);
struct egm_provider_state *egm_provider_of_peer(struct egm_master *m, uint32_t peer); /* or NULL */
uint32_t egm_provider_find(const struct egm_master *m, uint64_t id);                  /* EGM_NONE */

/* ---- master_mount.c ---- */
void egm_slot_change_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                             struct egm_cursor cursor);
/* The slots that a provider reports when it joins. On failure the old ones stand too: who is
 * missing may still write there (I3 c), so nothing may follow from its not being in the list. */
EGM_MUST_CHECK int egm_slots_set(struct egm_master *m, struct egm_provider_state *p,
                                 const struct egm_slot *slots, uint32_t count);
/* The provider is gone, and with it what could be reached. */
void egm_slots_drop(struct egm_master *m, struct egm_provider_state *p);
bool egm_mount_is_mounted(const struct egm_master *m,
                          uint32_t mount); /* its objects count as present */
bool egm_mount_is_leased(const struct egm_master *m, uint32_t mount); /* and grants may be made */
/* For how long from now on that right lasts, whatever the provider's phase; 0: it does not. */
uint64_t egm_mount_lease_left(const struct egm_master *m, uint32_t mount);
bool egm_mount_is_placeable(const struct egm_master *m,
                            uint32_t mount); /* and new objects may go there */
/* The session re-attached, or its slot is free: mounts that waited for it go on. */
void egm_mount_resolve(struct egm_master *m, uint64_t session);
/* This one is looked at; nothing happens while its provider is not ready. */
void egm_mount_resolve_one(struct egm_master *m, uint32_t mount);
/* Queues a record for the object's replicas. */
void egm_record_object(struct egm_master *m, uint32_t id, enum egm_record_kind kind);
/* Sends a floor to every provider; the request is counted as waiting on each. */
void egm_record_floor(struct egm_master *m, uint32_t tenant, struct egm_request *request);
const char *egm_mount_state_name(const struct egm_master *m, uint32_t mount);
/* All that was sent or queued and not answered is queued again: the provider came back. */
void egm_records_requeue(struct egm_master *m, uint32_t provider);
/* Goes on with sending a returned provider the grants and seals it may have missed. True: more to
 * do. */
bool egm_records_resync(struct egm_master *m);
void egm_records_find_lost(struct egm_master *m, uint32_t provider);
void egm_records_release(struct egm_provider_state *p);
/* The request goes away: no batch may name it. */
void egm_records_forget(struct egm_master *m, const struct egm_request *request);
void egm_verify_objects(struct egm_master *m, uint32_t id);

/* ---- resumable requests ---- */
enum egm_step egm_exist_step(struct egm_master *m, struct egm_request *r);
enum egm_step egm_prefix_step(struct egm_master *m, struct egm_request *r);
enum egm_step egm_get_step(struct egm_master *m, struct egm_request *r);
enum egm_step egm_put_step(struct egm_master *m, struct egm_request *r);
enum egm_step egm_put_end_step(struct egm_master *m, struct egm_request *r);
enum egm_step egm_remove_step(struct egm_master *m, struct egm_request *r);
enum egm_step egm_remove_all_step(struct egm_master *m, struct egm_request *r);
enum egm_step egm_remove_matching_step(struct egm_master *m, struct egm_request *r);
void egm_op_end_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                        struct egm_cursor cursor);
void egm_op_tick(struct egm_master *m);
/* A PING of the session came: its ops' leases run on. Appends a renewal for each; returns how many.
 */
uint32_t egm_ops_renew(struct egm_master *m, uint32_t session, struct egm_buf *out);
void egm_op_end(struct egm_master *m, struct egm_op *op);
/* Decodes up to EGM_FIND_WINDOW keys of the request; returns how many. Keys stay valid until the
 * next call. */
uint32_t egm_request_keys(struct egm_master *m, struct egm_request *r, struct egm_bytes *ret_keys);
/* Sends the finished reply, or a reply of the same kind that carries only a head status. */
void egm_request_fail(struct egm_master *m, struct egm_request *r, int code, const char *reason);
void egm_put_entry_of(struct egm_buf *out, struct egm_master *m, struct egm_object *o, int status);
/* Registers that `request` waits until `object` is acknowledged everywhere. */
void egm_request_wait(struct egm_master *m, struct egm_request *r, uint32_t object);
/* Whoever waits for the object goes on, if nobody reachable still has to record that it went. */
void egm_request_settle(struct egm_master *m, uint32_t object);
/* Does somebody reachable still have to record that this object went? */
bool egm_object_is_unrecorded(const struct egm_master *m, uint32_t id);

/* ---- for the simulator's oracle ---- */
/* Shows what a key of a PUT_START was answered, at the instant of the decision: granted as `id`, or
 * (EGM_NO_OBJECT) refused with `code`. Nothing in any other build, like EGM_MUTANT. */
#ifdef EGM_SIM
void egm_sim_put_decided(const struct egm_master *m, const struct egm_request *r, uint64_t size,
                         uint32_t id, int code);
#else
static inline void egm_sim_put_decided(const struct egm_master *m, const struct egm_request *r,
                                       uint64_t size, uint32_t id, int code)
{
    (void)m, (void)r, (void)size, (void)id, (void)code;
}
#endif

/* ---- master_evict.c ---- */
enum egm_room {
    EGM_ROOM_NONE,
    EGM_ROOM_COMES, /* wait for acknowledgements */
    EGM_ROOM_SOUGHT /* some is there already, or many objects are in use: ask again next turn */
};
/* Makes room for `bytes` on the mount by hiding victims, in a search of that number. */
enum egm_room egm_evict_for(struct egm_master *m, uint32_t mount, uint64_t bytes, uint64_t search);
void egm_evict_tick(struct egm_master *m);

#endif
