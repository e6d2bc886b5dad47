/* SPDX-License-Identifier: Apache-2.0 */
/* The requester's state machines against masters that answer right, late, too much, too little, or
 * nonsense. */
#include "core/requester.h"
#include "test.h"
#include "wire/keys.h"
#include "wire/status.h"

#include <string.h>

#define MS UINT64_C(1000000)
#define S (1000 * MS)
#define INSTANCE UINT64_C(77)
#define KIB UINT64_C(1024)

static struct egm_key key_of(const char *text)
{
    return (struct egm_key){.data = text, .size = strlen(text)};
}

static void new_requester(struct egm_requester *r)
{
    egm_requester_init(r, 5, 6, 7, "host:1", "default");
    ck_assert(egm_requester_meet(r, INSTANCE));
}

/* What a test writes as the master: only payloads, the frame is the connection's business. */
static struct egm_buf payload(void)
{
    struct egm_buf buf;

    egm_buf_init(&buf, 1 << 20);
    return buf;
}

static void open_session(struct egm_requester *r, uint64_t sent_ns, uint32_t ttl_ms)
{
    struct egm_buf buf = payload();
    struct egm_session_reply reply = {.ttl_ms = ttl_ms, .layout = 3};

    egm_put_session_reply(&buf, &reply);
    ck_assert_int_eq(egm_requester_take_session_reply(r, buf.data, buf.len, INSTANCE, sent_ns), 0);
    egm_buf_release(&buf);
}

static int ping(struct egm_requester *r, uint64_t sent_ns, int code, const uint64_t *revoked,
                uint32_t count)
{
    struct egm_buf buf = payload();
    struct egm_ping_reply reply = {
        .status = egm_status_to_wire(code), .ttl_ms = 10000, .layout = 4, .revoked_count = count};

    egm_requester_encode_ping(r, &buf, 1);
    egm_buf_clear(&buf);
    egm_put_ping_reply(&buf, &reply);
    for (uint32_t i = 0; i < count; i++) {
        egm_put_generation(&buf, &(struct egm_generation){.value = revoked[i]});
    }
    int result = egm_requester_take_ping_reply(r, buf.data, buf.len, r->instance, sent_ns);
    egm_buf_release(&buf);
    return result;
}

/* ---- session ---- */

START_TEST(session_is_counted_from_before_the_question_minus_a_margin)
{
    struct egm_requester r;
    new_requester(&r);

    ck_assert_uint_eq(egm_session_valid_until(1 * S, 10000), 1 * S + 10 * S - 10 * MS);
    ck_assert_uint_eq(egm_session_valid_until(1 * S, 500), 1 * S + 499 * MS);
    ck_assert_uint_eq(egm_session_valid_until(1 * S, 1), 1 * S);
    open_session(&r, 1 * S, 10000);
    ck_assert_uint_eq(r.valid_until_ns, 1 * S + 10 * S - 10 * MS);
    /* an answer that was sent for earlier and comes later takes nothing away */
    ck_assert_int_eq(ping(&r, 5 * S, 0, NULL, 0), 0);
    ck_assert_int_eq(ping(&r, 2 * S, 0, NULL, 0), 0);
    ck_assert_uint_eq(r.valid_until_ns, 5 * S + 10 * S - 10 * MS);
    egm_requester_release(&r);
}
END_TEST

START_TEST(writes_stop_when_the_session_has_run_out)
{
    struct egm_requester r;
    new_requester(&r);
    struct egm_writing write = {.generation = 9, .state = EGM_WRITE_OPEN};

    open_session(&r, 1 * S, 1000);
    ck_assert_int_eq(egm_requester_may_write(&r, &write, 1 * S), 0);
    ck_assert_int_eq(egm_requester_may_write(&r, &write, 1 * S + 998 * MS), 0);
    ck_assert_int_eq(egm_requester_may_write(&r, &write, 1 * S + 999 * MS), EGM_E_STALE);
    egm_requester_lose(&r, r.session_count - 1); /* an answer to what was said before */
    ck_assert_int_eq(r.state, EGM_SESSION_OPEN);
    egm_requester_lose(&r, r.session_count);
    ck_assert_int_eq(egm_requester_may_write(&r, &write, 1 * S), EGM_E_STALE);
    egm_requester_release(&r);
}
END_TEST

START_TEST(another_master_means_another_session)
{
    struct egm_requester r;
    new_requester(&r);

    open_session(&r, 1 * S, 1000);
    ck_assert(!egm_requester_meet(&r, INSTANCE));
    ck_assert(egm_requester_meet(&r, INSTANCE + 1));
    ck_assert_uint_eq(r.valid_until_ns, 0);
    /* the old master's late answer opens nothing */
    struct egm_buf buf = payload();
    egm_put_session_reply(&buf, &(struct egm_session_reply){.ttl_ms = 1000});
    ck_assert_int_lt(egm_requester_take_session_reply(&r, buf.data, buf.len, INSTANCE, 2 * S), 0);
    ck_assert_int_ne(r.state, EGM_SESSION_OPEN);
    egm_buf_release(&buf);
    egm_requester_release(&r);
}
END_TEST

