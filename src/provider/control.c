/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control connection to the master.
 *
 *   idle --retry time--> connecting (on a worker: connect, HELLO) --ok--> open
 *    ^                        | failed                                      | error, silence
 *    +------------------------+---------------------------------------------+
 *
 * Kept up for ever, with a backoff of 50 ms to 1 s. The blocking part runs on a worker of libuv, so
 * that a master that does not answer, or a slow resolver, never stops the loop. A master of this
 * host is tried at its Unix socket first. The master renews our lease each second; a connection on
 * which nothing came for 10 s is given up.
 *
 * Input is collected until a frame is whole; frames go to the core under the lock. Output is what
 * the core leaves in its buffer: it is sent from there, and cleared when all of it is gone. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/limits.h"

#include "mover/tcp/frame_io.h"
#include "os/clock.h"
#include "os/fork.h"
#include "os/host.h"
#include "provider/shell.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKOFF_MIN_NS (50 * EGM_NS_PER_MS)
#define BACKOFF_MAX_NS EGM_NS_PER_S
#define CONNECT_NS EGM_NS_PER_S
#define HELLO_NS (3 * EGM_NS_PER_S)
#define SILENCE_NS (10 * EGM_NS_PER_S)
#define READ_BYTES 65536u
#define READS_PER_TURN 16

void egm_control_init(struct egm_provider *p)
{
    struct egm_control *c = &p->control;

    c->fd = -1;
    c->backoff_ns = BACKOFF_MIN_NS;
    c->connecting_fd = -1;
    egm_buf_init(&c->in, EGM_FRAME_HEADER + EGM_MAX_FRAME);
}

/* ---- connecting; on a worker ---- */

/* The Unix socket of a master of this host that listens on this port. */
static bool local_path(const struct egm_provider *p, char *ret_path, size_t size)
{
    struct egm_address address;

    if (egm_parse_address(p->master, &address) < 0 || !address.has_port ||
        !egm_host_is_local(address.host)) {
        return false;
    }
    int n = snprintf(ret_path, size, "unix:%s/master-%u.sock", p->runtime_dir, address.port);
    return n > 0 && (size_t)n < size && access(ret_path + strlen("unix:"), F_OK) == 0;
}

static int connect_master(struct egm_provider *p, int *ret_fd, struct egm_detail *reterr)
{
    char path[160];

    if (local_path(p, path, sizeof(path)) &&
        egm_net_connect(path, egm_clock_ns() + CONNECT_NS, ret_fd, NULL) == 0) {
        return 0;
    }
    return egm_net_connect(p->master, egm_clock_ns() + CONNECT_NS, ret_fd, reterr);
}

/* What egm_control_stop may shut down; under the lock, so that the number is never a stranger's. */
static void set_connecting(struct egm_provider *p, int fd)
{
    pthread_mutex_lock(&p->lock);
    p->control.connecting_fd = fd;
    pthread_mutex_unlock(&p->lock);
}

static void connect_work(uv_work_t *work)
{
    struct egm_provider *p = work->data;
    struct egm_control *c = &p->control;
    struct egm_greeting greeting = {
        .role = EGM_ROLE_PROVIDER, .process = p->process, .cluster = p->cluster};
    struct egm_hello_reply reply;
    int fd;

    c->result = connect_master(p, &fd, &c->detail);
    if (c->result < 0) {
        return;
    }
    egm_fork_enter(fd);
    set_connecting(p, fd);
    c->result = egm_hello_exchange(fd, &greeting, egm_clock_ns() + HELLO_NS, &reply, &c->detail);
    set_connecting(p, -1);
    if (c->result < 0) {
        egm_fork_close(fd);
        return;
    }
    c->result_fd = fd;
    c->result_instance = reply.instance;
}

/* ---- the connection ---- */

static void on_closed(uv_handle_t *handle)
{
    struct egm_provider *p = handle->data;

    p->control.is_closing = false;
}

