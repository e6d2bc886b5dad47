/* SPDX-License-Identifier: Apache-2.0 */
#include "os/memfd.h"

#include "base/assert.h"
#include "base/checked.h"
#include "base/log.h"

#include "os/limits.h"
#include "os/wait.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* Progress is shown about every 60 ms at the 1.1 GB/s at which fresh pages come. */
#define POPULATE_STEP (UINT64_C(64) << 20)

static int create_one(const char *name, uint64_t size, unsigned flags)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);

    if (fd < 0) {
        return -errno;
    }
    /* A memfd is born 0777, and whoever may open /proc/<pid>/fd could open it. */
    if (fchmod(fd, 0600) < 0 || ftruncate(fd, (off_t)size) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0) {
        int r = -errno;
        close(fd);
        return r;
    }
    return fd;
}

/* True if a file of huge pages can really be mapped: that is when they are reserved. */
static bool can_map(int fd, uint64_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED) {
        return false;
    }
    munmap(at, size);
    return true;
}

static int create_huge(const char *name, uint64_t size, uint64_t huge_size)
{
    if (huge_size == 0 || size % huge_size != 0) {
        return -EINVAL;
    }
    int fd = create_one(name, size, MFD_HUGETLB);
    if (fd >= 0 && !can_map(fd, size)) {
        close(fd);
        return -ENOMEM;
    }
    return fd;
}

int egm_memfd_create(const char *name, uint64_t size, bool try_huge, struct egm_memfd *ret_file,
                     struct egm_detail *reterr)
{
    uint64_t page_size = (uint64_t)sysconf(_SC_PAGESIZE);
    int fd = -1;

    if (size == 0 || size > INT64_MAX) {
        return egm_fail(reterr, EGM_E_INVALID, "memfd", "a file of %llu bytes is not possible",
                        (unsigned long long)size);
    }
    if (try_huge) {
        struct egm_limits limits;
        egm_limits_read(NULL, NULL, &limits);
        if (limits.huge_free_bytes >= size) {
            fd = create_huge(name, size, limits.huge_page_size);
        }
        if (fd >= 0) {
            page_size = limits.huge_page_size;
        } else {
            egm_warn("not enough huge pages file=%s wanted_bytes=%llu free_bytes=%llu, continuing "
                     "with pages of %llu bytes",
                     name, (unsigned long long)size, (unsigned long long)limits.huge_free_bytes,
                     (unsigned long long)page_size);
        }
    }
    if (fd < 0) {
        fd = create_one(name, size, 0);
    }
    if (fd < 0) {
        return egm_fail(reterr, fd, "memfd", "cannot create a memory file of %llu bytes: %s",
                        (unsigned long long)size, strerror(-fd));
    }
    *ret_file = (struct egm_memfd){.fd = fd, .size = size, .page_size = page_size};
    return 0;
}

int egm_memfd_freeze(int fd)
{
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) < 0 && errno != EINVAL) {
        return -errno;
    }
    return fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) < 0 ? -errno : 0;
}

int egm_memfd_reopen(int fd, bool is_writable)
{
    char path[32];

    egm_ignore(snprintf(path, sizeof(path), "/proc/self/fd/%d", fd), "fits");
    int other = open(path, (is_writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    return other < 0 ? -errno : other;
}

int egm_lock_set(int fd, uint64_t at)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = 1};

    if (fcntl(fd, F_OFD_SETLK, &lock) < 0) {
        return errno == EACCES ? -EAGAIN : -errno;
    }
    return 0;
}

void egm_lock_clear(int fd, uint64_t at)
{
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = 1};

    egm_ignore(fcntl(fd, F_OFD_SETLK, &lock), "an open description can always unlock");
}

int egm_lock_test(int fd, uint64_t at, bool *ret_is_held)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = 1};

    if (fcntl(fd, F_OFD_GETLK, &lock) < 0) {
        return -errno;
    }
    *ret_is_held = lock.l_type != F_UNLCK;
    return 0;
}

/* Kernels before 5.14: an atomic add of zero faults a page in and cannot lose a byte that somebody
 * else stores at the same time. */
static void touch(uint8_t *at, uint64_t size, uint64_t page_size)
{
    for (uint64_t done = 0; done < size; done += page_size) {
        /* relaxed: only the fault matters, nothing is published */
        atomic_fetch_add_explicit((_Atomic uint8_t *)(at + done), 0, memory_order_relaxed);
    }
}

int egm_populate(void *at, uint64_t size,
                 void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg)
{
    uint64_t page_size = (uint64_t)sysconf(_SC_PAGESIZE);
    bool can_advise = true;

    for (uint64_t done = 0; done < size;) {
        uint8_t *from = (uint8_t *)at + done;
        uint64_t step = egm_min_u64(POPULATE_STEP, size - done);
        if (can_advise && madvise(from, step, MADV_POPULATE_WRITE) < 0) {
            if (errno == EINTR || errno == EAGAIN) {
                continue;
            }
            if (errno != EINVAL) {
                return errno == EFAULT ? -ENOMEM : -errno;
            }
            can_advise = false;
        }
        if (!can_advise) {
            touch(from, step, page_size);
        }
        done += step;
        if (progress) {
            progress(arg, done, size);
        }
        int r = egm_wait_look();
        if (r < 0) {
            return r;
        }
    }
    return 0;
}
