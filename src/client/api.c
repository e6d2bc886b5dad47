/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls: check what the caller gave, hand it on, keep the count of calls in flight and
 * the last error.
 *
 * An item with a bad argument gets its own result and is not asked for; the others go on. One block
 * of memory per call holds its items (small calls use the stack). */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"

#include "client/internal.h"
#include "mover/copy_team.h"
#include "os/clock.h"
#include "os/wait.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define STACK_ITEMS 16u
#define MAX_SOFT_PIN_MS UINT64_C(86400000) /* as Mooncake's master by default */
#define HEALTH_NS (2 * EGM_NS_PER_S)

/* ---- calls in flight ---- */

static int enter(struct egm_store *store, struct egm_detail *reterr)
{
    /* Before the lock: in a child it may be held by a thread that is not there. */
    if (egm_store_is_dead(store)) {
        return egm_fail(reterr, EGM_E_CLOSED, "call",
                        "the store is closed, or belongs to the process before fork()");
    }
    pthread_mutex_lock(&store->lock);
    bool is_dead = egm_store_is_dead(store);
    store->calls_in_flight += !is_dead;
    pthread_mutex_unlock(&store->lock);
    if (is_dead) {
        return egm_fail(reterr, EGM_E_CLOSED, "call", "the store is being closed");
    }
    egm_wait_watch(&store->is_closing);
    return 0;
}

static void leave(struct egm_store *store, const struct egm_detail *detail,
                  struct egm_detail *reterr)
{
    egm_wait_watch(NULL);
    pthread_mutex_lock(&store->lock);
    if (detail->code < 0) {
        memcpy(store->last_error, detail->text, sizeof(store->last_error));
    }
    if (--store->calls_in_flight == 0 && egm_store_is_dead(store)) {
        pthread_cond_broadcast(&store->changed);
    }
    pthread_mutex_unlock(&store->lock);
    if (detail->code < 0 && reterr) {
        *reterr = *detail;
    }
}

_Static_assert(sizeof(((struct egm_store *)0)->last_error) ==
                   sizeof(((struct egm_detail *)0)->text),
               "copied whole");

static uint64_t deadline_of(const struct egm_store *store)
{
    return egm_clock_ns() + store->config.deadline_ns;
}

static int check_count(size_t count, struct egm_detail *reterr)
{
    return count > EGM_MAX_BATCH_KEYS
               ? egm_fail(reterr, EGM_E_LIMIT, "call", "%zu keys in one call; at most %u", count,
                          EGM_MAX_BATCH_KEYS)
               : 0;
}

void egm_on_interrupt(int (*check)(void *arg), void *arg)
{
    egm_wait_on_interrupt(check, arg);
}

/* ---- registration ---- */

/* Whether the pages are there, and its ends readable. MS_ASYNC does nothing on Linux but this look
 * at the mappings. */
static bool is_mapped(uintptr_t begin, size_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = begin & ~(page - 1);
    uintptr_t last = begin + size - 1;

    if (msync((void *)first, last - first + 1, MS_ASYNC) < 0) {
        return false;
    }
    for (unsigned i = 0; i < 2; i++) {
        char byte;
        struct iovec to = {.iov_base = &byte, .iov_len = 1};
        struct iovec from = {.iov_base = (void *)(i == 0 ? begin : last), .iov_len = 1};
        /* EPERM and ENOSYS come from sandboxes and say nothing about the memory. */
        if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) < 0 && errno == EFAULT) {
            return false;
        }
    }
    return true;
}