static void disconnect(struct egm_provider *p, const char *why)
{
    struct egm_control *c = &p->control;

    if (!c->has_handle) {
        return;
    }
    c->has_handle = false;
    c->is_closing = true;
    uv_close((uv_handle_t *)&c->poll, on_closed);
    egm_fork_close(c->fd);
    c->fd = -1;
    egm_buf_clear(&c->in);
    c->sent = 0;
    c->retry_ns = egm_clock_ns() + c->backoff_ns;
    pthread_mutex_lock(&p->lock);
    egm_pcore_disconnected(p->core);
    p->is_connected = false;
    bool is_wanted = !p->is_stopping && !egm_pcore_status(p->core).is_unmounted;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    if (is_wanted) {
        egm_log_gated(&c->gate, EGM_LOG_WARN,
                      "master connection lost master=%s reason=\"%s\", "
                      "reconnecting",
                      p->master, why);
    }
}

/* Sends what the core has left; 0, or a code that ends the connection. Lock held. */
static int send_out(struct egm_provider *p)
{
    struct egm_control *c = &p->control;
    struct egm_buf *out = egm_pcore_out(p->core);

    if (out->failed) {
        return out->failed;
    }
    while (c->sent < out->len) {
        ssize_t n = send(c->fd, out->data + c->sent, out->len - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return errno == EAGAIN ? 0 : -errno;
        }
        c->sent += (size_t)n;
    }
    egm_buf_clear(out);
    c->sent = 0;
    return 0;
}

static void on_poll(uv_poll_t *poll, int status, int events);

void egm_control_flush(struct egm_provider *p)
{
    struct egm_control *c = &p->control;

    if (!c->has_handle) {
        return;
    }
    pthread_mutex_lock(&p->lock);
    int r = send_out(p);
    bool has_more = egm_pcore_out(p->core)->len > 0;
    pthread_mutex_unlock(&p->lock);
    if (r < 0) {
        disconnect(p, egm_strerror(r));
        return;
    }
    EGM_ASSERT(uv_poll_start(&c->poll, UV_READABLE | (has_more ? UV_WRITABLE : 0), on_poll) == 0);
}

/* ---- verify; on a worker ---- */

struct verify_job {
    uv_work_t work;
    struct egm_provider *provider;
    struct egm_pcore_verify verify;
    bool matches;
};

static void verify_work(uv_work_t *work)
{
    struct verify_job *job = work->data;

    job->matches = egm_shell_verify(job->provider, &job->verify);
}

static void verify_done(uv_work_t *work, int status)
{
    struct verify_job *job = work->data;
    struct egm_provider *p = job->provider;

    (void)status;
    p->verify_count--;
    pthread_mutex_lock(&p->lock);
    egm_pcore_verified(p->core, &job->verify, job->matches);
    pthread_mutex_unlock(&p->lock);
    egm_free(job);
    egm_shell_settle(p);
}

/* Lock held. */
static void start_verify(struct egm_provider *p, const struct egm_pcore_verify *verify)
{
    struct verify_job *job = egm_calloc(1, sizeof(*job));

    if (job) {
        *job = (struct verify_job){.provider = p, .verify = *verify};
        job->work.data = job;
    }
    if (!job || uv_queue_work(&p->loop, &job->work, verify_work, verify_done) < 0) {
        /* Not computed: answered as a match, because that changes nothing anywhere. */
        egm_free(job);
        egm_pcore_verified(p->core, verify, /*matches=*/true);
        return;
    }
    p->verify_count++;
}

/* ---- input ---- */

/* Hands whole frames to the core. 0, or a code that ends the connection. */
static int take_frames(struct egm_provider *p)
{
    struct egm_buf *in = &p->control.in;
    size_t at = 0;
    int r = 0;

    pthread_mutex_lock(&p->lock);
    while (r >= 0 && in->len - at >= EGM_FRAME_HEADER) {
        struct egm_frame frame;
        struct egm_pcore_verify verify;
        r = egm_frame_parse(in->data + at, &frame);
        if (r < 0 || in->len - at - EGM_FRAME_HEADER < frame.length) {
            break;
        }
        r = egm_pcore_receive(p->core, egm_clock_ns(), &frame, in->data + at + EGM_FRAME_HEADER,
                              &verify);
        if (r == EGM_PCORE_VERIFY) {
            start_verify(p, &verify);
        }
        if (r < 0) {
            egm_log_gated(&p->control.gate, EGM_LOG_WARN,
                          "master sent a bad frame type=%s err=\"%s\"",
                          egm_message_name(frame.type), egm_strerror(r));
        }
        at += EGM_FRAME_HEADER + frame.length;
    }
    pthread_mutex_unlock(&p->lock);
    if (at > 0) {
        memmove(in->data, in->data + at, in->len - at);
        in->len -= at;
    }
    return r < 0 ? r : 0;
}

