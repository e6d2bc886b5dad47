/* SPDX-License-Identifier: Apache-2.0 */
/* The master core's frame: peers, dispatch, requests that give way, timers. Model: master.h. */
#include "core/master.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log.h"
#include "base/mutant.h"

#include "core/master_state.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#define REQUEST_ROUNDS 64 /* requests that one egm_master_run goes on with */

struct egm_master_options egm_master_defaults(void)
{
    return (struct egm_master_options){.cluster = "egmstore",
                                       .hold_ms = 10000,
                                       .session_ttl_ms = 10000,
                                       .segment_lease_ms = 5000,
                                       .read_lease_ms = 4000,
                                       .put_timeout_ms = 30000,
                                       .soft_pin_ttl_ms = 1800000,
                                       .high_watermark = 0.95,
                                       .evict_soft_pinned = true};
}

int egm_master_create(const struct egm_master_options *options, const struct egm_master_io *io,
                      struct egm_master **ret_master)
{
    struct egm_master *m = egm_calloc(1, sizeof *m);
    if (!m) {
        return -ENOMEM;
    }
    m->options = *options;
    m->io = *io;
    egm_list_init(&m->ops);
    egm_list_init(&m->runnable);
    egm_list_init(&m->parked);
    egm_buf_init(&m->scratch, EGM_MAX_FRAME + EGM_FRAME_HEADER);
    size_t cluster_size = strnlen(options->cluster, sizeof m->cluster);
    m->window_bytes = egm_alloc((size_t)EGM_FIND_WINDOW * EGM_MAX_KEY);
    int r = m->window_bytes ? egm_directory_init(&m->directory, io->random(io->arg), &io->blocks)
                            : -ENOMEM;
    if (r == 0) {
        r = egm_index_init(&m->session_index, 0, /*pieces=*/NULL);
    }
    if (r == 0 && cluster_size == sizeof m->cluster) {
        r = EGM_E_INVALID;
    }
    if (r < 0) {
        egm_master_destroy(m);
        return r;
    }
    /* Terms rise with the providers that join, so two masters may share one for a while, on
     * different providers. A requester that wrote under both must still tell its generations
     * apart (I5): each life counts from elsewhere. */
    m->counter = io->random(io->arg) >> 21;
    m->random = io->random(io->arg);
    memcpy(m->cluster, options->cluster, cluster_size + 1);
    m->options.cluster = m->cluster;
    *ret_master = m;
    return 0;
}

static void drop_waiter(struct egm_master *m, uint32_t i)
{
    egm_object_at(&m->directory, m->waiters[i].object)->waiter = EGM_NONE;
    m->waiters[i] = m->waiters[--m->waiter_count];
    if (i < m->waiter_count) {
        egm_object_at(&m->directory, m->waiters[i].object)->waiter = i;
    }
}

/* Nothing may name the request any more, and what it leased so far is given back. */
static void free_request(struct egm_master *m, struct egm_request *r)
{
    egm_records_forget(m, r);
    for (uint32_t i = m->waiter_count; r->waiting > 0 && i-- > 0;) {
        if (m->waiters[i].request == r) {
            drop_waiter(m, i);
        }
    }
    if (r->op) {
        egm_op_end(m, r->op);
    }
    if (r->regex) {
        m->io.regex_free(m->io.arg, r->regex);
    }
    egm_buf_release(&r->reply);
    egm_free(r->payload);
    egm_free(r);
}

static void free_requests(struct egm_master *m, struct egm_link *list)
{
    while (!egm_list_is_empty(list)) {
        free_request(m, egm_container_of(egm_list_pop_front(list), struct egm_request, link));
    }
}

void egm_master_destroy(struct egm_master *m)
{
    if (!m) {
        return;
    }
    free_requests(m, &m->runnable);
    free_requests(m, &m->parked);
    while (!egm_list_is_empty(&m->ops)) {
        egm_free(egm_container_of(egm_list_pop_front(&m->ops), struct egm_op, link));
    }
    for (uint32_t i = 0; i < m->provider_room; i++) {
        egm_provider_release(&m->providers[i]);
    }
    for (uint32_t i = 0; i < m->mount_count; i++) {
        egm_extents_release(&m->mounts[i].extents);
        egm_eviction_release(&m->mounts[i].eviction);
    }
    for (uint32_t i = 0; i < m->session_room; i++) {
        egm_free(m->sessions[i].name);
        egm_free(m->sessions[i].reach);
        egm_free(m->sessions[i].claims);
    }
    egm_directory_release(&m->directory);
    egm_index_release(&m->session_index);
    egm_buf_release(&m->scratch);
    egm_free(m->peers);
    egm_free(m->sessions);
    egm_free(m->providers);
    egm_free(m->mounts);
    egm_free(m->waiters);
    egm_free(m->window_bytes);
    egm_free(m);
}

