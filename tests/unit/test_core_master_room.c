/* SPDX-License-Identifier: Apache-2.0 */
/* The master core: where room is found and made, and that long walks give way. */
#include "test_core_master.h"

enum {
    A = 1,
    B = 2,
    P = 10,
    Q = 11,
    SIZE = 2 * MIB,
    MOST = 4096
};

static struct got gots[MOST];

/* Keys "b<first>" and so on. */
static void put_keys(struct egm_buf *frame, uint32_t first, uint32_t count)
{
    static char names[MOST][12];
    struct egm_key_writer writer = {0};
    for (uint32_t i = 0; i < count; i++) {
        int n = snprintf(names[i], sizeof names[i], "b%u", first + i);
        ck_assert_int_eq(egm_put_key(&writer, frame, names[i], (size_t)n), 0);
    }
}

/* One PUT_START of that many keys, all of one group unless it is ""; what came is in `gots`. */
static void start_group(uint32_t first, uint32_t count, uint64_t size, const char *group)
{
    struct egm_buf frame;
    struct egm_items_reply head;
    size_t begin = bench_begin(&frame, EGM_MSG_PUT_START);
    egm_put_put_start(
        &frame, &(struct egm_put_start){.session = 101, .deadline_ms = 2000, .key_count = count});
    for (uint32_t i = 0; i < count; i++) {
        egm_put_want(&frame,
                     &(struct egm_want){.size = size, .group = egm_bytes_of(group, strlen(group))});
    }
    put_keys(&frame, first, count);
    bench_event(A, &frame, begin);
    struct egm_cursor cursor = bench_reply(A, EGM_MSG_PUT_START_REPLY, &frame);
    egm_take_items_reply(&cursor, &head);
    ck_assert_uint_eq(head.count, count);
    for (uint32_t i = 0; i < count; i++) {
        bench_take_entry(&cursor, &gots[i]);
    }
    egm_buf_release(&frame);
}

static void start_batch(uint32_t first, uint32_t count, uint64_t size)
{
    start_group(first, count, size, "");
}

static void end_batch(uint32_t count)
{
    struct egm_buf frame;
    size_t begin = bench_begin(&frame, EGM_MSG_PUT_END);
    egm_put_put_end(&frame, &(struct egm_put_end){.session = 101, .count = count});
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_int_eq(gots[i].status, 0);
        egm_put_ended(&frame, &(struct egm_ended){.generation = gots[i].generation});
    }
    bench_event(A, &frame, begin);
    (void)bench_reply(A, EGM_MSG_PUT_END_REPLY, &frame);
    egm_buf_release(&frame);
}

static void lease_batch(uint32_t first, uint32_t count, uint64_t op)
{
    struct egm_buf frame;
    size_t begin = bench_begin(&frame, EGM_MSG_GET_START);
    egm_put_get_start(&frame,
                      &(struct egm_get_start){
                          .session = 101, .op = op, .deadline_ms = 60000, .key_count = count});
    put_keys(&frame, first, count);
    bench_event(A, &frame, begin);
    (void)bench_reply(A, EGM_MSG_GET_START_REPLY, &frame);
    egm_buf_release(&frame);
}

static void put_pinned(const char *key, uint64_t size)
{
    struct got got;
    bench_put_ask(A, 101, key, size, (struct bench_put){.flags = EGM_HARD_PIN});
    bench_items_reply(A, EGM_MSG_PUT_START_REPLY, &got);
    ck_assert_int_eq(got.status, 0);
    ck_assert_int_eq(bench_put_end(A, 101, got.generation, 0), 0);
}

static void pass_seconds(int seconds)
{
    for (int i = 0; i < seconds; i++) {
        bench_pass(1000);
        ck_assert_int_eq(bench_ping(A, 101, 0, NULL), 0);
    }
}

/* ---- eviction ---- */
START_TEST(large_object_in_use_does_not_hide_a_small_idle_one_from_eviction)
{
    bench_start();
    bench_mount(P, 1, SIZE);
    bench_requester(A, 101, P);
    ck_assert_int_eq(bench_put(A, 101, "read", 16 * EGM_GRANULE), 0);
    ck_assert_int_eq(bench_put(A, 101, "idle", EGM_GRANULE), 0);
    put_pinned("pinned", 14 * EGM_GRANULE);
    ck_assert_int_eq(bench_get_start(A, 101, "read", 1).status, 0);
    ck_assert_int_eq(bench_put(A, 101, "new", EGM_GRANULE), 0);
    ck_assert(!bench_exists(A, 101, "idle"));
    ck_assert(bench_exists(A, 101, "read"));
    bench_stop();
}
END_TEST

