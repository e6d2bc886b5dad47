/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master's connections: frames in, frames out, deadlines.
 *
 * Input. A connection is read with two pieces at a time: the rest of the frame that is under way
 * goes straight into its payload (which the core takes, uncopied), what follows goes into one
 * buffer of the daemon, and from there into frames. What a turn has read and has no time for is
 * kept in `held` and comes first the next time. The first bytes are compared with the magic as they
 * come, and before HELLO only a HELLO of at most MAX_HELLO bytes is waited for, so that a stranger
 * costs a few hundred bytes for at most HELLO_NS (B55).
 *
 * Output is gathered over a turn and sent at its end; a large reply is tried at once, so that it
 * need not be copied. What the kernel does not take waits for POLLOUT. A peer with PAUSE_BYTES of
 * unread output is not read from; one that lets its output lie for OUTPUT_NS, or makes it exceed
 * OUT_MAX, is closed.
 *
 * Closing has two steps, because the core may ask for it in the middle of an event: the connection
 * leaves all lists for `dying` at once, and at the turn's end the core is told and the handle is
 * closed. Its struct lives until the handle's close callback; its peer number is free before that,
 * the core knows nothing of it any more.
 *
 * Accepting, and the bounds on how many there are: listeners.c.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"

#include "master/shell.h"
#include "os/clock.h"
#include "os/net.h"
#include "wire/messages.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define HELLO_NS (5 * EGM_NS_PER_S)
#define MAX_HELLO 4096u
#define INPUT_SIZE 16384u
/* Bytes of a large payload taken at a time: some 40 us. */
#define PAYLOAD_STEP (256u << 10)
/* One reply of the largest kind above what pauses reading. */
#define PAUSE_BYTES (16u << 20)
#define RESUME_BYTES (1u << 20)
#define OUT_MAX (PAUSE_BYTES + 2 * (EGM_MAX_FRAME + EGM_FRAME_HEADER))
/* From here on a reply is worth a send of its own. */
#define DIRECT_SEND (32u << 10)
#define SEND_STEP (1u << 20)
/* Output buffers above this are given back once they are empty. */
#define KEEP_OUT (256u << 10)
#define OUTPUT_NS (10 * EGM_NS_PER_S)
#define FRAME_NS (30 * EGM_NS_PER_S)
/* Each costs some microseconds; 5,000 of them go in two seconds. */
#define CLOSES_A_TICK 32
/* Parts of the table that one tick looks at: all of it in a second. */
#define SWEEP_PARTS 50
#define SWEEP_LEAST 64u

/* ---- closing ---- */

static void begin_close(struct egm_connection *c)
{
    struct egm_master_daemon *d = c->daemon;

    if (c->is_closing) {
        return;
    }
    c->is_closing = true;
    egm_list_remove(&c->ready);
    egm_list_remove(&c->dirty);
    if (egm_link_is_listed(&c->fresh)) {
        egm_list_remove(&c->fresh);
        d->fresh_count--;
    }
    egm_list_push_back(&d->dying, &c->ready);
}

/* The peer's doing: worth a line, at most one a second. */
static void close_broken(struct egm_connection *c, const char *reason)
{
    if (c->is_closing) {
        return;
    }
    c->daemon->broken_count++;
    egm_log_gated(&c->daemon->broken_gate, EGM_LOG_WARN, "connection closed peer=%u reason=\"%s\"",
                  c->peer, reason);
    begin_close(c);
}

void egm_connection_close(void *arg, uint32_t peer, const char *reason)
{
    struct egm_master_daemon *d = arg;

    close_broken(d->connections[peer], reason);
}

static void on_closed(uv_handle_t *handle)
{
    egm_free(handle->data);
}

