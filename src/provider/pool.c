/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's memory and its fence file (layout: mover/map/map.h), and reading an object's checksum
 * from it. */
#include "base/checked.h"
#include "base/limits.h"

#include "mover/checksum.h"
#include "mover/map/map.h"
#include "os/fork.h"
#include "os/host.h"
#include "provider/shell.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

static int open_fence(struct egm_provider *p, struct egm_detail *reterr)
{
    struct egm_fence_file *fence = &p->fence;
    struct egm_memfd file;

    fence->bytes = egm_fence_bytes(p->size, &fence->slot_word);
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
                               [EGM_FENCE_W_SEGMENT] = EGM_SEGMENT_NUMBER,
                               [EGM_FENCE_W_SIZE] = p->size,
                               [EGM_FENCE_W_FLOOR] = 0,
                               [EGM_FENCE_W_NONCE] = p->nonce};
    for (size_t i = 0; i < EGM_COUNT_OF(header); i++) {
        /* relaxed: the socket over which the file is passed orders it for importers */
        atomic_store_explicit(&fence->words[i], header[i], memory_order_relaxed);
    }
    r = egm_memfd_freeze(fence->fd);
    return r < 0 ? egm_fail(reterr, r, "fence", "cannot seal the fence table: %s", egm_strerror(r))
                 : 0;
}

static int open_memory(struct egm_provider *p, const struct egm_provider_options *options,
                       struct egm_detail *reterr)
{
    const struct egm_mem_ops *ops;
    struct egm_mem_options wanted = {.size_bytes = p->size,
                                     .try_huge = true,
                                     .progress = options->progress,
                                     .progress_arg = options->progress_arg};
    int r = egm_mem_choose(options->memory_kind, &ops, reterr);

    if (r < 0) {
        return r;
    }
    r = ops->allocate(&wanted, &p->mem, reterr);
    if (r < 0) {
        return r;
    }
    r = ops->map(&p->mem, &wanted, reterr);
    if (r < 0) {
        return r;
    }
    uint64_t *words = (uint64_t *)(void *)p->mem.base;
    for (size_t i = 0; i < EGM_SLOT / sizeof(uint64_t); i++) {
        words[i] = p->nonce;
    }
    return 0;
}

int egm_shell_pool_open(struct egm_provider *p, const struct egm_provider_options *options,
                        struct egm_detail *reterr)
{
    p->size = egm_align_down(options->size_bytes, EGM_GRANULE);
    if (p->size < UINT64_C(1) << 20 || p->size > EGM_MAX_SEGMENT_BYTES) {
        return egm_fail(reterr, EGM_E_INVALID, "pool",
                        "a pool of %" PRIu64 " bytes is not possible; give 1 MiB to 16 TiB",
                        options->size_bytes);
    }
    p->nonce = egm_random_u64();
    int r = open_memory(p, options, reterr);
    return r < 0 ? r : open_fence(p, reterr);
}

void egm_shell_pool_close(struct egm_provider *p)
{
    struct egm_detail why = {0};

    if (p->fence.words) {
        munmap(p->fence.words, p->fence.bytes);
        p->fence.words = NULL;
    }
    egm_fork_close(p->fence.fd);
    p->fence.fd = -1;
    if (p->mem.ops && p->mem.ops->release(&p->mem, &why) < 0) {
        egm_error("pool memory not released err=\"%s\"", why.text);
    }
}

bool egm_shell_verify(const struct egm_provider *p, const struct egm_pcore_verify *verify)
{
    struct egm_checksum checksum;
    uint64_t left = verify->size;

    egm_checksum_init(&checksum, verify->size);
    for (uint8_t i = 0; i < verify->extent_count && left > 0; i++) {
        uint64_t n = egm_min_u64(verify->extents[i].length, left);
        egm_checksum_update(&checksum, p->mem.base + verify->extents[i].offset, n);
        left -= n;
    }
    return egm_checksum_final(&checksum) == verify->checksum;
}
