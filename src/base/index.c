/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash index with open addressing, linear probing and incremental growth.
 *
 * Model. A table is 2^bits positions of 8 bytes {tag, slot + 1}; slot + 1 == 0 means empty. The tag
 * is 32 bits of the mixed hash, and its top `bits` bits are the entry's home. An entry lies at its
 * home or behind it, with wrap-around:
 *
 *     home = tag >> (32 - bits)         home ........ entry ........ empty
 *                                       ^ no empty position between the two (X1)
 *
 * so a look-up walks from the home to the first empty position. Since the home follows from the tag
 * alone, entries can be moved without asking the user for hashes, and as a bigger table's homes are
 * (2h, 2h + 1), moving in order of position also fills the new table in order.
 *
 * Removing keeps X1 without tombstones: the hole is filled with the next entry of the run whose
 * home allows it, and so on until the run ends (Knuth, volume 3, algorithm 6.4R). Runs are short:
 * ~15 positions expected at the highest load.
 *
 * Growth. When an insert would pass 13/16 of the positions, the table becomes `old` and an empty
 * one of twice the size becomes `now`. Every insert and remove then looks at 32 positions of `old`,
 * from the last one downwards, and moves what it finds. Look-ups walk both. X2: positions of `old`
 * from left_ on are empty. An entry is taken out by the removal above, so X1 holds in `old` at
 * every moment. Downwards, the position behind the entry is empty already, so that there is nothing
 * to close; upwards, each removal would walk the rest of its run. Only the run that wraps around
 * takes more: what is pulled into its positions is moved next, before left_ passes them. X3:
 * `old` is empty long before `now` is full: emptying N positions with at most 14/16 N entries takes
 * at most 30/16 N looks = 30/512 N calls, and `now` has room for 13/16 N further inserts. X4: every
 * entry is in exactly one table.
 *
 * New entries go into `old` while their home there is below left_ and into `now` otherwise. So
 * `now` fills from its end like a tape: one chunk per ~130 calls. If it got new entries everywhere
 * from the beginning, the first few hundred inserts would need all of its chunks at once: 16 MiB
 * for a million entries, milliseconds in one turn of a loop. `old` takes N/16 of them at most
 * (old_room_), more than X3's number of calls, so it always keeps an empty position.
 *
 * Chunks. A table is an array of pointers to chunks of 8,192 positions (64 KiB; small tables have
 * one smaller chunk). A chunk is allocated, zeroed, when it is first written, and a chunk of `old`
 * is freed when left_ leaves it; a full one is a piece of the user's heap of pieces, if given. So
 * no call allocates, clears or frees more than a few chunks, however large the table; one big array
 * would cost a millisecond of page faults or munmap at some unlucky insert. A NULL chunk reads as
 * empty.
 *
 * Memory failure. An insert that gets no chunk fails and leaves its table as it was. Moving an
 * entry that gets no chunk stops the move; it is tried again at the next call. If that goes on
 * until `now` is full, inserts fail with -ENOMEM. Removes never allocate more than a move would,
 * and ignore its failure.
 *
 * What it does not do: shrink, compare keys, defend against chosen hashes (the user's hash is
 * seeded for that).
 */
#include "base/index.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/pieces.h"

#include <errno.h>
#include <string.h>

#define MIN_BITS 4u        /* the smallest table: 128 bytes */
#define MAX_BITS 31u       /* positions are uint32_t, and position + 1 must not wrap */
#define MAX_CHUNK_BITS 13u /* 8,192 positions = 64 KiB */
#define MOVE_STEPS 32u     /* positions of old_ looked at per call; X3 and old_room_ need 30 */

static_assert(sizeof(struct egm_index_entry) == 8, "memory per entry is promised");
static_assert(sizeof(struct egm_index_entry) << MAX_CHUNK_BITS == EGM_PIECE_SIZE,
              "a full chunk is a piece");

static uint32_t mask_of(const struct egm_index_table *t)
{
    return (UINT32_C(1) << t->bits_) - 1;
}

