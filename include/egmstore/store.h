/* SPDX-License-Identifier: Apache-2.0 */
/* egmstore's requester API: put and get KV-cache objects straight from and into the caller's
 * buffers.
 *
 * Batch first: every data call takes `count` items and writes one result per item, in order,
 * whatever happens to the others. The call itself returns 0 when each item has its own answer, or a
 * negative code when nothing could be tried; then every result holds that code. An object's value
 * is the concatenation of its segments; a later get may cut it into other segments. All calls are
 * @threadsafe and @blocking, at most until the store's deadline + 100 ms; after a call has returned
 * the library touches the caller's buffers no more. In a child after fork() calls answer
 * EGM_E_CLOSED. */
#ifndef EGMSTORE_STORE_H
#define EGMSTORE_STORE_H

#include "egmstore/types.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct egm_store;

struct egm_store_options {
    const char *master;      /* "host:port" or "unix:/path"; NULL: 127.0.0.1:50051 */
    const char *hostname;    /* this requester's name, "host" or "host:port"; NULL or "": chosen */
    const char *tenant;      /* key space; NULL: "default" */
    const char *protocol;    /* wire to other hosts: "tcp", "nvlink", "rdma"; NULL: "tcp" */
    const char *memory_kind; /* embedded provider's memory: "shm" or "auto"; NULL: "auto" */
    uint64_t segment_bytes;  /* memory this process lends as a provider; 0: none */
    uint32_t deadline_ms;    /* of every call; 0: 30000 */
    bool strict_protocol;    /* refuse instead of falling back when `protocol` cannot be served */
};

/* Opens a session at the master and, when segment_bytes > 0, an embedded provider. ret_store is
 * owned by the caller (egm_store_close). Errors: EGM_E_INVALID (an option, named), EGM_E_PEER_GONE
 * or EGM_E_TIMEOUT (no master), -ENOMEM. */
EGM_EXPORT EGM_MUST_CHECK int egm_store_open(const struct egm_store_options *options,
                                             struct egm_store **ret_store,
                                             struct egm_detail *reterr);

/* Makes calls in flight fail fast (EGM_E_CLOSED) and later ones fail at once; waits for nothing and
 * frees nothing. For whoever shares a handle between threads: shutdown, let the others leave, then
 * close. NULL is allowed. */
EGM_EXPORT void egm_store_shutdown(struct egm_store *store);

/* egm_store_shutdown, then waits until calls in flight have left the caller's buffers, drains the
 * embedded provider and gives everything back. NULL is allowed. The pointer is dead afterwards. */
EGM_EXPORT void egm_store_close(struct egm_store *store);

/* For calls that this thread makes from now on: `check` is called, without any lock held, while a
 * call waits (for a peer, a name, its turn, or to try again) or copies: every 100 ms, and when a
 * signal interrupts a wait; non-zero makes the call end early, its items with EGM_E_CLOSED. NULL
 * (the default): signals interrupt nothing. A language's runtime runs its signal handlers there. It
 * may make calls, but not egm_store_close, which would wait for the call that it is asked in. */
EGM_EXPORT void egm_on_interrupt(int (*check)(void *arg), void *arg);

/* The registered name, "host:port". Borrowed until close. */
EGM_EXPORT const char *egm_store_hostname(const struct egm_store *store);

/* 0: the master answered within 2 s; EGM_E_PEER_GONE or EGM_E_TIMEOUT otherwise. */
EGM_EXPORT EGM_MUST_CHECK int egm_store_health(struct egm_store *store);

/* Memory the data calls may touch. Ranges may overlap and repeat: each registration needs its own
 * egm_unregister with the same address. Errors: EGM_E_INVALID (NULL, zero or wrapping size, not
 * mapped). */
EGM_EXPORT EGM_MUST_CHECK int egm_register(struct egm_store *store, void *address, size_t size,
                                           struct egm_detail *reterr);
EGM_EXPORT EGM_MUST_CHECK int egm_unregister(struct egm_store *store, void *address,
                                             struct egm_detail *reterr);

struct egm_put_options {
    uint32_t replica_count;     /* 1..8; 0: 1 */
    bool upsert;                /* replace an existing value (atomically) instead of keeping it */
    bool hard_pin;              /* never evicted */
    enum egm_soft_pin soft_pin; /* ENABLE: evicted last until soft_pin_ttl_ms has passed */
    uint64_t soft_pin_ttl_ms;   /* 0: the master's default */
    uint8_t data_type;          /* Mooncake's ObjectDataType, kept with the object */
    bool same_node;             /* prefer a provider on this host */
    const char *const *preferred_names; /* providers to try first, by hostname */
    size_t preferred_count;
    bool any_memory; /* segments need not be registered: the caller vouches that they are host
                        memory */
};

