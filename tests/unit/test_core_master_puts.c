/* SPDX-License-Identifier: Apache-2.0 */
/* The master core, everybody well: put, get, exist, prefix, remove, eviction, holds, leases,
 * groups, pins. */
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

START_TEST(put_value_is_found_by_everybody_with_its_size_checksum_and_place)
{
    start_one();
    ck_assert(!bench_exists(A, 101, "k"));
    struct got put = bench_put_start(A, 101, "k", 100000);
    ck_assert_int_eq(put.status, 0);
    ck_assert_uint_eq(put.length, 2 * EGM_GRANULE);
    ck_assert(put.offset >= EGM_GRANULE);  /* the first granule is nobody's */
    ck_assert(!bench_exists(B, 102, "k")); /* not before it is sealed */
    ck_assert_int_eq(bench_get_start(B, 102, "k", 1).status, EGM_E_NOT_FOUND);
    ck_assert_int_eq(bench_put_end(A, 101, put.generation, 0), 0);
    ck_assert(bench_exists(B, 102, "k"));
    struct got got = bench_get_start(B, 102, "k", 1);
    ck_assert_int_eq(got.status, 0);
    ck_assert_uint_eq(got.generation, put.generation);
    ck_assert_uint_eq(got.size, 100000);
    ck_assert_uint_eq(got.checksum, put.generation * 3);
    ck_assert_uint_eq(got.offset, put.offset);
    bench_op_end(B, 102, 1);
    ck_assert_int_eq(bench_remove(A, 101, "k", EGM_FORCE), 0);
    ck_assert(!bench_exists(B, 102, "k"));
    ck_assert_uint_eq(bench_sums().free, SIZE - EGM_GRANULE);
    ck_assert_uint_eq(bench_peers[P].drop_count, 1);
    bench_stop();
}
END_TEST

START_TEST(put_of_a_present_key_is_told_so_and_changes_nothing)
{
    start_one();
    ck_assert_int_eq(bench_put(A, 101, "k", 5000), 0);
    uint64_t generation = bench_get_start(A, 101, "k", 0).generation;
    ck_assert_int_eq(bench_put_start(B, 102, "k", 7000).status, EGM_E_EXISTS);
    struct got got = bench_get_start(A, 101, "k", 0);
    ck_assert_uint_eq(got.generation, generation);
    ck_assert_uint_eq(got.size, 5000);
    bench_stop();
}
END_TEST

START_TEST(first_of_two_concurrent_puts_seals_and_both_are_told_yes)
{
    start_one();
    struct got a = bench_put_start(A, 101, "k", 5000);
    struct got b = bench_put_start(B, 102, "k", 6000);
    ck_assert_int_eq(a.status, 0);
    ck_assert_int_eq(b.status, 0);
    ck_assert_uint_ne(a.offset, b.offset);
    ck_assert_int_eq(bench_put_end(B, 102, b.generation, 0), 0);
    ck_assert_int_eq(bench_put_end(A, 101, a.generation, 0), 0);
    struct got got = bench_get_start(A, 101, "k", 0);
    ck_assert_uint_eq(got.generation, b.generation);
    ck_assert_uint_eq(got.size, 6000);
    ck_assert_uint_eq(bench_sums().free, SIZE - EGM_GRANULE - 2 * EGM_SLOT);
    bench_stop();
}
END_TEST

START_TEST(upsert_swaps_at_its_end_and_never_writes_in_place)
{
    start_one();
    struct got got;
    ck_assert_int_eq(bench_put(A, 101, "k", 5000), 0);
    struct got before = bench_get_start(A, 101, "k", 7); /* leased: its places stay */
    bench_put_ask(B, 102, "k", 9000, (struct bench_put){.flags = EGM_UPSERT});
    bench_items_reply(B, EGM_MSG_PUT_START_REPLY, &got);
    ck_assert_int_eq(got.status, 0);
    ck_assert_uint_ne(got.offset, before.offset);
    ck_assert_uint_eq(bench_get_start(A, 101, "k", 0).generation, before.generation);
    ck_assert_int_eq(bench_put_end(B, 102, got.generation, 0), 0);
    ck_assert_uint_eq(bench_get_start(A, 101, "k", 0).generation, got.generation);
    ck_assert_uint_eq(bench_sums().removed, 2 * EGM_SLOT);
    bench_op_end(A, 101, 7);
    ck_assert_uint_eq(bench_sums().removed, 0);
    bench_stop();
}
END_TEST

