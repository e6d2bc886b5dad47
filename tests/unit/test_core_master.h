/* SPDX-License-Identifier: Apache-2.0 */
/* A master core with scripted peers around it, for test_core_master_*.c.
 *
 * Each helper below hands one frame to the core, lets it run to rest, checks it whole
 * (egm_master_check) and returns what was answered. A provider's peer answers LEASE and RECORDS by
 * itself unless told not to; a test that wants to look at them turns that off. Time moves only by
 * bench_pass. Peer numbers: a test chooses them. */
#ifndef EGM_TEST_CORE_MASTER_H
#define EGM_TEST_CORE_MASTER_H

#include "base/log.h"

#include "core/master.h"
#include "test.h"
#include "wire/keys.h"
#include "wire/status.h"

#include <string.h>

enum {
    PEERS = 32,
    MIB = 1 << 20
};

struct bench_peer {
    struct egm_buf in; /* frames that the core sent to it and nobody has taken yet */
    bool is_closed;
    bool is_provider, keeps_leases, keeps_records;
    uint64_t provider, epoch;
    uint32_t term, lease_count;
    uint32_t drop_count, seal_count, grant_count, floor_count;
};

static struct egm_master *bench;
static uint64_t bench_now = 1000000000;
static struct bench_peer bench_peers[PEERS];
static uint64_t bench_seed = 0x243f6a8885a308d3u;
static uint64_t bench_request = 1;
static uint64_t bench_challenge; /* the last one heard */

struct got {
    int status;
    uint64_t generation, size, checksum;
    uint32_t replica_count, mount;
    uint64_t offset, length; /* of the first extent */
    uint32_t lease_ms;
};

__attribute__((unused)) static void bench_send(void *arg, uint32_t peer, const void *data,
                                               size_t size)
{
    (void)arg;
    ck_assert_int_eq(egm_buf_append(&bench_peers[peer].in, data, size), 0);
}

__attribute__((unused)) static void bench_close(void *arg, uint32_t peer, const char *reason)
{
    (void)arg;
    (void)reason;
    bench_peers[peer].is_closed = true;
}

static uint64_t bench_random(void *arg)
{
    (void)arg;
    bench_seed ^= bench_seed << 13;
    bench_seed ^= bench_seed >> 7;
    bench_seed ^= bench_seed << 17;
    return bench_seed;
}

/* Stands in for PCRE2: a pattern is a prefix, and "(" does not compile. */
__attribute__((unused)) static int bench_regex_compile(void *arg, const char *pattern,
                                                       void **ret_regex, char *text,
                                                       size_t text_size)
{
    (void)arg;
    if (*pattern == '(') {
        (void)snprintf(text, text_size, "unbalanced");
        return EGM_E_INVALID;
    }
    *ret_regex = egm_strndup(pattern, strlen(pattern));
    return *ret_regex ? 0 : -ENOMEM;
}

static uint64_t bench_match_ns; /* that each match takes */
static uint32_t bench_match_count;

__attribute__((unused)) static int bench_regex_match(void *arg, void *regex, const void *key,
                                                     size_t size, uint64_t *cost_ns)
{
    (void)arg;
    *cost_ns += bench_match_ns;
    bench_match_count++;
    size_t length = strlen(regex);
    return length <= size && memcmp(regex, key, length) == 0;
}

__attribute__((unused)) static void bench_regex_free(void *arg, void *regex)
{
    (void)arg;
    egm_free(regex);
}

static struct egm_master_options bench_options(void)
{
    struct egm_master_options options = egm_master_defaults();
    options.instance = 0x77;
    options.hold_ms = 500;
    options.session_ttl_ms = 3000;
    options.read_lease_ms = 1000;
    options.put_timeout_ms = 5000;
    options.high_watermark = 1.0;
    return options;
}

__attribute__((unused)) static void bench_check(void)
{
    const char *broken = egm_master_check(bench);
    ck_assert_msg(!broken, "%s", broken);
}

