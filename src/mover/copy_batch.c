/* SPDX-License-Identifier: Apache-2.0 */
#include "mover/copy_batch.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/limits.h"
#include "base/list.h"

#include "mover/copy_team.h"

#include <errno.h>
#include <pthread.h>

#define CHUNK_LEAVES (EGM_COPY_CHUNK / EGM_CHECKSUM_LEAF_BYTES)

_Static_assert(EGM_COPY_CHUNK % EGM_CHECKSUM_LEAF_BYTES == 0, "chunks are whole leaves");

/* An item that somebody has begun. */
struct work {
    struct egm_link link; /* in run->open while is_open; under run->lock */
    struct egm_copy_item item;
    struct egm_copy copy; /* what is not yet given to anybody; under run->lock while is_open */
    uint64_t bytes;
    uint64_t *leaves; /* `few`, or owned; each chunk writes its own */
    uint64_t few[CHUNK_LEAVES];
    bool is_open;          /* others may help; constant from then on */
    unsigned holder_count; /* under run->lock while is_open */
    int status;            /* under run->lock while is_open */
};

struct chunk {
    uint64_t at; /* its first byte of the item */
    struct egm_copy copy;
    struct egm_checksum checksum;
};

/* Under lock when several threads take part; alone the thread needs none. */
struct run {
    const struct egm_copy_batch *batch;
    size_t stride;         /* items taken at once, so that small ones do not fight for the lock */
    size_t next;           /* the first item that nobody has taken */
    unsigned joined_count; /* threads that took part */
    unsigned beginning_count; /* threads that may open an item soon: worth waiting for */
    struct egm_link open;     /* begun, and large enough to be shared */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* open, or beginning_count fell to zero */
};

/* One thread of a run. */
struct part {
    struct run *run;
    struct work *spare; /* memory for an item, kept from the last one; NULL: none */
    bool is_shared;     /* others may take part */
};

static void lock(const struct part *part)
{
    if (part->is_shared) {
        pthread_mutex_lock(&part->run->lock);
    }
}

static void unlock(const struct part *part)
{
    if (part->is_shared) {
        pthread_mutex_unlock(&part->run->lock);
    }
}

/* ---- one item ---- */

static void free_leaves(struct work *work)
{
    if (work->leaves != work->few) {
        egm_free(work->leaves);
    }
    work->leaves = work->few;
}

static int prepare(struct run *run, struct work *work)
{
    const struct egm_copy_batch *batch = run->batch;

    int r = batch->ops->begin(batch->arg, &work->item);
    if (r < 0) {
        return r;
    }
    r = egm_copy_init(&work->copy, batch->direction, work->item.dst, work->item.src, NULL);
    if (r < 0) {
        return r;
    }
    egm_copy_join_batch(&work->copy, batch->bytes);
    work->bytes = egm_copy_left(&work->copy);
    uint64_t leaf_count = egm_checksum_leaf_count(work->bytes);
    if (work->item.is_hashed && leaf_count > CHUNK_LEAVES) {
        work->leaves = egm_alloc(leaf_count * sizeof(*work->leaves));
        if (!work->leaves) {
            work->leaves = work->few;
            return -ENOMEM;
        }
    }
    return 0;
}

static void finish(struct run *run, struct work *work)
{
    if (work->status == 0 && work->item.is_hashed) {
        work->item.checksum = egm_checksum_of_leaves(work->leaves, work->bytes);
    }
    run->batch->ops->end(run->batch->arg, &work->item, work->status);
    free_leaves(work);
}

/* The next chunk of an item, to be copied by its holder. False: there is none. */
static bool take_chunk(struct work *work, struct chunk *chunk)
{
    uint64_t left = egm_copy_left(&work->copy);

    if (work->status < 0 || left == 0) {
        return false;
    }
    chunk->at = work->bytes - left;
    if (work->item.is_hashed) {
        egm_checksum_init_leaves(&chunk->checksum,
                                 work->leaves + chunk->at / EGM_CHECKSUM_LEAF_BYTES,
                                 egm_min_u64(left, EGM_COPY_CHUNK));
    }
    egm_copy_split(&work->copy, EGM_COPY_CHUNK, work->item.is_hashed ? &chunk->checksum : NULL,
                   &chunk->copy);
    return true;
}

/* What a holder does next: true, another chunk. False, it has let go of the item, which it may not
 * touch any more unless it was the last one. */
static bool go_on(const struct part *part, struct work *work, int status, struct chunk *chunk,
                  bool *ret_is_last)
{
    bool is_open = work->is_open;

    if (is_open) {
        lock(part);
    }
    if (work->status == 0) {
        work->status = status;
    }
    bool has_chunk = take_chunk(work, chunk);
    if (!has_chunk) {
        *ret_is_last = --work->holder_count == 0;
        if (is_open && *ret_is_last) {
            egm_list_remove(&work->link);
        }
    }
    if (is_open) {
        unlock(part);
    }
    return has_chunk;
}

/* Copies chunks of an item that we hold until none is left, and finishes it if we are the last to
 * let go. */
