/* SPDX-License-Identifier: Apache-2.0 */
/* The background thread.
 *
 * A turn, every 100 ms or when woken:
 *
 *   heartbeat (if due) -> layout (if the master's is newer) -> attach what is missing, drop what is
 *   lost -> publish -> unmap what nobody uses -> populate a little more
 *
 * It has a connection of its own, so that callers who use up the pool cannot starve the heartbeat.
 * Attaching may take as long as a provider (or the resolver of its name) takes to answer, up to
 * ATTACH_NS and a quarter of the session's ttl; between two attempts the heartbeat is looked after.
 * A provider that cannot be attached is tried again after a pause that doubles up to 5 s: until
 * then its objects are out of reach, and calls that meet them say EGM_E_NOT_READY.
 *
 * The map mover is tried first where the host is the same, then tcp. Being passed the files is what
 * proves that the host is the same, the id in the layout only saves hopeless attempts. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/log.h"

#include "client/internal.h"
#include "mover/map/map.h"
#include "mover/tcp/frame_io.h"
#include "os/clock.h"
#include "os/host.h"
#include "os/thread.h"
#include "os/wait.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#define TICK_NS (100 * EGM_NS_PER_MS)
#define ATTACH_NS (2 * EGM_NS_PER_S)
#define ATTACH_LEAST_NS (250 * EGM_NS_PER_MS)
#define REQUEST_NS (2 * EGM_NS_PER_S)
#define RETRY_FIRST_NS (50 * EGM_NS_PER_MS)
#define RETRY_LAST_NS (5 * EGM_NS_PER_S)
/* Longer than the longest pause between two tries. */
#define SUSPECT_S 15u
/* A third of that, so that it holds while other providers take their time. */
#define TELL_NS (5 * EGM_NS_PER_S)
/* A turn's share, some ms of page table work: 320 MiB/s. */
#define POPULATE_BYTES (UINT64_C(128) << 20)
/* Between two rounds of populating: page tables of an existing pool fill at several GB/s, and a
 * first touch that is not ahead of its use costs a copy most of its speed. */
#define POPULATE_TICK_NS (10 * EGM_NS_PER_MS)

enum provider_state {
    JOINING = 0,
    READY = 1,
    DRAINING = 2,
    DISCONNECTED = 3
};

/* A provider that could not be attached. */
struct failure {
    uint64_t provider, epoch;
    uint64_t pause_ns, next_ns;
};

#define NO_PROVIDER UINT32_MAX

struct background {
    struct egm_store *store;
    struct egm_connection *connection; /* NULL: not connected */
    uint64_t next_ping_ns;
    struct egm_layout_snapshot *layout;  /* NULL: none yet */
    struct egm_attachment **attachments; /* one per provider of layout; each counted once here */
    struct failure *failures;
    size_t failure_count, failure_cap;
    uint64_t next_tell_ns;
    uint64_t told_session; /* the SESSION in which it was told: a master forgets with a session */
};

/* ---- requests ---- */

static void drop_connection(struct background *b)
{
    if (b->connection) {
        struct egm_connection *connection = b->connection;
        b->connection = NULL;
        pthread_mutex_lock(&b->store->pool_lock);
        b->store
            ->connection_count++; /* give() counts it down: it was reserved, so it never counted */
        pthread_mutex_unlock(&b->store->pool_lock);
        egm_connection_give(b->store, connection, /*is_clean=*/false);
    }
}

static int connect_and_open(struct background *b, uint64_t deadline_ns)
{
    int r = b->connection ? 0
                          : egm_connection_take(b->store, /*is_reserved=*/true, deadline_ns,
                                                &b->connection, NULL);

    if (r == 0) {
        r = egm_session_open(b->store, b->connection, deadline_ns);
        if (r < 0) {
            drop_connection(b);
        }
    }
    return r;
}

