/* SPDX-License-Identifier: Apache-2.0 */
#include "core/requester.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/mutant.h"

#include "wire/keys.h"
#include "wire/status.h"

#include <errno.h>
#include <string.h>

#define NS_PER_MS UINT64_C(1000000)

/* Generations in one PING: what does not fit goes with the next. */
#define REPORT_MAX 4096u
/* Stopped generations kept: beyond that they are forgotten, and reported when the master revokes
 * them (an unknown generation counts as stopped). */
#define STOPPED_MAX 65536u
/* A master that grants longer is not believed: nobody would notice its death in time. */
#define TTL_MAX_MS (3600u * 1000u)

void egm_requester_init(struct egm_requester *r, uint64_t session, uint64_t host, uint32_t pid,
                        const char *name, const char *tenant)
{
    EGM_ASSERT(strlen(name) < sizeof(r->name) && strlen(tenant) < sizeof(r->tenant));
    *r = (struct egm_requester){.session = session, .host = host, .pid = pid, .next_op = 1};
    memcpy(r->name, name, strlen(name));
    memcpy(r->tenant, tenant, strlen(tenant));
    egm_list_init(&r->write_sets);
    egm_list_init(&r->readings);
}

void egm_requester_release(struct egm_requester *r)
{
    egm_free(r->stopped);
    *r = (struct egm_requester){0};
}

/* ---- session ---- */

uint64_t egm_session_valid_until(uint64_t sent_ns, uint32_t ttl_ms)
{
    uint64_t ttl_ns = ttl_ms * NS_PER_MS;
    uint64_t margin_ns = egm_max_u64(NS_PER_MS, ttl_ns / 1000);

    return ttl_ns > margin_ns ? sent_ns + ttl_ns - margin_ns : sent_ns;
}

bool egm_requester_meet(struct egm_requester *r, uint64_t instance)
{
    if (r->instance != instance) {
        r->instance = instance;
        r->challenge = 0;
        r->layout_version = 0;
        egm_requester_lose(r, r->session_count);
    }
    return r->state != EGM_SESSION_OPEN;
}

void egm_requester_lose(struct egm_requester *r, uint64_t opening)
{
    if (opening == r->session_count) {
        r->state = EGM_SESSION_LOST;
        r->valid_until_ns = 0;
    }
}

/* S1 */
static void extend(struct egm_requester *r, uint64_t sent_ns, uint32_t ttl_ms)
{
    r->ttl_ms = ttl_ms;
    r->valid_until_ns = egm_max_u64(r->valid_until_ns, egm_session_valid_until(sent_ns, ttl_ms));
}

static bool must_be_listed(const struct egm_writing *write)
{
    /* A place that could not be resolved was never written to. */
    return write->provider != 0;
}

void egm_requester_encode_session(struct egm_requester *r, struct egm_buf *buf, uint64_t request)
{
    struct egm_session head = {.session = r->session,
                               .host = r->host,
                               .pid = r->pid,
                               .name = egm_bytes_of(r->name, strlen(r->name)),
                               .tenant = egm_bytes_of(r->tenant, strlen(r->tenant)),
                               .opening = r->session_count + 1,
                               .challenge = r->challenge};
    size_t begin = egm_frame_begin(buf, EGM_MSG_SESSION, request);

    r->session_count++; /* S4 */
    EGM_LIST_FOR_EACH (link, &r->write_sets) {
        const struct egm_write_set *set = egm_container_of(link, struct egm_write_set, link);
        for (size_t i = 0; i < set->count; i++) {
            head.write_count += must_be_listed(&set->writes[i]);
        }
    }
    egm_put_session(buf, &head);
    EGM_LIST_FOR_EACH (link, &r->write_sets) {
        const struct egm_write_set *set = egm_container_of(link, struct egm_write_set, link);
        for (size_t i = 0; i < set->count; i++) {
            const struct egm_writing *write = &set->writes[i];
            if (!must_be_listed(write)) {
                continue;
            }
            struct egm_open_write record = {.generation = write->generation,
                                            .provider = write->provider,
                                            .epoch = write->epoch,
                                            .segment = write->segment,
                                            .extent_count = write->extent_count};
            egm_put_open_write(buf, &record);
            for (uint8_t e = 0; e < write->extent_count; e++) {
                egm_put_extent(buf, &write->extents[e]);
            }
        }
    }
    egm_frame_end(buf, begin);
}

static int head_status(int32_t status)
{
    return status > 0 ? EGM_E_PROTO : egm_status_from_wire(status);
}

