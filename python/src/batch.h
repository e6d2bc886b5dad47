/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arguments of one call, converted from Python, and its results on the way back.
 *
 *      keys      [k0, k1, k2, k3]       what was asked for
 *      results   [ ?, ?,  ?,  ?]        one per key, our codes
 *      items     [k0,     k2, k3]       what the library is asked to do
 *      slots     [ 0,      2,  3]       item i answers results[slots[i]]
 *      segments  [a a a | b | c c]      of all items, in item order
 *
 * A key whose arguments are unusable (list lengths that differ, no bytes at all, a NULL address,
 * sizes that wrap) never becomes an item: its result is set here and the others go on. One block
 * holds all arrays of the key count; segments grow by doubling, so nothing is quadratic, and both
 * have a bound.
 *
 * Key text is borrowed from the str and bytes objects; `held` owns a reference to each, since
 * another thread may change the caller's list while the GIL is released. Address and size lists are
 * read completely before that, and not held.
 *
 * Cost: one PyLong conversion per integer, no Python code runs for exact ints.
 */
#ifndef EGMPY_BATCH_H
#define EGMPY_BATCH_H

#include "binding.h"

struct egmpy_batch {
    enum egmpy_call_kind kind; /* whose numbers the results become; set by who runs it */
    size_t count;              /* keys */
    PyObject **held;           /* key objects, owned */
    struct egm_key *keys;
    int64_t *results;       /* per key */
    struct egm_item *items; /* at most count; `segments` is set by egmpy_batch_finish */
    int64_t *item_results;
    size_t *slots;
    size_t item_count;
    struct iovec *segments;
    size_t segment_count;
    size_t segment_capacity;
    PyObject *groups; /* tuple of str, one per key, or NULL; borrowed from the put plan */
};

/* All return 0, or -1 with an exception set. The batch must be zeroed first and released after any
 * outcome. */
int egmpy_batch_keys(struct egmpy_batch *batch, PyObject *keys);
int egmpy_batch_key(struct egmpy_batch *batch, PyObject *key);

/* Items of one segment each from two flat lists of integers, or of many from two lists of lists.
 * Lists of other lengths than the keys': no item is made and every result is EGM_E_INVALID. */
int egmpy_batch_flat(struct egmpy_batch *batch, PyObject *addresses, PyObject *sizes);
int egmpy_batch_nested(struct egmpy_batch *batch, PyObject *addresses, PyObject *sizes);

/* By hand: segments of key `slot`, then one egmpy_batch_item, which makes an item of those added
 * since `first`, or an EGM_E_INVALID result if they hold nothing. */
int egmpy_batch_segment(struct egmpy_batch *batch, uint64_t address, uint64_t size);
int egmpy_batch_item(struct egmpy_batch *batch, size_t slot, size_t first);

/* Points items at their segments. After it no segment may be added. */
void egmpy_batch_finish(struct egmpy_batch *batch);

void egmpy_batch_fill(struct egmpy_batch *batch, int64_t result);
/* Runs over item_results (or `code`, if negative, for all items) into results. True if any is
 * negative. */
bool egmpy_batch_settle(struct egmpy_batch *batch, int code);

/* results in Mooncake's numbers: as a list, or the first negative one (else 0). */
PyObject *egmpy_batch_list(const struct egmpy_batch *batch);
int64_t egmpy_batch_first_error(const struct egmpy_batch *batch);

void egmpy_batch_release(struct egmpy_batch *batch);

/* Like PySequence_Fast, but text is not a list of things. New reference. */
PyObject *egmpy_sequence(PyObject *object, const char *what);

#endif
