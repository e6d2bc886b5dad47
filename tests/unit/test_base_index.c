/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index against a plain model: an array that says which slots are stored and under which hash.
 * Hash functions of different quality are used, the worst of which sends everything into few runs,
 * some across the table's end.
 */
#include "base/index.h"

#include "test.h"

/* Check's own assertions write a mark to a file each time, too slow for millions of them. */
#define EXPECT(x) ((x) ? (void)0 : ck_abort_msg("expected: %s", #x))

static uint64_t random_state;

/* xorshift64: repeatable numbers for test cases */
static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static uint64_t mixed_hash(uint32_t i)
{
    uint64_t h = (i + 1) * UINT64_C(0xD6E8FEB86659FD93);

    return (h ^ (h >> 32)) * UINT64_C(0xD6E8FEB86659FD93);
}

static uint64_t identity_hash(uint32_t i)
{
    return i;
}

/* Homes at the very end of any table: runs wrap around. The multiplier's inverse undoes the index's
 * own mixing. */
static uint64_t wrapping_hash(uint32_t i)
{
    return (UINT64_MAX - (uint64_t)(i % 7) * (UINT64_C(1) << 32)) * UINT64_C(0xF1DE83E19937733D);
}

static size_t find_count(const struct egm_index *ix, uint64_t hash, uint32_t wanted)
{
    struct egm_index_iter it;
    uint32_t slot;
    size_t count = 0;

    egm_index_find(ix, hash, &it);
    while (egm_index_next(&it, &slot)) {
        count += slot == wanted;
    }
    EXPECT(!egm_index_next(&it, &slot));
    return count;
}

/* Random inserts and removes over `universe` slots, compared with the model at intervals and at the
 * end. */
static void run_model(uint64_t (*hash)(uint32_t), uint32_t universe, uint32_t step_count,
                      uint32_t check_every)
{
    struct egm_index ix;
    bool *is_stored = egm_calloc(universe, sizeof(bool));
    size_t count = 0;

    random_state = 88172645463325252u;
    ck_assert_ptr_nonnull(is_stored);
    EXPECT(egm_index_init(&ix, 0, /*pieces=*/NULL) == 0);
    for (uint32_t step = 0; step < step_count; step++) {
        uint32_t slot = (uint32_t)(next_random() % universe);
        /* thirds of the run that grow, shrink and grow again */
        bool wants_insert = next_random() % 100 < (step / (step_count / 3 + 1) == 1 ? 30 : 80);

        if (wants_insert && !is_stored[slot]) {
            EXPECT(egm_index_insert(&ix, hash(slot), slot) == 0);
            is_stored[slot] = true;
            count++;
        } else if (!wants_insert) {
            EXPECT(egm_index_remove(&ix, hash(slot), slot) == is_stored[slot]);
            count -= is_stored[slot];
            is_stored[slot] = false;
        }
        EXPECT(egm_index_count(&ix) == count);
        if (step % check_every != 0 && step + 1 != step_count) {
            continue;
        }
        for (uint32_t i = 0; i < universe; i++) {
            EXPECT(find_count(&ix, hash(i), i) == is_stored[i]);
        }
    }
    for (uint32_t i = 0; i < universe; i++) {
        EXPECT(egm_index_remove(&ix, hash(i), i) == is_stored[i]);
    }
    EXPECT(egm_index_count(&ix) == 0);
    egm_index_release(&ix);
    egm_free(is_stored);
}

START_TEST(small_index_agrees_with_the_model_at_every_step)
{
    run_model(mixed_hash, 60, 3000, 1);
    run_model(identity_hash, 60, 3000, 1);
}
END_TEST

START_TEST(runs_over_the_tables_end_agree_with_the_model)
{
    run_model(wrapping_hash, 90, 3000, 1);
}
END_TEST

START_TEST(large_index_agrees_with_the_model)
{
    run_model(mixed_hash, 100000, 400000, 150000);
    run_model(identity_hash, 100000, 400000, 150000);
}
END_TEST

START_TEST(wrapping_hash_really_wraps)
{
    struct egm_index ix;
    bool was_wrapped = false;

    ck_assert_int_eq(egm_index_init(&ix, 0, /*pieces=*/NULL), 0);
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_int_eq(egm_index_insert(&ix, wrapping_hash(i), i), 0);
    }
    /* with homes at the end, position 0 can only be taken by wrapping */
    was_wrapped = ix.now_.chunks_[0]->slot_plus1_ != 0;
    ck_assert(was_wrapped);
    egm_index_release(&ix);
}
END_TEST

START_TEST(equal_hashes_are_all_offered)
{
    struct egm_index ix;
    struct egm_index_iter it;
    uint32_t slot;
    uint64_t seen = 0;

    ck_assert_int_eq(egm_index_init(&ix, 4, /*pieces=*/NULL), 0);
    for (uint32_t i = 0; i < 40; i++) {
        ck_assert_int_eq(egm_index_insert(&ix, 5, i), 0);
    }
    egm_index_find(&ix, 5, &it);
    while (egm_index_next(&it, &slot)) {
        ck_assert_uint_eq(seen & (UINT64_C(1) << slot), 0);
        seen |= UINT64_C(1) << slot;
    }
    ck_assert_uint_eq(seen, (UINT64_C(1) << 40) - 1);
    egm_index_release(&ix);
}
END_TEST

