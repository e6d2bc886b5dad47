/* SPDX-License-Identifier: Apache-2.0 */
/* The master core when requesters come, go, return and die: sessions, their writes and reads; and
 * what peers send that they should not. Providers: test_core_master_providers.c. */
#include "test_core_master.h"

enum {
    A = 1,
    B = 2,
    P = 10,
    Q = 11,
    SIZE = 2 * MIB
};

static void start_one(void)
{
    bench_start();
    bench_mount(P, 1, SIZE);
    bench_requester(A, 101, P);
    bench_requester(B, 102, P);
}

/* Time passes while both sessions are kept. */
static void pass_alive(uint64_t ms)
{
    for (uint64_t left = ms; left > 0;) {
        uint64_t step = left < 500 ? left : 500;
        ck_assert_int_eq(bench_ping(A, 101, 0, NULL), 0);
        ck_assert_int_eq(bench_ping(B, 102, 0, NULL), 0);
        bench_pass(step);
        left -= step;
    }
}

/* Only B lives on. */
static void pass_without_a(uint64_t ms)
{
    for (uint64_t left = ms; left > 0;) {
        uint64_t step = left < 500 ? left : 500;
        ck_assert_int_eq(bench_ping(B, 102, 0, NULL), 0);
        bench_pass(step);
        left -= step;
    }
}

/* ---- hello ---- */
START_TEST(nothing_is_answered_before_hello_and_strangers_stay_out)
{
    struct egm_buf frame;
    bench_start();
    ck_assert_int_eq(egm_master_connected(bench, bench_now, 3), 0);
    ck_assert_int_eq(bench_hello(3, EGM_ROLE_REQUESTER, "other"), EGM_E_NOT_PERMITTED);
    ck_assert_int_eq(bench_hello(3, 9, "egmstore"), EGM_E_INVALID);
    size_t begin = bench_begin(&frame, EGM_MSG_PING);
    egm_put_ping(&frame, &(struct egm_ping){.session = 1});
    bench_event(3, &frame, begin);
    ck_assert(bench_peers[3].is_closed);
    ck_assert(!bench_has_reply(3));
    bench_stop();
}
END_TEST

START_TEST(messages_of_another_role_close_the_connection)
{
    struct egm_buf frame;
    start_one();
    size_t begin = bench_begin(&frame, EGM_MSG_UNMOUNT);
    egm_put_unmount(&frame,
                    &(struct egm_unmount){.provider = 1, .epoch = 100, .mode = EGM_UNMOUNT_NOW});
    bench_event(A, &frame, begin);
    ck_assert(bench_peers[A].is_closed);
    begin = bench_begin(&frame, EGM_MSG_SESSION_END);
    egm_put_session_end(&frame, &(struct egm_session_end){.session = 102});
    bench_event(P, &frame, begin);
    ck_assert(bench_peers[P].is_closed);
    ck_assert_uint_eq(egm_master_totals(bench).session_count, 2);
    bench_stop();
}
END_TEST

/* ---- sessions ---- */
START_TEST(write_of_an_expired_session_is_quarantined_until_its_slot_is_free)
{
    start_one();
    struct got got = bench_put_start(A, 101, "k", 31 * EGM_GRANULE);
    ck_assert_int_eq(got.status, 0);
    pass_without_a(4000);
    ck_assert_uint_eq(egm_master_totals(bench).session_count, 1);
    ck_assert_uint_eq(bench_sums().quarantined, 31 * EGM_GRANULE);
    pass_without_a(60000); /* time proves nothing */
    ck_assert_uint_eq(bench_sums().quarantined, 31 * EGM_GRANULE);
    ck_assert_int_eq(bench_put_start(B, 102, "x", 100).status, EGM_E_NO_SPACE);
    ck_assert_int_eq(bench_slot(P, A, 101, EGM_IMPORT_MAP, 0), 0);
    ck_assert_uint_eq(bench_sums().quarantined, 0);
    ck_assert_int_eq(bench_put(B, 102, "x", 31 * EGM_GRANULE), 0);
    bench_stop();
}
END_TEST

