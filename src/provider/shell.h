/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the provider library: core/provider.h decides, this carries out.
 *
 *   caller's threads        loop thread (libuv)                 data threads
 *                                                               (one per attached connection)
 *   open/drain/close  --->  control connection to the master    requests of one requester,
 *   (wait on `changed`)     listeners, handshakes,              blocking, straight into and out
 *                           map importers, timers,              of pool memory
 *                           slot locks of the dead
 *
 * One mutex, `lock`, covers the core, `state`, and the lists that more than one thread sees; each
 * field says so. It is held for short steps only, never across blocking I/O; the loop's own fields
 * need none. `changed` is broadcast whenever anything under the lock may have changed for a
 * waiter. Data threads that leave frames in the core's out-buffer wake the loop through `wake`.
 * Every thread blocks all signals.
 *
 * A child after fork has the struct but no threads and no fds (os/fork.h closes them there); `pid`
 * tells. */
#ifndef EGM_PROVIDER_SHELL_H
#define EGM_PROVIDER_SHELL_H

#include "base/detail.h"
#include "base/list.h"
#include "base/log.h"
#include "base/parse.h"

#include "core/provider.h"
#include "egmstore/provider.h"
#include "mem/mem.h"
#include "mem/planner.h"
#include "os/net.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

/* A peer that has not finished HELLO and ATTACH by then is dropped. */
#define EGM_HANDSHAKE_NS (UINT64_C(5) * 1000000000)

/* Handshakes under way. Above it the oldest goes once it has had EGM_HANDSHAKE_MIN_NS; until then
 * nothing is accepted. So a flood of silent peers costs fds up to here and delays an honest one by
 * its share of the flood times 100 ms / 128. */
#define EGM_MAX_HANDSHAKES 128
#define EGM_HANDSHAKE_MIN_NS (UINT64_C(100) * 1000000)

/* Accepted in one turn of the loop, so that those that have come get their turn too. */
#define EGM_ACCEPTS_PER_TURN 16

/* Data connections, each with a thread: 16 requesters with the 16 connections of one. */
#define EGM_MAX_DATA_CONNECTIONS 256

/* HELLO with the longest cluster name, and any frame of the data port. */
#define EGM_MAX_SMALL_FRAME 1024

/* Segments are numbered from 0. One per NUMA node of a host that has several; the reply to ATTACH
 * with all of them is still a small frame. */
#define EGM_POOL_SEGMENTS 8u

#define EGM_LOCK_BYTE (UINT64_C(1) << 40) /* + slot */

enum egm_peer_state {
    EGM_PEER_HELLO = 0,    /* nothing but bytes so far */
    EGM_PEER_ATTACH = 1,   /* greeted */
    EGM_PEER_WAITING = 2,  /* has a slot that the master is being told of */
    EGM_PEER_IMPORTER = 3, /* map: has the fds */
    EGM_PEER_DYING = 4,    /* map: connection gone, its slot's lock not yet free; no fd */
    EGM_PEER_CLOSING = 5,  /* no fd, no slot; the struct goes in its close callback */
};

/* One accepted connection, while the loop has it. */
struct egm_peer {
    struct egm_link link;
    struct egm_provider *provider;
    uv_poll_t poll;
    int fd; /* -1: handed on or closed */
    bool is_unix;
    enum egm_peer_state state;
    bool is_handle_closed; /* the poll handle is */
    bool is_detached;      /* DETACH was sent */
    uint64_t accepted_ns;
    uint64_t request; /* of ATTACH */
    uint64_t session;
    uint32_t slot;
    struct egm_net_peer who; /* Unix */
    size_t have, need;       /* bytes of the frame */
    uint8_t bytes[EGM_MAX_SMALL_FRAME];
};

/* One attached tcp connection and its thread. */
struct egm_data {
    struct egm_link link; /* provider->connections; lock */
    struct egm_provider *provider;
    pthread_t thread;
    int fd;
    uint32_t slot;
    uint64_t session;
    bool is_busy; /* lock: between a request's header and its answer's end */
    bool is_done; /* lock: the thread is about to return */
};

struct egm_listener {
    struct egm_provider *provider;
    uv_poll_t poll;
    int fd; /* -1: none */
    bool is_unix, is_open, is_paused;
};

struct egm_fence_file {
    int fd;
    size_t bytes;
    _Atomic uint64_t *words; /* NULL: not mapped */
    size_t slot_word;
};

struct egm_pool_segment {
    uint32_t numa_node;
    uint64_t size;
    struct egm_mem mem;
    struct egm_fence_file fence;
    uint64_t nonce;
};

struct egm_control {
    uv_poll_t poll;
    uv_work_t work;
    int fd;          /* -1: none */
    bool has_handle; /* poll is initialised and not closed */
    bool is_closing; /* poll's close callback is to come */
    bool is_connecting;
    size_t sent; /* bytes of the core's out-buffer that are gone */
    struct egm_buf in;
    uint64_t heard_ns, retry_ns, backoff_ns;
    struct egm_log_gate gate;
    /* written by the connecting worker, read when it is done */
    int result, result_fd;
    uint64_t result_instance;
    struct egm_detail detail;
    int connecting_fd; /* lock: to cut a HELLO short at close; -1: none */
};

