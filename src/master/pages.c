/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The admin port's pages, written on the loop thread.
 *
 * Every number is computed here from the core's owning structures (B114); per-segment series exist
 * exactly for the segments that are mounted while the page is written, so those of gone ones vanish
 * by themselves (B115). Mooncake's metric names are served where we have the same quantity; what
 * has no meaning here is left out instead of shown as 0. Our own begin with egmstore_.
 *
 * Texts from outside (keys, names) are escaped for their place. In JSON, a key that is not UTF-8 is
 * shown as if each byte were a Latin-1 character. In /get_all_keys control bytes and '%' are
 * percent-escaped, so that a line is one key.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"

#include "master/shell.h"
#include "os/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define JSON_TYPE "application/json"
#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"
/* Mooncake's OBJECT_NOT_FOUND and SEGMENT_NOT_FOUND, for pages whose readers know them. */
#define MOONCAKE_NO_OBJECT (-704)
/* Keys of one piece of /get_all_keys and of one /batch_query_keys. */
#define KEYS_A_PIECE 512
#define PIECE_BYTES (48u << 10)
/* Places of the slab of one piece, keys or not: some ten nanoseconds each. */
#define LOOKS_A_PIECE 2048
#define BATCH_KEYS_MAX 1024

/* ---- escaping ---- */

/* Length of the UTF-8 sequence at `at`, or 0. */
static size_t utf8_length(const uint8_t *at, size_t left)
{
    size_t n = at[0] < 0x80             ? 1
               : (at[0] & 0xe0) == 0xc0 ? 2
               : (at[0] & 0xf0) == 0xe0 ? 3
               : (at[0] & 0xf8) == 0xf0 ? 4
                                        : 0;
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};

    if (n == 0 || n > left) {
        return 0;
    }
    uint32_t value = n == 1 ? at[0] : at[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return 0;
        }
        value = value << 6 | (at[i] & 0x3f);
    }
    return value < least[n] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000) ? 0 : n;
}

static bool is_utf8(struct egm_bytes bytes)
{
    for (size_t i = 0; i < bytes.size;) {
        size_t n = utf8_length(bytes.data + i, bytes.size - i);
        if (n == 0) {
            return false;
        }
        i += n;
    }
    return true;
}

static void json_bytes(struct egm_buf *out, struct egm_bytes bytes)
{
    bool is_text = is_utf8(bytes);

    egm_buf_append(out, "\"", 1);
    for (size_t i = 0; i < bytes.size; i++) {
        uint8_t b = bytes.data[i];
        if (b < 0x20 || b == '"' || b == '\\' || b == 0x7f || (b >= 0x80 && !is_text)) {
            egm_buf_printf(out, "\\u%04x", b);
        } else {
            egm_buf_append(out, &b, 1);
        }
    }
    egm_buf_append(out, "\"", 1);
}

static void json_text(struct egm_buf *out, const char *text)
{
    json_bytes(out, egm_bytes_of(text ? text : "", text ? strlen(text) : 0));
}

static void key_line(struct egm_buf *out, struct egm_bytes key)
{
    for (uint32_t i = 0; i < key.size; i++) {
        uint8_t b = key.data[i];
        if (b < 0x20 || b == 0x7f || b == '%') {
            egm_buf_printf(out, "%%%02X", b);
        } else {
            egm_buf_append(out, &b, 1);
        }
    }
    egm_buf_append(out, "\n", 1);
}

/* A label's value: backslash, quote and line end are escaped. */
static void label_text(struct egm_buf *out, const char *text)
{
    for (const char *at = text; *at; at++) {
        if (*at == '\n') {
            egm_buf_append(out, "\\n", 2);
        } else {
            egm_buf_append(out, *at == '"' || *at == '\\' ? "\\" : "",
                           *at == '"' || *at == '\\' ? 1 : 0);
            egm_buf_append(out, at, 1);
        }
    }
}

/* ---- segments by name ---- */

/* The mounts of all providers of one name, added up. */
struct named {
    const char *name; /* the core's; valid for the page */
    const char *state, *data_address;
    uint64_t provider;
    uint64_t size, used, writing, sealed, removed, quarantined;
    uint32_t mounts, importers;
};

struct named_list {
    struct named *items;
    size_t count, room;
    bool with_lost; /* also those whose provider is disconnected: absent for everybody else (I6) */
    bool is_short;  /* out of memory */
};