START_TEST(unknown_session_in_a_ping_is_lost)
{
    struct egm_requester r;
    new_requester(&r);

    open_session(&r, 1 * S, 1000);
    ck_assert_int_eq(ping(&r, 1 * S, EGM_E_NOT_FOUND, NULL, 0), EGM_E_NOT_FOUND);
    ck_assert_int_eq(r.state, EGM_SESSION_LOST);
    egm_requester_release(&r);
}
END_TEST

static uint64_t challenge_sent(struct egm_requester *r)
{
    struct egm_buf buf = payload();
    struct egm_session head;

    egm_requester_encode_session(r, &buf, 1);
    struct egm_cursor cursor =
        egm_cursor_of(buf.data + EGM_FRAME_HEADER, buf.len - EGM_FRAME_HEADER);
    egm_take_session(&cursor, &head);
    egm_buf_release(&buf);
    return head.challenge;
}

START_TEST(challenge_goes_back_with_the_next_session_to_the_same_master_only)
{
    struct egm_requester r;
    new_requester(&r);
    struct egm_buf buf = payload();

    ck_assert_uint_eq(challenge_sent(&r), 0);
    egm_put_session_reply(
        &buf, &(struct egm_session_reply){
                  .status = egm_status_to_wire(EGM_E_AGAIN), .ttl_ms = 1000, .challenge = 4711});
    ck_assert_int_eq(egm_requester_take_session_reply(&r, buf.data, buf.len, INSTANCE, S),
                     EGM_E_AGAIN);
    ck_assert_int_ne(r.state, EGM_SESSION_OPEN);
    ck_assert_uint_eq(challenge_sent(&r), 4711);
    ck_assert(egm_requester_meet(&r, INSTANCE + 1));
    ck_assert_uint_eq(challenge_sent(&r), 0);
    /* the former one's late answer is no challenge of this one */
    ck_assert_int_eq(egm_requester_take_session_reply(&r, buf.data, buf.len, INSTANCE, S),
                     EGM_E_AGAIN);
    ck_assert_uint_eq(challenge_sent(&r), 0);
    egm_buf_release(&buf);
    egm_requester_release(&r);
}
END_TEST

/* ---- reads ---- */

static int renew(struct egm_requester *r, uint64_t sent_ns, uint64_t op, uint32_t lease_ms)
{
    struct egm_buf buf = payload();
    struct egm_ping_reply reply = {.ttl_ms = 10000, .renewed_count = 2};

    egm_put_ping_reply(&buf, &reply);
    egm_put_renewal(&buf, &(struct egm_renewal){.op = 4, .lease_ms = 90000});
    egm_put_renewal(&buf, &(struct egm_renewal){.op = op, .lease_ms = lease_ms});
    int result = egm_requester_take_ping_reply(r, buf.data, buf.len, r->instance, sent_ns);
    egm_buf_release(&buf);
    return result;
}

START_TEST(read_lease_moves_on_with_each_answer_that_names_it_in_any_order)
{
    struct egm_requester r;
    new_requester(&r);
    struct egm_reading reading = {.op_id = 9, .lease_ms = 3000};

    open_session(&r, 1 * S, 10000);
    egm_requester_open_read(&r, &reading, 1 * S);
    ck_assert_uint_eq(reading.until_ns, 4 * S - 3 * MS);
    ck_assert_int_eq(egm_requester_may_read(&r, &reading, 4 * S - 4 * MS), 0);
    ck_assert_int_eq(egm_requester_may_read(&r, &reading, 4 * S - 3 * MS), EGM_E_STALE);
    ck_assert_int_eq(renew(&r, 3 * S, 9, 2000), 0);
    ck_assert_uint_eq(reading.until_ns, 5 * S - 2 * MS);
    /* once more, one that was sent earlier, one that promises less: nothing goes back */
    ck_assert_int_eq(renew(&r, 3 * S, 9, 2000), 0);
    ck_assert_int_eq(renew(&r, 2 * S, 9, 2000), 0);
    ck_assert_int_eq(renew(&r, 4 * S, 9, 100), 0);
    ck_assert_uint_eq(reading.until_ns, 5 * S - 2 * MS);
    /* another master's, and one that does not name it */
    r.instance++;
    struct egm_buf buf = payload();
    egm_put_ping_reply(&buf, &(struct egm_ping_reply){.ttl_ms = 10000, .renewed_count = 1});
    egm_put_renewal(&buf, &(struct egm_renewal){.op = 9, .lease_ms = 9000});
    ck_assert_int_eq(egm_requester_take_ping_reply(&r, buf.data, buf.len, INSTANCE, 5 * S),
                     EGM_E_STALE);
    r.instance--;
    ck_assert_int_eq(renew(&r, 5 * S, 8, 9000), 0);
    ck_assert_int_eq(ping(&r, 5 * S, 0, NULL, 0), 0);
    ck_assert_uint_eq(reading.until_ns, 5 * S - 2 * MS);
    /* a count that its payload does not bear out */
    ck_assert_int_eq(egm_requester_take_ping_reply(&r, buf.data, buf.len - 12, INSTANCE, 5 * S),
                     EGM_E_PROTO);
    egm_buf_release(&buf);
    egm_requester_close_read(&r, &reading);
    ck_assert_int_eq(renew(&r, 6 * S, 9, 9000), 0);
    egm_requester_release(&r);
}
END_TEST