START_TEST(newest_object_is_not_evicted_before_older_ones_that_are_merely_held)
{
    bench_start();
    bench_mount(P, 1, SIZE);
    bench_requester(A, 101, P);
    ck_assert_int_eq(bench_put(A, 101, "held", 20 * EGM_GRANULE), 0);
    ck_assert_int_eq(bench_get_start(A, 101, "held", 0).status, 0);
    ck_assert_int_eq(bench_put(A, 101, "newest", EGM_GRANULE), 0);
    ck_assert_int_eq(bench_put(A, 101, "large", 20 * EGM_GRANULE), 0);
    ck_assert(bench_exists(A, 101, "newest"));
    ck_assert(!bench_exists(A, 101, "held"));
    bench_stop();
}
END_TEST

START_TEST(second_replica_is_evicted_for_the_sake_of_its_own_mount)
{
    struct got got;
    struct egm_buf frame;
    bench_start();
    bench_mount(P, 1, SIZE);
    bench_mount(Q, 2, SIZE);
    bench_requester(A, 101, P);
    ck_assert_int_eq(bench_slot(Q, 5, 101, EGM_IMPORT_MAP, 1), 0);
    bench_put_ask(A, 101, "two", 31 * EGM_GRANULE, (struct bench_put){.replicas = 2});
    bench_items_reply(A, EGM_MSG_PUT_START_REPLY, &got);
    ck_assert_uint_eq(got.replica_count, 2);
    ck_assert_int_eq(bench_put_end(A, 101, got.generation, 0), 0);
    /* The first one's mount is out of this session's reach; the object stands in its queue. */
    size_t begin = bench_begin(&frame, EGM_MSG_SUSPECT);
    egm_put_suspect(&frame,
                    &(struct egm_suspect){.session = 101, .mount = got.mount, .seconds = 5});
    bench_event(A, &frame, begin);
    ck_assert_int_eq(bench_put(A, 101, "new", EGM_GRANULE), 0);
    ck_assert(!bench_exists(A, 101, "two"));
    bench_stop();
}
END_TEST

START_TEST(put_looks_on_turn_after_turn_among_thousands_of_objects_in_use)
{
    const uint32_t granules = 219;
    const uint32_t count = granules * EGM_SLOTS_PER_GRANULE;
    bench_start();
    bench_mount(P, 1, (granules + 1) * EGM_GRANULE);
    bench_requester(A, 101, P);
    start_batch(0, count, EGM_SLOT);
    end_batch(count);
    ck_assert_uint_eq(bench_sums().free, 0);
    lease_batch(0, count - 1, 1);
    lease_batch(count - 1, 1, 0); /* hit like the others, but not in use */
    ck_assert_int_eq(bench_put(A, 101, "new", EGM_SLOT), 0);
    ck_assert_uint_eq(egm_master_totals(bench).evicted_count, 1);
    ck_assert_int_eq(bench_get_start(A, 101, "new", 2).status, 0);
    ck_assert_int_eq(bench_put_start(A, 101, "none", EGM_SLOT).status, EGM_E_NO_SPACE);
    bench_op_end(A, 101, 1);
    ck_assert_int_eq(bench_put(A, 101, "again", EGM_SLOT), 0);
    bench_stop();
}
END_TEST

/* Turns that the master takes until the put of one slot, handed over now, is refused. */
static int turns_until_refused(void)
{
    int turns = 0;
    struct got got;
    bench_hand_put(A, 101, "none", EGM_SLOT);
    while (!bench_has_reply(A) && turns < 100000) {
        (void)egm_master_run(bench, bench_now);
        turns++;
    }
    bench_items_reply(A, EGM_MSG_PUT_START_REPLY, &got);
    ck_assert_int_eq(got.status, EGM_E_NO_SPACE);
    return turns;
}

/* Each mount is searched once, over several turns, in whatever order: the search ends. */
START_TEST(put_that_no_mount_of_several_can_serve_is_told_so)
{
    enum {
        MOUNTS = 6,
        GRANULES = 100,
        EACH = GRANULES * EGM_SLOTS_PER_GRANULE
    };
    bench_start();
    for (uint32_t i = 0; i < MOUNTS; i++) {
        bench_mount(P + i, 1 + i, (GRANULES + 1) * EGM_GRANULE);
    }
    bench_requester(A, 101, P);
    for (uint32_t i = 1; i < MOUNTS; i++) {
        ck_assert_int_eq(bench_slot(P + i, 5, 101, EGM_IMPORT_MAP, 1), 0);
    }
    for (uint32_t i = 0; i < MOUNTS; i++) {
        start_batch(i * EACH, EACH, EGM_SLOT);
        end_batch(EACH);
        lease_batch(i * EACH, EACH, 1 + i);
    }
    ck_assert_uint_eq(bench_sums().free, 0);
    ck_assert_int_lt(turns_until_refused(), 60);
    bench_op_end(A, 101, 1);
    ck_assert_int_eq(bench_put(A, 101, "new", EGM_SLOT), 0);
    bench_stop();
}
END_TEST

