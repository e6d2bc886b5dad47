/* SPDX-License-Identifier: Apache-2.0 */
/* Memory kinds: how a provider obtains the memory of one segment. One ops table per kind: `shm` (a
 * sealed memory file, no GPU); later `vmm` and `egm`.
 *
 * Life of a piece: allocate -> map -> export*, in this order, then release. `stages` remembers
 * what has been done and not undone; every op that makes a stage refuses to make it twice, and
 * release undoes what is there, last first, clearing each stage as it goes. So release may be
 * called after a failure at any point, and again after it failed itself, and never repeats a stage
 * that is finished.
 *
 * Ownership: the caller owns struct egm_mem; ops fill it. export hands out fds that the caller
 * owns. Not threadsafe per piece, except export. */
#ifndef EGM_MEM_MEM_H
#define EGM_MEM_MEM_H

#include "base/detail.h"

#include "os/limits.h"
#include "os/memfd.h"

#include <stdbool.h>
#include <stdint.h>

enum egm_mem_stage {
    EGM_MEM_ALLOCATED = 1u << 0, /* the memory is promised to us */
    EGM_MEM_MAPPED = 1u << 1,    /* in this process, all pages present */
};

struct egm_mem_ops;

struct egm_mem {
    const struct egm_mem_ops *ops; /* NULL: nothing was allocated */
    uint32_t stages;               /* enum egm_mem_stage */
    struct egm_memfd file;
    uint8_t *base; /* NULL unless MAPPED */
};

struct egm_mem_options {
    uint64_t size_bytes; /* a multiple of granularity() */
    bool try_huge;
    bool prefers_node; /* its pages are to come from numa_node; a hint */
    uint32_t numa_node;
    /* Called after each step of populating; may be NULL. */
    void (*progress)(void *arg, uint64_t done, uint64_t total);
    void *progress_arg;
};

struct egm_mem_ops {
    const char *name;
    /* Really creates, exports, imports and copies a small piece; on failure the reason says what
     * is missing. */
    int (*probe)(struct egm_detail *reterr);
    /* Bytes of which a piece's size must be a multiple. */
    uint64_t (*granularity)(void);
    /* Refuses a size that the machine or the cgroup cannot give, with the numbers, before anything
     * is taken. */
    int (*allocate)(const struct egm_mem_options *options, struct egm_mem *ret_mem,
                    struct egm_detail *reterr);
    /* Maps the piece here (children after fork do not get it) and populates its pages, so that
     * none is charged to an importer (DESIGN 6). */
    int (*map)(struct egm_mem *mem, const struct egm_mem_options *options,
               struct egm_detail *reterr);
    /* A new description of the piece for one importer; *ret_fd is the caller's. @threadsafe */
    int (*export)(const struct egm_mem *mem, int *ret_fd, struct egm_detail *reterr);
    int (*release)(struct egm_mem *mem, struct egm_detail *reterr);
};

extern const struct egm_mem_ops egm_mem_shm;

/* "shm", or "auto"/NULL: the best kind whose probe passes; a fallback is logged once. A kind asked
 * for by name that does not work is EGM_E_UNSUPPORTED with its reason; an unknown name
 * EGM_E_INVALID. */
EGM_MUST_CHECK int egm_mem_choose(const char *name, const struct egm_mem_ops **ret_ops,
                                  struct egm_detail *reterr);

/* 0, or -ENOMEM (machine) / EGM_E_LIMIT (cgroup) with the numbers when `size` bytes cannot be had.
 * Pure. */
EGM_MUST_CHECK int egm_mem_check_room(uint64_t size_bytes, const struct egm_limits *limits,
                                      struct egm_detail *reterr);

#endif