static void add_mount(void *arg, const struct egm_mount_stat *stat)
{
    struct named_list *list = arg;

    if (!list->with_lost && strcmp(stat->state, "disconnected") == 0) {
        return;
    }
    if (list->count == list->room) {
        size_t room = list->room ? list->room * 2 : 16;
        struct named *items = egm_realloc(list->items, room * sizeof(*items));
        if (!items) {
            list->is_short = true;
            return;
        }
        list->items = items;
        list->room = room;
    }
    list->items[list->count++] = (struct named){.name = stat->name ? stat->name : "",
                                                .state = stat->state,
                                                .data_address = stat->data_address,
                                                .provider = stat->provider,
                                                .size = stat->size_bytes,
                                                .used = stat->writing_bytes + stat->sealed_bytes,
                                                .writing = stat->writing_bytes,
                                                .sealed = stat->sealed_bytes,
                                                .removed = stat->removed_bytes,
                                                .quarantined = stat->quarantined_bytes,
                                                .mounts = 1,
                                                .importers = stat->slot_count};
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

/* 0 or -ENOMEM-like failure recorded in `out`. The list is to be freed by the caller. */
static bool collect(struct egm_master_daemon *d, struct egm_buf *out, bool with_lost,
                    struct named_list *ret_list)
{
    struct named_list list = {.with_lost = with_lost};
    size_t kept = 0;

    egm_master_each_mount(d->core, d->now_ns, add_mount, &list);
    if (list.is_short) {
        egm_free(list.items);
        out->failed = EGM_E_LIMIT;
        return false;
    }
    if (list.count > 0) {
        qsort(list.items, list.count, sizeof(*list.items), compare_names);
    }
    for (size_t i = 0; i < list.count; i++) {
        struct named *one = &list.items[i];
        struct named *last = kept > 0 ? &list.items[kept - 1] : NULL;
        if (!last || strcmp(last->name, one->name) != 0) {
            list.items[kept++] = *one;
            continue;
        }
        last->size += one->size;
        last->used += one->used;
        last->writing += one->writing;
        last->sealed += one->sealed;
        last->removed += one->removed;
        last->quarantined += one->quarantined;
        last->mounts++;
        last->importers = one->importers > last->importers ? one->importers : last->importers;
    }
    list.count = kept;
    *ret_list = list;
    return true;
}

static uint64_t sum_used(const struct named_list *list)
{
    uint64_t used = 0;

    for (size_t i = 0; i < list->count; i++) {
        used += list->items[i].used;
    }
    return used;
}

/* ---- metrics ---- */

static void metric(struct egm_buf *out, const char *name, const char *type, const char *help,
                   uint64_t value)
{
    egm_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %" PRIu64 "\n", name, help, name, type,
                   name, value);
}

static void segment_metric(struct egm_buf *out, const struct named_list *list, const char *name,
                           const char *help, size_t field)
{
    if (list->count == 0) {
        return;
    }
    egm_buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name);
    for (size_t i = 0; i < list->count; i++) {
        const uint8_t *item = (const uint8_t *)&list->items[i];
        uint64_t value;
        memcpy(&value, item + field, sizeof(value));
        egm_buf_printf(out, "%s{segment=\"", name);
        label_text(out, list->items[i].name);
        egm_buf_printf(out, "\"} %" PRIu64 "\n", value);
    }
}

static void seconds_gauge(struct egm_buf *out, const char *name, const char *help, uint64_t ns)
{
    egm_buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n%s %.9f\n", name, help, name, name,
                   (double)ns / 1e9);
}

static void turn_metrics(struct egm_buf *out, const struct egm_turns *turns,
                         const struct egm_turns *cpu_turns)
{
    static const uint64_t edges_us[] = {10,   50,   100,   200,   300,    500,    1000,
                                        2000, 5000, 10000, 50000, 100000, 1000000};
    const char *name = "egmstore_loop_turn_seconds";

    egm_buf_printf(
        out, "# HELP %s time the master's loop worked between two polls\n# TYPE %s histogram\n",
        name, name);
    for (size_t i = 0; i < EGM_COUNT_OF(edges_us); i++) {
        egm_buf_printf(out, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, (double)edges_us[i] / 1e6,
                       egm_turns_at_most(turns, edges_us[i] * 1000));
    }
    egm_buf_printf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %.9f\n%s_count %" PRIu64 "\n",
                   name, turns->count, name, (double)turns->sum_ns / 1e9, name, turns->count);
    seconds_gauge(out, "egmstore_loop_turn_max_seconds", "longest turn since the start",
                  turns->max_ns);
    seconds_gauge(out, "egmstore_loop_turn_p99_seconds", "99 of 100 turns took at most this",
                  egm_turns_quantile_ns(turns, 0.99));
    seconds_gauge(out, "egmstore_loop_turn_cpu_max_seconds",
                  "the same in CPU time, which a busy host does not stretch", cpu_turns->max_ns);
    seconds_gauge(out, "egmstore_loop_turn_cpu_p99_seconds", "the same in CPU time",
                  egm_turns_quantile_ns(cpu_turns, 0.99));
}

