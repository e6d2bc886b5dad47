/* SPDX-License-Identifier: Apache-2.0 */
/* Open and close.
 *
 * Open: configuration -> session at the master (waits for one, bounded) -> embedded provider ->
 * background thread -> first round of attaching (bounded; what is not attached then is attached
 * later). Each step is undone by close, which takes a handle in any state.
 *
 * Close: see internal.h. The embedded provider leaves after our own import of it is gone, else it
 * would wait for us. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/log.h"

#include "client/internal.h"
#include "mover/copy.h"
#include "mover/copy_team.h"
#include "mover/tcp/frame_io.h"
#include "mover/tcp/tcp.h"
#include "os/clock.h"
#include "os/host.h"
#include "os/wait.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* How long open waits for a master (B113), and for the first round of attaching. */
#define OPEN_NS (10 * EGM_NS_PER_S)
#define SETTLE_NS (2 * EGM_NS_PER_S)
#define RETRY_NS (100 * EGM_NS_PER_MS)
#define SESSION_END_NS (500 * EGM_NS_PER_MS)

bool egm_store_is_dead(const struct egm_store *store)
{
    return atomic_load_explicit(&store->is_forked, memory_order_relaxed) ||
           atomic_load_explicit(&store->is_closing, memory_order_relaxed);
}

void egm_store_wait(struct egm_store *store, uint64_t at_ns)
{
    int r = 0;

    pthread_mutex_lock(&store->lock);
    uint64_t seen = store->view_number;
    while (r == 0 && store->view_number == seen) {
        r = egm_wait_cond(&store->changed, &store->lock, at_ns);
    }
    pthread_mutex_unlock(&store->lock);
}

void egm_store_wake(struct egm_store *store)
{
    pthread_mutex_lock(&store->lock);
    store->is_woken = true;
    pthread_cond_signal(&store->wake);
    pthread_mutex_unlock(&store->lock);
}

void egm_store_note_master(struct egm_store *store, bool is_there)
{
    pthread_mutex_lock(&store->lock);
    if (is_there) {
        if (store->gone_since_ns != 0) {
            egm_info("master reachable again master=%s", store->config.master);
        }
        store->gone_since_ns = 0;
    } else if (store->gone_since_ns == 0) {
        store->gone_since_ns = egm_clock_ns();
        egm_warn("master unreachable master=%s, trying again", store->config.master);
    }
    pthread_mutex_unlock(&store->lock);
}

/* ---- construction ---- */

static void in_child(struct egm_child_hook *hook)
{
    struct egm_store *store = egm_container_of(hook, struct egm_store, hook);

    atomic_store_explicit(&store->is_forked, true, memory_order_relaxed);
}

static struct egm_store *create(const struct egm_store_options *options, struct egm_detail *reterr)
{
    struct egm_store *store = egm_calloc(1, sizeof(*store));

    if (!store) {
        egm_ignore(egm_fail(reterr, -ENOMEM, "open", "no memory for a store"), "NULL says it");
        return NULL;
    }
    pthread_mutex_init(&store->lock, NULL);
    pthread_mutex_init(&store->pool_lock, NULL);
    pthread_rwlock_init(&store->regions_lock, NULL);
    egm_wait_cond_init(&store->changed);
    egm_wait_cond_init(&store->wake);
    egm_wait_cond_init(&store->pool_free);
    egm_list_init(&store->retired);
    egm_list_init(&store->idle);
    egm_list_init(&store->connections);
    store->config.name_fd = -1;
    store->process = egm_random_u64();
    store->hook.in_child = in_child;
    egm_child_hook_add(&store->hook);
    if (egm_client_config_init(&store->config, options, reterr) < 0) {
        egm_store_close(store);
        return NULL;
    }
    egm_requester_init(&store->requester, egm_random_u64(), egm_host_id(), (uint32_t)getpid(),
                       store->config.name, store->config.tenant);
    return store;
}

/* Waits for a master that takes us. */
static int open_session(struct egm_store *store, struct egm_detail *reterr)
{
    uint64_t deadline_ns = egm_clock_ns() + egm_min_u64(OPEN_NS, store->config.deadline_ns);
    struct egm_detail last = {0};

    for (;;) {
        struct egm_rpc rpc;
        int r = egm_rpc_begin(store, deadline_ns, &rpc, &last);
        if (r == 0) {
            egm_rpc_end(store, &rpc, 0);
            return 0;
        }
        bool is_final = r == EGM_E_VERSION || r == EGM_E_NOT_PERMITTED || r == EGM_E_INVALID ||
                        r == -ENOMEM || r == EGM_E_NOT_FOUND || r == EGM_E_LIMIT ||
                        r == EGM_E_PROTO || r == EGM_E_CLOSED;
        if (!is_final && egm_clock_ns() + RETRY_NS < deadline_ns) {
            r = egm_wait_time(egm_clock_ns() + RETRY_NS);
            if (r == 0) {
                continue;
            }
            is_final = true;
        }
        int code = is_final ? r : r == EGM_E_TIMEOUT ? EGM_E_TIMEOUT : EGM_E_PEER_GONE;
        return egm_fail(reterr, code, "open", "no session at the master '%.100s': %.200s",
                        store->config.master, last.text[0] ? last.text : egm_strerror(r));
    }
}

