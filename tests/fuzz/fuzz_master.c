/* SPDX-License-Identifier: Apache-2.0 */
/* The master core on arbitrary sequences of frames. The input is a script: each step takes a few
 * bytes that choose a peer, a message and small field values, so that most frames are well-formed
 * and meet objects, sessions and providers that exist; one kind of step sends the input's bytes
 * raw. egm_master_check holds after each step. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/log.h"

#include "core/master.h"
#include "wire/keys.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PEERS 6 /* 0..3 requesters, 4 and 5 providers */

struct script {
    const uint8_t *at, *end;
};

static struct egm_master *m;
static uint64_t now_ns;
static bool is_open[PEERS];
static uint64_t random_state;
static uint64_t last_lease[PEERS], last_sequence[PEERS];
static uint64_t last_challenge;
static uint64_t generations[16]; /* seen in grants */
static unsigned generation_count;

static uint8_t next(struct script *s)
{
    return s->at < s->end ? *s->at++ : 0;
}

static void see_grant(const uint8_t *payload, uint32_t length)
{
    struct egm_cursor cursor = egm_cursor_of(payload, length);
    struct egm_items_reply head;
    struct egm_entry entry;
    egm_take_items_reply(&cursor, &head);
    if (head.status == 0 && head.count > 0) {
        egm_take_entry(&cursor, &entry);
        generations[generation_count++ % 16] = entry.generation;
    }
}

static void io_send(void *arg, uint32_t peer, const void *data, size_t size)
{
    struct egm_frame frame;
    (void)arg;
    EGM_ASSERT(egm_frame_parse(data, &frame) == 0 && frame.length + EGM_FRAME_HEADER == size);
    if (frame.type == EGM_MSG_LEASE) {
        last_lease[peer] = frame.request;
    } else if (frame.type == EGM_MSG_RECORDS) {
        last_sequence[peer] = last_sequence[peer] ? last_sequence[peer] : frame.request;
    } else if (frame.type == EGM_MSG_PUT_START_REPLY) {
        see_grant((const uint8_t *)data + EGM_FRAME_HEADER, frame.length);
    } else if (frame.type == EGM_MSG_SESSION_REPLY) {
        struct egm_cursor cursor =
            egm_cursor_of((const uint8_t *)data + EGM_FRAME_HEADER, frame.length);
        struct egm_session_reply reply;
        egm_take_session_reply(&cursor, &reply);
        last_challenge = reply.challenge;
    }
}

static bool is_closing[PEERS];

static void io_close(void *arg, uint32_t peer, const char *reason)
{
    (void)arg, (void)reason;
    is_closing[peer] = true;
}

static int io_compile(void *arg, const char *pattern, void **ret_regex, char *text,
                      size_t text_size)
{
    (void)arg, (void)pattern, (void)text, (void)text_size;
    *ret_regex = egm_alloc(1);
    return *ret_regex ? 0 : -1;
}

static int io_match(void *arg, void *regex, const void *key, size_t size, uint64_t *cost_ns)
{
    (void)arg, (void)regex;
    *cost_ns += size * 10000; /* a longer key gives way sooner */
    return size > 0 && *(const uint8_t *)key % 2;
}

static void io_free(void *arg, void *regex)
{
    (void)arg;
    egm_free(regex);
}

static uint64_t io_random(void *arg)
{
    (void)arg;
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return random_state;
}

static void settle(void)
{
    for (int n = 0; egm_master_run(m, now_ns) && n < 100; n++) {
    }
    egm_master_flush(m, now_ns);
    const char *broken = egm_master_check(m);
    if (broken) {
        egm_error("broken: %s", broken);
        abort();
    }
    for (uint32_t peer = 0; peer < PEERS; peer++) {
        if (is_closing[peer]) {
            is_closing[peer] = false;
            is_open[peer] = false;
            egm_master_disconnected(m, now_ns, peer);
        }
    }
}

static void hand(uint32_t peer, const struct egm_buf *buf)
{
    struct egm_frame frame;
    if (buf->failed || egm_frame_parse(buf->data, &frame) < 0 || !is_open[peer]) {
        return;
    }
    uint8_t *payload = frame.length ? egm_alloc(frame.length) : NULL;
    if (frame.length) {
        memcpy(payload, buf->data + EGM_FRAME_HEADER, frame.length);
    }
    egm_master_receive(m, now_ns, peer, &frame, payload);
}

static void put_key(struct script *s, struct egm_buf *buf, uint32_t count)
{
    struct egm_key_writer writer = {0};
    uint8_t keys[8];
    for (uint32_t i = 0; i < count && i < 8; i++) {
        keys[i] = (uint8_t)('a' + next(s) % 6);
        (void)egm_put_key(&writer, buf, &keys[i], 1);
    }
}

static uint64_t session_of(struct script *s)
{
    return 1 + next(s) % 4;
}

