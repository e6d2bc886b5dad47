/* SPDX-License-Identifier: Apache-2.0 */
/* A mover copies between a requester's buffers and one provider's pool. One ops table per kind:
 * `map` (shared mapping of a provider on this host), `tcp` (the provider's data port), later
 * `cuda`.
 *
 * An import is one attachment {provider, epoch} through one mover; it holds every segment of that
 * provider. Life: attach, then transfers from any threads, then detach when no transfer runs (the
 * client counts pins). An import that its provider told to go (DETACH, connection lost) reports
 * is_lost; transfers that run then finish or fail by themselves.
 *
 * transfer() works on a batch and writes one status per transfer; it returns when none of the batch
 * touches the caller's buffers any more, whatever happened (I7). The statuses:
 *
 *   0               all bytes moved, and for a read the fences proved them (I1)
 *   EGM_E_STALE     the object is gone from that place: fence, epoch, or the provider refused
 *   EGM_E_CHECKSUM  a read's bytes do not match
 *   EGM_E_TIMEOUT   the deadline passed, and the provider did its part until then
 *   EGM_E_PEER_GONE the provider cannot be reached, or does not go on
 *   EGM_E_TRANSFER  the pool's memory cannot be reached
 *   other negative  what `guard` answered
 *
 * `guard` is asked before each chunk of at most 1 MiB: a writer whose session lease has run out, or
 * whose write was revoked, stops there. A large batch is copied by several threads (copy_batch.h):
 * guards are asked on any of them, also several at once for one transfer. */
#ifndef EGM_MOVER_MOVER_H
#define EGM_MOVER_MOVER_H

#include "base/detail.h"
#include "base/limits.h"

#include "wire/messages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct egm_import;

struct egm_transfer {
    uint64_t generation;
    uint32_t segment; /* of the import's provider */
    uint32_t extent_count;
    struct egm_extent extents[EGM_MAX_EXTENTS]; /* bytes; together >= length */
    const struct iovec
        *iov; /* borrowed; together exactly length for a write, >= length for a read */
    size_t iov_count;
    uint64_t length;   /* the object's size */
    bool is_write;     /* into the pool */
    bool has_checksum; /* read: compare with `checksum`; write: always computed */
    uint64_t checksum; /* read: in; write: out */
    int status;        /* out */
    /* 0 to go on, or a negative code that becomes the status. NULL: always go on. */
    int (*guard)(void *arg);
    void *guard_arg;
};

struct egm_import_options {
    uint64_t provider, epoch, session, process;
    const char *cluster;
    const char *address; /* map: "unix:/path"; tcp: "host:port" */
    uint64_t deadline_ns;
};

struct egm_mover_ops {
    const char *name;
    /* Errors with the reason; nothing is left behind. */
    int (*attach)(const struct egm_import_options *options, struct egm_import **ret_import,
                  struct egm_detail *reterr);
    void (*transfer)(struct egm_import *import, struct egm_transfer *transfers, size_t count,
                     uint64_t deadline_ns);
    bool (*is_lost)(struct egm_import *import);
    /* Pre-condition: no transfer runs. Unmaps, closes; the slot's lock is free afterwards. */
    void (*detach)(struct egm_import *import);
    /* In a child after fork: closes inherited fds, touches nothing else. */
    void (*abandon)(struct egm_import *import);
};

/* Embedded first in each mover's own import struct. */
struct egm_import {
    const struct egm_mover_ops *ops;
    uint64_t provider, epoch;
};

extern const struct egm_mover_ops egm_mover_map;
extern const struct egm_mover_ops egm_mover_tcp;

#endif