/* ---- open writes ---- */

static size_t reported(struct egm_requester *r, uint64_t *ret_first)
{
    struct egm_buf buf = payload();
    struct egm_ping head;

    egm_requester_encode_ping(r, &buf, 1);
    struct egm_cursor cursor =
        egm_cursor_of(buf.data + EGM_FRAME_HEADER, buf.len - EGM_FRAME_HEADER);
    egm_take_ping(&cursor, &head);
    if (head.stopped_count > 0) {
        struct egm_generation first;
        egm_take_generation(&cursor, &first);
        *ret_first = first.value;
    }
    egm_buf_release(&buf);
    return head.stopped_count;
}

START_TEST(revoked_write_is_reported_only_after_its_copy_returned)
{
    struct egm_requester r;
    new_requester(&r);
    struct egm_writing writes[] = {{.generation = 9, .state = EGM_WRITE_OPEN},
                                   {.generation = 9, .state = EGM_WRITE_OPEN}};
    struct egm_write_set set = {.writes = writes, .count = 2};
    uint64_t first = 0;

    open_session(&r, 1 * S, 10000);
    egm_requester_mark(&r, &set);
    egm_requester_open_writes(&r, &set);
    ck_assert_int_eq(ping(&r, 1 * S, 0, (const uint64_t[]){9}, 1), 0);
    ck_assert_int_eq(egm_requester_may_write(&r, &writes[0], 1 * S), EGM_E_STALE);
    ck_assert_uint_eq(reported(&r, &first), 0);
    egm_requester_stop_write(&r, &writes[0]);
    ck_assert_uint_eq(reported(&r, &first), 0); /* the other replica's copy still runs */
    egm_requester_stop_write(&r, &writes[1]);
    ck_assert_uint_eq(reported(&r, &first), 1);
    ck_assert_uint_eq(first, 9);
    egm_requester_close_writes(&r, &set, true);
    ck_assert_int_eq(ping(&r, 2 * S, 0, NULL, 0), 0);
    ck_assert_uint_eq(reported(&r, &first), 0); /* once */
    egm_requester_release(&r);
}
END_TEST

START_TEST(unknown_revoked_generation_is_reported_at_once)
{
    struct egm_requester r;
    new_requester(&r);
    uint64_t first = 0;

    open_session(&r, 1 * S, 10000);
    ck_assert_int_eq(ping(&r, 1 * S, 0, (const uint64_t[]){123}, 1), 0);
    ck_assert_uint_eq(reported(&r, &first), 1);
    ck_assert_uint_eq(first, 123);
    egm_requester_release(&r);
}
END_TEST

START_TEST(grant_revoked_before_its_answer_was_read_may_not_write)
{
    struct egm_requester r;
    new_requester(&r);
    struct egm_writing writes[] = {{.generation = 9, .state = EGM_WRITE_OPEN},
                                   {.generation = 10, .state = EGM_WRITE_OPEN}};
    struct egm_write_set set = {.writes = writes, .count = 2};

    open_session(&r, 1 * S, 10000);
    egm_requester_mark(&r, &set);
    ck_assert_int_eq(ping(&r, 1 * S, 0, (const uint64_t[]){9}, 1),
                     0); /* we said that it has stopped */
    egm_requester_open_writes(&r, &set);
    ck_assert_int_eq(egm_requester_may_write(&r, &writes[0], 1 * S), EGM_E_STALE);
    ck_assert_int_eq(egm_requester_may_write(&r, &writes[1], 1 * S), 0);
    egm_requester_close_writes(&r, &set, true);
    egm_requester_release(&r);
}
END_TEST

START_TEST(grant_from_before_a_new_session_may_not_write)
{
    struct egm_requester r;
    new_requester(&r);
    struct egm_writing writes[] = {{.generation = 9, .state = EGM_WRITE_OPEN}};
    struct egm_write_set set = {.writes = writes, .count = 1};
    struct egm_buf buf = payload();

    open_session(&r, 1 * S, 10000);
    egm_requester_mark(&r, &set);
    egm_requester_encode_session(&r, &buf, 2); /* lists no write */
    open_session(&r, 2 * S, 10000);
    egm_requester_open_writes(&r, &set);
    ck_assert_int_eq(egm_requester_may_write(&r, &writes[0], 2 * S), EGM_E_STALE);
    egm_requester_close_writes(&r, &set, true);
    egm_buf_release(&buf);
    egm_requester_release(&r);
}
END_TEST