static void end_connection(struct egm_connection *c)
{
    struct egm_master_daemon *d = c->daemon;
    size_t left = c->out.len - c->out_sent;

    if (left > 0) {
        /* a last word, for example why it is closed; whether it arrives does not matter */
        ssize_t n = send(c->fd, c->out.data + c->out_sent, left, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)n;
    }
    egm_master_disconnected(d->core, d->now_ns, c->peer);
    d->connections[c->peer] = NULL;
    d->free_peers[d->free_count++] = c->peer;
    d->connection_count--;
    egm_list_remove(&c->ready);
    egm_free(c->payload);
    egm_free(c->held);
    egm_buf_release(&c->out);
    uv_poll_stop(&c->poll);
    close(c->fd);
    c->fd = -1;
    uv_close((uv_handle_t *)&c->poll, on_closed);
}

void egm_connections_reap(struct egm_master_daemon *d, uint32_t most)
{
    struct egm_link *link;

    while (most-- > 0 && (link = egm_list_first(&d->dying))) {
        end_connection(egm_container_of(link, struct egm_connection, ready));
    }
}

void egm_connections_close_all(struct egm_master_daemon *d)
{
    for (uint32_t i = 0; i < d->connection_room; i++) {
        if (d->connections[i]) {
            begin_close(d->connections[i]);
        }
    }
    egm_connections_reap(d, UINT32_MAX);
}

/* ---- what is polled ---- */

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct egm_connection *c = poll->data;

    if (c->is_closing) {
        return;
    }
    if (status < 0) {
        /* libuv has stopped the handle: the socket is in error */
        begin_close(c);
        return;
    }
    if (events & UV_WRITABLE && !egm_link_is_listed(&c->dirty)) {
        egm_list_push_back(&c->daemon->dirty, &c->dirty);
    }
    if (events & UV_READABLE && !c->is_paused && !egm_link_is_listed(&c->ready)) {
        egm_list_push_back(&c->daemon->ready, &c->ready);
    }
}

static void set_interest(struct egm_connection *c, int events)
{
    if (events == c->interest) {
        return;
    }
    int r = uv_poll_start(&c->poll, events, on_poll);
    if (r < 0) {
        close_broken(c, uv_strerror(r));
        return;
    }
    c->interest = events;
}

static void update_interest(struct egm_connection *c, bool has_output)
{
    set_interest(c, (c->is_paused ? 0 : UV_READABLE) | (has_output ? UV_WRITABLE : 0));
}

/* ---- output ---- */

/* One send. True: all of it is gone or the connection is; false: the kernel wants us to wait. */
static bool try_out(struct egm_connection *c, const uint8_t *data, size_t size, size_t *ret_sent)
{
    ssize_t n = send(c->fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);

    *ret_sent = n > 0 ? (size_t)n : 0;
    if (n > 0) {
        c->progress_ns = c->daemon->now_ns;
    } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
        egm_debug("connection lost peer=%u err=\"%s\"", c->peer, strerror(errno));
        begin_close(c);
        return true;
    }
    return *ret_sent == size;
}

/* HELLO_REPLY with a status: the peer is not welcome and has no further business here. */
static bool is_refusal(const uint8_t *data, size_t size)
{
    struct egm_frame frame;
    struct egm_hello_reply reply;

    if (size < EGM_FRAME_HEADER || egm_frame_parse(data, &frame) < 0 ||
        frame.type != EGM_MSG_HELLO_REPLY) {
        return false;
    }
    struct egm_cursor cursor = egm_cursor_of(data + EGM_FRAME_HEADER, size - EGM_FRAME_HEADER);
    egm_take_hello_reply(&cursor, &reply);
    return reply.status != 0;
}

void egm_connection_send(void *arg, uint32_t peer, const void *data, size_t size)
{
    struct egm_master_daemon *d = arg;
    struct egm_connection *c = d->connections[peer];
    size_t sent = 0;

    if (c->is_closing) {
        return;
    }
    if (is_refusal(data, size)) {
        c->is_last_reply = true;
    }
    if (c->out.len == 0) {
        c->progress_ns = d->now_ns;
        if (size >= DIRECT_SEND && try_out(c, data, size, &sent)) {
            return;
        }
    }
    if (egm_buf_append(&c->out, (const uint8_t *)data + sent, size - sent) < 0) {
        close_broken(c, c->out.failed == EGM_E_LIMIT ? "it does not read its replies"
                                                     : "out of memory");
        return;
    }
    if (!egm_link_is_listed(&c->dirty)) {
        egm_list_push_back(&d->dirty, &c->dirty);
    }
}

