/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/limits.h"
#include "base/log.h"

#include "egmstore/errors.h"
#include "mover/map/map.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

size_t egm_fence_bytes(uint64_t size, size_t *ret_slot_word)
{
    uint64_t slots_at =
        EGM_FENCE_HEADER_BYTES + egm_align_up(size / EGM_GRANULE * sizeof(uint64_t), 4096);

    *ret_slot_word = slots_at / sizeof(uint64_t);
    return slots_at + size / EGM_SLOT * sizeof(uint64_t);
}

static int check_file(int fd, uint64_t least_bytes, const char *what, struct egm_detail *reterr)
{
    struct stat st;

    if (fstat(fd, &st) < 0) {
        return egm_fail(reterr, -errno, "attach", "cannot look at the provider's %s file: %s", what,
                        strerror(errno));
    }
    if (!S_ISREG(st.st_mode) || st.st_size < 0 || (uint64_t)st.st_size < least_bytes) {
        return egm_fail(reterr, EGM_E_PROTO, "attach",
                        "the provider's %s file has %lld bytes where %" PRIu64
                        " were promised; it is not mapped",
                        what, (long long)st.st_size, least_bytes);
    }
    return 0;
}

/* A file that may still be cut would turn a later copy into a SIGBUS. */
static int check_seals(int fd, const char *what, struct egm_detail *reterr)
{
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
        return egm_fail(reterr, EGM_E_PROTO, "attach",
                        "the provider's %s file is not sealed against shrinking; it is not mapped",
                        what);
    }
    return 0;
}

static int map_file(int fd, size_t size, int prot, void **ret_at, const char *what,
                    struct egm_detail *reterr)
{
    void *at = mmap(NULL, size, prot, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED) {
        return egm_fail(reterr, -errno, "attach", "cannot map %zu bytes of the provider's %s: %s",
                        size, what, strerror(errno));
    }
    if (madvise(at, size, MADV_DONTFORK) < 0) {
        int err = errno;
        munmap(at, size);
        return egm_fail(reterr, -err, "attach", "cannot keep the mapping from children: %s",
                        strerror(err));
    }
    *ret_at = at;
    return 0;
}

static uint64_t word_of(const struct egm_map_segment *segment, enum egm_fence_word word)
{
    /* relaxed: written before the file was handed to us; the socket orders it */
    return atomic_load_explicit(&segment->fence[word], memory_order_relaxed);
}

static int check_header(const struct egm_map_segment *segment, uint64_t provider, uint64_t epoch,
                        struct egm_detail *reterr)
{
    static const struct {
        enum egm_fence_word word;
        const char *name;
    } names[] = {{EGM_FENCE_W_MAGIC, "magic"},       {EGM_FENCE_W_VERSION, "version"},
                 {EGM_FENCE_W_PROVIDER, "provider"}, {EGM_FENCE_W_EPOCH, "epoch"},
                 {EGM_FENCE_W_SEGMENT, "segment"},   {EGM_FENCE_W_SIZE, "size"}};
    const uint64_t wanted[] = {EGM_FENCE_MAGIC, EGM_FENCE_VERSION, provider,
                               epoch,           segment->number,   segment->size};

    for (size_t i = 0; i < EGM_COUNT_OF(names); i++) {
        uint64_t found = word_of(segment, names[i].word);
        if (found != wanted[i]) {
            return egm_fail(reterr, EGM_E_PROTO, "attach",
                            "the fence file's %s is 0x%" PRIx64 " instead of 0x%" PRIx64
                            "; it is not used",
                            names[i].name, found, wanted[i]);
        }
    }
    return 0;
}

/* The proof that the pool we mapped is the pool that the fence speaks of. */
static int check_nonce(const struct egm_map_segment *segment, struct egm_detail *reterr)
{
    uint64_t nonce = word_of(segment, EGM_FENCE_W_NONCE);
    uint64_t words[EGM_SLOT / sizeof(uint64_t)];

    memcpy(words, segment->pool, sizeof(words));
    for (size_t i = 0; i < EGM_COUNT_OF(words); i++) {
        if (words[i] != nonce) {
            return egm_fail(
                reterr, EGM_E_TRANSFER, "attach",
                "self-test of segment %u failed: its nonce cannot be read through the mapping",
                segment->number);
        }
    }
    return 0;
}

static int map_both(struct egm_map_segment *segment, int pool_fd, int fence_fd,
                    struct egm_detail *reterr)
{
    void *at;
    int r = map_file(pool_fd, segment->size, PROT_READ | PROT_WRITE, &at, "pool", reterr);