/* Takes the next frame of a peer out; false when there is none. The payload is copied into `ret`.
 */
__attribute__((unused)) static bool bench_take(uint32_t peer, struct egm_frame *ret_frame,
                                               struct egm_buf *ret)
{
    struct egm_buf *in = &bench_peers[peer].in;
    if (in->len == 0) {
        return false;
    }
    ck_assert_int_eq(egm_frame_parse(in->data, ret_frame), 0);
    egm_buf_clear(ret);
    ck_assert_int_eq(egm_buf_append(ret, in->data + EGM_FRAME_HEADER, ret_frame->length), 0);
    size_t used = EGM_FRAME_HEADER + ret_frame->length;
    memmove(in->data, in->data + used, in->len - used);
    in->len -= used;
    return true;
}

__attribute__((unused)) static void bench_settle(void);

/* Hands one frame to the core. */
__attribute__((unused)) static void bench_hand(uint32_t peer, const struct egm_buf *frame)
{
    struct egm_frame head;
    ck_assert_int_eq(frame->failed, 0);
    ck_assert_int_eq(egm_frame_parse(frame->data, &head), 0);
    uint8_t *payload = NULL;
    if (head.length > 0) {
        payload = egm_alloc(head.length);
        ck_assert_ptr_nonnull(payload);
        memcpy(payload, frame->data + EGM_FRAME_HEADER, head.length);
    }
    egm_master_receive(bench, bench_now, peer, &head, payload);
    bench_check();
}

__attribute__((unused)) static void bench_answer_lease(uint32_t peer, const struct egm_frame *frame,
                                                       struct egm_cursor cursor)
{
    struct egm_lease lease;
    egm_take_lease(&cursor, &lease);
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    bench_peers[peer].term = lease.term;
    bench_peers[peer].lease_count++;
    struct egm_buf out;
    egm_buf_init(&out, MIB);
    size_t begin = egm_frame_begin(&out, EGM_MSG_LEASE_REPLY, frame->request);
    egm_put_lease_reply(&out, &(struct egm_lease_reply){.term = lease.term});
    egm_frame_end(&out, begin);
    bench_hand(peer, &out);
    egm_buf_release(&out);
}

__attribute__((unused)) static void bench_answer_records(uint32_t peer,
                                                         const struct egm_frame *frame,
                                                         struct egm_cursor cursor)
{
    struct egm_records head;
    egm_take_records(&cursor, &head);
    ck_assert_uint_le(head.count, EGM_MAX_RECORDS); /* more is no RECORDS for a provider */
    for (uint32_t i = 0; i < head.count; i++) {
        struct egm_record record;
        struct egm_extent extent;
        egm_take_record(&cursor, &record);
        for (uint32_t e = 0; e < record.extent_count; e++) {
            egm_take_extent(&cursor, &extent);
        }
        bench_peers[peer].drop_count += record.kind == EGM_RECORD_DROP;
        bench_peers[peer].seal_count += record.kind == EGM_RECORD_SEAL;
        bench_peers[peer].grant_count += record.kind == EGM_RECORD_GRANT;
        bench_peers[peer].floor_count += record.kind == EGM_RECORD_FLOOR;
    }
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    struct egm_buf out;
    egm_buf_init(&out, MIB);
    size_t begin = egm_frame_begin(&out, EGM_MSG_RECORDS_REPLY, frame->request);
    egm_put_records_reply(&out, &(struct egm_records_reply){.sequence = head.sequence});
    egm_frame_end(&out, begin);
    bench_hand(peer, &out);
    egm_buf_release(&out);
}

