/* SPDX-License-Identifier: Apache-2.0 */
/* How a provider's pool is cut into segments: one per NUMA node, so that a segment never crosses
 * one (DESIGN 2) and the master can let consecutive objects alternate. Pure. */
#ifndef EGM_MEM_PLANNER_H
#define EGM_MEM_PLANNER_H

#include <stdint.h>

/* An object lies in one segment. A pool that would be cut into smaller ones stays whole, or is cut
 * into fewer: the largest object that fits matters more there than which memory is near. */
#define EGM_PLAN_LEAST_BYTES (UINT64_C(1) << 30)

struct egm_plan_segment {
    uint32_t numa_node;
    uint64_t size_bytes;
};

/* Cuts size_bytes into equal shares on the first of the nodes. Shares are multiples of 2 MiB, so
 * that huge pages stay possible; the last one has what is left, a multiple of the granule. Returns
 * the number of segments, 1..node_count. Pre: size_bytes is a multiple of the granule. */
uint32_t egm_plan_segments(uint64_t size_bytes, const uint32_t *nodes, uint32_t node_count,
                           struct egm_plan_segment *ret_segments);

#endif
