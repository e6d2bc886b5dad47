/* SPDX-License-Identifier: Apache-2.0 */
/* The keys' memory: 1 to EGM_MAX_KEY bytes each, in size classes, cut out of pieces. Pure.
 *
 * Classes: every 8 bytes up to 256, then eight to a doubling: 64 classes; a key wastes 4 bytes on
 * average up to 256, and at most an eighth above. A piece holds cells of one class behind a header:
 *
 *     | header, 64 bytes | cell 0 | cell 1 | ...  | rest, smaller than a cell |
 *
 * Its header is found from a key by rounding the address down. Cells that were given back are
 * linked by their first two bytes (number of the next one); those never used lie behind `fresh`.
 *
 *   K1 A piece is in one list of its class: `open` while it has a cell left, else `full`.
 *   K2 used + given back + never used = the cells that fit.
 *   K3 An empty piece goes back, unless it is the only open one of its class: a key that comes and
 *      goes then costs no clearing of pieces. At most 4 MiB stay so. */
#ifndef EGM_CORE_KEY_HEAP_H
#define EGM_CORE_KEY_HEAP_H

#include "base/pieces.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EGM_KEY_CLASSES 64

struct egm_key_piece;

struct egm_key_heap {
    struct egm_pieces *pieces; /* borrowed */
    struct egm_key_piece *open[EGM_KEY_CLASSES];
    struct egm_key_piece *full[EGM_KEY_CLASSES];
    size_t key_count;
};

void egm_key_heap_init(struct egm_key_heap *h, struct egm_pieces *pieces);
/* Gives all pieces back, with the keys that are still in them. A zeroed struct is fine. */
void egm_key_heap_release(struct egm_key_heap *h);

/* A copy of the key; NULL when there is no memory. Pre: 1 <= size <= EGM_MAX_KEY. */
const uint8_t *egm_key_heap_put(struct egm_key_heap *h, const uint8_t *key, size_t size);
/* `key` came from egm_key_heap_put, with that size. */
void egm_key_heap_drop(struct egm_key_heap *h, const uint8_t *key, size_t size);

/* Walks all pieces (K1..K3); for tests and the simulator. */
bool egm_key_heap_is_sound(const struct egm_key_heap *h);

#endif
