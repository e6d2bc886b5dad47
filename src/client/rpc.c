/* SPDX-License-Identifier: Apache-2.0 */
/* One request and its answer.
 *
 * A connection belongs to one master instance, and the one that was greeted last is the master;
 * connections to others are closed instead of used: what is said over them would reach a master
 * that no longer grants. A session that is not open is opened on the connection at hand first; many
 * callers may do that at once, which the master takes as repetition. */
#include "base/assert.h"
#include "base/log.h"

#include "client/internal.h"
#include "mover/tcp/frame_io.h"
#include "os/clock.h"

#include <errno.h>

/* Connections of an instance that is gone are dropped one by one; there are at most so many, and
 * one fresh one. */
#define TAKE_MAX (EGM_MAX_CONNECTIONS_PER_CLIENT + 2)

/* SESSIONs in a row: the master answers one with a challenge, and with another one when a provider
 * joins meanwhile. */
#define SESSIONS_MAX 4u

static int exchange(struct egm_connection *connection, uint64_t request, uint16_t reply_type,
                    uint64_t deadline_ns)
{
    int r = egm_frame_send(connection->fd, &connection->out, deadline_ns);

    if (r == 0) {
        r = egm_frame_expect(connection->fd, reply_type, request, &connection->in, deadline_ns);
    }
    return r;
}

static int open_once(struct egm_store *store, struct egm_connection *connection,
                     uint64_t deadline_ns)
{
    uint64_t request = connection->next_request++;

    pthread_mutex_lock(&store->lock);
    bool is_outdated = connection->instance != store->requester.instance;
    bool is_needed = !is_outdated && store->requester.state != EGM_SESSION_OPEN;
    if (is_needed) {
        egm_buf_clear(&connection->out);
        egm_requester_encode_session(&store->requester, &connection->out, request);
    }
    pthread_mutex_unlock(&store->lock);
    if (!is_needed) {
        return is_outdated ? EGM_E_STALE : 0;
    }
    uint64_t sent_ns = egm_clock_ns();
    int r = exchange(connection, request, EGM_MSG_SESSION_REPLY, deadline_ns);
    if (r < 0) {
        return r;
    }
    pthread_mutex_lock(&store->lock);
    r = egm_requester_take_session_reply(&store->requester, connection->in.data, connection->in.len,
                                         connection->instance, sent_ns);
    pthread_mutex_unlock(&store->lock);
    egm_buf_clear(&connection->out);
    if (r == 0) {
        egm_debug("session open session=%016llx instance=%016llx",
                  (unsigned long long)store->requester.session,
                  (unsigned long long)connection->instance);
        egm_store_wake(store);
    }
    return r;
}

int egm_session_open(struct egm_store *store, struct egm_connection *connection,
                     uint64_t deadline_ns)
{
    int r = EGM_E_AGAIN;

    for (unsigned i = 0; i < SESSIONS_MAX && r == EGM_E_AGAIN; i++) {
        r = open_once(store, connection, deadline_ns);
    }
    return r;
}

int egm_rpc_begin(struct egm_store *store, uint64_t deadline_ns, struct egm_rpc *ret_rpc,
                  struct egm_detail *reterr)
{
    struct egm_connection *connection;
    int r = 0;

    for (unsigned i = 0; i < TAKE_MAX; i++) {
        r = egm_connection_take(store, /*is_reserved=*/false, deadline_ns, &connection, reterr);
        if (r < 0) {
            return r;
        }
        r = egm_session_open(store, connection, deadline_ns);
        if (r == 0) {
            pthread_mutex_lock(&store->lock);
            uint64_t opening = store->requester.session_count;
            pthread_mutex_unlock(&store->lock);
            *ret_rpc = (struct egm_rpc){.connection = connection,
                                        .request = connection->next_request++,
                                        .opening = opening,
                                        .deadline_ns = deadline_ns};
            return 0;
        }
        egm_connection_give(store, connection, /*is_clean=*/false);
        if (r != EGM_E_STALE && r != EGM_E_AGAIN && r != EGM_E_PEER_GONE) {
            break;
        }
    }
    return egm_fail(reterr, r, "session", "the master does not open a session: %s",
                    egm_strerror(r));
}

/* The connection is of no use any more. */
static int give_up(struct egm_store *store, struct egm_rpc *rpc, int code)
{
    egm_connection_give(store, rpc->connection, /*is_clean=*/false);
    rpc->connection = NULL;
    return egm_store_is_dead(store) ? EGM_E_CLOSED : code;
}

int egm_rpc_send(struct egm_store *store, struct egm_rpc *rpc)
{
    int r = egm_frame_send(rpc->connection->fd, &rpc->connection->out, rpc->deadline_ns);

    return r < 0 ? give_up(store, rpc, r) : 0;
}

int egm_rpc_receive(struct egm_store *store, struct egm_rpc *rpc, uint16_t reply_type,
                    uint64_t *ret_request)
{
    struct egm_frame frame = {0};
    int r = egm_frame_recv(rpc->connection->fd, &frame, &rpc->connection->in, rpc->deadline_ns);

    if (r == 0 && frame.type != reply_type) {
        r = EGM_E_PROTO;
    }
    if (r < 0) {
        return give_up(store, rpc, r);
    }
    *ret_request = frame.request;
    return 0;
}

int egm_rpc_exchange(struct egm_store *store, struct egm_rpc *rpc, uint16_t reply_type)
{
    rpc->sent_ns = egm_clock_ns();
    int r = exchange(rpc->connection, rpc->request, reply_type, rpc->deadline_ns);

    return r < 0 ? give_up(store, rpc, r) : 0;
}

int egm_rpc_post(struct egm_store *store, struct egm_rpc *rpc)
{
    int r = egm_frame_send(rpc->connection->fd, &rpc->connection->out, rpc->deadline_ns);

    egm_connection_give(store, rpc->connection, r == 0);
    rpc->connection = NULL;
    return r;
}

void egm_rpc_end(struct egm_store *store, struct egm_rpc *rpc, int code)
{
    if (code == EGM_E_NOT_FOUND) {
        pthread_mutex_lock(&store->lock);
        /* Another thread may have opened it again with a younger master meanwhile. */
        if (store->requester.instance == rpc->connection->instance) {
            egm_requester_lose(&store->requester, rpc->opening);
        }
        pthread_mutex_unlock(&store->lock);
    }
    egm_connection_give(store, rpc->connection, code != EGM_E_PROTO);
    rpc->connection = NULL;
}