/* Reads what is there, up to a bound per turn. */
static int read_some(struct egm_provider *p)
{
    struct egm_control *c = &p->control;

    for (int i = 0; i < READS_PER_TURN; i++) {
        size_t before = c->in.len;
        uint8_t *at = egm_buf_extend(&c->in, egm_min_u64(READ_BYTES, c->in.max - before));
        if (!at) {
            return c->in.failed;
        }
        size_t room = c->in.len - before;
        ssize_t n = recv(c->fd, at, room, MSG_DONTWAIT);
        c->in.len = before + (n > 0 ? (size_t)n : 0);
        if (n == 0) {
            return EGM_E_PEER_GONE;
        }
        if (n < 0) {
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        }
        c->heard_ns = egm_clock_ns();
        c->backoff_ns = BACKOFF_MIN_NS;
        int r = take_frames(p);
        if (r < 0) {
            return r;
        }
        if ((size_t)n < room) {
            return 0;
        }
    }
    return 0;
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct egm_provider *p = poll->data;
    int r = 0;

    if (status < 0 || (events & UV_READABLE)) {
        r = read_some(p);
    }
    if (r < 0) {
        disconnect(p, egm_strerror(r));
    }
    egm_shell_settle(p);
}

/* ---- life ---- */

static void install(struct egm_provider *p)
{
    struct egm_control *c = &p->control;

    int r = uv_poll_init(&p->loop, &c->poll, c->result_fd);
    if (r < 0) {
        egm_fork_close(c->result_fd);
        egm_warn("cannot watch the master's connection err=\"%s\", retrying", uv_strerror(r));
        return;
    }
    c->poll.data = p;
    c->fd = c->result_fd;
    c->has_handle = true;
    c->heard_ns = egm_clock_ns();
    pthread_mutex_lock(&p->lock);
    egm_pcore_connected(p->core, c->result_instance);
    p->is_connected = true;
    p->last_error = (struct egm_detail){0};
    pthread_mutex_unlock(&p->lock);
    egm_shell_settle(p);
}

static void connect_done(uv_work_t *work, int status)
{
    struct egm_provider *p = work->data;
    struct egm_control *c = &p->control;

    (void)status;
    c->is_connecting = false;
    pthread_mutex_lock(&p->lock);
    bool is_stopping = p->is_stopping;
    if (c->result < 0) {
        p->last_error = c->detail;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    if (c->result == 0 && !is_stopping) {
        install(p);
        return;
    }
    if (c->result == 0) {
        egm_fork_close(c->result_fd);
        return;
    }
    c->retry_ns = egm_clock_ns() + c->backoff_ns;
    c->backoff_ns = egm_min_u64(c->backoff_ns * 2, BACKOFF_MAX_NS);
    if (!is_stopping) {
        egm_log_gated(&c->gate, EGM_LOG_DEBUG, "no master yet: %s", c->detail.text);
    }
}

void egm_control_tick(struct egm_provider *p, uint64_t now_ns)
{
    struct egm_control *c = &p->control;

    if (c->has_handle && now_ns - c->heard_ns > SILENCE_NS) {
        disconnect(p, "the master is silent");
    }
    pthread_mutex_lock(&p->lock);
    bool is_wanted = !p->is_stopping && !egm_pcore_status(p->core).is_unmounted;
    pthread_mutex_unlock(&p->lock);
    if (!is_wanted || c->has_handle || c->is_closing || c->is_connecting || now_ns < c->retry_ns) {
        return;
    }
    c->work.data = p;
    c->detail = (struct egm_detail){0};
    c->is_connecting = uv_queue_work(&p->loop, &c->work, connect_work, connect_done) == 0;
}

bool egm_control_stop(struct egm_provider *p)
{
    struct egm_control *c = &p->control;

    pthread_mutex_lock(&p->lock);
    if (c->connecting_fd >= 0) {
        egm_ignore(shutdown(c->connecting_fd, SHUT_RDWR), "only hurries the worker");
    }
    pthread_mutex_unlock(&p->lock);
    disconnect(p, "closing");
    return !c->is_connecting && !c->is_closing && p->verify_count == 0;
}
