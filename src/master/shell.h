/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the master's shell share. master_daemon.c: life and the turn; listeners.c:
 * accepting; connections.c: frames; admin.c: the HTTP thread and its jobs; pages.c: their texts.
 *
 * Threads: the loop thread owns everything here but struct egm_admin's marked fields. The HTTP
 * thread only posts jobs. A third thread gets memory ready for the core's tables (os/pages.h).
 *
 * The turn. libuv's callbacks note what may be done and do nothing else; all work happens once per
 * iteration in the check phase, right after polling:
 *
 *   poll -> [ jobs, accept, serve connections, tick, core run, core flush, output, reap ] -> poll
 *
 * T1  A turn serves connections round robin until TURN_BUDGET_NS is spent; who was not served stays
 *     at the front. Nobody starves, and no peer makes a turn long with many small frames.
 * T2  The core goes on with parked requests once per turn, and not in a turn that serving has used
 *     up (then it comes first in the next one), so that two windows of 256 keys never share one.
 * T3  The core's clock ticks only behind input: after a gap of more than STALL_NS the turn polls
 *     once more, reads all that is there, and only then lets the core judge who was silent (B49).
 * T4  While there is work left the idle handle runs, which makes the next poll return at once.
 */
#ifndef EGM_MASTER_SHELL_H
#define EGM_MASTER_SHELL_H

#include "base/buf.h"
#include "base/list.h"
#include "base/log.h"
#include "base/parse.h"

#include "master/admin.h"
#include "master/master_daemon.h"
#include "master/turns.h"
#include "os/pages.h"

#include <pthread.h>
#include <stdbool.h>
#include <uv.h>

#define EGM_UNIX_ADDRESS_TEXT 128

/* One accepted connection. Life: made by accept, freed in the close callback of its handle. */
struct egm_connection {
    struct egm_master_daemon *daemon;
    uv_poll_t poll;
    struct egm_link ready; /* daemon->ready: may have input; daemon->dying once it is to go */
    struct egm_link dirty; /* daemon->dirty: has output to try */
    struct egm_link fresh; /* daemon->fresh: no HELLO yet, oldest first */
    int fd;
    uint32_t peer;      /* the core's number for it */
    int interest;       /* uv events that are polled */
    bool is_greeted;    /* a whole HELLO came */
    bool is_last_reply; /* close it once its output is gone */
    bool is_closing;
    bool is_paused; /* not read: it has too much unread output */

    uint8_t header[EGM_FRAME_HEADER];
    uint32_t header_have;
    struct egm_frame frame; /* valid once the header is whole */
    uint8_t *payload;       /* frame.length bytes, owned; NULL: none, or no header */
    uint32_t payload_have;
    uint8_t *held; /* input that a turn read but had no time for; owned */
    uint32_t held_at, held_size;

    struct egm_buf out;
    size_t out_sent;      /* bytes of `out` that are gone */
    uint64_t progress_ns; /* last time output or an unfinished frame moved on */
    uint64_t accepted_ns;
};

struct egm_listener {
    struct egm_master_daemon *daemon;
    uv_poll_t poll;
    int fd;        /* -1: none */
    bool is_open;  /* the handle is initialised and not closed */
    bool is_ready; /* somebody may be waiting */
};

struct egm_master_daemon {
    struct egm_master *core;
    struct egm_pages *pages; /* memory of the core's tables */
    struct egm_master_daemon_options options;
    char rpc_address[EGM_ADDRESS_TEXT];
    char unix_address[EGM_UNIX_ADDRESS_TEXT];
    char http_address[EGM_ADDRESS_TEXT];
    char cluster[EGM_MAX_NAME + 1];

    uv_loop_t loop;
    uv_check_t check;
    uv_idle_t idle;
    uv_timer_t timer;
    uv_async_t wake;
    uv_signal_t signals[2];
    bool has_loop;
    struct egm_listener listeners[2]; /* TCP, Unix */
    int spare_fd; /* given up to accept and close one connection when files run out */

    struct egm_connection **connections; /* by peer number; NULL: free */
    uint32_t *free_peers;                /* numbers to reuse, last first */
    uint32_t connection_room, free_count, connection_count, max_connections;
    uint32_t fresh_count, sweep_at;
    struct egm_link ready, dirty, fresh, dying;
    uint8_t *input; /* the turn's read buffer */

    uint64_t now_ns; /* of the last look at the clock in this turn */
    uint64_t last_tick_ns;
    uint64_t report_ns; /* when the next line of totals is due */
    bool is_stalled;    /* T3: a stall was noticed, the next turn reads everything first */
    bool is_run_first;  /* T2 */
    bool is_stopping;
    uint64_t stop_ns; /* when stopping began */

    struct egm_turns turns, cpu_turns; /* by the clock, and by what the thread had of a CPU */
    uint64_t accepted_count, refused_count, broken_count; /* connections */
    uint64_t regex_over_limit;
    struct egm_log_gate refused_gate, broken_gate, accept_gate;

    struct egm_admin *admin; /* NULL: no admin port */

    pthread_t thread; /* of start() */
    bool has_thread;
    _Atomic bool
        is_stop_wanted; /* release in stop, acquire on the loop: nothing else is published by it */
};

/* ---- listeners.c; loop thread ---- */
void egm_listener_open(struct egm_master_daemon *d, struct egm_listener *listener);
/* Accepts a bounded number of waiting connections. True: more may wait. */
bool egm_listener_accept(struct egm_master_daemon *d, struct egm_listener *listener);

/* ---- connections.c; loop thread ---- */
/* Takes fd on success. 0, -ENOMEM or what polling it fails with. */
EGM_MUST_CHECK int egm_connection_add(struct egm_master_daemon *d, int fd);
/* Closes the one that has been without HELLO for longest. Pre: fresh_count > 0. */
void egm_connection_drop_oldest(struct egm_master_daemon *d);
/* Serves ready connections until none is left or that time has come. */
void egm_connections_serve(struct egm_master_daemon *d, uint64_t until_ns);
/* Sends what is queued, as far as the kernel takes it. */
void egm_connections_flush(struct egm_master_daemon *d);
/* Ends at most `most` of those that were told to close. */
void egm_connections_reap(struct egm_master_daemon *d, uint32_t most);
/* Deadlines: no HELLO, unread output, unfinished frames. */
void egm_connections_tick(struct egm_master_daemon *d);
void egm_connections_close_all(struct egm_master_daemon *d);
bool egm_connections_have_output(const struct egm_master_daemon *d);
/* The core's io. */
void egm_connection_send(void *arg, uint32_t peer, const void *data, size_t size);
void egm_connection_close(void *arg, uint32_t peer, const char *reason);

/* ---- pages.c; loop thread ---- */
/* Carries out a job of the HTTP thread: writes job->out, status and content type. */
void egm_page_write(struct egm_master_daemon *d, struct egm_admin_job *job);
/* "keys=… used_bytes=…", for /metrics/summary and the log. */
void egm_page_summary(struct egm_master_daemon *d, struct egm_buf *out);

#endif
