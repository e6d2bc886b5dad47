/* SPDX-License-Identifier: Apache-2.0 */
/* The provider's core, spoken to as its master and its data port would. */
#include "base/buf.h"

#include "core/provider.h"
#include "test.h"
#include "wire/status.h"

#include <string.h>

#define SIZE (16 * EGM_GRANULE)
#define MS UINT64_C(1000000)
#define MASTER_A 0xaaaa
#define MASTER_B 0xbbbb
#define GENERATION(term, counter) ((uint64_t)(term) << 44 | (counter))

struct world {
    struct egm_pcore *core;
    _Atomic uint64_t floor;
    _Atomic uint64_t granules[SIZE / EGM_GRANULE];
    _Atomic uint64_t slots[SIZE / EGM_SLOT];
    uint64_t now_ns;
    uint64_t next_request;
    uint64_t next_sequence;
    size_t read; /* of the core's output */
};

static const struct egm_extent place_one = {.offset = EGM_GRANULE, .length = 2 * EGM_GRANULE};
static const struct egm_extent place_slot = {.offset = 5 * EGM_GRANULE + EGM_SLOT,
                                             .length = 2 * EGM_SLOT};

static void open_world(struct world *w)
{
    *w = (struct world){.now_ns = 1000 * MS, .next_request = 1, .next_sequence = 1};
    struct egm_pcore_segment segment = {.segment = 3,
                                        .size = SIZE,
                                        .floor = &w->floor,
                                        .granule_fence = w->granules,
                                        .slot_fence = w->slots};
    struct egm_pcore_options options = {.provider = 7,
                                        .epoch = 8,
                                        .host = 9,
                                        .name = "host:1",
                                        .unix_path = "/run/x.sock",
                                        .data_address = "127.0.0.1:2",
                                        .segments = &segment,
                                        .segment_count = 1};
    ck_assert_int_eq(egm_pcore_create(&options, &w->core), 0);
}

static void close_world(struct world *w)
{
    egm_pcore_destroy(w->core);
}

/* Next frame of the core's output; false if there is none. */
static bool take_frame(struct world *w, struct egm_frame *ret_frame, struct egm_cursor *ret_cursor)
{
    struct egm_buf *out = egm_pcore_out(w->core);

    ck_assert_int_eq(out->failed, 0);
    if (w->read > out->len) {
        w->read = 0; /* the core cleared it */
    }
    if (w->read == out->len) {
        return false;
    }
    ck_assert_int_eq(egm_frame_parse(out->data + w->read, ret_frame), 0);
    *ret_cursor = egm_cursor_of(out->data + w->read + EGM_FRAME_HEADER, ret_frame->length);
    w->read += EGM_FRAME_HEADER + ret_frame->length;
    return true;
}

static void expect_frame(struct world *w, uint16_t type, struct egm_frame *ret_frame,
                         struct egm_cursor *ret_cursor)
{
    ck_assert(take_frame(w, ret_frame, ret_cursor));
    ck_assert_str_eq(egm_message_name(ret_frame->type), egm_message_name(type));
}

static void expect_silence(struct world *w)
{
    struct egm_frame frame;
    struct egm_cursor cursor;

    ck_assert(!take_frame(w, &frame, &cursor));
}

/* Hands the frame in `buf` to the core. */
static int deliver(struct world *w, const struct egm_buf *buf, struct egm_pcore_verify *ret_verify)
{
    struct egm_frame frame;

    ck_assert_int_eq(egm_frame_parse(buf->data, &frame), 0);
    return egm_pcore_receive(w->core, w->now_ns, &frame, buf->data + EGM_FRAME_HEADER, ret_verify);
}

static int send_result(struct world *w, uint16_t type, uint64_t request, int status)
{
    struct egm_buf buf;

    egm_buf_init(&buf, 4096);
    size_t begin = egm_frame_begin(&buf, type, request);
    if (type == EGM_MSG_MOUNT_REPLY) {
        egm_put_mount_reply(&buf, &(struct egm_mount_reply){.status = egm_status_to_wire(status)});
    } else {
        egm_put_result(&buf, &(struct egm_result){.status = egm_status_to_wire(status)});
    }
    egm_frame_end(&buf, begin);
    int r = deliver(w, &buf, NULL);
    egm_buf_release(&buf);
    return r;
}

/* Connects a master and answers MOUNT; returns the number of slots that it listed. */
static uint32_t mount(struct world *w, uint64_t instance)
{
    struct egm_frame frame;
    struct egm_cursor cursor;
    struct egm_mount message;

    egm_pcore_connected(w->core, instance);
    w->read = 0;
    w->next_sequence = 1;
    expect_frame(w, EGM_MSG_MOUNT, &frame, &cursor);
    egm_take_mount(&cursor, &message);
    ck_assert_uint_eq(message.provider, 7);
    ck_assert_uint_eq(message.epoch, 8);
    ck_assert_uint_eq(message.segment_count, 1);
    ck_assert_int_eq(send_result(w, EGM_MSG_MOUNT_REPLY, frame.request, 0), 0);
    ck_assert(egm_pcore_status(w->core).is_mounted);
    return message.slot_count;
}