START_TEST(write_over_tcp_of_an_expired_session_goes_when_its_provider_refuses_it)
{
    bench_start();
    bench_mount(P, 1, SIZE);
    bench_connect(A, EGM_ROLE_REQUESTER);
    ck_assert_int_eq(bench_session(A, 101), 0);
    ck_assert_int_eq(bench_slot(P, 4, 101, EGM_IMPORT_TCP, 1), 0);
    ck_assert_int_eq(bench_put_start(A, 101, "k", 5000).status, 0);
    ck_assert_uint_eq(bench_peers[P].grant_count, 1);
    bench_peers[P].keeps_records = true;
    bench_pass(4000);
    ck_assert_uint_eq(bench_sums().removed, 2 * EGM_SLOT);
    ck_assert_uint_eq(bench_sums().free, SIZE - EGM_GRANULE - 2 * EGM_SLOT);
    bench_peers[P].keeps_records = false;
    bench_settle();
    ck_assert_uint_eq(bench_sums().free, SIZE - EGM_GRANULE);
    bench_stop();
}
END_TEST

START_TEST(session_that_comes_back_without_its_write_settles_it)
{
    start_one();
    struct got got = bench_put_start(A, 101, "k", 5000);
    pass_without_a(4000);
    ck_assert_int_eq(bench_ping(A, 101, 0, NULL), EGM_E_NOT_FOUND);
    ck_assert_int_eq(bench_put_end(A, 101, got.generation, 0),
                     EGM_E_NOT_FOUND); /* of the head: unknown session */
    ck_assert_uint_eq(bench_sums().quarantined, 2 * EGM_SLOT);
    ck_assert_int_eq(bench_session(A, 101), 0);
    ck_assert_uint_eq(bench_sums().quarantined, 0);
    ck_assert_int_eq(bench_put_end(A, 101, got.generation, 0), EGM_E_NOT_OWNER);
    bench_stop();
}
END_TEST

START_TEST(session_that_comes_back_with_its_write_is_told_to_stop_it)
{
    uint64_t revoked;
    start_one();
    struct got got = bench_put_start(A, 101, "k", 5000);
    pass_without_a(4000);
    struct egm_open_write write = {
        .generation = got.generation, .provider = 1, .epoch = 100, .extent_count = 1};
    struct egm_extent extent = {.offset = got.offset, .length = got.length};
    ck_assert_int_eq(bench_session_with(A, 101, &write, &extent, 1), 0);
    ck_assert_uint_eq(bench_sums().quarantined, 2 * EGM_SLOT);
    ck_assert_int_eq(bench_ping(A, 101, 0, &revoked), 0);
    ck_assert_uint_eq(revoked, got.generation);
    ck_assert_uint_eq(bench_sums().quarantined, 2 * EGM_SLOT);
    ck_assert_int_eq(bench_ping(A, 101, got.generation, &revoked), 0);
    ck_assert_uint_eq(bench_sums().quarantined, 0);
    ck_assert_uint_eq(bench_sums().free, SIZE - EGM_GRANULE);
    bench_stop();
}
END_TEST

START_TEST(session_message_overtaken_by_a_younger_one_changes_nothing)
{
    struct egm_buf late;
    struct egm_session_reply reply;
    start_one();
    size_t begin =
        bench_begin(&late, EGM_MSG_SESSION); /* lists nothing; stays on its way for long */
    egm_put_session(&late, &(struct egm_session){.session = 101, .opening = bench_request});
    struct got got = bench_put_start(A, 101, "k", 5000);
    pass_without_a(4000);
    struct egm_open_write write = {
        .generation = got.generation, .provider = 1, .epoch = 100, .extent_count = 1};
    struct egm_extent extent = {.offset = got.offset, .length = got.length};
    ck_assert_int_eq(bench_session_with(A, 101, &write, &extent, 1), 0);
    bench_connect(3, EGM_ROLE_REQUESTER);
    bench_event(3, &late, begin);
    struct egm_cursor cursor = bench_reply(3, EGM_MSG_SESSION_REPLY, &late);
    egm_take_session_reply(&cursor, &reply);
    egm_buf_release(&late);
    ck_assert_int_eq(egm_status_from_wire(reply.status), EGM_E_STALE);
    ck_assert_uint_eq(bench_sums().quarantined, 2 * EGM_SLOT);
    bench_stop();
}
END_TEST

