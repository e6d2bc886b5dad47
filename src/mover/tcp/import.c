/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/limits.h"
#include "base/log.h"

#include "egmstore/errors.h"
#include "mover/map/child.h"
#include "mover/tcp/frame_io.h"
#include "mover/tcp/tcp.h"
#include "os/clock.h"
#include "os/net.h"
#include "os/wait.h"
#include "wire/status.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REQUEST_ATTACH 2u
#define REQUEST_NONCE 3u
#define BUF_MAX 65536u
#define ATTACHED_LEAST 24u
#define SEGMENTS_MAX 256u

/* ---- one connection ---- */

static void close_connection(struct egm_tcp_connection *connection)
{
    if (connection->fd >= 0) {
        egm_child_close(connection->fd);
    }
    egm_buf_release(&connection->buf);
    egm_free(connection);
}

/* Asks for the segment's reserved first 4 KiB. */
static int read_nonce(struct egm_tcp_connection *connection, uint32_t segment, uint64_t request,
                      uint64_t deadline_ns, uint64_t ret_words[EGM_SLOT / sizeof(uint64_t)])
{
    struct egm_read read = {.segment = segment, .length = EGM_SLOT};
    struct egm_buf *buf = &connection->buf;

    egm_buf_clear(buf);
    size_t begin = egm_frame_begin(buf, EGM_MSG_READ, request);
    egm_put_read(buf, &read);
    egm_frame_end(buf, begin);
    int r = egm_frame_send(connection->fd, buf, deadline_ns);
    if (r == 0) {
        r = egm_frame_expect(connection->fd, EGM_MSG_READ_REPLY, request, buf, deadline_ns);
    }
    if (r < 0) {
        return r;
    }
    struct egm_cursor cursor = egm_cursor_of(buf->data, buf->len);
    struct egm_read_reply reply;
    egm_take_read_reply(&cursor, &reply);
    if (egm_cursor_end(&cursor) < 0 || reply.status > 0 ||
        (reply.status == 0 && reply.length != EGM_SLOT)) {
        return EGM_E_PROTO;
    }
    if (reply.status != 0) {
        return egm_status_from_wire(reply.status);
    }
    return egm_net_recv(connection->fd, ret_words, EGM_SLOT, deadline_ns);
}

/* The page holds one word, repeated, and the same one when asked again. */
static int self_test(struct egm_tcp_connection *connection, uint32_t segment, uint64_t deadline_ns,
                     struct egm_detail *reterr)
{
    uint64_t once[EGM_SLOT / sizeof(uint64_t)];
    uint64_t again[EGM_SLOT / sizeof(uint64_t)];
    int r = read_nonce(connection, segment, connection->next_request++, deadline_ns, once);

    if (r == 0) {
        r = read_nonce(connection, segment, connection->next_request++, deadline_ns, again);
    }
    if (r < 0) {
        return egm_fail(reterr, r, "attach", "self-test of segment %u failed: %s", segment,
                        egm_strerror(r));
    }
    for (size_t i = 0; i < EGM_COUNT_OF(once); i++) {
        if (once[i] != once[0] || again[i] != once[0] || once[0] == 0) {
            return egm_fail(
                reterr, EGM_E_TRANSFER, "attach",
                "self-test of segment %u failed: its nonce cannot be read over the data port",
                segment);
        }
    }
    return 0;
}

/* Checks the answer to ATTACH and returns the number of segments; their numbers go to
 * `segments`. */
static int parse_attached(const struct egm_buf *buf, uint32_t segments[SEGMENTS_MAX],
                          struct egm_detail *reterr)
{
    struct egm_cursor cursor = egm_cursor_of(buf->data, buf->len);
    struct egm_attach_reply reply;

    egm_take_attach_reply(&cursor, &reply);
    if (!cursor.failed && reply.status != 0) {
        int code = egm_status_from_wire(reply.status);
        return egm_fail(reterr, code < 0 ? code : EGM_E_PROTO, "attach",
                        "refused by the provider: %.*s", (int)egm_min_u64(reply.reason.size, 200),
                        reply.reason.data ? (const char *)reply.reason.data : "");
    }
    if (egm_cursor_expect(&cursor, reply.count, ATTACHED_LEAST, SEGMENTS_MAX)) {
        for (uint32_t i = 0; i < reply.count; i++) {
            struct egm_attached attached;
            egm_take_attached(&cursor, &attached);
            segments[i] = attached.segment;
        }
    }
    if (egm_cursor_end(&cursor) < 0 || reply.count == 0) {
        return egm_fail(reterr, EGM_E_PROTO, "attach", "the provider's answer is malformed");
    }
    return (int)reply.count;
}