static int send_lease(struct world *w, uint64_t instance, uint32_t term, uint32_t duration_ms)
{
    struct egm_buf buf;

    egm_buf_init(&buf, 4096);
    size_t begin = egm_frame_begin(&buf, EGM_MSG_LEASE, 0);
    egm_put_lease(
        &buf, &(struct egm_lease){.instance = instance, .term = term, .duration_ms = duration_ms});
    egm_frame_end(&buf, begin);
    int r = deliver(w, &buf, NULL);
    egm_buf_release(&buf);
    return r;
}

static struct egm_lease_reply expect_lease_reply(struct world *w)
{
    struct egm_frame frame;
    struct egm_cursor cursor;
    struct egm_lease_reply reply;

    expect_frame(w, EGM_MSG_LEASE_REPLY, &frame, &cursor);
    egm_take_lease_reply(&cursor, &reply);
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    return reply;
}

static void lease(struct world *w, uint64_t instance, uint32_t term)
{
    ck_assert_int_eq(send_lease(w, instance, term, 5000), 0);
    struct egm_lease_reply reply = expect_lease_reply(w);
    ck_assert_int_eq(reply.status, 0);
    ck_assert_uint_eq(reply.term, term);
}

static int send_record(struct world *w, uint8_t kind, uint64_t generation, uint64_t size,
                       const struct egm_extent *extents, uint8_t count)
{
    struct egm_buf buf;

    egm_buf_init(&buf, 4096);
    size_t begin = egm_frame_begin(&buf, EGM_MSG_RECORDS, w->next_request++);
    egm_put_records(&buf, &(struct egm_records){.sequence = w->next_sequence++, .count = 1});
    egm_put_record(&buf, &(struct egm_record){.kind = kind,
                                              .segment = 3,
                                              .generation = generation,
                                              .size = size,
                                              .checksum = 5,
                                              .extent_count = count});
    for (uint8_t i = 0; i < count; i++) {
        egm_put_extent(&buf, &extents[i]);
    }
    egm_frame_end(&buf, begin);
    int r = deliver(w, &buf, NULL);
    egm_buf_release(&buf);
    return r;
}

static void expect_records_reply(struct world *w, int status, uint64_t sequence)
{
    struct egm_frame frame;
    struct egm_cursor cursor;
    struct egm_records_reply reply;

    expect_frame(w, EGM_MSG_RECORDS_REPLY, &frame, &cursor);
    egm_take_records_reply(&cursor, &reply);
    ck_assert_int_eq(egm_status_from_wire(reply.status), status);
    ck_assert_uint_eq(reply.sequence, sequence);
}

static void record(struct world *w, uint8_t kind, uint64_t generation, uint64_t size,
                   const struct egm_extent *extent)
{
    uint64_t sequence = w->next_sequence;

    ck_assert_int_eq(send_record(w, kind, generation, size, extent, extent ? 1 : 0), 0);
    expect_records_reply(w, 0, sequence);
}

static int begin(struct world *w, bool is_write, uint64_t generation,
                 const struct egm_extent *extent, uint64_t skip, uint64_t length,
                 uint32_t *ret_live)
{
    struct egm_pcore_access access = {.is_write = is_write,
                                      .extent_count = 1,
                                      .segment = 3,
                                      .generation = generation,
                                      .skip = skip,
                                      .length = length,
                                      .extents = extent};
    uint32_t live;
    int r = egm_pcore_access_begin(w->core, &access, &live);

    if (r == 0 && ret_live) {
        *ret_live = live;
    } else if (r == 0) {
        egm_pcore_access_end(w->core, live, is_write);
    }
    return r;
}

/* ---- lease and term ---- */

START_TEST(second_master_is_refused_until_the_lease_ends)
{
    struct world w;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    ck_assert(!egm_pcore_status(w.core).is_leased);
    lease(&w, MASTER_A, 4);
    ck_assert(egm_pcore_status(w.core).is_leased);

    egm_pcore_disconnected(w.core);
    egm_ignore((int)mount(&w, MASTER_B), "none yet");
    w.now_ns += 4999 * MS;
    ck_assert_int_eq(send_lease(&w, MASTER_B, 5, 5000), 0);
    struct egm_lease_reply reply = expect_lease_reply(&w);
    ck_assert_int_eq(egm_status_from_wire(reply.status), EGM_E_NOT_READY);
    ck_assert_uint_eq(reply.remaining_ms, 1);
    w.now_ns += 1 * MS;
    lease(&w, MASTER_B, 5);
    close_world(&w);
}
END_TEST