START_TEST(put_given_up_by_its_writer_gives_its_places_back)
{
    start_one();
    struct got got = bench_put_start(A, 101, "k", 5000);
    ck_assert_int_eq(bench_put_end(A, 101, got.generation, 1), 0);
    ck_assert(!bench_exists(A, 101, "k"));
    ck_assert_uint_eq(bench_sums().free, SIZE - EGM_GRANULE);
    ck_assert_int_eq(bench_put_end(A, 101, got.generation, 0), EGM_E_NOT_OWNER);
    bench_stop();
}
END_TEST

START_TEST(full_pool_evicts_and_the_parked_put_goes_on_when_the_provider_has_recorded_it)
{
    struct got got;
    start_one();
    char key[16];
    for (int i = 0; i < 31; i++) {
        (void)snprintf(key, sizeof key, "k%d", i);
        ck_assert_int_eq(bench_put(A, 101, key, EGM_GRANULE), 0);
    }
    ck_assert_uint_eq(bench_sums().free, 0);
    bench_peers[P].keeps_records = true;
    bench_put_ask(A, 101, "new", 2 * EGM_GRANULE, (struct bench_put){0});
    ck_assert(!bench_has_reply(A)); /* parked: hidden victims, places not back */
    ck_assert_uint_eq(bench_sums().removed, 2 * EGM_GRANULE);
    ck_assert(bench_exists(B, 102, "k30")); /* others are served meanwhile */
    bench_peers[P].keeps_records = false;
    bench_settle();
    bench_items_reply(A, EGM_MSG_PUT_START_REPLY, &got);
    ck_assert_int_eq(got.status, 0);
    ck_assert_int_eq(bench_put_end(A, 101, got.generation, 0), 0);
    ck_assert_uint_eq(egm_master_totals(bench).evicted_count, 2);
    bench_stop();
}
END_TEST

/* The number-th key of a batch: short ones, and some of the longest that there are. */
static size_t make_key(char key[EGM_MAX_KEY + 1], uint32_t number)
{
    size_t size = number % 7 == 0 ? EGM_MAX_KEY : 20 + number % 300;
    memset(key, 'a' + (int)(number % 26), EGM_MAX_KEY);
    key[size] = 0;
    int n = snprintf(key, 12, "%u", number);
    key[n] = '-';
    return size;
}

START_TEST(batch_gives_way_parks_in_the_middle_and_loses_no_key)
{
    enum {
        OLD = 300,
        COUNT = 400 /* the pool has 496 places */
    };
    static char key[EGM_MAX_KEY + 1];
    start_one();
    for (uint32_t i = 0; i < OLD; i++) {
        (void)snprintf(key, sizeof key, "old-%u", i);
        ck_assert_int_eq(bench_put(A, 101, key, EGM_SLOT), 0);
    }
    bench_peers[P].keeps_records = true; /* nothing comes back: the put has to wait */
    struct egm_buf frame;
    size_t begin = bench_begin(&frame, EGM_MSG_PUT_START);
    egm_put_put_start(
        &frame, &(struct egm_put_start){.session = 101, .deadline_ms = 2000, .key_count = COUNT});
    for (uint32_t i = 0; i < COUNT; i++) {
        egm_put_want(&frame, &(struct egm_want){.size = EGM_SLOT - i});
    }
    for (uint32_t i = 0; i < COUNT; i++) { /* each coded by itself: the writer refers to the key */
        struct egm_key_writer writer = {0};
        ck_assert_int_eq(egm_put_key(&writer, &frame, key, make_key(key, i)), 0);
    }
    bench_event(A, &frame, begin);
    ck_assert(!bench_has_reply(A));
    bench_peers[P].keeps_records = false;
    bench_pass(100);
    struct egm_buf payload;
    struct egm_items_reply head;
    struct egm_cursor cursor = bench_reply(A, EGM_MSG_PUT_START_REPLY, &payload);
    egm_take_items_reply(&cursor, &head);
    ck_assert_uint_eq(head.count, COUNT);
    begin = bench_begin(&frame, EGM_MSG_PUT_END);
    egm_put_put_end(&frame, &(struct egm_put_end){.session = 101, .count = COUNT});
    for (uint32_t i = 0; i < COUNT; i++) {
        struct got got;
        bench_take_entry(&cursor, &got);
        ck_assert_int_eq(got.status, 0);
        ck_assert_uint_eq(got.size, EGM_SLOT - i);
        egm_put_ended(&frame, &(struct egm_ended){.generation = got.generation, .checksum = i});
    }
    egm_buf_release(&payload);
    bench_event(A, &frame, begin);
    ck_assert_int_eq(bench_reply(A, EGM_MSG_PUT_END_REPLY, &payload).failed, 0);
    egm_buf_release(&payload);
    for (uint32_t i = 0; i < COUNT; i++) {
        (void)make_key(key, i);
        struct got got = bench_get_start(B, 102, key, 0);
        ck_assert_int_eq(got.status, 0);
        ck_assert_uint_eq(got.size, EGM_SLOT - i);
        ck_assert_uint_eq(got.checksum, i);
    }
    bench_stop();
}
END_TEST

