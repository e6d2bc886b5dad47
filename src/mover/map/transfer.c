/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/checked.h"
#include "base/limits.h"

#include "egmstore/errors.h"
#include "mover/copy_batch.h"
#include "mover/map/map.h"
#include "os/clock.h"

#include <errno.h>
#include <string.h>

/* User pieces that are cut to the object's size without an allocation. */
#define TRIM_IN_SCRATCH 64u

static struct egm_map_segment *segment_of(struct egm_map_import *map, uint32_t number)
{
    for (size_t i = 0; i < map->segment_count; i++) {
        if (map->segments[i].number == number) {
            return &map->segments[i];
        }
    }
    return NULL;
}

static size_t fence_word(const struct egm_map_segment *segment, const struct egm_extent *extent)
{
    if (extent->length >= EGM_GRANULE) {
        return EGM_FENCE_HEADER_BYTES / sizeof(uint64_t) + extent->offset / EGM_GRANULE;
    }
    return segment->slot_word + extent->offset / EGM_SLOT;
}

/* The rule of map.h. For a reader the caller has put an acquire fence between its copy and this
 * call. */
static bool is_alive(const struct egm_map_import *map, const struct egm_map_segment *segment,
                     const struct egm_transfer *t)
{
    /* relaxed: ordered after the copy by the caller's acquire fence, which pairs with the release
     * fence with which the provider follows each raised entry before it gives the place away */
    uint64_t epoch = atomic_load_explicit(&segment->fence[EGM_FENCE_W_EPOCH], memory_order_relaxed);
    uint64_t floor = atomic_load_explicit(&segment->fence[EGM_FENCE_W_FLOOR], memory_order_relaxed);

    if (epoch != map->base.epoch || floor >= t->generation) {
        return false;
    }
    for (uint32_t i = 0; i < t->extent_count; i++) {
        size_t word = fence_word(segment, &t->extents[i]);
        if (atomic_load_explicit(&segment->fence[word], memory_order_relaxed) >= t->generation) {
            return false;
        }
    }
    return true;
}

static bool is_extent_valid(const struct egm_map_segment *segment, const struct egm_extent *extent)
{
    uint64_t unit = extent->length >= EGM_GRANULE ? EGM_GRANULE : EGM_SLOT;

    return extent->length > 0 && extent->length % EGM_SLOT == 0 && extent->offset % unit == 0 &&
           extent->offset >= EGM_GRANULE && extent->offset < segment->size &&
           extent->length <= segment->size - extent->offset;
}

/* The pool's side as pieces that together have exactly t->length bytes. Number of pieces, or an
 * error. */
static int pool_pieces(const struct egm_map_segment *segment, const struct egm_transfer *t,
                       struct iovec pieces[EGM_MAX_EXTENTS])
{
    uint64_t left = t->length;
    int count = 0;

    if (t->extent_count > EGM_MAX_EXTENTS) {
        return EGM_E_PROTO;
    }
    for (uint32_t i = 0; i < t->extent_count; i++) {
        const struct egm_extent *extent = &t->extents[i];
        if (!is_extent_valid(segment, extent)) {
            return EGM_E_PROTO;
        }
        uint64_t size = egm_min_u64(left, extent->length);
        if (size > 0) {
            pieces[count++] =
                (struct iovec){.iov_base = segment->pool + extent->offset, .iov_len = size};
            left -= size;
        }
    }
    return left == 0 ? count : EGM_E_PROTO;
}

/* Populates the pages of the next chunk, which begins at the object's byte `at`. A whole object
 * may take longer than the deadline allows. */
static int populate_chunk(struct egm_map_segment *segment, const struct egm_transfer *t,
                          uint64_t at)
{
    uint64_t left = egm_min_u64(t->length - at, EGM_COPY_CHUNK);

    for (uint32_t i = 0; left > 0; i++) {
        const struct egm_extent *extent = &t->extents[i];
        if (at >= extent->length) {
            at -= extent->length;
            continue;
        }
        uint64_t size = egm_min_u64(extent->length - at, left);
        int r = egm_map_populate(segment, extent->offset + at, size);
        if (r < 0) {
            return r;
        }
        at = 0;
        left -= size;
    }
    return 0;
}

/* The user's side cut to t->length. *ret_own is memory to free, or NULL. */
static int user_pieces(const struct egm_transfer *t, struct iovec scratch[TRIM_IN_SCRATCH],
                       struct iovec **ret_own, struct egm_copy_list *ret_list)
{
    uint64_t left = t->length;
    size_t count = 0;

    *ret_own = NULL;
    while (count < t->iov_count && left >= t->iov[count].iov_len) {
        left -= t->iov[count].iov_len;
        count++;
    }
    if (left == 0) {
        *ret_list = (struct egm_copy_list){.pieces = t->iov, .count = count};
        return 0;
    }
    if (count == t->iov_count) {
        return EGM_E_INVALID;
    }
    struct iovec *cut = scratch;
    if (count + 1 > TRIM_IN_SCRATCH) {
        cut = egm_alloc((count + 1) * sizeof(*cut));
        if (!cut) {
            return -ENOMEM;
        }
        *ret_own = cut;
    }
    memcpy(cut, t->iov, (count + 1) * sizeof(*cut));
    cut[count].iov_len = left;
    *ret_list = (struct egm_copy_list){.pieces = cut, .count = count + 1};
    return 0;
}