uint64_t egm_master_generation(struct egm_master *m)
{
    return (uint64_t)m->term << 44 | ++m->counter;
}

uint64_t egm_master_generation_ahead(const struct egm_master *m, uint32_t n)
{
    return (uint64_t)m->term << 44 | (m->counter + 1 + n);
}

/* splitmix64 (Steele, Lea, Flood 2014) */
uint64_t egm_master_random(struct egm_master *m)
{
    uint64_t z = m->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* ---- peers ---- */
int egm_master_connected(struct egm_master *m, uint64_t now_ns, uint32_t peer)
{
    m->now_ns = now_ns;
    if (peer >= m->peer_room) {
        uint32_t room = peer + 64;
        struct egm_peer *peers = egm_realloc(m->peers, room * sizeof *peers);
        if (!peers) {
            return -ENOMEM;
        }
        m->peers = peers;
        memset(peers + m->peer_room, 0, (room - m->peer_room) * sizeof *peers);
        m->peer_room = room;
    }
    m->peers[peer] = (struct egm_peer){.is_open = true, .provider = EGM_NONE};
    return 0;
}

static void drop_requests_of(struct egm_master *m, struct egm_link *list, uint32_t peer)
{
    struct egm_link *link = list->next;
    while (link != list) {
        struct egm_request *r = egm_container_of(link, struct egm_request, link);
        link = link->next;
        if (r->peer == peer) {
            egm_list_remove(&r->link);
            free_request(m, r);
        }
    }
}

void egm_master_disconnected(struct egm_master *m, uint64_t now_ns, uint32_t peer)
{
    m->now_ns = now_ns;
    uint32_t provider = m->peers[peer].provider;
    m->peers[peer] = (struct egm_peer){.provider = EGM_NONE};
    drop_requests_of(m, &m->runnable, peer);
    drop_requests_of(m, &m->parked, peer);
    if (provider != EGM_NONE) {
        egm_provider_disconnected(m, provider);
    }
}

void egm_master_violation(struct egm_master *m, uint32_t peer, const char *what)
{
    if (m->peers[peer].is_open) {
        m->peers[peer].is_open = false;
        m->io.close(m->io.arg, peer, what);
    }
}

void egm_master_reply(struct egm_master *m, uint32_t peer, struct egm_buf *frame, size_t begin)
{
    egm_frame_end(frame, begin);
    if (frame->failed) {
        egm_master_violation(m, peer, "its reply is too large");
    } else if (m->peers[peer].is_open) {
        m->io.send(m->io.arg, peer, frame->data, frame->len);
    }
}

static void hello_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                          struct egm_cursor cursor)
{
    struct egm_hello hello;
    egm_take_hello(&cursor, &hello);
    if (egm_cursor_end(&cursor) < 0) {
        egm_master_violation(m, peer, "malformed HELLO");
        return;
    }
    struct egm_hello_reply reply = {
        .version = EGM_PROTOCOL_VERSION, .instance = m->options.instance, .term = m->term};
    const char *reason = NULL;
    if (hello.version_min > EGM_PROTOCOL_VERSION || hello.version_max < EGM_PROTOCOL_VERSION) {
        reply.status = egm_status_to_wire(EGM_E_VERSION);
        reason = "this master speaks protocol version 1 only";
    } else if (hello.cluster.size != strlen(m->cluster) ||
               memcmp(hello.cluster.data, m->cluster, hello.cluster.size) != 0) {
        reply.status = egm_status_to_wire(EGM_E_NOT_PERMITTED);
        reason = "this master serves another cluster id";
    } else if (hello.role < EGM_ROLE_REQUESTER || hello.role > EGM_ROLE_OPERATOR) {
        reply.status = egm_status_to_wire(EGM_E_INVALID);
        reason = "unknown role";
    } else {
        m->peers[peer].is_greeted = true;
        m->peers[peer].role = hello.role;
    }
    if (reason) {
        reply.reason = egm_bytes_of(reason, strlen(reason));
    }
    egm_buf_clear(&m->scratch);
    size_t begin = egm_frame_begin(&m->scratch, EGM_MSG_HELLO_REPLY, frame->request);
    egm_put_hello_reply(&m->scratch, &reply);
    egm_master_reply(m, peer, &m->scratch, begin);
}