int egm_requester_take_session_reply(struct egm_requester *r, const void *payload, size_t size,
                                     uint64_t instance, uint64_t sent_ns)
{
    struct egm_cursor cursor = egm_cursor_of(payload, size);
    struct egm_session_reply reply;

    egm_take_session_reply(&cursor, &reply);
    if (egm_cursor_end(&cursor) < 0) {
        return EGM_E_PROTO;
    }
    if (r->instance == instance && reply.challenge != 0) {
        r->challenge = reply.challenge;
    }
    if (reply.status != 0) {
        return head_status(reply.status);
    }
    if (reply.ttl_ms == 0 || reply.ttl_ms > TTL_MAX_MS) {
        return EGM_E_PROTO;
    }
    if (r->instance != instance) {
        /* Another thread has met a younger master meanwhile; this session is not with that one. */
        return EGM_E_AGAIN;
    }
    r->state = EGM_SESSION_OPEN;
    r->layout_version = reply.layout;
    extend(r, sent_ns, reply.ttl_ms);
    return 0;
}

/* ---- heartbeat ---- */

void egm_requester_encode_ping(struct egm_requester *r, struct egm_buf *buf, uint64_t request)
{
    r->pinged_count = r->session_count;
    r->reported_count = egm_min_u64(r->stopped_count, REPORT_MAX);
    struct egm_ping head = {.session = r->session, .stopped_count = (uint32_t)r->reported_count};
    size_t begin = egm_frame_begin(buf, EGM_MSG_PING, request);

    egm_put_ping(buf, &head);
    for (size_t i = 0; i < r->reported_count; i++) {
        struct egm_generation record = {.value = r->stopped[i]};
        egm_put_generation(buf, &record);
    }
    egm_frame_end(buf, begin);
}

static void report_stopped(struct egm_requester *r, uint64_t generation)
{
    for (size_t i = 0; i < r->stopped_count; i++) {
        if (r->stopped[i] == generation) {
            return;
        }
    }
    if (r->stopped_count == r->stopped_cap) {
        size_t cap = r->stopped_cap ? r->stopped_cap * 2 : 64;
        uint64_t *more = cap <= STOPPED_MAX ? egm_realloc(r->stopped, cap * sizeof(*more)) : NULL;
        if (!more) {
            return; /* the master will ask again; see STOPPED_MAX */
        }
        r->stopped = more;
        r->stopped_cap = cap;
    }
    r->stopped[r->stopped_count++] = generation;
}

static void revoke(struct egm_requester *r, uint64_t generation)
{
    bool is_running = false;
    bool is_known = false;

    EGM_LIST_FOR_EACH (link, &r->write_sets) {
        struct egm_write_set *set = egm_container_of(link, struct egm_write_set, link);
        for (size_t i = 0; i < set->count; i++) {
            struct egm_writing *write = &set->writes[i];
            if (write->generation != generation) {
                continue;
            }
            is_known = true;
            if (write->state == EGM_WRITE_OPEN) {
                write->state = EGM_WRITE_REVOKED;
            }
            is_running = is_running || write->state != EGM_WRITE_STOPPED;
        }
    }
    if (!is_known) {
        r->denied[r->denied_count++ % EGM_DENIED_KEPT] = generation; /* S4 */
    }
    if (!is_running || EGM_MUTANT(20)) {
        report_stopped(r, generation); /* S3: stopped already, or never heard of */
    }
}

/* For how long the op is renewed, by the renewals at the cursor; 0: it is not named. */
static uint32_t renewed_ms(struct egm_cursor cursor, uint32_t count, uint64_t op)
{
    for (uint32_t i = 0; i < count; i++) {
        struct egm_renewal renewal;
        egm_take_renewal(&cursor, &renewal);
        if (renewal.op == op) {
            return renewal.lease_ms;
        }
    }
    return 0;
}

/* R1 */
static void renew_reads(struct egm_requester *r, struct egm_cursor cursor, uint32_t count,
                        uint64_t sent_ns)
{
    EGM_LIST_FOR_EACH (link, &r->readings) {
        struct egm_reading *reading = egm_container_of(link, struct egm_reading, link);
        uint32_t ms =
            EGM_MUTANT(29) ? reading->lease_ms : renewed_ms(cursor, count, reading->op_id);
        if (ms > 0) {
            reading->until_ns =
                egm_max_u64(reading->until_ns, egm_session_valid_until(sent_ns, ms));
        }
    }
}