/* Entries a table takes before it must grow: 13/16 of its positions. */
static uint32_t limit_of(uint32_t bits)
{
    return (uint32_t)((UINT64_C(13) << bits) >> 4);
}

/* Multiplication by an odd constant carries every input bit towards the top ones, which become the
 * home. */
static uint32_t tag_of(uint64_t hash)
{
    return (uint32_t)((hash * UINT64_C(0x9E3779B97F4A7C15)) >> 32);
}

static uint32_t home_of(const struct egm_index_table *t, uint32_t tag)
{
    return tag >> (32 - t->bits_);
}

static struct egm_index_entry *chunk_at(const struct egm_index_table *t, uint32_t position)
{
    return t->chunks_[position >> t->chunk_bits_];
}

static uint32_t offset_in_chunk(const struct egm_index_table *t, uint32_t position)
{
    return position & ((UINT32_C(1) << t->chunk_bits_) - 1);
}

static struct egm_index_entry entry_at(const struct egm_index_table *t, uint32_t position)
{
    const struct egm_index_entry *chunk = chunk_at(t, position);

    return chunk ? chunk[offset_in_chunk(t, position)] : (struct egm_index_entry){0};
}

static int table_create(struct egm_index_table *ret_table, uint32_t bits)
{
    uint32_t chunk_bits = (uint32_t)egm_min_u64(bits, MAX_CHUNK_BITS);
    struct egm_index_entry **chunks;

    chunks = egm_calloc((size_t)1 << (bits - chunk_bits), sizeof(struct egm_index_entry *));
    if (!chunks) {
        return -ENOMEM;
    }
    *ret_table =
        (struct egm_index_table){.chunks_ = chunks, .bits_ = bits, .chunk_bits_ = chunk_bits};
    return 0;
}

static struct egm_index_entry *chunk_create(struct egm_index *ix, uint32_t chunk_bits)
{
    if (ix->pieces_ && chunk_bits == MAX_CHUNK_BITS) {
        return egm_pieces_get(ix->pieces_);
    }
    return egm_calloc((size_t)1 << chunk_bits, sizeof(struct egm_index_entry));
}

static void chunk_destroy(struct egm_index *ix, uint32_t chunk_bits, struct egm_index_entry *chunk)
{
    if (ix->pieces_ && chunk_bits == MAX_CHUNK_BITS) {
        egm_pieces_put(ix->pieces_, chunk);
    } else {
        egm_free(chunk);
    }
}

static void table_release(struct egm_index *ix, struct egm_index_table *t)
{
    if (t->chunks_) {
        for (size_t i = 0; i < (size_t)1 << (t->bits_ - t->chunk_bits_); i++) {
            chunk_destroy(ix, t->chunk_bits_, t->chunks_[i]);
        }
        egm_free(t->chunks_);
    }
    *t = (struct egm_index_table){0};
}

/* Places an entry of `now` at the first empty position from its home on. The caller has seen to it
 * that there is one. */
static int table_add(struct egm_index *ix, struct egm_index_entry entry)
{
    struct egm_index_table *t = &ix->now_;
    uint32_t position = home_of(t, entry.tag_);
    struct egm_index_entry *chunk;

    while (entry_at(t, position).slot_plus1_ != 0) {
        position = (position + 1) & mask_of(t);
    }
    chunk = chunk_at(t, position);
    if (!chunk) {
        chunk = chunk_create(ix, t->chunk_bits_);
        if (!chunk) {
            return -ENOMEM;
        }
        t->chunks_[position >> t->chunk_bits_] = chunk;
    }
    chunk[offset_in_chunk(t, position)] = entry;
    return 0;
}

/* Empties an occupied position and closes the run behind it. */
static void table_take_out(struct egm_index_table *t, uint32_t hole)
{
    uint32_t mask = mask_of(t);
    uint32_t position = hole;

    for (;;) {
        struct egm_index_entry entry;
        uint32_t from_home;

        position = (position + 1) & mask;
        entry = entry_at(t, position);
        if (entry.slot_plus1_ == 0) {
            break;
        }
        /* the entry may move to the hole iff its home is not between the hole (excluded) and itself
         */
        from_home = (position - home_of(t, entry.tag_)) & mask;
        if (from_home >= ((position - hole) & mask)) {
            chunk_at(t, hole)[offset_in_chunk(t, hole)] = entry;
            hole = position;
        }
    }
    chunk_at(t, hole)[offset_in_chunk(t, hole)] = (struct egm_index_entry){0};
}

