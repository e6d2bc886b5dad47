/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accepting, with its bounds.
 *
 * max_connections in all, chosen at start below the limit of open files: beyond it a caller is
 * accepted and closed, so that it learns at once and the queue does not fill. When files run out
 * all the same, one that is kept in reserve is given up for the moment that this takes. FRESH_MAX
 * without HELLO: beyond it the oldest of them gives way to the newest, so that silent strangers
 * cannot keep others out. Each of these says so in the log, once a second at most.
 */
#include "base/alloc.h"
#include "base/assert.h"

#include "master/shell.h"
#include "os/net.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define FRESH_MAX 2048u
/* Accepts of one listener in one turn: about 10 us each. */
#define ACCEPTS_A_TURN 8

/* Out of files: one is given up so that the caller in the queue is turned away instead of waiting
 * for ever. */
static bool turn_away(struct egm_master_daemon *d, int listen_fd)
{
    int fd;

    if (d->spare_fd < 0) {
        return false;
    }
    close(d->spare_fd);
    bool was_one = egm_net_accept(listen_fd, &fd) == 0;
    if (was_one) {
        close(fd);
    }
    d->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return was_one;
}

static void refuse(struct egm_master_daemon *d, const char *why)
{
    d->refused_count++;
    egm_log_gated(&d->refused_gate, EGM_LOG_ERROR,
                  "connection refused reason=\"%s\" connections=%u limit=%u", why,
                  d->connection_count, d->max_connections);
}

bool egm_listener_accept(struct egm_master_daemon *d, struct egm_listener *listener)
{
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        int fd;
        int r = egm_net_accept(listener->fd, &fd);
        if (r == -EMFILE || r == -ENFILE) {
            refuse(d, "too many open files, raise its limit (ulimit -n)");
            return turn_away(d, listener->fd);
        }
        if (r < 0) {
            if (r != -EAGAIN) {
                egm_log_gated(&d->accept_gate, EGM_LOG_WARN, "accept failed err=\"%s\", continuing",
                              strerror(-r));
            }
            return false;
        }
        d->accepted_count++;
        if (d->connection_count >= d->max_connections) {
            refuse(d, "too many connections");
            close(fd);
            continue;
        }
        r = egm_connection_add(d, fd);
        if (r < 0) {
            refuse(d, "out of memory");
            close(fd);
        } else if (d->fresh_count > FRESH_MAX) {
            egm_connection_drop_oldest(d);
        }
    }
    return true;
}

static void on_listener(uv_poll_t *poll, int status, int events)
{
    struct egm_listener *listener = poll->data;

    (void)status;
    (void)events;
    listener->is_ready = true;
}

void egm_listener_open(struct egm_master_daemon *d, struct egm_listener *listener)
{
    listener->daemon = d;
    if (listener->fd < 0) {
        return;
    }
    int r = uv_poll_init(&d->loop, &listener->poll, listener->fd);
    if (r == 0) {
        listener->poll.data = listener;
        listener->is_open = true;
        r = uv_poll_start(&listener->poll, UV_READABLE, on_listener);
    }
    if (r < 0) {
        egm_error("cannot poll a listener err=\"%s\"", uv_strerror(r));
    }
}
