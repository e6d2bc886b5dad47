/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash index: 64-bit hash -> 32-bit slot number, for tables that own their items.
 *
 * The index knows no keys. Its user keeps items in an array of its own, computes a hash of an
 * item's key (seeded, if the keys come from outside) and asks for candidates; most of the time
 * there is exactly one, and the user compares the full key. Equal hashes, and even equal pairs, may
 * be stored; each insert adds one entry.
 *
 *     struct egm_index_iter it;
 *     uint32_t slot;
 *     egm_index_find(&ix, hash, &it);
 *     while (egm_index_next(&it, &slot)) {
 *         if (items[slot] is the one) ...
 *     }
 *
 * How it works is told in index.c. What matters to a user:
 * - No call does work proportional to the number of entries: growth moves at most 32 entries per
 *   insert or remove, and tables consist of 64 KiB chunks that are allocated when first written and
 *   freed when emptied.
 * - An entry takes 8 bytes, at a load of 41..81 %: 10 to 20 bytes of memory per entry, ~13 on
 *   average.
 * - It never shrinks by itself.
 * - slot < UINT32_MAX; at most 1.7 thousand million entries.
 *
 * Not threadsafe; lookups alone may run in parallel. An iterator is valid until the next insert,
 * remove or release.
 */
#ifndef EGM_BASE_INDEX_H
#define EGM_BASE_INDEX_H

#include "egmstore/errors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct egm_pieces;

struct egm_index_entry {
    uint32_t tag_;        /* mixed hash; its top bits are the home position */
    uint32_t slot_plus1_; /* 0 = empty */
};

struct egm_index_table {
    struct egm_index_entry **chunks_; /* NULL chunk = all empty; NULL array = no table */
    uint32_t bits_;                   /* log2 of the number of positions */
    uint32_t chunk_bits_;             /* log2 of positions per chunk */
};

struct egm_index {
    struct egm_index_table now_;
    struct egm_index_table old_; /* being emptied while growing; chunks_ NULL otherwise */
    struct egm_pieces *pieces_;  /* where full chunks come from; NULL: base/alloc */
    uint32_t left_;              /* positions of old_ from this one on are empty */
    uint32_t old_room_;          /* entries that old_ may still be given */
    uint32_t count_;             /* entries in both */
};

struct egm_index_iter {
    const struct egm_index *index_;
    const struct egm_index_table *table_;
    uint32_t tag_;
    uint32_t position_;
    uint32_t left_; /* positions of the table not yet looked at */
};

/* An empty index that takes `initial_capacity` entries before it first grows (0: a small default).
 * Allocates only a few bytes per 8,192 entries now. `pieces` is borrowed until release: chunks of
 * 64 KiB come from there; NULL: from base/alloc, as everything smaller does. 0, -ENOMEM, or
 * EGM_E_LIMIT for a capacity beyond the maximum. */
EGM_MUST_CHECK int egm_index_init(struct egm_index *ix, size_t initial_capacity,
                                  struct egm_pieces *pieces);

/* Frees everything; the struct is then like zeroed, and releasing again or a zeroed one is fine.
 * Visits all chunks. */
void egm_index_release(struct egm_index *ix);

/* Adds an entry; does not look for an equal one. Pre: slot < UINT32_MAX.
 * 0, -ENOMEM or EGM_E_LIMIT; on error the index is as before. */
EGM_MUST_CHECK int egm_index_insert(struct egm_index *ix, uint64_t hash, uint32_t slot);

/* Removes one entry {hash, slot}; false if there is none. Never fails for lack of memory. */
bool egm_index_remove(struct egm_index *ix, uint64_t hash, uint32_t slot);

/* Begins a walk over the entries that may have this hash (all that have, and rarely another). */
void egm_index_find(const struct egm_index *ix, uint64_t hash, struct egm_index_iter *ret_iter);

/* Gives the next candidate's slot, or returns false at the end (*ret_slot is then untouched). */
bool egm_index_next(struct egm_index_iter *iter, uint32_t *ret_slot);

/* Starts loading the cache lines that a find of `hash` will touch. */
void egm_index_prefetch(const struct egm_index *ix, uint64_t hash);

/* Number of entries. */
size_t egm_index_count(const struct egm_index *ix);

/* Bytes of its tables, chunks from `pieces` included. Visits all chunks. */
size_t egm_index_bytes(const struct egm_index *ix);

#endif