/* Sends a SESSION that lists nothing and answers `challenge`, younger than any so far; the status.
 */
static int open_listing_nothing(uint64_t challenge, uint64_t *ret_challenge)
{
    struct egm_buf frame;
    struct egm_session_reply reply;
    size_t begin = bench_begin(&frame, EGM_MSG_SESSION);
    egm_put_session(&frame, &(struct egm_session){
                                .session = 101, .opening = bench_request, .challenge = challenge});
    bench_event(A, &frame, begin);
    struct egm_cursor cursor = bench_reply(A, EGM_MSG_SESSION_REPLY, &frame);
    egm_take_session_reply(&cursor, &reply);
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    egm_buf_release(&frame);
    *ret_challenge = reply.challenge;
    return egm_status_from_wire(reply.status);
}

START_TEST(session_message_from_before_a_grant_does_not_settle_its_write)
{
    uint64_t first, second;
    start_one();
    ck_assert_int_eq(bench_put_start(A, 101, "k", 5000).status, 0);
    pass_without_a(4000); /* its write is quarantined */
    ck_assert_int_eq(open_listing_nothing(0, &first), EGM_E_AGAIN);
    ck_assert_uint_ne(first, 0);
    ck_assert_int_eq(open_listing_nothing(first + 2, &second), EGM_E_AGAIN);
    ck_assert_uint_eq(second, first); /* asked once: whoever answers may be late as well */
    ck_assert_uint_eq(bench_sums().quarantined, 2 * EGM_SLOT);
    ck_assert_int_eq(open_listing_nothing(first, &second), 0);
    ck_assert_uint_eq(bench_sums().quarantined, 0);
    /* the next grant makes that answer old */
    ck_assert_int_eq(bench_put_start(A, 101, "k", 5000).status, 0);
    pass_without_a(4000);
    ck_assert_int_eq(open_listing_nothing(first, &second), EGM_E_AGAIN);
    ck_assert_uint_ne(second, first);
    ck_assert_uint_eq(bench_sums().quarantined, 2 * EGM_SLOT);
    bench_stop();
}
END_TEST

START_TEST(session_message_from_before_a_provider_came_does_not_open_its_memory)
{
    uint64_t challenge;
    bench_start();
    bench_connect(A, EGM_ROLE_REQUESTER);
    bench_connect(P, EGM_ROLE_PROVIDER);
    struct bench_slot slots[] = {{0, A, 101, EGM_IMPORT_MAP}};
    ck_assert_int_eq(bench_mount_slots(P, 1, 100, 7, SIZE, slots, 1), 0);
    ck_assert_int_eq(open_listing_nothing(0, &challenge), EGM_E_AGAIN);
    ck_assert_str_eq(bench_sums().state, "recovering");
    ck_assert_int_eq(bench_ping(A, 101, 0, NULL), EGM_E_NOT_FOUND);
    ck_assert_int_eq(open_listing_nothing(challenge, &challenge), 0);
    ck_assert_str_eq(bench_sums().state, "ready");
    bench_stop();
}
END_TEST

START_TEST(put_that_lasts_too_long_is_revoked_although_its_session_lives)
{
    uint64_t revoked;
    start_one();
    struct got got = bench_put_start(A, 101, "k", 5000);
    pass_alive(4900);
    ck_assert_int_eq(bench_ping(A, 101, 0, &revoked), 0);
    ck_assert_uint_eq(revoked, 0);
    pass_alive(500);
    ck_assert_int_eq(bench_ping(A, 101, 0, &revoked), 0);
    ck_assert_uint_eq(revoked, got.generation);
    ck_assert_int_eq(bench_put_end(A, 101, got.generation, 0), EGM_E_STALE);
    ck_assert(!bench_exists(B, 102, "k"));
    ck_assert_uint_eq(bench_sums().free, SIZE - EGM_GRANULE);
    bench_stop();
}
END_TEST

