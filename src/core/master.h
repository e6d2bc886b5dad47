/* SPDX-License-Identifier: Apache-2.0 */
/* The master: one state machine that owns the directory, sessions, mounts, leases, placement and
 * eviction. Pure.
 *
 * Model. The shell (src/master, or the simulator) hands in events with their time: a peer connected
 * or went, a frame came, time passed. The core answers by calling io->send and io->close; nothing
 * else leaves it. It never waits: a request that cannot be finished now (memory is on its way, a
 * provider has to record a removal) is parked and answered later; one that has many keys gives way
 * every 256 of them. After a burst of events the shell calls egm_master_run until it
 * returns false, then egm_master_flush once, so that everything for one provider leaves as one
 * batch.
 *
 * What a grant rests on (numbers are DESIGN's):
 *   I3   Places are given back in one function, egm_object_release, whose conditions are (a) and
 *        (b); (c) is what the state QUARANTINED is for, and only proofs end it (master_session.c).
 *   I4   All times the core sees are its own host's; what it promises are durations.
 *   I13  A mount is placeable only while its provider's lease (counted from before LEASE was sent)
 *        runs. A provider that reports a higher term raises the core's.
 *
 * Reading order: master_state.h (everything it knows), master.c (dispatch, requests, tick),
 * master_object.c, master_put.c, master_get.c, master_remove.c, master_provider.c, master_mount.c,
 * master_session.c, master_evict.c. */
#ifndef EGM_CORE_MASTER_H
#define EGM_CORE_MASTER_H

#include "base/buf.h"
#include "base/limits.h"
#include "base/pieces.h"

#include "wire/messages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct egm_master;

/* What the core asks of its shell. Bytes are borrowed until return. */
struct egm_master_io {
    void (*send)(void *arg, uint32_t peer, const void *data, size_t size);
    /* The peer broke the protocol or must go; the shell calls egm_master_disconnected for it later,
     * not from here. */
    void (*close)(void *arg, uint32_t peer, const char *reason);
    /* Regular expressions, with bounds on time and stack. compile: 0, or a negative code and a
     * reason in `text`. match: 1, 0, or negative (a bound was hit); adds the time that it took to
     * *cost_ns, by which the core gives way. */
    int (*regex_compile)(void *arg, const char *pattern, void **ret_regex, char *text,
                         size_t text_size);
    int (*regex_match)(void *arg, void *regex, const void *key, size_t size, uint64_t *cost_ns);
    void (*regex_free)(void *arg, void *regex);
    uint64_t (*random)(void *arg);
    void *arg;
    /* Memory of the tables, in blocks; used until egm_master_destroy. Without get: from base/alloc.
     */
    struct egm_block_source blocks;
};

struct egm_master_options {
    uint64_t instance;         /* random; one life of this master */
    const char *cluster;       /* id that every peer must name; default "egmstore" */
    uint64_t hold_ms;          /* default_kv_lease_ttl; default 10000 */
    uint64_t session_ttl_ms;   /* client_ttl; default 10000 */
    uint64_t segment_lease_ms; /* default 5000 */
    uint64_t read_lease_ms;    /* least duration of a read lease; default 4000 */
    uint64_t put_timeout_ms;   /* an un-ended put is given up after; default 30000 */
    uint64_t soft_pin_ttl_ms;  /* default 1800000 */
    double high_watermark;     /* background eviction keeps use below; default 0.95 */
    bool evict_soft_pinned;    /* default true, by egm_master_defaults */
};

/* Fills in the defaults. */
struct egm_master_options egm_master_defaults(void);

EGM_MUST_CHECK int egm_master_create(const struct egm_master_options *options,
                                     const struct egm_master_io *io,
                                     struct egm_master **ret_master);
void egm_master_destroy(struct egm_master *m);

/* A connection was accepted; `peer` is the shell's number for it (small numbers, reused only after
 * disconnected). */
EGM_MUST_CHECK int egm_master_connected(struct egm_master *m, uint64_t now_ns, uint32_t peer);
void egm_master_disconnected(struct egm_master *m, uint64_t now_ns, uint32_t peer);
/* One whole frame. payload is taken: frame->length bytes from egm_alloc, or NULL when there are
 * none; the core frees it (a long request lives on in it, uncopied). */
void egm_master_receive(struct egm_master *m, uint64_t now_ns, uint32_t peer,
                        const struct egm_frame *frame, uint8_t *payload);
/* Goes on with requests that gave way or whose obstacle is gone, and with sweeps. True: call again
 * soon. */
bool egm_master_run(struct egm_master *m, uint64_t now_ns);
/* Sends the batches of records that have gathered for providers. */
void egm_master_flush(struct egm_master *m, uint64_t now_ns);
/* Timers; call at least every 50 ms. A gap of more than ttl/4 is the core's own stall: everybody
 * gets a fresh ttl. */
void egm_master_tick(struct egm_master *m, uint64_t now_ns);
/* Orderly end: hands the providers' leases back so that the next master need not wait for them to
 * run out. */
void egm_master_release_leases(struct egm_master *m);

/* ---- what an operator sees; computed from the owning structures, never counted aside ---- */
struct egm_master_totals {
    uint64_t object_count, capacity_bytes, used_bytes, quarantined_bytes;
    uint32_t provider_count, mount_count, session_count, term;
    uint64_t evicted_count, evicted_bytes;
    uint64_t hit_count, miss_count; /* keys of GET_START */
    uint64_t put_count, put_fail_count, no_space_count;
    uint64_t stalls; /* own stalls noticed */
    uint32_t soft_pin_count;
};
struct egm_master_totals egm_master_totals(const struct egm_master *m);

struct egm_mount_stat {
    const char *name, *data_address; /* the provider's */
    uint64_t provider, epoch, size_bytes;
    uint64_t free_bytes, writing_bytes, sealed_bytes, removed_bytes,
        quarantined_bytes; /* I10: they sum up to size_bytes */
    uint32_t mount, segment, slot_count, unresolved_count;
    const char *state; /* "joining", "ready", "draining", "disconnected", "recovering" */
};
/* Calls fn for each mount of a live provider. */
void egm_master_each_mount(const struct egm_master *m, uint64_t now_ns,
                           void (*fn)(void *arg, const struct egm_mount_stat *), void *arg);

enum egm_walk {
    EGM_WALK_KEY,
    EGM_WALK_PAUSE, /* *looks is used up: go on in a later turn */
    EGM_WALK_END
};
/* Walks the visible keys: start with *cursor 0. Looks at *looks slots of the slab at most, many of
 * which may hold no such key, and counts them down. The key is borrowed until the next event. */
enum egm_walk egm_master_next_key(const struct egm_master *m, uint32_t *cursor, uint32_t *looks,
                                  struct egm_bytes *ret_key);

/* One object by key of tenant "default", for /query_key. 0 or EGM_E_NOT_FOUND. */
struct egm_replica_stat {
    const char *name;
    uint64_t offset, size;
};
EGM_MUST_CHECK int egm_master_query(struct egm_master *m, uint64_t now_ns, struct egm_bytes key,
                                    struct egm_replica_stat replicas[EGM_MAX_REPLICAS],
                                    uint32_t *ret_count);

/* JSON of totals, mounts and sessions: what STAT answers. */
void egm_master_stat_json(const struct egm_master *m, uint64_t now_ns, struct egm_buf *out);

/* Walks everything and compares (I2, I10, D1-D5); for tests and the simulator. Returns NULL, or
 * what is broken. */
const char *egm_master_check(const struct egm_master *m);

#endif