START_TEST(session_lists_open_writes_with_their_extents)
{
    struct egm_requester r;
    new_requester(&r);
    struct egm_extent extents[] = {{65536, 65536}, {262144, 4096}};
    struct egm_writing writes[] = {{.generation = 9,
                                    .provider = 1,
                                    .epoch = 2,
                                    .segment = 3,
                                    .extent_count = 2,
                                    .state = EGM_WRITE_OPEN,
                                    .extents = extents},
                                   {.generation = 10, .provider = 0, .state = EGM_WRITE_OPEN}};
    struct egm_write_set set = {.writes = writes, .count = 2};
    struct egm_buf buf = payload();
    struct egm_session head;
    struct egm_open_write write;
    struct egm_extent extent;

    egm_requester_mark(&r, &set);
    egm_requester_open_writes(&r, &set);
    egm_requester_encode_session(&r, &buf, 2);
    struct egm_cursor cursor =
        egm_cursor_of(buf.data + EGM_FRAME_HEADER, buf.len - EGM_FRAME_HEADER);
    egm_take_session(&cursor, &head);
    ck_assert_uint_eq(head.write_count, 1); /* an unresolved place was never written to */
    egm_take_open_write(&cursor, &write);
    ck_assert_uint_eq(write.generation, 9);
    ck_assert_uint_eq(write.extent_count, 2);
    egm_take_extent(&cursor, &extent);
    egm_take_extent(&cursor, &extent);
    ck_assert_uint_eq(extent.offset, 262144);
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    egm_requester_close_writes(&r, &set, true);
    egm_buf_release(&buf);
    egm_requester_release(&r);
}
END_TEST

/* ---- layout ---- */

static struct egm_layout_snapshot *layout_with(uint64_t instance, const uint32_t *mounts,
                                               uint32_t count)
{
    struct egm_buf buf = payload();
    struct egm_layout_snapshot *layout = NULL;

    egm_put_layout_reply(&buf, &(struct egm_layout_reply){.layout = 4, .provider_count = 1});
    struct egm_provider_info info = {.provider = 11,
                                     .epoch = 12,
                                     .host = 13,
                                     .state = 1,
                                     .name = egm_bytes_of("p:1", 3),
                                     .unix_path = egm_bytes_of("/x", 2),
                                     .mount_count = count};
    egm_put_provider_info(&buf, &info);
    for (uint32_t i = 0; i < count; i++) {
        egm_put_mount_info(
            &buf, &(struct egm_mount_info){.mount = mounts[i], .segment = i, .size = 1 << 20});
    }
    int r = egm_layout_parse(buf.data, buf.len, instance, &layout);
    if (r < 0) {
        ck_assert_int_eq(r, EGM_E_PROTO);
        layout = NULL;
    }
    /* cut anywhere, or longer, it is refused */
    struct egm_layout_snapshot *none = NULL;
    for (size_t size = 0; size < buf.len; size++) {
        ck_assert_int_eq(egm_layout_parse(buf.data, size, instance, &none), EGM_E_PROTO);
    }
    egm_put_u32(&buf, 0);
    ck_assert_int_eq(egm_layout_parse(buf.data, buf.len, instance, &none), EGM_E_PROTO);
    egm_buf_release(&buf);
    return layout;
}

START_TEST(layout_finds_mounts_in_any_order)
{
    struct egm_layout_snapshot *layout = layout_with(INSTANCE, (const uint32_t[]){40, 7, 19}, 3);

    ck_assert_ptr_nonnull(layout);
    ck_assert_uint_eq(egm_layout_find(layout, 7)->segment, 1);
    ck_assert_uint_eq(egm_layout_find(layout, 19)->segment, 2);
    ck_assert_uint_eq(egm_layout_find(layout, 40)->segment, 0);
    ck_assert_ptr_null(egm_layout_find(layout, 8));
    ck_assert_str_eq(layout->providers[0].name, "p:1");
    ck_assert_str_eq(layout->providers[0].data_address, "");
    egm_layout_unref(layout);
    ck_assert_ptr_null(layout_with(INSTANCE, (const uint32_t[]){7, 7}, 2));
}
END_TEST

/* ---- operations ---- */

struct grant {
    int status;
    uint64_t generation;
    uint32_t mount;
    uint64_t size;
    struct egm_extent extent;
};

static struct egm_buf answer(int head, const struct grant *grants, uint32_t count)
{
    struct egm_buf buf = payload();

    egm_put_items_reply(&buf, &(struct egm_items_reply){.status = egm_status_to_wire(head),
                                                        .lease_ms = 1000,
                                                        .count = count});
    for (uint32_t i = 0; i < count; i++) {
        bool is_granted = grants[i].status == 0;
        struct egm_entry entry = {.status = egm_status_to_wire(grants[i].status),
                                  .replica_count = is_granted,
                                  .size = grants[i].size,
                                  .checksum = 1,
                                  .generation = grants[i].generation};
        egm_put_entry(&buf, &entry);
        if (is_granted) {
            egm_put_replica(&buf,
                            &(struct egm_replica){.mount = grants[i].mount, .extent_count = 1});
            egm_put_extent(&buf, &grants[i].extent);
        }
    }
    return buf;
}

static struct egm_buf end_answer(int head, const int *statuses, uint32_t count)
{
    struct egm_buf buf = payload();

    egm_put_results_reply(
        &buf, &(struct egm_results_reply){.status = egm_status_to_wire(head), .count = count});
    for (uint32_t i = 0; i < count; i++) {
        egm_put_result(&buf, &(struct egm_result){.status = egm_status_to_wire(statuses[i])});
    }
    return buf;
}

