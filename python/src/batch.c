/* SPDX-License-Identifier: Apache-2.0 */
#include "batch.h"

#include <stdlib.h>

enum {
    KEYS_MAX = 1 << 22,     /* 64 lookups of a 128k prompt on 16 ranks; 300 MB of arrays */
    SEGMENTS_MAX = 1 << 25, /* 512 MB of iovecs: 50 times the largest known get (655,360) */
    SEGMENTS_FIRST = 64,
};

PyObject *egmpy_sequence(PyObject *object, const char *what)
{
    if (PyList_CheckExact(object) || PyTuple_CheckExact(object)) {
        return Py_NewRef(object);
    }
    if (PyUnicode_Check(object) || PyBytes_Check(object) || !PySequence_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be a list, not %.100s", what,
                     Py_TYPE(object)->tp_name);
        return NULL;
    }
    PyObject *fast = PySequence_Fast(object, "not a sequence");
    if (!fast && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Format(PyExc_TypeError, "%s must be a list, not %.100s", what,
                     Py_TYPE(object)->tp_name);
    }
    return fast;
}

static int refuse_number(PyObject *object)
{
    PyErr_Format(PyExc_TypeError,
                 "addresses and sizes must be integers from 0 to 2**64-1, not %.200R", object);
    return -1;
}

/* Exact and derived ints without running Python code; others (numpy's) through __index__. */
static int convert_number(PyObject *object, uint64_t *ret)
{
    if (PyLong_Check(object)) {
        unsigned long value = PyLong_AsUnsignedLong(object);
        if (value == (unsigned long)-1 && PyErr_Occurred()) {
            PyErr_Clear();
            return refuse_number(object);
        }
        *ret = value;
        return 0;
    }
    PyObject *index = PyNumber_Index(object);
    if (!index) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
            return -1;
        }
        PyErr_Clear();
        return refuse_number(object);
    }
    int r = convert_number(index, ret);
    Py_DECREF(index);
    return r;
}

_Static_assert(sizeof(unsigned long) == sizeof(uint64_t), "addresses fit an unsigned long");

int egmpy_convert_u64(PyObject *object, void *ret_u64)
{
    return convert_number(object, ret_u64) == 0; /* PyArg's convention: 1 is success */
}

static int hold_key(struct egmpy_batch *batch, size_t i, PyObject *object)
{
    struct egm_key *key = &batch->keys[i];
    Py_ssize_t size;
    if (PyUnicode_Check(object)) {
        key->data = PyUnicode_AsUTF8AndSize(object, &size);
        if (!key->data) {
            if (PyErr_ExceptionMatches(PyExc_UnicodeError)) {
                PyErr_Format(PyExc_TypeError, "key %zu is no valid Unicode text", i);
            }
            return -1;
        }
    } else if (PyBytes_Check(object)) {
        key->data = PyBytes_AS_STRING(object);
        size = PyBytes_GET_SIZE(object);
    } else {
        PyErr_Format(PyExc_TypeError, "keys must be str, not %.100s", Py_TYPE(object)->tp_name);
        return -1;
    }
    key->size = (size_t)size;
    batch->held[i] = Py_NewRef(object);
    batch->count = i + 1;
    return 0;
}

/* One block, widest alignment first, so that every array stays aligned. */
static int allocate_arrays(struct egmpy_batch *batch, size_t count)
{
    if (count > KEYS_MAX) {
        PyErr_Format(PyExc_RuntimeError, "%zu keys in one call, at most %d are taken", count,
                     (int)KEYS_MAX);
        return -1;
    }
    size_t each = sizeof(*batch->held) + sizeof(*batch->keys) + sizeof(*batch->results) +
                  sizeof(*batch->items) + sizeof(*batch->item_results) + sizeof(*batch->slots);
    batch->held = malloc(each * (count ? count : 1));
    if (!batch->held) {
        PyErr_NoMemory();
        return -1;
    }
    batch->keys = (struct egm_key *)(batch->held + count);
    batch->items = (struct egm_item *)(batch->keys + count);
    batch->results = (int64_t *)(batch->items + count);
    batch->item_results = batch->results + count;
    batch->slots = (size_t *)(batch->item_results + count);
    return 0;
}

_Static_assert(_Alignof(struct egm_item) <= sizeof(void *) && _Alignof(int64_t) <= sizeof(void *),
               "arrays of the block follow each other without padding");

int egmpy_batch_keys(struct egmpy_batch *batch, PyObject *keys)
{
    PyObject *list = egmpy_sequence(keys, "keys");
    if (!list) {
        return -1;
    }
    size_t count = (size_t)PySequence_Fast_GET_SIZE(list);
    int r = allocate_arrays(batch, count);
    /* No Python code runs in this loop, so the list cannot change under it. */
    for (size_t i = 0; r == 0 && i < count; i++) {
        r = hold_key(batch, i, PySequence_Fast_GET_ITEM(list, (Py_ssize_t)i));
    }
    Py_DECREF(list);
    return r;
}