/* A look at an object of a group looks at its members: they count, or a turn would be long. */
START_TEST(members_of_groups_count_as_looks_of_a_turn)
{
    enum {
        GROUPS = 20,
        MEMBERS = 80,
        OBJECTS = GROUPS * MEMBERS
    };
    char group[8];
    int turns[2];
    for (int is_grouped = 0; is_grouped < 2; is_grouped++) {
        bench_start();
        bench_mount(P, 1, (OBJECTS / EGM_SLOTS_PER_GRANULE + 1) * EGM_GRANULE);
        bench_requester(A, 101, P);
        for (uint32_t g = 0; g < GROUPS; g++) {
            snprintf(group, sizeof group, "g%u", g);
            start_group(g * MEMBERS, MEMBERS, EGM_SLOT, is_grouped ? group : "");
            end_batch(MEMBERS);
            lease_batch(is_grouped ? g * MEMBERS + MEMBERS / 2 : g * MEMBERS,
                        is_grouped ? 1 : MEMBERS, g + 1);
        }
        turns[is_grouped] = turns_until_refused();
        bench_stop();
    }
    ck_assert_int_gt(turns[1], 5 * turns[0]);
}
END_TEST

/* ---- placement ---- */
static uint32_t count_at(uint32_t mount, uint32_t count)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_int_eq(gots[i].status, 0);
        found += gots[i].mount == mount;
    }
    return found;
}

START_TEST(new_mount_gets_an_equal_share_of_puts_until_it_is_no_longer_new)
{
    bench_start();
    bench_mount(P, 1, 4 * SIZE);
    bench_requester(A, 101, P);
    pass_seconds(31);
    ck_assert_int_eq(bench_put(A, 101, "half", 2 * SIZE), 0);
    bench_mount(Q, 2, 4 * SIZE);
    ck_assert_int_eq(bench_slot(Q, 5, 101, EGM_IMPORT_MAP, 1), 0);
    start_batch(0, 400, EGM_SLOT);
    uint32_t share = count_at(1, 400);
    ck_assert_msg(share > 160 && share < 240, "%u of 400 on the new mount", share);
    end_batch(400);
    pass_seconds(31);
    start_batch(400, 400, EGM_SLOT);
    ck_assert_uint_eq(count_at(1, 400), 400); /* it is the emptier of the two */
    end_batch(400);
    bench_stop();
}
END_TEST

START_TEST(fuller_mount_gets_no_more_for_being_new)
{
    bench_start();
    bench_mount(P, 1, 4 * SIZE);
    bench_requester(A, 101, P);
    pass_seconds(31);
    bench_mount(Q, 2, SIZE);
    ck_assert_int_eq(bench_slot(Q, 5, 101, EGM_IMPORT_MAP, 1), 0);
    start_batch(0, 400, EGM_SLOT);
    ck_assert_uint_eq(count_at(0, 400), 400);
    end_batch(400);
    bench_stop();
}
END_TEST

START_TEST(consecutive_keys_of_a_batch_alternate_numa_nodes)
{
    bench_segment_count = 2;
    bench_start();
    bench_mount(P, 1, SIZE);
    bench_requester(A, 101, P);
    ck_assert_int_eq(bench_slot_at(P, 1, 1, 101, EGM_IMPORT_MAP, 1), 0);
    start_batch(0, 16, EGM_GRANULE);
    for (uint32_t i = 1; i < 16; i++) {
        ck_assert_uint_eq(gots[i].mount, 1 - gots[i - 1].mount);
    }
    end_batch(16);
    /* A full node is left out, before anything is evicted for the sake of taking turns. */
    put_pinned("rest", 23 * EGM_GRANULE);
    start_batch(16, 8, EGM_GRANULE);
    ck_assert_uint_eq(count_at(gots[0].mount, 8), 8);
    end_batch(8);
    ck_assert_uint_eq(egm_master_totals(bench).evicted_count, 0);
    bench_stop();
    bench_segment_count = 1;
}
END_TEST