static int take(struct egm_op *op, const struct egm_layout_snapshot *layout, int head,
                const struct grant *grants, uint32_t count, uint64_t now_ns)
{
    struct egm_buf buf = answer(head, grants, count);
    int r = egm_op_take_answer(op, buf.data, buf.len, layout, INSTANCE, now_ns);

    egm_buf_release(&buf);
    return r;
}

static int take_end(struct egm_op *op, int head, const int *statuses, uint32_t count,
                    uint64_t now_ns)
{
    struct egm_buf buf = end_answer(head, statuses, count);
    int r = egm_put_take_end_answer(op, buf.data, buf.len, now_ns);

    egm_buf_release(&buf);
    return r;
}

static char bytes[8192];
static const struct iovec piece = {bytes, 4096};

static void fill(struct egm_op_item *items, size_t count, uint64_t size)
{
    static char keys[2048][16];

    for (size_t i = 0; i < count; i++) {
        int n = snprintf(keys[i], sizeof(keys[i]), "key-%zu", i);
        egm_op_item_init(&items[i], (struct egm_key){keys[i], (size_t)n}, &piece, 1, size);
    }
}

static const struct grant GOOD = {0, 100, 7, 4096, {65536, 4096}};

START_TEST(put_goes_through_ask_copy_end)
{
    struct egm_layout_snapshot *layout = layout_with(INSTANCE, (const uint32_t[]){7}, 1);
    struct egm_op_item item;
    struct egm_op op;

    fill(&item, 1, 4096);
    egm_op_init(&op, true, &item, 1, 30 * S, 0);
    ck_assert_int_eq(op.step, EGM_OP_ASK);
    ck_assert_int_eq(take(&op, layout, 0, &GOOD, 1, S), 0);
    ck_assert_int_eq(op.step, EGM_OP_COPY);
    ck_assert(op.places[0].is_known);
    ck_assert_uint_eq(op.places[0].provider, 11);
    ck_assert_uint_eq(op.writes[0].generation, 100);
    ck_assert(egm_op_is_end_due(&op));
    egm_put_copied(&op, &item, 0, 4711);
    egm_op_copy_done(&op);
    ck_assert_int_eq(op.step, EGM_OP_END);
    ck_assert_int_eq(take_end(&op, 0, (const int[]){0}, 1, S), 0);
    ck_assert_int_eq(op.step, EGM_OP_DONE);
    ck_assert_int_eq(item.result, 0);
    egm_op_release(&op);
    egm_layout_unref(layout);
}
END_TEST

START_TEST(put_end_names_every_granted_item_and_what_became_of_it)
{
    struct egm_requester r;
    new_requester(&r);
    struct egm_layout_snapshot *layout = layout_with(INSTANCE, (const uint32_t[]){7}, 1);
    struct egm_op_item items[3];
    struct egm_op op;
    struct egm_buf buf = payload();
    struct egm_put_end head;
    struct egm_ended ended[2];
    struct grant grants[] = {
        GOOD, {EGM_E_EXISTS, 0, 0, 0, {0, 0}}, {0, 102, 7, 4096, {131072, 4096}}};

    fill(items, 3, 4096);
    egm_op_init(&op, true, items, 3, 30 * S, 0);
    ck_assert_int_eq(take(&op, layout, 0, grants, 3, S), 0);
    ck_assert_int_eq(items[1].result, 0); /* a value is there */
    egm_put_copied(&op, &items[0], 0, 55);
    egm_put_copied(&op, &items[2], EGM_E_CLOSED, 0);
    egm_op_copy_done(&op);
    ck_assert_int_eq(egm_put_encode_end(&op, &r, &buf, 3), 0);
    struct egm_cursor cursor =
        egm_cursor_of(buf.data + EGM_FRAME_HEADER, buf.len - EGM_FRAME_HEADER);
    egm_take_put_end(&cursor, &head);
    ck_assert_uint_eq(head.count, 2);
    egm_take_ended(&cursor, &ended[0]);
    egm_take_ended(&cursor, &ended[1]);
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    ck_assert_uint_eq(ended[0].checksum, 55);
    ck_assert_uint_eq(ended[0].outcome, 0);
    ck_assert_uint_eq(ended[1].generation, 102);
    ck_assert_uint_eq(ended[1].outcome, 1);
    ck_assert_int_eq(take_end(&op, 0, (const int[]){0, EGM_E_NOT_OWNER}, 2, S), 0);
    ck_assert_int_eq(items[0].result, 0);
    ck_assert_int_eq(items[2].result, EGM_E_CLOSED);
    ck_assert_int_eq(op.step, EGM_OP_DONE);
    egm_op_release(&op);
    egm_buf_release(&buf);
    egm_layout_unref(layout);
    egm_requester_release(&r);
}
END_TEST

