/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake libegmstore: egmstore/store.h over one in-process dictionary, for tests of the Python
 * binding only.
 *
 * It answers as the header says, so far as the binding can tell, and has no master, provider,
 * eviction or pool. What it adds for tests:
 *
 *   fake_set_delay_ms  every data call sleeps first, as if waiting (the GIL must be free meanwhile)
 *   fake_set_failure   the next calls answer this code, per item and per call
 *   fake_grow_once     the next query reports sizes 1 too small, as if values grew in between
 *   fake_open_stores   stores that were opened and not closed
 *   fake_inside        calls that are inside now; close aborts the process if there are any,
 *                      because the binding must never do that
 *   fake_seen          what the latest put and open were asked for
 *
 * Objects belong to a store, so a closed one takes its objects along.
 */
#include "base/detail.h"

#include "egmstore/store.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    BUCKETS = 1 << 16,
    REGISTERED_MAX = 64
};

struct object {
    struct object *next;
    void *key;
    size_t key_size;
    unsigned char *value;
    size_t size;
    bool is_held;
};

struct range {
    const unsigned char *start;
    size_t size;
};

struct egm_store {
    pthread_mutex_t lock;
    pid_t process_id;
    char hostname[300];
    char error[256];
    struct object *buckets[BUCKETS];
    struct range ranges[REGISTERED_MAX];
    struct egm_store_counters counters;
};

struct fake_seen {
    uint32_t replica_count;
    int upsert, hard_pin, soft_pin, data_type, same_node, any_memory;
    uint64_t soft_pin_ttl_ms;
    char preferred[256]; /* names, joined by commas */
    char groups[256];    /* of the items, joined by commas */
    char options[512];   /* of the latest open: "master|hostname|tenant|protocol|segment_bytes" */
};

EGM_EXPORT extern struct fake_seen fake_seen;
EGM_EXPORT void fake_set_delay_ms(int ms);
EGM_EXPORT void fake_set_failure(int per_item, int per_call);
EGM_EXPORT void fake_grow_once(void);
EGM_EXPORT int fake_open_stores(void);
EGM_EXPORT int fake_inside(void);

struct fake_seen fake_seen;
static atomic_int delay_ms, item_failure, call_failure, open_stores, inside, grow_once;

void fake_set_delay_ms(int ms)
{
    delay_ms = ms;
}

void fake_set_failure(int per_item, int per_call)
{
    item_failure = per_item;
    call_failure = per_call;
}

void fake_grow_once(void)
{
    grow_once = 1;
}

int fake_open_stores(void)
{
    return open_stores;
}

int fake_inside(void)
{
    return inside;
}

const char *egm_strerror(int code)
{
    (void)code;
    return "fake failure";
}

static void nap(void)
{
    struct timespec pause = {.tv_sec = delay_ms / 1000, .tv_nsec = (delay_ms % 1000) * 1000000L};
    nanosleep(&pause, NULL);
}

/* Begins a data call; *ret is a negative code if it shall fail as a whole. False in a forked child:
 * no end then. */
static bool begin(struct egm_store *store, int *ret)
{
    if (store->process_id != getpid()) {
        return false;
    }
    inside++;
    nap();
    pthread_mutex_lock(&store->lock);
    if (call_failure) {
        snprintf(store->error, sizeof(store->error), "fake call failure %d", call_failure);
    }
    *ret = call_failure;
    return true;
}

static int end(struct egm_store *store, int r)
{
    pthread_mutex_unlock(&store->lock);
    inside--;
    return r;
}

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

