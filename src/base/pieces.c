/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pieces.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"

#include <errno.h>
#include <string.h>

#define NONE UINT32_MAX
#define ALL_FREE UINT32_MAX
#define FIRST_ROOM 16u

static_assert(EGM_PIECES_PER_BLOCK == 32, "the maps of a block are 32 bits");

/* ---- descriptors ---- */

static uint64_t hash_of(const uint8_t *base)
{
    return (uintptr_t)base / EGM_BLOCK_SIZE * UINT64_C(0x9e3779b97f4a7c15);
}

static uint32_t find_block(const struct egm_pieces *h, const void *piece)
{
    const uint8_t *base = (const uint8_t *)piece - (uintptr_t)piece % EGM_BLOCK_SIZE;
    struct egm_index_iter iter;
    uint32_t slot;

    egm_index_find(&h->by_base_, hash_of(base), &iter);
    while (egm_index_next(&iter, &slot)) {
        if (h->blocks_[slot].base == base) {
            return slot;
        }
    }
    return NONE;
}

static int grow_descriptors(struct egm_pieces *h)
{
    uint32_t room = h->block_room_ ? h->block_room_ * 2 : FIRST_ROOM;
    struct egm_block *grown = egm_realloc(h->blocks_, room * sizeof(*grown));

    if (!grown) {
        return -ENOMEM;
    }
    h->blocks_ = grown;
    for (uint32_t i = room; i-- > h->block_room_;) {
        h->blocks_[i] = (struct egm_block){.next = h->unused_first_};
        h->unused_first_ = i;
    }
    h->block_room_ = room;
    return 0;
}

/* ---- the list of open blocks ---- */

/* At the end: blocks that are filled first stay full, those behind them run empty. */
static void open_block(struct egm_pieces *h, uint32_t slot)
{
    struct egm_block *block = &h->blocks_[slot];

    block->prev = h->open_last_;
    block->next = NONE;
    if (h->open_last_ == NONE) {
        h->open_first_ = slot;
    } else {
        h->blocks_[h->open_last_].next = slot;
    }
    h->open_last_ = slot;
}

static void close_block(struct egm_pieces *h, uint32_t slot)
{
    const struct egm_block *block = &h->blocks_[slot];

    if (block->prev == NONE) {
        h->open_first_ = block->next;
    } else {
        h->blocks_[block->prev].next = block->next;
    }
    if (block->next == NONE) {
        h->open_last_ = block->prev;
    } else {
        h->blocks_[block->next].prev = block->prev;
    }
}

/* ---- blocks ---- */

/* Gets a block from the source, as the spare one. */
static int add_block(struct egm_pieces *h)
{
    uint8_t *base;
    uint32_t slot;

    if (h->unused_first_ == NONE && grow_descriptors(h) < 0) {
        return -ENOMEM;
    }
    base = h->source_.get(h->source_.arg, EGM_BLOCK_SIZE);
    if (!base) {
        return -ENOMEM;
    }
    EGM_ASSERT((uintptr_t)base % EGM_BLOCK_SIZE == 0);
    slot = h->unused_first_;
    if (egm_index_insert(&h->by_base_, hash_of(base), slot) < 0) {
        h->source_.put(h->source_.arg, base, EGM_BLOCK_SIZE);
        return -ENOMEM;
    }
    h->unused_first_ = h->blocks_[slot].next;
    h->blocks_[slot] = (struct egm_block){.base = base, .is_free = ALL_FREE};
    h->spare_ = slot;
    h->block_count_++;
    return 0;
}

static void remove_block(struct egm_pieces *h, uint32_t slot)
{
    uint8_t *base = h->blocks_[slot].base;
    bool was_there = egm_index_remove(&h->by_base_, hash_of(base), slot);

    EGM_ASSERT(was_there);
    h->source_.put(h->source_.arg, base, EGM_BLOCK_SIZE);
    h->blocks_[slot] = (struct egm_block){.next = h->unused_first_};
    h->unused_first_ = slot;
    h->block_count_--;
}

int egm_pieces_init(struct egm_pieces *h, const struct egm_block_source *source)
{
    *h = (struct egm_pieces){
        .unused_first_ = NONE, .open_first_ = NONE, .open_last_ = NONE, .spare_ = NONE};
    if (!source || !source->get) {
        return 0;
    }
    h->source_ = *source;
    return egm_index_init(&h->by_base_, 0, /*pieces=*/NULL);
}