START_TEST(parked_put_ends_at_its_deadline_when_no_place_comes_back)
{
    struct got got;
    start_one();
    ck_assert_int_eq(bench_put(A, 101, "k", 31 * EGM_GRANULE), 0);
    bench_peers[P].keeps_records = true;
    bench_put_ask(A, 101, "new", EGM_GRANULE, (struct bench_put){0});
    bench_pass(1900);
    ck_assert(!bench_has_reply(A));
    ck_assert_int_eq(bench_ping(B, 102, 0, NULL), 0);
    bench_pass(200);
    bench_items_reply(A, EGM_MSG_PUT_START_REPLY, &got);
    ck_assert_int_eq(got.status, EGM_E_NO_SPACE);
    bench_stop();
}
END_TEST

START_TEST(holds_order_eviction_but_never_starve_a_put)
{
    start_one();
    ck_assert_int_eq(bench_put(A, 101, "held", 15 * EGM_GRANULE), 0);
    ck_assert_int_eq(bench_put(A, 101, "idle", 15 * EGM_GRANULE), 0);
    bench_pass(600);
    ck_assert_int_eq(bench_get_start(A, 101, "held", 0).status, 0);
    ck_assert_int_eq(bench_put(A, 101, "n1", 15 * EGM_GRANULE), 0);
    ck_assert(!bench_exists(A, 101, "idle"));
    ck_assert(bench_exists(A, 101, "held"));
    ck_assert_int_eq(bench_get_start(A, 101, "n1", 0).status, 0);
    ck_assert_int_eq(bench_put(A, 101, "n2", 30 * EGM_GRANULE), 0);
    ck_assert(!bench_exists(A, 101, "held"));
    bench_stop();
}
END_TEST

START_TEST(hard_pinned_and_leased_objects_stay_and_the_put_is_told_no_space)
{
    struct got got;
    start_one();
    bench_put_ask(A, 101, "pinned", 15 * EGM_GRANULE, (struct bench_put){.flags = EGM_HARD_PIN});
    bench_items_reply(A, EGM_MSG_PUT_START_REPLY, &got);
    ck_assert_int_eq(bench_put_end(A, 101, got.generation, 0), 0);
    ck_assert_int_eq(bench_put(A, 101, "read", 16 * EGM_GRANULE), 0);
    ck_assert_int_eq(bench_get_start(B, 102, "read", 3).status, 0);
    ck_assert_int_eq(bench_put_start(A, 101, "new", EGM_GRANULE).status, EGM_E_NO_SPACE);
    ck_assert(bench_exists(A, 101, "pinned"));
    ck_assert(bench_exists(A, 101, "read"));
    bench_op_end(B, 102, 3);
    ck_assert_int_eq(bench_put(A, 101, "new", EGM_GRANULE), 0);
    ck_assert(!bench_exists(A, 101, "read"));
    bench_stop();
}
END_TEST