/* ---- walks ---- */
START_TEST(slow_pattern_gives_way_when_matching_took_its_share_of_the_turn)
{
    struct egm_buf frame;
    uint64_t count;
    bench_start();
    bench_mount(P, 1, SIZE);
    bench_requester(A, 101, P);
    start_batch(0, 300, EGM_SLOT);
    end_batch(300);
    bench_match_ns = 20000;
    bench_match_count = 0;
    size_t begin = bench_begin(&frame, EGM_MSG_REMOVE_MATCHING);
    egm_put_remove_matching(
        &frame, &(struct egm_remove_matching){.session = 101, .pattern = egm_bytes_of("b", 1)});
    egm_frame_end(&frame, begin);
    bench_hand(A, &frame);
    egm_buf_release(&frame);
    ck_assert_uint_eq(bench_match_count, 5);
    ck_assert(egm_master_run(bench, bench_now));
    ck_assert_uint_eq(bench_match_count, 10);
    bench_settle();
    ck_assert_uint_eq(bench_match_count, 300);
    ck_assert_int_eq(bench_count_reply(A, EGM_MSG_REMOVE_MATCHING_REPLY, &count), 0);
    ck_assert_uint_eq(count, 300);
    bench_match_ns = 0;
    bench_stop();
}
END_TEST

START_TEST(walk_over_keys_pauses_when_its_looks_are_used_up)
{
    struct egm_bytes key;
    uint32_t cursor = 0;
    uint32_t keys = 0;
    uint32_t pauses = 0;
    enum egm_walk walk = EGM_WALK_KEY;
    bench_start();
    bench_mount(P, 1, SIZE);
    bench_requester(A, 101, P);
    start_batch(0, 300, EGM_SLOT); /* not ended: 300 places of the slab without a key */
    ck_assert_int_eq(bench_put(A, 101, "last", EGM_SLOT), 0);
    while (walk != EGM_WALK_END) {
        uint32_t looks = 100;
        do {
            walk = egm_master_next_key(bench, &cursor, &looks, &key);
            keys += walk == EGM_WALK_KEY;
            pauses += walk == EGM_WALK_PAUSE;
            ck_assert_uint_le(looks, 100);
        } while (walk == EGM_WALK_KEY);
        ck_assert(walk == EGM_WALK_END || looks == 0);
    }
    ck_assert_uint_eq(keys, 1);
    ck_assert_uint_eq(pauses, 3);
    bench_stop();
}
END_TEST

/* ---- records ---- */
START_TEST(provider_with_many_objects_gets_them_told_in_frames_that_it_takes)
{
    const uint32_t batches = EGM_MAX_RECORDS / MOST + 1;
    bench_start();
    bench_mount(P, 1, (uint64_t)(batches + 1) * MOST * EGM_SLOT);
    bench_requester(A, 101, P);
    for (uint32_t i = 0; i < batches; i++) {
        start_batch(i * MOST, MOST, 100);
        end_batch(MOST);
    }
    uint32_t term = bench_peers[P].term;
    bench_disconnect(P);
    bench_peers[P].keeps_leases = true; /* while it waits for its lease nothing is sent */
    bench_peers[P].seal_count = 0;
    bench_connect(P, EGM_ROLE_PROVIDER);
    struct bench_slot slots[] = {{0, A, 101, EGM_IMPORT_MAP}};
    ck_assert_int_eq(
        bench_mount_slots(P, 1, 100, term, (uint64_t)(batches + 1) * MOST * EGM_SLOT, slots, 1), 0);
    bench_pass(200);
    bench_peers[P].keeps_leases = false;
    for (int i = 0; i < 100 && bench_peers[P].seal_count < batches * MOST; i++) {
        bench_pass(100);
        ck_assert_int_eq(bench_ping(A, 101, 0, NULL), 0);
    }
    ck_assert_uint_eq(bench_peers[P].seal_count, batches * MOST);
    bench_stop();
}
END_TEST

EGM_TEST_MAIN("core_master_room", large_object_in_use_does_not_hide_a_small_idle_one_from_eviction,
              newest_object_is_not_evicted_before_older_ones_that_are_merely_held,
              second_replica_is_evicted_for_the_sake_of_its_own_mount,
              put_looks_on_turn_after_turn_among_thousands_of_objects_in_use,
              put_that_no_mount_of_several_can_serve_is_told_so,
              members_of_groups_count_as_looks_of_a_turn,
              new_mount_gets_an_equal_share_of_puts_until_it_is_no_longer_new,
              fuller_mount_gets_no_more_for_being_new,
              consecutive_keys_of_a_batch_alternate_numa_nodes,
              slow_pattern_gives_way_when_matching_took_its_share_of_the_turn,
              walk_over_keys_pauses_when_its_looks_are_used_up,
              provider_with_many_objects_gets_them_told_in_frames_that_it_takes)