/* Removes one entry equal to `wanted`; false if there is none. */
static bool table_remove(struct egm_index_table *t, struct egm_index_entry wanted)
{
    uint32_t position = home_of(t, wanted.tag_);

    for (;;) {
        struct egm_index_entry entry = entry_at(t, position);

        if (entry.slot_plus1_ == 0) {
            return false;
        }
        if (entry.tag_ == wanted.tag_ && entry.slot_plus1_ == wanted.slot_plus1_) {
            table_take_out(t, position);
            return true;
        }
        position = (position + 1) & mask_of(t);
    }
}

/* left_ goes one position down; frees the chunk that it leaves, and the table at its end. */
static void advance(struct egm_index *ix)
{
    struct egm_index_table *old = &ix->old_;

    ix->left_--;
    if (offset_in_chunk(old, ix->left_) == 0) {
        uint32_t chunk_index = ix->left_ >> old->chunk_bits_;

        chunk_destroy(ix, old->chunk_bits_, old->chunks_[chunk_index]);
        old->chunks_[chunk_index] = NULL;
    }
    if (ix->left_ == 0) {
        egm_free(old->chunks_);
        *old = (struct egm_index_table){0};
    }
}

/* A bounded piece of the move from old_ to now_. Stops early if memory is short. */
static void move_some(struct egm_index *ix)
{
    for (uint32_t i = 0; i < MOVE_STEPS && ix->old_.chunks_; i++) {
        struct egm_index_entry entry = entry_at(&ix->old_, ix->left_ - 1);

        if (entry.slot_plus1_ == 0) {
            advance(ix);
            continue;
        }
        if (table_add(ix, entry) < 0) {
            return;
        }
        table_take_out(&ix->old_, ix->left_ - 1); /* keeps X2 and X4 */
    }
}

/* Places an entry in old_, if it belongs there still. */
static bool add_to_old(struct egm_index *ix, struct egm_index_entry entry)
{
    struct egm_index_table *old = &ix->old_;

    if (!old->chunks_ || ix->old_room_ == 0) {
        return false;
    }
    for (uint32_t position = home_of(old, entry.tag_); position < ix->left_; position++) {
        struct egm_index_entry *chunk = chunk_at(old, position);

        if (!chunk) {
            return false;
        }
        if (chunk[offset_in_chunk(old, position)].slot_plus1_ == 0) {
            chunk[offset_in_chunk(old, position)] = entry;
            ix->old_room_--;
            return true;
        }
    }
    return false; /* it would lie where X2 wants nothing */
}

/* Makes the table old_ and begins one of twice the size. */
static int begin_growth(struct egm_index *ix)
{
    struct egm_index_table bigger;
    int r;

    if (ix->old_.chunks_) {
        return -ENOMEM; /* by X3 only a move that found no memory can still be under way */
    }
    if (ix->now_.bits_ == MAX_BITS) {
        return EGM_E_LIMIT;
    }
    r = table_create(&bigger, ix->now_.bits_ + 1);
    if (r < 0) {
        return r;
    }
    ix->old_ = ix->now_;
    ix->now_ = bigger;
    ix->left_ = mask_of(&ix->old_) + 1;
    ix->old_room_ = ix->left_ / 16;
    return 0;
}

int egm_index_init(struct egm_index *ix, size_t initial_capacity, struct egm_pieces *pieces)
{
    struct egm_index_table table;
    uint32_t bits = MIN_BITS;
    int r;

    if (initial_capacity > limit_of(MAX_BITS)) {
        return EGM_E_LIMIT;
    }
    while (limit_of(bits) < initial_capacity) {
        bits++;
    }
    r = table_create(&table, bits);
    if (r < 0) {
        return r;
    }
    *ix = (struct egm_index){.now_ = table, .pieces_ = pieces};
    return 0;
}

