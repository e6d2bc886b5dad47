/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between a requester's memory and a pool, with the checksum computed on the way.
 *
 * Both sides are lists of pieces (struct iovec) of equal total length; the cuts on the two sides
 * are independent. One walk over both lists serves put and get:
 *
 *   IN  (put)  user memory -> pool.  Hashes the source, then stores it.
 *   OUT (get)  pool -> user memory.  Hashes what is delivered, never the pool.
 *
 * The work goes span by span: a span ends with a piece of either side or with a leaf of the
 * checksum, so that a byte which was hashed is stored while it is still in the nearest caches, and
 * memory is read once.
 *
 * OUT and torn sources. Somebody may rewrite the pool while we read it (that is found out later,
 * by the fence table or the checksum). So hashing the pool and copying it would be two reads that
 * may see different bytes. OUT therefore either copies and hashes the destination, or, where
 * stores bypass the cache, copies 4 KiB into a buffer on the stack, hashes that and stores exactly
 * it. Both hash the delivered bytes. IN reads its source twice. A caller that changes its buffer
 * during its own put gets a stored checksum that fits no bytes, so that later gets fail; no wrong
 * bytes are ever reported as right.
 *
 * Kernels. "plain" is memcpy. "nt" (x86-64) stores past the cache, which saves reading each
 * destination line before overwriting it. Which one wins depends on the machine, so
 * egm_copy_probe() measures at start, per direction. Objects of at most EGM_COPY_SMALL_BYTES
 * always use plain: they profit from staying in the cache.
 *
 * Steps. A mover must look at its lease at least once per MiB, so a copy advances by
 * egm_copy_step(c, max). When a step returns, its bytes are visible to any CPU that later sees a
 * store which this thread makes (the step ends with the fence that stores past the cache need),
 * and the library touches nothing until the next step: a copy may be dropped between steps, there
 * is nothing to release.
 *
 * Threading: a struct egm_copy belongs to one thread at a time; the policy is process-wide and may
 * be read and set by any. Ownership: lists, memory and checksum are borrowed from init to the last
 * step. Not done here: checking generations, leases or bounds of extents; GPU memory. */
#ifndef EGM_MOVER_COPY_H
#define EGM_MOVER_COPY_H

#include "egmstore/errors.h"
#include "mover/checksum.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* Up to here a copy stays in the caches whatever the policy. */
#define EGM_COPY_SMALL_BYTES 65536u
/* A get whose whole batch is no larger is plain: whoever asked reads it next, and its own source
 * may be cached. Measured for 2 MiB: plain 315 us, non-temporal 380 us; a put of that size is the
 * other way round. */
#define EGM_COPY_CACHED_OUT_BYTES (2u << 20)

enum egm_copy_direction {
    EGM_COPY_IN,  /* put: user memory to pool */
    EGM_COPY_OUT, /* get: pool to user memory */
    EGM_COPY_DIRECTION_COUNT
};

/* Pieces in order; empty pieces are allowed, and so is an empty list (pieces may then be NULL). */
struct egm_copy_list {
    const struct iovec *pieces;
    size_t count;
};

struct egm_copy_kernel;

/* A place in a list; always on a byte, or at the end. */
struct egm_copy_cursor {
    const struct iovec *piece;
    const struct iovec *end;
    size_t offset; /* in *piece */
};

/* One copy under way. */
struct egm_copy {
    struct egm_copy_cursor dst_;
    struct egm_copy_cursor src_;
    const struct egm_copy_kernel *kernel_;
    struct egm_checksum *checksum_; /* NULL: bytes are not hashed */
    size_t done_bytes_;
    size_t left_bytes_;
    size_t unit_bytes_; /* power of two: spans do not cross its multiples */
    enum egm_copy_direction direction_;
};

/* Sums the sizes of a list. Returns 0, or EGM_E_LIMIT if the sum does not fit. */
EGM_MUST_CHECK int egm_copy_list_bytes(struct egm_copy_list list, size_t *ret_bytes);

/* Prepares a copy of `src` to `dst`, which must not overlap. `checksum` may be NULL; else it has
 * been initialised for exactly as many bytes, and is complete when the copy is. Returns 0;
 * EGM_E_INVALID if the lists differ in length; EGM_E_LIMIT if a length does not fit. */
EGM_MUST_CHECK int egm_copy_init(struct egm_copy *c, enum egm_copy_direction direction,
                                 struct egm_copy_list dst, struct egm_copy_list src,
                                 struct egm_checksum *checksum);

/* The copy is one of a batch of `batch_bytes` together, which then decides the kernel instead of
 * its own size. Before the first step. */
void egm_copy_join_batch(struct egm_copy *c, uint64_t batch_bytes);

/* Takes the next min(max_bytes, what is left) bytes out of `c` as a copy of their own, which
 * another thread may step. `c` has no checksum and stands at a multiple of the checksum's leaf;
 * `checksum` is the part's (NULL, or initialised by egm_checksum_init_leaves). */
void egm_copy_split(struct egm_copy *c, size_t max_bytes, struct egm_checksum *checksum,
                    struct egm_copy *ret_part);

/* Copies the next min(max_bytes, what is left) bytes and returns how many; 0 only if max_bytes is
 * 0 or all is done. */
size_t egm_copy_step(struct egm_copy *c, size_t max_bytes);

/* Bytes not yet copied. */
size_t egm_copy_left(const struct egm_copy *c);

/* Init and all steps at once, with the errors of egm_copy_init. For callers that watch no lease.
 * @blocking */
EGM_MUST_CHECK int egm_copy_all(enum egm_copy_direction direction, struct egm_copy_list dst,
                                struct egm_copy_list src, struct egm_checksum *checksum);

/* Chooses the policy for this process: the one that EGMSTORE_COPY names, else the faster one of a
 * measurement that takes at most about 30 ms and 1 MiB. Call it once at start, before other
 * threads change the environment; without it, plain is used. Returns 0; EGM_E_INVALID or
 * EGM_E_UNSUPPORTED for a bad EGMSTORE_COPY (see egm_copy_use_policy); -errno if there is no
 * memory to measure with. On error the policy stays as it was. @blocking */
EGM_MUST_CHECK int egm_copy_probe(void);

/* Sets the policy of both directions: "plain", "nt" (the widest that runs here), or one kernel by
 * its name ("nt-sse2", "nt-avx512"). Returns 0; EGM_E_INVALID for an unknown name;
 * EGM_E_UNSUPPORTED if this CPU has no such kernel. Copies that are under way keep theirs.
 * @threadsafe */
EGM_MUST_CHECK int egm_copy_use_policy(const char *name);

/* Name of the kernel that a direction uses now. @threadsafe */
const char *egm_copy_policy_name(enum egm_copy_direction direction);

#endif