struct egm_provider {
    pid_t pid;
    uint64_t id, epoch, process;
    char cluster[EGM_MAX_NAME + 1];
    char hostname[EGM_ADDRESS_TEXT];
    char data_address[EGM_ADDRESS_TEXT]; /* "": none */
    char unix_path[108];
    char runtime_dir[108];
    char master[512];
    int reserved_fd; /* keeps the name's port when there is no data port; -1 */
    uint64_t size;   /* of all segments */
    struct egm_pool_segment segments[EGM_POOL_SEGMENTS];
    uint32_t segment_count;

    pthread_mutex_t lock;
    pthread_cond_t changed;        /* CLOCK_MONOTONIC */
    struct egm_pcore *core;        /* lock */
    enum egm_provider_state state; /* lock */
    bool is_stopping;              /* lock; set once */
    bool is_detaching;             /* lock: importers are told to go */
    uint64_t drain_since_ns;       /* lock; 0: not draining */
    bool is_connected;             /* lock */
    struct egm_detail last_error;  /* lock: why there is no master */
    struct egm_link connections;   /* lock; struct egm_data */
    uint32_t connection_count;     /* lock */
    struct egm_link peers; /* lock for changes and for readers off the loop; struct egm_peer */

    pthread_t thread;
    bool is_running;
    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t tick;
    bool is_torn_down; /* loop: everything was told to close */
    uint32_t handshake_count;
    uint32_t verify_count;
    struct egm_listener unix_listener, tcp_listener;
    struct egm_control control;
    struct egm_log_gate peer_gate;
};

/* names.c: decides the name and the data port; fills hostname, data_address, reserved_fd and the
 * tcp listener's fd. */
EGM_MUST_CHECK int egm_shell_names(struct egm_provider *p,
                                   const struct egm_provider_options *options,
                                   struct egm_detail *reterr);

/* provider.c: egm_provider_open with the pool cut as the plan says. Tests give plans that this host
 * would not have. */
EGM_MUST_CHECK int egm_shell_open(const struct egm_provider_options *options,
                                  const struct egm_plan_segment *plan, uint32_t count,
                                  struct egm_provider **ret_provider, struct egm_detail *reterr);

/* pool.c */
/* The plan for this host; 0, or EGM_E_INVALID for a size that is not possible. ret_plan has room
 * for EGM_POOL_SEGMENTS. */
EGM_MUST_CHECK int egm_shell_plan(uint64_t size_bytes, struct egm_plan_segment *ret_plan,
                                  uint32_t *ret_count, struct egm_detail *reterr);
EGM_MUST_CHECK int egm_shell_pool_open(struct egm_provider *p,
                                       const struct egm_provider_options *options,
                                       const struct egm_plan_segment *plan, uint32_t count,
                                       struct egm_detail *reterr);
void egm_shell_pool_close(struct egm_provider *p);
/* Whether the object's bytes have that checksum. @blocking: reads size bytes */
bool egm_shell_verify(const struct egm_provider *p, const struct egm_pcore_verify *verify);

/* sweep.c */
void egm_shell_sweep(const struct egm_provider *p);

/* loop.c */
EGM_MUST_CHECK int egm_shell_loop_start(struct egm_provider *p, struct egm_detail *reterr);
/* Ends the loop and all data threads; returns when they are gone. */
void egm_shell_loop_stop(struct egm_provider *p);
/* What follows when the core may have changed: answers to waiting peers, state, waiters, bytes to
 * the master. Loop only. */
void egm_shell_settle(struct egm_provider *p);

/* control.c; loop only */
void egm_control_init(struct egm_provider *p);
void egm_control_tick(struct egm_provider *p, uint64_t now_ns);
void egm_control_flush(struct egm_provider *p);
/* Lets go of the connection; false while its handle or worker still needs the loop. */
bool egm_control_stop(struct egm_provider *p);

/* peers.c; loop only */
void egm_listener_start(struct egm_provider *p, struct egm_listener *listener);
void egm_listener_stop(struct egm_listener *listener);
void egm_peers_settle(struct egm_provider *p);
void egm_peers_tick(struct egm_provider *p, uint64_t now_ns);
void egm_peers_stop(struct egm_provider *p);
/* Sends DETACH to importers that have not had it. */
void egm_peers_detach(struct egm_provider *p);

/* data.c */
/* Starts the thread of a tcp connection that has its slot; takes fd and slot on success. Lock not
 * held. */
EGM_MUST_CHECK int egm_data_start(struct egm_provider *p, int fd, uint32_t slot, uint64_t session);
/* Joins threads that are done; with `all`, breaks every connection first and joins them all. Loop
 * only. */
void egm_data_reap(struct egm_provider *p, bool all);
/* Ends the connections that are between requests; the others end after theirs. */
void egm_data_detach(struct egm_provider *p);

#endif