START_TEST(read_leases_end_with_their_session_and_with_their_deadline)
{
    start_one();
    ck_assert_int_eq(bench_put(B, 102, "k", 5000), 0);
    ck_assert_int_eq(bench_get_start(A, 101, "k", 4).status, 0);
    ck_assert_int_eq(bench_remove(B, 102, "k", EGM_FORCE), 0);
    ck_assert_uint_eq(bench_sums().removed, 2 * EGM_SLOT);
    pass_without_a(4000);
    ck_assert_uint_eq(bench_sums().removed, 0);
    ck_assert_int_eq(bench_put(B, 102, "k", 5000), 0);
    ck_assert_int_eq(bench_get_start(B, 102, "k", 5).status, 0);
    ck_assert_int_eq(bench_remove(B, 102, "k", EGM_FORCE), 0);
    pass_without_a(59000);
    ck_assert_uint_eq(bench_sums().removed, 2 * EGM_SLOT);
    pass_without_a(1100);
    ck_assert_uint_eq(bench_sums().removed, 0);
    bench_stop();
}
END_TEST

START_TEST(read_lease_runs_out_unless_a_ping_renews_it)
{
    start_one();
    ck_assert_int_eq(bench_put(B, 102, "k", 5000), 0);
    ck_assert_uint_eq(bench_get_start(B, 102, "k", 5).lease_ms, 1000);
    ck_assert_uint_eq(bench_renewed(A, 101, 5), 0); /* another session's op of that number */
    ck_assert_int_eq(bench_remove(B, 102, "k", EGM_FORCE), 0);
    bench_pass(900);
    ck_assert_uint_eq(bench_renewed(B, 102, 5), 1000);
    bench_pass(900);
    ck_assert_uint_eq(bench_sums().removed, 2 * EGM_SLOT);
    bench_pass(150);
    ck_assert_uint_eq(bench_sums().removed, 0);
    /* the session lives, and a PING that comes too late does not bring the op back */
    ck_assert_uint_eq(bench_renewed(B, 102, 5), 0);
    bench_stop();
}
END_TEST

START_TEST(renewal_reaches_neither_beyond_the_deadline_nor_beyond_the_providers_lease)
{
    struct egm_buf frame;
    struct got got;
    start_one();
    ck_assert_int_eq(bench_put(B, 102, "k", 5000), 0);
    size_t begin = bench_begin(&frame, EGM_MSG_GET_START);
    egm_put_get_start(&frame, &(struct egm_get_start){
                                  .session = 102, .op = 5, .deadline_ms = 1300, .key_count = 1});
    bench_put_key(&frame, "k");
    bench_event(B, &frame, begin);
    bench_items_reply(B, EGM_MSG_GET_START_REPLY, &got);
    ck_assert_uint_eq(got.lease_ms, 1000);
    bench_pass(800);
    ck_assert_uint_eq(bench_renewed(B, 102, 5), 500);
    bench_peers[P].keeps_leases = true;
    pass_alive(1000); /* its LEASE is repeated each second and not answered any more */
    pass_alive(3000);
    got = bench_get_start(B, 102, "k", 6);
    ck_assert_int_eq(got.status, 0);
    ck_assert_uint_lt(got.lease_ms, 1000);
    bench_pass(100);
    ck_assert_uint_eq(bench_renewed(B, 102, 6), got.lease_ms - 100);
    bench_stop();
}
END_TEST

START_TEST(large_read_is_leased_for_longer)
{
    bench_start();
    bench_mount(P, 1, UINT64_C(2) << 30);
    bench_requester(A, 101, P);
    ck_assert_int_eq(bench_put(A, 101, "large", UINT64_C(1) << 28), 0);
    ck_assert_uint_eq(bench_get_start(A, 101, "large", 5).lease_ms, 2000);
    ck_assert_uint_eq(bench_renewed(A, 101, 5), 2000);
    bench_stop();
}
END_TEST

START_TEST(overdue_session_is_promised_no_lease)
{
    struct egm_buf frame;
    struct egm_items_reply head;
    start_one();
    ck_assert_int_eq(bench_put(A, 101, "k", 5000), 0);
    pass_without_a(2950);
    bench_now += 60 * UINT64_C(1000000); /* its time is up, and no tick has said so yet */
    size_t begin = bench_begin(&frame, EGM_MSG_GET_START);
    egm_put_get_start(&frame, &(struct egm_get_start){
                                  .session = 101, .op = 1, .deadline_ms = 60000, .key_count = 1});
    bench_put_key(&frame, "k");
    bench_event(A, &frame, begin);
    struct egm_cursor cursor = bench_reply(A, EGM_MSG_GET_START_REPLY, &frame);
    egm_take_items_reply(&cursor, &head);
    ck_assert_int_eq(head.status, 0);
    ck_assert_uint_eq(head.lease_ms, 0);
    egm_buf_release(&frame);
    bench_stop();
}
END_TEST