/* ---- requests ---- */
void egm_request_fail(struct egm_master *m, struct egm_request *r, int code, const char *reason)
{
    int32_t status = egm_status_to_wire(code);
    egm_buf_clear(&r->reply);
    r->reply_begin = egm_frame_begin(&r->reply, (uint16_t)(r->frame.type + 1), r->frame.request);
    switch (r->frame.type) {
    case EGM_MSG_EXIST:
        egm_put_exist_reply(&r->reply, &(struct egm_exist_reply){.status = status});
        break;
    case EGM_MSG_GET_START:
    case EGM_MSG_PUT_START:
        egm_put_items_reply(&r->reply, &(struct egm_items_reply){.status = status});
        break;
    case EGM_MSG_PUT_END:
    case EGM_MSG_REMOVE:
        egm_put_results_reply(&r->reply, &(struct egm_results_reply){.status = status});
        break;
    default:
        egm_put_count_reply(
            &r->reply,
            &(struct egm_count_reply){.status = status,
                                      .reason = egm_bytes_of(reason, reason ? strlen(reason) : 0)});
        break;
    }
    egm_master_reply(m, r->peer, &r->reply, r->reply_begin);
}

uint32_t egm_request_keys(struct egm_master *m, struct egm_request *r, struct egm_bytes *ret_keys)
{
    uint32_t count = 0;
    while (count < EGM_FIND_WINDOW && r->done + count < r->count) {
        struct egm_bytes key = egm_take_key(&r->keys, &r->cursor);
        if (r->cursor.failed) {
            return 0;
        }
        uint8_t *copy = m->window_bytes + (size_t)count * EGM_MAX_KEY;
        memcpy(copy, key.data, key.size);
        ret_keys[count++] = egm_bytes_of(copy, key.size);
    }
    return count;
}

void egm_request_wait(struct egm_master *m, struct egm_request *r, uint32_t object)
{
    if (m->waiter_count == m->waiter_room) {
        uint32_t room = m->waiter_room ? m->waiter_room * 2 : 64;
        struct egm_waiter *grown = egm_realloc(m->waiters, room * sizeof *grown);
        if (!grown) {
            r->is_unsure = true;
            return;
        }
        m->waiters = grown;
        m->waiter_room = room;
    }
    egm_object_at(&m->directory, object)->waiter = m->waiter_count;
    m->waiters[m->waiter_count++] = (struct egm_waiter){.object = object, .request = r};
    r->waiting++;
}

bool egm_object_is_unrecorded(const struct egm_master *m, uint32_t id)
{
    struct egm_object *o = egm_object_at(&m->directory, id);
    for (uint32_t i = 0; i < o->replica_count && o->state == EGM_OBJECT_REMOVED; i++) {
        const struct egm_object_replica *r = &egm_object_replicas(o)[i];
        uint32_t provider = m->mounts[r->mount].provider;
        if (!r->is_acked && provider != EGM_NONE && m->providers[provider].peer != EGM_NONE) {
            return true;
        }
    }
    return false;
}

void egm_request_settle(struct egm_master *m, uint32_t object)
{
    if (egm_object_is_unrecorded(m, object) && !EGM_MUTANT(25)) {
        return; /* one of its providers is out of reach, another is not (I12) */
    }
    uint32_t waiter = egm_object_at(&m->directory, object)->waiter;
    if (waiter == EGM_NONE) {
        return;
    }
    struct egm_request *r = m->waiters[waiter].request;
    drop_waiter(m, waiter);
    if (--r->waiting == 0 && egm_link_is_listed(&r->link)) {
        egm_list_remove(&r->link);
        egm_list_push_back(&m->runnable, &r->link);
    }
}

void egm_master_wake(struct egm_master *m)
{
    while (!egm_list_is_empty(&m->parked)) {
        egm_list_push_back(&m->runnable, egm_list_pop_front(&m->parked));
    }
}

static void run_request(struct egm_master *m, struct egm_request *r)
{
    egm_list_init(&r->link);
    switch (r->step(m, r)) {
    case EGM_STEP_DONE:
        free_request(m, r);
        break;
    case EGM_STEP_YIELD:
        egm_list_push_back(&m->runnable, &r->link);
        break;
    case EGM_STEP_PARK:
        egm_list_push_back(&m->parked, &r->link);
        break;
    }
}

