/* SPDX-License-Identifier: Apache-2.0 */
#include "mover/copy_trial.h"

#include "base/checked.h"

#include "mover/copy_batch.h"
#include "mover/copy_kernel.h"
#include "os/clock.h"

#include <errno.h>
#include <sys/mman.h>

/* As a large batch is: some objects of some MiB, in pieces of 64 KiB on the user's side. */
#define LEAST_BYTES ((size_t)8 << 20)
#define BYTES_PER_THREAD ((size_t)2 << 20)
#define OBJECT_BYTES ((size_t)2 << 20)
#define PIECE_BYTES ((size_t)64 << 10)
#define PIECES (OBJECT_BYTES / PIECE_BYTES)

_Static_assert(1 + PIECES <= EGM_COPY_SCRATCH, "both lists fit an item");

struct attempt {
    const struct egm_copy_trial *trial;
    enum egm_copy_direction direction;
};

static int begin(void *arg, struct egm_copy_item *item)
{
    const struct attempt *attempt = arg;
    size_t at = item->index * OBJECT_BYTES;
    struct iovec *extent = &item->scratch[0];
    struct iovec *pieces = &item->scratch[1];

    *extent = (struct iovec){attempt->trial->pool + at, OBJECT_BYTES};
    for (size_t i = 0; i < PIECES; i++) {
        pieces[i] = (struct iovec){attempt->trial->user + at + i * PIECE_BYTES, PIECE_BYTES};
    }
    struct egm_copy_list pool = {extent, 1}, user = {pieces, PIECES};
    item->dst = attempt->direction == EGM_COPY_IN ? pool : user;
    item->src = attempt->direction == EGM_COPY_IN ? user : pool;
    item->is_hashed = true;
    return 0;
}

static int check(void *arg, const struct egm_copy_item *item, uint64_t at)
{
    (void)arg, (void)item, (void)at;
    return 0;
}

static void end(void *arg, struct egm_copy_item *item, int status)
{
    (void)arg;
    (void)item;
    (void)status;
}

static void fail(void *arg, size_t index, int status)
{
    (void)arg;
    (void)index;
    (void)status;
}

static unsigned char *map_area(size_t size, int flags)
{
    void *at =
        mmap(NULL, size, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    return at == MAP_FAILED ? NULL : at;
}

int egm_copy_trial_init(struct egm_copy_trial *trial, unsigned thread_count)
{
    size_t bytes = (size_t)egm_max_u64(LEAST_BYTES, thread_count * BYTES_PER_THREAD);

    *trial = (struct egm_copy_trial){.bytes = bytes};
    trial->pool = map_area(bytes, MAP_SHARED);
    trial->user = trial->pool ? map_area(bytes, MAP_PRIVATE) : NULL;
    if (!trial->user) {
        int r = -errno;
        egm_copy_trial_release(trial);
        return r;
    }
    return 0;
}

void egm_copy_trial_release(struct egm_copy_trial *trial)
{
    if (trial->pool) {
        (void)munmap(trial->pool, trial->bytes);
    }
    if (trial->user) {
        (void)munmap(trial->user, trial->bytes);
    }
    *trial = (struct egm_copy_trial){0};
}

uint64_t egm_copy_trial_run(const struct egm_copy_trial *trial, unsigned thread_count)
{
    static const struct egm_copy_batch_ops ops = {
        .begin = begin, .check = check, .end = end, .fail = fail};
    const struct egm_copy_kernel *nt = egm_copy_best_nt();
    uint64_t sum_ns = 0;

    for (int d = 0; d < EGM_COPY_DIRECTION_COUNT; d++) {
        struct attempt attempt = {.trial = trial, .direction = (enum egm_copy_direction)d};
        struct egm_copy_batch batch = {.ops = &ops,
                                       .arg = &attempt,
                                       .direction = attempt.direction,
                                       .count = trial->bytes / OBJECT_BYTES,
                                       .bytes = trial->bytes};
        if (nt) {
            nt->evict(trial->pool, trial->bytes);
            nt->evict(trial->user, trial->bytes);
        }
        uint64_t start_ns = egm_clock_ns();
        if (egm_copy_batch_run_with(&batch, thread_count) < thread_count) {
            return 0;
        }
        sum_ns += egm_clock_ns() - start_ns;
    }
    return sum_ns;
}