int egmpy_batch_key(struct egmpy_batch *batch, PyObject *key)
{
    int r = allocate_arrays(batch, 1);
    return r == 0 ? hold_key(batch, 0, key) : r;
}

static int grow_segments(struct egmpy_batch *batch)
{
    size_t capacity = batch->segment_capacity ? batch->segment_capacity * 2 : SEGMENTS_FIRST;
    if (capacity > SEGMENTS_MAX) {
        PyErr_Format(PyExc_RuntimeError, "more than %d segments in one call", (int)SEGMENTS_MAX);
        return -1;
    }
    struct iovec *segments = realloc(batch->segments, capacity * sizeof(*segments));
    if (!segments) {
        PyErr_NoMemory();
        return -1;
    }
    batch->segments = segments;
    batch->segment_capacity = capacity;
    return 0;
}

int egmpy_batch_segment(struct egmpy_batch *batch, uint64_t address, uint64_t size)
{
    if (batch->segment_count == batch->segment_capacity && grow_segments(batch) < 0) {
        return -1;
    }
    struct iovec *segment = &batch->segments[batch->segment_count++];
    segment->iov_base = (void *)(uintptr_t)address;
    segment->iov_len = size;
    return 0;
}

static const char *group_of(const struct egmpy_batch *batch, size_t slot)
{
    if (!batch->groups) {
        return NULL;
    }
    return PyUnicode_AsUTF8(PyTuple_GET_ITEM(batch->groups, (Py_ssize_t)slot));
}

/* Whether segments from `first` on are a value: some bytes, none of them at NULL, and a total that
 * does not wrap. Empty segments are dropped. */
static bool check_segments(struct egmpy_batch *batch, size_t first)
{
    size_t total = 0;
    size_t kept = first;
    for (size_t i = first; i < batch->segment_count; i++) {
        struct iovec segment = batch->segments[i];
        if (segment.iov_len == 0) {
            continue;
        }
        if (!segment.iov_base || __builtin_add_overflow(total, segment.iov_len, &total) ||
            (uintptr_t)segment.iov_base > UINTPTR_MAX - (segment.iov_len - 1)) {
            return false;
        }
        batch->segments[kept++] = segment;
    }
    batch->segment_count = kept;
    return total > 0 && total <= INT64_MAX;
}

int egmpy_batch_item(struct egmpy_batch *batch, size_t slot, size_t first)
{
    if (!check_segments(batch, first)) {
        batch->segment_count = first;
        batch->results[slot] = EGM_E_INVALID;
        return 0;
    }
    const char *group = group_of(batch, slot);
    if (!group && batch->groups) {
        return -1;
    }
    batch->slots[batch->item_count] = slot;
    batch->items[batch->item_count++] = (struct egm_item){
        .key = batch->keys[slot],
        .segment_count = batch->segment_count - first,
        .group = group,
    };
    return 0;
}

/* The list's item i as a number. A list may shrink while __index__ of another item runs, hence the
 * check. */
static int number_at(PyObject *list, size_t i, uint64_t *ret)
{
    if (i >= (size_t)PySequence_Fast_GET_SIZE(list)) {
        PyErr_SetString(PyExc_RuntimeError, "list changed size while it was read");
        return -1;
    }
    PyObject *object = PySequence_Fast_GET_ITEM(list, (Py_ssize_t)i);
    if (PyLong_CheckExact(object)) {
        return convert_number(object, ret);
    }
    Py_INCREF(object);
    int r = convert_number(object, ret);
    Py_DECREF(object);
    return r;
}

static int add_pair(struct egmpy_batch *batch, PyObject *addresses, PyObject *sizes, size_t i)
{
    uint64_t address;
    uint64_t size;
    if (number_at(addresses, i, &address) < 0 || number_at(sizes, i, &size) < 0) {
        return -1;
    }
    return egmpy_batch_segment(batch, address, size);
}

static int parse_flat(struct egmpy_batch *batch, PyObject *addresses, PyObject *sizes)
{
    if ((size_t)PySequence_Fast_GET_SIZE(addresses) != batch->count ||
        (size_t)PySequence_Fast_GET_SIZE(sizes) != batch->count) {
        egmpy_batch_fill(batch, EGM_E_INVALID);
        return 0;
    }
    for (size_t i = 0; i < batch->count; i++) {
        size_t first = batch->segment_count;
        if (add_pair(batch, addresses, sizes, i) < 0 || egmpy_batch_item(batch, i, first) < 0) {
            return -1;
        }
    }
    return 0;
}