static void settle_output(struct egm_connection *c)
{
    size_t left = c->out.len - c->out_sent;

    if (left == 0) {
        c->out_sent = 0;
        egm_buf_clear(&c->out);
        if (c->out.cap > KEEP_OUT) {
            egm_buf_release(&c->out);
        }
        if (c->is_last_reply) {
            begin_close(c);
            return;
        }
    } else if (c->out_sent > left) {
        memmove(c->out.data, c->out.data + c->out_sent, left);
        c->out.len = left;
        c->out_sent = 0;
    }
    if (left > PAUSE_BYTES) {
        c->is_paused = true;
        egm_list_remove(&c->ready);
    } else if (c->is_paused && left < RESUME_BYTES) {
        c->is_paused = false;
        if (!egm_link_is_listed(&c->ready)) {
            egm_list_push_back(&c->daemon->ready, &c->ready);
        }
    }
    update_interest(c, left > 0);
}

void egm_connections_flush(struct egm_master_daemon *d)
{
    struct egm_link turn;
    struct egm_link *link;

    /* Those that are left with output wait for POLLOUT, or, after a full step, for the next turn.
     */
    egm_list_init(&turn);
    while ((link = egm_list_pop_front(&d->dirty))) {
        struct egm_connection *c = egm_container_of(link, struct egm_connection, dirty);
        size_t left = c->out.len - c->out_sent;
        size_t sent = 0;

        bool is_done =
            left == 0 || try_out(c, c->out.data + c->out_sent, egm_min_u64(left, SEND_STEP), &sent);
        if (c->is_closing) {
            continue;
        }
        c->out_sent += sent;
        settle_output(c);
        if (is_done && sent < left && !c->is_closing) {
            egm_list_push_back(&turn, &c->dirty);
        }
    }
    while ((link = egm_list_pop_front(&turn))) {
        egm_list_push_back(&d->dirty, link);
    }
}

bool egm_connections_have_output(const struct egm_master_daemon *d)
{
    for (uint32_t i = 0; i < d->connection_room; i++) {
        const struct egm_connection *c = d->connections[i];
        if (c && !c->is_closing && c->out.len > c->out_sent) {
            return true;
        }
    }
    return false;
}

/* ---- input ---- */

/* The header is whole: is this frame one to wait for? */
static bool begin_frame(struct egm_connection *c)
{
    int r = egm_frame_parse(c->header, &c->frame);

    if (r < 0) {
        close_broken(c, r == EGM_E_LIMIT     ? "frame too large"
                        : r == EGM_E_VERSION ? "unknown protocol version"
                                             : "malformed frame header");
        return false;
    }
    if (!c->is_greeted && (c->frame.type != EGM_MSG_HELLO || c->frame.length > MAX_HELLO)) {
        close_broken(c, "no HELLO first");
        return false;
    }
    if (c->frame.length > 0) {
        c->payload = egm_alloc(c->frame.length);
        if (!c->payload) {
            close_broken(c, "out of memory for a frame");
            return false;
        }
    }
    return true;
}

static void deliver(struct egm_connection *c)
{
    struct egm_master_daemon *d = c->daemon;
    uint8_t *payload = c->payload;

    c->payload = NULL;
    c->payload_have = 0;
    c->header_have = 0;
    if (!c->is_greeted) {
        c->is_greeted = true;
        egm_list_remove(&c->fresh);
        d->fresh_count--;
    }
    d->now_ns = egm_clock_ns();
    c->progress_ns = d->now_ns;
    egm_master_receive(d->core, d->now_ns, c->peer, &c->frame, payload);
}

/* The magic's bytes that are there so far. */
static bool is_ours(const struct egm_connection *c)
{
    static const uint8_t magic[4] = {'E', 'G', 'M', '1'};

    return memcmp(c->header, magic, egm_min_u64(c->header_have, sizeof(magic))) == 0;
}