START_TEST(masters_own_stall_expires_nobody)
{
    start_one();
    ck_assert_int_eq(bench_put(A, 101, "k", 5000), 0);
    bench_now += 60000 * UINT64_C(1000000);
    egm_master_tick(bench, bench_now);
    bench_settle();
    ck_assert_uint_eq(egm_master_totals(bench).session_count, 2);
    ck_assert_uint_eq(egm_master_totals(bench).stalls, 1);
    ck_assert_int_eq(bench_ping(A, 101, 0, NULL), 0);
    ck_assert(bench_exists(A, 101, "k"));
    bench_stop();
}
END_TEST

START_TEST(request_parked_over_its_sessions_end_grants_nothing_to_another_session)
{
    struct egm_buf frame;
    start_one();
    struct got full = bench_put_start(B, 102, "full", 31 * EGM_GRANULE);
    ck_assert_int_eq(bench_put_end(B, 102, full.generation, 0), 0);
    bench_peers[P].keeps_records = true;
    bench_put_ask(A, 101, "new", EGM_GRANULE,
                  (struct bench_put){0}); /* parked for the victim's record */
    size_t begin = bench_begin(&frame, EGM_MSG_SESSION_END);
    egm_put_session_end(&frame, &(struct egm_session_end){.session = 101});
    bench_connect(3, EGM_ROLE_REQUESTER);
    bench_event(3, &frame, begin);
    egm_buf_clear(&bench_peers[P].in);
    /* Nothing of 101 is left: its number is free. */
    ck_assert_int_eq(bench_slot(P, A, 101, EGM_IMPORT_MAP, 0), 0);
    egm_buf_clear(&bench_peers[3].in);
    ck_assert_int_eq(bench_session(3, 777), 0); /* takes that number over */
    ck_assert_int_eq(bench_slot(P, 3, 777, EGM_IMPORT_MAP, 1), 0);
    struct egm_buf out;
    egm_buf_init(&out, MIB);
    begin = egm_frame_begin(&out, EGM_MSG_RECORDS_REPLY, 0);
    egm_put_records_reply(&out, &(struct egm_records_reply){.sequence = 2}); /* the victim's */
    bench_event(P, &out, begin);
    ck_assert_uint_eq(bench_sums().writing, 0);
    bench_stop();
}
END_TEST

/* ---- odd orders and hostile numbers (B50): a code or a closed connection, and everything stands
 * ---- */
START_TEST(odd_orders_of_put_end_are_refused_and_change_nothing)
{
    start_one();
    struct got got = bench_put_start(A, 101, "k", 5000);
    ck_assert_int_eq(bench_put_end(A, 101, got.generation + 1, 0), EGM_E_NOT_OWNER); /* unknown */
    ck_assert_int_eq(bench_put_end(A, 101, 0, 0), EGM_E_NOT_OWNER);
    ck_assert_int_eq(bench_put_end(B, 102, got.generation, 0),
                     EGM_E_NOT_OWNER); /* another session's */
    ck_assert_int_eq(bench_put_end(B, 102, got.generation, 1), EGM_E_NOT_OWNER);
    ck_assert(!bench_exists(A, 101, "k"));
    ck_assert_int_eq(bench_put_end(A, 101, got.generation, 0), 0);
    ck_assert_int_eq(bench_put_end(A, 101, got.generation, 0), 0); /* twice: idempotent */
    ck_assert_int_eq(bench_put_end(A, 101, got.generation, 1),
                     EGM_E_NOT_OWNER); /* giving up what is sealed */
    ck_assert_int_eq(bench_put_end(B, 102, got.generation, 1), EGM_E_NOT_OWNER);
    ck_assert(bench_exists(A, 101, "k"));
    ck_assert_int_eq(bench_remove(A, 101, "k", EGM_FORCE), 0);
    ck_assert_int_eq(bench_put_end(A, 101, got.generation, 0), EGM_E_NOT_OWNER);
    ck_assert_uint_eq(bench_sums().free, SIZE - EGM_GRANULE);
    bench_stop();
}
END_TEST