int egm_store_open(const struct egm_store_options *options, struct egm_store **ret_store,
                   struct egm_detail *reterr)
{
    nap();
    if (options->hostname && strncmp(options->hostname, "0.0.0.0", 7) == 0) {
        if (reterr) {
            reterr->code = EGM_E_INVALID;
            snprintf(reterr->text, sizeof(reterr->text), "hostname 0.0.0.0 is a wildcard");
        }
        return EGM_E_INVALID;
    }
    if (call_failure) {
        return call_failure;
    }
    struct egm_store *store = calloc(1, sizeof(*store));
    if (!store) {
        return -ENOMEM;
    }
    pthread_mutex_init(&store->lock, NULL);
    store->process_id = getpid();
    snprintf(store->hostname, sizeof(store->hostname), "%s:12345", or_empty(options->hostname));
    snprintf(fake_seen.options, sizeof(fake_seen.options), "%s|%s|%s|%s|%llu",
             or_empty(options->master), or_empty(options->hostname), or_empty(options->tenant),
             or_empty(options->protocol), (unsigned long long)options->segment_bytes);
    open_stores++;
    *ret_store = store;
    return 0;
}

static void free_object(struct object *object)
{
    free(object->key);
    free(object->value);
    free(object);
}

void egm_on_interrupt(int (*check)(void *arg), void *arg)
{
    (void)check; /* the fake never waits for a peer */
    (void)arg;
}

void egm_store_shutdown(struct egm_store *store)
{
    (void)store; /* the fake's calls end by themselves */
}

void egm_store_close(struct egm_store *store)
{
    if (!store) {
        return;
    }
    if (inside > 0 && store->process_id == getpid()) {
        static const char text[] = "fake store: closed while a call is inside\n";
        (void)!write(2, text, sizeof(text) - 1);
        abort();
    }
    nap();
    for (size_t i = 0; i < BUCKETS; i++) {
        while (store->buckets[i]) {
            struct object *object = store->buckets[i];
            store->buckets[i] = object->next;
            free_object(object);
        }
    }
    free(store);
    open_stores--;
}

const char *egm_store_hostname(const struct egm_store *store)
{
    return store->hostname;
}

int egm_store_health(struct egm_store *store)
{
    int r;
    return begin(store, &r) ? end(store, r) : EGM_E_CLOSED;
}

/* ---- memory ---- */

int egm_register(struct egm_store *store, void *address, size_t size, struct egm_detail *reterr)
{
    (void)reterr;
    if (!address || size == 0) {
        return EGM_E_INVALID;
    }
    pthread_mutex_lock(&store->lock);
    int r = EGM_E_LIMIT;
    for (size_t i = 0; i < REGISTERED_MAX; i++) {
        if (!store->ranges[i].start) {
            store->ranges[i] = (struct range){.start = address, .size = size};
            r = 0;
            break;
        }
    }
    pthread_mutex_unlock(&store->lock);
    return r;
}

int egm_unregister(struct egm_store *store, void *address, struct egm_detail *reterr)
{
    (void)reterr;
    for (size_t i = 0; i < REGISTERED_MAX; i++) {
        if (address && store->ranges[i].start == address) {
            store->ranges[i].start = NULL;
            return 0;
        }
    }
    return EGM_E_NOT_FOUND;
}

static bool is_registered(const struct egm_store *store, const struct iovec *segment)
{
    uintptr_t start = (uintptr_t)segment->iov_base;
    for (size_t i = 0; i < REGISTERED_MAX; i++) {
        uintptr_t from = (uintptr_t)store->ranges[i].start;
        if (from && start >= from && start - from <= store->ranges[i].size &&
            segment->iov_len <= store->ranges[i].size - (start - from)) {
            return true;
        }
    }
    return false;
}

static int check_item(const struct egm_store *store, const struct egm_item *item, bool any_memory)
{
    if (item->key.size == 0 || item->key.size > 4096) {
        return EGM_E_BAD_KEY;
    }
    for (size_t i = 0; !any_memory && i < item->segment_count; i++) {
        if (!is_registered(store, &item->segments[i])) {
            return EGM_E_UNREGISTERED;
        }
    }
    return item_failure;
}

static size_t total_of(const struct egm_item *item)
{
    size_t total = 0;
    for (size_t i = 0; i < item->segment_count; i++) {
        total += item->segments[i].iov_len;
    }
    return total;
}

/* ---- dictionary ---- */