void egm_index_release(struct egm_index *ix)
{
    table_release(ix, &ix->now_);
    table_release(ix, &ix->old_);
    ix->pieces_ = NULL;
    ix->left_ = 0;
    ix->count_ = 0;
}

int egm_index_insert(struct egm_index *ix, uint64_t hash, uint32_t slot)
{
    struct egm_index_entry entry = {.tag_ = tag_of(hash), .slot_plus1_ = slot + 1};
    int r = 0;

    EGM_ASSERT(slot < UINT32_MAX);
    move_some(ix);
    if (ix->count_ >= limit_of(ix->now_.bits_)) {
        r = begin_growth(ix);
        if (r < 0) {
            return r;
        }
    }
    if (!add_to_old(ix, entry)) {
        r = table_add(ix, entry);
    }
    ix->count_ += r == 0;
    return r;
}

bool egm_index_remove(struct egm_index *ix, uint64_t hash, uint32_t slot)
{
    struct egm_index_entry wanted = {.tag_ = tag_of(hash), .slot_plus1_ = slot + 1};

    EGM_ASSERT(slot < UINT32_MAX);
    move_some(ix);
    if (!table_remove(&ix->now_, wanted) &&
        !(ix->old_.chunks_ && table_remove(&ix->old_, wanted))) {
        return false;
    }
    ix->count_--;
    return true;
}

static void iter_enter(struct egm_index_iter *iter, const struct egm_index_table *t)
{
    iter->table_ = t;
    iter->position_ = home_of(t, iter->tag_);
    iter->left_ = mask_of(t) + 1;
}

void egm_index_find(const struct egm_index *ix, uint64_t hash, struct egm_index_iter *ret_iter)
{
    *ret_iter = (struct egm_index_iter){.index_ = ix, .tag_ = tag_of(hash)};
    iter_enter(ret_iter, &ix->now_);
}

bool egm_index_next(struct egm_index_iter *iter, uint32_t *ret_slot)
{
    for (;;) {
        const struct egm_index_table *t = iter->table_;
        struct egm_index_entry entry = {0};

        if (iter->left_ > 0) {
            entry = entry_at(t, iter->position_);
        }
        if (entry.slot_plus1_ == 0) {
            if (t != &iter->index_->now_ || !iter->index_->old_.chunks_) {
                iter->left_ = 0; /* asking again gives false again */
                return false;
            }
            iter_enter(iter, &iter->index_->old_);
            continue;
        }
        iter->position_ = (iter->position_ + 1) & mask_of(t);
        iter->left_--;
        if (entry.tag_ == iter->tag_) {
            *ret_slot = entry.slot_plus1_ - 1;
            return true;
        }
    }
}

static void table_prefetch(const struct egm_index_table *t, uint32_t tag)
{
    uint32_t home = home_of(t, tag);
    const struct egm_index_entry *chunk = chunk_at(t, home);

    if (chunk) {
        __builtin_prefetch(&chunk[offset_in_chunk(t, home)]);
    }
}

void egm_index_prefetch(const struct egm_index *ix, uint64_t hash)
{
    table_prefetch(&ix->now_, tag_of(hash));
    if (ix->old_.chunks_) {
        table_prefetch(&ix->old_, tag_of(hash));
    }
}

size_t egm_index_count(const struct egm_index *ix)
{
    return ix->count_;
}

static size_t table_bytes(const struct egm_index_table *t)
{
    size_t chunk_count = t->chunks_ ? (size_t)1 << (t->bits_ - t->chunk_bits_) : 0;
    size_t bytes = chunk_count * sizeof(*t->chunks_);

    for (size_t i = 0; i < chunk_count; i++) {
        bytes += t->chunks_[i] ? sizeof(struct egm_index_entry) << t->chunk_bits_ : 0;
    }
    return bytes;
}

size_t egm_index_bytes(const struct egm_index *ix)
{
    return table_bytes(&ix->now_) + table_bytes(&ix->old_);
}