/* One object: its key and the segments that make up its value, in order (total >= 1 byte). */
struct egm_item {
    struct egm_key key;
    const struct iovec *segments; /* borrowed until return */
    size_t segment_count;
    const char *group; /* put: members of a group are evicted together; NULL or "": none */
};

/* Stores objects. results[i]: 0 stored, or (without upsert) a value existed already and is
 * unchanged; else negative: EGM_E_NO_SPACE, EGM_E_NO_SEGMENT, EGM_E_TOO_LARGE, EGM_E_UNREGISTERED,
 * EGM_E_BAD_KEY, EGM_E_INVALID, EGM_E_TIMEOUT, EGM_E_PEER_GONE, EGM_E_TRANSFER. options may be
 * NULL. */
EGM_EXPORT EGM_MUST_CHECK int egm_put(struct egm_store *store,
                                      const struct egm_put_options *options, size_t count,
                                      const struct egm_item *items, int64_t *results,
                                      struct egm_detail *reterr);

/* Loads objects. results[i]: bytes delivered (the object's size), or negative: EGM_E_NOT_FOUND,
 * EGM_E_TOO_LARGE (segments hold less than the object; nothing was written), EGM_E_CHECKSUM,
 * EGM_E_STALE, EGM_E_UNREGISTERED, EGM_E_TIMEOUT, … A failed item's segments may have been written
 * in part; no item's are written after return. */
EGM_EXPORT EGM_MUST_CHECK int egm_get(struct egm_store *store, bool any_memory, size_t count,
                                      const struct egm_item *items, int64_t *results,
                                      struct egm_detail *reterr);

/* results[i]: 1 if a get would find the object now, 0 if not, negative when unknown. */
EGM_EXPORT EGM_MUST_CHECK int egm_exist(struct egm_store *store, size_t count,
                                        const struct egm_key *keys, int *results,
                                        struct egm_detail *reterr);

/* How many leading keys of the list exist. */
EGM_EXPORT EGM_MUST_CHECK int egm_longest_prefix(struct egm_store *store, size_t count,
                                                 const struct egm_key *keys, size_t *ret_count,
                                                 struct egm_detail *reterr);

/* results[i]: 0, EGM_E_NOT_FOUND, EGM_E_LEASED (read within the hold time; force ignores it),
 * EGM_E_NOT_READY. */
EGM_EXPORT EGM_MUST_CHECK int egm_remove(struct egm_store *store, bool force, size_t count,
                                         const struct egm_key *keys, int *results,
                                         struct egm_detail *reterr);
EGM_EXPORT EGM_MUST_CHECK int egm_remove_all(struct egm_store *store, bool force,
                                             uint64_t *ret_count, struct egm_detail *reterr);
/* pattern: PCRE2 syntax, searched anywhere in the key. EGM_E_INVALID names what is wrong with the
 * pattern. */
EGM_EXPORT EGM_MUST_CHECK int egm_remove_matching(struct egm_store *store, const char *pattern,
                                                  bool force, uint64_t *ret_count,
                                                  struct egm_detail *reterr);

struct egm_replica_info {
    char provider[264]; /* the provider's name, "host:port" */
    uint64_t offset;    /* of its first extent in the segment */
    uint64_t size;      /* bytes */
};

struct egm_object_info {
    int status; /* 0, or EGM_E_NOT_FOUND, EGM_E_NOT_READY, … and the rest is zero */
    uint64_t size;
    uint32_t replica_count;
    struct egm_replica_info replicas[8];
};

/* Size and place of objects, without reading them. Leaves a hold like exist. */
EGM_EXPORT EGM_MUST_CHECK int egm_query(struct egm_store *store, size_t count,
                                        const struct egm_key *keys, struct egm_object_info *infos,
                                        struct egm_detail *reterr);

/* What this process did, for `info` commands and tests. */
struct egm_store_counters {
    uint64_t map_bytes_in, map_bytes_out, tcp_bytes_in, tcp_bytes_out; /* in: into the pool */
    uint64_t puts, gets, put_failures, get_failures;                   /* objects */
    uint64_t checksum_failures, stale_reads, fallbacks;
    uint64_t copy_threads; /* of a large batch, of the process; 0: not measured yet */
};
EGM_EXPORT void egm_store_read_counters(struct egm_store *store,
                                        struct egm_store_counters *ret_counters);

/* Text of the last failure in this store, of any thread: copied, NUL-terminated; empty if none. */
EGM_EXPORT void egm_store_last_error(struct egm_store *store, char *text, size_t size);

#ifdef __cplusplus
}
#endif
#endif