static struct object **slot_of(struct egm_store *store, const struct egm_key *key)
{
    uint32_t hash = 2166136261u;
    const unsigned char *bytes = key->data;
    for (size_t i = 0; i < key->size; i++) {
        hash = (hash ^ bytes[i]) * 16777619u;
    }
    struct object **slot = &store->buckets[hash % BUCKETS];
    while (*slot &&
           ((*slot)->key_size != key->size || memcmp((*slot)->key, key->data, key->size) != 0)) {
        slot = &(*slot)->next;
    }
    return slot;
}

static void put_item(struct egm_store *store, const struct egm_item *item, bool upsert)
{
    struct object **slot = slot_of(store, &item->key);
    if (*slot && !upsert) {
        return;
    }
    struct object *object = *slot;
    if (!object) {
        object = calloc(1, sizeof(*object));
        object->key = malloc(item->key.size);
        object->key_size = item->key.size;
        memcpy(object->key, item->key.data, item->key.size);
        *slot = object;
    }
    free(object->value);
    object->size = total_of(item);
    object->value = malloc(object->size);
    size_t done = 0;
    for (size_t i = 0; i < item->segment_count; i++) {
        memcpy(object->value + done, item->segments[i].iov_base, item->segments[i].iov_len);
        done += item->segments[i].iov_len;
    }
}

static int64_t get_item(struct egm_store *store, const struct egm_item *item)
{
    struct object *object = *slot_of(store, &item->key);
    if (!object) {
        return EGM_E_NOT_FOUND;
    }
    if (total_of(item) < object->size) {
        return EGM_E_TOO_LARGE;
    }
    size_t done = 0;
    for (size_t i = 0; i < item->segment_count && done < object->size; i++) {
        size_t left = object->size - done;
        size_t part = item->segments[i].iov_len < left ? item->segments[i].iov_len : left;
        memcpy(item->segments[i].iov_base, object->value + done, part);
        done += part;
    }
    object->is_held = true;
    return (int64_t)object->size;
}

static void append(char *text, size_t size, const char *more)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", used ? "," : "", or_empty(more));
}

static void remember_put(const struct egm_put_options *options, size_t count,
                         const struct egm_item *items)
{
    fake_seen.replica_count = options->replica_count;
    fake_seen.upsert = options->upsert;
    fake_seen.hard_pin = options->hard_pin;
    fake_seen.soft_pin = (int)options->soft_pin;
    fake_seen.soft_pin_ttl_ms = options->soft_pin_ttl_ms;
    fake_seen.data_type = options->data_type;
    fake_seen.same_node = options->same_node;
    fake_seen.any_memory = options->any_memory;
    fake_seen.preferred[0] = '\0';
    fake_seen.groups[0] = '\0';
    for (size_t i = 0; i < options->preferred_count; i++) {
        append(fake_seen.preferred, sizeof(fake_seen.preferred), options->preferred_names[i]);
    }
    for (size_t i = 0; i < count && i < 8; i++) {
        append(fake_seen.groups, sizeof(fake_seen.groups), items[i].group);
    }
}

int egm_put(struct egm_store *store, const struct egm_put_options *options, size_t count,
            const struct egm_item *items, int64_t *results, struct egm_detail *reterr)
{
    (void)reterr;
    int r;
    if (!begin(store, &r)) {
        return EGM_E_CLOSED;
    }
    remember_put(options, count, items);
    for (size_t i = 0; r == 0 && i < count; i++) {
        results[i] = check_item(store, &items[i], options->any_memory);
        if (results[i] == 0) {
            put_item(store, &items[i], options->upsert);
        }
    }
    return end(store, r);
}

int egm_get(struct egm_store *store, bool any_memory, size_t count, const struct egm_item *items,
            int64_t *results, struct egm_detail *reterr)
{
    (void)reterr;
    int r;
    if (!begin(store, &r)) {
        return EGM_E_CLOSED;
    }
    for (size_t i = 0; r == 0 && i < count; i++) {
        results[i] = check_item(store, &items[i], any_memory);
        if (results[i] == 0) {
            results[i] = get_item(store, &items[i]);
        }
    }
    return end(store, r);
}