int egm_register(struct egm_store *store, void *address, size_t size, struct egm_detail *reterr)
{
    struct egm_detail detail = {0};
    uintptr_t begin = (uintptr_t)address;
    int r = enter(store, reterr);

    if (r < 0) {
        return r;
    }
    if (begin == 0 || size == 0 || begin + size < begin) {
        r = egm_fail(&detail, EGM_E_INVALID, "register", "%p with %zu bytes is no range of memory",
                     address, size);
    } else if (!is_mapped(begin, size)) {
        r = egm_fail(&detail, EGM_E_INVALID, "register",
                     "not all of %p..+%zu is mapped and readable", address, size);
    } else {
        pthread_rwlock_wrlock(&store->regions_lock);
        r = egm_regions_add(&store->regions, begin, size);
        pthread_rwlock_unlock(&store->regions_lock);
        if (r < 0) {
            r = egm_fail(&detail, r, "register", "cannot register %p..+%zu: %s (at most %d ranges)",
                         address, size, egm_strerror(r), EGM_MAX_REGIONS);
        }
    }
    leave(store, &detail, reterr);
    return r;
}

int egm_unregister(struct egm_store *store, void *address, struct egm_detail *reterr)
{
    struct egm_detail detail = {0};
    int r = enter(store, reterr);

    if (r < 0) {
        return r;
    }
    pthread_rwlock_wrlock(&store->regions_lock);
    r = egm_regions_remove(&store->regions, (uintptr_t)address);
    pthread_rwlock_unlock(&store->regions_lock);
    if (r < 0) {
        r = egm_fail(&detail, r, "unregister", "%p: %s", address,
                     r == EGM_E_NOT_FOUND ? "no registration begins there" : egm_strerror(r));
    }
    leave(store, &detail, reterr);
    return r;
}

/* ---- items ---- */

/* Sums up and checks one item's segments. Under regions_lock unless any_memory. */
static int check_segments(const struct egm_store *store, const struct egm_item *item,
                          bool any_memory, size_t *hint, uint64_t *ret_size)
{
    size_t size = 0;

    if (item->segment_count > EGM_MAX_BUFFERS_PER_KEY ||
        (item->segment_count > 0 && !item->segments)) {
        return EGM_E_INVALID;
    }
    for (size_t i = 0; i < item->segment_count; i++) {
        const struct iovec *segment = &item->segments[i];
        uintptr_t begin = (uintptr_t)segment->iov_base;
        if (segment->iov_len == 0) {
            continue;
        }
        if (begin == 0 || begin + segment->iov_len < begin ||
            egm_add_size(&size, size, segment->iov_len) < 0) {
            return EGM_E_INVALID;
        }
        if (!any_memory && !egm_regions_cover(&store->regions, begin, segment->iov_len, hint)) {
            return EGM_E_UNREGISTERED;
        }
    }
    *ret_size = size;
    return 0;
}

static int check_item(const struct egm_store *store, const struct egm_item *item, bool is_put,
                      bool any_memory, size_t *hint, uint64_t *ret_size)
{
    if (!item->key.data || item->key.size == 0 || item->key.size > EGM_MAX_KEY) {
        return EGM_E_BAD_KEY;
    }
    int r = check_segments(store, item, any_memory, hint, ret_size);
    if (r < 0 || !is_put) {
        return r;
    }
    if (*ret_size == 0 || (item->group && strlen(item->group) > EGM_MAX_NAME)) {
        return EGM_E_INVALID;
    }
    return *ret_size > EGM_MAX_OBJECT_BYTES ? EGM_E_TOO_LARGE : 0;
}

static void fill_items(struct egm_store *store, bool is_put, bool any_memory,
                       const struct egm_item *items, size_t count, struct egm_op_item *ret_items)
{
    size_t hint = 0;

    pthread_rwlock_rdlock(&store->regions_lock);
    for (size_t i = 0; i < count; i++) {
        uint64_t size = 0;
        int r = check_item(store, &items[i], is_put, any_memory, &hint, &size);
        egm_op_item_init(&ret_items[i], items[i].key, items[i].segments, items[i].segment_count,
                         size);
        ret_items[i].group = is_put && items[i].group && items[i].group[0] ? items[i].group : NULL;
        if (r < 0) {
            egm_op_item_finish(&ret_items[i], r);
        }
    }
    pthread_rwlock_unlock(&store->regions_lock);
}

static int fail_all(int64_t *results, size_t count, int code)
{
    for (size_t i = 0; i < count; i++) {
        results[i] = code;
    }
    return code;
}

