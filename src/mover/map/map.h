/* SPDX-License-Identifier: Apache-2.0 */
/* The map mover: a provider of this host shares its pool as files, and we copy with the CPU.
 *
 * Per segment there are two mappings: the pool, read-write, and the fence table, read-only.
 *
 *   fence file, little-endian u64 (binding: docs/protocol.md)
 *     0 magic   8 version   16 provider   24 epoch   32 segment   40 size of the pool
 *     48 floor   56 nonce   64.. zero
 *     4096                     granule_fence[size / 64 KiB]
 *     then, 4 KiB aligned      slot_fence[size / 4 KiB]
 *
 * An entry is the highest generation known dead on the place it stands for; `floor` is that for all
 * places. Both only grow, and the provider raises them before it lets go of the place. Hence the
 * rule for a reader (keeps I1): copy, acquire fence, load floor and the entry of each extent's
 * first place; all below our generation, and the epoch as attached, means that nothing else can
 * have been written there while we copied. A writer looks before each chunk: it must not start one
 * on a place that was taken back, and the chunk that may already run is what the slot's lock is for
 * (I3).
 *
 * Nothing that comes from the provider is believed: lengths are checked with fstat before mmap, a
 * pool that could be cut (no SHRINK seal) is refused because a later cut would be a SIGBUS, and the
 * nonce must be readable through the pool mapping before the import is used.
 *
 * Threading: transfer and is_lost from any threads; attach makes the import, detach ends it, one
 * thread each. egm_map_populate_more is for one thread at a time. */
#ifndef EGM_MOVER_MAP_MAP_H
#define EGM_MOVER_MAP_MAP_H

#include "mover/mover.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define EGM_FENCE_MAGIC UINT64_C(0x31636e6665676d65)
#define EGM_FENCE_VERSION 1u
#define EGM_FENCE_HEADER_BYTES 4096u

/* Words of the header. */
enum egm_fence_word {
    EGM_FENCE_W_MAGIC = 0,
    EGM_FENCE_W_VERSION = 1,
    EGM_FENCE_W_PROVIDER = 2,
    EGM_FENCE_W_EPOCH = 3,
    EGM_FENCE_W_SEGMENT = 4,
    EGM_FENCE_W_SIZE = 5,
    EGM_FENCE_W_FLOOR = 6,
    EGM_FENCE_W_NONCE = 7,
};

/* Pages are populated in blocks of this size, one bit each. */
#define EGM_MAP_BLOCK (UINT64_C(2) << 20)

/* Background population stops here: page tables cost 2 MiB per GiB and process. */
#define EGM_MAP_BACKGROUND_MAX (UINT64_C(4) << 30)

/* Segments of one provider: one per NUMA node, and some. Bounds the fds of one attachment to
 * 512. */
#define EGM_MAP_MAX_SEGMENTS 256u

struct egm_map_segment {
    uint32_t number;
    uint64_t size;                 /* of the pool, bytes */
    unsigned char *pool;           /* NULL: not mapped */
    const _Atomic uint64_t *fence; /* NULL: not mapped; written by the provider only */
    size_t fence_bytes;            /* as mapped */
    size_t slot_word;              /* where slot_fence begins, in words */
    _Atomic uint64_t *populated;   /* bit per block: its pages are in our tables */
    uint64_t block_count;
};

struct egm_map_import {
    struct egm_import base;
    int fd; /* the attachment: open while mapped */
    _Atomic bool is_lost;
    struct egm_map_segment *segments;
    size_t segment_count;
    size_t next_segment; /* background population: where it goes on */
    uint64_t next_block;
    uint64_t background_bytes;
};

/* Bytes of the fence file for a pool of `size` bytes, and the word at which its slot entries
 * begin. */
size_t egm_fence_bytes(uint64_t size, size_t *ret_slot_word);

/* Maps one segment from its two files, which stay the caller's. The caller is between
 * egm_child_lock and _unlock. Errors: EGM_E_PROTO for a file that is not what `attached` says,
 * -errno. On failure the segment is as zeroed. */
EGM_MUST_CHECK int egm_map_segment_open(struct egm_map_segment *segment,
                                        const struct egm_attached *attached, uint64_t provider,
                                        uint64_t epoch, int pool_fd, int fence_fd,
                                        struct egm_detail *reterr);
void egm_map_segment_close(struct egm_map_segment *segment);

/* Sees to it that the pages of [offset, offset + length) are in our page tables. 0, or
 * EGM_E_TRANSFER when the memory cannot be reached (a copy would be a SIGBUS). */
EGM_MUST_CHECK int egm_map_populate(struct egm_map_segment *segment, uint64_t offset,
                                    uint64_t length);

/* Populates up to max_bytes more, in order, until EGM_MAP_BACKGROUND_MAX; returns how many. Pre: a
 * map import. */
size_t egm_map_populate_more(struct egm_import *import, size_t max_bytes);

void egm_map_transfer(struct egm_import *import, struct egm_transfer *transfers, size_t count,
                      uint64_t deadline_ns);

#endif
