/* SPDX-License-Identifier: Apache-2.0 */
/* exist, prefix, query and remove: one frame and one answer, or a few frames for lists that do not
 * fit one.
 *
 * exist, the call that engines make most, goes in windows: all are sent before the first answer is
 * read, so that this side codes keys while the master looks up those before. Answers may overtake
 * one another and are told apart by their request numbers. They are a byte a key: the master keeps
 * reading while so little waits to be sent (PAUSE_BYTES), so that neither side can block the
 * other.
 *
 * Requests of these kinds may be repeated without harm, so a failed exchange is tried again by
 * egm_retry's rules: a removal that was done by the first try answers EGM_E_NOT_FOUND to the
 * second, which is then true. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"

#include "client/internal.h"
#include "os/clock.h"

#include <errno.h>
#include <string.h>

/* Plain bytes of the keys of one frame: coded they take less. */
#define FRAME_KEY_BYTES (UINT64_C(32) << 20)
/* A query's answer has up to 8 replicas of 16 extents per key. */
#define QUERY_KEYS EGM_WINDOW_KEYS
#define EXIST_KEYS EGM_MAX_BATCH_KEYS
#define EXIST_WINDOW_KEYS 512u
#define MAX_WINDOWS (EXIST_KEYS / EXIST_WINDOW_KEYS)

struct lookup {
    struct egm_store *store;
    const struct egm_key *keys; /* of this frame */
    size_t count;
    size_t window_count; /* 0, 1: everything in one frame */
    uint16_t reply_type;
    uint8_t flags;
    const char *pattern;
    /* Writes the request. */
    int (*encode)(const struct lookup *l, struct egm_buf *buf, uint64_t request);
    /* Reads the answer: 0, the head's status, or EGM_E_PROTO. */
    int (*parse)(struct lookup *l, const void *payload, size_t size, uint64_t instance);

    int *results; /* of this frame */
    struct egm_object_info *infos;
    struct egm_found *found;
    uint64_t number;
    char reason[256];
};

static size_t frame_keys(const struct egm_key *keys, size_t count, size_t most)
{
    uint64_t bytes = 0;
    size_t n = 0;

    while (n < count && n < most && (n == 0 || bytes + keys[n].size + 6 <= FRAME_KEY_BYTES)) {
        bytes += keys[n].size + 6;
        n++;
    }
    return n;
}

static struct lookup window_of(const struct lookup *l, size_t window)
{
    struct lookup part = *l;
    size_t first = l->count * window / l->window_count;

    part.keys = l->keys + first;
    part.results = l->results + first;
    part.count = l->count * (window + 1) / l->window_count - first;
    return part;
}

/* Codes and sends window after window. On failure the connection is closed and rpc is over. */
static int send_windows(const struct lookup *l, struct egm_rpc *rpc)
{
    for (size_t i = 0; i < l->window_count; i++) {
        struct lookup part = window_of(l, i);
        egm_buf_clear(&rpc->connection->out);
        int r = l->encode(&part, &rpc->connection->out, rpc->request + i);
        if (r < 0) {
            egm_rpc_end(l->store, rpc, EGM_E_PROTO);
            return r;
        }
        r = egm_rpc_send(l->store, rpc);
        if (r < 0) {
            return r;
        }
    }
    rpc->connection->next_request += l->window_count;
    return 0;
}

/* Reads all answers, whatever the first ones say; the first bad one decides. */
static int exchange_windows(struct lookup *l, struct egm_rpc *rpc)
{
    bool is_answered[MAX_WINDOWS] = {false};
    int result = 0;
    int r = send_windows(l, rpc);

    if (r < 0) {
        return r;
    }
    for (size_t i = 0; i < l->window_count && result != EGM_E_PROTO; i++) {
        uint64_t request;
        r = egm_rpc_receive(l->store, rpc, l->reply_type, &request);
        if (r < 0) {
            return r;
        }
        uint64_t window = request - rpc->request;
        if (window >= l->window_count || is_answered[window]) {
            result = EGM_E_PROTO;
            break;
        }
        is_answered[window] = true;
        struct lookup part = window_of(l, window);
        r = l->parse(&part, rpc->connection->in.data, rpc->connection->in.len,
                     rpc->connection->instance);
        result = result == 0 || r == EGM_E_PROTO ? r : result;
    }
    egm_rpc_end(l->store, rpc, result);
    return result;
}

