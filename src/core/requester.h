/* SPDX-License-Identifier: Apache-2.0 */
/* The requester's side of the store as state machines. Pure: bytes and times come in, bytes and
 * steps come out. The client library runs it with sockets and movers, the simulator with a virtual
 * clock and faults.
 *
 * Session. It is OPEN from an accepted SESSION until the master says that it does not know it, or
 * is another instance.
 *
 *        meet(new instance)          session_reply 0
 *   NONE ------------------> LOST <-------------------> OPEN
 *                                   head NOT_FOUND, meet
 *
 *   S1 (keeps I4): valid_until = when the request was *sent* + ttl - max(1 ms, ttl / 1000). It
 *      never goes back: an answer to an older request cannot shorten what a younger one gave.
 *   S2: a write may go on only while now < valid_until and it is OPEN.
 *   S3: the master hears of a stopped write only after its last store has been made. So REVOKED
 *      (told to stop) and STOPPED (has stopped) are two states, and only the second is reported.
 *   S4: a grant whose answer is still on its way to us is in no list. What is said meanwhile, that
 *      its generation is revoked (we call unknown ones stopped) or, by a new SESSION, which writes
 *      we have, means that we do not have it. So a set is marked before its request is sent, and
 *      what happened since then revokes it when it is opened.
 *
 *   R1 (keeps I4): a read op may be relied on until its until_ns: when GET_START was *sent* +
 *      lease_ms - margin, moved on by each PING_REPLY that names the op, to when that PING was sent
 *      + its lease_ms - margin. It never goes back, so answers may come in any order, late, or
 *      twice. An op that a reply does not name is not moved: the master may have dropped it before
 *      that PING came, whatever we thought then (docs/design/0007).
 *   R2: past until_ns no further byte is asked for by a mover that does not look at the fences
 *      itself; the item is stale and asked for again. One that does (map) needs no lease for I1.
 *
 *   write:  OPEN --revoked--> REVOKED --copy returned--> STOPPED --reported by PING--> gone
 *             \--copy returned, PUT_END answered--> gone          \--PUT_END answered--> gone
 *
 * Layout. A LAYOUT_REPLY becomes one immutable, counted snapshot. Mount numbers mean something only
 * together with the master's instance, so a snapshot carries it, and a window is resolved against a
 * snapshot of its own instance or not at all.
 *
 * Operations. A put or a get goes over its items in passes, and in each pass in windows:
 *
 *   ASK --answer--> COPY --all copied--> END --answer--> ASK (next window) ... DONE
 *    ^ \--nothing granted--> ASK / DONE                   |
 *    +------------------- WAIT <----- a failure that may pass (egm_retry_decide)
 *
 *   O1: an item is in exactly one state (requester_item.h); its result is written once, when it
 *       becomes DONE.
 *   O2: results go by position. Equal keys in a batch are different items.
 *   O3: a put's window is at most EGM_WINDOW_PUT_BYTES or one object, a get's at most
 *       EGM_WINDOW_GET_BYTES or one object, both at most EGM_WINDOW_KEYS items.
 *   O4: what was granted is always ended: each granted item of a put appears in PUT_END, with
 *       outcome 1 if it failed; what could not be ended goes to the stopped list.
 *   O5: a reply is used only if all of it fits: type, counts, sizes, ranges. Else EGM_E_PROTO,
 *       nothing of it is used, and the caller closes the connection.
 *
 * Threading: egm_requester and the write sets in it are under the caller's lock (functions named
 * egm_requester_*). An operation belongs to one thread. Layouts may be shared. Memory: an operation
 * allocates per window, never per key; its blocks are kept for the next window. */
#ifndef EGM_CORE_REQUESTER_H
#define EGM_CORE_REQUESTER_H

#include "base/buf.h"
#include "base/limits.h"
#include "base/list.h"

#include "core/requester_item.h"
#include "egmstore/errors.h"
#include "egmstore/types.h"
#include "wire/messages.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- layout ---- */