/* put with params, get without. */
static int move_data(struct egm_store *store, const struct egm_put_params *params, bool any_memory,
                     size_t count, const struct egm_item *items, int64_t *results,
                     struct egm_detail *reterr)
{
    struct egm_op_item stack[STACK_ITEMS];
    struct egm_op_item *own = stack;
    uint64_t deadline_ns = deadline_of(store);
    int r = check_count(count, reterr);

    if (r == 0 && count > STACK_ITEMS) {
        own = egm_alloc(count * sizeof(*own));
        if (!own) {
            r = egm_fail(reterr, -ENOMEM, "call", "no memory for %zu items", count);
        }
    }
    if (r < 0) {
        return fail_all(results, count, r);
    }
    fill_items(store, params != NULL, any_memory, items, count, own);
    r = params ? egm_client_put(store, params, own, count, deadline_ns, reterr)
               : egm_client_get(store, own, count, deadline_ns, reterr);
    for (size_t i = 0; i < count; i++) {
        results[i] = own[i].result;
    }
    if (own != stack) {
        egm_free(own);
    }
    return r;
}

static int put_params(const struct egm_put_options *options, struct egm_put_params *ret_params,
                      struct egm_detail *reterr)
{
    struct egm_put_params params = {.replica_count = 1};

    if (options) {
        uint32_t replicas = options->replica_count ? options->replica_count : 1;
        if (replicas > EGM_MAX_REPLICAS) {
            return egm_fail(reterr, EGM_E_INVALID, "put", "%u replicas; at most %d", replicas,
                            EGM_MAX_REPLICAS);
        }
        if ((unsigned)options->soft_pin > EGM_SOFT_PIN_DISABLE) {
            return egm_fail(reterr, EGM_E_INVALID, "put", "soft_pin %d is unknown",
                            (int)options->soft_pin);
        }
        if (options->soft_pin_ttl_ms > MAX_SOFT_PIN_MS) {
            return egm_fail(reterr, EGM_E_INVALID, "put", "a soft pin of %llu ms; at most 24 hours",
                            (unsigned long long)options->soft_pin_ttl_ms);
        }
        if (options->preferred_count > EGM_WINDOW_KEYS) {
            return egm_fail(reterr, EGM_E_LIMIT, "put", "%zu preferred providers; at most %d",
                            options->preferred_count, EGM_WINDOW_KEYS);
        }
        for (size_t i = 0; i < options->preferred_count; i++) {
            if (!options->preferred_names[i] ||
                strlen(options->preferred_names[i]) > EGM_MAX_HOST + 8) {
                return egm_fail(reterr, EGM_E_INVALID, "put",
                                "preferred provider %zu has no usable name", i);
            }
        }
        params = (struct egm_put_params){
            .flags = (uint8_t)((options->upsert ? EGM_UPSERT : 0u) |
                               (options->hard_pin ? EGM_HARD_PIN : 0u) |
                               (options->same_node ? EGM_SAME_NODE : 0u)),
            .replica_count = (uint8_t)replicas,
            .soft_pin = (uint8_t)options->soft_pin,
            .data_type = options->data_type,
            .soft_pin_ttl_ms = options->soft_pin_ttl_ms,
            .preferred_names = options->preferred_names,
            .preferred_count = egm_min_u64(options->preferred_count, EGM_MAX_PREFERRED)};
    }
    *ret_params = params;
    return 0;
}

int egm_put(struct egm_store *store, const struct egm_put_options *options, size_t count,
            const struct egm_item *items, int64_t *results, struct egm_detail *reterr)
{
    struct egm_detail detail = {0};
    struct egm_put_params params;
    int r = enter(store, reterr);

    if (r < 0) {
        return fail_all(results, count, r);
    }
    r = put_params(options, &params, &detail);
    r = r < 0 ? fail_all(results, count, r)
              : move_data(store, &params, options && options->any_memory, count, items, results,
                          &detail);
    leave(store, &detail, reterr);
    return r;
}