START_TEST(put_that_lost_its_place_is_asked_for_again_but_not_for_ever)
{
    struct egm_layout_snapshot *layout = layout_with(INSTANCE, (const uint32_t[]){7}, 1);
    struct egm_op_item item;
    struct egm_op op;
    unsigned tries = 0;

    fill(&item, 1, 4096);
    egm_op_init(&op, true, &item, 1, 30 * S, 0);
    while (op.step != EGM_OP_DONE) {
        ck_assert_int_eq(op.step, EGM_OP_ASK);
        ck_assert_int_eq(take(&op, layout, 0, &GOOD, 1, S), 0);
        egm_put_copied(&op, &item, EGM_E_STALE, 0);
        egm_op_copy_done(&op);
        ck_assert_int_eq(take_end(&op, 0, (const int[]){0}, 1, S), 0);
        ck_assert_uint_lt(++tries, 10);
        if (op.step == EGM_OP_WAIT) {
            ck_assert_uint_gt(op.wait_until_ns, S);
            egm_op_resume(&op);
        }
    }
    ck_assert_uint_eq(tries, 3);
    ck_assert_int_eq(item.result, EGM_E_STALE);
    egm_op_release(&op);
    egm_layout_unref(layout);
}
END_TEST

START_TEST(equal_keys_get_results_by_position)
{
    struct egm_op_item items[3];
    struct egm_op op;
    struct grant grants[] = {{0, 100, 7, 10, {65536, 4096}},
                             {EGM_E_NOT_FOUND, 0, 0, 0, {0, 0}},
                             {0, 100, 7, 10, {65536, 4096}}};

    for (size_t i = 0; i < 3; i++) {
        egm_op_item_init(&items[i], key_of("same"), &piece, 1, 4096);
    }
    egm_op_init(&op, false, items, 3, 30 * S, 0);
    ck_assert_int_eq(take(&op, NULL, 0, grants, 3, S), 0);
    egm_get_copied(&op, &items[0], 0, 0);
    egm_get_copied(&op, &items[2], 0, EGM_E_TIMEOUT);
    egm_op_copy_done(&op);
    egm_get_ended(&op, S);
    ck_assert_int_eq(op.step, EGM_OP_DONE);
    ck_assert_int_eq(items[0].result, 10);
    ck_assert_int_eq(items[1].result, EGM_E_NOT_FOUND);
    ck_assert_int_eq(items[2].result, EGM_E_TIMEOUT);
    egm_op_release(&op);
}
END_TEST

START_TEST(object_larger_than_the_room_is_not_copied_but_its_lease_is_ended)
{
    struct egm_op_item item;
    struct egm_op op;
    struct grant grant = {0, 100, 7, 5000, {65536, 8192}};

    fill(&item, 1, 4096);
    egm_op_init(&op, false, &item, 1, 30 * S, 0);
    ck_assert_int_eq(take(&op, NULL, 0, &grant, 1, S), 0);
    ck_assert_int_eq(item.result, EGM_E_TOO_LARGE);
    ck_assert_int_eq(op.step, EGM_OP_COPY);
    egm_op_copy_done(&op);
    ck_assert_int_eq(op.step, EGM_OP_END);
    egm_get_ended(&op, S);
    ck_assert_int_eq(op.step, EGM_OP_DONE);
    egm_op_release(&op);
}
END_TEST

START_TEST(windows_are_bounded_by_bytes_and_keys)
{
    static struct egm_op_item items[1500];
    struct egm_op op;

    fill(items, 1500, 4096);
    egm_op_init(&op, true, items, 1500, 30 * S, 0);
    ck_assert_uint_eq(op.window_count, EGM_WINDOW_KEYS);
    egm_op_abort(&op, EGM_E_CLOSED);
    egm_op_release(&op);
    ck_assert_int_eq(items[1499].result, EGM_E_CLOSED);

    fill(items, 3, 40 << 20);
    egm_op_init(&op, true, items, 3, 30 * S, 0);
    ck_assert_uint_eq(op.window_count, 1);
    egm_op_release(&op);

    fill(items, 3, UINT64_C(1) << 30); /* one object may be larger than a window */
    egm_op_init(&op, false, items, 3, 30 * S, 0);
    ck_assert_uint_eq(op.window_count, 1);
    egm_op_release(&op);

    fill(items, 3, 100 << 20);
    egm_op_init(&op, false, items, 3, 30 * S, 0);
    ck_assert_uint_eq(op.window_count, 2);
    egm_op_release(&op);
}
END_TEST

/* ---- hostile answers ---- */

static void refuse(const struct egm_buf *buf, size_t size)
{
    struct egm_op_item items[2];
    struct egm_op op;
    /* an exact copy, so that ASan sees a read past the end */
    uint8_t *copy = egm_alloc(size);

    if (size > 0) {
        memcpy(copy, buf->data, size);
    }
    fill(items, 2, 4096);
    egm_op_init(&op, true, items, 2, 30 * S, 0);
    ck_assert_int_eq(egm_op_take_answer(&op, copy, size, NULL, INSTANCE, S), EGM_E_PROTO);
    ck_assert_int_eq(op.step, EGM_OP_DONE);
    ck_assert_int_eq(items[0].result, EGM_E_PROTO);
    ck_assert_int_eq(items[1].result, EGM_E_PROTO);
    egm_op_release(&op);
    egm_free(copy);
}

