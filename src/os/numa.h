/* SPDX-License-Identifier: Apache-2.0 */
/* NUMA nodes of this host, by system calls of the kernel's own; no library. */
#ifndef EGM_OS_NUMA_H
#define EGM_OS_NUMA_H

#include "egmstore/errors.h"

#include <stdint.h>

/* Above what kernels are built for. */
#define EGM_NUMA_NODES 1024u

struct egm_numa_set {
    uint64_t words[EGM_NUMA_NODES / 64];
};

/* Reads a list as sysfs writes it, "0-3,8"; white space at the end is fine. 0 or EGM_E_INVALID. */
EGM_MUST_CHECK int egm_numa_parse(const char *text, struct egm_numa_set *ret_set);

/* Nodes with processors from whose memory this process may take, ascending, `most` at most. A GPU's
 * memory may be a node too, without processors: it is none of these. Returns their number; one,
 * node 0, where the kernel does not tell. */
uint32_t egm_numa_nodes(uint32_t *ret_nodes, uint32_t most);

/* Pages of [at, at + size) that are not there yet come from that node, while it has any. 0 or
 * -errno. */
EGM_MUST_CHECK int egm_numa_prefer(void *at, uint64_t size, uint32_t node);

#endif