/* Lets the providers answer what they answer by themselves. True: something happened. */
__attribute__((unused)) static bool bench_pump(void)
{
    bool is_busy = false;
    struct egm_buf payload;
    egm_buf_init(&payload, EGM_MAX_FRAME);
    for (uint32_t peer = 0; peer < PEERS; peer++) {
        struct bench_peer *p = &bench_peers[peer];
        struct egm_buf kept;
        struct egm_frame frame;
        egm_buf_init(&kept, EGM_MAX_FRAME);
        while (p->is_provider && !p->is_closed && bench_take(peer, &frame, &payload)) {
            struct egm_cursor cursor = egm_cursor_of(payload.data, payload.len);
            if (frame.type == EGM_MSG_LEASE && !p->keeps_leases) {
                bench_answer_lease(peer, &frame, cursor);
                is_busy = true;
            } else if (frame.type == EGM_MSG_RECORDS && !p->keeps_records) {
                bench_answer_records(peer, &frame, cursor);
                is_busy = true;
            } else {
                size_t begin = egm_frame_begin(&kept, frame.type, frame.request);
                ck_assert_int_eq(egm_buf_append(&kept, payload.data, payload.len), 0);
                egm_frame_end(&kept, begin);
            }
        }
        if (p->is_provider) {
            ck_assert_int_eq(egm_buf_append(&p->in, kept.data, kept.len), 0);
        }
        egm_buf_release(&kept);
    }
    egm_buf_release(&payload);
    return is_busy;
}

__attribute__((unused)) static void bench_settle(void)
{
    do {
        for (int n = 0; egm_master_run(bench, bench_now) && n < 100000; n++) {
            bench_check();
        }
        egm_master_flush(bench, bench_now);
        bench_check();
    } while (bench_pump());
}

__attribute__((unused)) static void bench_event(uint32_t peer, struct egm_buf *frame, size_t begin)
{
    egm_frame_end(frame, begin);
    bench_hand(peer, frame);
    egm_buf_release(frame);
    bench_settle();
}

static size_t bench_begin(struct egm_buf *frame, uint16_t type)
{
    egm_buf_init(frame, EGM_MAX_FRAME + EGM_FRAME_HEADER);
    return egm_frame_begin(frame, type, bench_request++);
}

__attribute__((unused)) static void bench_pass(uint64_t ms)
{
    for (uint64_t left = ms; left > 0;) {
        uint64_t step = left < 50 ? left : 50;
        bench_now += step * 1000000u;
        left -= step;
        egm_master_tick(bench, bench_now);
        bench_check();
        bench_settle();
    }
}

/* The reply of that type that lies first in the peer's queue; the cursor points into `payload`. */
static struct egm_cursor bench_reply(uint32_t peer, uint16_t type, struct egm_buf *payload)
{
    struct egm_frame frame;
    egm_buf_init(payload, EGM_MAX_FRAME);
    bool is_there = bench_take(peer, &frame, payload);
    ck_assert_msg(is_there, "no %s came to peer %u", egm_message_name(type), peer);
    ck_assert_msg(frame.type == type, "%s instead of %s", egm_message_name(frame.type),
                  egm_message_name(type));
    return egm_cursor_of(payload->data, payload->len);
}

__attribute__((unused)) static bool bench_has_reply(uint32_t peer)
{
    return bench_peers[peer].in.len > 0;
}

__attribute__((unused)) static void bench_start_with(const struct egm_master_options *options)
{
    static const struct egm_master_io io = {.send = bench_send,
                                            .close = bench_close,
                                            .regex_compile = bench_regex_compile,
                                            .regex_match = bench_regex_match,
                                            .regex_free = bench_regex_free,
                                            .random = bench_random};
    egm_log_set_level(EGM_LOG_ERROR);
    ck_assert_int_eq(egm_master_create(options, &io, &bench), 0);
    for (uint32_t i = 0; i < PEERS; i++) {
        bench_peers[i] = (struct bench_peer){0};
        egm_buf_init(&bench_peers[i].in, 2 * EGM_MAX_FRAME);
    }
    egm_master_tick(bench, bench_now);
}

__attribute__((unused)) static void bench_start(void)
{
    struct egm_master_options options = bench_options();
    bench_start_with(&options);
}