struct egm_layout_mount {
    uint32_t mount;
    uint32_t segment;
    uint64_t size; /* bytes */
    uint32_t provider_index;
};

struct egm_layout_provider {
    uint64_t provider, epoch, host;
    uint8_t state; /* 0 joining, 1 ready, 2 draining, 3 disconnected */
    const char *name, *unix_path, *data_address; /* in the layout's block */
};

struct egm_layout_snapshot {
    _Atomic uint32_t ref_count;
    uint64_t instance;
    uint64_t version;
    uint32_t provider_count, mount_count;
    struct egm_layout_provider *providers;
    struct egm_layout_mount *mounts; /* ascending by mount */
};

/* Parses a LAYOUT_REPLY that instance `instance` sent. ret_layout has one reference. 0; the head's
 * status; EGM_E_PROTO; -ENOMEM. */
EGM_MUST_CHECK int egm_layout_parse(const void *payload, size_t size, uint64_t instance,
                                    struct egm_layout_snapshot **ret_layout);
struct egm_layout_snapshot *egm_layout_ref(struct egm_layout_snapshot *layout);
void egm_layout_unref(struct egm_layout_snapshot *layout); /* NULL is fine */
/* NULL if there is no such mount. Borrowed from the layout. */
const struct egm_layout_mount *egm_layout_find(const struct egm_layout_snapshot *layout,
                                               uint32_t mount);

/* ---- session ---- */

enum egm_requester_state {
    EGM_SESSION_NONE = 0,
    EGM_SESSION_OPEN,
    EGM_SESSION_LOST
};

enum egm_write_state {
    EGM_WRITE_OPEN = 1,
    EGM_WRITE_REVOKED,
    EGM_WRITE_STOPPED
};

struct egm_writing {
    uint64_t generation, provider, epoch;
    uint32_t segment;
    uint8_t extent_count;
    uint8_t state;                    /* enum egm_write_state */
    const struct egm_extent *extents; /* borrowed from the operation */
};

/* The writes of one window, in the requester's list while they are not ended. */
struct egm_write_set {
    struct egm_link link;
    struct egm_writing *writes;
    size_t count;
    uint64_t session_mark, denied_mark; /* S4 */
    bool is_open; /* in the list; changed and read by the operation's thread only */
};

#define EGM_DENIED_KEPT 256u

/* A get's window that is being read, in the requester's list meanwhile. */
struct egm_reading {
    struct egm_link link;
    uint64_t op_id;
    uint32_t lease_ms; /* as granted */
    uint64_t until_ns; /* R1 */
    bool is_open;      /* in the list; changed and read by the operation's thread only */
};

struct egm_requester {
    uint64_t session, host;
    uint32_t pid;
    char name[EGM_MAX_HOST + 8];
    char tenant[EGM_MAX_NAME + 1];

    enum egm_requester_state state;
    uint64_t instance;  /* of the master we met last; 0: none */
    uint64_t challenge; /* that this master gave last; goes with the next SESSION; 0: none */
    uint64_t valid_until_ns;
    uint32_t ttl_ms;
    uint64_t layout_version; /* as the master told last */
    uint64_t next_op;

    struct egm_link readings;
    struct egm_link write_sets;
    uint64_t *stopped; /* generations to report */
    size_t stopped_count, stopped_cap;
    size_t reported_count; /* leading ones that the PING under way carries */

    uint64_t session_count;           /* SESSIONs encoded so far */
    uint64_t pinged_count;            /* of them when the last PING was encoded */
    uint64_t denied[EGM_DENIED_KEPT]; /* ring: generations revoked before we had heard of them */
    uint64_t denied_count;            /* ever */
};

/* name and tenant are copied and must be shorter than their fields. */
void egm_requester_init(struct egm_requester *r, uint64_t session, uint64_t host, uint32_t pid,
                        const char *name, const char *tenant);
void egm_requester_release(struct egm_requester *r);