/* The segments of one key from its two inner lists. */
static int parse_inner(struct egmpy_batch *batch, size_t slot, PyObject *addresses, PyObject *sizes)
{
    size_t count = (size_t)PySequence_Fast_GET_SIZE(addresses);
    if ((size_t)PySequence_Fast_GET_SIZE(sizes) != count) {
        batch->results[slot] = EGM_E_INVALID;
        return 0;
    }
    size_t first = batch->segment_count;
    for (size_t i = 0; i < count; i++) {
        if (add_pair(batch, addresses, sizes, i) < 0) {
            return -1;
        }
    }
    return egmpy_batch_item(batch, slot, first);
}

/* New reference to the inner list i; the outer list may change while an inner one is read, hence
 * the check. */
static PyObject *inner_at(PyObject *outer, size_t i, const char *what)
{
    if (i >= (size_t)PySequence_Fast_GET_SIZE(outer)) {
        PyErr_SetString(PyExc_RuntimeError, "list changed size while it was read");
        return NULL;
    }
    PyObject *object = Py_NewRef(PySequence_Fast_GET_ITEM(outer, (Py_ssize_t)i));
    PyObject *list = egmpy_sequence(object, what);
    Py_DECREF(object);
    return list;
}

static int parse_nested(struct egmpy_batch *batch, PyObject *addresses, PyObject *sizes)
{
    if ((size_t)PySequence_Fast_GET_SIZE(addresses) != batch->count ||
        (size_t)PySequence_Fast_GET_SIZE(sizes) != batch->count) {
        egmpy_batch_fill(batch, EGM_E_INVALID);
        return 0;
    }
    int r = 0;
    for (size_t i = 0; r == 0 && i < batch->count; i++) {
        PyObject *inner_addresses = inner_at(addresses, i, "each entry of all_buffer_ptrs");
        PyObject *inner_sizes =
            inner_addresses ? inner_at(sizes, i, "each entry of all_sizes") : NULL;
        r = inner_sizes ? parse_inner(batch, i, inner_addresses, inner_sizes) : -1;
        Py_XDECREF(inner_addresses);
        Py_XDECREF(inner_sizes);
    }
    return r;
}

typedef int (*parse_fn)(struct egmpy_batch *batch, PyObject *addresses, PyObject *sizes);

static int parse_lists(struct egmpy_batch *batch, PyObject *addresses, PyObject *sizes,
                       parse_fn parse)
{
    PyObject *address_list = egmpy_sequence(addresses, "buffer_ptrs");
    PyObject *size_list = address_list ? egmpy_sequence(sizes, "sizes") : NULL;
    int r = size_list ? parse(batch, address_list, size_list) : -1;
    Py_XDECREF(address_list);
    Py_XDECREF(size_list);
    if (r == 0) {
        egmpy_batch_finish(batch);
    }
    return r;
}

int egmpy_batch_flat(struct egmpy_batch *batch, PyObject *addresses, PyObject *sizes)
{
    return parse_lists(batch, addresses, sizes, parse_flat);
}

int egmpy_batch_nested(struct egmpy_batch *batch, PyObject *addresses, PyObject *sizes)
{
    return parse_lists(batch, addresses, sizes, parse_nested);
}

void egmpy_batch_finish(struct egmpy_batch *batch)
{
    const struct iovec *segments = batch->segments;
    for (size_t i = 0; i < batch->item_count; i++) {
        batch->items[i].segments = segments;
        segments += batch->items[i].segment_count;
    }
}

void egmpy_batch_fill(struct egmpy_batch *batch, int64_t result)
{
    for (size_t i = 0; i < batch->count; i++) {
        batch->results[i] = result;
    }
}

bool egmpy_batch_settle(struct egmpy_batch *batch, int code)
{
    bool failed = false;
    for (size_t i = 0; i < batch->item_count; i++) {
        int64_t result = code < 0 ? code : batch->item_results[i];
        batch->results[batch->slots[i]] = result;
        failed = failed || result < 0;
    }
    return failed;
}

/* Integers are no objects of the collector, so that nobody meets the list while it has gaps. */
PyObject *egmpy_batch_list(const struct egmpy_batch *batch)
{
    PyObject *list = PyList_New((Py_ssize_t)batch->count);
    for (size_t i = 0; list && i < batch->count; i++) {
        PyObject *code = PyLong_FromLongLong(egmpy_code(batch->kind, batch->results[i]));
        if (!code) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, code);
    }
    return list;
}

int64_t egmpy_batch_first_error(const struct egmpy_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        if (batch->results[i] < 0) {
            return egmpy_code(batch->kind, batch->results[i]);
        }
    }
    return 0;
}

void egmpy_batch_release(struct egmpy_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        Py_DECREF(batch->held[i]);
    }
    free(batch->held);
    free(batch->segments);
    *batch = (struct egmpy_batch){0};
}