START_TEST(impossible_sizes_are_refused)
{
    start_one();
    const uint64_t sizes[] = {0, UINT64_C(1) << 63, UINT64_MAX, EGM_MAX_OBJECT_BYTES + 1};
    for (size_t i = 0; i < EGM_COUNT_OF(sizes); i++) {
        ck_assert_int_eq(bench_put_start(A, 101, "k", sizes[i]).status, EGM_E_INVALID);
    }
    ck_assert_int_eq(bench_put_start(A, 101, "k", EGM_MAX_OBJECT_BYTES).status, EGM_E_TOO_LARGE);
    ck_assert_uint_eq(egm_master_totals(bench).object_count, 0);
    bench_stop();
}
END_TEST

/* A PUT_START whose key list is given raw. */
static bool closes_on(uint32_t replicas, uint32_t keys, const void *coded, size_t size)
{
    struct egm_buf frame;
    bench_connect(5, EGM_ROLE_REQUESTER);
    size_t begin = bench_begin(&frame, EGM_MSG_PUT_START);
    egm_put_put_start(&frame, &(struct egm_put_start){.session = 101,
                                                      .replica_count = (uint8_t)replicas,
                                                      .key_count = keys});
    egm_put_want(&frame, &(struct egm_want){.size = 100});
    ck_assert_int_eq(egm_buf_append(&frame, coded, size), 0);
    bench_event(5, &frame, begin);
    bool is_closed = bench_peers[5].is_closed;
    bench_disconnect(5);
    return is_closed;
}

START_TEST(broken_keys_and_counts_close_the_connection)
{
    start_one();
    ck_assert(closes_on(1, 1, "\0\0\0\0\0\0", 6));           /* an empty key */
    ck_assert(closes_on(1, 1, "\0\0\0\0\1\20abc", 9));       /* a key longer than what follows */
    ck_assert(closes_on(1, 1, "\1\0\0\0\0\0", 6));           /* a head of nothing */
    ck_assert(closes_on(200, 1, "\0\0\0\0\1\0a", 7));        /* 200 replicas */
    ck_assert(closes_on(1, UINT32_MAX, "\0\0\0\0\1\0a", 7)); /* a count that cannot be */
    ck_assert(!closes_on(1, 1, "\0\0\0\0\1\0a", 7));
    bench_stop();
}
END_TEST

START_TEST(remove_whose_list_breaks_in_the_middle_leaves_nobody_waiting)
{
    struct egm_buf frame;
    start_one();
    ck_assert_int_eq(bench_put(A, 101, "k", 5000), 0);
    bench_peers[P].keeps_records = true;
    size_t begin = bench_begin(&frame, EGM_MSG_REMOVE);
    egm_put_remove(&frame,
                   &(struct egm_remove){.session = 101, .flags = EGM_FORCE, .key_count = 2});
    bench_put_key(&frame, "k");
    ck_assert_int_eq(egm_buf_append(&frame, "\11\0\0\0\0\0", 6), 0);
    bench_event(A, &frame, begin);
    ck_assert(bench_peers[A].is_closed);
    bench_peers[P].keeps_records = false;
    bench_settle(); /* the record's answer must not reach for the request that is gone */
    ck_assert_uint_eq(bench_sums().free, SIZE - EGM_GRANULE);
    bench_stop();
}
END_TEST

START_TEST(reader_that_leaves_in_the_middle_of_a_long_get_leaves_no_lease_behind)
{
    struct egm_buf frame;
    start_one();
    ck_assert_int_eq(bench_put(A, 101, "k", 5000), 0);
    size_t begin = bench_begin(&frame, EGM_MSG_GET_START);
    egm_put_get_start(&frame, &(struct egm_get_start){
                                  .session = 101, .op = 5, .deadline_ms = 1000, .key_count = 5000});
    struct egm_key_writer writer = {0};
    for (int i = 0; i < 5000; i++) {
        ck_assert_int_eq(egm_put_key(&writer, &frame, "k", 1), 0);
    }
    egm_frame_end(&frame, begin);
    bench_hand(A, &frame); /* gave way after 1,024 keys */
    egm_buf_release(&frame);
    ck_assert(!bench_has_reply(A));
    bench_disconnect(A);
    ck_assert_int_eq(bench_remove(B, 102, "k", EGM_FORCE), 0);
    bench_pass(2000);
    ck_assert_uint_eq(bench_sums().removed, 0);
    ck_assert_uint_eq(bench_sums().free, SIZE - EGM_GRANULE);
    bench_stop();
}
END_TEST