/* Notes which master a connection leads to. True when a SESSION must be sent over it before
 * anything else. */
bool egm_requester_meet(struct egm_requester *r, uint64_t instance);
/* The master said that it does not know the session, in answer to something that was sent when
 * session_count was `opening`. If it was opened again since, this means the time before. */
void egm_requester_lose(struct egm_requester *r, uint64_t opening);

void egm_requester_encode_session(struct egm_requester *r, struct egm_buf *buf, uint64_t request);
/* `instance`: of the connection that carried it. 0, the master's status, or EGM_E_PROTO.
 * EGM_E_AGAIN: it has a challenge for us, which the next SESSION answers, or we have met another
 * master. */
EGM_MUST_CHECK int egm_requester_take_session_reply(struct egm_requester *r, const void *payload,
                                                    size_t size, uint64_t instance,
                                                    uint64_t sent_ns);

void egm_requester_encode_ping(struct egm_requester *r, struct egm_buf *buf, uint64_t request);
/* `instance`: of the connection that carried it. 0; EGM_E_NOT_FOUND: the session is lost;
 * EGM_E_STALE: another master is ours by now; the master's status; EGM_E_PROTO. */
EGM_MUST_CHECK int egm_requester_take_ping_reply(struct egm_requester *r, const void *payload,
                                                 size_t size, uint64_t instance, uint64_t sent_ns);

void egm_requester_encode_layout(const struct egm_requester *r, struct egm_buf *buf,
                                 uint64_t request);
void egm_requester_encode_session_end(const struct egm_requester *r, struct egm_buf *buf,
                                      uint64_t request);
void egm_requester_encode_suspect(const struct egm_requester *r, struct egm_buf *buf,
                                  uint32_t mount, uint32_t seconds);
void egm_requester_encode_mismatch(const struct egm_requester *r, struct egm_buf *buf,
                                   uint64_t generation, struct egm_key key);

/* Validity by S1, for tests and the simulator. */
uint64_t egm_session_valid_until(uint64_t sent_ns, uint32_t ttl_ms);

/* 0; EGM_E_STALE: revoked, or the session's time is up (S2). */
EGM_MUST_CHECK int egm_requester_may_write(const struct egm_requester *r,
                                           const struct egm_writing *write, uint64_t now_ns);
/* S4: before the request is sent for which the set's writes may be granted. */
void egm_requester_mark(const struct egm_requester *r, struct egm_write_set *set);
void egm_requester_open_writes(struct egm_requester *r, struct egm_write_set *set);
/* The copy of this write has returned: nothing of it is stored any more. */
void egm_requester_stop_write(struct egm_requester *r, struct egm_writing *write);
/* Takes the set out. With is_ended false its generations are reported as stopped. Pre: all its
 * copies have returned. */
void egm_requester_close_writes(struct egm_requester *r, struct egm_write_set *set, bool is_ended);

/* The window was granted: it may be read. sent_ns: when its GET_START was. */
void egm_requester_open_read(struct egm_requester *r, struct egm_reading *reading,
                             uint64_t sent_ns);
/* 0; EGM_E_STALE: its lease has run out (R2). */
EGM_MUST_CHECK int egm_requester_may_read(const struct egm_requester *r,
                                          const struct egm_reading *reading, uint64_t now_ns);
void egm_requester_close_read(struct egm_requester *r, struct egm_reading *reading);

/* ---- retries ---- */

/* The one place that decides what may be tried again (STYLE R25). */
struct egm_retry {
    uint64_t deadline_ns;
    uint64_t gone_since_ns;      /* the master is unreachable since; 0: is not */
    uint64_t not_ready_since_ns; /* 0: is */
    uint32_t delay_ms;           /* last delay; 0: none yet */
};

/* How long a call goes on trying to reach a master that is gone; a restart takes less. */
#define EGM_RETRY_GONE_NS UINT64_C(5000000000)
#define EGM_RETRY_NOT_READY_NS UINT64_C(10000000000)

