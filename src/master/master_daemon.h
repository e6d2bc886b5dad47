/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master's shell: gives the pure core (core/master.h) sockets, a clock, timers and an admin
 * HTTP port.
 *
 * Life: create binds everything, so that a taken port is an error there and nothing was announced;
 * then either run (on the caller's thread, until asked to stop) or start (on a thread of its own)
 * and stop; then destroy.
 *
 * Listeners: a TCP address, and on this host the Unix socket <runtime folder>/master-<port>.sock,
 * which requesters prefer. Both speak the same protocol. The admin port serves GET only; nothing
 * there changes state.
 */
#ifndef EGM_MASTER_MASTER_DAEMON_H
#define EGM_MASTER_MASTER_DAEMON_H

#include "base/detail.h"

#include "core/master.h"

#include <stdbool.h>
#include <stdint.h>

struct egm_master_daemon;

struct egm_master_daemon_options {
    const char *rpc_address;  /* "host:port"; port 0 takes a free one */
    const char *http_address; /* the same for the admin port; NULL: none */
    bool is_unix_off;         /* no Unix socket */
    bool takes_signals; /* SIGTERM and SIGINT end run(); a second one ends the process at once */
    uint32_t max_connections;       /* 0: as many as the limit of open files allows */
    uint32_t report_ms;             /* a log line of totals every so often; 0: never */
    struct egm_master_options core; /* instance 0: drawn at random */
};

/* Texts of `options` are borrowed until return. Errors: -EADDRINUSE and the like with the address
 * in the text; -ENOMEM; EGM_E_INVALID for an address or cluster id. */
EGM_MUST_CHECK int egm_master_daemon_create(const struct egm_master_daemon_options *options,
                                            struct egm_master_daemon **ret_daemon,
                                            struct egm_detail *reterr);

/* Serves until egm_master_daemon_stop or, with takes_signals, a signal; hands the providers' leases
 * back at the end. Once per daemon. 0 or a negative code. @blocking */
EGM_MUST_CHECK int egm_master_daemon_run(struct egm_master_daemon *daemon,
                                         struct egm_detail *reterr);

/* run() on a thread of its own. 0 or -errno. */
EGM_MUST_CHECK int egm_master_daemon_start(struct egm_master_daemon *daemon);

/* Asks run() to end; with start(), also waits for it. Idempotent. @threadsafe with run(), not with
 * itself. */
void egm_master_daemon_stop(struct egm_master_daemon *daemon);

/* Closes and frees. Pre: run() has returned or was never called. NULL is allowed. */
void egm_master_daemon_destroy(struct egm_master_daemon *daemon);

/* What was bound: "127.0.0.1:50051", "unix:/run/…" and "" where there is none. Borrowed from the
 * daemon. */
const char *egm_master_daemon_rpc_address(const struct egm_master_daemon *daemon);
const char *egm_master_daemon_unix_address(const struct egm_master_daemon *daemon);
const char *egm_master_daemon_http_address(const struct egm_master_daemon *daemon);

#endif
