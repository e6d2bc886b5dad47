/* SPDX-License-Identifier: Apache-2.0 */
/* Attachment of the map mover: connection, fds, mappings.
 *
 * Order: connect -> HELLO -> ATTACH -> receive the reply with its fds -> map each segment -> close
 * the fds. From the moment an fd arrives until it is closed it is tracked (child.h), and receiving,
 * mapping and closing happen under the fork lock, so that no child can hold a description that
 * carries our slot's lock. Waiting for the provider happens outside it.
 *
 * The connection stays open for the import's life. Whatever arrives on it later means the same:
 * DETACH, its end, or nonsense; the import is lost, the client drops it when no transfer pins it,
 * and closing tells the provider that we have unmapped. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/limits.h"

#include "egmstore/errors.h"
#include "mover/copy_team.h"
#include "mover/map/child.h"
#include "mover/map/map.h"
#include "mover/tcp/frame_io.h"
#include "os/net.h"
#include "os/wait.h"
#include "wire/status.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REQUEST_ATTACH 2u
#define REPLY_MAX 65536u
#define ATTACHED_LEAST 24u

struct reception {
    int fd;
    uint64_t deadline_ns;
    size_t fd_count;
    int fds[2 * EGM_MAP_MAX_SEGMENTS]; /* tracked */
};

static int keep_fd_locked(struct reception *rx, int fd)
{
    int r = rx->fd_count < EGM_COUNT_OF(rx->fds) ? egm_child_track_locked(fd) : EGM_E_PROTO;

    if (r < 0) {
        close(fd);
        return r;
    }
    rx->fds[rx->fd_count++] = fd;
    return 0;
}

static int keep_fds_locked(struct reception *rx, struct msghdr *msg)
{
    int r = msg->msg_flags & MSG_CTRUNC ? EGM_E_PROTO : 0;

    for (struct cmsghdr *head = CMSG_FIRSTHDR(msg); head; head = CMSG_NXTHDR(msg, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(fd));
            int kept = keep_fd_locked(rx, fd);
            r = r < 0 ? r : kept;
        }
    }
    return r;
}

/* Bytes received (0: none there now), or an error. */
static ssize_t receive_some(struct reception *rx, void *data, size_t size)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * EGM_NET_FDS)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = data, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};

    egm_child_lock();
    ssize_t n = recvmsg(rx->fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    int err = errno;
    int r = n >= 0 ? keep_fds_locked(rx, &msg) : 0;
    egm_child_unlock();
    if (n < 0) {
        return err == EAGAIN || err == EINTR ? 0 : -err;
    }
    if (r < 0) {
        return r;
    }
    return n > 0 ? n : EGM_E_PEER_GONE;
}

static int receive(struct reception *rx, void *data, size_t size)
{
    size_t done = 0;

    while (done < size) {
        int r = egm_wait_fd(rx->fd, POLLIN, rx->deadline_ns);
        if (r < 0) {
            return r;
        }
        ssize_t n = receive_some(rx, (char *)data + done, size - done);
        if (n < 0) {
            return (int)n;
        }
        done += (size_t)n;
    }
    return 0;
}

static int ask(int fd, const struct egm_import_options *options)
{
    struct egm_attach attach = {.provider = options->provider,
                                .epoch = options->epoch,
                                .session = options->session,
                                .kind = EGM_IMPORT_MAP};
    struct egm_buf buf;

    egm_buf_init(&buf, 256);
    size_t begin = egm_frame_begin(&buf, EGM_MSG_ATTACH, REQUEST_ATTACH);
    egm_put_attach(&buf, &attach);
    egm_frame_end(&buf, begin);
    int r = egm_frame_send(fd, &buf, options->deadline_ns);
    egm_buf_release(&buf);
    return r;
}

/* Receives the reply's frame into `payload`, collecting the fds that come with it. */
static int receive_reply(struct reception *rx, struct egm_buf *payload)
{
    uint8_t header[EGM_FRAME_HEADER];
    struct egm_frame frame;
    int r = receive(rx, header, sizeof(header));

    if (r < 0) {
        return r;
    }
    if (egm_frame_parse(header, &frame) < 0 || frame.type != EGM_MSG_ATTACH_REPLY ||
        frame.request != REQUEST_ATTACH || frame.length > REPLY_MAX) {
        return EGM_E_PROTO;
    }
    uint8_t *at = egm_buf_extend(payload, frame.length);
    return at ? receive(rx, at, frame.length) : payload->failed;
}

static int map_all(struct egm_map_import *map, struct reception *rx, struct egm_cursor *cursor,
                   size_t count, struct egm_detail *reterr)
{
    map->segments = egm_calloc(count, sizeof(*map->segments));
    if (!map->segments) {
        return egm_fail(reterr, -ENOMEM, "attach", "no memory for %zu segments", count);
    }
    for (size_t i = 0; i < count; i++) {
        struct egm_attached attached;
        egm_take_attached(cursor, &attached);
        egm_child_lock();
        int r = egm_map_segment_open(&map->segments[i], &attached, map->base.provider,
                                     map->base.epoch, rx->fds[2 * i], rx->fds[2 * i + 1], reterr);
        egm_child_unlock();
        if (r < 0) {
            return r;
        }
        map->segment_count++;
    }
    return 0;
}