__attribute__((unused)) static void bench_stop(void)
{
    egm_master_destroy(bench);
    for (uint32_t i = 0; i < PEERS; i++) {
        egm_buf_release(&bench_peers[i].in);
    }
}

__attribute__((unused)) static int bench_hello(uint32_t peer, uint8_t role, const char *cluster)
{
    struct egm_buf frame;
    struct egm_hello_reply reply;
    size_t begin = bench_begin(&frame, EGM_MSG_HELLO);
    egm_put_hello(&frame, &(struct egm_hello){.version_min = 1,
                                              .version_max = 1,
                                              .role = role,
                                              .process = peer,
                                              .cluster = egm_bytes_of(cluster, strlen(cluster))});
    bench_event(peer, &frame, begin);
    struct egm_cursor cursor = bench_reply(peer, EGM_MSG_HELLO_REPLY, &frame);
    egm_take_hello_reply(&cursor, &reply);
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    egm_buf_release(&frame);
    return egm_status_from_wire(reply.status);
}

__attribute__((unused)) static void bench_connect(uint32_t peer, uint8_t role)
{
    egm_buf_clear(&bench_peers[peer].in);
    bench_peers[peer].is_closed = false;
    bench_peers[peer].is_provider = role == EGM_ROLE_PROVIDER;
    ck_assert_int_eq(egm_master_connected(bench, bench_now, peer), 0);
    ck_assert_int_eq(bench_hello(peer, role, "egmstore"), 0);
}

__attribute__((unused)) static void bench_disconnect(uint32_t peer)
{
    egm_master_disconnected(bench, bench_now, peer);
    egm_buf_clear(&bench_peers[peer].in);
    bench_peers[peer].is_closed = true;
    bench_check();
    bench_settle();
}

struct bench_slot {
    uint32_t segment, slot;
    uint64_t session;
    uint8_t kind;
};

/* Segments that the next MOUNTs bring, 0 and up, each on the NUMA node of its number. */
static uint32_t bench_segment_count = 1;

/* MOUNT over a connected provider's peer; answered leases make it ready. */
__attribute__((unused)) static int bench_mount_slots(uint32_t peer, uint64_t provider,
                                                     uint64_t epoch, uint32_t term, uint64_t size,
                                                     const struct bench_slot *slots,
                                                     uint32_t slot_count)
{
    struct egm_buf frame;
    struct egm_mount_reply reply;
    char name[16];
    int n = snprintf(name, sizeof name, "p%u", (unsigned)provider);
    bench_peers[peer].provider = provider;
    bench_peers[peer].epoch = epoch;
    size_t begin = bench_begin(&frame, EGM_MSG_MOUNT);
    egm_put_mount(&frame, &(struct egm_mount){.provider = provider,
                                              .epoch = epoch,
                                              .term = term,
                                              .host = 1,
                                              .name = egm_bytes_of(name, (size_t)n),
                                              .segment_count = bench_segment_count,
                                              .slot_count = slot_count});
    for (uint32_t i = 0; i < bench_segment_count; i++) {
        egm_put_segment(&frame, &(struct egm_segment){.segment = i, .size = size, .numa_node = i});
    }
    for (uint32_t i = 0; i < slot_count; i++) {
        egm_put_slot(&frame, &(struct egm_slot){.segment = slots[i].segment,
                                                .slot = slots[i].slot,
                                                .session = slots[i].session,
                                                .kind = slots[i].kind,
                                                .state = 1});
    }
    bool keeps_leases = bench_peers[peer].keeps_leases;
    bench_peers[peer].keeps_leases = true; /* the reply to MOUNT comes before LEASE */
    bench_event(peer, &frame, begin);
    struct egm_cursor cursor = bench_reply(peer, EGM_MSG_MOUNT_REPLY, &frame);
    egm_take_mount_reply(&cursor, &reply);
    egm_buf_release(&frame);
    bench_peers[peer].keeps_leases = keeps_leases;
    bench_settle();
    return egm_status_from_wire(reply.status);
}