/* One try. */
static int exchange(struct lookup *l, uint64_t deadline_ns, struct egm_detail *reterr)
{
    struct egm_rpc rpc;
    int r = egm_rpc_begin(l->store, deadline_ns, &rpc, reterr);

    if (r < 0) {
        return r;
    }
    if (l->window_count > 1) {
        r = exchange_windows(l, &rpc);
        return r < 0 ? egm_fail(reterr, r, "request", "the master does not answer as it should: %s",
                                egm_strerror(r))
                     : 0;
    }
    r = l->encode(l, &rpc.connection->out, rpc.request);
    if (r < 0) {
        egm_rpc_end(l->store, &rpc, 0);
        return egm_fail(reterr, r, "encode", "the request cannot be made: %s", egm_strerror(r));
    }
    r = egm_rpc_exchange(l->store, &rpc, l->reply_type);
    if (r < 0) {
        return egm_fail(reterr, r, "request", "no answer from the master: %s", egm_strerror(r));
    }
    r = l->parse(l, rpc.connection->in.data, rpc.connection->in.len, rpc.connection->instance);
    egm_rpc_end(l->store, &rpc, r);
    if (r < 0) {
        return egm_fail(reterr, r, "request", "the master says: %s%s%s", egm_strerror(r),
                        l->reason[0] ? ": " : "", l->reason);
    }
    return 0;
}

static int ask(struct lookup *l, uint64_t deadline_ns, struct egm_detail *reterr)
{
    struct egm_store *store = l->store;

    pthread_mutex_lock(&store->lock);
    struct egm_retry retry = {.deadline_ns = deadline_ns, .gone_since_ns = store->gone_since_ns};
    pthread_mutex_unlock(&store->lock);
    for (;;) {
        uint64_t at_ns;
        int r = egm_store_is_dead(store) ? EGM_E_CLOSED : exchange(l, deadline_ns, reterr);
        if (r == 0) {
            if (reterr) {
                *reterr = (struct egm_detail){0}; /* an earlier try may have left its reason */
            }
            return 0;
        }
        r = egm_retry_decide(&retry, r, egm_clock_ns(), &at_ns);
        if (r < 0) {
            return r;
        }
        egm_store_wait(store, at_ns);
    }
}

/* ---- exist ---- */

static int encode_exist(const struct lookup *l, struct egm_buf *buf, uint64_t request)
{
    return egm_exist_encode(&l->store->requester, buf, request, l->flags, l->keys, l->count);
}

static int parse_exist(struct lookup *l, const void *payload, size_t size, uint64_t instance)
{
    (void)instance;
    return egm_exist_parse(payload, size, l->count, l->results);
}

int egm_client_exist(struct egm_store *store, const struct egm_key *keys, size_t count,
                     int *results, uint64_t deadline_ns, struct egm_detail *reterr)
{
    for (size_t done = 0, n; done < count; done += n) {
        n = frame_keys(keys + done, count - done, EXIST_KEYS);
        struct lookup l = {.store = store,
                           .keys = keys + done,
                           .count = n,
                           .window_count = egm_div_ceil_u64(n, EXIST_WINDOW_KEYS),
                           .reply_type = EGM_MSG_EXIST_REPLY,
                           .encode = encode_exist,
                           .parse = parse_exist,
                           .results = results + done};
        int r = ask(&l, deadline_ns, reterr);
        if (r < 0) {
            for (size_t i = done; i < count; i++) {
                results[i] = r;
            }
            return done == 0 ? r : 0;
        }
    }
    return 0;
}

/* ---- prefix ---- */

static int encode_prefix(const struct lookup *l, struct egm_buf *buf, uint64_t request)
{
    return egm_prefix_encode(&l->store->requester, buf, request, l->keys, l->count);
}

static int parse_count(struct lookup *l, const void *payload, size_t size, uint64_t instance)
{
    (void)instance;
    return egm_count_parse(payload, size, l->count ? l->count : UINT64_MAX, &l->number, l->reason,
                           sizeof(l->reason));
}

int egm_client_prefix(struct egm_store *store, const struct egm_key *keys, size_t count,
                      size_t *ret_count, uint64_t deadline_ns, struct egm_detail *reterr)
{
    size_t total = 0;

    for (size_t done = 0, n; done < count; done += n) {
        n = frame_keys(keys + done, count - done, EXIST_KEYS);
        struct lookup l = {.store = store,
                           .keys = keys + done,
                           .count = n,
                           .reply_type = EGM_MSG_PREFIX_REPLY,
                           .encode = encode_prefix,
                           .parse = parse_count};
        int r = ask(&l, deadline_ns, reterr);
        if (r < 0) {
            return r;
        }
        total += l.number;
        if (l.number < n) {
            break;
        }
    }
    *ret_count = total;
    return 0;
}

/* ---- query ---- */

static int encode_query(const struct lookup *l, struct egm_buf *buf, uint64_t request)
{
    return egm_query_encode(&l->store->requester, buf, request, l->keys, l->count);
}

static void name_replica(const struct egm_view *view, uint64_t instance, uint32_t mount,
                         struct egm_replica_info *info)
{
    const struct egm_layout_mount *found =
        view && view->layout->instance == instance ? egm_layout_find(view->layout, mount) : NULL;

    if (found) {
        const char *name = view->layout->providers[found->provider_index].name;
        size_t length = egm_min_u64(strlen(name), sizeof(info->provider) - 1);
        memcpy(info->provider, name, length);
        info->provider[length] = '\0';
    }
}