static uint64_t generation_of(struct script *s)
{
    return generations[next(s) % 16];
}

static void put_session(struct script *s, struct egm_buf *buf)
{
    uint32_t count = next(s) % 3;
    egm_put_session(buf, &(struct egm_session){.session = session_of(s),
                                               .write_count = count,
                                               .challenge = last_challenge});
    for (uint32_t i = 0; i < count; i++) {
        egm_put_open_write(buf, &(struct egm_open_write){.generation = generation_of(s),
                                                         .provider = 1 + next(s) % 2,
                                                         .epoch = 1 + next(s) % 2,
                                                         .segment = next(s) % 2,
                                                         .extent_count = 1});
        egm_put_extent(buf, &(struct egm_extent){.offset = next(s) * EGM_SLOT * 4,
                                                 .length = next(s) * EGM_SLOT});
    }
}

static void put_mount(struct script *s, struct egm_buf *buf)
{
    uint32_t slots = next(s) % 3;
    egm_put_mount(buf, &(struct egm_mount){.provider = 1 + next(s) % 2,
                                           .epoch = 1 + next(s) % 2,
                                           .term = next(s) % 4,
                                           .name = egm_bytes_of("p", 1),
                                           .segment_count = 1,
                                           .slot_count = slots});
    egm_put_segment(buf, &(struct egm_segment){.size = (2 + next(s) % 14) * EGM_GRANULE});
    for (uint32_t i = 0; i < slots; i++) {
        egm_put_slot(buf, &(struct egm_slot){.slot = next(s) % 4,
                                             .session = session_of(s),
                                             .kind = (uint8_t)(1 + next(s) % 2),
                                             .state = 1});
    }
}

static void put_put_start(struct script *s, struct egm_buf *buf)
{
    uint32_t count = 1 + next(s) % 3;
    egm_put_put_start(buf, &(struct egm_put_start){.session = session_of(s),
                                                   .deadline_ms = next(s) * 20u,
                                                   .flags = next(s) % 32,
                                                   .replica_count = next(s) % 4,
                                                   .soft_pin = next(s) % 3,
                                                   .key_count = count});
    for (uint32_t i = 0; i < count; i++) {
        uint8_t kind = next(s);
        egm_put_want(
            buf, &(struct egm_want){.size = kind == 255 ? UINT64_C(1) << 63 : kind * UINT64_C(3000),
                                    .group = egm_bytes_of("g", kind % 5 == 0)});
    }
    put_key(s, buf, count);
}

static uint16_t put_requester_message(struct script *s, struct egm_buf *buf, uint8_t what)
{
    switch (what % 12) {
    case 0:
        put_session(s, buf);
        return EGM_MSG_SESSION;
    case 1:
        egm_put_ping(buf, &(struct egm_ping){.session = session_of(s), .stopped_count = 1});
        egm_put_generation(buf, &(struct egm_generation){.value = generation_of(s)});
        return EGM_MSG_PING;
    case 2:
        egm_put_exist(buf, &(struct egm_exist){.session = session_of(s), .key_count = 4});
        put_key(s, buf, 4);
        return EGM_MSG_EXIST;
    case 3:
        egm_put_get_start(buf, &(struct egm_get_start){.session = session_of(s),
                                                       .op = next(s) % 4,
                                                       .deadline_ms = next(s) * 40u,
                                                       .key_count = 4});
        put_key(s, buf, 4);
        return EGM_MSG_GET_START;
    case 4:
        egm_put_op_end(buf, &(struct egm_op_end){.session = session_of(s), .op = next(s) % 4});
        return EGM_MSG_OP_END;
    case 5:
    case 6:
        put_put_start(s, buf);
        return EGM_MSG_PUT_START;
    case 7:
        egm_put_put_end(buf, &(struct egm_put_end){.session = session_of(s), .count = 2});
        for (int i = 0; i < 2; i++) {
            egm_put_ended(buf, &(struct egm_ended){.generation = generation_of(s),
                                                   .outcome = next(s) % 3 == 2});
        }
        return EGM_MSG_PUT_END;
    case 8:
        egm_put_remove(buf, &(struct egm_remove){
                                .session = session_of(s), .flags = next(s) % 2, .key_count = 2});
        put_key(s, buf, 2);
        return EGM_MSG_REMOVE;
    case 9:
        egm_put_remove_all(
            buf, &(struct egm_remove_all){.session = session_of(s), .flags = next(s) % 2});
        return EGM_MSG_REMOVE_ALL;
    case 10:
        egm_put_remove_matching(buf,
                                &(struct egm_remove_matching){.session = session_of(s),
                                                              .pattern = egm_bytes_of("x", 1)});
        return EGM_MSG_REMOVE_MATCHING;
    default:
        egm_put_session_end(buf, &(struct egm_session_end){.session = session_of(s)});
        return EGM_MSG_SESSION_END;
    }
}