START_TEST(pool_of_two_evicts_where_it_can_although_the_other_half_is_pinned)
{
    struct got got;
    bench_start();
    bench_mount(P, 1, SIZE);
    bench_requester(A, 101, P);
    bench_put_ask(A, 101, "pinned", 31 * EGM_GRANULE, (struct bench_put){.flags = EGM_HARD_PIN});
    bench_items_reply(A, EGM_MSG_PUT_START_REPLY, &got);
    ck_assert_int_eq(bench_put_end(A, 101, got.generation, 0), 0);
    bench_mount(Q, 2, SIZE);
    ck_assert_int_eq(bench_slot(Q, 5, 101, EGM_IMPORT_MAP, 1), 0);
    for (int i = 0; i < 200; i++) { /* both are drawn, whatever the random numbers */
        char key[16];
        (void)snprintf(key, sizeof key, "k%d", i);
        ck_assert_msg(bench_put(A, 101, key, 16 * EGM_GRANULE) == 0, "put %d", i);
    }
    bench_stop();
}
END_TEST

START_TEST(group_goes_whole_or_stays_whole)
{
    struct got got;
    start_one();
    for (int i = 0; i < 4; i++) {
        char key[8] = {'g', (char)('0' + i)};
        bench_put_ask(A, 101, key, 7 * EGM_GRANULE, (struct bench_put){.group = "block"});
        bench_items_reply(A, EGM_MSG_PUT_START_REPLY, &got);
        ck_assert_int_eq(got.status, 0);
        ck_assert_int_eq(bench_put_end(A, 101, got.generation, 0), 0);
    }
    ck_assert_int_eq(bench_get_start(B, 102, "g3", 9).status,
                     0); /* one member is read: none may go */
    ck_assert_int_eq(bench_put_start(A, 101, "new", 7 * EGM_GRANULE).status, EGM_E_NO_SPACE);
    ck_assert(bench_exists(A, 101, "g0"));
    bench_op_end(B, 102, 9);
    ck_assert_int_eq(bench_put(A, 101, "new", 7 * EGM_GRANULE), 0);
    for (int i = 0; i < 4; i++) {
        char key[8] = {'g', (char)('0' + i)};
        ck_assert(!bench_exists(A, 101, key));
    }
    bench_stop();
}
END_TEST

START_TEST(remove_without_force_is_refused_while_held_or_leased)
{
    start_one();
    ck_assert_int_eq(bench_remove(A, 101, "k", 0), EGM_E_NOT_FOUND);
    ck_assert_int_eq(bench_put(A, 101, "k", 5000), 0);
    ck_assert_int_eq(bench_get_start(B, 102, "k", 4).status, 0);
    ck_assert_int_eq(bench_remove(A, 101, "k", 0), EGM_E_LEASED);
    bench_pass(600); /* the hold is over, the lease is not */
    ck_assert_int_eq(bench_remove(A, 101, "k", 0), EGM_E_LEASED);
    bench_op_end(B, 102, 4);
    ck_assert_int_eq(bench_remove(A, 101, "k", 0), 0);
    ck_assert_int_eq(bench_remove(A, 101, "k", EGM_FORCE), EGM_E_NOT_FOUND);
    bench_stop();
}
END_TEST

START_TEST(places_of_a_removed_object_come_back_only_when_its_read_lease_ends)
{
    start_one();
    ck_assert_int_eq(bench_put(A, 101, "k", 31 * EGM_GRANULE), 0);
    ck_assert_int_eq(bench_get_start(B, 102, "k", 4).status, 0);
    ck_assert_int_eq(bench_remove(A, 101, "k", EGM_FORCE),
                     0); /* answered: the provider has recorded it */
    ck_assert_uint_eq(bench_sums().free, 0);
    ck_assert_uint_eq(bench_sums().removed, 31 * EGM_GRANULE);
    bench_op_end(B, 102, 4);
    ck_assert_uint_eq(bench_sums().free, 31 * EGM_GRANULE);
    bench_stop();
}
END_TEST