static int greet_and_attach(struct egm_tcp_import *tcp, struct egm_tcp_connection *connection,
                            bool is_tested, uint64_t deadline_ns, struct egm_detail *reterr)
{
    struct egm_greeting greeting = {
        .role = EGM_ROLE_REQUESTER, .process = tcp->process, .cluster = tcp->cluster};
    struct egm_attach attach = {.provider = tcp->base.provider,
                                .epoch = tcp->base.epoch,
                                .session = tcp->session,
                                .kind = EGM_IMPORT_TCP};
    struct egm_hello_reply hello;
    struct egm_buf *buf = &connection->buf;
    uint32_t segments[SEGMENTS_MAX];
    int r = egm_hello_exchange(connection->fd, &greeting, deadline_ns, &hello, reterr);

    if (r < 0) {
        return r;
    }
    size_t begin = egm_frame_begin(buf, EGM_MSG_ATTACH, REQUEST_ATTACH);
    egm_put_attach(buf, &attach);
    egm_frame_end(buf, begin);
    r = egm_frame_send(connection->fd, buf, deadline_ns);
    if (r == 0) {
        r = egm_frame_expect(connection->fd, EGM_MSG_ATTACH_REPLY, REQUEST_ATTACH, buf,
                             deadline_ns);
    }
    if (r < 0) {
        return egm_fail(reterr, r, "attach", "no valid answer from the provider at '%.200s': %s",
                        tcp->address, egm_strerror(r));
    }
    int count = parse_attached(buf, segments, reterr);
    for (int i = 0; is_tested && i < count; i++) {
        r = self_test(connection, segments[i], deadline_ns, reterr);
        if (r < 0) {
            return r;
        }
    }
    return count < 0 ? count : 0;
}

static int open_connection(struct egm_tcp_import *tcp, bool is_tested, uint64_t deadline_ns,
                           struct egm_tcp_connection **ret_connection, struct egm_detail *reterr)
{
    struct egm_tcp_connection *connection = egm_calloc(1, sizeof(*connection));

    if (!connection) {
        return egm_fail(reterr, -ENOMEM, "attach", "no memory for a connection");
    }
    connection->fd = -1;
    egm_list_init(&connection->link);
    egm_list_init(&connection->all);
    connection->next_request = REQUEST_NONCE;
    egm_buf_init(&connection->buf, BUF_MAX);
    int fd;
    int r = egm_net_connect(tcp->address, deadline_ns, &fd, reterr);
    if (r == 0) {
        r = egm_child_track(fd);
        if (r < 0) {
            close(fd);
        } else {
            connection->fd = fd;
            r = greet_and_attach(tcp, connection, is_tested, deadline_ns, reterr);
        }
    }
    if (r < 0) {
        close_connection(connection);
        return r;
    }
    *ret_connection = connection;
    return 0;
}

/* ---- the pool ---- */

/* Takes out an idle connection that still lives, or NULL. Under lock. */
static struct egm_tcp_connection *take_idle(struct egm_tcp_import *tcp)
{
    struct egm_link *link;

    while ((link = egm_list_pop_front(&tcp->idle))) {
        struct egm_tcp_connection *connection =
            egm_container_of(link, struct egm_tcp_connection, link);
        if (!egm_net_is_stale(connection->fd)) {
            return connection;
        }
        egm_list_remove(&connection->all);
        close_connection(connection);
        tcp->open_count--;
    }
    return NULL;
}

/* Enters a new connection; one that comes after the interruption is refused. */
static int enter(struct egm_tcp_import *tcp, struct egm_tcp_connection *connection)
{
    pthread_mutex_lock(&tcp->lock);
    bool is_refused = tcp->is_interrupted;
    if (!is_refused) {
        egm_list_push_back(&tcp->all, &connection->all);
    }
    pthread_mutex_unlock(&tcp->lock);
    return is_refused ? EGM_E_PEER_GONE : 0;
}

/* Closes a connection (NULL: it was never opened) and gives its turn to the next. */
static void forget(struct egm_tcp_import *tcp, struct egm_tcp_connection *connection)
{
    pthread_mutex_lock(&tcp->lock);
    tcp->open_count--;
    if (connection) {
        egm_list_remove(&connection->all);
        close_connection(connection);
    }
    pthread_cond_signal(&tcp->is_free);
    pthread_mutex_unlock(&tcp->lock);
}

/* *ret_is_new tells whether T2 applies. */
static int take(struct egm_tcp_import *tcp, uint64_t deadline_ns,
                struct egm_tcp_connection **ret_connection, bool *ret_is_new)
{
    struct egm_tcp_connection *connection;
    int r = 0;