START_TEST(released_lease_lets_the_next_master_in_at_once)
{
    struct world w;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    ck_assert_int_eq(send_lease(&w, MASTER_A, 1, 0), 0);
    ck_assert_int_eq(expect_lease_reply(&w).status, 0);
    egm_ignore((int)mount(&w, MASTER_B), "none yet");
    lease(&w, MASTER_B, 2);
    close_world(&w);
}
END_TEST

START_TEST(old_term_and_borrowed_term_are_stale)
{
    struct world w;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 4);
    egm_ignore((int)mount(&w, MASTER_B), "none yet");
    w.now_ns += 6000 * MS;
    for (uint32_t term = 3; term <= 4; term++) {
        ck_assert_int_eq(send_lease(&w, MASTER_B, term, 5000), 0);
        struct egm_lease_reply reply = expect_lease_reply(&w);
        ck_assert_int_eq(egm_status_from_wire(reply.status), EGM_E_STALE);
        ck_assert_uint_eq(reply.term, 4);
    }
    close_world(&w);
}
END_TEST

START_TEST(new_term_kills_what_the_old_one_placed)
{
    struct world w;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    record(&w, EGM_RECORD_SEAL, GENERATION(1, 1), 100, &place_one);
    ck_assert_int_eq(begin(&w, false, GENERATION(1, 1), &place_one, 0, 100, NULL), 0);

    w.now_ns += 6000 * MS;
    egm_ignore((int)mount(&w, MASTER_B), "none yet");
    lease(&w, MASTER_B, 2);
    ck_assert_uint_eq(atomic_load(&w.floor), GENERATION(2, 0) - 1);
    ck_assert_int_eq(begin(&w, false, GENERATION(1, 1), &place_one, 0, 100, NULL), EGM_E_STALE);
    ck_assert_uint_eq(egm_pcore_status(w.core).live_count, 0);
    /* A late seal of the dead generation does not bring it back. */
    record(&w, EGM_RECORD_SEAL, GENERATION(1, 1), 100, &place_one);
    ck_assert_uint_eq(egm_pcore_status(w.core).live_count, 0);
    close_world(&w);
}
END_TEST

START_TEST(new_term_waits_for_running_transfers)
{
    struct world w;
    uint32_t live;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    record(&w, EGM_RECORD_GRANT, GENERATION(1, 1), 0, &place_one);
    ck_assert_int_eq(begin(&w, true, GENERATION(1, 1), &place_one, 0, 100, &live), 0);

    w.now_ns += 6000 * MS;
    egm_ignore((int)mount(&w, MASTER_B), "none yet");
    ck_assert_int_eq(send_lease(&w, MASTER_B, 2, 5000), 0);
    expect_silence(&w);
    ck_assert(egm_pcore_access_is_revoked(w.core, live, /*is_write=*/false));
    ck_assert_uint_eq(atomic_load(&w.floor), GENERATION(2, 0) - 1);
    egm_pcore_access_end(w.core, live, true);
    ck_assert_int_eq(expect_lease_reply(&w).status, 0);
    close_world(&w);
}
END_TEST

START_TEST(transfer_of_a_lost_connection_still_holds_up_the_next_lease)
{
    struct world w;
    uint32_t live;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    record(&w, EGM_RECORD_GRANT, GENERATION(1, 1), 0, &place_one);
    ck_assert_int_eq(begin(&w, true, GENERATION(1, 1), &place_one, 0, 100, &live), 0);
    w.now_ns += 6000 * MS;
    egm_ignore((int)mount(&w, MASTER_B), "none yet");
    ck_assert_int_eq(send_lease(&w, MASTER_B, 2, 5000), 0);
    egm_pcore_disconnected(w.core);
    egm_ignore((int)mount(&w, MASTER_B), "none yet");
    ck_assert_int_eq(send_lease(&w, MASTER_B, 2, 5000), 0);
    expect_silence(&w);
    egm_pcore_access_end(w.core, live, true);
    ck_assert_int_eq(expect_lease_reply(&w).status, 0);
    expect_silence(&w);
    close_world(&w);
}
END_TEST

START_TEST(holder_that_goes_on_to_a_newer_term_kills_nothing)
{
    struct world w;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    record(&w, EGM_RECORD_SEAL, GENERATION(1, 1), 100, &place_one);
    lease(&w, MASTER_A, 3);
    ck_assert_int_eq(begin(&w, false, GENERATION(1, 1), &place_one, 0, 100, NULL), 0);
    /* The same, when it forgot us and we mount anew: its directory starts empty. */
    egm_pcore_disconnected(w.core);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 4);
    ck_assert_int_eq(begin(&w, false, GENERATION(1, 1), &place_one, 0, 100, NULL), EGM_E_STALE);
    close_world(&w);
}
END_TEST

START_TEST(records_without_the_lease_change_nothing)
{
    struct world w;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    record(&w, EGM_RECORD_SEAL, GENERATION(1, 1), 100, &place_one);
    egm_ignore((int)mount(&w, MASTER_B), "none yet");
    ck_assert_int_eq(send_record(&w, EGM_RECORD_DROP, GENERATION(1, 1), 0, &place_one, 1), 0);
    expect_records_reply(&w, EGM_E_STALE, 1);
    ck_assert_uint_eq(atomic_load(&w.granules[1]), 0);
    close_world(&w);
}
END_TEST

