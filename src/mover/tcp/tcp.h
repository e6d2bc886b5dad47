/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp mover: bytes go through the provider's data port, for providers that no better mover
 * reaches.
 *
 * An import keeps up to EGM_TCP_CONNECTIONS long-lived connections (B53), each greeted and attached
 * once. A transfer call takes one, or waits for one inside its deadline, and streams its batch over
 * it:
 *
 *   the batch -> chunks of at most 1 MiB, in order -> at most EGM_TCP_DEPTH requests unanswered ->
 *   answers in order
 *
 * Chunks carry the guard: a writer that must stop sends no further chunk, and the stream stays in
 * step, because whatever was begun is finished. Data is received into, and sent from, the caller's
 * pieces; its checksum is computed in steps that fit the cache.
 *
 * T1: transfer() returns only when its connection is idle (every request answered) or closed. So
 *     nothing arrives in the caller's buffers later (I7, B25), and no answer of one call can be
 *     read by another.
 * T2: a connection that was idle may have been closed by the peer meanwhile. If it fails before it
 *     has answered anything, the batch is run once more over a new one, quietly (B52). Both
 *     directions are idempotent.
 * T3: a provider ends a connection in the middle of an answer when it takes back the memory that it
 *     is sending: it has no other way to say so. So what a connection that broke midway left open
 * is asked once more over another one, where a living provider refuses what is gone.
 *
 * Who is to blame for a failure decides whether the provider becomes suspect. EGM_E_PEER_GONE
 * blames it: the connection was lost, it broke the protocol, or not one byte moved for
 * egm_tcp_patience_ns. Time that runs out while bytes move (EGM_E_TIMEOUT) and a refusal
 * (EGM_E_STALE) do not.
 *
 * An import is lost when no connection is left open: its provider then counts us as gone.
 * Threading: all calls but detach from any threads; the pool is under `lock`, a taken connection
 * belongs to its taker. */
#ifndef EGM_MOVER_TCP_TCP_H
#define EGM_MOVER_TCP_TCP_H

#include "base/buf.h"
#include "base/list.h"

#include "mover/mover.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EGM_TCP_CONNECTIONS 4u
#define EGM_TCP_DEPTH 32u

/* Unanswered bytes: more does not fill a link better, but makes a stop take longer. */
#define EGM_TCP_IN_FLIGHT (UINT64_C(8) << 20)

/* Bytes between two checksum updates: they are still in the second-level cache then. */
#define EGM_TCP_STEP (UINT64_C(256) << 10)

/* A transfer that has no status yet. Positive, so that it can be no code. */
#define EGM_TCP_PENDING 1

struct egm_tcp_connection {
    struct egm_link link; /* idle */
    struct egm_link all;
    int fd;
    bool has_answered; /* since it was taken */
    uint64_t next_request;
    struct egm_buf buf;
};

struct egm_tcp_import {
    struct egm_import base;
    uint64_t session, process;
    char *cluster;
    char *address;
    pthread_mutex_t lock;
    pthread_cond_t is_free; /* a connection came back, or one may be opened; CLOCK_MONOTONIC */
    struct egm_link idle;   /* under lock; last used first */
    struct egm_link all;    /* under lock; every open connection */
    bool is_interrupted;    /* under lock */
    unsigned open_count;    /* under lock: idle, taken, or being opened */
};

/* For a client that closes: transfers that run end with EGM_E_PEER_GONE at once, and none begins
 * any more. Pre: a tcp import. @threadsafe */
void egm_tcp_interrupt(struct egm_import *import);

/* How long a provider may let us wait for the next byte: half of what is left, so that there is
 * time for another one, within [250 ms, 5 s]. */
uint64_t egm_tcp_patience_ns(uint64_t deadline_ns);

/* Runs the pending transfers of a batch that all go the same way, and sets their status. 0, or the
 * connection's failure (EGM_E_TRANSFER: our patience has ended): then it must be closed, and some
 * transfers may still be pending. */
EGM_MUST_CHECK int egm_tcp_run(struct egm_tcp_connection *connection,
                               struct egm_transfer *transfers, size_t count, uint64_t deadline_ns);

#endif
