/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory kind shm: one sealed memory file per piece.
 *
 * An importer gets a description of its own (export re-opens the file), because slot locks belong
 * to descriptions (os/memfd.h). The file goes when the last mapping and fd anywhere are gone, so
 * release here can never pull memory from under an importer.
 */
#include "base/checked.h"
#include "base/limits.h"
#include "base/log.h"

#include "mem/mem.h"
#include "os/fork.h"
#include "os/numa.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FILE_NAME "egmstore-pool"

static uint64_t shm_granularity(void)
{
    return EGM_GRANULE;
}

static int shm_allocate(const struct egm_mem_options *options, struct egm_mem *ret_mem,
                        struct egm_detail *reterr)
{
    struct egm_mem mem = {.ops = &egm_mem_shm, .file = {.fd = -1}};
    struct egm_limits limits;
    uint64_t size = options->size_bytes;

    if (size == 0 || size % EGM_GRANULE != 0 || size > EGM_MAX_SEGMENT_BYTES) {
        return egm_fail(reterr, EGM_E_INVALID, "allocate",
                        "a segment of %" PRIu64 " bytes is not possible: it must be a multiple of "
                        "%" PRIu64 " up to %" PRIu64,
                        size, EGM_GRANULE, EGM_MAX_SEGMENT_BYTES);
    }
    egm_limits_read(NULL, NULL, &limits);
    int r = egm_mem_check_room(size, &limits, reterr);
    if (r < 0) {
        return r;
    }
    r = egm_memfd_create(FILE_NAME, size, options->try_huge, &mem.file, reterr);
    if (r < 0) {
        return r;
    }
    egm_fork_enter(mem.file.fd);
    mem.stages = EGM_MEM_ALLOCATED;
    *ret_mem = mem;
    return 0;
}

/* Some containers forbid it. Then the kernel places the pages as it likes. */
static void prefer_node(void *at, uint64_t size, const struct egm_mem_options *options)
{
    int r = options->prefers_node ? egm_numa_prefer(at, size, options->numa_node) : 0;

    if (r < 0) {
        egm_warn("memory not bound to its node node=%u err=\"%s\", continuing", options->numa_node,
                 strerror(-r));
    }
}

static int shm_map(struct egm_mem *mem, const struct egm_mem_options *options,
                   struct egm_detail *reterr)
{
    if (!(mem->stages & EGM_MEM_ALLOCATED) || (mem->stages & EGM_MEM_MAPPED)) {
        return egm_fail(reterr, EGM_E_INVALID, "map", "the piece is not allocated or is mapped");
    }
    uint64_t size = mem->file.size;
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, mem->file.fd, 0);
    if (at == MAP_FAILED) {
        int r = -errno;
        return egm_fail(reterr, r, "map", "cannot map a pool of %" PRIu64 " MiB: %s", size >> 20,
                        strerror(-r));
    }
    int r = madvise(at, size, MADV_DONTFORK) < 0 ? -errno : 0;
    if (r == 0) {
        egm_ignore(madvise(at, size, MADV_HUGEPAGE), "kernels without it use small pages");
        prefer_node(at, size, options);
        r = egm_populate(at, size, options->progress, options->progress_arg);
    }
    if (r < 0) {
        munmap(at, size);
        return egm_fail(reterr, r, "map",
                        "cannot populate a pool of %" PRIu64 " MiB: %s; ask for a smaller pool",
                        size >> 20, egm_strerror(r));
    }
    mem->base = at;
    mem->stages |= EGM_MEM_MAPPED;
    return 0;
}

static int shm_export(const struct egm_mem *mem, int *ret_fd, struct egm_detail *reterr)
{
    if (!(mem->stages & EGM_MEM_ALLOCATED)) {
        return egm_fail(reterr, EGM_E_INVALID, "export", "the piece is not allocated");
    }
    int fd = egm_memfd_reopen(mem->file.fd, /*is_writable=*/true);
    if (fd < 0) {
        return egm_fail(reterr, fd, "export", "cannot re-open the pool file: %s; is /proc mounted?",
                        strerror(-fd));
    }
    *ret_fd = fd;
    return 0;
}

static int shm_release(struct egm_mem *mem, struct egm_detail *reterr)
{
    if (mem->stages & EGM_MEM_MAPPED) {
        if (munmap(mem->base, mem->file.size) < 0) {
            int r = -errno;
            return egm_fail(reterr, r, "release", "cannot unmap the pool: %s", strerror(-r));
        }
        mem->base = NULL;
        mem->stages &= ~(uint32_t)EGM_MEM_MAPPED;
    }
    if (mem->stages & EGM_MEM_ALLOCATED) {
        egm_fork_close(mem->file.fd);
        mem->file.fd = -1;
        mem->stages &= ~(uint32_t)EGM_MEM_ALLOCATED;
    }
    return 0;
}

/* A page written through one description and mapping must be read through another. */
static int copy_across(const struct egm_memfd *file, int other_fd)
{
    static const char text[] = "egmstore probe";
    char got[sizeof(text)];
    void *at = mmap(NULL, file->size, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);

    if (at == MAP_FAILED) {
        return -errno;
    }
    memcpy(at, text, sizeof(text));
    munmap(at, file->size);
    if (pread(other_fd, got, sizeof(got), 0) != (ssize_t)sizeof(got)) {
        return -EIO;
    }
    return memcmp(got, text, sizeof(got)) == 0 ? 0 : -EIO;
}

static int shm_probe(struct egm_detail *reterr)
{
    struct egm_memfd file;
    int r = egm_memfd_create("egmstore-probe", EGM_GRANULE, /*try_huge=*/false, &file, reterr);

    if (r < 0) {
        return r;
    }
    int fd = egm_memfd_reopen(file.fd, /*is_writable=*/true);
    r = fd < 0 ? fd : egm_lock_set(fd, UINT64_C(1) << 40);
    if (r == 0) {
        r = copy_across(&file, fd);
    }
    if (fd >= 0) {
        close(fd);
    }
    close(file.fd);
    if (r < 0) {
        return egm_fail(reterr, r, "probe",
                        "memory files cannot be re-opened, locked and shared here: %s (needs /proc "
                        "and Linux 3.17)",
                        strerror(-r));
    }
    return 0;
}

const struct egm_mem_ops egm_mem_shm = {
    .name = "shm",
    .probe = shm_probe,
    .granularity = shm_granularity,
    .allocate = shm_allocate,
    .map = shm_map,
    .export = shm_export,
    .release = shm_release,
};
