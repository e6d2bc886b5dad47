/* SPDX-License-Identifier: Apache-2.0 */
#include "core/extents.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"

#include <errno.h>

#define NONE UINT32_MAX
#define SLOTS ((uint32_t)EGM_SLOTS_PER_GRANULE)
#define ALL_SLOTS 0xffffu
#define BIN_LOOKS 16

enum granule_state {
    TAKEN = 0,
    FREE_EDGE = 1,
    FREE_INSIDE = 2,
    CUT = 3
};

struct egm_granule {
    uint32_t prev, next; /* links of its bin or cut list */
    uint32_t run;        /* FREE_EDGE: granules of the run; CUT: map of free slots */
    uint32_t state;
};

/* ---- bins of free runs ---- */
/* Runs below 4 have exact bins; from there each power of two has four. */
static uint32_t bin_of(uint32_t run)
{
    if (run < 4) {
        return run;
    }
    uint32_t log = 31u - (uint32_t)__builtin_clz(run);
    return (log - 1) * 4 + ((run >> (log - 2)) & 3u);
}

static uint32_t first_bin_from(const struct egm_extents *x, uint32_t bin)
{
    for (uint32_t word = bin / 64; word < 2; word++) {
        uint64_t map = x->bin_map_[word];
        if (word == bin / 64) {
            map &= ~UINT64_C(0) << (bin % 64);
        }
        if (map) {
            return word * 64 + (uint32_t)__builtin_ctzll(map);
        }
    }
    return NONE;
}

static void link_first(struct egm_extents *x, uint32_t *head, uint32_t at)
{
    x->granules_[at].prev = NONE;
    x->granules_[at].next = *head;
    if (*head != NONE) {
        x->granules_[*head].prev = at;
    }
    *head = at;
}

static void unlink_from(struct egm_extents *x, uint32_t *head, uint32_t at)
{
    struct egm_granule *g = &x->granules_[at];
    if (g->prev == NONE) {
        *head = g->next;
    } else {
        x->granules_[g->prev].next = g->next;
    }
    if (g->next != NONE) {
        x->granules_[g->next].prev = g->prev;
    }
}

static void add_run(struct egm_extents *x, uint32_t at, uint32_t run)
{
    uint32_t bin = bin_of(run);
    x->granules_[at].state = FREE_EDGE;
    x->granules_[at].run = run;
    x->granules_[at + run - 1].state = FREE_EDGE;
    x->granules_[at + run - 1].run = run;
    link_first(x, &x->bins_[bin], at);
    x->bin_map_[bin / 64] |= UINT64_C(1) << (bin % 64);
}