/* ---- records and fences ---- */

START_TEST(drop_raises_the_fence_of_the_first_place_and_never_lowers_it)
{
    struct world w;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    record(&w, EGM_RECORD_DROP, GENERATION(1, 9), 0, &place_one);
    ck_assert_uint_eq(atomic_load(&w.granules[1]), GENERATION(1, 9));
    ck_assert_uint_eq(atomic_load(&w.granules[2]), 0);
    record(&w, EGM_RECORD_DROP, GENERATION(1, 5), 0, &place_one);
    ck_assert_uint_eq(atomic_load(&w.granules[1]), GENERATION(1, 9));
    record(&w, EGM_RECORD_DROP, GENERATION(1, 10), 0, &place_slot);
    ck_assert_uint_eq(atomic_load(&w.slots[5 * 16 + 1]), GENERATION(1, 10));
    ck_assert_uint_eq(atomic_load(&w.granules[5]), 0);
    close_world(&w);
}
END_TEST

START_TEST(drop_is_acknowledged_when_its_transfers_have_ended)
{
    struct world w;
    uint32_t first, second;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    record(&w, EGM_RECORD_SEAL, GENERATION(1, 1), 100, &place_one);
    ck_assert_int_eq(begin(&w, false, GENERATION(1, 1), &place_one, 0, 10, &first), 0);
    ck_assert_int_eq(begin(&w, false, GENERATION(1, 1), &place_one, 0, 10, &second), 0);
    uint64_t sequence = w.next_sequence;
    ck_assert_int_eq(send_record(&w, EGM_RECORD_DROP, GENERATION(1, 1), 0, &place_one, 1), 0);
    /* The fence is up at once; a later batch waits its turn; the lease does not. */
    ck_assert_uint_eq(atomic_load(&w.granules[1]), GENERATION(1, 1));
    ck_assert_int_eq(send_record(&w, EGM_RECORD_SEAL, GENERATION(1, 2), 10, &place_slot, 1), 0);
    expect_silence(&w);
    lease(&w, MASTER_A, 1);
    ck_assert_int_eq(begin(&w, false, GENERATION(1, 1), &place_one, 0, 10, NULL), EGM_E_STALE);
    egm_pcore_access_end(w.core, first, false);
    expect_silence(&w);
    egm_pcore_access_end(w.core, second, false);
    expect_records_reply(&w, 0, sequence);
    expect_records_reply(&w, 0, sequence + 1);
    close_world(&w);
}
END_TEST

START_TEST(repeated_drop_after_a_reconnect_waits_as_well)
{
    struct world w;
    uint32_t live;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    record(&w, EGM_RECORD_SEAL, GENERATION(1, 1), 100, &place_one);
    ck_assert_int_eq(begin(&w, false, GENERATION(1, 1), &place_one, 0, 10, &live), 0);
    ck_assert_int_eq(send_record(&w, EGM_RECORD_DROP, GENERATION(1, 1), 0, &place_one, 1), 0);
    egm_pcore_disconnected(w.core);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    ck_assert_int_eq(send_record(&w, EGM_RECORD_DROP, GENERATION(1, 1), 0, &place_one, 1), 0);
    expect_silence(&w);
    egm_pcore_access_end(w.core, live, false);
    expect_records_reply(&w, 0, 1);
    expect_silence(&w);
    close_world(&w);
}
END_TEST

START_TEST(access_needs_exactly_what_was_granted_or_sealed)
{
    struct world w;
    uint32_t live;
    uint64_t g = GENERATION(1, 7);
    struct egm_extent other = {.offset = EGM_GRANULE, .length = EGM_GRANULE};
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    ck_assert_int_eq(begin(&w, true, g, &place_one, 0, 10, NULL), EGM_E_NOT_READY);
    record(&w, EGM_RECORD_GRANT, g, 0, &place_one);
    ck_assert_int_eq(begin(&w, false, g, &place_one, 0, 10, NULL), EGM_E_NOT_READY);
    ck_assert_int_eq(begin(&w, true, g, &other, 0, 10, NULL), EGM_E_PROTO);
    ck_assert_int_eq(begin(&w, true, g, &place_one, 0, 2 * EGM_GRANULE, NULL), 0);
    ck_assert_int_eq(begin(&w, true, g, &place_one, 0, 2 * EGM_GRANULE + 1, NULL), EGM_E_PROTO);
    /* Sealed while a write still runs: it is told to stop, and nobody reads before it has. */
    ck_assert_int_eq(begin(&w, true, g, &place_one, 0, 10, &live), 0);
    ck_assert(!egm_pcore_access_is_revoked(w.core, live, /*is_write=*/true));
    record(&w, EGM_RECORD_SEAL, g, 100, &place_one);
    ck_assert(egm_pcore_access_is_revoked(w.core, live, /*is_write=*/true));
    ck_assert_int_eq(begin(&w, false, g, &place_one, 0, 10, NULL), EGM_E_NOT_READY);
    egm_pcore_access_end(w.core, live, true);
    ck_assert_int_eq(begin(&w, false, g, &place_one, 90, 10, &live), 0);
    ck_assert(!egm_pcore_access_is_revoked(w.core, live, /*is_write=*/false));
    ck_assert_int_eq(begin(&w, false, g, &place_one, 90, 11, NULL), EGM_E_PROTO);
    ck_assert_int_eq(begin(&w, true, g, &place_one, 0, 10, NULL), EGM_E_STALE);
    close_world(&w);
}
END_TEST