/* Decodes the head of a request that names a session: all of them begin with that field. */
static void start_request(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                          uint8_t *payload,
                          enum egm_step (*step)(struct egm_master *, struct egm_request *))
{
    struct egm_request *r = egm_alloc(sizeof *r);
    if (!r) {
        egm_free(payload);
        egm_master_violation(m, peer, "out of memory");
        return;
    }
    memset(r, 0, offsetof(struct egm_request, keys));
    r->keys.size = 0;
    r->keys.head = 0;
    r->keys.turn = 0;
    r->peer = peer;
    r->frame = *frame;
    r->payload = payload;
    r->cursor = egm_cursor_of(payload, frame->length);
    r->step = step;
    egm_buf_init(&r->reply, EGM_MAX_FRAME + EGM_FRAME_HEADER);
    struct egm_cursor peek = r->cursor;
    struct egm_op_end head; /* {session, …}: only its first field is read */
    egm_take_op_end(&peek, &head);
    r->session = egm_session_live(m, head.session);
    r->session_id = head.session;
    if (peek.failed && frame->length < 8) {
        egm_master_violation(m, peer, "malformed request");
        free_request(m, r);
        return;
    }
    if (r->session == EGM_NONE) {
        egm_request_fail(m, r, EGM_E_NOT_FOUND, "the session is not known here");
        free_request(m, r);
        return;
    }
    r->tenant = m->sessions[r->session].tenant;
    run_request(m, r);
}

/* ---- dispatch ---- */
static bool is_allowed(const struct egm_peer *peer, uint16_t type)
{
    if (!peer->is_greeted) {
        return type == EGM_MSG_HELLO;
    }
    if (type >= EGM_MSG_MOUNT && type <= EGM_MSG_UNMOUNT) {
        return peer->role == EGM_ROLE_PROVIDER;
    }
    return peer->role != EGM_ROLE_PROVIDER || type == EGM_MSG_HELLO;
}

static void stat_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                         struct egm_cursor cursor)
{
    (void)cursor; /* there is one thing to be asked for */
    struct egm_buf text;
    egm_buf_init(&text, EGM_MAX_FRAME / 2);
    egm_master_stat_json(m, m->now_ns, &text);
    egm_buf_clear(&m->scratch);
    size_t begin = egm_frame_begin(&m->scratch, EGM_MSG_STAT_REPLY, frame->request);
    egm_put_text_reply(&m->scratch, &(struct egm_text_reply){.text_length = (uint32_t)text.len});
    (void)egm_buf_append(&m->scratch, text.data, text.len);
    egm_buf_release(&text);
    egm_master_reply(m, peer, &m->scratch, begin);
}

/* What becomes of a message: it is answered in its event, or it is a request that may outlive it.
 */
struct handler {
    void (*answer)(struct egm_master *, uint32_t peer, const struct egm_frame *, struct egm_cursor);
    enum egm_step (*step)(struct egm_master *, struct egm_request *);
};

static const struct handler handlers[] = {
    [EGM_MSG_HELLO] = {.answer = hello_message},
    [EGM_MSG_SESSION] = {.answer = egm_session_message},
    [EGM_MSG_PING] = {.answer = egm_ping_message},
    [EGM_MSG_LAYOUT] = {.answer = egm_layout_message},
    [EGM_MSG_EXIST] = {.step = egm_exist_step},
    [EGM_MSG_PREFIX] = {.step = egm_prefix_step},
    [EGM_MSG_GET_START] = {.step = egm_get_step},
    [EGM_MSG_OP_END] = {.answer = egm_op_end_message},
    [EGM_MSG_PUT_START] = {.step = egm_put_step},
    [EGM_MSG_PUT_END] = {.step = egm_put_end_step},
    [EGM_MSG_REMOVE] = {.step = egm_remove_step},
    [EGM_MSG_REMOVE_ALL] = {.step = egm_remove_all_step},
    [EGM_MSG_REMOVE_MATCHING] = {.step = egm_remove_matching_step},
    [EGM_MSG_SUSPECT] = {.answer = egm_suspect_message},
    [EGM_MSG_MISMATCH] = {.answer = egm_mismatch_message},
    [EGM_MSG_SESSION_END] = {.answer = egm_session_end_message},
    [EGM_MSG_STAT] = {.answer = stat_message},
    [EGM_MSG_MOUNT] = {.answer = egm_mount_message},
    [EGM_MSG_LEASE_REPLY] = {.answer = egm_lease_reply_message},
    [EGM_MSG_SLOT_CHANGE] = {.answer = egm_slot_change_message},
    [EGM_MSG_RECORDS_REPLY] = {.answer = egm_records_reply_message},
    [EGM_MSG_VERIFY_REPLY] = {.answer = egm_verify_reply_message},
    [EGM_MSG_UNMOUNT] = {.answer = egm_unmount_message},
};

