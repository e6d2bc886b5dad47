/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"

#include "client/internal.h"
#include "mover/tcp/frame_io.h"
#include "os/clock.h"
#include "os/net.h"
#include "os/wait.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Buffers above this are given back with the connection: one huge batch must not cost memory for
 * ever. */
#define KEEP_BYTES (UINT64_C(1) << 20)

/* A greeting takes one round trip; a master that needs longer is stalled, and another attempt is as
 * good. */
#define CONNECT_NS (5 * EGM_NS_PER_S)

void egm_connection_release(struct egm_connection *connection)
{
    if (connection->fd >= 0) {
        egm_child_close(connection->fd);
    }
    egm_buf_release(&connection->out);
    egm_buf_release(&connection->in);
    egm_free(connection);
}

static int connect_to_master(struct egm_store *store, uint64_t deadline_ns, int *ret_fd,
                             struct egm_detail *reterr)
{
    if (store->config.unix_master[0] &&
        egm_net_connect(store->config.unix_master, deadline_ns, ret_fd, NULL) == 0) {
        return 0;
    }
    return egm_net_connect(store->config.master, deadline_ns, ret_fd, reterr);
}

static int greet(struct egm_store *store, struct egm_connection *connection, uint64_t deadline_ns,
                 struct egm_detail *reterr)
{
    struct egm_greeting greeting = {
        .role = EGM_ROLE_REQUESTER, .process = store->process, .cluster = store->config.cluster};
    struct egm_hello_reply reply;
    int r = egm_hello_exchange(connection->fd, &greeting, deadline_ns, &reply, reterr);

    if (r < 0) {
        return r;
    }
    connection->instance = reply.instance;
    pthread_mutex_lock(&store->lock);
    egm_ignore(egm_requester_meet(&store->requester, reply.instance),
               "the session is opened by whoever uses it");
    pthread_mutex_unlock(&store->lock);
    return 0;
}

int egm_connection_open(struct egm_store *store, uint64_t deadline_ns,
                        struct egm_connection **ret_connection, struct egm_detail *reterr)
{
    struct egm_connection *connection = egm_calloc(1, sizeof(*connection));
    int fd;

    if (!connection) {
        return egm_fail(reterr, -ENOMEM, "connect", "no memory for a connection");
    }
    connection->fd = -1;
    connection->next_request = 2; /* 1 was the greeting */
    egm_list_init(&connection->link);
    egm_list_init(&connection->all);
    egm_buf_init(&connection->out, EGM_MAX_FRAME + EGM_FRAME_HEADER);
    egm_buf_init(&connection->in, EGM_MAX_FRAME);
    uint64_t call_deadline_ns = deadline_ns;
    deadline_ns = egm_min_u64(deadline_ns, egm_clock_ns() + CONNECT_NS);
    int r = connect_to_master(store, deadline_ns, &fd, reterr);
    if (r == 0) {
        r = egm_child_track(fd);
        if (r < 0) {
            close(fd);
        } else {
            connection->fd = fd;
            r = greet(store, connection, deadline_ns, reterr);
        }
    }
    if (r == EGM_E_TIMEOUT && egm_clock_ns() < call_deadline_ns) {
        r = EGM_E_PEER_GONE; /* the caller's time is not up: it decides on another attempt */
    }
    if (r != EGM_E_CLOSED && r != -ENOMEM) { /* those say nothing about it */
        egm_store_note_master(store, r == 0);
    }
    if (r < 0) {
        egm_connection_release(connection);
        return r;
    }
    *ret_connection = connection;
    return 0;
}

/* Takes out an idle connection that still lives, or NULL. Under pool_lock. */
static struct egm_connection *take_idle(struct egm_store *store)
{
    struct egm_link *link;

    while ((link = egm_list_pop_front(&store->idle))) {
        struct egm_connection *connection = egm_container_of(link, struct egm_connection, link);
        if (!egm_net_is_stale(connection->fd)) {
            return connection;
        }
        egm_list_remove(&connection->all);
        store->connection_count--;
        egm_connection_release(connection);
    }
    return NULL;
}