/* Sends connection->out and receives the answer; a failure drops the connection. */
static int ask(struct background *b, uint64_t request, uint16_t reply_type, uint64_t deadline_ns)
{
    int r = egm_frame_send(b->connection->fd, &b->connection->out, deadline_ns);

    if (r == 0) {
        r = egm_frame_expect(b->connection->fd, reply_type, request, &b->connection->in,
                             deadline_ns);
    }
    if (r < 0) {
        drop_connection(b);
    }
    return r;
}

static uint64_t ping_period_ns(const struct egm_requester *requester)
{
    uint64_t quarter_ns = requester->ttl_ms * EGM_NS_PER_MS / 4;

    return quarter_ns == 0 ? EGM_NS_PER_S / 4 : egm_min_u64(quarter_ns, EGM_NS_PER_S);
}

static void ping(struct background *b)
{
    struct egm_store *store = b->store;
    uint64_t now = egm_clock_ns();
    uint64_t deadline_ns = now + REQUEST_NS;

    if (now < b->next_ping_ns) {
        return;
    }
    b->next_ping_ns = now + EGM_NS_PER_S / 4; /* if it fails */
    if (connect_and_open(b, deadline_ns) < 0) {
        return;
    }
    uint64_t request = b->connection->next_request++;
    egm_buf_clear(&b->connection->out);
    pthread_mutex_lock(&store->lock);
    egm_requester_encode_ping(&store->requester, &b->connection->out, request);
    pthread_mutex_unlock(&store->lock);
    uint64_t sent_ns = egm_clock_ns(); /* I4: counted from before it asks */
    if (ask(b, request, EGM_MSG_PING_REPLY, deadline_ns) < 0) {
        return;
    }
    pthread_mutex_lock(&store->lock);
    int r = egm_requester_take_ping_reply(&store->requester, b->connection->in.data,
                                          b->connection->in.len, b->connection->instance, sent_ns);
    uint64_t period_ns = ping_period_ns(&store->requester);
    pthread_mutex_unlock(&store->lock);
    if (r == EGM_E_NOT_FOUND) {
        b->next_ping_ns = now; /* opens the session again in the next turn */
        egm_store_wake(store);
    } else if (r == EGM_E_PROTO || r == EGM_E_STALE) {
        drop_connection(b);
    } else if (r == 0) {
        /* A blip may have ended without anybody connecting anew. */
        egm_store_note_master(store, /*is_there=*/true);
        b->next_ping_ns = now + period_ns;
    }
}

static bool is_layout_due(struct background *b)
{
    struct egm_requester *requester = &b->store->requester;

    pthread_mutex_lock(&b->store->lock);
    bool is_due = requester->state == EGM_SESSION_OPEN &&
                  (!b->layout || b->layout->instance != requester->instance ||
                   b->layout->version < requester->layout_version);
    pthread_mutex_unlock(&b->store->lock);
    return is_due;
}

static struct egm_layout_snapshot *fetch_layout(struct background *b)
{
    struct egm_layout_snapshot *layout = NULL;
    uint64_t deadline_ns = egm_clock_ns() + REQUEST_NS;

    if (connect_and_open(b, deadline_ns) < 0) {
        return NULL;
    }
    uint64_t request = b->connection->next_request++;
    egm_buf_clear(&b->connection->out);
    pthread_mutex_lock(&b->store->lock);
    uint64_t opening = b->store->requester.session_count;
    pthread_mutex_unlock(&b->store->lock);
    egm_requester_encode_layout(&b->store->requester, &b->connection->out, request);
    if (ask(b, request, EGM_MSG_LAYOUT_REPLY, deadline_ns) < 0) {
        return NULL;
    }
    int r = egm_layout_parse(b->connection->in.data, b->connection->in.len, b->connection->instance,
                             &layout);
    if (r == EGM_E_PROTO) {
        drop_connection(b);
    } else if (r == EGM_E_NOT_FOUND) {
        pthread_mutex_lock(&b->store->lock);
        egm_requester_lose(&b->store->requester, opening);
        pthread_mutex_unlock(&b->store->lock);
    }
    return r == 0 ? layout : NULL;
}

