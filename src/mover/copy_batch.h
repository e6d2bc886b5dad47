/* SPDX-License-Identifier: Apache-2.0 */
/* A batch of copies, shared between the calling thread and the helpers of copy_team.h.
 *
 * Items are taken one by one in their order. Whoever takes an item begins it and copies it chunk by
 * chunk (EGM_COPY_CHUNK, whole leaves of the checksum); who finds no item left helps with those
 * that others have begun. Each chunk writes the hashes of its own leaves, and the last one to let
 * go of an item makes the checksum of them, so that it is the same however the item was shared.
 *
 *   item   taken -> begin -> chunk, chunk, ... -> end        begin, end: one thread each
 *                            each: check, copy               any threads, at once
 *
 *   T1 check() comes right before each chunk, on the thread that copies it. The first one that
 * fails gives the item its status; no chunk of it begins after that. T2 end() comes once for each
 * item, also if begin failed, after its last chunk and after what the chunks' threads loaded and
 * stored (the lock orders it). T3 When egm_copy_batch_run returns, no thread touches anything of
 * the batch any more (I7).
 *
 * Statuses are per item: a failed one does not stop the others. What concerns all (a deadline, a
 * store that closes) is seen by the check of each, on every thread, within a chunk.
 *
 * A batch below EGM_COPY_TEAM_LEAST_BYTES never meets the team: no lock is taken. */
#ifndef EGM_MOVER_COPY_BATCH_H
#define EGM_MOVER_COPY_BATCH_H

#include "mover/copy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Entries of an item's own memory for lists: an object's extents, and a usual user's list. */
#define EGM_COPY_SCRATCH 80u

struct egm_copy_item {
    size_t index;
    struct egm_copy_list dst, src; /* equally long; they stay until end() */
    bool is_hashed;
    uint64_t checksum;                      /* for end(): valid if hashed and the status is 0 */
    void *own;                              /* the owner's; NULL at begin */
    struct iovec scratch[EGM_COPY_SCRATCH]; /* the owner's; until end() */
};

struct egm_copy_batch_ops {
    /* Fills dst, src, is_hashed of item->index. 0, or the item's status. */
    int (*begin)(void *arg, struct egm_copy_item *item);
    /* Before the chunk that begins at the item's byte `at`: 0 to go on, or the item's status. */
    int (*check)(void *arg, const struct egm_copy_item *item, uint64_t at);
    /* `status` is 0 when all bytes are copied. */
    void (*end)(void *arg, struct egm_copy_item *item, int status);
    /* Instead of begin and end: there was no memory to begin with. */
    void (*fail)(void *arg, size_t index, int status);
};

struct egm_copy_batch {
    const struct egm_copy_batch_ops *ops;
    void *arg;
    enum egm_copy_direction direction;
    size_t count;
    uint64_t bytes; /* of all items: chooses the kernel and the number of threads */
};

/* Runs the batch; returns when every item has ended. @threadsafe @blocking */
void egm_copy_batch_run(const struct egm_copy_batch *batch);

/* The same with up to `thread_count` threads whatever the bytes, for tests and measurements;
 * returns how many took part. The team must be referenced (copy_team.h) for more than one. */
unsigned egm_copy_batch_run_with(const struct egm_copy_batch *batch, unsigned thread_count);

#endif