/* 0 and *ret_at_ns: try again at that time. Else the code with which to give up. Pre: code < 0. */
EGM_MUST_CHECK int egm_retry_decide(struct egm_retry *retry, int code, uint64_t now_ns,
                                    uint64_t *ret_at_ns);
/* An object got through: the next failure begins anew. */
void egm_retry_reset(struct egm_retry *retry);

/* ---- operations ---- */

enum egm_op_step {
    EGM_OP_ASK = 0, /* send what encode_ask writes, then take_answer or failed */
    EGM_OP_COPY,    /* copy the window, then copied() for each place, then copy_done */
    EGM_OP_END,     /* send encode_end; put: then take_end_answer or failed; get: no answer */
    EGM_OP_WAIT,    /* until wait_until_ns, then resume; wants_layout: refresh it meanwhile */
    EGM_OP_DONE,
};

/* A copy of one object, resolved. */
struct egm_place {
    uint32_t mount;
    uint32_t segment;
    uint64_t provider, epoch;
    const struct egm_extent *extents;
    uint32_t extent_count;
    bool is_known; /* its mount was in the layout */
};

/* What put and get share. */
struct egm_op {
    struct egm_op_item *items; /* borrowed */
    size_t count;
    bool is_put;
    enum egm_op_step step;
    enum egm_op_step resume; /* after WAIT */
    uint64_t wait_until_ns;
    bool wants_layout;
    struct egm_retry retry;
    size_t next;                      /* item at which the next window begins */
    bool is_end_answered;             /* put: the window's PUT_END */
    bool is_answered;                 /* the master has taken part at least once */
    bool has_retries;                 /* some item waits for the next pass */
    int retry_code;                   /* why */
    uint32_t window[EGM_WINDOW_KEYS]; /* items of it */
    size_t window_count;
    size_t granted_count;
    struct egm_reading reading; /* get */

    struct egm_place *places;
    size_t place_count, place_cap;
    struct egm_extent *extents;
    size_t extent_count, extent_cap;

    struct egm_writing *writes; /* put: one per place, same index */
    size_t write_cap;
    struct egm_write_set set;
};

struct egm_put_params {
    uint8_t flags; /* EGM_UPSERT, EGM_HARD_PIN, EGM_SAME_NODE */
    uint8_t replica_count;
    uint8_t soft_pin;
    uint8_t data_type;
    uint64_t soft_pin_ttl_ms;
    const char *const *preferred_names; /* borrowed */
    size_t preferred_count;
};

/* Items already DONE (bad arguments) are left alone. gone_since_ns: see egm_retry. */
void egm_op_init(struct egm_op *op, bool is_put, struct egm_op_item *items, size_t count,
                 uint64_t deadline_ns, uint64_t gone_since_ns);
/* Pre: its writes and its reading are closed. */
void egm_op_release(struct egm_op *op);

/* ASK. Builds the window and writes the request. op_id 0 is for queries. EGM_E_LIMIT or -ENOMEM
 * fail the whole call. */
EGM_MUST_CHECK int egm_put_encode_ask(struct egm_op *op, const struct egm_requester *r,
                                      const struct egm_put_params *params, struct egm_buf *buf,
                                      uint64_t request, uint64_t now_ns);
EGM_MUST_CHECK int egm_get_encode_ask(struct egm_op *op, const struct egm_requester *r,
                                      uint64_t op_id, struct egm_buf *buf, uint64_t request,
                                      uint64_t now_ns);

/* The answer to ASK. `layout` (may be NULL) resolves the places; `instance` is the master's that
 * answered. 0: look at step. EGM_E_NOT_FOUND: the session is unknown; open it and go on (step is
 * WAIT). EGM_E_PROTO: close the connection, the items have failed. -ENOMEM likewise. */
EGM_MUST_CHECK int egm_op_take_answer(struct egm_op *op, const void *payload, size_t size,
                                      const struct egm_layout_snapshot *layout, uint64_t instance,
                                      uint64_t now_ns);