/* ---- attachments ---- */

static void release(struct background *b, struct egm_attachment *attachment)
{
    pthread_mutex_lock(&b->store->lock);
    if (attachment && --attachment->ref_count == 0) {
        egm_list_push_back(&b->store->retired, &attachment->link);
    }
    pthread_mutex_unlock(&b->store->lock);
}

void egm_background_reap(struct egm_store *store)
{
    for (;;) {
        pthread_mutex_lock(&store->lock);
        struct egm_link *link = egm_list_pop_front(&store->retired);
        pthread_mutex_unlock(&store->lock);
        if (!link) {
            return;
        }
        struct egm_attachment *attachment = egm_container_of(link, struct egm_attachment, link);
        attachment->import->ops->detach(attachment->import);
        egm_free(attachment);
    }
}

/* Takes over a new layout: attachments of providers that are in it, with the same epoch, stay. */
static bool adopt(struct background *b, struct egm_layout_snapshot *layout)
{
    struct egm_attachment **attachments = egm_calloc(layout->provider_count, sizeof(*attachments));

    if (!attachments) {
        egm_layout_unref(layout);
        return false;
    }
    for (uint32_t old = 0; b->layout && old < b->layout->provider_count; old++) {
        struct egm_attachment *attachment = b->attachments[old];
        bool is_kept = false;
        for (uint32_t i = 0; attachment && i < layout->provider_count; i++) {
            if (layout->providers[i].provider == attachment->provider &&
                layout->providers[i].epoch == attachment->epoch && !attachments[i]) {
                attachments[i] = attachment;
                is_kept = true;
                break;
            }
        }
        if (!is_kept) {
            release(b, attachment);
        }
    }
    egm_free(b->attachments);
    egm_layout_unref(b->layout);
    b->layout = layout;
    b->attachments = attachments;
    return true;
}

static struct failure *find_failure(struct background *b,
                                    const struct egm_layout_provider *provider)
{
    for (size_t i = 0; i < b->failure_count; i++) {
        if (b->failures[i].provider == provider->provider &&
            b->failures[i].epoch == provider->epoch) {
            return &b->failures[i];
        }
    }
    return NULL;
}

static void note_failure(struct background *b, const struct egm_layout_provider *provider,
                         const struct egm_detail *detail)
{
    struct failure *failure = find_failure(b, provider);

    if (!failure) {
        if (b->failure_count == b->failure_cap) {
            size_t cap = b->failure_cap ? b->failure_cap * 2 : 16;
            struct failure *more = egm_realloc(b->failures, cap * sizeof(*more));
            if (!more) {
                return; /* then it is tried again sooner */
            }
            b->failures = more;
            b->failure_cap = cap;
        }
        failure = &b->failures[b->failure_count++];
        *failure = (struct failure){.provider = provider->provider, .epoch = provider->epoch};
        egm_warn("provider not reachable name=%s err=\"%s\", trying again", provider->name,
                 detail->text);
    }
    failure->pause_ns =
        failure->pause_ns == 0 ? RETRY_FIRST_NS : egm_min_u64(failure->pause_ns * 2, RETRY_LAST_NS);
    failure->next_ns = egm_clock_ns() + failure->pause_ns;
}

static void forget_failure(struct background *b, const struct egm_layout_provider *provider)
{
    struct failure *failure = find_failure(b, provider);

    if (failure) {
        *failure = b->failures[--b->failure_count];
    }
}