START_TEST(answer_of_any_wrong_length_is_refused)
{
    struct grant grants[] = {GOOD, {0, 101, 7, 4096, {131072, 4096}}};
    struct egm_buf buf = answer(0, grants, 2);

    for (size_t size = 0; size < buf.len; size++) {
        refuse(&buf, size);
    }
    egm_put_u32(&buf, 1);
    refuse(&buf, buf.len);
    egm_buf_release(&buf);
}
END_TEST

START_TEST(answer_that_makes_no_sense_is_refused)
{
    struct grant grants[4] = {GOOD, GOOD, GOOD, GOOD};
    struct egm_buf buf;

    buf = answer(0, grants, 1); /* an item is missing */
    refuse(&buf, buf.len);
    egm_buf_release(&buf);
    buf = answer(0, grants, 3);
    refuse(&buf, buf.len);
    egm_buf_release(&buf);
    const struct egm_extent bad[] = {{65536, 0},
                                     {65536, 100},
                                     {65537, 4096},
                                     {EGM_MAX_SEGMENT_BYTES, 4096},
                                     {UINT64_MAX - 4095, 4096},
                                     {65536, UINT64_MAX - 4095}};
    for (size_t i = 0; i < EGM_COUNT_OF(bad); i++) {
        grants[1].extent = bad[i];
        buf = answer(0, grants, 2);
        refuse(&buf, buf.len);
        egm_buf_release(&buf);
    }
    grants[1] = GOOD;
    grants[1].generation = 0;
    buf = answer(0, grants, 2);
    refuse(&buf, buf.len);
    egm_buf_release(&buf);
}
END_TEST

START_TEST(extents_smaller_than_the_object_are_refused)
{
    struct egm_op_item item;
    struct egm_op op;

    fill(&item, 1, 8192);
    egm_op_init(&op, true, &item, 1, 30 * S, 0);
    ck_assert_int_eq(take(&op, NULL, 0, &GOOD, 1, S), EGM_E_PROTO);
    egm_op_release(&op);
}
END_TEST

START_TEST(end_answer_of_wrong_length_is_refused)
{
    struct egm_op_item item;
    struct egm_op op;

    fill(&item, 1, 4096);
    egm_op_init(&op, true, &item, 1, 30 * S, 0);
    ck_assert_int_eq(take(&op, NULL, 0, &GOOD, 1, S), 0);
    egm_put_copied(&op, &item, 0, 1);
    egm_op_copy_done(&op);
    ck_assert_int_eq(take_end(&op, 0, (const int[]){0, 0}, 2, S), EGM_E_PROTO);
    ck_assert_int_eq(item.result, EGM_E_PROTO);
    ck_assert(!op.is_end_answered);
    egm_op_release(&op);
}
END_TEST

START_TEST(exist_answers_only_what_was_asked)
{
    int results[3] = {7, 7, 7};
    struct egm_buf buf = payload();

    egm_put_exist_reply(&buf, &(struct egm_exist_reply){.count = 3});
    ck_assert_int_eq(egm_buf_append(&buf, "\1\0\1", 3), 0);
    ck_assert_int_eq(egm_exist_parse(buf.data, buf.len, 2, results), EGM_E_PROTO);
    ck_assert_int_eq(egm_exist_parse(buf.data, buf.len, 4, results), EGM_E_PROTO);
    ck_assert_int_eq(egm_exist_parse(buf.data, buf.len - 1, 3, results), EGM_E_PROTO);
    ck_assert_int_eq(results[0], 7);
    ck_assert_int_eq(egm_exist_parse(buf.data, buf.len, 3, results), 0);
    ck_assert_int_eq(results[0], 1);
    ck_assert_int_eq(results[1], 0);
    buf.data[buf.len - 1] = 2;
    ck_assert_int_eq(egm_exist_parse(buf.data, buf.len, 3, results), EGM_E_PROTO);
    egm_buf_release(&buf);
}
END_TEST

/* ---- retries ---- */

START_TEST(no_segment_is_final_and_ends_all_windows)
{
    static struct egm_op_item items[1500];
    struct egm_op op;

    fill(items, 1500, 4096);
    egm_op_init(&op, true, items, 1500, 30 * S, 0);
    ck_assert_int_eq(take(&op, NULL, EGM_E_NO_SEGMENT, NULL, 0, S), 0);
    ck_assert_int_eq(op.step, EGM_OP_DONE);
    ck_assert_int_eq(items[0].result, EGM_E_NO_SEGMENT);
    ck_assert_int_eq(items[1499].result, EGM_E_NO_SEGMENT);
    egm_op_release(&op);
}
END_TEST

START_TEST(not_ready_is_waited_for_ten_seconds_at_most)
{
    struct egm_op_item item;
    struct egm_op op;
    uint64_t now = S;

    fill(&item, 1, 4096);
    egm_op_init(&op, true, &item, 1, 60 * S, 0);
    while (op.step != EGM_OP_DONE) {
        ck_assert_int_eq(take(&op, NULL, EGM_E_NOT_READY, NULL, 0, now), 0);
        if (op.step == EGM_OP_WAIT) {
            ck_assert(op.wants_layout);
            ck_assert_uint_ge(op.wait_until_ns - now, 50 * MS);
            ck_assert_uint_le(op.wait_until_ns - now, 200 * MS);
            now = op.wait_until_ns;
            egm_op_resume(&op);
        }
    }
    ck_assert_int_eq(item.result, EGM_E_NOT_READY);
    ck_assert_uint_ge(now, 10 * S);
    ck_assert_uint_le(now, 12 * S);
    egm_op_release(&op);
}
END_TEST

