/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gets that return the value itself: get, get_batch (bytes) and get_buffer, batch_get_buffer
 * (BufferHandle).
 *
 * The size must be known before there is an object to read into, so a fetch is: query sizes -> make
 * the objects -> get straight into their memory. The value may be replaced by a larger one in
 * between; then the get says "too large" and the key goes round again, a few times at most. A
 * smaller one is simply cut.
 *
 * Keys go in windows, since the answer to a query is 2 KiB per key and one window's objects are
 * made before it is read. Nobody else sees the new objects until they are filled, so writing to
 * them without the GIL is allowed. For the same reason the answers stand in an array of our own
 * until the last one is there: a list with gaps, alive while the GIL is released, is in
 * gc.get_objects(), and whoever looks into one crashes the interpreter.
 */
#include "calls.h"

#include <stdlib.h>

enum {
    WINDOW_KEYS = 256,
    ROUNDS_MAX = 4
};

enum fetch_kind {
    FETCH_BYTES,
    FETCH_BUFFER
};

struct window {
    size_t count;              /* keys not settled yet */
    size_t slots[WINDOW_KEYS]; /* their places in the answer */
    struct egm_key keys[WINDOW_KEYS];
    struct egm_object_info infos[WINDOW_KEYS];
    size_t item_count; /* of them, those whose size is known */
    size_t item_slots[WINDOW_KEYS];
    struct egm_item items[WINDOW_KEYS];
    struct iovec segments[WINDOW_KEYS];
    int64_t results[WINDOW_KEYS];
    PyObject *objects[WINDOW_KEYS]; /* item i's object, owned */
};

struct fetch {
    struct egmpy_store *self;
    enum fetch_kind kind;
    struct egmpy_batch *batch;
    PyObject **answers; /* one per key, owned; NULL until settled */
    struct window *window;
};

static PyObject *create_object(struct fetch *fetch, size_t size, uint8_t **ret_data)
{
    if (fetch->kind == FETCH_BUFFER) {
        return egmpy_buffer_create(fetch->self->state, size, ret_data);
    }
    PyObject *bytes = size <= PY_SSIZE_T_MAX ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size)
                                             : PyErr_NoMemory();
    if (bytes) {
        *ret_data = (uint8_t *)PyBytes_AS_STRING(bytes);
    }
    return bytes;
}

static PyObject *empty_answer(enum fetch_kind kind)
{
    return kind == FETCH_BYTES ? PyBytes_FromStringAndSize(NULL, 0) : Py_NewRef(Py_None);
}

/* ---- one window ---- */

static int query_window(struct fetch *fetch)
{
    struct window *window = fetch->window;
    struct egmpy_call call;
    if (!egmpy_enter(fetch->self, &call)) {
        return EGM_E_CLOSED;
    }
    int r = egm_query(call.store, window->count, window->keys, window->infos, NULL);
    bool failed = r < 0;
    for (size_t i = 0; !failed && i < window->count; i++) {
        failed = window->infos[i].status < 0;
    }
    egmpy_leave(fetch->self, &call, failed);
    return r;
}

/* Objects for the keys that exist. Running out of memory fails the key, as every other cause does.
 */
static void make_items(struct fetch *fetch)
{
    struct window *window = fetch->window;
    window->item_count = 0;
    for (size_t i = 0; i < window->count; i++) {
        const struct egm_object_info *info = &window->infos[i];
        uint8_t *data;
        if (info->status < 0 || info->size == 0) {
            continue;
        }
        PyObject *object = create_object(fetch, info->size, &data);
        if (!object) {
            PyErr_Clear();
            egmpy_note(fetch->self, "no memory for a value of %llu bytes",
                       (unsigned long long)info->size);
            continue;
        }
        size_t item = window->item_count++;
        window->objects[item] = object;
        window->item_slots[item] = window->slots[i];
        window->segments[item] = (struct iovec){.iov_base = data, .iov_len = info->size};
        window->items[item] = (struct egm_item){
            .key = window->keys[i], .segments = &window->segments[item], .segment_count = 1};
    }
}

static int read_window(struct fetch *fetch)
{
    struct window *window = fetch->window;
    struct egmpy_call call;
    if (!egmpy_enter(fetch->self, &call)) {
        return EGM_E_CLOSED;
    }
    int r = egm_get(call.store, /*any_memory=*/true, window->item_count, window->items,
                    window->results, NULL);
    bool failed = r < 0;
    for (size_t i = 0; !failed && i < window->item_count; i++) {
        failed = window->results[i] < 0;
    }
    egmpy_leave(fetch->self, &call, failed);
    return r;
}

/* Takes the object; cut to what arrived. */
static int store_answer(struct fetch *fetch, size_t slot, PyObject *object, size_t size)
{
    if (fetch->kind == FETCH_BUFFER) {
        egmpy_buffer_shrink(object, size);
    } else if (_PyBytes_Resize(&object, (Py_ssize_t)size) < 0) {
        return -1;
    }
    fetch->answers[slot] = object;
    return 0;
}

/* Settles what was read; what has outgrown its object stays in the window for the next round. */
static int settle_window(struct fetch *fetch, int code)
{
    struct window *window = fetch->window;
    int r = 0;
    window->count = 0;
    for (size_t i = 0; i < window->item_count; i++) {
        int64_t result = code < 0 ? code : window->results[i];
        PyObject *object = window->objects[i];
        if (result >= 0 && (uint64_t)result <= window->segments[i].iov_len && r == 0) {
            r = store_answer(fetch, window->item_slots[i], object, (size_t)result);
            continue;
        }
        Py_DECREF(object);
        if (result == EGM_E_TOO_LARGE) {
            window->slots[window->count] = window->item_slots[i];
            window->keys[window->count++] = window->items[i].key;
        }
    }
    return r;
}