static const struct {
    uint64_t offset, length, skip, size;
} nonsense[] = {
    {0, EGM_GRANULE, 0, 1},                           /* the reserved granule */
    {EGM_GRANULE - EGM_SLOT, 2 * EGM_SLOT, 0, 1},     /* begins in it */
    {SIZE, EGM_GRANULE, 0, 1},                        /* behind the end */
    {SIZE - EGM_GRANULE, 2 * EGM_GRANULE, 0, 1},      /* across the end */
    {EGM_GRANULE, 0, 0, 1},                           /* nothing */
    {EGM_GRANULE, 100, 0, 1},                         /* not a multiple */
    {EGM_GRANULE + 8, EGM_SLOT, 0, 1},                /* unaligned */
    {EGM_GRANULE + EGM_SLOT, EGM_GRANULE, 0, 1},      /* a large one on a slot */
    {2 * EGM_GRANULE - EGM_SLOT, 2 * EGM_SLOT, 0, 1}, /* a small one across granules */
    {UINT64_MAX - 4095, EGM_SLOT, 0, 1},              /* wraps */
    {UINT64_MAX - 65535, EGM_GRANULE, 0, 1},          /* wraps */
    {EGM_GRANULE, UINT64_MAX - 65535, 0, 1},          /* wraps */
    {EGM_GRANULE, UINT64_C(1) << 63, 0, 1},
    {EGM_GRANULE, EGM_GRANULE, UINT64_MAX, 2},  /* skip + length wraps */
    {EGM_GRANULE, EGM_GRANULE, 1, EGM_GRANULE}, /* one byte too far */
    {EGM_GRANULE, EGM_GRANULE, 0, UINT64_MAX},
    {EGM_GRANULE, EGM_GRANULE, 0, 0},
};

START_TEST(nonsense_ranges_are_refused)
{
    struct world w;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    for (size_t i = 0; i < EGM_COUNT_OF(nonsense); i++) {
        struct egm_extent extent = {.offset = nonsense[i].offset, .length = nonsense[i].length};
        for (int is_write = 0; is_write < 2; is_write++) {
            ck_assert_msg(begin(&w, is_write, GENERATION(1, 1), &extent, nonsense[i].skip,
                                nonsense[i].size, NULL) == EGM_E_PROTO,
                          "case %zu", i);
        }
    }
    /* The master's words are checked the same way, and change nothing. */
    for (size_t i = 0; i < 13; i++) {
        struct egm_extent extent = {.offset = nonsense[i].offset, .length = nonsense[i].length};
        ck_assert_msg(send_record(&w, EGM_RECORD_DROP, GENERATION(1, 1), 0, &extent, 1) ==
                          EGM_E_PROTO,
                      "case %zu", i);
    }
    expect_silence(&w);
    for (size_t i = 0; i < EGM_COUNT_OF(w.granules); i++) {
        ck_assert_uint_eq(atomic_load(&w.granules[i]), 0);
    }
    close_world(&w);
}
END_TEST

START_TEST(batch_with_one_bad_record_changes_nothing)
{
    struct world w;
    struct egm_buf buf;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    egm_buf_init(&buf, 4096);
    size_t at = egm_frame_begin(&buf, EGM_MSG_RECORDS, 1);
    egm_put_records(&buf, &(struct egm_records){.sequence = 1, .count = 2});
    egm_put_record(&buf, &(struct egm_record){.kind = EGM_RECORD_DROP,
                                              .segment = 3,
                                              .generation = GENERATION(1, 1),
                                              .extent_count = 1});
    egm_put_extent(&buf, &place_one);
    egm_put_record(&buf, &(struct egm_record){.kind = 99, .segment = 3, .generation = 1});
    egm_frame_end(&buf, at);
    ck_assert_int_eq(deliver(&w, &buf, NULL), EGM_E_PROTO);
    ck_assert_uint_eq(atomic_load(&w.granules[1]), 0);
    egm_buf_release(&buf);
    close_world(&w);
}
END_TEST