__attribute__((unused)) static void bench_mount(uint32_t peer, uint64_t provider, uint64_t size)
{
    bench_connect(peer, EGM_ROLE_PROVIDER);
    ck_assert_int_eq(bench_mount_slots(peer, provider, provider * 100, 0, size, NULL, 0), 0);
}

__attribute__((unused)) static int bench_session_with(uint32_t peer, uint64_t session,
                                                      const struct egm_open_write *writes,
                                                      const struct egm_extent *extents,
                                                      uint32_t count)
{
    struct egm_buf frame;
    struct egm_session_reply reply;
    size_t begin = bench_begin(&frame, EGM_MSG_SESSION);
    egm_put_session(&frame, &(struct egm_session){.session = session,
                                                  .host = 1,
                                                  .pid = 5,
                                                  .write_count = count,
                                                  .name = egm_bytes_of("r", 1),
                                                  .opening = bench_request,
                                                  .challenge = bench_challenge});
    for (uint32_t i = 0; i < count; i++) {
        egm_put_open_write(&frame, &writes[i]);
        egm_put_extent(&frame, &extents[i]);
    }
    bench_event(peer, &frame, begin);
    struct egm_cursor cursor = bench_reply(peer, EGM_MSG_SESSION_REPLY, &frame);
    egm_take_session_reply(&cursor, &reply);
    egm_buf_release(&frame);
    if (egm_status_from_wire(reply.status) == EGM_E_AGAIN && reply.challenge != bench_challenge) {
        bench_challenge = reply.challenge;
        return bench_session_with(peer, session, writes, extents, count);
    }
    return egm_status_from_wire(reply.status);
}

__attribute__((unused)) static int bench_session(uint32_t peer, uint64_t session)
{
    return bench_session_with(peer, session, NULL, NULL, 0);
}

__attribute__((unused)) static int bench_slot_at(uint32_t provider_peer, uint32_t segment,
                                                 uint32_t slot, uint64_t session, uint8_t kind,
                                                 uint8_t state)
{
    struct egm_buf frame;
    struct egm_result result;
    size_t begin = bench_begin(&frame, EGM_MSG_SLOT_CHANGE);
    egm_put_slot_change(&frame,
                        &(struct egm_slot_change){.provider = bench_peers[provider_peer].provider,
                                                  .epoch = bench_peers[provider_peer].epoch,
                                                  .segment = segment,
                                                  .slot = slot,
                                                  .session = session,
                                                  .kind = kind,
                                                  .state = state});
    bench_event(provider_peer, &frame, begin);
    struct egm_cursor cursor = bench_reply(provider_peer, EGM_MSG_SLOT_CHANGE_REPLY, &frame);
    egm_take_result(&cursor, &result);
    egm_buf_release(&frame);
    return egm_status_from_wire(result.status);
}

/* SLOT_CHANGE of segment 0. */
__attribute__((unused)) static int bench_slot(uint32_t provider_peer, uint32_t slot,
                                              uint64_t session, uint8_t kind, uint8_t state)
{
    return bench_slot_at(provider_peer, 0, slot, session, kind, state);
}

/* A requester that may write: connected, with session and one map slot at the provider. */
__attribute__((unused)) static void bench_requester(uint32_t peer, uint64_t session,
                                                    uint32_t provider_peer)
{
    bench_connect(peer, EGM_ROLE_REQUESTER);
    ck_assert_int_eq(bench_session(peer, session), 0);
    ck_assert_int_eq(bench_slot(provider_peer, peer, session, EGM_IMPORT_MAP, 1), 0);
}

__attribute__((unused)) static void bench_put_key(struct egm_buf *frame, const char *key)
{
    struct egm_key_writer writer = {0};
    ck_assert_int_eq(egm_put_key(&writer, frame, key, strlen(key)), 0);
}