    if (r < 0) {
        return r;
    }
    segment->pool = at;
    r = map_file(fence_fd, segment->fence_bytes, PROT_READ, &at, "fence table", reterr);
    if (r < 0) {
        return r;
    }
    segment->fence = at;
    segment->block_count = egm_div_ceil_u64(segment->size, EGM_MAP_BLOCK);
    segment->populated =
        egm_calloc(egm_div_ceil_u64(segment->block_count, 64), sizeof(*segment->populated));
    return segment->populated
               ? 0
               : egm_fail(reterr, -ENOMEM, "attach", "no memory for the page bitmap");
}

int egm_map_segment_open(struct egm_map_segment *segment, const struct egm_attached *attached,
                         uint64_t provider, uint64_t epoch, int pool_fd, int fence_fd,
                         struct egm_detail *reterr)
{
    *segment = (struct egm_map_segment){.number = attached->segment, .size = attached->size};
    if (attached->size < EGM_GRANULE || attached->size > EGM_MAX_SEGMENT_BYTES ||
        attached->size % EGM_GRANULE != 0) {
        return egm_fail(reterr, EGM_E_PROTO, "attach",
                        "segment %u has an impossible size of %" PRIu64 " bytes", attached->segment,
                        attached->size);
    }
    segment->fence_bytes = egm_fence_bytes(attached->size, &segment->slot_word);
    int r = check_file(pool_fd, attached->size, "pool", reterr);
    if (r == 0) {
        r = check_seals(pool_fd, "pool", reterr);
    }
    if (r == 0) {
        r = check_seals(fence_fd, "fence", reterr);
    }
    if (r == 0) {
        r = check_file(fence_fd, segment->fence_bytes, "fence", reterr);
    }
    if (r == 0) {
        r = map_both(segment, pool_fd, fence_fd, reterr);
    }
    if (r == 0) {
        r = check_header(segment, provider, epoch, reterr);
    }
    if (r == 0) {
        r = check_nonce(segment, reterr);
    }
    if (r < 0) {
        egm_map_segment_close(segment);
    }
    return r;
}

void egm_map_segment_close(struct egm_map_segment *segment)
{
    if (segment->pool) {
        munmap(segment->pool, segment->size);
    }
    if (segment->fence) {
        munmap((void *)(uintptr_t)segment->fence, segment->fence_bytes);
    }
    egm_free(segment->populated);
    *segment = (struct egm_map_segment){0};
}

/* ---- population ---- */

static bool is_populated(const struct egm_map_segment *segment, uint64_t block)
{
    /* relaxed: a hint; a bit seen late costs one more madvise */
    return atomic_load_explicit(&segment->populated[block / 64], memory_order_relaxed) >>
               (block % 64) &
           1;
}

static int populate_block(struct egm_map_segment *segment, uint64_t block)
{
    static struct egm_log_gate gate;
    uint64_t at = block * EGM_MAP_BLOCK;
    uint64_t size = egm_min_u64(EGM_MAP_BLOCK, segment->size - at);

    if (madvise(segment->pool + at, size, MADV_POPULATE_WRITE) < 0) {
        if (errno == EFAULT || errno == EHWPOISON) {
            egm_log_gated(&gate, EGM_LOG_WARN,
                          "pool memory is unreachable segment=%u offset=%" PRIu64 " err=\"%s\"",
                          segment->number, at, strerror(errno));
            return EGM_E_TRANSFER;
        }
        /* An old kernel has no such advice, a busy one asks to come again: the copy's own page
         * faults do it then. */
    }
    /* relaxed: pairs with is_populated, a hint */
    atomic_fetch_or_explicit(&segment->populated[block / 64], UINT64_C(1) << (block % 64),
                             memory_order_relaxed);
    return 0;
}

int egm_map_populate(struct egm_map_segment *segment, uint64_t offset, uint64_t length)
{
    for (uint64_t block = offset / EGM_MAP_BLOCK; block <= (offset + length - 1) / EGM_MAP_BLOCK;
         block++) {
        if (!is_populated(segment, block)) {
            int r = populate_block(segment, block);
            if (r < 0) {
                return r;
            }
        }
    }
    return 0;
}

size_t egm_map_populate_more(struct egm_import *import, size_t max_bytes)
{
    struct egm_map_import *map = egm_container_of(import, struct egm_map_import, base);
    size_t done = 0;

    while (done < max_bytes && map->next_segment < map->segment_count &&
           map->background_bytes < EGM_MAP_BACKGROUND_MAX) {
        struct egm_map_segment *segment = &map->segments[map->next_segment];
        if (map->next_block == segment->block_count) {
            map->next_segment++;
            map->next_block = 0;
            continue;
        }
        if (!is_populated(segment, map->next_block)) {
            egm_ignore(populate_block(segment, map->next_block),
                       "whoever uses the block meets the failure");
            done += EGM_MAP_BLOCK;
        }
        map->background_bytes += EGM_MAP_BLOCK;
        map->next_block++;
    }
    return done;
}