static void mooncake_metrics(struct egm_buf *out, const struct egm_master_totals *t,
                             const struct named_list *list)
{
    metric(out, "master_key_count", "gauge", "keys that can be read", t->object_count);
    metric(out, "master_soft_pin_key_count", "gauge", "keys that are soft-pinned",
           t->soft_pin_count);
    metric(out, "master_allocated_bytes", "gauge", "bytes taken by objects, written ones included",
           sum_used(list));
    metric(out, "master_total_capacity_bytes", "gauge", "bytes of all mounted segments",
           t->capacity_bytes);
    metric(out, "master_active_clients", "gauge", "live sessions", t->session_count);
    metric(out, "master_evicted_key_count", "counter", "keys evicted", t->evicted_count);
    metric(out, "master_evicted_size_bytes", "counter", "bytes evicted", t->evicted_bytes);
    metric(out, "mem_cache_hit_nums_", "counter", "keys asked for by gets and found", t->hit_count);
    metric(out, "mem_cache_nums_", "gauge", "keys held in memory", t->object_count);
    metric(out, "valid_get_nums_", "counter", "keys asked for by gets and found", t->hit_count);
    metric(out, "total_get_nums_", "counter", "keys asked for by gets",
           t->hit_count + t->miss_count);
    metric(out, "master_put_start_alloc_failures_total", "counter",
           "puts refused because no space could be made", t->no_space_count);
    segment_metric(out, list, "segment_allocated_bytes", "bytes taken by objects on the segment",
                   offsetof(struct named, used));
    segment_metric(out, list, "segment_total_capacity_bytes", "bytes of the segment",
                   offsetof(struct named, size));
}

static void own_metrics(struct egm_master_daemon *d, struct egm_buf *out,
                        const struct egm_master_totals *t, const struct named_list *list)
{
    metric(out, "egmstore_used_bytes", "gauge",
           "bytes not free: written, sealed, removed and not yet acknowledged, quarantined",
           t->used_bytes);
    metric(out, "egmstore_quarantined_bytes", "gauge",
           "bytes that cannot be reused until a writer is provably gone", t->quarantined_bytes);
    metric(out, "egmstore_providers", "gauge", "providers known", t->provider_count);
    metric(out, "egmstore_mounts", "gauge", "segments mounted", t->mount_count);
    metric(out, "egmstore_term", "gauge", "the master's term", t->term);
    metric(out, "egmstore_puts_total", "counter", "puts granted", t->put_count);
    metric(out, "egmstore_put_failures_total", "counter", "puts refused or given up",
           t->put_fail_count);
    metric(out, "egmstore_get_misses_total", "counter", "keys asked for by gets and not found",
           t->miss_count);
    metric(out, "egmstore_master_stalls_total", "counter",
           "own stalls noticed, after which all leases were renewed", t->stalls);
    segment_metric(out, list, "egmstore_segment_quarantined_bytes",
                   "quarantined bytes of the segment", offsetof(struct named, quarantined));
    segment_metric(out, list, "egmstore_segment_removed_bytes",
                   "bytes whose removal the provider has not acknowledged",
                   offsetof(struct named, removed));
    metric(out, "egmstore_connections", "gauge", "open connections", d->connection_count);
    metric(out, "egmstore_connections_accepted_total", "counter", "connections accepted",
           d->accepted_count);
    metric(out, "egmstore_connections_refused_total", "counter",
           "connections refused for lack of room", d->refused_count);
    metric(out, "egmstore_connections_broken_total", "counter",
           "connections closed because of what the peer did or left undone", d->broken_count);
    metric(out, "egmstore_regex_over_limit_total", "counter",
           "keys on which a regular expression met its bounds", d->regex_over_limit);
    turn_metrics(out, &d->turns, &d->cpu_turns);
}

static void write_metrics(struct egm_master_daemon *d, struct egm_admin_job *job)
{
    struct egm_master_totals t = egm_master_totals(d->core);
    struct named_list list;

    job->type = METRICS_TYPE;
    if (collect(d, job->out, /*with_lost=*/false, &list)) {
        mooncake_metrics(job->out, &t, &list);
        own_metrics(d, job->out, &t, &list);
        egm_free(list.items);
    }
}