int egm_get(struct egm_store *store, bool any_memory, size_t count, const struct egm_item *items,
            int64_t *results, struct egm_detail *reterr)
{
    struct egm_detail detail = {0};
    int r = enter(store, reterr);

    if (r < 0) {
        return fail_all(results, count, r);
    }
    r = move_data(store, NULL, any_memory, count, items, results, &detail);
    leave(store, &detail, reterr);
    return r;
}

/* ---- key lists ---- */

static bool is_key_good(const struct egm_key *key)
{
    return key->data && key->size > 0 && key->size <= EGM_MAX_KEY;
}

static size_t first_bad(const struct egm_key *keys, size_t count)
{
    size_t i = 0;

    while (i < count && is_key_good(&keys[i])) {
        i++;
    }
    return i;
}

struct key_call {
    struct egm_store *store;
    enum {
        CALL_EXIST,
        CALL_REMOVE
    } kind;
    bool force;
};

static int run_keys(const struct key_call *call, const struct egm_key *keys, size_t count,
                    int *results, uint64_t deadline_ns, struct egm_detail *reterr)
{
    if (call->kind == CALL_EXIST) {
        return egm_client_exist(call->store, keys, count, results, deadline_ns, reterr);
    }
    return egm_client_remove(call->store, call->force, keys, count, results, deadline_ns, reterr);
}

/* Leaves the bad keys out, each of which gets its own result. */
static int run_good_keys(const struct key_call *call, const struct egm_key *keys, size_t count,
                         int *results, uint64_t deadline_ns, struct egm_detail *reterr)
{
    struct egm_key *good = egm_alloc(count * sizeof(*good));
    int *answers = egm_alloc(count * sizeof(*answers));
    size_t good_count = 0;
    int r =
        good && answers ? 0 : egm_fail(reterr, -ENOMEM, "call", "no memory for %zu keys", count);

    for (size_t i = 0; i < count; i++) {
        results[i] = r < 0 ? r : EGM_E_BAD_KEY;
        if (r == 0 && is_key_good(&keys[i])) {
            good[good_count++] = keys[i];
        }
    }
    if (r == 0) {
        r = run_keys(call, good, good_count, answers, deadline_ns, reterr);
        for (size_t i = 0, next = 0; i < count; i++) {
            if (is_key_good(&keys[i])) {
                results[i] = answers[next++];
            }
        }
    }
    egm_free(good);
    egm_free(answers);
    return r;
}

static int call_keys(const struct key_call *call, size_t count, const struct egm_key *keys,
                     int *results, struct egm_detail *reterr)
{
    struct egm_detail detail = {0};
    int r = enter(call->store, reterr);

    if (r == 0) {
        uint64_t deadline_ns = deadline_of(call->store);
        r = check_count(count, &detail);
        if (r == 0) {
            r = first_bad(keys, count) == count
                    ? run_keys(call, keys, count, results, deadline_ns, &detail)
                    : run_good_keys(call, keys, count, results, deadline_ns, &detail);
        } else {
            for (size_t i = 0; i < count; i++) {
                results[i] = r;
            }
        }
        leave(call->store, &detail, reterr);
        return r;
    }
    for (size_t i = 0; i < count; i++) {
        results[i] = r;
    }
    return r;
}

int egm_exist(struct egm_store *store, size_t count, const struct egm_key *keys, int *results,
              struct egm_detail *reterr)
{
    struct key_call call = {.store = store, .kind = CALL_EXIST};

    return call_keys(&call, count, keys, results, reterr);
}

int egm_remove(struct egm_store *store, bool force, size_t count, const struct egm_key *keys,
               int *results, struct egm_detail *reterr)
{
    struct key_call call = {.store = store, .kind = CALL_REMOVE, .force = force};

    return call_keys(&call, count, keys, results, reterr);
}

int egm_longest_prefix(struct egm_store *store, size_t count, const struct egm_key *keys,
                       size_t *ret_count, struct egm_detail *reterr)
{
    struct egm_detail detail = {0};
    int r = enter(store, reterr);

    if (r < 0) {
        return r;
    }
    r = check_count(count, &detail);
    if (r == 0) {
        /* A bad key exists nowhere: the prefix ends there. */
        r = egm_client_prefix(store, keys, first_bad(keys, count), ret_count, deadline_of(store),
                              &detail);
    }
    leave(store, &detail, reterr);
    return r;
}