/* 0; 1: nothing could be tried, so that further windows would only wait as long; -1: an exception
 * is set. */
static int fetch_window(struct fetch *fetch, size_t first, size_t count)
{
    struct window *window = fetch->window;
    window->count = count;
    for (size_t i = 0; i < count; i++) {
        window->slots[i] = first + i;
        window->keys[i] = fetch->batch->keys[first + i];
    }
    for (int round = 0; round < ROUNDS_MAX && window->count > 0; round++) {
        if (query_window(fetch) < 0) {
            return 1;
        }
        make_items(fetch);
        int code = window->item_count > 0 ? read_window(fetch) : 0;
        if (settle_window(fetch, code) < 0) {
            return -1;
        }
        if (code < 0) {
            return 1;
        }
    }
    return 0;
}

/* ---- whole calls ---- */

static int fill_gaps(struct fetch *fetch)
{
    for (size_t i = 0; i < fetch->batch->count; i++) {
        if (!fetch->answers[i]) {
            fetch->answers[i] = empty_answer(fetch->kind);
        }
        if (!fetch->answers[i]) {
            return -1;
        }
    }
    return 0;
}

/* The answers as a list. Between its making and its last entry nothing is allocated, so nobody
 * meets it half-made. */
static PyObject *list_of(PyObject **answers, size_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        PyList_SET_ITEM(list, (Py_ssize_t)i, answers[i]);
        answers[i] = NULL;
    }
    return list;
}

static void release_answers(PyObject **answers, size_t count)
{
    for (size_t i = 0; answers && i < count; i++) {
        Py_XDECREF(answers[i]);
    }
    free(answers);
}

static int fetch_all(struct fetch *fetch)
{
    size_t count = fetch->batch->count;
    for (size_t first = 0; first < count; first += WINDOW_KEYS) {
        size_t left = count - first;
        int r = fetch_window(fetch, first, left < WINDOW_KEYS ? left : WINDOW_KEYS);
        if (r != 0) {
            return r < 0 ? r : 0;
        }
    }
    return 0;
}

/* A list with one answer per key, or NULL with an exception. */
static PyObject *fetch_list(PyObject *object, struct egmpy_batch *batch, enum fetch_kind kind)
{
    struct fetch fetch = {
        .self = (struct egmpy_store *)object,
        .kind = kind,
        .batch = batch,
        .answers = calloc(batch->count ? batch->count : 1, sizeof(*fetch.answers)),
        .window = malloc(sizeof(*fetch.window)),
    };
    int r = fetch.answers && fetch.window ? 0 : -1;
    if (r < 0) {
        PyErr_NoMemory();
    }
    if (r == 0 && egmpy_has_staging(fetch.self)) {
        r = fetch_all(&fetch);
    }
    if (r == 0) {
        r = fill_gaps(&fetch);
    }
    PyObject *list = r == 0 ? list_of(fetch.answers, batch->count) : NULL;
    release_answers(fetch.answers, batch->count);
    free(fetch.window);
    return list;
}

static PyObject *fetch_one(PyObject *self, PyObject *args, PyObject *kwargs, enum fetch_kind kind)
{
    static const char *const names[] = {"key", NULL};
    struct egmpy_batch batch = {0};
    PyObject *key;
    if (!egmpy_parse(args, kwargs, kind == FETCH_BYTES ? "O:get" : "O:get_buffer", names, &key)) {
        return NULL;
    }
    PyObject *list = egmpy_batch_key(&batch, key) == 0 ? fetch_list(self, &batch, kind) : NULL;
    egmpy_batch_release(&batch);
    PyObject *answer = list ? Py_NewRef(PyList_GET_ITEM(list, 0)) : NULL;
    Py_XDECREF(list);
    return answer;
}

static PyObject *fetch_many(PyObject *self, PyObject *args, PyObject *kwargs, enum fetch_kind kind)
{
    static const char *const names[] = {"keys", NULL};
    struct egmpy_batch batch = {0};
    PyObject *keys;
    PyObject *answer = NULL;
    const char *format = kind == FETCH_BYTES ? "O:get_batch" : "O:batch_get_buffer";
    if (!egmpy_parse(args, kwargs, format, names, &keys)) {
        return NULL;
    }
    if (egmpy_batch_keys(&batch, keys) == 0) {
        bool is_open = ((struct egmpy_store *)self)->session != NULL;
        if (kind == FETCH_BYTES && (batch.count == 0 || !is_open)) {
            answer = Py_BuildValue(
                "[y]", ""); /* upstream's answer when there is nothing to ask or nobody to ask */
        } else {
            answer = fetch_list(self, &batch, kind);
        }
    }
    egmpy_batch_release(&batch);
    return answer;
}

PyObject *egmpy_get(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return fetch_one(self, args, kwargs, FETCH_BYTES);
}

PyObject *egmpy_get_buffer(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return fetch_one(self, args, kwargs, FETCH_BUFFER);
}

PyObject *egmpy_get_batch(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return fetch_many(self, args, kwargs, FETCH_BYTES);
}

PyObject *egmpy_batch_get_buffer(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return fetch_many(self, args, kwargs, FETCH_BUFFER);
}