    pthread_mutex_lock(&tcp->lock);
    while (!(connection = take_idle(tcp)) && tcp->open_count >= EGM_TCP_CONNECTIONS &&
           !tcp->is_interrupted && r == 0) {
        r = egm_wait_cond(&tcp->is_free, &tcp->lock, deadline_ns);
    }
    bool is_interrupted = tcp->is_interrupted;
    if (!connection && !is_interrupted && tcp->open_count < EGM_TCP_CONNECTIONS) {
        tcp->open_count++;
        r = 0;
    }
    pthread_mutex_unlock(&tcp->lock);
    if (connection) {
        connection->has_answered = false;
        *ret_connection = connection;
        *ret_is_new = false;
        return 0;
    }
    if (r < 0 || is_interrupted) {
        return is_interrupted ? EGM_E_PEER_GONE : r;
    }
    uint64_t until_ns = egm_clock_ns() + egm_tcp_patience_ns(deadline_ns);
    r = open_connection(tcp, /*is_tested=*/false, egm_min_u64(deadline_ns, until_ns),
                        ret_connection, NULL);
    if (r == EGM_E_TIMEOUT && until_ns < deadline_ns) {
        r = EGM_E_TRANSFER;
    }
    if (r == 0) {
        r = enter(tcp, *ret_connection);
        if (r < 0) {
            close_connection(*ret_connection);
        }
    }
    if (r < 0) {
        forget(tcp, NULL);
        return r;
    }
    *ret_is_new = true;
    return 0;
}

static void give_back(struct egm_tcp_import *tcp, struct egm_tcp_connection *connection)
{
    pthread_mutex_lock(&tcp->lock);
    egm_list_push_front(&tcp->idle, &connection->link);
    pthread_cond_signal(&tcp->is_free);
    pthread_mutex_unlock(&tcp->lock);
}

/* ---- transfers ---- */

/* What the mover contract knows of connection failures; what is ours keeps its name. */
static int status_of(int code)
{
    bool is_ours = code == EGM_E_TIMEOUT || code == EGM_E_CLOSED || code == -ENOMEM ||
                   code == -EMFILE || code == -ENFILE;
    return is_ours ? code : EGM_E_PEER_GONE;
}

enum loss {
    LOSS_FINAL,
    LOSS_IDLE,  /* T2 */
    LOSS_MIDWAY /* T3 */
};

static int run_once(struct egm_tcp_import *tcp, struct egm_transfer *transfers, size_t count,
                    uint64_t deadline_ns, enum loss *ret_loss)
{
    struct egm_tcp_connection *connection;
    bool is_new;
    int r = take(tcp, deadline_ns, &connection, &is_new);

    *ret_loss = LOSS_FINAL;
    if (r < 0) {
        return r;
    }
    r = egm_tcp_run(connection, transfers, count, deadline_ns);
    if (r == 0) {
        give_back(tcp, connection);
        return 0;
    }
    if (r == EGM_E_PEER_GONE && (connection->has_answered || !is_new)) {
        *ret_loss = connection->has_answered ? LOSS_MIDWAY : LOSS_IDLE;
    }
    forget(tcp, connection); /* T1 */
    return r;
}

static void run(struct egm_tcp_import *tcp, struct egm_transfer *transfers, size_t count,
                uint64_t deadline_ns)
{
    static struct egm_log_gate gate;
    enum loss loss;
    unsigned idle = 0;
    unsigned midway = 0;
    int r;

    /* Every idle connection may have been closed: each try drops one. */
    do {
        r = run_once(tcp, transfers, count, deadline_ns, &loss);
        idle += loss == LOSS_IDLE;
        midway += loss == LOSS_MIDWAY;
    } while (loss != LOSS_FINAL && idle <= EGM_TCP_CONNECTIONS && midway <= 1);
    if (r == 0) {
        return;
    }
    egm_log_gated(&gate, EGM_LOG_DEBUG, "data connection failed address=%s err=\"%s\"",
                  tcp->address, egm_strerror(r));
    for (size_t i = 0; i < count; i++) {
        if (transfers[i].status == EGM_TCP_PENDING) {
            transfers[i].status = status_of(r);
        }
    }
}

/* What would break the stream's arithmetic is refused here; the provider checks ranges. */
static int check(const struct egm_transfer *t)
{
    uint64_t room = 0;
    uint64_t user = 0;

    if (t->length == 0 || t->length > EGM_MAX_OBJECT_BYTES || t->extent_count == 0 ||
        t->extent_count > EGM_MAX_EXTENTS) {
        return EGM_E_PROTO;
    }
    for (uint32_t i = 0; i < t->extent_count; i++) {
        if (egm_add_u64(&room, room, t->extents[i].length) < 0) {
            return EGM_E_PROTO;
        }
    }
    for (size_t i = 0; i < t->iov_count; i++) {
        if (egm_add_u64(&user, user, t->iov[i].iov_len) < 0) {
            return EGM_E_INVALID;
        }
    }
    if (room < t->length) {
        return EGM_E_PROTO;
    }
    return user < t->length || (t->is_write && user != t->length) ? EGM_E_INVALID : EGM_TCP_PENDING;
}