int egm_remove_all(struct egm_store *store, bool force, uint64_t *ret_count,
                   struct egm_detail *reterr)
{
    struct egm_detail detail = {0};
    int r = enter(store, reterr);

    if (r == 0) {
        r = egm_client_remove_many(store, NULL, force, ret_count, deadline_of(store), &detail);
        leave(store, &detail, reterr);
    }
    return r;
}

int egm_remove_matching(struct egm_store *store, const char *pattern, bool force,
                        uint64_t *ret_count, struct egm_detail *reterr)
{
    struct egm_detail detail = {0};
    int r = enter(store, reterr);

    if (r < 0) {
        return r;
    }
    if (!pattern || strlen(pattern) > EGM_MAX_REGEX) {
        r = egm_fail(&detail, EGM_E_INVALID, "remove", "the pattern must have at most %d bytes",
                     EGM_MAX_REGEX);
    } else {
        r = egm_client_remove_many(store, pattern, force, ret_count, deadline_of(store), &detail);
    }
    leave(store, &detail, reterr);
    return r;
}

static int query_good(struct egm_store *store, const struct egm_key *keys, size_t count,
                      struct egm_object_info *infos, struct egm_detail *reterr)
{
    uint64_t deadline_ns = deadline_of(store);
    size_t begin = 0;
    int r = 0;

    /* Runs of good keys between bad ones, which are rare. */
    while (begin < count) {
        size_t good = first_bad(keys + begin, count - begin);
        if (good > 0) {
            int one =
                egm_client_query(store, keys + begin, good, infos + begin, deadline_ns, reterr);
            r = r < 0 ? r : one;
        }
        begin += good;
        if (begin < count) {
            infos[begin++] = (struct egm_object_info){.status = EGM_E_BAD_KEY};
        }
    }
    return r;
}

int egm_query(struct egm_store *store, size_t count, const struct egm_key *keys,
              struct egm_object_info *infos, struct egm_detail *reterr)
{
    struct egm_detail detail = {0};
    int r = enter(store, reterr);

    if (r == 0) {
        r = check_count(count, &detail);
        if (r == 0) {
            r = query_good(store, keys, count, infos, &detail);
            leave(store, &detail, reterr);
            return r;
        }
        leave(store, &detail, reterr);
    }
    for (size_t i = 0; i < count; i++) {
        infos[i] = (struct egm_object_info){.status = r};
    }
    return r;
}

/* ---- the rest ---- */

int egm_store_health(struct egm_store *store)
{
    struct egm_detail detail = {0};
    int r = enter(store, &detail);

    if (r < 0) {
        return r;
    }
    r = egm_client_probe(store, egm_clock_ns() + egm_min_u64(HEALTH_NS, store->config.deadline_ns));
    if (r < 0 && r != EGM_E_TIMEOUT && r != EGM_E_CLOSED) {
        r = EGM_E_PEER_GONE;
    }
    leave(store, &detail, NULL);
    return r;
}

void egm_store_read_counters(struct egm_store *store, struct egm_store_counters *ret_counters)
{
    *ret_counters = (struct egm_store_counters){0};
    if (!egm_store_is_dead(store)) {
        pthread_mutex_lock(&store->lock);
        *ret_counters = store->counters;
        pthread_mutex_unlock(&store->lock);
        struct egm_copy_team_choice choice;
        egm_copy_team_read(&choice);
        ret_counters->copy_threads = choice.thread_count;
    }
}

void egm_store_last_error(struct egm_store *store, char *text, size_t size)
{
    if (size == 0) {
        return;
    }
    text[0] = '\0';
    if (!egm_store_is_dead(store)) {
        pthread_mutex_lock(&store->lock);
        size_t length = egm_min_u64(strlen(store->last_error), size - 1);
        memcpy(text, store->last_error, length);
        text[length] = '\0';
        pthread_mutex_unlock(&store->lock);
    }
}