int egm_requester_take_ping_reply(struct egm_requester *r, const void *payload, size_t size,
                                  uint64_t instance, uint64_t sent_ns)
{
    struct egm_cursor cursor = egm_cursor_of(payload, size);
    struct egm_ping_reply reply;

    if (instance != r->instance) {
        return EGM_E_STALE; /* a former master's: its words hold no more */
    }

    egm_take_ping_reply(&cursor, &reply);
    if (cursor.failed || reply.renewed_count > EGM_MAX_RENEWALS ||
        egm_cursor_left(&cursor) !=
            reply.revoked_count * UINT64_C(8) + reply.renewed_count * UINT64_C(12)) {
        return EGM_E_PROTO;
    }
    if (reply.status != 0) {
        int code = head_status(reply.status);
        if (code == EGM_E_NOT_FOUND) {
            egm_requester_lose(r, r->pinged_count);
        }
        return code;
    }
    if (reply.ttl_ms == 0 || reply.ttl_ms > TTL_MAX_MS) {
        return EGM_E_PROTO;
    }
    r->stopped_count -= r->reported_count;
    if (r->reported_count > 0) {
        memmove(r->stopped, r->stopped + r->reported_count, r->stopped_count * sizeof(*r->stopped));
    }
    r->reported_count = 0;
    r->layout_version = reply.layout;
    extend(r, sent_ns, reply.ttl_ms);
    for (uint32_t i = 0; i < reply.revoked_count; i++) {
        struct egm_generation generation;
        egm_take_generation(&cursor, &generation);
        revoke(r, generation.value);
    }
    renew_reads(r, cursor, reply.renewed_count, sent_ns);
    return 0;
}

/* ---- small requests ---- */

void egm_requester_encode_layout(const struct egm_requester *r, struct egm_buf *buf,
                                 uint64_t request)
{
    struct egm_layout head = {.session = r->session};
    size_t begin = egm_frame_begin(buf, EGM_MSG_LAYOUT, request);

    egm_put_layout(buf, &head);
    egm_frame_end(buf, begin);
}

void egm_requester_encode_session_end(const struct egm_requester *r, struct egm_buf *buf,
                                      uint64_t request)
{
    struct egm_session_end head = {.session = r->session};
    size_t begin = egm_frame_begin(buf, EGM_MSG_SESSION_END, request);

    egm_put_session_end(buf, &head);
    egm_frame_end(buf, begin);
}

void egm_requester_encode_suspect(const struct egm_requester *r, struct egm_buf *buf,
                                  uint32_t mount, uint32_t seconds)
{
    struct egm_suspect head = {.session = r->session, .mount = mount, .seconds = seconds};
    size_t begin = egm_frame_begin(buf, EGM_MSG_SUSPECT, 0);

    egm_put_suspect(buf, &head);
    egm_frame_end(buf, begin);
}

void egm_requester_encode_mismatch(const struct egm_requester *r, struct egm_buf *buf,
                                   uint64_t generation, struct egm_key key)
{
    struct egm_mismatch head = {.session = r->session, .generation = generation, .key_count = 1};
    struct egm_key_writer writer = {0};
    size_t begin = egm_frame_begin(buf, EGM_MSG_MISMATCH, 0);

    egm_put_mismatch(buf, &head);
    egm_ignore(egm_put_key(&writer, buf, key.data, key.size),
               "the master took this key before; a full buffer remembers");
    egm_frame_end(buf, begin);
}

/* ---- open writes ---- */

int egm_requester_may_write(const struct egm_requester *r, const struct egm_writing *write,
                            uint64_t now_ns)
{
    bool is_valid = r->state == EGM_SESSION_OPEN && now_ns < r->valid_until_ns; /* S2 */
    return write->state == EGM_WRITE_OPEN && is_valid ? 0 : EGM_E_STALE;
}

void egm_requester_mark(const struct egm_requester *r, struct egm_write_set *set)
{
    set->session_mark = r->session_count;
    set->denied_mark = r->denied_count;
}

static bool is_denied(const struct egm_requester *r, const struct egm_write_set *set,
                      uint64_t generation)
{
    if (EGM_MUTANT(10)) {
        return false;
    }
    if (set->session_mark != r->session_count ||
        r->denied_count - set->denied_mark > EGM_DENIED_KEPT) {
        return true;
    }
    for (uint64_t i = set->denied_mark; i < r->denied_count; i++) {
        if (r->denied[i % EGM_DENIED_KEPT] == generation) {
            return true;
        }
    }
    return false;
}

