/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data port's connections: READ and WRITE of one requester, in order, blocking, on a thread of
 * its own.
 *
 * What the peer says about places is believed only as far as the core finds exactly the same in
 * its live table (P4); everything that an honest peer cannot send ends the connection. Bytes go
 * straight between socket and pool, in windows of 4 MiB at most and slices of 250 ms; between them
 * the core is asked whether the transfer may go on, so that a peer that stops moving cannot hold up
 * the acknowledgement of a drop, nor an orphaned writer the readers of what was sealed, for longer
 * than a slice. A transfer without any progress for 30 s ends the connection.
 *
 * A generation that the core has not heard of may be on its way from the master: the request waits
 * for RECORDS, up to a second.
 *
 * READ with generation 0 is the self-test: the segment's first 4 KiB.
 */
#include "base/alloc.h"
#include "base/checked.h"

#include "os/clock.h"
#include "os/fork.h"
#include "os/thread.h"
#include "os/wait.h"
#include "provider/shell.h"
#include "wire/status.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define WINDOW_BYTES (UINT64_C(4) << 20)
#define SLICE_NS (250 * EGM_NS_PER_MS)
#define STALL_NS (30 * EGM_NS_PER_S)
#define PARK_NS EGM_NS_PER_S
#define REST_NS (5 * EGM_NS_PER_S) /* for the rest of a frame whose header came */

/* Bytes of a refused WRITE that are read and thrown away to keep the connection; more ends it. */
#define DISCARD_MAX (UINT64_C(64) << 20)

/* READ and WRITE have the same fields. */
struct request {
    bool is_write;
    uint64_t id;
    struct egm_read head;
    struct egm_extent extents[EGM_MAX_EXTENTS];
};

static int take_request(const struct egm_frame *frame, const uint8_t *payload, struct request *ret)
{
    struct egm_cursor cursor = egm_cursor_of(payload, frame->length);

    *ret = (struct request){.is_write = frame->type == EGM_MSG_WRITE, .id = frame->request};
    egm_take_read(&cursor, &ret->head);
    if (!egm_cursor_expect(&cursor, ret->head.extent_count, sizeof(struct egm_extent),
                           EGM_MAX_EXTENTS)) {
        return EGM_E_PROTO;
    }
    for (uint8_t i = 0; i < ret->head.extent_count; i++) {
        egm_take_extent(&cursor, &ret->extents[i]);
    }
    return egm_cursor_end(&cursor);
}

static int receive_request(struct egm_data *c, struct request *ret)
{
    uint8_t header[EGM_FRAME_HEADER];
    uint8_t payload[EGM_MAX_SMALL_FRAME];
    struct egm_frame frame;

    /* No deadline for the next request: an idle pooled connection is what a requester wants. */
    int r = egm_net_recv(c->fd, header, sizeof(header), 0);
    if (r < 0) {
        return r;
    }
    r = egm_frame_parse(header, &frame);
    if (r < 0 || (frame.type != EGM_MSG_READ && frame.type != EGM_MSG_WRITE) ||
        frame.length > sizeof(payload)) {
        return EGM_E_PROTO;
    }
    r = egm_net_recv(c->fd, payload, frame.length, egm_clock_ns() + REST_NS);
    return r < 0 ? r : take_request(&frame, payload, ret);
}

/* 0 with the live entry taken, EGM_E_STALE, or EGM_E_PROTO. */
static int begin_access(struct egm_provider *p, const struct request *request, uint32_t *ret_live)
{
    struct egm_pcore_access access = {.is_write = request->is_write,
                                      .extent_count = request->head.extent_count,
                                      .segment = request->head.segment,
                                      .generation = request->head.generation,
                                      .skip = request->head.skip,
                                      .length = request->head.length,
                                      .extents = request->extents};
    uint64_t until_ns = egm_clock_ns() + PARK_NS;
    int r;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        r = egm_pcore_access_begin(p->core, &access, ret_live);
        if (r != EGM_E_NOT_READY || p->is_stopping ||
            egm_wait_cond(&p->changed, &p->lock, until_ns) < 0) {
            break;
        }
    }
    pthread_mutex_unlock(&p->lock);
    return r == EGM_E_NOT_READY ? EGM_E_STALE : r;
}

static bool must_stop(struct egm_provider *p, uint32_t live, bool is_write)
{
    pthread_mutex_lock(&p->lock);
    bool stop = p->is_stopping || egm_pcore_access_is_revoked(p->core, live, is_write);
    pthread_mutex_unlock(&p->lock);
    return stop;
}

static uint64_t bytes_of(const struct iovec *iov, size_t count)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < count; i++) {
        bytes += iov[i].iov_len;
    }
    return bytes;
}

