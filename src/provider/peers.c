/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listeners, handshakes, and importers of the map kind.
 *
 *   accepted -> HELLO -> ATTACH -> WAITING (master is told of the slot) -+- tcp: to a data thread
 *                                                                        +- map: fds sent ->
 *                                                                        IMPORTER
 *   IMPORTER --its connection ends--> DYING --its lock is free--> gone
 *
 * A peer costs a fixed struct and reads only as many bytes as the frame that is due, so nothing
 * that belongs to the data thread is ever taken. The first bytes must be the magic, the lengths
 * small, and all of it must happen within 5 s; the number of handshakes is bounded (shell.h).
 *
 * The pool's description for an importer is opened, locked, sent and closed in one go, under the
 * fork lock: a child of ours can never hold it, so the lock says exactly whether the importer does
 * (I3). */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/limits.h"

#include "os/clock.h"
#include "os/fork.h"
#include "os/host.h"
#include "provider/shell.h"
#include "wire/status.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAUSE_CODES(r) ((r) == -EMFILE || (r) == -ENFILE || (r) == -ENOMEM || (r) == -ENOBUFS)

/* A deadline in the past: one try, no waiting (R49). */
#define AT_ONCE 1u

static void on_peer(uv_poll_t *poll, int status, int events);
static void on_accept(uv_poll_t *poll, int status, int events);

/* ---- ends ---- */

static void on_peer_closed(uv_handle_t *handle)
{
    struct egm_peer *peer = handle->data;

    peer->is_handle_closed = true;
    if (peer->state == EGM_PEER_CLOSING) {
        egm_free(peer);
    }
}