/* Cuts bytes into frames and hands them over, until the turn's time is spent. Returns how many
 * bytes were used. */
static uint32_t feed(struct egm_connection *c, const uint8_t *data, uint32_t size,
                     uint64_t until_ns)
{
    uint32_t used = 0;

    while (used < size && !c->is_closing) {
        if (c->header_have < EGM_FRAME_HEADER) {
            uint32_t n = (uint32_t)egm_min_u64(EGM_FRAME_HEADER - c->header_have, size - used);
            memcpy(c->header + c->header_have, data + used, n);
            c->header_have += n;
            used += n;
            if (!is_ours(c)) {
                close_broken(c, "it speaks another protocol");
                break;
            }
            if (c->header_have < EGM_FRAME_HEADER || !begin_frame(c)) {
                continue;
            }
        }
        uint32_t n = (uint32_t)egm_min_u64(c->frame.length - c->payload_have, size - used);
        if (n > 0) {
            memcpy(c->payload + c->payload_have, data + used, n);
            c->payload_have += n;
            used += n;
        }
        if (c->payload_have == c->frame.length) {
            deliver(c);
            if (c->daemon->now_ns >= until_ns) {
                break;
            }
        }
    }
    return used;
}

static void hold(struct egm_connection *c, const uint8_t *data, uint32_t size)
{
    if (!c->held) {
        c->held = egm_alloc(INPUT_SIZE);
        if (!c->held) {
            close_broken(c, "out of memory");
            return;
        }
    }
    memmove(c->held, data, size);
    c->held_at = 0;
    c->held_size = size;
}

/* Reads once. True: more may be there. */
static bool read_some(struct egm_connection *c, uint64_t until_ns)
{
    struct egm_master_daemon *d = c->daemon;
    uint32_t rest = c->header_have == EGM_FRAME_HEADER ? c->frame.length - c->payload_have : 0;
    struct iovec iov[2];
    int count = 0;
    size_t wanted = 0;

    if (rest > 0) {
        iov[count++] =
            (struct iovec){c->payload + c->payload_have, egm_min_u64(rest, PAYLOAD_STEP)};
    }
    if (rest <= PAYLOAD_STEP) {
        iov[count++] = (struct iovec){d->input, INPUT_SIZE};
    }
    for (int i = 0; i < count; i++) {
        wanted += iov[i].iov_len;
    }
    ssize_t n = readv(c->fd, iov, count);
    if (n <= 0) {
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return false;
        }
        egm_debug("connection ended peer=%u err=\"%s\"", c->peer,
                  n < 0 ? strerror(errno) : "closed by peer");
        begin_close(c);
        return false;
    }
    c->progress_ns = d->now_ns;
    uint32_t direct = rest > 0 ? (uint32_t)egm_min_u64((uint64_t)n, iov[0].iov_len) : 0;
    uint32_t got = (uint32_t)n - direct;
    c->payload_have += direct;
    if (direct > 0 && c->payload_have == c->frame.length) {
        deliver(c);
    }
    uint32_t used = feed(c, d->input, got, until_ns);
    if (used < got && !c->is_closing) {
        hold(c, d->input + used, got - used);
        return true;
    }
    return (size_t)n == wanted;
}

/* True: it stays ready. */
static bool serve(struct egm_connection *c, uint64_t until_ns)
{
    if (c->held_size > 0) {
        uint32_t used = feed(c, c->held + c->held_at, c->held_size, until_ns);
        c->held_at += used;
        c->held_size -= used;
        if (c->held_size > 0) {
            return true;
        }
        egm_free(c->held);
        c->held = NULL;
    }
    return !c->is_closing && read_some(c, until_ns);
}

void egm_connections_serve(struct egm_master_daemon *d, uint64_t until_ns)
{
    struct egm_link *link;

    while (d->now_ns < until_ns && (link = egm_list_pop_front(&d->ready))) {
        struct egm_connection *c = egm_container_of(link, struct egm_connection, ready);
        if (c->is_paused) {
            continue;
        }
        bool is_ready = serve(c, until_ns);
        if (is_ready && !c->is_closing && !c->is_paused) {
            egm_list_push_back(&d->ready, &c->ready);
        }
        d->now_ns = egm_clock_ns();
    }
}