void egm_pieces_release(struct egm_pieces *h)
{
    EGM_ASSERT(h->piece_count_ == 0);
    if (h->blocks_ && h->spare_ != NONE) {
        remove_block(h, h->spare_);
    }
    EGM_ASSERT(h->block_count_ == 0);
    egm_free(h->blocks_);
    egm_index_release(&h->by_base_);
    *h = (struct egm_pieces){0};
}

/* ---- pieces ---- */

static void *get_single(void)
{
    void *piece = egm_alloc_aligned(EGM_PIECE_SIZE, EGM_PIECE_SIZE);

    if (piece) {
        memset(piece, 0, EGM_PIECE_SIZE);
    }
    return piece;
}

static void *cut_piece(struct egm_pieces *h)
{
    struct egm_block *block;
    uint32_t bit;
    uint8_t *piece;

    if (!egm_alloc_admits()) {
        return NULL;
    }
    if (h->open_first_ == NONE) {
        if (h->spare_ == NONE && add_block(h) < 0) {
            return NULL;
        }
        open_block(h, h->spare_);
        h->spare_ = NONE;
    }
    block = &h->blocks_[h->open_first_];
    bit = (uint32_t)__builtin_ctz(block->is_free);
    piece = block->base + bit * EGM_PIECE_SIZE;
    block->is_free &= block->is_free - 1;
    if (block->was_used >> bit & 1u) {
        memset(piece, 0, EGM_PIECE_SIZE);
    }
    block->was_used |= UINT32_C(1) << bit;
    if (block->is_free == 0) {
        close_block(h, h->open_first_);
    }
    return piece;
}

void *egm_pieces_get(struct egm_pieces *h)
{
    void *piece = h->source_.get ? cut_piece(h) : get_single();

    h->piece_count_ += piece != NULL;
    return piece;
}

static void mend_piece(struct egm_pieces *h, uint8_t *piece)
{
    uint32_t slot = find_block(h, piece);
    struct egm_block *block;
    uint32_t bit;

    EGM_ASSERT(slot != NONE);
    block = &h->blocks_[slot];
    bit = UINT32_C(1) << (size_t)(piece - block->base) / EGM_PIECE_SIZE;
    EGM_ASSERT((block->is_free & bit) == 0 && (uintptr_t)piece % EGM_PIECE_SIZE == 0);
    if (block->is_free == 0) {
        open_block(h, slot);
    }
    block->is_free |= bit;
    if (block->is_free != ALL_FREE) {
        return;
    }
    close_block(h, slot);
    if (h->spare_ == NONE) {
        h->spare_ = slot;
    } else {
        remove_block(h, slot);
    }
}

void egm_pieces_put(struct egm_pieces *h, void *piece)
{
    if (!piece) {
        return;
    }
    EGM_ASSERT(h->piece_count_ > 0);
    h->piece_count_--;
    if (h->source_.get) {
        mend_piece(h, piece);
    } else {
        egm_free(piece);
    }
}

/* ---- what it holds ---- */

size_t egm_pieces_bytes(const struct egm_pieces *h)
{
    if (!h->source_.get) {
        return h->piece_count_ * EGM_PIECE_SIZE;
    }
    return h->block_count_ * EGM_BLOCK_SIZE + h->block_room_ * sizeof(struct egm_block) +
           egm_index_bytes(&h->by_base_);
}

bool egm_pieces_is_sound(const struct egm_pieces *h)
{
    size_t given = 0;
    uint32_t open_count = 0;
    uint32_t listed_count = 0;
    uint32_t block_count = 0;

    if (!h->source_.get) {
        return h->block_count_ == 0;
    }
    for (uint32_t slot = 0; slot < h->block_room_; slot++) {
        const struct egm_block *block = &h->blocks_[slot];

        if (!block->base) {
            continue;
        }
        block_count++;
        given += EGM_PIECES_PER_BLOCK - (size_t)__builtin_popcount(block->is_free);
        open_count += block->is_free != 0 && block->is_free != ALL_FREE;
        if (find_block(h, block->base) != slot || (~block->is_free & ~block->was_used) != 0 ||
            (block->is_free == ALL_FREE) != (slot == h->spare_)) {
            return false;
        }
    }
    for (uint32_t slot = h->open_first_; slot != NONE && listed_count <= open_count;
         slot = h->blocks_[slot].next) {
        listed_count++;
    }
    return listed_count == open_count && given == h->piece_count_ &&
           block_count == h->block_count_ && egm_index_count(&h->by_base_) == block_count;
}