START_TEST(second_mount_on_a_connection_closes_it)
{
    struct egm_buf frame;
    start_one();
    size_t begin = bench_begin(&frame, EGM_MSG_MOUNT);
    egm_put_mount(&frame,
                  &(struct egm_mount){
                      .provider = 9, .epoch = 9, .name = egm_bytes_of("x", 1), .segment_count = 1});
    egm_put_segment(&frame, &(struct egm_segment){.segment = 0, .size = SIZE});
    bench_event(P, &frame, begin);
    ck_assert(bench_peers[P].is_closed);
    bench_disconnect(P);
    bench_connect(P, EGM_ROLE_REQUESTER); /* the number lives on as somebody else */
    bench_pass(3000);
    ck_assert(!bench_has_reply(P));
    bench_stop();
}
END_TEST

START_TEST(mount_with_impossible_segments_or_records_out_of_order_closes)
{
    struct egm_buf frame;
    bench_start();
    const uint64_t sizes[] = {0, EGM_GRANULE, UINT64_MAX, EGM_MAX_SEGMENT_BYTES + 1};
    for (size_t i = 0; i < EGM_COUNT_OF(sizes); i++) {
        bench_connect(P, EGM_ROLE_PROVIDER);
        size_t begin = bench_begin(&frame, EGM_MSG_MOUNT);
        egm_put_mount(&frame, &(struct egm_mount){.provider = 9,
                                                  .epoch = 9,
                                                  .name = egm_bytes_of("x", 1),
                                                  .segment_count = 1});
        egm_put_segment(&frame, &(struct egm_segment){.segment = 0, .size = sizes[i]});
        bench_event(P, &frame, begin);
        ck_assert(bench_peers[P].is_closed);
        bench_disconnect(P);
    }
    bench_mount(P, 1, SIZE);
    size_t begin = bench_begin(&frame, EGM_MSG_RECORDS_REPLY);
    egm_put_records_reply(&frame, &(struct egm_records_reply){.sequence = 1});
    bench_event(P, &frame, begin);
    ck_assert(bench_peers[P].is_closed);
    bench_stop();
}
END_TEST

EGM_TEST_MAIN("core_master_lives", nothing_is_answered_before_hello_and_strangers_stay_out,
              messages_of_another_role_close_the_connection,
              write_of_an_expired_session_is_quarantined_until_its_slot_is_free,
              write_over_tcp_of_an_expired_session_goes_when_its_provider_refuses_it,
              session_that_comes_back_without_its_write_settles_it,
              session_that_comes_back_with_its_write_is_told_to_stop_it,
              session_message_overtaken_by_a_younger_one_changes_nothing,
              session_message_from_before_a_grant_does_not_settle_its_write,
              session_message_from_before_a_provider_came_does_not_open_its_memory,
              put_that_lasts_too_long_is_revoked_although_its_session_lives,
              read_leases_end_with_their_session_and_with_their_deadline,
              read_lease_runs_out_unless_a_ping_renews_it,
              renewal_reaches_neither_beyond_the_deadline_nor_beyond_the_providers_lease,
              large_read_is_leased_for_longer, overdue_session_is_promised_no_lease,
              masters_own_stall_expires_nobody,
              request_parked_over_its_sessions_end_grants_nothing_to_another_session,
              odd_orders_of_put_end_are_refused_and_change_nothing, impossible_sizes_are_refused,
              broken_keys_and_counts_close_the_connection,
              remove_whose_list_breaks_in_the_middle_leaves_nobody_waiting,
              reader_that_leaves_in_the_middle_of_a_long_get_leaves_no_lease_behind,
              second_mount_on_a_connection_closes_it,
              mount_with_impossible_segments_or_records_out_of_order_closes)