START_TEST(remove_is_answered_only_when_the_provider_has_recorded_it)
{
    start_one();
    ck_assert_int_eq(bench_put(A, 101, "k", 5000), 0);
    bench_peers[P].keeps_records = true;
    bench_remove_ask(A, 101, "k", EGM_FORCE);
    ck_assert(!bench_has_reply(A));
    ck_assert(!bench_exists(B, 102, "k"));
    bench_pass(200);
    ck_assert(!bench_has_reply(A));
    bench_peers[P].keeps_records = false;
    bench_settle();
    ck_assert_int_eq(bench_results_reply(A, EGM_MSG_REMOVE_REPLY), 0);
    bench_stop();
}
END_TEST

START_TEST(remove_is_answered_when_its_provider_is_lost_meanwhile)
{
    start_one();
    ck_assert_int_eq(bench_put(A, 101, "k", 5000), 0);
    bench_peers[P].keeps_records = true;
    bench_remove_ask(A, 101, "k", EGM_FORCE);
    bench_disconnect(P);
    ck_assert_int_eq(bench_results_reply(A, EGM_MSG_REMOVE_REPLY), 0);
    bench_stop();
}
END_TEST

START_TEST(remove_all_by_force_hides_all_at_once_and_puts_begun_before_cannot_seal)
{
    uint64_t count;
    start_one();
    for (int i = 0; i < 5; i++) {
        char key[8] = {'k', (char)('0' + i)};
        ck_assert_int_eq(bench_put(A, 101, key, 5000), 0);
    }
    struct got begun = bench_put_start(A, 101, "late", 5000);
    bench_peers[P].keeps_records = true;
    bench_remove_all_ask(B, 102, EGM_FORCE);
    ck_assert(!bench_has_reply(B)); /* the floor is not recorded yet */
    ck_assert(!bench_exists(A, 101, "k0"));
    bench_peers[P].keeps_records = false;
    bench_settle();
    ck_assert_int_eq(bench_count_reply(B, EGM_MSG_REMOVE_ALL_REPLY, &count), 0);
    ck_assert_uint_eq(count, 5);
    ck_assert_uint_eq(bench_peers[P].floor_count, 1);
    ck_assert_int_lt(bench_put_end(A, 101, begun.generation, 0), 0);
    ck_assert(!bench_exists(A, 101, "late"));
    ck_assert_int_eq(bench_put(A, 101, "k0", 5000), 0);
    ck_assert(bench_exists(A, 101, "k0"));
    bench_pass(100);
    ck_assert_uint_eq(bench_sums().sealed, 2 * EGM_SLOT);
    ck_assert_uint_eq(bench_sums().free, SIZE - EGM_GRANULE - 2 * EGM_SLOT);
    bench_stop();
}
END_TEST

START_TEST(remove_matching_takes_what_matches_and_says_why_a_pattern_is_bad)
{
    uint64_t count;
    struct egm_buf frame;
    start_one();
    ck_assert_int_eq(bench_put(A, 101, "ab1", 5000), 0);
    ck_assert_int_eq(bench_put(A, 101, "ab2", 5000), 0);
    ck_assert_int_eq(bench_put(A, 101, "b", 5000), 0);
    const char *patterns[] = {"ab", "(", ""};
    const int codes[] = {0, EGM_E_INVALID, EGM_E_INVALID};
    for (size_t i = 0; i < EGM_COUNT_OF(patterns); i++) {
        size_t begin = bench_begin(&frame, EGM_MSG_REMOVE_MATCHING);
        egm_put_remove_matching(
            &frame, &(struct egm_remove_matching){
                        .session = 101, .pattern = egm_bytes_of(patterns[i], strlen(patterns[i]))});
        bench_event(A, &frame, begin);
        ck_assert_int_eq(bench_count_reply(A, EGM_MSG_REMOVE_MATCHING_REPLY, &count), codes[i]);
        ck_assert_uint_eq(count, i == 0 ? 2 : 0);
    }
    ck_assert(bench_exists(A, 101, "b"));
    ck_assert(!bench_exists(A, 101, "ab1"));
    bench_stop();
}
END_TEST