/* Moves one window; may take several slices. */
static int move_window(struct egm_data *c, struct iovec *iov, size_t count, bool is_write,
                       uint32_t live)
{
    uint64_t left = bytes_of(iov, count);
    uint64_t progress_ns = egm_clock_ns();

    for (;;) {
        uint64_t until = egm_clock_ns() + SLICE_NS;
        int r = is_write ? egm_net_recvv(c->fd, iov, count, until)
                         : egm_net_sendv(c->fd, iov, count, until);
        if (r != EGM_E_TIMEOUT) {
            return r;
        }
        uint64_t still = bytes_of(iov, count);
        if (still < left) {
            left = still;
            progress_ns = egm_clock_ns();
        }
        if (egm_clock_ns() - progress_ns > STALL_NS || must_stop(c->provider, live, is_write)) {
            return EGM_E_TIMEOUT;
        }
    }
}

/* Pool bytes [skip, skip+length) of the object as pieces; checked by the core, so in range. */
static size_t pieces_of(const struct egm_provider *p, const struct request *request,
                        struct iovec *ret_iov)
{
    uint8_t *base = p->segments[request->head.segment].mem.base;
    uint64_t skip = request->head.skip;
    uint64_t left = request->head.length;
    size_t count = 0;

    for (uint8_t i = 0; i < request->head.extent_count && left > 0; i++) {
        const struct egm_extent *extent = &request->extents[i];
        if (skip >= extent->length) {
            skip -= extent->length;
            continue;
        }
        uint64_t n = egm_min_u64(extent->length - skip, left);
        ret_iov[count++] = (struct iovec){.iov_base = base + extent->offset + skip, .iov_len = n};
        skip = 0;
        left -= n;
    }
    return count;
}

static int move_all(struct egm_data *c, const struct request *request, uint32_t live)
{
    struct iovec all[EGM_MAX_EXTENTS];
    size_t count = pieces_of(c->provider, request, all);
    size_t at = 0;

    while (at < count) {
        struct iovec window[EGM_MAX_EXTENTS];
        size_t n = 0;
        uint64_t room = WINDOW_BYTES;
        while (at < count && room > 0) {
            uint64_t part = egm_min_u64(all[at].iov_len, room);
            window[n++] = (struct iovec){.iov_base = all[at].iov_base, .iov_len = part};
            all[at].iov_base = (char *)all[at].iov_base + part;
            all[at].iov_len -= part;
            room -= part;
            at += all[at].iov_len == 0;
        }
        int r = move_window(c, window, n, request->is_write, live);
        if (r == 0 && at < count && must_stop(c->provider, live, request->is_write)) {
            r = EGM_E_STALE;
        }
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

static int discard(struct egm_data *c, uint64_t size)
{
    uint8_t scratch[65536];

    if (size > DISCARD_MAX) {
        return EGM_E_LIMIT;
    }
    while (size > 0) {
        uint64_t n = egm_min_u64(size, sizeof(scratch));
        int r = egm_net_recv(c->fd, scratch, n, egm_clock_ns() + REST_NS);
        if (r < 0) {
            return r;
        }
        size -= n;
    }
    return 0;
}

static int send_frame(struct egm_data *c, const struct egm_buf *buf)
{
    return buf->failed ? buf->failed
                       : egm_net_send(c->fd, buf->data, buf->len, egm_clock_ns() + REST_NS);
}

static int send_read_reply(struct egm_data *c, uint64_t id, int status, uint64_t length)
{
    struct egm_buf buf;
    struct egm_read_reply reply = {.status = egm_status_to_wire(status), .length = length};

    egm_buf_init(&buf, EGM_MAX_SMALL_FRAME);
    size_t begin = egm_frame_begin(&buf, EGM_MSG_READ_REPLY, id);
    egm_put_read_reply(&buf, &reply);
    egm_frame_end(&buf, begin);
    int r = send_frame(c, &buf);
    egm_buf_release(&buf);
    return r;
}

static int send_write_reply(struct egm_data *c, uint64_t id, int status)
{
    struct egm_buf buf;
    struct egm_result reply = {.status = egm_status_to_wire(status)};

    egm_buf_init(&buf, EGM_MAX_SMALL_FRAME);
    size_t begin = egm_frame_begin(&buf, EGM_MSG_WRITE_REPLY, id);
    egm_put_result(&buf, &reply);
    egm_frame_end(&buf, begin);
    int r = send_frame(c, &buf);
    egm_buf_release(&buf);
    return r;
}

static int serve_nonce(struct egm_data *c, const struct request *request)
{
    const struct egm_provider *p = c->provider;

    if (request->is_write || request->head.segment >= p->segment_count || request->head.skip != 0 ||
        request->head.length != EGM_SLOT || request->head.extent_count != 0) {
        return EGM_E_PROTO;
    }
    int r = send_read_reply(c, request->id, 0, EGM_SLOT);
    return r < 0 ? r
                 : egm_net_send(c->fd, p->segments[request->head.segment].mem.base, EGM_SLOT,
                                egm_clock_ns() + REST_NS);
}

static void end_access(struct egm_provider *p, uint32_t live, bool was_write)
{
    pthread_mutex_lock(&p->lock);
    egm_pcore_access_end(p->core, live, was_write);
    bool has_output = egm_pcore_out(p->core)->len > 0;
    pthread_cond_broadcast(&p->changed); /* a reader may wait for the last writer */
    pthread_mutex_unlock(&p->lock);
    if (has_output) {
        egm_ignore(uv_async_send(&p->wake), "the handle lives as long as data threads do");
    }
}

static int serve(struct egm_data *c, const struct request *request)
{
    uint32_t live;

    if (request->head.generation == 0) {
        return serve_nonce(c, request);
    }
    int status = begin_access(c->provider, request, &live);
    if (status == EGM_E_PROTO) {
        return status;
    }
    if (status < 0) {
        if (!request->is_write) {
            return send_read_reply(c, request->id, status, 0);
        }
        int r = discard(c, request->head.length);
        return r < 0 ? r : send_write_reply(c, request->id, status);
    }
    int r = request->is_write ? 0 : send_read_reply(c, request->id, 0, request->head.length);
    if (r == 0) {
        r = move_all(c, request, live);
    }
    /* Before the answer: whoever has it may seal, and a seal must not meet this writer. */
    end_access(c->provider, live, request->is_write);
    return r < 0 || !request->is_write ? r : send_write_reply(c, request->id, 0);
}

/* False when the provider wants its connections to end. */
static bool set_busy(struct egm_data *c, bool is_busy)
{
    struct egm_provider *p = c->provider;

    pthread_mutex_lock(&p->lock);
    c->is_busy = is_busy;
    bool goes_on = !p->is_stopping && (is_busy || !p->is_detaching);
    pthread_mutex_unlock(&p->lock);
    return goes_on;
}

static void *run(void *arg)
{
    struct egm_data *c = arg;
    struct egm_provider *p = c->provider;
    struct request request;
    int r = 0;

    while (r == 0 && set_busy(c, false)) {
        r = receive_request(c, &request);
        if (r == 0 && set_busy(c, true)) {
            r = serve(c, &request);
        }
    }
    if (r < 0 && r != EGM_E_PEER_GONE) {
        egm_log_gated(&p->peer_gate, EGM_LOG_WARN,
                      "data connection dropped session=%016llx err=\"%s\"",
                      (unsigned long long)c->session, egm_strerror(r));
    }
    pthread_mutex_lock(&p->lock);
    egm_pcore_slot_free(p->core, c->slot);
    c->is_done = true;
    pthread_mutex_unlock(&p->lock);
    egm_ignore(uv_async_send(&p->wake), "the handle lives as long as data threads do");
    return NULL;
}

/* A peer whose host died says nothing more: the kernel finds out within about half a minute. */
static void keep_alive(int fd)
{
    int on = 1, idle_s = 10, interval_s = 5, count = 3, timeout_ms = 30000;

    egm_ignore(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)), "best effort");
    egm_ignore(setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s)), "best effort");
    egm_ignore(setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s)),
               "best effort");
    egm_ignore(setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count)), "best effort");
    egm_ignore(setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms)),
               "best effort");
}