__attribute__((unused)) static void bench_take_entry(struct egm_cursor *cursor, struct got *got)
{
    struct egm_entry entry;
    egm_take_entry(cursor, &entry);
    *got = (struct got){.status = egm_status_from_wire(entry.status),
                        .generation = entry.generation,
                        .size = entry.size,
                        .checksum = entry.checksum,
                        .replica_count = entry.replica_count};
    for (uint32_t i = 0; i < entry.replica_count; i++) {
        struct egm_replica replica;
        egm_take_replica(cursor, &replica);
        for (uint32_t e = 0; e < replica.extent_count; e++) {
            struct egm_extent extent;
            egm_take_extent(cursor, &extent);
            if (i == 0 && e == 0) {
                got->mount = replica.mount;
                got->offset = extent.offset;
                got->length = extent.length;
            }
        }
    }
}

__attribute__((unused)) static void bench_items_reply(uint32_t peer, uint16_t type, struct got *got)
{
    struct egm_buf payload;
    struct egm_items_reply head;
    struct egm_cursor cursor = bench_reply(peer, type, &payload);
    egm_take_items_reply(&cursor, &head);
    if (head.status < 0) {
        *got = (struct got){.status = egm_status_from_wire(head.status)};
    } else {
        ck_assert_uint_eq(head.count, 1);
        bench_take_entry(&cursor, got);
        got->lease_ms = head.lease_ms;
    }
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    egm_buf_release(&payload);
}

struct bench_put {
    uint8_t flags, replicas, soft_pin;
    const char *group;
};

static size_t bench_put_frame(struct egm_buf *frame, uint64_t session, const char *key,
                              uint64_t size, struct bench_put how)
{
    size_t begin = bench_begin(frame, EGM_MSG_PUT_START);
    egm_put_put_start(frame, &(struct egm_put_start){.session = session,
                                                     .deadline_ms = 2000,
                                                     .flags = how.flags,
                                                     .replica_count = how.replicas,
                                                     .soft_pin = how.soft_pin,
                                                     .key_count = 1});
    struct egm_want want = {.size = size};
    if (how.group) {
        want.group = egm_bytes_of(how.group, strlen(how.group));
    }
    egm_put_want(frame, &want);
    bench_put_key(frame, key);
    return begin;
}

__attribute__((unused)) static void bench_put_ask(uint32_t peer, uint64_t session, const char *key,
                                                  uint64_t size, struct bench_put how)
{
    struct egm_buf frame;
    size_t begin = bench_put_frame(&frame, session, key, size, how);
    bench_event(peer, &frame, begin);
}

/* Hands it over and takes no turn after that. */
__attribute__((unused)) static void bench_hand_put(uint32_t peer, uint64_t session, const char *key,
                                                   uint64_t size)
{
    struct egm_buf frame;
    egm_frame_end(&frame, bench_put_frame(&frame, session, key, size, (struct bench_put){0}));
    bench_hand(peer, &frame);
    egm_buf_release(&frame);
}

__attribute__((unused)) static struct got bench_put_start(uint32_t peer, uint64_t session,
                                                          const char *key, uint64_t size)
{
    struct got got;
    bench_put_ask(peer, session, key, size, (struct bench_put){0});
    bench_items_reply(peer, EGM_MSG_PUT_START_REPLY, &got);
    return got;
}

__attribute__((unused)) static int bench_results_reply(uint32_t peer, uint16_t type)
{
    struct egm_buf payload;
    struct egm_results_reply head;
    struct egm_result result;
    struct egm_cursor cursor = bench_reply(peer, type, &payload);
    egm_take_results_reply(&cursor, &head);
    int status = egm_status_from_wire(head.status);
    if (status == 0) {
        egm_take_result(&cursor, &result);
        status = egm_status_from_wire(result.status);
    }
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    egm_buf_release(&payload);
    return status;
}

