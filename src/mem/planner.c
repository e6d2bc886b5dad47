/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/planner.h"

#include "base/checked.h"

#define SHARE_ALIGN (UINT64_C(2) << 20)

uint32_t egm_plan_segments(uint64_t size_bytes, const uint32_t *nodes, uint32_t node_count,
                           struct egm_plan_segment *ret_segments)
{
    uint64_t most = egm_max_u64(size_bytes / EGM_PLAN_LEAST_BYTES, 1);
    uint32_t count = (uint32_t)egm_min_u64(most, node_count);
    uint64_t share = egm_align_down(size_bytes / count, SHARE_ALIGN);

    for (uint32_t i = 0; i < count; i++) {
        uint64_t left = size_bytes - share * i;
        ret_segments[i] = (struct egm_plan_segment){.numa_node = nodes[i],
                                                    .size_bytes = i == count - 1 ? left : share};
    }
    return count;
}
