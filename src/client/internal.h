/* SPDX-License-Identifier: Apache-2.0 */
/* The client library inside: one store handle.
 *
 *   api.c          the public calls: checks arguments, fills items, counts calls in flight
 *   store.c        open and close
 *   config.c       options and environment
 *   connection.c   connections to the master: connect, greet, pool
 *   rpc.c          one request and its answer, over a connection with an open session
 *   view.c         layout + attachments, an immutable counted snapshot
 *   background.c   the thread: renews the session, follows the layout, attaches providers
 *   data.c         put and get: runs core's operations with rpc.c and the movers
 *   lookup.c       exist, prefix, query, remove
 *   regions.c      registered memory
 *   embed.c        the provider inside this process
 *
 * Threads. Callers bring their own; the library has one, `background`, and per process the helpers
 * of mover/copy_team.h, which ask a call's guards. A call takes a connection for one request, never
 * across a copy. Locks, in this order (a lock is taken only by who holds
 * none, or one above it):
 *
 *   1  store->lock           requester, view, attachments' counts, counters, last error
 *   2  store->pool_lock      connections
 *      store->regions_lock   registered memory; held alone
 *      movers' own locks, child.h's lock
 *
 * Lifetime. A view holds a count on the layout and on each attachment it names; a call holds a view
 * while it copies. An attachment whose count falls to zero goes to `retired`, and the background
 * thread unmaps it, so that no caller pays for that.
 *
 * Closing. is_closing makes guards stop copies and ends every wait of a call and of the background
 * thread within 100 ms, whatever is waited for (os/wait.h watches it); open connections are shut
 * down besides, which ends most at once. Close then waits until calls_in_flight is zero. After fork
 * the child's copy is dead (is_forked): calls answer EGM_E_CLOSED, close does nothing, because
 * child.h has closed the fds already and the locks may be held by threads that do not exist there.
 */
#ifndef EGM_CLIENT_INTERNAL_H
#define EGM_CLIENT_INTERNAL_H

#include "base/buf.h"
#include "base/detail.h"
#include "base/limits.h"
#include "base/list.h"

#include "client/regions.h"
#include "core/requester.h"
#include "egmstore/provider.h"
#include "egmstore/store.h"
#include "mover/map/child.h"
#include "mover/mover.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- configuration ---- */

struct egm_client_config {
    char master[512];            /* as given */
    char unix_master[160];       /* "unix:/path" to try first; "": none */
    char name[EGM_MAX_HOST + 8]; /* "host:port" */
    char tenant[EGM_MAX_NAME + 1];
    char cluster[128];
    uint64_t deadline_ns; /* of a call, a duration */
    bool is_map_on;
    int name_fd; /* keeps the port of `name` ours; -1: none */
};

EGM_MUST_CHECK int egm_client_config_init(struct egm_client_config *config,
                                          const struct egm_store_options *options,
                                          struct egm_detail *reterr);
void egm_client_config_release(struct egm_client_config *config);

/* ---- connections ---- */

struct egm_connection {
    struct egm_link link; /* idle */
    struct egm_link all;  /* every open one, so that close can shut them down */
    int fd;
    uint64_t instance; /* the master at the other end */
    uint64_t next_request;
    struct egm_buf out, in;
};

/* A connection greeted, not pooled. is_reserved: above the pool's bound (the background
 * thread's). */
EGM_MUST_CHECK int egm_connection_take(struct egm_store *store, bool is_reserved,
                                       uint64_t deadline_ns, struct egm_connection **ret_connection,
                                       struct egm_detail *reterr);
/* One outside the pool, for whoever closes it with release. */
EGM_MUST_CHECK int egm_connection_open(struct egm_store *store, uint64_t deadline_ns,
                                       struct egm_connection **ret_connection,
                                       struct egm_detail *reterr);
void egm_connection_release(struct egm_connection *connection);
/* Back to the pool, or closed when its stream is not at a boundary. */
void egm_connection_give(struct egm_store *store, struct egm_connection *connection, bool is_clean);
/* Makes every wait on a connection end now. */
void egm_connections_shut(struct egm_store *store);
void egm_connections_close(struct egm_store *store);

/* ---- requests ---- */

struct egm_rpc {
    struct egm_connection *connection;
    uint64_t request;
    uint64_t opening; /* the session's, when this began */
    uint64_t deadline_ns;
    uint64_t sent_ns;
};

/* Takes a connection on which the session is open (opens it if it must); connection->out is
 * empty. */
EGM_MUST_CHECK int egm_rpc_begin(struct egm_store *store, uint64_t deadline_ns,
                                 struct egm_rpc *ret_rpc, struct egm_detail *reterr);
/* Sends connection->out, receives the answer into connection->in. On failure the connection is
 * closed and rpc is over. */
EGM_MUST_CHECK int egm_rpc_exchange(struct egm_store *store, struct egm_rpc *rpc,
                                    uint16_t reply_type);
/* The two halves of it, for several requests under way at once: they have the numbers from
 * rpc->request on, and the caller moves connection->next_request behind them. A failure closes the
 * connection, and rpc is over. */
EGM_MUST_CHECK int egm_rpc_send(struct egm_store *store, struct egm_rpc *rpc);
EGM_MUST_CHECK int egm_rpc_receive(struct egm_store *store, struct egm_rpc *rpc,
                                   uint16_t reply_type, uint64_t *ret_request);
/* Sends connection->out, which is one-way; rpc is over. */
int egm_rpc_post(struct egm_store *store, struct egm_rpc *rpc);
/* The answer was read. `code` EGM_E_PROTO closes the connection, EGM_E_NOT_FOUND (of a head) loses
 * the session. */