START_TEST(unknown_session_is_opened_and_asked_again)
{
    struct egm_op_item item;
    struct egm_op op;

    fill(&item, 1, 4096);
    egm_op_init(&op, true, &item, 1, 30 * S, 0);
    ck_assert_int_eq(take(&op, NULL, EGM_E_NOT_FOUND, NULL, 0, S), EGM_E_NOT_FOUND);
    ck_assert_int_eq(op.step, EGM_OP_WAIT);
    egm_op_resume(&op);
    ck_assert_int_eq(op.step, EGM_OP_ASK);
    ck_assert_int_eq(take(&op, NULL, 0, &GOOD, 1, S), 0);
    ck_assert(!op.places[0].is_known); /* no layout: nothing may be written there */
    egm_op_release(&op);
}
END_TEST

START_TEST(mounts_of_another_master_are_not_resolved)
{
    struct egm_layout_snapshot *layout = layout_with(INSTANCE + 1, (const uint32_t[]){7}, 1);
    struct egm_op_item item;
    struct egm_op op;

    fill(&item, 1, 4096);
    egm_op_init(&op, true, &item, 1, 30 * S, 0);
    ck_assert_int_eq(take(&op, layout, 0, &GOOD, 1, S), 0);
    ck_assert(!op.places[0].is_known);
    ck_assert_uint_eq(op.writes[0].provider, 0);
    egm_op_release(&op);
    egm_layout_unref(layout);
}
END_TEST

START_TEST(dead_master_is_waited_for_five_seconds_and_then_not_at_all)
{
    struct egm_retry retry = {.deadline_ns = 60 * S};
    uint64_t now = S;
    uint64_t at = 0;

    while (egm_retry_decide(&retry, -ECONNREFUSED, now, &at) == 0) {
        ck_assert_uint_gt(at, now);
        now = at;
    }
    ck_assert_uint_ge(now, 6 * S);
    ck_assert_uint_le(now, 7 * S);
    /* the next call knows since when it is gone */
    struct egm_retry next = {.deadline_ns = 60 * S, .gone_since_ns = S};
    ck_assert_int_eq(egm_retry_decide(&next, -ECONNREFUSED, now, &at), EGM_E_PEER_GONE);
    /* and nothing is planned beyond the deadline */
    struct egm_retry late = {.deadline_ns = now + MS};
    ck_assert_int_eq(egm_retry_decide(&late, EGM_E_AGAIN, now, &at), EGM_E_TIMEOUT);
}
END_TEST

static int put_under_pressure(void *ctx)
{
    struct egm_op_item item;
    struct egm_op op;
    struct egm_buf *buf = ctx;

    fill(&item, 1, 4096);
    egm_op_init(&op, true, &item, 1, 30 * S, 0);
    int r = egm_op_take_answer(&op, buf->data, buf->len, NULL, INSTANCE, S);
    egm_op_release(&op);
    return r;
}

START_TEST(put_survives_every_failing_allocation)
{
    struct egm_buf buf = answer(0, &GOOD, 1);

    egm_test_sweep(put_under_pressure, &buf);
    egm_buf_release(&buf);
}
END_TEST

EGM_TEST_MAIN("core_requester", session_is_counted_from_before_the_question_minus_a_margin,
              writes_stop_when_the_session_has_run_out, another_master_means_another_session,
              unknown_session_in_a_ping_is_lost,
              challenge_goes_back_with_the_next_session_to_the_same_master_only,
              read_lease_moves_on_with_each_answer_that_names_it_in_any_order,
              revoked_write_is_reported_only_after_its_copy_returned,
              unknown_revoked_generation_is_reported_at_once,
              grant_revoked_before_its_answer_was_read_may_not_write,
              grant_from_before_a_new_session_may_not_write,
              session_lists_open_writes_with_their_extents, layout_finds_mounts_in_any_order,
              put_goes_through_ask_copy_end, put_end_names_every_granted_item_and_what_became_of_it,
              put_that_lost_its_place_is_asked_for_again_but_not_for_ever,
              equal_keys_get_results_by_position,
              object_larger_than_the_room_is_not_copied_but_its_lease_is_ended,
              windows_are_bounded_by_bytes_and_keys, answer_of_any_wrong_length_is_refused,
              answer_that_makes_no_sense_is_refused, extents_smaller_than_the_object_are_refused,
              end_answer_of_wrong_length_is_refused, exist_answers_only_what_was_asked,
              no_segment_is_final_and_ends_all_windows, not_ready_is_waited_for_ten_seconds_at_most,
              unknown_session_is_opened_and_asked_again, mounts_of_another_master_are_not_resolved,
              dead_master_is_waited_for_five_seconds_and_then_not_at_all,
              put_survives_every_failing_allocation)