START_TEST(sequence_must_grow)
{
    struct world w;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    record(&w, EGM_RECORD_SEAL, GENERATION(1, 1), 10, &place_one);
    w.next_sequence = 1;
    ck_assert_int_eq(send_record(&w, EGM_RECORD_SEAL, GENERATION(1, 2), 10, &place_slot, 1),
                     EGM_E_PROTO);
    close_world(&w);
}
END_TEST

/* Every type, with every length of random bytes up to a record's: refused or harmless. */
START_TEST(garbage_frames_are_refused)
{
    struct world w;
    uint8_t bytes[128];
    uint64_t seed = 12345;
    struct egm_pcore_verify verify;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    for (uint32_t i = 0; i < 200000; i++) {
        for (size_t k = 0; k < sizeof(bytes); k++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            bytes[k] = (seed >> 60) ? (uint8_t)(seed >> 33) & 3 : (uint8_t)(seed >> 40);
        }
        struct egm_frame frame = {.type = (uint16_t)(60 + i % 30),
                                  .length = i / 30 % (uint32_t)sizeof(bytes),
                                  .request = seed >> 62};
        int r = egm_pcore_receive(w.core, w.now_ns, &frame, bytes, &verify);
        ck_assert(r <= EGM_PCORE_VERIFY);
        if (r == EGM_PCORE_VERIFY) {
            egm_pcore_verified(w.core, &verify, false);
        }
        egm_buf_clear(egm_pcore_out(w.core));
    }
    ck_assert_uint_eq(atomic_load(&w.floor), GENERATION(1, 0) - 1);
    close_world(&w);
}
END_TEST

START_TEST(floors_are_remembered_and_bounded)
{
    struct world w;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    record(&w, EGM_RECORD_FLOOR, 50, 77, NULL);
    record(&w, EGM_RECORD_FLOOR, 40, 77, NULL);
    ck_assert_uint_eq(egm_pcore_floor_of(w.core, 77), 50);
    ck_assert_uint_eq(egm_pcore_floor_of(w.core, 78), 0);
    close_world(&w);
}
END_TEST

/* ---- slots ---- */

static uint64_t expect_slot_change(struct world *w, uint32_t slot, uint8_t state)
{
    struct egm_frame frame;
    struct egm_cursor cursor;
    struct egm_slot_change change;

    expect_frame(w, EGM_MSG_SLOT_CHANGE, &frame, &cursor);
    egm_take_slot_change(&cursor, &change);
    ck_assert_uint_eq(change.slot, slot);
    ck_assert_uint_eq(change.state, state);
    ck_assert_uint_eq(change.segment, 3);
    return frame.request;
}

START_TEST(slot_is_held_when_the_master_knows)
{
    struct world w;
    uint32_t slot;
    int status = 0;
    open_world(&w);
    ck_assert_int_eq(egm_pcore_slot_take(w.core, 11, EGM_IMPORT_MAP, &slot), EGM_E_NOT_READY);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    ck_assert_int_eq(egm_pcore_slot_take(w.core, 0, EGM_IMPORT_MAP, &slot), EGM_E_PROTO);
    ck_assert_int_eq(egm_pcore_slot_take(w.core, 11, EGM_IMPORT_MAP, &slot), 0);
    uint64_t request = expect_slot_change(&w, slot, 1);
    ck_assert_int_eq(egm_pcore_slot_state(w.core, slot, NULL), EGM_SLOT_ASSIGNING);
    ck_assert_int_eq(send_result(&w, EGM_MSG_SLOT_CHANGE_REPLY, request, 0), 0);
    ck_assert_int_eq(egm_pcore_slot_state(w.core, slot, NULL), EGM_SLOT_HELD);

    /* Freed, told, and only then anybody's again. */
    egm_pcore_slot_free(w.core, slot);
    request = expect_slot_change(&w, slot, 0);
    ck_assert_int_eq(egm_pcore_slot_state(w.core, slot, NULL), EGM_SLOT_FREEING);
    ck_assert_int_eq(send_result(&w, EGM_MSG_SLOT_CHANGE_REPLY, request, 0), 0);
    ck_assert_int_eq(egm_pcore_slot_state(w.core, slot, NULL), EGM_SLOT_FREE);

    ck_assert_int_eq(egm_pcore_slot_take(w.core, 12, EGM_IMPORT_MAP, &slot), 0);
    request = expect_slot_change(&w, slot, 1);
    ck_assert_int_eq(send_result(&w, EGM_MSG_SLOT_CHANGE_REPLY, request, EGM_E_NOT_FOUND), 0);
    ck_assert_int_eq(egm_pcore_slot_state(w.core, slot, &status), EGM_SLOT_REFUSED);
    ck_assert_int_eq(status, EGM_E_NOT_FOUND);
    egm_pcore_slot_free(w.core, slot);
    ck_assert_uint_eq(egm_pcore_status(w.core).slot_count, 0);
    close_world(&w);
}
END_TEST