void egm_rpc_end(struct egm_store *store, struct egm_rpc *rpc, int code);
/* Opens the session over this connection, if it is not. */
EGM_MUST_CHECK int egm_session_open(struct egm_store *store, struct egm_connection *connection,
                                    uint64_t deadline_ns);

/* ---- view ---- */

struct egm_attachment {
    struct egm_link link; /* retired */
    struct egm_import *import;
    uint32_t ref_count; /* under store->lock */
    uint64_t provider, epoch;
    bool is_map;
    uint64_t suspect_until_ns; /* under store->lock */
};

struct egm_view {
    uint32_t ref_count; /* under store->lock */
    struct egm_layout_snapshot *layout;
    struct egm_attachment **attachments; /* one per provider of the layout; NULL: not attached */
};

/* NULL before the first layout. Released with egm_view_release. */
struct egm_view *egm_view_acquire(struct egm_store *store);
void egm_view_release(struct egm_store *store, struct egm_view *view); /* NULL is fine */
/* Makes a view of the layout and the given attachments (counts are added) the current one. -ENOMEM
 * leaves the old one. */
EGM_MUST_CHECK int egm_view_publish(struct egm_store *store, struct egm_layout_snapshot *layout,
                                    struct egm_attachment *const *attachments);
/* The view's attachment for a mount, or NULL. */
struct egm_attachment *egm_view_find(const struct egm_view *view, uint32_t mount);

/* ---- the store ---- */

struct egm_embedded; /* embed.c */

struct egm_store {
    struct egm_client_config config;
    uint64_t process; /* random, one per handle */
    struct egm_child_hook hook;
    _Atomic bool is_forked;  /* set in the child, relaxed: the only thread reads it */
    _Atomic bool is_closing; /* relaxed: a hint to stop; the locks order everything else */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* view, session or closing; CLOCK_MONOTONIC */
    struct egm_requester requester;
    struct egm_view *view;
    uint64_t view_number; /* counts views */
    struct egm_link retired;
    struct egm_store_counters counters;
    unsigned calls_in_flight;
    uint64_t gone_since_ns; /* the master cannot be reached since; 0: it can */
    char last_error[384];

    pthread_rwlock_t regions_lock;
    struct egm_regions regions;

    pthread_mutex_t pool_lock;
    pthread_cond_t pool_free;
    struct egm_link idle; /* last used first */
    struct egm_link connections;
    unsigned connection_count; /* without the reserved one */

    pthread_t thread;
    bool has_thread;
    pthread_cond_t wake; /* with lock: background has work before its next tick */
    bool is_woken;
    uint64_t refresh_asked, refresh_done; /* rounds of egm_background_refresh */
    uint64_t next_look_ns;         /* a put that misses providers may have them looked for again */
    bool has_settled;              /* a first round over all providers is done */
    struct egm_embedded *embedded; /* NULL: none */
};

bool egm_store_is_dead(const struct egm_store *store);
/* Waits until at_ns, a new view, or until the thread must stop. */
void egm_store_wait(struct egm_store *store, uint64_t at_ns);
void egm_store_wake(struct egm_store *store);
/* Reachability of the master, as the last connection attempt showed it. */
void egm_store_note_master(struct egm_store *store, bool is_there);

/* ---- background ---- */

EGM_MUST_CHECK int egm_background_start(struct egm_store *store);
void egm_background_stop(struct egm_store *store);
/* Has the layout fetched and its providers attached now; returns when that was tried once, or at
 * the deadline. */
void egm_background_refresh(struct egm_store *store, uint64_t deadline_ns);
/* Unmaps what no view names any more. */
void egm_background_reap(struct egm_store *store);

/* ---- operations ---- */

int egm_client_put(struct egm_store *store, const struct egm_put_params *params,
                   struct egm_op_item *items, size_t count, uint64_t deadline_ns,
                   struct egm_detail *reterr);
int egm_client_get(struct egm_store *store, struct egm_op_item *items, size_t count,
                   uint64_t deadline_ns, struct egm_detail *reterr);
int egm_client_exist(struct egm_store *store, const struct egm_key *keys, size_t count,
                     int *results, uint64_t deadline_ns, struct egm_detail *reterr);
int egm_client_prefix(struct egm_store *store, const struct egm_key *keys, size_t count,
                      size_t *ret_count, uint64_t deadline_ns, struct egm_detail *reterr);
int egm_client_query(struct egm_store *store, const struct egm_key *keys, size_t count,
                     struct egm_object_info *infos, uint64_t deadline_ns,
                     struct egm_detail *reterr);
int egm_client_remove(struct egm_store *store, bool force, const struct egm_key *keys, size_t count,
                      int *results, uint64_t deadline_ns, struct egm_detail *reterr);
/* pattern NULL: all. */
int egm_client_remove_many(struct egm_store *store, const char *pattern, bool force,
                           uint64_t *ret_count, uint64_t deadline_ns, struct egm_detail *reterr);
/* One LAYOUT exchange whose answer is dropped. */
int egm_client_probe(struct egm_store *store, uint64_t deadline_ns);

/* ---- embedded provider ---- */

EGM_MUST_CHECK int egm_embedded_open(const struct egm_store_options *options, const char *master,
                                     struct egm_embedded **ret_embedded, struct egm_detail *reterr);
const char *egm_embedded_name(const struct egm_embedded *embedded);
void egm_embedded_close(struct egm_embedded *embedded); /* NULL is fine; drains first, bounded */

#endif