START_TEST(equal_pairs_are_counted)
{
    struct egm_index ix;

    ck_assert_int_eq(egm_index_init(&ix, 0, /*pieces=*/NULL), 0);
    ck_assert_int_eq(egm_index_insert(&ix, 5, 9), 0);
    ck_assert_int_eq(egm_index_insert(&ix, 5, 9), 0);
    ck_assert_uint_eq(find_count(&ix, 5, 9), 2);
    ck_assert(egm_index_remove(&ix, 5, 9));
    ck_assert_uint_eq(find_count(&ix, 5, 9), 1);
    ck_assert(!egm_index_remove(&ix, 5, 8));
    ck_assert(egm_index_remove(&ix, 5, 9));
    ck_assert(!egm_index_remove(&ix, 5, 9));
    egm_index_release(&ix);
}
END_TEST

static uint32_t chunk_count(const struct egm_index_table *t)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < UINT32_C(1) << (t->bits_ - t->chunk_bits_); i++) {
        count += t->chunks_[i] != NULL;
    }
    return count;
}

START_TEST(growth_moves_few_entries_and_gets_few_chunks_a_step)
{
    struct egm_index ix;
    uint32_t now_before = 0;
    uint32_t growth_count = 0;
    uint32_t since_growth = 0;

    EXPECT(egm_index_init(&ix, 0, /*pieces=*/NULL) == 0);
    for (uint32_t i = 0; i < 200000; i++) {
        uint32_t left_before = ix.left_;
        bool was_growing = ix.old_.chunks_ != NULL;

        EXPECT(egm_index_insert(&ix, mixed_hash(i), i) == 0);
        if (was_growing && ix.old_.chunks_) {
            EXPECT(left_before - ix.left_ <= 32);
        }
        if (ix.now_.bits_ != now_before) {
            /* X3: the table before was emptied in time */
            growth_count++;
            now_before = ix.now_.bits_;
            since_growth = 0;
        }
        if (ix.old_.chunks_) {
            EXPECT(chunk_count(&ix.now_) <= 2 + since_growth / 128);
        }
        since_growth++;
        egm_index_prefetch(&ix, mixed_hash(i));
    }
    EXPECT(growth_count == 15); /* 16 positions to 2^18, the first counts too */
    egm_index_release(&ix);
}
END_TEST

START_TEST(capacity_given_at_start_needs_no_growth)
{
    struct egm_index ix;
    uint32_t bits;

    EXPECT(egm_index_init(&ix, 50000, /*pieces=*/NULL) == 0);
    bits = ix.now_.bits_;
    for (uint32_t i = 0; i < 50000; i++) {
        EXPECT(egm_index_insert(&ix, mixed_hash(i), i) == 0);
    }
    EXPECT(ix.now_.bits_ == bits);
    ck_assert_ptr_null(ix.old_.chunks_);
    egm_index_release(&ix);
    egm_index_release(&ix);
    EXPECT(egm_index_init(&ix, UINT32_MAX, /*pieces=*/NULL) == EGM_E_LIMIT);
}
END_TEST

START_TEST(memory_per_entry_stays_low)
{
    struct egm_index ix;
    size_t bytes = 0;

    EXPECT(egm_index_init(&ix, 0, /*pieces=*/NULL) == 0);
    for (uint32_t i = 0; i < 160000; i++) {
        EXPECT(egm_index_insert(&ix, mixed_hash(i), i) == 0);
    }
    ck_assert_ptr_null(ix.old_.chunks_);
    for (uint32_t i = 0; i < UINT32_C(1) << (ix.now_.bits_ - ix.now_.chunk_bits_); i++) {
        bytes += sizeof(void *);
        bytes += ix.now_.chunks_[i] ? sizeof(struct egm_index_entry) << ix.now_.chunk_bits_ : 0;
    }
    ck_assert_uint_le(bytes / 160000, 14);
    egm_index_release(&ix);
}
END_TEST

/* Enough inserts to allocate several chunks and tables; a failed one must leave everything
 * findable. */
static int grow_and_shrink(void *ctx)
{
    struct egm_index ix;
    uint32_t count = 0;
    int r;

    (void)ctx;
    r = egm_index_init(&ix, 0, /*pieces=*/NULL);
    if (r < 0) {
        return r;
    }
    while (r == 0 && count < 40000) {
        r = egm_index_insert(&ix, mixed_hash(count), count);
        count += r == 0;
    }
    EXPECT(egm_index_count(&ix) == count);
    for (uint32_t i = 0; i < count; i++) {
        EXPECT(find_count(&ix, mixed_hash(i), i) == 1);
    }
    for (uint32_t i = 0; i < count; i++) {
        EXPECT(egm_index_remove(&ix, mixed_hash(i), i));
    }
    egm_index_release(&ix);
    return r;
}

START_TEST(every_failed_allocation_leaves_a_whole_index)
{
    egm_test_sweep(grow_and_shrink, NULL);
}
END_TEST

EGM_TEST_MAIN("base_index", small_index_agrees_with_the_model_at_every_step,
              runs_over_the_tables_end_agree_with_the_model, large_index_agrees_with_the_model,
              wrapping_hash_really_wraps, equal_hashes_are_all_offered, equal_pairs_are_counted,
              growth_moves_few_entries_and_gets_few_chunks_a_step,
              capacity_given_at_start_needs_no_growth, memory_per_entry_stays_low,
              every_failed_allocation_leaves_a_whole_index)