__attribute__((unused)) static int bench_put_end(uint32_t peer, uint64_t session,
                                                 uint64_t generation, uint8_t outcome)
{
    struct egm_buf frame;
    size_t begin = bench_begin(&frame, EGM_MSG_PUT_END);
    egm_put_put_end(&frame, &(struct egm_put_end){.session = session, .count = 1});
    egm_put_ended(&frame, &(struct egm_ended){.generation = generation,
                                              .checksum = generation * 3,
                                              .outcome = outcome});
    bench_event(peer, &frame, begin);
    return bench_results_reply(peer, EGM_MSG_PUT_END_REPLY);
}

__attribute__((unused)) static int bench_put(uint32_t peer, uint64_t session, const char *key,
                                             uint64_t size)
{
    struct got got = bench_put_start(peer, session, key, size);
    return got.status < 0 ? got.status : bench_put_end(peer, session, got.generation, 0);
}

__attribute__((unused)) static struct got bench_get_start(uint32_t peer, uint64_t session,
                                                          const char *key, uint64_t op)
{
    struct egm_buf frame;
    struct got got;
    size_t begin = bench_begin(&frame, EGM_MSG_GET_START);
    egm_put_get_start(&frame,
                      &(struct egm_get_start){
                          .session = session, .op = op, .deadline_ms = 60000, .key_count = 1});
    bench_put_key(&frame, key);
    bench_event(peer, &frame, begin);
    bench_items_reply(peer, EGM_MSG_GET_START_REPLY, &got);
    return got;
}

__attribute__((unused)) static void bench_op_end(uint32_t peer, uint64_t session, uint64_t op)
{
    struct egm_buf frame;
    size_t begin = bench_begin(&frame, EGM_MSG_OP_END);
    egm_put_op_end(&frame, &(struct egm_op_end){.session = session, .op = op});
    bench_event(peer, &frame, begin);
}

__attribute__((unused)) static bool bench_exists(uint32_t peer, uint64_t session, const char *key)
{
    struct egm_buf frame;
    struct egm_exist_reply head;
    struct egm_flag flag = {0};
    size_t begin = bench_begin(&frame, EGM_MSG_EXIST);
    egm_put_exist(&frame,
                  &(struct egm_exist){.session = session, .flags = EGM_PROBE, .key_count = 1});
    bench_put_key(&frame, key);
    bench_event(peer, &frame, begin);
    struct egm_cursor cursor = bench_reply(peer, EGM_MSG_EXIST_REPLY, &frame);
    egm_take_exist_reply(&cursor, &head);
    ck_assert_int_eq(head.status, 0);
    egm_take_flag(&cursor, &flag);
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    egm_buf_release(&frame);
    return flag.value;
}

__attribute__((unused)) static void bench_remove_ask(uint32_t peer, uint64_t session,
                                                     const char *key, uint8_t flags)
{
    struct egm_buf frame;
    size_t begin = bench_begin(&frame, EGM_MSG_REMOVE);
    egm_put_remove(&frame,
                   &(struct egm_remove){.session = session, .flags = flags, .key_count = 1});
    bench_put_key(&frame, key);
    bench_event(peer, &frame, begin);
}

__attribute__((unused)) static int bench_remove(uint32_t peer, uint64_t session, const char *key,
                                                uint8_t flags)
{
    bench_remove_ask(peer, session, key, flags);
    return bench_results_reply(peer, EGM_MSG_REMOVE_REPLY);
}

__attribute__((unused)) static int bench_count_reply(uint32_t peer, uint16_t type,
                                                     uint64_t *ret_count)
{
    struct egm_buf payload;
    struct egm_count_reply reply;
    struct egm_cursor cursor = bench_reply(peer, type, &payload);
    egm_take_count_reply(&cursor, &reply);
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    *ret_count = reply.count;
    egm_buf_release(&payload);
    return egm_status_from_wire(reply.status);
}

__attribute__((unused)) static void bench_remove_all_ask(uint32_t peer, uint64_t session,
                                                         uint8_t flags)
{
    struct egm_buf frame;
    size_t begin = bench_begin(&frame, EGM_MSG_REMOVE_ALL);
    egm_put_remove_all(&frame, &(struct egm_remove_all){.session = session, .flags = flags});
    bench_event(peer, &frame, begin);
}