START_TEST(prefix_counts_present_keys_up_to_the_first_absent_one)
{
    uint64_t count;
    struct egm_buf frame;
    start_one();
    const char *keys[] = {"k0", "k1", "k2", "k3"};
    ck_assert_int_eq(bench_put(A, 101, "k0", 100), 0);
    ck_assert_int_eq(bench_put(A, 101, "k1", 100), 0);
    ck_assert_int_eq(bench_put(A, 101, "k3", 100), 0);
    size_t begin = bench_begin(&frame, EGM_MSG_PREFIX);
    egm_put_prefix(&frame, &(struct egm_prefix){.session = 101, .key_count = 4});
    struct egm_key_writer writer = {0};
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(egm_put_key(&writer, &frame, keys[i], 2), 0);
    }
    bench_event(A, &frame, begin);
    ck_assert_int_eq(bench_count_reply(A, EGM_MSG_PREFIX_REPLY, &count), 0);
    ck_assert_uint_eq(count, 2);
    bench_stop();
}
END_TEST

START_TEST(two_replicas_lie_at_two_providers_and_one_may_go)
{
    struct got got;
    bench_start();
    bench_mount(P, 1, SIZE);
    bench_mount(Q, 2, SIZE);
    bench_requester(A, 101, P);
    ck_assert_int_eq(bench_slot(Q, 5, 101, EGM_IMPORT_MAP, 1), 0);
    bench_put_ask(A, 101, "k", 5000, (struct bench_put){.replicas = 2});
    bench_items_reply(A, EGM_MSG_PUT_START_REPLY, &got);
    ck_assert_uint_eq(got.replica_count, 2);
    ck_assert_int_eq(bench_put_end(A, 101, got.generation, 0), 0);
    /* And one that is being written while the provider goes, ended long after. */
    bench_put_ask(A, 101, "late", 5000, (struct bench_put){.replicas = 2});
    bench_items_reply(A, EGM_MSG_PUT_START_REPLY, &got);
    ck_assert_int_eq(bench_unmount(P, EGM_UNMOUNT_NOW), 0);
    ck_assert(bench_exists(A, 101, "k"));
    ck_assert_uint_eq(bench_get_start(A, 101, "k", 0).replica_count, 1);
    bench_pass(300);
    ck_assert_int_eq(bench_put_end(A, 101, got.generation, 0), 0);
    ck_assert(bench_exists(A, 101, "late"));
    ck_assert_int_eq(bench_remove(A, 101, "k", EGM_FORCE), 0);
    ck_assert_int_eq(bench_remove(A, 101, "late", EGM_FORCE), 0);
    ck_assert_uint_eq(bench_sums().free, SIZE - EGM_GRANULE);
    bench_stop();
}
END_TEST

START_TEST(larger_than_any_provider_and_no_provider_at_all_are_told_apart)
{
    start_one();
    ck_assert_int_eq(bench_put_start(A, 101, "k", SIZE).status, EGM_E_TOO_LARGE);
    ck_assert_int_eq(bench_unmount(P, EGM_UNMOUNT_NOW), 0);
    ck_assert_int_eq(bench_put_start(A, 101, "k", 100).status, EGM_E_NO_SEGMENT);
    bench_stop();
}
END_TEST

START_TEST(session_that_is_attached_nowhere_is_told_to_attach)
{
    start_one();
    bench_connect(3, EGM_ROLE_REQUESTER);
    ck_assert_int_eq(bench_session(3, 103), 0);
    ck_assert_int_eq(bench_put_start(3, 103, "k", 100).status, EGM_E_NOT_READY);
    bench_stop();
}
END_TEST

static void suspect(uint32_t mount, uint32_t seconds)
{
    struct egm_buf frame;
    size_t begin = bench_begin(&frame, EGM_MSG_SUSPECT);
    egm_put_suspect(&frame,
                    &(struct egm_suspect){.session = 101, .mount = mount, .seconds = seconds});
    bench_event(A, &frame, begin);
}

