/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's memory and its fence file (layout: mover/map/map.h), and reading an object's checksum
 * from it. */
#include "base/checked.h"
#include "base/limits.h"

#include "mover/checksum.h"
#include "mover/map/map.h"
#include "os/fork.h"
#include "os/host.h"
#include "os/limits.h"
#include "os/numa.h"
#include "provider/shell.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

static int open_fence(struct egm_provider *p, struct egm_pool_segment *segment, uint32_t number,
                      struct egm_detail *reterr)
{
    struct egm_fence_file *fence = &segment->fence;
    struct egm_memfd file;

    fence->bytes = egm_fence_bytes(segment->size, &fence->slot_word);
    int r = egm_memfd_create("egmstore-fence", fence->bytes, /*try_huge=*/false, &file, reterr);
    if (r < 0) {
        return r;
    }
    fence->fd = file.fd;
    egm_fork_enter(fence->fd);
    void *at = mmap(NULL, fence->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fence->fd, 0);
    if (at == MAP_FAILED) {
        r = -errno;
        return egm_fail(reterr, r, "fence", "cannot map the fence table: %s", strerror(-r));
    }
    fence->words = at;
    if (madvise(at, fence->bytes, MADV_DONTFORK) < 0) {
        r = -errno;
        return egm_fail(reterr, r, "fence", "cannot keep the fence table from children: %s",
                        strerror(-r));
    }
    /* The slots' part stays sparse: pages come with the first granule that is cut there. */
    r = egm_populate(at, fence->slot_word * sizeof(uint64_t), NULL, NULL);
    if (r < 0) {
        return egm_fail(reterr, r, "fence", "cannot populate the fence table: %s", egm_strerror(r));
    }
    const uint64_t header[] = {[EGM_FENCE_W_MAGIC] = EGM_FENCE_MAGIC,
                               [EGM_FENCE_W_VERSION] = EGM_FENCE_VERSION,
                               [EGM_FENCE_W_PROVIDER] = p->id,
                               [EGM_FENCE_W_EPOCH] = p->epoch,
                               [EGM_FENCE_W_SEGMENT] = number,
                               [EGM_FENCE_W_SIZE] = segment->size,
                               [EGM_FENCE_W_FLOOR] = 0,
                               [EGM_FENCE_W_NONCE] = segment->nonce};
    for (size_t i = 0; i < EGM_COUNT_OF(header); i++) {
        /* relaxed: the socket over which the file is passed orders it for importers */
        atomic_store_explicit(&fence->words[i], header[i], memory_order_relaxed);
    }
    r = egm_memfd_freeze(fence->fd);
    return r < 0 ? egm_fail(reterr, r, "fence", "cannot seal the fence table: %s", egm_strerror(r))
                 : 0;
}

/* Progress over all segments. */
struct progress {
    const struct egm_provider_options *options;
    uint64_t before, total;
};

static void tell_progress(void *arg, uint64_t done, uint64_t total)
{
    const struct progress *progress = arg;

    (void)total;
    progress->options->progress(progress->options->progress_arg, progress->before + done,
                                progress->total);
}

static int open_memory(struct egm_provider *p, struct egm_pool_segment *segment,
                       const struct egm_mem_ops *ops, struct progress *progress,
                       struct egm_detail *reterr)
{
    struct egm_mem_options wanted = {.size_bytes = segment->size,
                                     .try_huge = true,
                                     .prefers_node = p->segment_count > 1,
                                     .numa_node = segment->numa_node,
                                     .progress = progress->options->progress ? tell_progress : NULL,
                                     .progress_arg = progress};
    int r = ops->allocate(&wanted, &segment->mem, reterr);

    if (r == 0) {
        r = ops->map(&segment->mem, &wanted, reterr);
    }
    if (r < 0) {
        return r;
    }
    segment->nonce = egm_random_u64();
    uint64_t *words = (uint64_t *)(void *)segment->mem.base;
    for (size_t i = 0; i < EGM_SLOT / sizeof(uint64_t); i++) {
        words[i] = segment->nonce;
    }
    return 0;
}

int egm_shell_plan(uint64_t size_bytes, struct egm_plan_segment *ret_plan, uint32_t *ret_count,
                   struct egm_detail *reterr)
{
    uint64_t size = egm_align_down(size_bytes, EGM_GRANULE);
    uint32_t nodes[EGM_POOL_SEGMENTS];

    if (size < UINT64_C(1) << 20 || size > EGM_MAX_SEGMENT_BYTES) {
        return egm_fail(reterr, EGM_E_INVALID, "pool",
                        "a pool of %" PRIu64 " bytes is not possible; give 1 MiB to 16 TiB",
                        size_bytes);
    }
    *ret_count = egm_plan_segments(size, nodes, egm_numa_nodes(nodes, EGM_POOL_SEGMENTS), ret_plan);
    return 0;
}

int egm_shell_pool_open(struct egm_provider *p, const struct egm_provider_options *options,
                        const struct egm_plan_segment *plan, uint32_t count,
                        struct egm_detail *reterr)
{
    const struct egm_mem_ops *ops;
    struct egm_limits limits;
    struct progress progress = {.options = options};
    int r = egm_mem_choose(options->memory_kind, &ops, reterr);

    for (uint32_t i = 0; i < count; i++) {
        p->segments[i].numa_node = plan[i].numa_node;
        p->segments[i].size = plan[i].size_bytes;
        p->size += plan[i].size_bytes;
    }
    p->segment_count = count;
    progress.total = p->size;
    if (r == 0) { /* for all at once: the first would be populated before the next is asked for */
        egm_limits_read(NULL, NULL, &limits);
        r = egm_mem_check_room(p->size, &limits, reterr);
    }
    for (uint32_t i = 0; i < count && r == 0; i++) {
        r = open_memory(p, &p->segments[i], ops, &progress, reterr);
        if (r == 0) {
            r = open_fence(p, &p->segments[i], i, reterr);
        }
        progress.before += p->segments[i].size;
    }
    return r;
}

void egm_shell_pool_close(struct egm_provider *p)
{
    for (uint32_t i = 0; i < EGM_POOL_SEGMENTS; i++) {
        struct egm_pool_segment *segment = &p->segments[i];
        struct egm_detail why = {0};
        if (segment->fence.words) {
            munmap(segment->fence.words, segment->fence.bytes);
            segment->fence.words = NULL;
        }
        egm_fork_close(segment->fence.fd);
        segment->fence.fd = -1;
        if (segment->mem.ops && segment->mem.ops->release(&segment->mem, &why) < 0) {
            egm_error("pool memory not released segment=%u err=\"%s\"", i, why.text);
        }
    }
}

bool egm_shell_verify(const struct egm_provider *p, const struct egm_pcore_verify *verify)
{
    struct egm_checksum checksum;
    uint64_t left = verify->size;

    egm_checksum_init(&checksum, verify->size);
    for (uint8_t i = 0; i < verify->extent_count && left > 0; i++) {
        uint64_t n = egm_min_u64(verify->extents[i].length, left);
        egm_checksum_update(&checksum,
                            p->segments[verify->segment].mem.base + verify->extents[i].offset, n);
        left -= n;
    }
    return egm_checksum_final(&checksum) == verify->checksum;
}