static void carry(struct part *part, struct work *work)
{
    const struct egm_copy_batch *batch = part->run->batch;
    struct chunk chunk;
    bool is_last = false;
    int r = 0;

    while (go_on(part, work, r, &chunk, &is_last)) {
        r = batch->ops->check(batch->arg, &work->item, chunk.at); /* T1 */
        if (r == 0) {
            egm_ignore((int)egm_copy_step(&chunk.copy, EGM_COPY_CHUNK), "a chunk is one step");
        }
    }
    if (is_last) {
        finish(part->run, work);
        egm_free(part->spare);
        part->spare = work;
    }
}

/* ---- one thread ---- */

/* Begins an item, and opens it to others if it is worth that. It is ours to carry, also if it
 * failed. */
static void begin(struct part *part, struct work *work, size_t index)
{
    struct run *run = part->run;

    work->item.index = index;
    work->item.own = NULL;
    work->leaves = work->few;
    work->holder_count = 1;
    work->is_open = false;
    work->status = prepare(run, work);
    if (part->is_shared && work->status == 0 && work->bytes > EGM_COPY_CHUNK) {
        lock(part);
        work->is_open = true;
        egm_list_push_back(&run->open, &work->link);
        pthread_cond_broadcast(&run->changed);
        unlock(part);
    }
}

/* Items [first, end) for this thread, counted as beginning until the first one is begun; false when
 * all are taken. */
static bool take_items(struct part *part, size_t *ret_first, size_t *ret_end)
{
    struct run *run = part->run;

    lock(part);
    *ret_first = run->next;
    *ret_end = (size_t)egm_min_u64(run->next + run->stride, run->batch->count);
    run->next = *ret_end;
    bool has_any = *ret_first < *ret_end;
    run->beginning_count += has_any;
    unlock(part);
    return has_any;
}

static void has_begun(struct part *part)
{
    lock(part);
    if (--part->run->beginning_count == 0 && part->is_shared) {
        pthread_cond_broadcast(&part->run->changed);
    }
    unlock(part);
}

static void carry_items(struct part *part, size_t first, size_t end)
{
    const struct egm_copy_batch *batch = part->run->batch;

    for (size_t index = first; index < end; index++) {
        struct work *work = part->spare ? part->spare : egm_alloc(sizeof(*work));
        part->spare = NULL;
        if (work) {
            begin(part, work, index);
        }
        if (index == first) {
            has_begun(part);
        }
        if (work) {
            carry(part, work);
        } else {
            batch->ops->fail(batch->arg, index, -ENOMEM);
        }
    }
}

/* An item of somebody else that has chunks left, held by us from now on; NULL: no such item will
 * come. */
static struct work *find_open(struct part *part)
{
    struct run *run = part->run;
    struct work *found = NULL;

    pthread_mutex_lock(&run->lock);
    while (!found) {
        EGM_LIST_FOR_EACH (link, &run->open) {
            struct work *work = egm_container_of(link, struct work, link);
            if (work->status == 0 && egm_copy_left(&work->copy) > 0) {
                work->holder_count++;
                found = work;
                break;
            }
        }
        if (found || run->beginning_count == 0) {
            break;
        }
        pthread_cond_wait(&run->changed, &run->lock);
    }
    pthread_mutex_unlock(&run->lock);
    return found;
}

static void take_part(void *arg, unsigned thread_count)
{
    struct part part = {.run = arg, .is_shared = thread_count > 1};
    struct work *work;
    size_t first, end;

    lock(&part);
    part.run->joined_count++;
    unlock(&part);
    while (take_items(&part, &first, &end)) {
        carry_items(&part, first, end);
    }
    while (part.is_shared && (work = find_open(&part))) {
        carry(&part, work);
    }
    egm_free(part.spare);
}

/* ---- the batch ---- */

/* Small items by the MiB, but not so many at once that the last thread works alone for long. */
static size_t stride_of(const struct egm_copy_batch *batch)
{
    uint64_t mean = batch->bytes / egm_max_u64(batch->count, 1) + 1;
    uint64_t fair = batch->count / (4u * EGM_COPY_TEAM_MAX);

    return (size_t)egm_max_u64(egm_min_u64(EGM_COPY_CHUNK / mean, fair), 1);
}

static void init(struct run *run, const struct egm_copy_batch *batch)
{
    *run = (struct run){.batch = batch, .stride = stride_of(batch)};
    egm_list_init(&run->open);
    pthread_mutex_init(&run->lock, NULL);
    pthread_cond_init(&run->changed, NULL);
}

static unsigned release(struct run *run)
{
    EGM_ASSERT(egm_list_is_empty(&run->open) && run->next == run->batch->count);
    pthread_cond_destroy(&run->changed);
    pthread_mutex_destroy(&run->lock);
    return run->joined_count;
}

void egm_copy_batch_run(const struct egm_copy_batch *batch)
{
    struct run run;

    init(&run, batch);
    if (batch->bytes < EGM_COPY_TEAM_LEAST_BYTES) {
        take_part(&run, 1);
    } else {
        egm_copy_team_run(take_part, &run);
    }
    egm_ignore((int)release(&run), "who took part is for measurements");
}

unsigned egm_copy_batch_run_with(const struct egm_copy_batch *batch, unsigned thread_count)
{
    struct run run;

    init(&run, batch);
    egm_copy_team_run_with(thread_count, take_part, &run);
    return release(&run);
}