int egm_exist(struct egm_store *store, size_t count, const struct egm_key *keys, int *results,
              struct egm_detail *reterr)
{
    (void)reterr;
    int r;
    if (!begin(store, &r)) {
        return EGM_E_CLOSED;
    }
    for (size_t i = 0; r == 0 && i < count; i++) {
        results[i] = keys[i].size == 0 ? EGM_E_BAD_KEY : *slot_of(store, &keys[i]) != NULL;
    }
    return end(store, r);
}

static int remove_key(struct egm_store *store, bool force, const struct egm_key *key)
{
    struct object **slot = slot_of(store, key);
    struct object *object = *slot;
    if (!object) {
        return EGM_E_NOT_FOUND;
    }
    if (object->is_held && !force) {
        return EGM_E_LEASED;
    }
    *slot = object->next;
    free_object(object);
    return 0;
}

int egm_remove(struct egm_store *store, bool force, size_t count, const struct egm_key *keys,
               int *results, struct egm_detail *reterr)
{
    (void)reterr;
    int r;
    if (!begin(store, &r)) {
        return EGM_E_CLOSED;
    }
    for (size_t i = 0; r == 0 && i < count; i++) {
        results[i] = remove_key(store, force, &keys[i]);
    }
    return end(store, r);
}

/* The fake's "pattern" is a substring; "[" is malformed, as in a real one. */
static uint64_t remove_some(struct egm_store *store, const char *part, bool force)
{
    uint64_t count = 0;
    for (size_t i = 0; i < BUCKETS; i++) {
        struct object **slot = &store->buckets[i];
        while (*slot) {
            struct object *object = *slot;
            bool is_match =
                !part || memmem(object->key, object->key_size, part, strlen(part)) != NULL;
            if (!is_match || (object->is_held && !force)) {
                slot = &object->next;
                continue;
            }
            *slot = object->next;
            free_object(object);
            count++;
        }
    }
    return count;
}

int egm_remove_all(struct egm_store *store, bool force, uint64_t *ret_count,
                   struct egm_detail *reterr)
{
    (void)reterr;
    int r;
    if (!begin(store, &r)) {
        return EGM_E_CLOSED;
    }
    if (r == 0) {
        *ret_count = remove_some(store, NULL, force);
    }
    return end(store, r);
}

int egm_remove_matching(struct egm_store *store, const char *pattern, bool force,
                        uint64_t *ret_count, struct egm_detail *reterr)
{
    (void)reterr;
    int r;
    if (!begin(store, &r)) {
        return EGM_E_CLOSED;
    }
    if (strchr(pattern, '[')) {
        r = EGM_E_INVALID;
    }
    if (r == 0) {
        *ret_count = remove_some(store, pattern, force);
    }
    return end(store, r);
}

int egm_query(struct egm_store *store, size_t count, const struct egm_key *keys,
              struct egm_object_info *infos, struct egm_detail *reterr)
{
    (void)reterr;
    int r;
    if (!begin(store, &r)) {
        return EGM_E_CLOSED;
    }
    size_t shortened = (size_t)atomic_exchange(&grow_once, 0);
    for (size_t i = 0; r == 0 && i < count; i++) {
        struct object *object = *slot_of(store, &keys[i]);
        infos[i] = (struct egm_object_info){.status = object ? 0 : EGM_E_NOT_FOUND};
        if (object) {
            infos[i].size = object->size - shortened;
            infos[i].replica_count = 1;
            infos[i].replicas[0] = (struct egm_replica_info){.offset = 4096, .size = object->size};
            snprintf(infos[i].replicas[0].provider, sizeof(infos[i].replicas[0].provider),
                     "fake:1");
        }
    }
    return end(store, r);
}

void egm_store_last_error(struct egm_store *store, char *text, size_t size)
{
    snprintf(text, size, "%s", store->error);
}