/* ---- the table ---- */

static int grow_table(struct egm_master_daemon *d)
{
    uint32_t room = d->connection_room ? d->connection_room * 2 : 64;
    struct egm_connection **connections =
        egm_realloc(d->connections, room * sizeof(struct egm_connection *));
    if (!connections) {
        return -ENOMEM;
    }
    d->connections = connections;
    uint32_t *free_peers = egm_realloc(d->free_peers, room * sizeof(uint32_t));
    if (!free_peers) {
        return -ENOMEM;
    }
    d->free_peers = free_peers;
    /* last first, so that small numbers are handed out first */
    for (uint32_t i = room; i-- > d->connection_room;) {
        connections[i] = NULL;
        free_peers[d->free_count++] = i;
    }
    d->connection_room = room;
    return 0;
}

int egm_connection_add(struct egm_master_daemon *d, int fd)
{
    if (d->free_count == 0 && grow_table(d) < 0) {
        return -ENOMEM;
    }
    struct egm_connection *c = egm_calloc(1, sizeof(*c));
    if (!c) {
        return -ENOMEM;
    }
    uint32_t peer = d->free_peers[d->free_count - 1];
    int r = egm_master_connected(d->core, d->now_ns, peer);
    if (r == 0) {
        r = uv_poll_init(&d->loop, &c->poll, fd);
        if (r < 0) {
            egm_master_disconnected(d->core, d->now_ns, peer);
        }
    }
    if (r < 0) {
        egm_free(c);
        return r;
    }
    c->daemon = d;
    c->poll.data = c;
    c->fd = fd;
    c->peer = peer;
    c->accepted_ns = c->progress_ns = d->now_ns;
    egm_buf_init(&c->out, OUT_MAX);
    egm_list_init(&c->ready);
    egm_list_init(&c->dirty);
    egm_list_init(&c->fresh);
    d->free_count--;
    d->connections[peer] = c;
    d->connection_count++;
    egm_list_push_back(&d->fresh, &c->fresh);
    d->fresh_count++;
    update_interest(c, /*has_output=*/false);
    return 0;
}

void egm_connection_drop_oldest(struct egm_master_daemon *d)
{
    close_broken(egm_container_of(egm_list_first(&d->fresh), struct egm_connection, fresh),
                 "too many connections without HELLO");
}

/* ---- deadlines ---- */

static void check_progress(struct egm_connection *c)
{
    uint64_t idle_ns = c->daemon->now_ns > c->progress_ns ? c->daemon->now_ns - c->progress_ns : 0;
    bool has_output = c->out.len > c->out_sent;

    if (has_output && idle_ns > OUTPUT_NS) {
        close_broken(c, "it does not read its replies");
    } else if (!has_output && c->header_have > 0 && idle_ns > FRAME_NS) {
        close_broken(c, "a frame was begun and not ended");
    }
}

void egm_connections_tick(struct egm_master_daemon *d)
{
    struct egm_link *link;

    for (int n = 0; n < CLOSES_A_TICK && (link = egm_list_first(&d->fresh)); n++) {
        struct egm_connection *c = egm_container_of(link, struct egm_connection, fresh);
        if (d->now_ns - c->accepted_ns < HELLO_NS) {
            break;
        }
        close_broken(c, "no HELLO within 5 s");
    }
    uint32_t count = d->connection_room / SWEEP_PARTS + SWEEP_LEAST;
    for (uint32_t i = 0; i < count && d->connection_room > 0; i++) {
        d->sweep_at = d->sweep_at + 1 < d->connection_room ? d->sweep_at + 1 : 0;
        struct egm_connection *c = d->connections[d->sweep_at];
        if (c && !c->is_closing && c->is_greeted) {
            check_progress(c);
        }
    }
}