static uint16_t put_provider_message(struct script *s, struct egm_buf *buf, uint32_t peer,
                                     uint8_t what, uint64_t *request)
{
    switch (what % 6) {
    case 0:
        put_mount(s, buf);
        return EGM_MSG_MOUNT;
    case 1:
        *request = last_lease[peer];
        egm_put_lease_reply(buf, &(struct egm_lease_reply){.term = next(s) % 4});
        return EGM_MSG_LEASE_REPLY;
    case 2:
    case 3:
        egm_put_records_reply(buf, &(struct egm_records_reply){.sequence = last_sequence[peer]++});
        return EGM_MSG_RECORDS_REPLY;
    case 4:
        egm_put_slot_change(buf, &(struct egm_slot_change){.provider = 1 + next(s) % 2,
                                                           .epoch = 1 + next(s) % 2,
                                                           .slot = next(s) % 4,
                                                           .session = session_of(s),
                                                           .kind = (uint8_t)(1 + next(s) % 2),
                                                           .state = next(s) % 2});
        return EGM_MSG_SLOT_CHANGE;
    default:
        egm_put_unmount(buf, &(struct egm_unmount){.provider = 1 + next(s) % 2,
                                                   .epoch = 1 + next(s) % 2,
                                                   .mode = (uint8_t)(1 + next(s) % 2)});
        return EGM_MSG_UNMOUNT;
    }
}

static void open_peer(uint32_t peer)
{
    struct egm_buf buf;
    EGM_ASSERT(egm_master_connected(m, now_ns, peer) == 0);
    is_open[peer] = true;
    last_sequence[peer] = 0;
    last_lease[peer] = 0;
    egm_buf_init(&buf, 4096);
    size_t begin = egm_frame_begin(&buf, EGM_MSG_HELLO, 1);
    egm_put_hello(&buf,
                  &(struct egm_hello){.version_min = 1,
                                      .version_max = 1,
                                      .role = peer < 4 ? EGM_ROLE_REQUESTER : EGM_ROLE_PROVIDER,
                                      .cluster = egm_bytes_of("egmstore", 8)});
    egm_frame_end(&buf, begin);
    hand(peer, &buf);
    egm_buf_release(&buf);
}

static void step(struct script *s)
{
    uint8_t choice = next(s);
    uint32_t peer = choice % PEERS;
    uint8_t what = next(s);
    struct egm_buf buf;
    if (what >= 250) {
        now_ns += (uint64_t)next(s) * 20000000;
        egm_master_tick(m, now_ns);
        return;
    }
    if (what >= 245 && is_open[peer]) {
        is_open[peer] = false;
        egm_master_disconnected(m, now_ns, peer);
        return;
    }
    if (!is_open[peer]) {
        open_peer(peer);
    }
    egm_buf_init(&buf, 1u << 16);
    uint64_t request = 1;
    size_t begin = egm_frame_begin(&buf, 0, 0);
    uint16_t type;
    if (what >= 235) { /* raw: the type and up to 60 bytes as they come */
        type = next(s);
        for (uint8_t n = next(s) % 60; n > 0; n--) {
            uint8_t byte = next(s);
            (void)egm_buf_append(&buf, &byte, 1);
        }
    } else {
        type = peer < 4 ? put_requester_message(s, &buf, what)
                        : put_provider_message(s, &buf, peer, what, &request);
    }
    egm_frame_end(&buf, begin);
    buf.data[begin + 6] = (uint8_t)type;
    buf.data[begin + 7] = (uint8_t)(type >> 8);
    for (int i = 0; i < 8; i++) {
        buf.data[begin + 16 + (size_t)i] = (uint8_t)(request >> (8 * i));
    }
    hand(peer, &buf);
    egm_buf_release(&buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct egm_master_io io = {.send = io_send,
                                            .close = io_close,
                                            .regex_compile = io_compile,
                                            .regex_match = io_match,
                                            .regex_free = io_free,
                                            .random = io_random};
    struct script s = {.at = data, .end = data + size};
    struct egm_master_options options = egm_master_defaults();
    egm_log_set_level(EGM_LOG_ERROR);
    options.instance = 9;
    options.session_ttl_ms = 2000;
    options.put_timeout_ms = 1000;
    memset(is_open, 0, sizeof is_open);
    memset(is_closing, 0, sizeof is_closing);
    memset(generations, 0, sizeof generations);
    generation_count = 0;
    last_challenge = 0;
    random_state = 1;
    now_ns = 1000000000;
    EGM_ASSERT(egm_master_create(&options, &io, &m) == 0);
    egm_master_tick(m, now_ns);
    while (s.at < s.end) {
        step(&s);
        settle();
    }
    egm_master_destroy(m);
    return 0;
}