/* Failures of providers that are no longer in the layout would pile up. */
static void trim_failures(struct background *b)
{
    for (size_t i = b->failure_count; i > 0; i--) {
        bool is_known = false;
        for (uint32_t p = 0; p < b->layout->provider_count; p++) {
            is_known =
                is_known || (b->layout->providers[p].provider == b->failures[i - 1].provider &&
                             b->layout->providers[p].epoch == b->failures[i - 1].epoch);
        }
        if (!is_known) {
            b->failures[i - 1] = b->failures[--b->failure_count];
        }
    }
}

static int attach_with(struct background *b, const struct egm_mover_ops *ops,
                       const struct egm_layout_provider *provider, const char *address,
                       uint64_t deadline_ns, struct egm_import **ret_import,
                       struct egm_detail *reterr)
{
    struct egm_store *store = b->store;
    struct egm_import_options options = {.provider = provider->provider,
                                         .epoch = provider->epoch,
                                         .session = store->requester.session,
                                         .process = store->process,
                                         .cluster = store->config.cluster,
                                         .address = address,
                                         .deadline_ns = deadline_ns};

    return ops->attach(&options, ret_import, reterr);
}

/* The heartbeat waits for it, and read leases hang on that (docs/design/0007). */
static uint64_t attach_share_ns(const struct background *b)
{
    pthread_mutex_lock(&b->store->lock);
    uint64_t quarter_ns = b->store->requester.ttl_ms * EGM_NS_PER_MS / 4;
    pthread_mutex_unlock(&b->store->lock);
    return egm_min_u64(egm_max_u64(quarter_ns, ATTACH_LEAST_NS), ATTACH_NS);
}

static int attach(struct background *b, const struct egm_layout_provider *provider,
                  struct egm_import **ret_import, struct egm_detail *reterr)
{
    int r = egm_fail(reterr, EGM_E_UNSUPPORTED, "attach",
                     "the provider offers no way that this process can use");
    uint64_t now_ns = egm_clock_ns();
    uint64_t share_ns = attach_share_ns(b); /* of both ways together */

    if (b->store->config.is_map_on && provider->unix_path[0] &&
        provider->host == b->store->requester.host) {
        char address[512];
        bool has_prefix = strncmp(provider->unix_path, "unix:", 5) == 0;
        int n = snprintf(address, sizeof(address), "%s%s",
                         has_prefix ? "" : "unix:", provider->unix_path);
        if (n > 0 && (size_t)n < sizeof(address)) {
            r = attach_with(b, &egm_mover_map, provider, address, now_ns + share_ns / 2, ret_import,
                            reterr);
        }
    }
    bool is_elsewhere = provider->host != b->store->requester.host;
    if (r < 0 && is_elsewhere && egm_host_is_loopback(provider->data_address)) {
        return egm_fail(
            reterr, EGM_E_UNSUPPORTED, "attach",
            "its data port %.100s serves its own host only; start it with --data-address "
            "(embedded: EGMSTORE_DATA_ADDRESS) set to an address that others reach",
            provider->data_address);
    }
    if (r < 0 && provider->data_address[0]) {
        struct egm_detail first = *reterr;
        r = attach_with(b, &egm_mover_tcp, provider, provider->data_address, now_ns + share_ns,
                        ret_import, reterr);
        if (r == 0 && first.code != EGM_E_UNSUPPORTED) {
            egm_warn("provider cannot be mapped name=%s err=\"%s\", continuing over tcp",
                     provider->name, first.text);
            pthread_mutex_lock(&b->store->lock);
            b->store->counters.fallbacks++;
            pthread_mutex_unlock(&b->store->lock);
        }
    }
    return r;
}

/* For how many more seconds a provider is to count as absent for us. */
static uint32_t suspect_seconds(struct background *b, uint32_t index)
{
    struct egm_attachment *attachment = b->attachments[index];
    uint64_t now = egm_clock_ns();

    if (!attachment) {
        return find_failure(b, &b->layout->providers[index]) ? SUSPECT_S : 0;
    }
    pthread_mutex_lock(&b->store->lock);
    uint64_t until_ns = egm_max_u64(attachment->suspect_until_ns, now);
    pthread_mutex_unlock(&b->store->lock);
    return (uint32_t)egm_div_ceil_u64(until_ns - now, EGM_NS_PER_S);
}