static int parse_reply(struct egm_map_import *map, struct reception *rx,
                       const struct egm_buf *payload, struct egm_detail *reterr)
{
    struct egm_cursor cursor = egm_cursor_of(payload->data, payload->len);
    struct egm_attach_reply reply;

    egm_take_attach_reply(&cursor, &reply);
    if (cursor.failed ||
        !egm_cursor_expect(&cursor, reply.count, ATTACHED_LEAST, EGM_MAP_MAX_SEGMENTS)) {
        return egm_fail(reterr, EGM_E_PROTO, "attach", "the provider's answer is malformed");
    }
    if (reply.status != 0) {
        int code = egm_status_from_wire(reply.status);
        return egm_fail(reterr, code < 0 ? code : EGM_E_PROTO, "attach",
                        "refused by the provider: %.*s", (int)egm_min_u64(reply.reason.size, 200),
                        reply.reason.data ? (const char *)reply.reason.data : "");
    }
    if (egm_cursor_left(&cursor) != reply.count * (size_t)ATTACHED_LEAST ||
        rx->fd_count != 2 * (size_t)reply.count || reply.count == 0) {
        return egm_fail(reterr, EGM_E_PROTO, "attach",
                        "the provider sent %zu files for %u segments", rx->fd_count, reply.count);
    }
    return map_all(map, rx, &cursor, reply.count, reterr);
}

static int attach_over(struct egm_map_import *map, const struct egm_import_options *options,
                       struct egm_detail *reterr)
{
    struct egm_greeting greeting = {
        .role = EGM_ROLE_REQUESTER, .process = options->process, .cluster = options->cluster};
    struct egm_hello_reply hello;
    int r = egm_hello_exchange(map->fd, &greeting, options->deadline_ns, &hello, reterr);

    if (r < 0) {
        return r;
    }
    struct reception *rx = egm_calloc(1, sizeof(*rx));
    if (!rx) {
        return egm_fail(reterr, -ENOMEM, "attach", "no memory");
    }
    rx->fd = map->fd;
    rx->deadline_ns = options->deadline_ns;
    struct egm_buf payload;
    egm_buf_init(&payload, REPLY_MAX);
    r = ask(map->fd, options);
    if (r == 0) {
        r = receive_reply(rx, &payload);
    }
    if (r < 0) {
        egm_ignore(egm_fail(reterr, r, "attach",
                            "no valid answer from the provider at '%.200s': %s", options->address,
                            egm_strerror(r)),
                   "returned below");
    } else {
        r = parse_reply(map, rx, &payload, reterr);
    }
    /* The mappings hold the descriptions from here on, and with them the slots' locks. */
    for (size_t i = 0; i < rx->fd_count; i++) {
        egm_child_close(rx->fds[i]);
    }
    egm_buf_release(&payload);
    egm_free(rx);
    return r;
}

static void map_detach(struct egm_import *import)
{
    struct egm_map_import *map = egm_container_of(import, struct egm_map_import, base);

    for (size_t i = 0; i < map->segment_count; i++) {
        egm_map_segment_close(&map->segments[i]);
    }
    egm_free(map->segments);
    if (map->fd >= 0) {
        egm_child_close(map->fd);
    }
    egm_copy_team_unref();
    egm_free(map);
}

static int map_attach(const struct egm_import_options *options, struct egm_import **ret_import,
                      struct egm_detail *reterr)
{
    struct egm_map_import *map = egm_calloc(1, sizeof(*map));

    if (!map) {
        return egm_fail(reterr, -ENOMEM, "attach", "no memory for an import");
    }
    map->base = (struct egm_import){
        .ops = &egm_mover_map, .provider = options->provider, .epoch = options->epoch};
    map->fd = -1;
    egm_copy_team_ref();
    int fd;
    int r = egm_net_connect(options->address, options->deadline_ns, &fd, reterr);
    if (r == 0) {
        r = egm_child_track(fd);
        if (r < 0) {
            close(fd);
        } else {
            map->fd = fd;
            r = attach_over(map, options, reterr);
        }
    }
    if (r < 0) {
        map_detach(&map->base);
        return r;
    }
    *ret_import = &map->base;
    return 0;
}

static bool map_is_lost(struct egm_import *import)
{
    struct egm_map_import *map = egm_container_of(import, struct egm_map_import, base);

    /* relaxed, both: a flag that says nothing about other memory */
    if (!atomic_load_explicit(&map->is_lost, memory_order_relaxed) && egm_net_is_stale(map->fd)) {
        atomic_store_explicit(&map->is_lost, true, memory_order_relaxed);
    }
    return atomic_load_explicit(&map->is_lost, memory_order_relaxed);
}

/* The fork handlers have closed the connection and ended the team, and the mappings were not
 * inherited. */
static void map_abandon(struct egm_import *import)
{
    struct egm_map_import *map = egm_container_of(import, struct egm_map_import, base);

    for (size_t i = 0; i < map->segment_count; i++) {
        egm_free(map->segments[i].populated);
    }
    egm_free(map->segments);
    egm_free(map);
}

const struct egm_mover_ops egm_mover_map = {
    .name = "map",
    .attach = map_attach,
    .transfer = egm_map_transfer,
    .is_lost = map_is_lost,
    .detach = map_detach,
    .abandon = map_abandon,
};