/* An idle connection, or the right to open one (*ret_connection NULL). */
static int wait_for_turn(struct egm_store *store, uint64_t deadline_ns,
                         struct egm_connection **ret_connection)
{
    int r = 0;

    pthread_mutex_lock(&store->pool_lock);
    for (;;) {
        if (egm_store_is_dead(store)) {
            r = EGM_E_CLOSED;
            break;
        }
        *ret_connection = take_idle(store);
        if (*ret_connection) {
            break;
        }
        if (store->connection_count < EGM_MAX_CONNECTIONS_PER_CLIENT) {
            store->connection_count++;
            break;
        }
        r = egm_wait_cond(&store->pool_free, &store->pool_lock, deadline_ns);
        if (r < 0) {
            break;
        }
    }
    pthread_mutex_unlock(&store->pool_lock);
    return r;
}

static void count_down(struct egm_store *store)
{
    store->connection_count--;
    pthread_cond_signal(&store->pool_free);
}

/* Enters it among those that close shuts down; a store that closes meanwhile refuses it. */
static int list_connection(struct egm_store *store, struct egm_connection *connection)
{
    pthread_mutex_lock(&store->pool_lock);
    bool is_dead = egm_store_is_dead(store);
    if (!is_dead) {
        egm_list_push_back(&store->connections, &connection->all);
    }
    pthread_mutex_unlock(&store->pool_lock);
    return is_dead ? EGM_E_CLOSED : 0;
}

int egm_connection_take(struct egm_store *store, bool is_reserved, uint64_t deadline_ns,
                        struct egm_connection **ret_connection, struct egm_detail *reterr)
{
    struct egm_connection *connection = NULL;
    int r = is_reserved ? 0 : wait_for_turn(store, deadline_ns, &connection);

    if (r == 0 && !connection) {
        r = egm_connection_open(store, deadline_ns, &connection, reterr);
        if (r == 0) {
            r = list_connection(store, connection);
            if (r < 0) {
                egm_connection_release(connection);
            }
        }
        if (r < 0 && !is_reserved) {
            pthread_mutex_lock(&store->pool_lock);
            count_down(store);
            pthread_mutex_unlock(&store->pool_lock);
        }
    }
    if (r < 0) {
        return r;
    }
    egm_buf_clear(&connection->out);
    *ret_connection = connection;
    return 0;
}

static void trim(struct egm_buf *buf)
{
    if (buf->cap > KEEP_BYTES) {
        egm_buf_release(buf);
    }
}

void egm_connection_give(struct egm_store *store, struct egm_connection *connection, bool is_clean)
{
    pthread_mutex_lock(&store->pool_lock);
    if (is_clean) {
        trim(&connection->out);
        trim(&connection->in);
        egm_list_push_front(&store->idle, &connection->link);
        pthread_cond_signal(&store->pool_free);
    } else {
        egm_list_remove(&connection->all);
        count_down(store);
    }
    pthread_mutex_unlock(&store->pool_lock);
    if (!is_clean) {
        egm_connection_release(connection);
    }
}

void egm_connections_shut(struct egm_store *store)
{
    pthread_mutex_lock(&store->pool_lock);
    EGM_LIST_FOR_EACH (link, &store->connections) {
        struct egm_connection *connection = egm_container_of(link, struct egm_connection, all);
        shutdown(connection->fd, SHUT_RDWR);
    }
    pthread_cond_broadcast(&store->pool_free);
    pthread_mutex_unlock(&store->pool_lock);
}

void egm_connections_close(struct egm_store *store)
{
    struct egm_link *link;

    while ((link = egm_list_pop_front(&store->connections))) {
        egm_connection_release(egm_container_of(link, struct egm_connection, all));
    }
    egm_list_init(&store->idle);
    store->connection_count = 0;
}
