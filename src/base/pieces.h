/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A heap of pieces: 64 KiB each, aligned to their size, zeroed when they are given out.
 *
 * What it is for. Tables of millions of small items are read at random: with 4 KiB pages nearly
 * each look costs a TLB miss besides the cache miss. Their memory comes in blocks of 2 MiB, the
 * huge page of x86-64 and of aarch64 with 4 KiB pages, so that the kernel can map each by one
 * entry; a table cuts its items out of pieces of a block.
 *
 *     block, 2 MiB, aligned to its size       | 0 | 1 | 2 | ...                     | 31 |
 *     its bits: is_free, and was_used (must be zeroed before it is given out again)
 *
 * Where blocks come from is the owner's matter (struct egm_block_source): src/os/pages.c maps them.
 * Without a source each piece is an allocation of its own (base/alloc), so that sanitizers see its
 * bounds; tests and the simulator run so. Either way each piece counts in the countdown of
 * egm_alloc_fail_after.
 *
 *   P1 A block is full (no free piece), open (some free; listed), or spare (all free). At most one
 *      is spare; when another becomes wholly free it goes back to the source.
 *   P2 A free piece without a set was_used bit is zero: the source's memory is.
 *
 * Cost. A piece that was used before is cleared when it is given out: ~4 us. A fresh block costs
 * the first touch of a huge page: 100 to 300 us on the reference machine, once per 32 pieces and
 * only when tables grow; nothing is given back or fetched during look-ups.
 *
 * Not threadsafe.
 */
#ifndef EGM_BASE_PIECES_H
#define EGM_BASE_PIECES_H

#include "base/index.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EGM_PIECE_SIZE ((size_t)65536)
#define EGM_BLOCK_SIZE ((size_t)2 << 20)
#define EGM_PIECES_PER_BLOCK (EGM_BLOCK_SIZE / EGM_PIECE_SIZE)

struct egm_block_source {
    /* `size` zero bytes aligned to `size` (a power of two), or NULL. */
    void *(*get)(void *arg, size_t size);
    void (*put)(void *arg, void *block, size_t size);
    void *arg;
};

struct egm_block {
    uint8_t *base;       /* NULL: descriptor unused */
    uint32_t is_free;    /* bit per piece */
    uint32_t was_used;   /* bit per piece: P2 */
    uint32_t prev, next; /* open blocks; unused descriptors by next */
};

struct egm_pieces {
    struct egm_block_source source_;
    struct egm_block *blocks_;
    uint32_t block_room_;
    uint32_t unused_first_; /* descriptors without a block */
    uint32_t open_first_, open_last_;
    uint32_t spare_;
    uint32_t block_count_;
    struct egm_index by_base_;
    size_t piece_count_; /* given out */
};

/* `source` is copied; NULL, or one without get: each piece is allocated by itself. 0 or -ENOMEM. */
EGM_MUST_CHECK int egm_pieces_init(struct egm_pieces *h, const struct egm_block_source *source);
/* Pre: every piece was put back. The struct is then like zeroed; a zeroed one is fine. */
void egm_pieces_release(struct egm_pieces *h);

/* EGM_PIECE_SIZE zero bytes aligned to it, or NULL. */
void *egm_pieces_get(struct egm_pieces *h);
/* NULL is fine. */
void egm_pieces_put(struct egm_pieces *h, void *piece);

/* Bytes it holds: whole blocks, their descriptors and their index. */
size_t egm_pieces_bytes(const struct egm_pieces *h);

/* Walks the blocks (P1); for tests and the simulator. */
bool egm_pieces_is_sound(const struct egm_pieces *h);

#endif