static bool is_own_attached(const struct egm_store *store)
{
    if (!store->embedded) {
        return true;
    }
    const char *name = egm_embedded_name(store->embedded);
    for (uint32_t i = 0; store->view && i < store->view->layout->provider_count; i++) {
        if (store->view->attachments[i] &&
            strcmp(store->view->layout->providers[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Attaching ahead of use: the first put then meets a mapped pool. 0, or EGM_E_CLOSED. */
static int settle(struct egm_store *store)
{
    uint64_t until_ns = egm_clock_ns() + SETTLE_NS;
    int r = 0;

    pthread_mutex_lock(&store->lock);
    while (r == 0 && (!store->has_settled || !is_own_attached(store))) {
        r = egm_wait_cond(&store->changed, &store->lock, until_ns);
    }
    pthread_mutex_unlock(&store->lock);
    return r == EGM_E_TIMEOUT ? 0 : r;
}

static void probe_copies(void)
{
    int r = egm_copy_probe();

    if (r < 0) {
        egm_warn("copy policy stays plain err=\"%s\", continuing", egm_strerror(r));
    }
    r = egm_copy_team_configure();
    if (r < 0) {
        egm_warn("EGMSTORE_COPY_THREADS is not a number up to %u or 'auto', continuing with one",
                 EGM_COPY_TEAM_MAX);
    }
}

int egm_store_open(const struct egm_store_options *options, struct egm_store **ret_store,
                   struct egm_detail *reterr)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static const struct egm_store_options defaults;
    struct egm_detail detail = {0};

    pthread_once(&once, probe_copies);
    options = options ? options : &defaults;
    struct egm_store *store = create(options, &detail);
    int r = store ? open_session(store, &detail) : detail.code;
    if (r == 0 && options->segment_bytes > 0) {
        r = egm_embedded_open(options, store->config.master, &store->embedded, &detail);
    }
    if (r == 0) {
        r = egm_background_start(store);
        if (r < 0) {
            egm_ignore(egm_fail(&detail, r, "open", "cannot start a thread: %s", strerror(-r)),
                       "reported below");
        }
    }
    if (r == 0 && settle(store) < 0) {
        r = egm_fail(&detail, EGM_E_CLOSED, "open", "interrupted by a signal");
    }
    if (r < 0) {
        egm_store_close(store);
        if (reterr) {
            *reterr = detail;
        }
        return r;
    }
    egm_info("store open name=%s master=%s tenant=%s segment=%" PRIu64, egm_store_hostname(store),
             store->config.master, store->config.tenant, options->segment_bytes);
    *ret_store = store;
    return 0;
}

/* ---- end ---- */

static void interrupt_copies(struct egm_store *store)
{
    struct egm_view *view = egm_view_acquire(store);

    for (uint32_t i = 0; view && i < view->layout->provider_count; i++) {
        if (view->attachments[i] && !view->attachments[i]->is_map) {
            egm_tcp_interrupt(view->attachments[i]->import);
        }
    }
    egm_view_release(store, view);
}

/* The pool is shut by now, so this takes a connection of its own. */
static void end_session(struct egm_store *store)
{
    uint64_t deadline_ns = egm_clock_ns() + SESSION_END_NS;
    struct egm_connection *connection;

    if (store->requester.state != EGM_SESSION_OPEN || store->gone_since_ns != 0 ||
        egm_connection_open(store, deadline_ns, &connection, NULL) < 0) {
        return;
    }
    uint64_t request = connection->next_request++;
    egm_requester_encode_session_end(&store->requester, &connection->out, request);
    int r = egm_frame_send(connection->fd, &connection->out, deadline_ns);
    if (r == 0) {
        r = egm_frame_expect(connection->fd, EGM_MSG_SESSION_END_REPLY, request, &connection->in,
                             deadline_ns);
    }
    egm_ignore(r, "the session then runs out by itself");
    egm_connection_release(connection);
}

static void destroy(struct egm_store *store)
{
    egm_connections_close(store);
    egm_regions_release(&store->regions);
    egm_requester_release(&store->requester);
    egm_client_config_release(&store->config);
    egm_child_hook_remove(&store->hook);
    pthread_cond_destroy(&store->pool_free);
    pthread_cond_destroy(&store->wake);
    pthread_cond_destroy(&store->changed);
    pthread_rwlock_destroy(&store->regions_lock);
    pthread_mutex_destroy(&store->pool_lock);
    pthread_mutex_destroy(&store->lock);
    egm_free(store);
}

static bool is_ours(const struct egm_store *store)
{
    /* In a child: fds are closed already, the rest belongs to threads that are gone. */
    return store && !atomic_load_explicit(&store->is_forked, memory_order_relaxed);
}

void egm_store_shutdown(struct egm_store *store)
{
    if (!is_ours(store)) {
        return;
    }
    pthread_mutex_lock(&store->lock);
    atomic_store_explicit(&store->is_closing, true, memory_order_relaxed);
    pthread_cond_broadcast(&store->changed);
    pthread_mutex_unlock(&store->lock);
    egm_connections_shut(store);
    interrupt_copies(store);
}

void egm_store_close(struct egm_store *store)
{
    if (!is_ours(store)) {
        return;
    }
    /* A call that ended by a signal must not turn the drain and the farewell into nothing (I14). */
    struct egm_wait_ears ears = egm_wait_deaf();
    egm_store_shutdown(store);
    pthread_mutex_lock(&store->lock);
    while (store->calls_in_flight > 0) {
        pthread_cond_wait(&store->changed, &store->lock);
    }
    pthread_mutex_unlock(&store->lock);
    egm_background_stop(store);
    egm_background_reap(store);
    end_session(store);
    egm_embedded_close(store->embedded);
    destroy(store);
    egm_wait_hear(&ears);
}

const char *egm_store_hostname(const struct egm_store *store)
{
    return store->embedded ? egm_embedded_name(store->embedded) : store->config.name;
}
