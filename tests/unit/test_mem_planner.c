/* SPDX-License-Identifier: Apache-2.0 */
/* How a pool is cut over NUMA nodes, with hosts that this one is not. */
#include "base/limits.h"

#include "mem/planner.h"
#include "test.h"

#define MIB(n) ((uint64_t)(n) << 20)
#define GIB(n) ((uint64_t)(n) << 30)

static const uint32_t nodes[] = {0, 1, 4, 5};
static struct egm_plan_segment plan[4];

/* The pieces are the pool, each can be one segment, and none is more than its node's. */
static uint32_t cut(uint64_t size, uint32_t node_count)
{
    uint32_t count = egm_plan_segments(size, nodes, node_count, plan);
    uint64_t sum = 0;
    ck_assert_uint_ge(count, 1);
    ck_assert_uint_le(count, node_count);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_uint_eq(plan[i].numa_node, nodes[i]);
        ck_assert_uint_gt(plan[i].size_bytes, 0);
        ck_assert_uint_eq(plan[i].size_bytes % EGM_GRANULE, 0);
        ck_assert(i == count - 1 || plan[i].size_bytes % MIB(2) == 0);
        sum += plan[i].size_bytes;
    }
    ck_assert_uint_eq(sum, size);
    return count;
}

START_TEST(pool_on_one_node_is_one_segment)
{
    ck_assert_uint_eq(cut(MIB(1), 1), 1);
    ck_assert_uint_eq(cut(GIB(64), 1), 1);
}
END_TEST

START_TEST(pool_on_several_nodes_has_an_equal_segment_on_each)
{
    ck_assert_uint_eq(cut(GIB(64), 2), 2);
    ck_assert_uint_eq(plan[0].size_bytes, GIB(32));
    ck_assert_uint_eq(plan[1].size_bytes, GIB(32));
    ck_assert_uint_eq(cut(GIB(10), 4), 4);
    ck_assert_uint_eq(plan[3].size_bytes, GIB(10) / 4);
    ck_assert_uint_eq(cut(GIB(3) + EGM_GRANULE, 2), 2);
    ck_assert_uint_eq(plan[1].size_bytes, GIB(3) / 2 + EGM_GRANULE);
    ck_assert_uint_eq(cut(GIB(4) - EGM_GRANULE, 3), 3);
}
END_TEST

START_TEST(small_pool_is_not_cut_into_pieces_too_small_for_large_objects)
{
    ck_assert_uint_eq(cut(EGM_GRANULE * 16, 4), 1);
    ck_assert_uint_eq(cut(GIB(2) - EGM_GRANULE, 4), 1);
    ck_assert_uint_eq(cut(GIB(2), 4), 2);
    ck_assert_uint_eq(cut(GIB(3), 4), 3);
}
END_TEST

EGM_TEST_MAIN("mem_planner", pool_on_one_node_is_one_segment,
              pool_on_several_nodes_has_an_equal_segment_on_each,
              small_pool_is_not_cut_into_pieces_too_small_for_large_objects)
