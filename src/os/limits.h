/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this process may still take, as the kernel tells it: so that a pool that cannot
 * be had is refused before its first page, not by the OOM killer half-way. */
#ifndef EGM_OS_LIMITS_H
#define EGM_OS_LIMITS_H

#include <stdint.h>

#define EGM_NO_LIMIT UINT64_MAX

struct egm_limits {
    uint64_t available_bytes;    /* MemAvailable; EGM_NO_LIMIT: not told */
    uint64_t cgroup_limit_bytes; /* of the tightest cgroup above us; EGM_NO_LIMIT: none */
    uint64_t cgroup_used_bytes;  /* of that cgroup, without page cache that can be dropped */
    uint64_t memlock_bytes;      /* RLIMIT_MEMLOCK, soft */
    uint64_t huge_page_size;     /* of the default size; 0: none */
    uint64_t huge_free_bytes;    /* free and not reserved */
};

/* Never fails: what cannot be read counts as no limit. proc_root and sys_root: NULL means /proc
 * and /sys; tests give trees of their own. @blocking on small files only */
void egm_limits_read(const char *proc_root, const char *sys_root, struct egm_limits *ret_limits);

#endif