/* Tells the master which mounts this requester cannot reach: they must not count as present (I6).
 * With `changed` a provider index, whose reach has just changed, all of its mounts are told. */
static void tell_reach(struct background *b, uint32_t changed)
{
    uint64_t deadline_ns = egm_clock_ns() + REQUEST_NS;

    if (connect_and_open(b, deadline_ns) < 0 || b->connection->instance != b->layout->instance) {
        return;
    }
    egm_buf_clear(&b->connection->out);
    for (uint32_t i = 0; i < b->layout->mount_count; i++) {
        const struct egm_layout_mount *mount = &b->layout->mounts[i];
        uint32_t seconds = suspect_seconds(b, mount->provider_index);
        if (seconds > 0 || mount->provider_index == changed) {
            egm_requester_encode_suspect(&b->store->requester, &b->connection->out, mount->mount,
                                         seconds);
        }
    }
    if (b->connection->out.len > 0 &&
        egm_frame_send(b->connection->fd, &b->connection->out, deadline_ns) < 0) {
        drop_connection(b);
    }
}

/* Suspicions run out at the master, and end with a session: those that hold are told again. */
static void tell_again(struct background *b)
{
    uint64_t now = egm_clock_ns();

    pthread_mutex_lock(&b->store->lock);
    bool is_open = b->store->requester.state == EGM_SESSION_OPEN;
    uint64_t session = b->store->requester.session_count;
    pthread_mutex_unlock(&b->store->lock);
    if (b->layout && is_open && (now >= b->next_tell_ns || session != b->told_session)) {
        b->next_tell_ns = now + TELL_NS;
        b->told_session = session;
        tell_reach(b, NO_PROVIDER);
    }
}

/* True if it is attached now. */
static bool try_attach(struct background *b, uint32_t index)
{
    const struct egm_layout_provider *provider = &b->layout->providers[index];
    struct failure *failure = find_failure(b, provider);
    struct egm_detail detail = {0};
    struct egm_import *import;

    if (failure && egm_clock_ns() < failure->next_ns) {
        return false;
    }
    struct egm_attachment *attachment = egm_calloc(1, sizeof(*attachment));
    int r = attachment ? attach(b, provider, &import, &detail) : -ENOMEM;
    if (r < 0) {
        egm_free(attachment);
        note_failure(b, provider, &detail);
        tell_reach(b, index);
        return false;
    }
    *attachment = (struct egm_attachment){.import = import,
                                          .ref_count = 1,
                                          .provider = provider->provider,
                                          .epoch = provider->epoch,
                                          .is_map = import->ops == &egm_mover_map};
    egm_list_init(&attachment->link);
    b->attachments[index] = attachment;
    if (failure) {
        forget_failure(b, provider);
        tell_reach(b, index);
    }
    egm_info("provider attached name=%s mover=%s", provider->name, import->ops->name);
    return true;
}

/* Attaches what is missing and drops what is lost. True if anything changed. */
static bool reconcile(struct background *b)
{
    bool is_changed = false;

    for (uint32_t i = 0; b->layout && i < b->layout->provider_count && !egm_store_is_dead(b->store);
         i++) {
        struct egm_attachment *attachment = b->attachments[i];
        if (attachment && attachment->import->ops->is_lost(attachment->import)) {
            egm_info("provider detached name=%s", b->layout->providers[i].name);
            b->attachments[i] = NULL;
            release(b, attachment);
            is_changed = true;
            attachment = NULL;
            /* Its socket may be closing: no use in coming back at once. */
            note_failure(b, &b->layout->providers[i],
                         &(struct egm_detail){.text = "the provider has let go"});
            continue;
        }
        uint8_t state = b->layout->providers[i].state;
        if (!attachment && (state == JOINING || state == READY)) {
            is_changed = try_attach(b, i) || is_changed;
            ping(b);
            tell_again(b);
        }
    }
    tell_again(b);
    return is_changed;
}