START_TEST(suspicion_holds_however_many_mounts_are_suspect)
{
    start_one();
    ck_assert_int_eq(bench_put(A, 101, "k", 5000), 0);
    suspect(0, 2);
    for (uint32_t i = 1; i < 20; i++) {
        bench_mount(Q + i, 1 + i, SIZE);
        suspect(i, 10);
    }
    ck_assert(!bench_exists(A, 101, "k"));
    ck_assert(bench_exists(B, 102, "k"));
    suspect(0, 0); /* reached again */
    ck_assert(bench_exists(A, 101, "k"));
    bench_stop();
}
END_TEST

START_TEST(suspect_mount_is_absent_for_who_suspects_it_only)
{
    start_one();
    ck_assert_int_eq(bench_put(A, 101, "k", 5000), 0);
    suspect(0, 1);
    ck_assert(!bench_exists(A, 101, "k"));
    ck_assert(bench_exists(B, 102, "k"));
    bench_pass(1100);
    ck_assert(bench_exists(A, 101, "k"));
    bench_stop();
}
END_TEST

START_TEST(confirmed_checksum_mismatch_removes_the_object_for_all)
{
    struct egm_buf frame;
    struct egm_verify verify;
    start_one();
    ck_assert_int_eq(bench_put(A, 101, "k", 5000), 0);
    uint64_t generation = bench_get_start(A, 101, "k", 0).generation;
    const int answers[] = {0, EGM_E_STALE, EGM_E_CHECKSUM};
    for (size_t i = 0; i < EGM_COUNT_OF(answers); i++) {
        ck_assert(bench_exists(B, 102, "k"));
        size_t begin = bench_begin(&frame, EGM_MSG_MISMATCH);
        egm_put_mismatch(&frame, &(struct egm_mismatch){
                                     .session = 101, .generation = generation, .key_count = 1});
        bench_put_key(&frame, "k");
        bench_event(A, &frame, begin);
        struct egm_cursor cursor = bench_reply(P, EGM_MSG_VERIFY, &frame);
        egm_take_verify(&cursor, &verify);
        ck_assert_uint_eq(verify.generation, generation);
        egm_buf_release(&frame);
        egm_buf_init(&frame, MIB);
        begin = egm_frame_begin(&frame, EGM_MSG_VERIFY_REPLY, generation);
        egm_put_result(&frame, &(struct egm_result){.status = egm_status_to_wire(answers[i])});
        bench_event(P, &frame, begin);
    }
    ck_assert(!bench_exists(B, 102, "k"));
    bench_stop();
}
END_TEST

EGM_TEST_MAIN("core_master_puts", put_value_is_found_by_everybody_with_its_size_checksum_and_place,
              put_of_a_present_key_is_told_so_and_changes_nothing,
              first_of_two_concurrent_puts_seals_and_both_are_told_yes,
              upsert_swaps_at_its_end_and_never_writes_in_place,
              put_given_up_by_its_writer_gives_its_places_back,
              full_pool_evicts_and_the_parked_put_goes_on_when_the_provider_has_recorded_it,
              batch_gives_way_parks_in_the_middle_and_loses_no_key,
              parked_put_ends_at_its_deadline_when_no_place_comes_back,
              holds_order_eviction_but_never_starve_a_put,
              hard_pinned_and_leased_objects_stay_and_the_put_is_told_no_space,
              pool_of_two_evicts_where_it_can_although_the_other_half_is_pinned,
              group_goes_whole_or_stays_whole, remove_without_force_is_refused_while_held_or_leased,
              places_of_a_removed_object_come_back_only_when_its_read_lease_ends,
              remove_is_answered_only_when_the_provider_has_recorded_it,
              remove_is_answered_when_its_provider_is_lost_meanwhile,
              remove_all_by_force_hides_all_at_once_and_puts_begun_before_cannot_seal,
              remove_matching_takes_what_matches_and_says_why_a_pattern_is_bad,
              prefix_counts_present_keys_up_to_the_first_absent_one,
              two_replicas_lie_at_two_providers_and_one_may_go,
              larger_than_any_provider_and_no_provider_at_all_are_told_apart,
              session_that_is_attached_nowhere_is_told_to_attach,
              suspicion_holds_however_many_mounts_are_suspect,
              suspect_mount_is_absent_for_who_suspects_it_only,
              confirmed_checksum_mismatch_removes_the_object_for_all)