void egm_master_receive(struct egm_master *m, uint64_t now_ns, uint32_t peer,
                        const struct egm_frame *frame, uint8_t *payload)
{
    m->now_ns = now_ns;
    if (!m->peers[peer].is_open) {
        egm_free(payload);
        return;
    }
    if (!is_allowed(&m->peers[peer], frame->type)) {
        egm_free(payload);
        egm_master_violation(m, peer,
                             m->peers[peer].is_greeted ? "message not allowed in its role"
                                                       : "no HELLO first");
        return;
    }
    struct handler handler = {0};
    if (frame->type < sizeof handlers / sizeof handlers[0]) {
        handler = handlers[frame->type];
    }
    if (handler.step) {
        start_request(m, peer, frame, payload, handler.step);
        return;
    }
    if (handler.answer) {
        handler.answer(m, peer, frame, egm_cursor_of(payload, frame->length));
    } else {
        egm_master_violation(m, peer, "unknown message");
    }
    egm_free(payload);
}

/* ---- time ---- */
bool egm_master_run(struct egm_master *m, uint64_t now_ns)
{
    m->now_ns = now_ns;
    /* Only those that were runnable when the turn began: one that gives way again waits for the
     * next turn. */
    struct egm_link turn;
    egm_list_init(&turn);
    for (int n = 0; n < REQUEST_ROUNDS && !egm_list_is_empty(&m->runnable); n++) {
        egm_list_push_back(&turn, egm_list_pop_front(&m->runnable));
    }
    /* One long request a turn: each may take a whole window's time. */
    bool was_long = false;
    while (!egm_list_is_empty(&turn)) {
        struct egm_request *r =
            egm_container_of(egm_list_pop_front(&turn), struct egm_request, link);
        if (was_long) {
            egm_list_push_back(&m->runnable, &r->link);
            continue;
        }
        was_long = r->count > EGM_TURN_KEYS || r->regex || r->is_seeking;
        run_request(m, r);
    }
    if (m->sweep_is_on && !was_long) {
        egm_object_sweep(m);
    }
    bool resyncs = !was_long && egm_records_resync(m);
    return resyncs || m->sweep_is_on || !egm_list_is_empty(&m->runnable);
}

void egm_master_flush(struct egm_master *m, uint64_t now_ns)
{
    m->now_ns = now_ns;
    for (uint32_t i = 0; i < m->provider_room; i++) {
        if (m->providers[i].id) {
            egm_provider_flush(m, i, false);
        }
    }
}

/* A master that could not listen must not judge who was silent (B49). The shell has read all queued
 * input before. */
static void forgive_own_stall(struct egm_master *m, uint64_t gap_ns)
{
    m->counters.stalls++;
    egm_warn("master stalled, everybody gets a fresh ttl gap_ms=%llu",
             (unsigned long long)(gap_ns / 1000000));
    for (uint32_t i = 0; i < m->session_room; i++) {
        if (m->sessions[i].is_live) {
            m->sessions[i].until_ns = m->now_ns + egm_ms(m->options.session_ttl_ms);
        }
    }
    for (uint32_t i = 0; i < m->provider_room; i++) {
        m->providers[i].lost_at_ns = m->now_ns;
    }
}

void egm_master_tick(struct egm_master *m, uint64_t now_ns)
{
    uint64_t gap_ns = m->last_tick_ns ? now_ns - m->last_tick_ns : 0;
    m->now_ns = now_ns;
    m->last_tick_ns = now_ns;
    if (gap_ns > egm_ms(m->options.session_ttl_ms) / 4) {
        forgive_own_stall(m, gap_ns);
    }
    egm_session_tick(m);
    egm_provider_tick(m);
    egm_op_tick(m);
    egm_evict_tick(m);
    egm_master_wake(m); /* parked requests look at their deadlines */
}