/* True if there is more to do. */
static bool populate(struct background *b)
{
    for (uint32_t i = 0; b->layout && i < b->layout->provider_count; i++) {
        struct egm_attachment *attachment = b->attachments[i];
        if (attachment && attachment->is_map &&
            egm_map_populate_more(attachment->import, POPULATE_BYTES) > 0) {
            return true;
        }
    }
    return false;
}

/* Returns when the next one is due. */
static uint64_t turn(struct background *b)
{
    bool is_changed = false;

    pthread_mutex_lock(&b->store->lock);
    uint64_t refresh_asked = b->store->refresh_asked;
    if (refresh_asked != b->store->refresh_done) {
        b->next_ping_ns = 0; /* its answer tells the layout's version */
    }
    pthread_mutex_unlock(&b->store->lock);
    ping(b);
    if (is_layout_due(b)) {
        struct egm_layout_snapshot *layout = fetch_layout(b);
        if (layout && adopt(b, layout)) {
            trim_failures(b);
            is_changed = true;
        }
    }
    is_changed = reconcile(b) || is_changed;
    if (is_changed && egm_view_publish(b->store, b->layout, b->attachments) < 0) {
        egm_warn("no memory for a new view of the pool, continuing with the old one");
    }
    egm_background_reap(b->store);
    pthread_mutex_lock(&b->store->lock);
    if ((b->layout && !b->store->has_settled) || refresh_asked != b->store->refresh_done) {
        b->store->has_settled = b->store->has_settled || b->layout;
        b->store->refresh_done = refresh_asked;
        pthread_cond_broadcast(&b->store->changed);
    }
    pthread_mutex_unlock(&b->store->lock);
    return egm_clock_ns() + (populate(b) ? POPULATE_TICK_NS : TICK_NS);
}

static void pause_until(struct egm_store *store, uint64_t at_ns)
{
    int r = 0;

    pthread_mutex_lock(&store->lock);
    while (!store->is_woken && r == 0) {
        r = egm_wait_cond(&store->wake, &store->lock, at_ns);
    }
    store->is_woken = false;
    pthread_mutex_unlock(&store->lock);
}

static void finish(struct background *b)
{
    for (uint32_t i = 0; b->layout && i < b->layout->provider_count; i++) {
        release(b, b->attachments[i]);
    }
    egm_free(b->attachments);
    egm_layout_unref(b->layout);
    egm_free(b->failures);
    egm_ignore(egm_view_publish(b->store, NULL, NULL), "publishing nothing needs no memory");
    egm_background_reap(b->store);
    drop_connection(b);
}

static void *run(void *arg)
{
    struct background b = {.store = arg};

    egm_wait_watch(&b.store->is_closing);
    while (!egm_store_is_dead(b.store)) {
        pause_until(b.store, turn(&b));
    }
    finish(&b);
    return NULL;
}

void egm_background_refresh(struct egm_store *store, uint64_t deadline_ns)
{
    int r = 0;

    pthread_mutex_lock(&store->lock);
    uint64_t mine = ++store->refresh_asked;
    store->is_woken = true;
    pthread_cond_signal(&store->wake);
    while (r == 0 && store->refresh_done < mine) {
        r = egm_wait_cond(&store->changed, &store->lock, deadline_ns);
    }
    pthread_mutex_unlock(&store->lock);
}

int egm_background_start(struct egm_store *store)
{
    int r = egm_thread_start(&store->thread, "egm-client", run, store);

    store->has_thread = r == 0;
    return r;
}

void egm_background_stop(struct egm_store *store)
{
    if (store->has_thread) {
        egm_store_wake(store);
        pthread_join(store->thread, NULL);
        store->has_thread = false;
    }
}