/* PING; returns the status. ret_revoked: the first revoked generation, or 0. */
__attribute__((unused)) static int bench_ping(uint32_t peer, uint64_t session, uint64_t stopped,
                                              uint64_t *ret_revoked)
{
    struct egm_buf frame;
    struct egm_ping_reply reply;
    struct egm_generation generation = {0};
    size_t begin = bench_begin(&frame, EGM_MSG_PING);
    egm_put_ping(&frame, &(struct egm_ping){.session = session, .stopped_count = stopped != 0});
    if (stopped) {
        egm_put_generation(&frame, &(struct egm_generation){.value = stopped});
    }
    bench_event(peer, &frame, begin);
    struct egm_cursor cursor = bench_reply(peer, EGM_MSG_PING_REPLY, &frame);
    egm_take_ping_reply(&cursor, &reply);
    if (reply.revoked_count > 0) {
        egm_take_generation(&cursor, &generation);
    }
    egm_buf_release(&frame);
    if (ret_revoked) {
        *ret_revoked = generation.value;
    }
    return egm_status_from_wire(reply.status);
}

/* PING; for how long it renews that op: 0 if it does not name it. */
__attribute__((unused)) static uint32_t bench_renewed(uint32_t peer, uint64_t session, uint64_t op)
{
    struct egm_buf frame;
    struct egm_ping_reply reply;
    struct egm_renewal renewal;
    uint32_t lease_ms = 0;
    size_t begin = bench_begin(&frame, EGM_MSG_PING);
    egm_put_ping(&frame, &(struct egm_ping){.session = session});
    bench_event(peer, &frame, begin);
    struct egm_cursor cursor = bench_reply(peer, EGM_MSG_PING_REPLY, &frame);
    egm_take_ping_reply(&cursor, &reply);
    ck_assert_uint_eq(reply.revoked_count, 0);
    for (uint32_t i = 0; i < reply.renewed_count; i++) {
        egm_take_renewal(&cursor, &renewal);
        ck_assert_uint_gt(renewal.lease_ms, 0);
        lease_ms = renewal.op == op ? renewal.lease_ms : lease_ms;
    }
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    egm_buf_release(&frame);
    return lease_ms;
}

__attribute__((unused)) static int bench_unmount(uint32_t peer, uint8_t mode)
{
    struct egm_buf frame;
    struct egm_result result;
    size_t begin = bench_begin(&frame, EGM_MSG_UNMOUNT);
    egm_put_unmount(&frame, &(struct egm_unmount){.provider = bench_peers[peer].provider,
                                                  .epoch = bench_peers[peer].epoch,
                                                  .mode = mode});
    bench_event(peer, &frame, begin);
    struct egm_cursor cursor = bench_reply(peer, EGM_MSG_UNMOUNT_REPLY, &frame);
    egm_take_result(&cursor, &result);
    egm_buf_release(&frame);
    return egm_status_from_wire(result.status);
}

struct bench_sums {
    uint64_t size, free, writing, sealed, removed, quarantined;
    uint32_t count, unresolved;
    char state[32]; /* of the last mount */
};

__attribute__((unused)) static void bench_add(void *arg, const struct egm_mount_stat *stat)
{
    struct bench_sums *sums = arg;
    sums->size += stat->size_bytes;
    sums->free += stat->free_bytes;
    sums->writing += stat->writing_bytes;
    sums->sealed += stat->sealed_bytes;
    sums->removed += stat->removed_bytes;
    sums->quarantined += stat->quarantined_bytes;
    sums->unresolved += stat->unresolved_count;
    sums->count++;
    (void)snprintf(sums->state, sizeof sums->state, "%s", stat->state);
}

__attribute__((unused)) static struct bench_sums bench_sums(void)
{
    struct bench_sums sums = {0};
    egm_master_each_mount(bench, bench_now, bench_add, &sums);
    return sums;
}

#endif