static void drop_run(struct egm_extents *x, uint32_t at)
{
    uint32_t bin = bin_of(x->granules_[at].run);
    unlink_from(x, &x->bins_[bin], at);
    if (x->bins_[bin] == NONE) {
        x->bin_map_[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
    }
}

/* A run of at least `want` granules, or NONE. */
static uint32_t find_run(const struct egm_extents *x, uint32_t want)
{
    uint32_t own = bin_of(want);
    uint32_t at = x->bins_[own];
    for (int looks = 0; at != NONE && looks < BIN_LOOKS; looks++) {
        if (x->granules_[at].run >= want) {
            return at;
        }
        at = x->granules_[at].next;
    }
    uint32_t bin = first_bin_from(x, own + 1);
    return bin != NONE ? x->bins_[bin] : NONE;
}

static void mark(struct egm_extents *x, uint32_t at, uint32_t run, enum granule_state state)
{
    for (uint32_t i = at; i < at + run; i++) {
        x->granules_[i].state = state;
    }
}

/* Takes `want` granules at `from` out of the run that starts at `at`; the rest stays free. */
static void carve(struct egm_extents *x, uint32_t at, uint32_t from, uint32_t want)
{
    uint32_t run = x->granules_[at].run;
    drop_run(x, at);
    mark(x, from, want, TAKEN);
    if (from > at) {
        add_run(x, at, from - at);
    }
    if (from + want < at + run) {
        add_run(x, from + want, at + run - from - want);
    }
    x->free_bytes -= (uint64_t)want * EGM_GRANULE;
}

static void give_granules(struct egm_extents *x, uint32_t at, uint32_t run)
{
    x->free_bytes += (uint64_t)run * EGM_GRANULE;
    mark(x, at, run, FREE_INSIDE);
    if (x->granules_[at - 1].state == FREE_EDGE) { /* granule 0 is TAKEN, so at - 1 is there */
        uint32_t before = x->granules_[at - 1].run;
        drop_run(x, at - before);
        x->granules_[at - 1].state = FREE_INSIDE;
        x->granules_[at - before].state = FREE_INSIDE;
        at -= before;
        run += before;
    }
    uint32_t after = at + run;
    if (after < x->granule_count && x->granules_[after].state == FREE_EDGE) {
        uint32_t more = x->granules_[after].run;
        drop_run(x, after);
        x->granules_[after].state = FREE_INSIDE;
        x->granules_[after + more - 1].state = FREE_INSIDE;
        run += more;
    }
    add_run(x, at, run);
}

/* ---- cut granules ---- */
static uint32_t longest_row(uint32_t map)
{
    uint32_t row = 0;
    while (map) {
        map &= map << 1;
        row++;
    }
    return row;
}

/* First slot of a row of `want` free ones; there is one. */
static uint32_t row_at(uint32_t map, uint32_t want)
{
    uint32_t row = map;
    for (uint32_t i = 1; i < want; i++) {
        row &= map >> i;
    }
    return (uint32_t)__builtin_ctz(row);
}

static uint32_t row_mask(uint32_t slot, uint32_t count)
{
    return ((1u << count) - 1u) << slot;
}

/* Puts a cut granule with this map where it belongs now: a cut list, or nowhere when it is full. */
static void set_cut(struct egm_extents *x, uint32_t at, uint32_t map)
{
    x->granules_[at].state = CUT;
    x->granules_[at].run = map;
    if (map) {
        link_first(x, &x->cut_[longest_row(map)], at);
    }
}

static void drop_cut(struct egm_extents *x, uint32_t at)
{
    uint32_t map = x->granules_[at].run;
    if (map) {
        unlink_from(x, &x->cut_[longest_row(map)], at);
    }
}

static int take_slots(struct egm_extents *x, uint32_t want, struct egm_place *ret_place)
{
    uint32_t at = NONE;
    for (uint32_t row = want; row < SLOTS && at == NONE; row++) {
        at = x->cut_[row];
    }
    uint32_t map = ALL_SLOTS;
    if (at != NONE) {
        map = x->granules_[at].run;
        drop_cut(x, at);
    } else {
        at = find_run(x, 1);
        if (at == NONE) {
            return EGM_E_NO_SPACE;
        }
        carve(x, at, at, 1);
        x->free_bytes += EGM_GRANULE;
    }
    uint32_t slot = row_at(map, want);
    set_cut(x, at, map & ~row_mask(slot, want));
    x->free_bytes -= (uint64_t)want * EGM_SLOT;
    *ret_place = (struct egm_place){.at = at * SLOTS + slot, .count = want};
    return 0;
}

static void give_slots(struct egm_extents *x, struct egm_place place)
{
    uint32_t at = place.at / SLOTS;
    uint32_t mask = row_mask(place.at % SLOTS, place.count);
    uint32_t map = x->granules_[at].run;
    EGM_ASSERT(x->granules_[at].state == CUT && (map & mask) == 0);
    drop_cut(x, at);
    map |= mask;
    x->free_bytes += (uint64_t)place.count * EGM_SLOT;
    if (map == ALL_SLOTS) {
        x->granules_[at].state = TAKEN;
        x->free_bytes -= EGM_GRANULE;
        give_granules(x, at, 1);
    } else {
        set_cut(x, at, map);
    }
}

/* ---- the interface ---- */
int egm_extents_init(struct egm_extents *x, uint64_t size_bytes)
{
    if (size_bytes < 2 * EGM_GRANULE || size_bytes > EGM_MAX_SEGMENT_BYTES) {
        return EGM_E_LIMIT;
    }
    *x = (struct egm_extents){.granule_count = (uint32_t)(size_bytes / EGM_GRANULE)};
    x->granules_ = egm_calloc(x->granule_count, sizeof *x->granules_);
    if (!x->granules_) {
        *x = (struct egm_extents){0};
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < EGM_EXTENT_BINS; i++) {
        x->bins_[i] = NONE;
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        x->cut_[i] = NONE;
    }
    mark(x, 1, x->granule_count - 1, FREE_INSIDE);
    add_run(x, 1, x->granule_count - 1);
    x->free_bytes = (uint64_t)(x->granule_count - 1) * EGM_GRANULE;
    return 0;
}

void egm_extents_release(struct egm_extents *x)
{
    egm_free(x->granules_);
    *x = (struct egm_extents){0};
}

uint64_t egm_extents_rounded(uint64_t bytes)
{
    return egm_align_up(bytes, bytes > EGM_GRANULE - EGM_SLOT ? EGM_GRANULE : EGM_SLOT);
}

static uint32_t longest_run(const struct egm_extents *x)
{
    for (uint32_t bin = EGM_EXTENT_BINS; bin-- > 0;) {
        if (x->bins_[bin] != NONE) {
            return x->bins_[bin];
        }
    }
    return NONE;
}

static int take_pieces(struct egm_extents *x, uint32_t want, struct egm_place *ret_places,
                       uint32_t *ret_count)
{
    uint32_t count = 0;
    while (want > 0 && count < EGM_MAX_EXTENTS) {
        uint32_t at = find_run(x, want);
        at = at != NONE ? at : longest_run(x);
        if (at == NONE) {
            break;
        }
        uint32_t run = x->granules_[at].run < want ? x->granules_[at].run : want;
        carve(x, at, at, run);
        ret_places[count++] = (struct egm_place){.at = at * SLOTS, .count = run * SLOTS};
        want -= run;
    }
    if (want == 0) {
        *ret_count = count;
        return 0;
    }
    while (count > 0) {
        egm_extents_give(x, ret_places[--count]);
    }
    return EGM_E_NO_SPACE;
}

int egm_extents_take(struct egm_extents *x, uint64_t bytes, struct egm_place *ret_places,
                     uint32_t *ret_count)
{
    uint64_t rounded = egm_extents_rounded(bytes);
    if (rounded > x->free_bytes) {
        return EGM_E_NO_SPACE;
    }
    if (rounded < EGM_GRANULE) {
        *ret_count = 1;
        return take_slots(x, (uint32_t)(rounded / EGM_SLOT), ret_places);
    }
    return take_pieces(x, (uint32_t)(rounded / EGM_GRANULE), ret_places, ret_count);
}

static int take_slots_at(struct egm_extents *x, struct egm_place place)
{
    uint32_t at = place.at / SLOTS;
    uint32_t mask = row_mask(place.at % SLOTS, place.count);
    if (x->granules_[at].state != CUT) {
        struct egm_place whole = {.at = at * SLOTS, .count = SLOTS};
        int r = egm_extents_take_at(x, whole);
        if (r < 0) {
            return r;
        }
        x->free_bytes += EGM_GRANULE;
        set_cut(x, at, ALL_SLOTS & ~mask);
    } else if ((x->granules_[at].run & mask) == mask) {
        uint32_t map = x->granules_[at].run;
        drop_cut(x, at);
        set_cut(x, at, map & ~mask);
    } else {
        return EGM_E_NO_SPACE;
    }
    x->free_bytes -= (uint64_t)place.count * EGM_SLOT;
    return 0;
}

int egm_extents_take_at(struct egm_extents *x, struct egm_place place)
{
    uint32_t at = place.at / SLOTS;
    uint64_t end = (uint64_t)place.at + place.count;
    if (at == 0 || place.count == 0 || end > (uint64_t)x->granule_count * SLOTS) {
        return EGM_E_INVALID;
    }
    if (place.count < SLOTS) {
        return end <= (uint64_t)(at + 1) * SLOTS ? take_slots_at(x, place) : EGM_E_INVALID;
    }
    if (place.at % SLOTS || place.count % SLOTS) {
        return EGM_E_INVALID;
    }
    uint32_t start = at;
    while (x->granules_[start].state == FREE_INSIDE) {
        start--;
    }
    uint32_t want = place.count / SLOTS;
    if (x->granules_[start].state != FREE_EDGE ||
        (start != at && start + x->granules_[start].run <= at)) {
        return EGM_E_NO_SPACE;
    }
    if (start == at && x->granules_[at - 1].state >= FREE_EDGE &&
        x->granules_[at - 1].state != CUT) {
        start = at + 1 - x->granules_[at].run; /* `at` is the last granule of its run */
    }
    if (at + want > start + x->granules_[start].run) {
        return EGM_E_NO_SPACE;
    }
    carve(x, start, at, want);
    return 0;
}

void egm_extents_give(struct egm_extents *x, struct egm_place place)
{
    if (place.count < SLOTS) {
        give_slots(x, place);
    } else {
        EGM_ASSERT(x->granules_[place.at / SLOTS].state == TAKEN);
        give_granules(x, place.at / SLOTS, place.count / SLOTS);
    }
}

bool egm_extents_is_sound(const struct egm_extents *x)
{
    uint64_t free_bytes = 0;
    bool was_free = false;
    for (uint32_t at = 1; at < x->granule_count;) {
        const struct egm_granule *g = &x->granules_[at];
        bool is_free = g->state == FREE_EDGE;
        uint32_t run = is_free ? g->run : 1;
        if (g->state == FREE_INSIDE || (is_free && was_free) ||
            (is_free && (run == 0 || at + run > x->granule_count))) {
            return false;
        }
        if (is_free && x->granules_[at + run - 1].run != run) {
            return false;
        }
        free_bytes += is_free ? run * EGM_GRANULE : 0;
        if (g->state == CUT) {
            free_bytes += (uint64_t)__builtin_popcount(g->run) * EGM_SLOT;
        }
        was_free = is_free;
        at += run;
    }
    return free_bytes == x->free_bytes;
}
