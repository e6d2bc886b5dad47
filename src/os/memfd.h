/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed anonymous files that hold a pool, further descriptions of them, lock bytes on them, and
 * populating their pages.
 *
 * A lock byte belongs to one *open file description*: it is set on the description that an
 * importer is given, and it is free again exactly when the last fd and the last mapping of that
 * description are gone, in whatever process. That is the proof of death of DESIGN 6; it needs the
 * description re-opened per importer, because a dup shares it. @threadsafe */
#ifndef EGM_OS_MEMFD_H
#define EGM_OS_MEMFD_H

#include "base/detail.h"

#include <stdbool.h>
#include <stdint.h>

struct egm_memfd {
    int fd;             /* owned, O_CLOEXEC; -1: none */
    uint64_t size;      /* bytes */
    uint64_t page_size; /* bytes of one page of the file: the system's, or a huge page's */
};

/* A file of `size` bytes, mode 0600, that can be neither shrunk nor grown. With try_huge, huge
 * pages are taken when enough of them are free and divide the size; else normal pages, with one
 * warning in the log. Nothing is populated yet. */
EGM_MUST_CHECK int egm_memfd_create(const char *name, uint64_t size, bool try_huge,
                                    struct egm_memfd *ret_file, struct egm_detail *reterr);

/* Forbids new writable mappings and writes through any fd, now and for ever; mappings that exist
 * stay writable. Kernels before 5.1 cannot: 0 all the same, the importer's read-only description
 * is then the only protection. */
EGM_MUST_CHECK int egm_memfd_freeze(int fd);

/* Another description of the same file. Returns the fd (owned by the caller) or -errno. */
EGM_MUST_CHECK int egm_memfd_reopen(int fd, bool is_writable);

/* Locks byte `at` for this description. 0, or -EAGAIN when another description has it. */
EGM_MUST_CHECK int egm_lock_set(int fd, uint64_t at);

/* Frees byte `at` if this description has it. */
void egm_lock_clear(int fd, uint64_t at);

/* Whether another description than fd's has byte `at` locked. */
EGM_MUST_CHECK int egm_lock_test(int fd, uint64_t at, bool *ret_is_held);

/* Makes every page of [at, at+size) present and writable, in steps, telling progress (may be NULL)
 * after each. Pages that are there already keep their bytes. -ENOMEM when the kernel has no more,
 * EGM_E_CLOSED when the thread must stop (os/wait.h); what was populated stays. */
EGM_MUST_CHECK int egm_populate(void *at, uint64_t size,
                                void (*progress)(void *arg, uint64_t done, uint64_t total),
                                void *arg);

#endif