START_TEST(tcp_session_has_one_slot_for_all_its_connections)
{
    struct world w;
    uint32_t slot, again;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    ck_assert_int_eq(egm_pcore_slot_take(w.core, 11, EGM_IMPORT_TCP, &slot), 0);
    uint64_t request = expect_slot_change(&w, slot, 1);
    ck_assert_int_eq(egm_pcore_slot_take(w.core, 11, EGM_IMPORT_TCP, &again), 0);
    ck_assert_uint_eq(slot, again);
    expect_silence(&w);
    ck_assert_int_eq(send_result(&w, EGM_MSG_SLOT_CHANGE_REPLY, request, 0), 0);
    egm_pcore_slot_free(w.core, slot);
    expect_silence(&w);
    egm_pcore_slot_free(w.core, slot);
    egm_ignore((int)expect_slot_change(&w, slot, 0), "told");
    /* While it is being freed, the session gets another. */
    ck_assert_int_eq(egm_pcore_slot_take(w.core, 11, EGM_IMPORT_TCP, &again), 0);
    ck_assert_uint_ne(slot, again);
    close_world(&w);
}
END_TEST

START_TEST(mount_lists_held_slots_and_frees_the_others)
{
    struct world w;
    uint32_t kept, waiting, freed;
    open_world(&w);
    ck_assert_uint_eq(mount(&w, MASTER_A), 0);
    ck_assert_int_eq(egm_pcore_slot_take(w.core, 11, EGM_IMPORT_MAP, &kept), 0);
    uint64_t request = expect_slot_change(&w, kept, 1);
    ck_assert_int_eq(send_result(&w, EGM_MSG_SLOT_CHANGE_REPLY, request, 0), 0);
    ck_assert_int_eq(egm_pcore_slot_take(w.core, 12, EGM_IMPORT_MAP, &freed), 0);
    request = expect_slot_change(&w, freed, 1);
    ck_assert_int_eq(send_result(&w, EGM_MSG_SLOT_CHANGE_REPLY, request, 0), 0);
    ck_assert_int_eq(egm_pcore_slot_take(w.core, 13, EGM_IMPORT_MAP, &waiting), 0);
    egm_pcore_disconnected(w.core);
    egm_pcore_slot_free(w.core, freed);
    ck_assert_uint_eq(mount(&w, MASTER_A), 2);
    ck_assert_int_eq(egm_pcore_slot_state(w.core, kept, NULL), EGM_SLOT_HELD);
    ck_assert_int_eq(egm_pcore_slot_state(w.core, waiting, NULL), EGM_SLOT_HELD);
    ck_assert_int_eq(egm_pcore_slot_state(w.core, freed, NULL), EGM_SLOT_FREE);
    close_world(&w);
}
END_TEST

START_TEST(draining_provider_takes_no_importers_and_says_so_again)
{
    struct world w;
    uint32_t slot;
    struct egm_frame frame;
    struct egm_cursor cursor;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    egm_pcore_unmount(w.core, EGM_UNMOUNT_DRAIN);
    expect_frame(&w, EGM_MSG_UNMOUNT, &frame, &cursor);
    ck_assert_int_eq(egm_pcore_slot_take(w.core, 11, EGM_IMPORT_MAP, &slot), EGM_E_CLOSED);
    egm_pcore_disconnected(w.core);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    expect_frame(&w, EGM_MSG_UNMOUNT, &frame, &cursor);
    ck_assert(!egm_pcore_status(w.core).is_unmounted);
    ck_assert_int_eq(send_result(&w, EGM_MSG_UNMOUNT_REPLY, frame.request, 0), 0);
    ck_assert(egm_pcore_status(w.core).is_unmounted);
    close_world(&w);
}
END_TEST

/* ---- verify ---- */

static int send_verify(struct world *w, uint64_t generation, struct egm_pcore_verify *ret_verify)
{
    struct egm_buf buf;

    egm_buf_init(&buf, 4096);
    size_t at = egm_frame_begin(&buf, EGM_MSG_VERIFY, 99);
    egm_put_verify(
        &buf,
        &(struct egm_verify){
            .generation = generation, .segment = 3, .size = 100, .checksum = 5, .extent_count = 1});
    egm_put_extent(&buf, &place_one);
    egm_frame_end(&buf, at);
    int r = deliver(w, &buf, ret_verify);
    egm_buf_release(&buf);
    return r;
}

static void expect_verify_reply(struct world *w, int status)
{
    struct egm_frame frame;
    struct egm_cursor cursor;
    struct egm_result result;

    expect_frame(w, EGM_MSG_VERIFY_REPLY, &frame, &cursor);
    ck_assert_uint_eq(frame.request, 99);
    egm_take_result(&cursor, &result);
    ck_assert_int_eq(egm_status_from_wire(result.status), status);
}