static int may_go_on(const struct egm_map_import *map, const struct egm_map_segment *segment,
                     const struct egm_transfer *t, uint64_t deadline_ns)
{
    int r = t->guard ? t->guard(t->guard_arg) : 0;

    if (r < 0) {
        return r;
    }
    if (deadline_ns != 0 && egm_clock_ns() >= deadline_ns) {
        return EGM_E_TIMEOUT;
    }
    return !t->is_write || is_alive(map, segment, t) ? 0 : EGM_E_STALE;
}

/* ---- the batch ---- */

struct batch {
    struct egm_map_import *map;
    struct egm_transfer *transfers;
    uint64_t deadline_ns;
};

_Static_assert(EGM_MAX_EXTENTS + TRIM_IN_SCRATCH <= EGM_COPY_SCRATCH, "both lists fit an item");

static int begin_item(void *arg, struct egm_copy_item *item)
{
    const struct batch *batch = arg;
    const struct egm_transfer *t = &batch->transfers[item->index];
    struct egm_map_segment *segment = segment_of(batch->map, t->segment);
    struct iovec *own;

    if (!segment) {
        return EGM_E_STALE;
    }
    int count = pool_pieces(segment, t, item->scratch);
    if (count < 0) {
        return count;
    }
    struct egm_copy_list pool = {.pieces = item->scratch, .count = (size_t)count};
    struct egm_copy_list user;
    int r = user_pieces(t, item->scratch + EGM_MAX_EXTENTS, &own, &user);
    if (r < 0) {
        return r;
    }
    item->own = own;
    item->dst = t->is_write ? pool : user;
    item->src = t->is_write ? user : pool;
    item->is_hashed = t->is_write || t->has_checksum;
    return 0;
}

static int check_item(void *arg, const struct egm_copy_item *item, uint64_t at)
{
    const struct batch *batch = arg;
    const struct egm_transfer *t = &batch->transfers[item->index];
    struct egm_map_segment *segment = segment_of(batch->map, t->segment);
    int r = may_go_on(batch->map, segment, t, batch->deadline_ns);

    return r < 0 ? r : populate_chunk(segment, t, at);
}

static int settle(struct batch *batch, struct egm_transfer *t, const struct egm_copy_item *item)
{
    /* acquire: keeps the copy's loads before the loads of the fence table (I1); see is_alive for
     * its pair. Chunks of other threads come before by the batch's lock (T2 of copy_batch.h). */
    atomic_thread_fence(memory_order_acquire);
    if (!is_alive(batch->map, segment_of(batch->map, t->segment), t)) {
        return EGM_E_STALE;
    }
    if (t->is_write) {
        t->checksum = item->checksum;
    } else if (t->has_checksum && item->checksum != t->checksum) {
        return EGM_E_CHECKSUM;
    }
    return 0;
}

static void end_item(void *arg, struct egm_copy_item *item, int status)
{
    struct batch *batch = arg;
    struct egm_transfer *t = &batch->transfers[item->index];

    t->status = status == 0 ? settle(batch, t, item) : status;
    egm_free(item->own);
}

static void fail_item(void *arg, size_t index, int status)
{
    const struct batch *batch = arg;

    batch->transfers[index].status = status;
}

static const struct egm_copy_batch_ops batch_ops = {
    .begin = begin_item, .check = check_item, .end = end_item, .fail = fail_item};

/* Puts and gets do not come together, but nothing here relies on it: runs of one direction each. */
static size_t run_length(const struct egm_transfer *transfers, size_t count, uint64_t *ret_bytes)
{
    size_t n = 0;

    *ret_bytes = 0;
    while (n < count && transfers[n].is_write == transfers[0].is_write) {
        *ret_bytes += transfers[n].length;
        n++;
    }
    return n;
}

void egm_map_transfer(struct egm_import *import, struct egm_transfer *transfers, size_t count,
                      uint64_t deadline_ns)
{
    struct egm_map_import *map = egm_container_of(import, struct egm_map_import, base);

    while (count > 0) {
        uint64_t bytes;
        size_t n = run_length(transfers, count, &bytes);
        struct batch batch = {.map = map, .transfers = transfers, .deadline_ns = deadline_ns};
        struct egm_copy_batch copies = {.ops = &batch_ops,
                                        .arg = &batch,
                                        .direction =
                                            transfers[0].is_write ? EGM_COPY_IN : EGM_COPY_OUT,
                                        .count = n,
                                        .bytes = bytes};
        egm_copy_batch_run(&copies);
        transfers += n;
        count -= n;
    }
}