static void tcp_transfer(struct egm_import *import, struct egm_transfer *transfers, size_t count,
                         uint64_t deadline_ns)
{
    struct egm_tcp_import *tcp = egm_container_of(import, struct egm_tcp_import, base);

    for (size_t i = 0; i < count; i++) {
        transfers[i].status = check(&transfers[i]);
    }
    for (size_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && transfers[end].is_write == transfers[begin].is_write;
             end++) {
        }
        run(tcp, transfers + begin, end - begin, deadline_ns);
    }
}

static bool tcp_is_lost(struct egm_import *import)
{
    struct egm_tcp_import *tcp = egm_container_of(import, struct egm_tcp_import, base);
    struct egm_link live;
    struct egm_tcp_connection *connection;
    struct egm_link *link;

    egm_list_init(&live);
    pthread_mutex_lock(&tcp->lock);
    while ((connection = take_idle(tcp))) {
        egm_list_push_back(&live, &connection->link);
    }
    while ((link = egm_list_pop_front(&live))) {
        egm_list_push_back(&tcp->idle, link);
    }
    bool is_lost = tcp->open_count == 0;
    pthread_mutex_unlock(&tcp->lock);
    return is_lost;
}

static void release(struct egm_tcp_import *tcp)
{
    struct egm_link *link;

    while ((link = egm_list_pop_front(&tcp->idle))) {
        close_connection(egm_container_of(link, struct egm_tcp_connection, link));
    }
    pthread_cond_destroy(&tcp->is_free);
    pthread_mutex_destroy(&tcp->lock);
    egm_free(tcp->cluster);
    egm_free(tcp->address);
    egm_free(tcp);
}

static void tcp_detach(struct egm_import *import)
{
    release(egm_container_of(import, struct egm_tcp_import, base));
}

void egm_tcp_interrupt(struct egm_import *import)
{
    struct egm_tcp_import *tcp = egm_container_of(import, struct egm_tcp_import, base);

    pthread_mutex_lock(&tcp->lock);
    tcp->is_interrupted = true;
    EGM_LIST_FOR_EACH (link, &tcp->all) {
        shutdown(egm_container_of(link, struct egm_tcp_connection, all)->fd, SHUT_RDWR);
    }
    pthread_cond_broadcast(&tcp->is_free);
    pthread_mutex_unlock(&tcp->lock);
}

static struct egm_tcp_import *create(const struct egm_import_options *options)
{
    struct egm_tcp_import *tcp = egm_calloc(1, sizeof(*tcp));

    if (!tcp) {
        return NULL;
    }
    tcp->base = (struct egm_import){
        .ops = &egm_mover_tcp, .provider = options->provider, .epoch = options->epoch};
    tcp->session = options->session;
    tcp->process = options->process;
    egm_list_init(&tcp->idle);
    egm_list_init(&tcp->all);
    pthread_mutex_init(&tcp->lock, NULL);
    egm_wait_cond_init(&tcp->is_free);
    tcp->cluster = egm_strndup(options->cluster, EGM_MAX_NAME);
    tcp->address = egm_strndup(options->address, EGM_MAX_OPTION_TEXT);
    if (!tcp->cluster || !tcp->address) {
        release(tcp);
        return NULL;
    }
    return tcp;
}

static int tcp_attach(const struct egm_import_options *options, struct egm_import **ret_import,
                      struct egm_detail *reterr)
{
    struct egm_tcp_connection *connection;
    struct egm_tcp_import *tcp = create(options);

    if (!tcp) {
        return egm_fail(reterr, -ENOMEM, "attach", "no memory for an import");
    }
    int r = open_connection(tcp, /*is_tested=*/true, options->deadline_ns, &connection, reterr);
    if (r < 0) {
        release(tcp);
        return r;
    }
    tcp->open_count = 1;
    egm_ignore(enter(tcp, connection), "nobody has the import yet");
    give_back(tcp, connection);
    *ret_import = &tcp->base;
    return 0;
}

/* The fork handlers have closed the sockets; closing their numbers again does nothing. The lock's
 * state is unknown. */
static void tcp_abandon(struct egm_import *import)
{
    struct egm_tcp_import *tcp = egm_container_of(import, struct egm_tcp_import, base);

    egm_free(tcp->cluster);
    egm_free(tcp->address);
    egm_free(tcp);
}

const struct egm_mover_ops egm_mover_tcp = {
    .name = "tcp",
    .attach = tcp_attach,
    .transfer = tcp_transfer,
    .is_lost = tcp_is_lost,
    .detach = tcp_detach,
    .abandon = tcp_abandon,
};