START_TEST(verify_that_meets_a_drop_is_stale_and_holds_it_up)
{
    struct world w;
    struct egm_pcore_verify verify;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    record(&w, EGM_RECORD_SEAL, GENERATION(1, 1), 100, &place_one);
    ck_assert_int_eq(send_verify(&w, GENERATION(1, 1), &verify), EGM_PCORE_VERIFY);
    egm_pcore_verified(w.core, &verify, false);
    expect_verify_reply(&w, EGM_E_CHECKSUM);

    ck_assert_int_eq(send_verify(&w, GENERATION(1, 1), &verify), EGM_PCORE_VERIFY);
    uint64_t sequence = w.next_sequence;
    ck_assert_int_eq(send_record(&w, EGM_RECORD_DROP, GENERATION(1, 1), 0, &place_one, 1), 0);
    expect_silence(&w);
    egm_pcore_verified(w.core, &verify, true);
    expect_verify_reply(&w, EGM_E_STALE);
    expect_records_reply(&w, 0, sequence);
    ck_assert_int_eq(send_verify(&w, GENERATION(1, 1), &verify), EGM_PCORE_DONE);
    expect_verify_reply(&w, EGM_E_STALE);
    close_world(&w);
}
END_TEST

START_TEST(retired_pool_is_dead_everywhere)
{
    struct world w;
    open_world(&w);
    egm_pcore_retire(w.core);
    ck_assert_uint_eq(atomic_load(&w.floor), UINT64_MAX);
    close_world(&w);
}
END_TEST

/* ---- memory ---- */

static int fill(void *ctx)
{
    struct world *w = ctx;
    struct egm_pcore_segment segment = {.segment = 3,
                                        .size = SIZE,
                                        .floor = &w->floor,
                                        .granule_fence = w->granules,
                                        .slot_fence = w->slots};
    struct egm_pcore_options options = {.provider = 7,
                                        .epoch = 8,
                                        .name = "n",
                                        .unix_path = "u",
                                        .data_address = "",
                                        .segments = &segment,
                                        .segment_count = 1};
    int r = egm_pcore_create(&options, &w->core);
    if (r < 0) {
        return r;
    }
    egm_pcore_destroy(w->core);
    return 0;
}

START_TEST(create_survives_every_allocation_failure)
{
    struct world w = {0};
    egm_test_sweep(fill, &w);
}
END_TEST

START_TEST(grant_without_memory_is_only_lost)
{
    struct world w;
    open_world(&w);
    egm_ignore((int)mount(&w, MASTER_A), "none yet");
    lease(&w, MASTER_A, 1);
    struct egm_extent two[] = {place_one, place_slot};
    uint64_t sequence = w.next_sequence;
    record(&w, EGM_RECORD_SEAL, GENERATION(1, 1), 100, &place_one);
    struct egm_buf buf;
    egm_buf_init(&buf, 4096);
    size_t at = egm_frame_begin(&buf, EGM_MSG_RECORDS, 5);
    egm_put_records(&buf, &(struct egm_records){.sequence = ++sequence, .count = 1});
    egm_put_record(&buf, &(struct egm_record){.kind = EGM_RECORD_GRANT,
                                              .segment = 3,
                                              .generation = GENERATION(1, 2),
                                              .extent_count = 2});
    egm_put_extent(&buf, &two[0]);
    egm_put_extent(&buf, &two[1]);
    egm_frame_end(&buf, at);
    egm_alloc_fail_after(0);
    ck_assert_int_eq(deliver(&w, &buf, NULL), 0);
    egm_alloc_fail_after(-1);
    egm_buf_release(&buf);
    expect_records_reply(&w, 0, sequence);
    ck_assert_uint_eq(egm_pcore_status(w.core).lost_record_count, 1);
    ck_assert_uint_eq(egm_pcore_status(w.core).live_count, 1);
    close_world(&w);
}
END_TEST

EGM_TEST_MAIN("core_provider", second_master_is_refused_until_the_lease_ends,
              released_lease_lets_the_next_master_in_at_once, old_term_and_borrowed_term_are_stale,
              new_term_kills_what_the_old_one_placed, new_term_waits_for_running_transfers,
              transfer_of_a_lost_connection_still_holds_up_the_next_lease,
              holder_that_goes_on_to_a_newer_term_kills_nothing,
              records_without_the_lease_change_nothing,
              drop_raises_the_fence_of_the_first_place_and_never_lowers_it,
              drop_is_acknowledged_when_its_transfers_have_ended,
              repeated_drop_after_a_reconnect_waits_as_well,
              access_needs_exactly_what_was_granted_or_sealed, nonsense_ranges_are_refused,
              batch_with_one_bad_record_changes_nothing, sequence_must_grow,
              garbage_frames_are_refused, floors_are_remembered_and_bounded,
              slot_is_held_when_the_master_knows, tcp_session_has_one_slot_for_all_its_connections,
              mount_lists_held_slots_and_frees_the_others,
              draining_provider_takes_no_importers_and_says_so_again,
              verify_that_meets_a_drop_is_stale_and_holds_it_up, retired_pool_is_dead_everywhere,
              create_survives_every_allocation_failure, grant_without_memory_is_only_lost)