void egm_requester_open_writes(struct egm_requester *r, struct egm_write_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        if (is_denied(r, set, set->writes[i].generation)) {
            set->writes[i].state = EGM_WRITE_REVOKED;
        }
    }
    egm_list_push_back(&r->write_sets, &set->link);
    set->is_open = true;
}

void egm_requester_stop_write(struct egm_requester *r, struct egm_writing *write)
{
    bool is_revoked = write->state == EGM_WRITE_REVOKED;

    write->state = EGM_WRITE_STOPPED;
    if (is_revoked) {
        /* Replicas of one object share the generation: the last copy that stops reports it. */
        revoke(r, write->generation);
    }
}

void egm_requester_close_writes(struct egm_requester *r, struct egm_write_set *set, bool is_ended)
{
    egm_list_remove(&set->link);
    set->is_open = false;
    for (size_t i = 0; !is_ended && i < set->count; i++) {
        report_stopped(r, set->writes[i].generation);
    }
    set->count = 0;
}

/* ---- reads ---- */

void egm_requester_open_read(struct egm_requester *r, struct egm_reading *reading, uint64_t sent_ns)
{
    reading->until_ns = egm_session_valid_until(sent_ns, reading->lease_ms);
    egm_list_push_back(&r->readings, &reading->link);
    reading->is_open = true;
}

int egm_requester_may_read(const struct egm_requester *r, const struct egm_reading *reading,
                           uint64_t now_ns)
{
    (void)r; /* whose lock covers until_ns */
    return now_ns < reading->until_ns ? 0 : EGM_E_STALE;
}

void egm_requester_close_read(struct egm_requester *r, struct egm_reading *reading)
{
    (void)r;
    egm_list_remove(&reading->link);
    reading->is_open = false;
}

/* ---- retries ---- */

enum patience {
    FINAL,     /* the answer is no */
    DEADLINE,  /* worth the whole deadline */
    NOT_READY, /* the pool is coming up, or we are not attached yet */
    GONE,      /* nobody answers */
};

static enum patience patience_for(int code)
{
    switch (code) {
    case EGM_E_AGAIN:
    case EGM_E_STALE:
    case EGM_E_NOT_OWNER:
    case EGM_E_NOT_FOUND: /* of a request's head: the session, not a key */
        return DEADLINE;
    case EGM_E_NOT_READY:
        return NOT_READY;
    case EGM_E_PEER_GONE:
    case EGM_E_TRANSFER:
        return GONE;
    default:
        /* -errno of a socket call; the kernel's other word for "no memory" is ours. */
        return code < 0 && code > -4096 && code != -ENOMEM && code != -EMFILE && code != -ENFILE
                   ? GONE
                   : FINAL;
    }
}

static bool is_over(uint64_t *since_ns, uint64_t now_ns, uint64_t bound_ns)
{
    if (*since_ns == 0) {
        *since_ns = now_ns;
    }
    return now_ns - *since_ns >= bound_ns;
}

int egm_retry_decide(struct egm_retry *retry, int code, uint64_t now_ns, uint64_t *ret_at_ns)
{
    uint32_t first_ms = 5;
    uint32_t last_ms = 100;

    switch (patience_for(code)) {
    case FINAL:
        return code;
    case DEADLINE:
        break;
    case NOT_READY:
        first_ms = 50;
        last_ms = 200;
        if (is_over(&retry->not_ready_since_ns, now_ns, EGM_RETRY_NOT_READY_NS)) {
            return code;
        }
        break;
    case GONE:
        last_ms = 200;
        code = code > -4096 ? EGM_E_PEER_GONE : code;
        if (is_over(&retry->gone_since_ns, now_ns, EGM_RETRY_GONE_NS)) {
            return code;
        }
        break;
    }
    retry->delay_ms = retry->delay_ms == 0
                          ? first_ms
                          : (uint32_t)egm_min_u64(retry->delay_ms * UINT64_C(2), last_ms);
    uint64_t at_ns = now_ns + retry->delay_ms * NS_PER_MS;
    if (at_ns >= retry->deadline_ns) {
        return code == EGM_E_NOT_FOUND || code == EGM_E_AGAIN ? EGM_E_TIMEOUT : code;
    }
    *ret_at_ns = at_ns;
    return 0;
}

void egm_retry_reset(struct egm_retry *retry)
{
    retry->gone_since_ns = 0;
    retry->not_ready_since_ns = 0;
    retry->delay_ms = 0;
}