static int parse_query(struct lookup *l, const void *payload, size_t size, uint64_t instance)
{
    int r = egm_query_parse(payload, size, l->count, l->found);

    if (r < 0) {
        return r;
    }
    struct egm_view *view = egm_view_acquire(l->store);
    for (size_t i = 0; i < l->count; i++) {
        const struct egm_found *found = &l->found[i];
        struct egm_object_info *info = &l->infos[i];
        *info = (struct egm_object_info){
            .status = found->status, .size = found->size, .replica_count = found->replica_count};
        for (uint32_t p = 0; p < found->replica_count; p++) {
            info->replicas[p].offset = found->offsets[p];
            info->replicas[p].size = found->size;
            name_replica(view, instance, found->mounts[p], &info->replicas[p]);
        }
    }
    egm_view_release(l->store, view);
    return 0;
}

static void fail_infos(struct egm_object_info *infos, size_t count, int code)
{
    for (size_t i = 0; i < count; i++) {
        infos[i] = (struct egm_object_info){.status = code};
    }
}

int egm_client_query(struct egm_store *store, const struct egm_key *keys, size_t count,
                     struct egm_object_info *infos, uint64_t deadline_ns, struct egm_detail *reterr)
{
    struct egm_found *found = egm_alloc(egm_min_u64(count, QUERY_KEYS) * sizeof(*found));
    int r = found ? 0 : egm_fail(reterr, -ENOMEM, "query", "no memory for the answer");
    size_t done = 0;

    for (size_t n; r == 0 && done < count; done += n) {
        n = frame_keys(keys + done, count - done, QUERY_KEYS);
        struct lookup l = {.store = store,
                           .keys = keys + done,
                           .count = n,
                           .reply_type = EGM_MSG_GET_START_REPLY,
                           .encode = encode_query,
                           .parse = parse_query,
                           .infos = infos + done,
                           .found = found};
        r = ask(&l, deadline_ns, reterr);
        if (r < 0) {
            break;
        }
    }
    if (r < 0) {
        fail_infos(infos + done, count - done, r);
    }
    egm_free(found);
    return r < 0 && done == 0 ? r : 0;
}

/* ---- remove ---- */

static int encode_remove(const struct lookup *l, struct egm_buf *buf, uint64_t request)
{
    return egm_remove_encode(&l->store->requester, buf, request, l->flags, l->keys, l->count);
}

static int parse_remove(struct lookup *l, const void *payload, size_t size, uint64_t instance)
{
    (void)instance;
    return egm_results_parse(payload, size, l->count, l->results);
}

int egm_client_remove(struct egm_store *store, bool force, const struct egm_key *keys, size_t count,
                      int *results, uint64_t deadline_ns, struct egm_detail *reterr)
{
    for (size_t done = 0, n; done < count; done += n) {
        n = frame_keys(keys + done, count - done, EXIST_KEYS);
        struct lookup l = {.store = store,
                           .keys = keys + done,
                           .count = n,
                           .reply_type = EGM_MSG_REMOVE_REPLY,
                           .flags = force ? EGM_FORCE : 0,
                           .encode = encode_remove,
                           .parse = parse_remove,
                           .results = results + done};
        int r = ask(&l, deadline_ns, reterr);
        if (r < 0) {
            for (size_t i = done; i < count; i++) {
                results[i] = r;
            }
            return done == 0 ? r : 0;
        }
    }
    return 0;
}

static int encode_remove_all(const struct lookup *l, struct egm_buf *buf, uint64_t request)
{
    if (l->pattern) {
        egm_remove_matching_encode(&l->store->requester, buf, request, l->flags, l->pattern);
    } else {
        egm_remove_all_encode(&l->store->requester, buf, request, l->flags);
    }
    return buf->failed;
}

int egm_client_remove_many(struct egm_store *store, const char *pattern, bool force,
                           uint64_t *ret_count, uint64_t deadline_ns, struct egm_detail *reterr)
{
    struct lookup l = {.store = store,
                       .pattern = pattern,
                       .reply_type =
                           pattern ? EGM_MSG_REMOVE_MATCHING_REPLY : EGM_MSG_REMOVE_ALL_REPLY,
                       .flags = force ? EGM_FORCE : 0,
                       .encode = encode_remove_all,
                       .parse = parse_count};
    int r = ask(&l, deadline_ns, reterr);

    if (r == 0) {
        *ret_count = l.number;
    }
    return r;
}

/* ---- health ---- */

static int encode_probe(const struct lookup *l, struct egm_buf *buf, uint64_t request)
{
    egm_requester_encode_layout(&l->store->requester, buf, request);
    return buf->failed;
}

static int parse_probe(struct lookup *l, const void *payload, size_t size, uint64_t instance)
{
    struct egm_layout_snapshot *layout = NULL;

    (void)l;
    int r = egm_layout_parse(payload, size, instance, &layout);
    egm_layout_unref(layout);
    return r;
}

int egm_client_probe(struct egm_store *store, uint64_t deadline_ns)
{
    struct lookup l = {.store = store,
                       .reply_type = EGM_MSG_LAYOUT_REPLY,
                       .encode = encode_probe,
                       .parse = parse_probe};

    return ask(&l, deadline_ns, NULL);
}
