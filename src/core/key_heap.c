/* SPDX-License-Identifier: Apache-2.0 */
#include "core/key_heap.h"

#include "base/assert.h"
#include "base/limits.h"

#include <string.h>

#define FINE_STEP 8u /* classes up to FINE_MOST bytes */
#define FINE_MOST 256u
#define FINE_CLASSES (FINE_MOST / FINE_STEP)
#define DOUBLING_BITS 3u /* above: classes of a doubling, as a power of two */
#define NO_CELL UINT16_MAX

struct egm_key_piece {
    struct egm_key_piece *prev, *next;
    uint16_t class_index;
    uint16_t used;       /* cells */
    uint16_t fresh;      /* the first cell that was never used */
    uint16_t free_first; /* cell that was given back, or NO_CELL */
    uint8_t rest[40];
};

static_assert(sizeof(struct egm_key_piece) == 64, "one cache line");
static_assert(FINE_CLASSES + (4u << DOUBLING_BITS) == EGM_KEY_CLASSES, "256 to 4096: 4 doublings");
static_assert(FINE_MOST << 4 == EGM_MAX_KEY, "256 to 4096: 4 doublings");

/* ---- classes ---- */
static uint32_t class_of(size_t size)
{
    EGM_ASSERT(size >= 1 && size <= EGM_MAX_KEY);
    uint32_t last = (uint32_t)size - 1; /* of the key's bytes: 0..4095 */
    if (last < FINE_MOST) {
        return last / FINE_STEP;
    }
    uint32_t top = 31u - (uint32_t)__builtin_clz(last); /* 8..11 */
    return FINE_CLASSES + ((top - 8) << DOUBLING_BITS) +
           (last >> (top - DOUBLING_BITS) & ((1u << DOUBLING_BITS) - 1));
}

static uint32_t cell_size(uint32_t class_index)
{
    if (class_index < FINE_CLASSES) {
        return (class_index + 1) * FINE_STEP;
    }
    uint32_t doubling = (class_index - FINE_CLASSES) >> DOUBLING_BITS;
    uint32_t step = class_index & ((1u << DOUBLING_BITS) - 1);
    return (FINE_MOST << doubling) + (step + 1) * ((FINE_MOST >> DOUBLING_BITS) << doubling);
}

static uint32_t cells_of(uint32_t class_index)
{
    return (uint32_t)(EGM_PIECE_SIZE - sizeof(struct egm_key_piece)) / cell_size(class_index);
}

static uint8_t *cell_at(struct egm_key_piece *piece, uint32_t cell)
{
    return (uint8_t *)(piece + 1) + (size_t)cell * cell_size(piece->class_index);
}

static bool has_room(const struct egm_key_piece *piece)
{
    return piece->used < cells_of(piece->class_index);
}

/* ---- lists of pieces ---- */
static void list(struct egm_key_piece **first, struct egm_key_piece *piece)
{
    piece->prev = NULL;
    piece->next = *first;
    if (*first) {
        (*first)->prev = piece;
    }
    *first = piece;
}

static void unlist(struct egm_key_piece **first, struct egm_key_piece *piece)
{
    if (piece->prev) {
        piece->prev->next = piece->next;
    } else {
        *first = piece->next;
    }
    if (piece->next) {
        piece->next->prev = piece->prev;
    }
}

void egm_key_heap_init(struct egm_key_heap *h, struct egm_pieces *pieces)
{
    *h = (struct egm_key_heap){.pieces = pieces};
}

static void release_list(struct egm_key_heap *h, struct egm_key_piece *piece)
{
    while (piece) {
        struct egm_key_piece *next = piece->next;
        egm_pieces_put(h->pieces, piece);
        piece = next;
    }
}

void egm_key_heap_release(struct egm_key_heap *h)
{
    for (uint32_t i = 0; i < EGM_KEY_CLASSES; i++) {
        release_list(h, h->open[i]);
        release_list(h, h->full[i]);
    }
    *h = (struct egm_key_heap){0};
}