static void unlink_peer(struct egm_peer *peer)
{
    struct egm_provider *p = peer->provider;

    pthread_mutex_lock(&p->lock);
    egm_list_remove(&peer->link);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static bool is_handshake(const struct egm_peer *peer)
{
    return peer->state == EGM_PEER_HELLO || peer->state == EGM_PEER_ATTACH;
}

/* Under the lock because drain reads it on other threads. */
static void set_state(struct egm_peer *peer, enum egm_peer_state state)
{
    pthread_mutex_lock(&peer->provider->lock);
    peer->state = state;
    pthread_mutex_unlock(&peer->provider->lock);
}

/* The peer leaves the loop; its fd, if it still has one, is closed. */
static void drop_peer(struct egm_peer *peer)
{
    struct egm_provider *p = peer->provider;

    p->handshake_count -= is_handshake(peer);
    bool was_polled = peer->state != EGM_PEER_DYING;
    if (was_polled) {
        /* Before the fd is closed: it forgets the number, which is then another thread's. */
        uv_close((uv_handle_t *)&peer->poll, on_peer_closed);
    }
    egm_fork_close(peer->fd);
    peer->fd = -1;
    unlink_peer(peer);
    peer->state = EGM_PEER_CLOSING;
    if (!was_polled && peer->is_handle_closed) {
        egm_free(peer);
    }
}

static void free_slot(struct egm_peer *peer)
{
    struct egm_provider *p = peer->provider;

    pthread_mutex_lock(&p->lock);
    egm_pcore_slot_free(p->core, peer->slot);
    pthread_mutex_unlock(&p->lock);
}

/* Its connection ended, by whatever cause. */
static void lose_peer(struct egm_peer *peer)
{
    if (peer->state == EGM_PEER_WAITING) {
        /* It was given nothing yet. */
        free_slot(peer);
    } else if (peer->state == EGM_PEER_IMPORTER) {
        uv_close((uv_handle_t *)&peer->poll, on_peer_closed);
        egm_fork_close(peer->fd);
        peer->fd = -1;
        set_state(peer, EGM_PEER_DYING);
        return;
    }
    drop_peer(peer);
}

/* ---- answers ---- */

static int send_small(struct egm_peer *peer, const struct egm_buf *buf, const int *fds,
                      size_t count)
{
    return buf->failed ? buf->failed
                       : egm_net_send_fds(peer->fd, buf->data, buf->len, fds, count, AT_ONCE);
}

static int send_hello_reply(struct egm_peer *peer, uint64_t request, int status, const char *reason)
{
    struct egm_hello_reply reply = {.status = egm_status_to_wire(status),
                                    .version = EGM_PROTOCOL_VERSION,
                                    .instance = peer->provider->epoch,
                                    .nonce = egm_random_u64(),
                                    .reason = egm_bytes_of(reason, strlen(reason))};
    struct egm_buf buf;

    egm_buf_init(&buf, EGM_MAX_SMALL_FRAME);
    size_t begin = egm_frame_begin(&buf, EGM_MSG_HELLO_REPLY, request);
    egm_put_hello_reply(&buf, &reply);
    egm_frame_end(&buf, begin);
    int r = send_small(peer, &buf, NULL, 0);
    egm_buf_release(&buf);
    return r;
}

static int send_attach_reply(struct egm_peer *peer, int status, const int *fds, size_t fd_count)
{
    struct egm_provider *p = peer->provider;
    const char *reason = status < 0 ? egm_strerror(status) : "";
    struct egm_attach_reply reply = {.status = egm_status_to_wire(status),
                                     .count = status == 0 ? p->segment_count : 0,
                                     .reason = egm_bytes_of(reason, strlen(reason))};
    struct egm_buf buf;

    egm_buf_init(&buf, EGM_MAX_SMALL_FRAME);
    size_t begin = egm_frame_begin(&buf, EGM_MSG_ATTACH_REPLY, peer->request);
    egm_put_attach_reply(&buf, &reply);
    for (uint32_t i = 0; i < reply.count; i++) {
        egm_put_attached(&buf, &(struct egm_attached){
                                   .segment = i,
                                   .slot = peer->slot,
                                   .size = p->segments[i].size,
                                   .fence_size = peer->is_unix ? p->segments[i].fence.bytes : 0});
    }
    egm_frame_end(&buf, begin);
    int r = send_small(peer, &buf, fds, fd_count);
    egm_buf_release(&buf);
    return r;
}

/* ---- giving ---- */

/* A description of the pool's file, with the importer's lock, and one of the fence's. Each that was
 * opened is in ret_fds, whatever is returned. */
static int open_files(const struct egm_pool_segment *segment, uint32_t slot, int ret_fds[2])
{
    int r = segment->mem.ops->export(&segment->mem, &ret_fds[0], NULL);

    if (r < 0) {
        return r;
    }
    ret_fds[1] = egm_memfd_reopen(segment->fence.fd, /*is_writable=*/false);
    return ret_fds[1] < 0 ? ret_fds[1] : egm_lock_set(ret_fds[0], EGM_LOCK_BYTE + slot);
}

/* Opens, locks, sends and closes. Fork lock held. */
static int pass_files(struct egm_peer *peer)
{
    struct egm_provider *p = peer->provider;
    int fds[2 * EGM_POOL_SEGMENTS];
    size_t count = 2 * (size_t)p->segment_count;
    int r = 0;

    for (size_t i = 0; i < count; i++) {
        fds[i] = -1;
    }
    for (uint32_t i = 0; i < p->segment_count && r == 0; i++) {
        r = open_files(&p->segments[i], peer->slot, &fds[2 * i]);
    }
    if (r == 0) {
        r = send_attach_reply(peer, 0, fds, count);
    }
    for (size_t i = 0; i < count; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    return r;
}

static void give_map(struct egm_peer *peer)
{
    egm_fork_lock();
    int r = pass_files(peer);
    egm_fork_unlock();
    /* Even a failed send may have carried the fds, so from here on only the lock tells. */
    set_state(peer, EGM_PEER_IMPORTER);
    if (r < 0) {
        lose_peer(peer);
        return;
    }
    egm_info("importer attached session=%016llx slot=%u pid=%u", (unsigned long long)peer->session,
             peer->slot, peer->who.pid);
}

static void give_tcp(struct egm_peer *peer)
{
    struct egm_provider *p = peer->provider;
    int fd = peer->fd;

    egm_ignore(uv_poll_stop(&peer->poll), "it only forgets the fd");
    if (send_attach_reply(peer, 0, NULL, 0) == 0 &&
        egm_data_start(p, fd, peer->slot, peer->session) == 0) {
        peer->fd = -1;
        drop_peer(peer);
        return;
    }
    lose_peer(peer);
}

static void settle_waiting(struct egm_peer *peer)
{
    struct egm_provider *p = peer->provider;
    int status = 0;

    pthread_mutex_lock(&p->lock);
    enum egm_slot_state state = egm_pcore_slot_state(p->core, peer->slot, &status);
    pthread_mutex_unlock(&p->lock);
    if (state == EGM_SLOT_HELD && peer->is_unix) {
        give_map(peer);
    } else if (state == EGM_SLOT_HELD) {
        give_tcp(peer);
    } else if (state == EGM_SLOT_REFUSED) {
        egm_ignore(send_attach_reply(peer, status, NULL, 0), "it is dropped either way");
        lose_peer(peer);
    }
}

void egm_peers_settle(struct egm_provider *p)
{
    EGM_LIST_FOR_EACH_SAFE (link, next, &p->peers) {
        struct egm_peer *peer = egm_container_of(link, struct egm_peer, link);
        if (peer->state == EGM_PEER_WAITING) {
            settle_waiting(peer);
        }
    }
}

/* ---- handshake ---- */

/* Return 0 to go on, or a negative code to drop the peer. */
static int on_hello(struct egm_peer *peer, const struct egm_frame *frame, struct egm_cursor cursor)
{
    struct egm_provider *p = peer->provider;
    struct egm_hello hello;

    egm_take_hello(&cursor, &hello);
    if (egm_cursor_end(&cursor) < 0 || frame->type != EGM_MSG_HELLO) {
        return EGM_E_PROTO;
    }
    int status = 0;
    const char *reason = "";
    if (hello.version_min > EGM_PROTOCOL_VERSION || hello.version_max < EGM_PROTOCOL_VERSION) {
        status = EGM_E_VERSION;
        reason = "no common protocol version";
    } else if (hello.cluster.size != strlen(p->cluster) ||
               memcmp(hello.cluster.data, p->cluster, hello.cluster.size) != 0) {
        status = EGM_E_NOT_PERMITTED;
        reason = "another cluster";
    } else if (hello.role != EGM_ROLE_REQUESTER) {
        status = EGM_E_NOT_PERMITTED;
        reason = "only requesters attach here";
    }
    int r = send_hello_reply(peer, frame->request, status, reason);
    if (r < 0 || status < 0) {
        return r < 0 ? r : status;
    }
    set_state(peer, EGM_PEER_ATTACH);
    return 0;
}

static int on_attach(struct egm_peer *peer, const struct egm_frame *frame, struct egm_cursor cursor)
{
    struct egm_provider *p = peer->provider;
    struct egm_attach attach;

    egm_take_attach(&cursor, &attach);
    if (egm_cursor_end(&cursor) < 0 || frame->type != EGM_MSG_ATTACH ||
        attach.kind != (peer->is_unix ? EGM_IMPORT_MAP : EGM_IMPORT_TCP)) {
        return EGM_E_PROTO;
    }
    peer->request = frame->request;
    peer->session = attach.session;
    int r = EGM_E_STALE;
    if (attach.provider == p->id && attach.epoch == p->epoch) {
        pthread_mutex_lock(&p->lock);
        r = !peer->is_unix && p->connection_count >= EGM_MAX_DATA_CONNECTIONS
                ? EGM_E_LIMIT
                : egm_pcore_slot_take(p->core, attach.session, attach.kind, &peer->slot);
        pthread_mutex_unlock(&p->lock);
    }
    if (r < 0) {
        if (r != EGM_E_PROTO) {
            egm_ignore(send_attach_reply(peer, r, NULL, 0), "it is dropped either way");
        }
        return r;
    }
    p->handshake_count--;
    set_state(peer, EGM_PEER_WAITING);
    return 0;
}

/* A whole frame is there. */
static int on_frame(struct egm_peer *peer, const struct egm_frame *frame)
{
    struct egm_cursor cursor = egm_cursor_of(peer->bytes + EGM_FRAME_HEADER, frame->length);

    peer->have = 0;
    peer->need = EGM_FRAME_HEADER;
    return peer->state == EGM_PEER_HELLO ? on_hello(peer, frame, cursor)
                                         : on_attach(peer, frame, cursor);
}

static bool is_magic_so_far(const struct egm_peer *peer)
{
    static const uint8_t magic[] = {EGM_FRAME_MAGIC & 0xff, (EGM_FRAME_MAGIC >> 8) & 0xff,
                                    (EGM_FRAME_MAGIC >> 16) & 0xff, EGM_FRAME_MAGIC >> 24};

    return memcmp(peer->bytes, magic, egm_min_u64(peer->have, sizeof(magic))) == 0;
}

/* 1: progress was made, try again; 0: nothing there; negative: drop. */
static int read_peer(struct egm_peer *peer)
{
    ssize_t n = recv(peer->fd, peer->bytes + peer->have, peer->need - peer->have, MSG_DONTWAIT);

    if (n == 0) {
        return EGM_E_PEER_GONE;
    }
    if (n < 0) {
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    }
    if (!is_handshake(peer)) {
        /* Nothing is expected from a peer that waits or has its fds. */
        return EGM_E_PROTO;
    }
    peer->have += (size_t)n;
    if (!is_magic_so_far(peer)) {
        return EGM_E_PROTO;
    }
    if (peer->have < peer->need) {
        return 1;
    }
    struct egm_frame frame;
    int r = egm_frame_parse(peer->bytes, &frame);
    if (r < 0 || frame.length > sizeof(peer->bytes) - EGM_FRAME_HEADER) {
        return EGM_E_PROTO;
    }
    if (peer->have < EGM_FRAME_HEADER + frame.length) {
        peer->need = EGM_FRAME_HEADER + frame.length;
        return 1;
    }
    r = on_frame(peer, &frame);
    return r < 0 ? r : 1;
}

static void on_peer(uv_poll_t *poll, int status, int events)
{
    struct egm_peer *peer = poll->data;
    struct egm_provider *p = peer->provider;
    int r = status < 0 ? EGM_E_PEER_GONE : 1;

    (void)events;
    while (r == 1) {
        r = read_peer(peer);
        /* What a tcp peer sends behind its ATTACH belongs to the data thread. */
        if (r == 1 && peer->state == EGM_PEER_WAITING) {
            if (!peer->is_unix) {
                egm_ignore(uv_poll_start(&peer->poll, UV_DISCONNECT, on_peer), "same handle");
            }
            r = 0;
        }
    }
    if (r < 0) {
        if (r == EGM_E_PROTO || r == EGM_E_NOT_PERMITTED || r == EGM_E_VERSION) {
            egm_log_gated(&p->peer_gate, EGM_LOG_WARN, "peer dropped socket=%s err=\"%s\"",
                          peer->is_unix ? "unix" : "tcp", egm_strerror(r));
        }
        lose_peer(peer);
    }
    egm_shell_settle(p);
}

/* ---- accepting ---- */

/* On the Unix socket only the same user, one of our group, or root is spoken to. */
static bool is_permitted(int fd, struct egm_net_peer *ret_who)
{
    if (egm_net_peer_of(fd, ret_who) < 0) {
        return false;
    }
    return ret_who->uid == geteuid() || ret_who->uid == 0 || ret_who->gid == getegid();
}

static void add_peer(struct egm_provider *p, int fd, bool is_unix)
{
    struct egm_net_peer who = {0};
    struct egm_peer *peer = NULL;

    egm_fork_enter(fd);
    if (!is_unix || is_permitted(fd, &who)) {
        peer = egm_calloc(1, sizeof(*peer));
    }
    if (!peer) {
        egm_fork_close(fd);
        return;
    }
    *peer = (struct egm_peer){.provider = p,
                              .fd = fd,
                              .is_unix = is_unix,
                              .who = who,
                              .accepted_ns = egm_clock_ns(),
                              .need = EGM_FRAME_HEADER};
    if (uv_poll_init(&p->loop, &peer->poll, fd) < 0) {
        egm_fork_close(fd);
        egm_free(peer);
        return;
    }
    peer->poll.data = peer;
    pthread_mutex_lock(&p->lock);
    egm_list_push_back(&p->peers, &peer->link);
    pthread_mutex_unlock(&p->lock);
    p->handshake_count++;
    EGM_ASSERT(uv_poll_start(&peer->poll, UV_READABLE, on_peer) == 0);
}

/* The one that has been shaking hands for longest, or NULL. New ones are at the list's end. */
static struct egm_peer *oldest_handshake(struct egm_provider *p)
{
    EGM_LIST_FOR_EACH (link, &p->peers) {
        struct egm_peer *peer = egm_container_of(link, struct egm_peer, link);
        if (is_handshake(peer)) {
            return peer;
        }
    }
    return NULL;
}

static void pause_listener(struct egm_listener *listener)
{
    egm_ignore(uv_poll_stop(&listener->poll), "cannot fail");
    listener->is_paused = true;
}

static void on_accept(uv_poll_t *poll, int status, int events)
{
    struct egm_listener *listener = poll->data;
    struct egm_provider *p = listener->provider;

    (void)status;
    (void)events;
    for (int i = 0; i < EGM_ACCEPTS_PER_TURN; i++) {
        int fd;
        if (p->handshake_count >= EGM_MAX_HANDSHAKES) {
            struct egm_peer *oldest = oldest_handshake(p);
            if (egm_clock_ns() - oldest->accepted_ns < EGM_HANDSHAKE_MIN_NS) {
                pause_listener(listener); /* until the next tick */
                return;
            }
            drop_peer(oldest);
        }
        int r = egm_net_accept(listener->fd, &fd);
        if (PAUSE_CODES(r)) {
            egm_log_gated(&p->peer_gate, EGM_LOG_WARN, "cannot accept err=\"%s\", pausing",
                          egm_strerror(r));
            pause_listener(listener);
        }
        if (r < 0) {
            return;
        }
        add_peer(p, fd, listener->is_unix);
    }
}

void egm_listener_start(struct egm_provider *p, struct egm_listener *listener)
{
    listener->provider = p;
    if (listener->fd < 0 || uv_poll_init(&p->loop, &listener->poll, listener->fd) < 0) {
        return;
    }
    listener->poll.data = listener;
    listener->is_open = true;
    EGM_ASSERT(uv_poll_start(&listener->poll, UV_READABLE, on_accept) == 0);
}

void egm_listener_stop(struct egm_listener *listener)
{
    if (listener->is_open) {
        uv_close((uv_handle_t *)&listener->poll, NULL);
        listener->is_open = false;
    }
    egm_fork_close(listener->fd);
    listener->fd = -1;
}

static void resume_listener(struct egm_listener *listener)
{
    if (listener->is_open && listener->is_paused) {
        listener->is_paused = false;
        EGM_ASSERT(uv_poll_start(&listener->poll, UV_READABLE, on_accept) == 0);
    }
}

/* ---- time ---- */

/* True when the importer's last mapping is gone, of whatever segment and wherever it was. */
static bool is_lock_free(const struct egm_provider *p, uint32_t slot)
{
    for (uint32_t i = 0; i < p->segment_count; i++) {
        bool is_held = true;
        egm_ignore(egm_lock_test(p->segments[i].mem.file.fd, EGM_LOCK_BYTE + slot, &is_held),
                   "held then");
        if (is_held) {
            return false;
        }
    }
    return true;
}

void egm_peers_tick(struct egm_provider *p, uint64_t now_ns)
{
    EGM_LIST_FOR_EACH_SAFE (link, next, &p->peers) {
        struct egm_peer *peer = egm_container_of(link, struct egm_peer, link);
        if (is_handshake(peer) && now_ns - peer->accepted_ns > EGM_HANDSHAKE_NS) {
            drop_peer(peer);
        } else if (peer->state == EGM_PEER_DYING && is_lock_free(p, peer->slot)) {
            egm_info("importer is gone session=%016llx slot=%u pid=%u",
                     (unsigned long long)peer->session, peer->slot, peer->who.pid);
            free_slot(peer);
            drop_peer(peer);
        }
    }
    resume_listener(&p->unix_listener);
    resume_listener(&p->tcp_listener);
}

void egm_peers_detach(struct egm_provider *p)
{
    struct egm_detach detach = {.provider = p->id, .epoch = p->epoch};

    EGM_LIST_FOR_EACH_SAFE (link, next, &p->peers) {
        struct egm_peer *peer = egm_container_of(link, struct egm_peer, link);
        if (peer->state != EGM_PEER_IMPORTER || peer->is_detached) {
            continue;
        }
        struct egm_buf buf;
        egm_buf_init(&buf, EGM_MAX_SMALL_FRAME);
        size_t begin = egm_frame_begin(&buf, EGM_MSG_DETACH, 0);
        egm_put_detach(&buf, &detach);
        egm_frame_end(&buf, begin);
        egm_ignore(send_small(peer, &buf, NULL, 0), "its end shows at its connection");
        egm_buf_release(&buf);
        peer->is_detached = true;
    }
}

void egm_peers_stop(struct egm_provider *p)
{
    EGM_LIST_FOR_EACH_SAFE (link, next, &p->peers) {
        drop_peer(egm_container_of(link, struct egm_peer, link));
    }
}