void egm_page_summary(struct egm_master_daemon *d, struct egm_buf *out)
{
    struct egm_master_totals t = egm_master_totals(d->core);

    egm_buf_printf(out,
                   "keys=%" PRIu64 " used_bytes=%" PRIu64 " capacity_bytes=%" PRIu64
                   " quarantined_bytes=%" PRIu64
                   " sessions=%u providers=%u segments=%u get_hits=%" PRIu64 " get_misses=%" PRIu64
                   " puts=%" PRIu64 " evicted_keys=%" PRIu64 " term=%u",
                   t.object_count, t.used_bytes, t.capacity_bytes, t.quarantined_bytes,
                   t.session_count, t.provider_count, t.mount_count, t.hit_count, t.miss_count,
                   t.put_count, t.evicted_count, t.term);
}

/* ---- state ---- */

static void write_health(struct egm_master_daemon *d, struct egm_admin_job *job)
{
    struct egm_master_totals t = egm_master_totals(d->core);

    job->type = JSON_TYPE;
    egm_buf_printf(
        job->out,
        "{\"status\":\"ok\",\"role\":\"leader\",\"ha_state\":\"serving\",\"service_ready\":true,"
        "\"leader_address\":");
    json_text(job->out, d->rpc_address);
    egm_buf_printf(job->out,
                   ",\"view_version\":%u,\"term\":%u,\"instance\":\"%016" PRIx64 "\",\"cluster\":",
                   t.term, t.term, d->options.core.instance);
    json_text(job->out, d->cluster);
    egm_buf_printf(job->out, ",\"providers\":%u,\"sessions\":%u}\n", t.provider_count,
                   t.session_count);
}

static void write_segments(struct egm_master_daemon *d, struct egm_admin_job *job)
{
    struct named_list list;

    if (!collect(d, job->out, /*with_lost=*/false, &list)) {
        return;
    }
    for (size_t i = 0; i < list.count; i++) {
        egm_buf_printf(job->out, "%s\n", list.items[i].name);
    }
    egm_free(list.items);
}

static void write_segments_detail(struct egm_master_daemon *d, struct egm_admin_job *job)
{
    struct named_list list;

    job->type = JSON_TYPE;
    if (!collect(d, job->out, /*with_lost=*/true, &list)) {
        return;
    }
    egm_buf_printf(job->out, "[");
    for (size_t i = 0; i < list.count; i++) {
        const struct named *n = &list.items[i];
        egm_buf_printf(job->out, "%s{\"name\":", i > 0 ? "," : "");
        json_text(job->out, n->name);
        egm_buf_printf(job->out,
                       ",\"state\":\"%s\",\"provider\":\"%016" PRIx64
                       "\",\"segments\":%u,\"importers\":%u,",
                       n->state, n->provider, n->mounts, n->importers);
        egm_buf_printf(job->out,
                       "\"capacity_bytes\":%" PRIu64 ",\"used_bytes\":%" PRIu64
                       ",\"writing_bytes\":%" PRIu64 ",\"sealed_bytes\":%" PRIu64
                       ",\"removed_bytes\":%" PRIu64 ",\"quarantined_bytes\":%" PRIu64
                       ",\"data_address\":",
                       n->size, n->used, n->writing, n->sealed, n->removed, n->quarantined);
        json_text(job->out, n->data_address);
        egm_buf_printf(job->out, "}");
    }
    egm_buf_printf(job->out, "]\n");
    egm_free(list.items);
}

static void write_segment(struct egm_master_daemon *d, struct egm_admin_job *job)
{
    struct named_list list;

    if (!collect(d, job->out, /*with_lost=*/false, &list)) {
        return;
    }
    for (size_t i = 0; i < list.count; i++) {
        const struct named *n = &list.items[i];
        if (strlen(n->name) == job->value_size &&
            memcmp(n->name, job->value, job->value_size) == 0) {
            egm_buf_printf(job->out,
                           "%s\nUsed(bytes): %" PRIu64 "\nCapacity(bytes) : %" PRIu64 "\n", n->name,
                           n->used, n->size);
            egm_free(list.items);
            return;
        }
    }
    egm_free(list.items);
    job->status = 500; /* as upstream's readers expect it */
    egm_buf_printf(job->out, "no such segment\n");
}

/* ---- keys ---- */

static void write_keys(struct egm_master_daemon *d, struct egm_admin_job *job)
{
    uint32_t looks = LOOKS_A_PIECE;
    enum egm_walk walk = EGM_WALK_KEY;
    struct egm_bytes key;

    for (int n = 0; n < KEYS_A_PIECE && job->out->len < PIECE_BYTES && walk == EGM_WALK_KEY; n++) {
        walk = egm_master_next_key(d->core, &job->cursor, &looks, &key);
        if (walk == EGM_WALK_KEY) {
            key_line(job->out, key);
        }
    }
    job->is_end = walk == EGM_WALK_END;
}

