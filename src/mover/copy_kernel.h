/* SPDX-License-Identifier: Apache-2.0 */
/* How copy.c stores bytes, and what copy_policy.c needs to measure it. Private to copy*.c.
 *
 * Files that implement a kernel hold nothing else: they may be compiled for instructions that the
 * CPU at hand does not have. */
#ifndef EGM_MOVER_COPY_KERNEL_H
#define EGM_MOVER_COPY_KERNEL_H

#include "mover/copy.h"

#include <stddef.h>
#include <stdint.h>

/* Smaller spans are not streamed: too much of them would be partial lines at the ends. */
#define EGM_COPY_STREAM_LEAST 1024u

struct egm_copy_kernel {
    const char *name;
    /* Copies at least EGM_COPY_STREAM_LEAST bytes past the cache, and fetches `ahead_size` bytes
     * from `ahead` (the source bytes needed next) into the cache meanwhile. NULL: the kernel is
     * memcpy. */
    void (*stream)(void *dst, const void *src, size_t size, const void *ahead, size_t ahead_size);
    /* Makes streamed stores visible before the stores that follow. NULL like stream. */
    void (*settle)(void);
    /* Drops these bytes from all caches, so that a measurement meets cold memory. NULL like stream.
     */
    void (*evict)(const void *data, size_t size);
};

extern const struct egm_copy_kernel egm_copy_plain;
#if defined(__x86_64__)
extern const struct egm_copy_kernel egm_copy_nt_sse2;
extern const struct egm_copy_kernel egm_copy_nt_avx512;
#endif

/* The kernel for a copy of so many bytes in a batch of so many. */
const struct egm_copy_kernel *egm_copy_policy(enum egm_copy_direction direction, size_t bytes,
                                              uint64_t batch_bytes);

/* The widest kernel past the cache that this CPU runs, or NULL. */
const struct egm_copy_kernel *egm_copy_best_nt(void);

/* Replaces the kernel of a copy that has been initialised and not yet stepped. */
void egm_copy_force_kernel(struct egm_copy *c, const struct egm_copy_kernel *kernel);

#endif