int egm_data_start(struct egm_provider *p, int fd, uint32_t slot, uint64_t session)
{
    struct egm_data *c = egm_calloc(1, sizeof(*c));

    if (!c) {
        return -ENOMEM;
    }
    *c = (struct egm_data){.provider = p, .fd = fd, .slot = slot, .session = session};
    keep_alive(fd);
    pthread_mutex_lock(&p->lock);
    int r = p->connection_count < EGM_MAX_DATA_CONNECTIONS
                ? egm_thread_start(&c->thread, "egm-data", run, c)
                : EGM_E_LIMIT;
    if (r == 0) {
        egm_list_push_back(&p->connections, &c->link);
        p->connection_count++;
    }
    pthread_mutex_unlock(&p->lock);
    if (r < 0) {
        egm_free(c);
    }
    return r;
}

void egm_data_reap(struct egm_provider *p, bool all)
{
    struct egm_link done;

    egm_list_init(&done);
    pthread_mutex_lock(&p->lock);
    EGM_LIST_FOR_EACH_SAFE (link, next, &p->connections) {
        struct egm_data *c = egm_container_of(link, struct egm_data, link);
        if (all) {
            egm_ignore(shutdown(c->fd, SHUT_RDWR), "it may be broken already");
        }
        if (all || c->is_done) {
            egm_list_remove(link);
            egm_list_push_back(&done, link);
            p->connection_count--;
        }
    }
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    for (struct egm_link *link = egm_list_pop_front(&done); link;
         link = egm_list_pop_front(&done)) {
        struct egm_data *c = egm_container_of(link, struct egm_data, link);
        pthread_join(c->thread, NULL);
        egm_fork_close(c->fd);
        egm_free(c);
    }
}

void egm_data_detach(struct egm_provider *p)
{
    pthread_mutex_lock(&p->lock);
    EGM_LIST_FOR_EACH (link, &p->connections) {
        struct egm_data *c = egm_container_of(link, struct egm_data, link);
        if (!c->is_busy) {
            egm_ignore(shutdown(c->fd, SHUT_RD), "it may be broken already");
        }
    }
    pthread_mutex_unlock(&p->lock);
}