static void write_replicas(struct egm_buf *out, const struct egm_replica_stat *replicas,
                           uint32_t count)
{
    egm_buf_printf(out, "[");
    for (uint32_t i = 0; i < count; i++) {
        egm_buf_printf(
            out, "%s{\"size_\":%" PRIu64 ",\"buffer_address_\":%" PRIu64 ",\"protocol_\":\"tcp\",",
            i > 0 ? "," : "", replicas[i].size, replicas[i].offset);
        egm_buf_printf(out, "\"transport_endpoint_\":");
        json_text(out, replicas[i].name);
        egm_buf_printf(out, "}");
    }
    egm_buf_printf(out, "]");
}

static bool find_key(struct egm_master_daemon *d, struct egm_bytes key,
                     struct egm_replica_stat *replicas, uint32_t *ret_count)
{
    return key.size > 0 && key.size <= EGM_MAX_KEY &&
           egm_master_query(d->core, d->now_ns, key, replicas, ret_count) == 0;
}

static void write_key(struct egm_master_daemon *d, struct egm_admin_job *job)
{
    struct egm_replica_stat replicas[EGM_MAX_REPLICAS];
    uint32_t count;

    job->type = JSON_TYPE;
    if (!find_key(d, egm_bytes_of(job->value, job->value_size), replicas, &count)) {
        job->status = 404;
        egm_buf_printf(job->out,
                       "{\"success\":false,\"error_code\":%d,\"error_message\":\"no such key\"}\n",
                       MOONCAKE_NO_OBJECT);
        return;
    }
    egm_buf_printf(job->out, "{\"success\":true,\"data\":");
    write_replicas(job->out, replicas, count);
    egm_buf_printf(job->out, "}\n");
}

static void write_batch_key(struct egm_master_daemon *d, struct egm_buf *out, struct egm_bytes key)
{
    struct egm_replica_stat replicas[EGM_MAX_REPLICAS];
    uint32_t count;

    json_bytes(out, key);
    if (!find_key(d, key, replicas, &count)) {
        egm_buf_printf(out, ":{\"ok\":false,\"error_code\":%d,\"error\":\"no such key\"}",
                       MOONCAKE_NO_OBJECT);
        return;
    }
    egm_buf_printf(out, ":{\"ok\":true,\"values\":");
    write_replicas(out, replicas, count);
    egm_buf_printf(out, ",\"disk_values\":[],\"local_disk_values\":[],\"nof_values\":[]}");
}

static void write_batch(struct egm_master_daemon *d, struct egm_admin_job *job)
{
    const char *at = job->value;
    const char *end = job->value + job->value_size;

    job->type = JSON_TYPE;
    egm_buf_printf(job->out, "{\"success\":true,\"data\":{");
    for (int n = 0; n < BATCH_KEYS_MAX && at < end; n++) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma ? comma : end;
        if (n > 0) {
            egm_buf_append(job->out, ",", 1);
        }
        write_batch_key(d, job->out, egm_bytes_of(at, (size_t)(stop - at)));
        at = comma ? comma + 1 : end;
    }
    egm_buf_printf(job->out, "}}\n");
}

void egm_page_write(struct egm_master_daemon *d, struct egm_admin_job *job)
{
    switch (job->page) {
    case EGM_PAGE_METRICS:
        write_metrics(d, job);
        break;
    case EGM_PAGE_SUMMARY:
        egm_page_summary(d, job->out);
        egm_buf_printf(job->out, "\n");
        break;
    case EGM_PAGE_HEALTH:
        write_health(d, job);
        break;
    case EGM_PAGE_ROLE:
        egm_buf_printf(job->out, "leader\n");
        break;
    case EGM_PAGE_HA_STATUS:
        egm_buf_printf(job->out, "serving\n");
        break;
    case EGM_PAGE_LEADER:
        egm_buf_printf(job->out, "%s\n", d->rpc_address);
        break;
    case EGM_PAGE_ALL_SEGMENTS:
        write_segments(d, job);
        break;
    case EGM_PAGE_SEGMENTS_DETAIL:
        write_segments_detail(d, job);
        break;
    case EGM_PAGE_ALL_KEYS:
        write_keys(d, job);
        break;
    case EGM_PAGE_QUERY_KEY:
        write_key(d, job);
        break;
    case EGM_PAGE_QUERY_SEGMENT:
        write_segment(d, job);
        break;
    case EGM_PAGE_BATCH_QUERY:
        write_batch(d, job);
        break;
    case EGM_PAGE_COUNT:
        break;
    }
}