/* COPY, put: one place of an item has been written (0 and its checksum) or not. */
void egm_put_copied(struct egm_op *op, struct egm_op_item *item, int status, uint64_t checksum);
/* COPY, get: the place (index within the item) has been read, or not. */
void egm_get_copied(struct egm_op *op, struct egm_op_item *item, unsigned place, int status);
/* COPY is over. Items of a get without a result had no place left to try. */
void egm_op_copy_done(struct egm_op *op);

/* END */
EGM_MUST_CHECK int egm_put_encode_end(struct egm_op *op, const struct egm_requester *r,
                                      struct egm_buf *buf, uint64_t request);
EGM_MUST_CHECK int egm_get_encode_end(struct egm_op *op, const struct egm_requester *r,
                                      struct egm_buf *buf);
/* As egm_op_take_answer. When it leaves step END or WAIT-for-END, the set is to be closed as
 * ended. */
EGM_MUST_CHECK int egm_put_take_end_answer(struct egm_op *op, const void *payload, size_t size,
                                           uint64_t now_ns);
/* END of a get was sent (or could not be: the lease then runs out). */
void egm_get_ended(struct egm_op *op, uint64_t now_ns);

/* The request of the step under way could not be made or its answer was not got. */
void egm_op_failed(struct egm_op *op, int code, uint64_t now_ns);
/* WAIT is over. */
void egm_op_resume(struct egm_op *op);
/* True while the window's writes, or its reading, must stay in the requester's list. */
bool egm_op_is_end_due(const struct egm_op *op);
/* Gives up: whatever has no result gets `code`; step DONE. */
void egm_op_abort(struct egm_op *op, int code);

/* ---- look-ups and removals ---- */

/* Appends one frame for keys[0..count). 0, EGM_E_BAD_KEY, or the buffer's failure. */
EGM_MUST_CHECK int egm_exist_encode(const struct egm_requester *r, struct egm_buf *buf,
                                    uint64_t request, uint8_t flags, const struct egm_key *keys,
                                    size_t count);
EGM_MUST_CHECK int egm_prefix_encode(const struct egm_requester *r, struct egm_buf *buf,
                                     uint64_t request, const struct egm_key *keys, size_t count);
EGM_MUST_CHECK int egm_query_encode(const struct egm_requester *r, struct egm_buf *buf,
                                    uint64_t request, const struct egm_key *keys, size_t count);
EGM_MUST_CHECK int egm_remove_encode(const struct egm_requester *r, struct egm_buf *buf,
                                     uint64_t request, uint8_t flags, const struct egm_key *keys,
                                     size_t count);
void egm_remove_all_encode(const struct egm_requester *r, struct egm_buf *buf, uint64_t request,
                           uint8_t flags);
void egm_remove_matching_encode(const struct egm_requester *r, struct egm_buf *buf,
                                uint64_t request, uint8_t flags, const char *pattern);

/* results are written only when the whole reply fits. 0, the head's status, or EGM_E_PROTO. */
EGM_MUST_CHECK int egm_exist_parse(const void *payload, size_t size, size_t count, int *results);
EGM_MUST_CHECK int egm_results_parse(const void *payload, size_t size, size_t count, int *results);
/* reason (may be NULL) receives the reply's text, NUL-terminated, also when the status is not 0. */
EGM_MUST_CHECK int egm_count_parse(const void *payload, size_t size, uint64_t max,
                                   uint64_t *ret_count, char *reason, size_t reason_size);

/* What a query tells of one key. */
struct egm_found {
    int status;
    uint64_t size;
    uint32_t replica_count;
    uint32_t mounts[EGM_MAX_REPLICAS];
    uint64_t offsets[EGM_MAX_REPLICAS]; /* of the first extent */
};
EGM_MUST_CHECK int egm_query_parse(const void *payload, size_t size, size_t count,
                                   struct egm_found *found);

#endif