/* ---- keys ---- */
static struct egm_key_piece *open_piece(struct egm_key_heap *h, uint32_t class_index)
{
    if (h->open[class_index]) {
        return h->open[class_index];
    }
    struct egm_key_piece *piece = egm_pieces_get(h->pieces);
    if (piece) {
        *piece =
            (struct egm_key_piece){.class_index = (uint16_t)class_index, .free_first = NO_CELL};
        list(&h->open[class_index], piece);
    }
    return piece;
}

static uint8_t *take_cell(struct egm_key_piece *piece)
{
    uint8_t *cell = cell_at(piece, piece->free_first == NO_CELL ? piece->fresh : piece->free_first);
    if (piece->free_first == NO_CELL) {
        piece->fresh++;
    } else {
        memcpy(&piece->free_first, cell, sizeof piece->free_first);
    }
    piece->used++;
    return cell;
}

const uint8_t *egm_key_heap_put(struct egm_key_heap *h, const uint8_t *key, size_t size)
{
    uint32_t class_index = class_of(size);
    struct egm_key_piece *piece = open_piece(h, class_index);
    if (!piece) {
        return NULL;
    }
    uint8_t *cell = take_cell(piece);
    if (!has_room(piece)) {
        unlist(&h->open[class_index], piece);
        list(&h->full[class_index], piece);
    }
    h->key_count++;
    return memcpy(cell, key, size);
}

void egm_key_heap_drop(struct egm_key_heap *h, const uint8_t *key, size_t size)
{
    size_t at = (uintptr_t)key % EGM_PIECE_SIZE;
    struct egm_key_piece *piece = (struct egm_key_piece *)(uintptr_t)(key - at);
    uint32_t class_index = class_of(size);
    EGM_ASSERT(piece->class_index == class_index && piece->used > 0);
    uint32_t cell = (uint32_t)(at - sizeof *piece) / cell_size(class_index);
    if (!has_room(piece)) {
        struct egm_key_piece *open = h->open[class_index];
        if (open && open->used == 0) { /* K3: it was the only one */
            unlist(&h->open[class_index], open);
            egm_pieces_put(h->pieces, open);
        }
        unlist(&h->full[class_index], piece);
        list(&h->open[class_index], piece);
    }
    memcpy(cell_at(piece, cell), &piece->free_first, sizeof piece->free_first);
    piece->free_first = (uint16_t)cell;
    piece->used--;
    h->key_count--;
    if (piece->used == 0 && (piece->prev || piece->next)) {
        unlist(&h->open[class_index], piece);
        egm_pieces_put(h->pieces, piece);
    }
}

/* ---- self-check ---- */
static bool is_piece_sound(struct egm_key_piece *piece, uint32_t class_index)
{
    uint32_t free_count = 0;
    uint32_t most = cells_of(class_index);
    uint16_t cell = piece->free_first;
    while (cell != NO_CELL && cell < piece->fresh && free_count <= most) {
        free_count++;
        memcpy(&cell, cell_at(piece, cell), sizeof cell);
    }
    return piece->class_index == class_index && cell == NO_CELL && piece->fresh <= most &&
           piece->used + free_count == piece->fresh;
}

bool egm_key_heap_is_sound(const struct egm_key_heap *h)
{
    size_t key_count = 0;
    for (uint32_t i = 0; i < EGM_KEY_CLASSES; i++) {
        for (struct egm_key_piece *p = h->open[i]; p; p = p->next) {
            key_count += p->used;
            if (!is_piece_sound(p, i) || !has_room(p) || (p->used == 0 && (p->prev || p->next))) {
                return false;
            }
        }
        for (struct egm_key_piece *p = h->full[i]; p; p = p->next) {
            key_count += p->used;
            if (!is_piece_sound(p, i) || has_room(p)) {
                return false;
            }
        }
    }
    return key_count == h->key_count;
}
