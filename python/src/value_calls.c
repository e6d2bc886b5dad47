/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts that take Python buffers: put, put_parts, put_batch and their upsert twins.
 *
 * The library copies straight from the exported buffers into the pool (any_memory: a Python buffer
 * is host memory by definition), so there is no staging copy and no size limit of its own. The
 * views are held until the GIL is back, which keeps a bytearray from being resized meanwhile.
 *
 * Values without a byte are refused with -600 and nothing is stored: a 0 for something that exist()
 * then denies would send callers in circles.
 */
#include "calls.h"

#include <stdlib.h>

struct views {
    Py_buffer *items;
    size_t count; /* acquired */
    size_t capacity;
};

static int views_init(struct views *views, size_t capacity)
{
    views->items = calloc(capacity ? capacity : 1, sizeof(*views->items));
    if (!views->items) {
        PyErr_NoMemory();
        return -1;
    }
    views->capacity = capacity;
    return 0;
}

static void views_release(struct views *views)
{
    for (size_t i = 0; i < views->count; i++) {
        PyBuffer_Release(&views->items[i]);
    }
    free(views->items);
}

/* Exporters disagree about what they raise for a strided buffer (BufferError, ValueError): callers
 * see TypeError. */
static int refuse_view(void)
{
    if (PyErr_ExceptionMatches(PyExc_BufferError) || PyErr_ExceptionMatches(PyExc_ValueError)) {
        PyErr_SetString(PyExc_TypeError, "the value's memory must be C-contiguous");
    }
    return -1;
}

static int add_view(struct views *views, PyObject *value, int flags)
{
    if (PyObject_GetBuffer(value, &views->items[views->count], flags) < 0) {
        return refuse_view();
    }
    views->count++;
    return 0;
}

static int add_segment(struct egmpy_batch *batch, const Py_buffer *view)
{
    return egmpy_batch_segment(batch, (uint64_t)(uintptr_t)view->buf, (uint64_t)view->len);
}

bool egmpy_has_staging(struct egmpy_store *self)
{
    if (self->session && !self->has_staging) {
        egmpy_note(self, "the store was set up with local_buffer_size 0: calls that take or return "
                         "bytes are off");
        return false;
    }
    return true;
}

static void run(struct egmpy_store *self, struct egmpy_batch *batch, struct egmpy_put_plan *plan)
{
    plan->options.any_memory = true;
    if (egmpy_has_staging(self)) {
        egmpy_run_put(self, batch, &plan->options);
    } else {
        egmpy_batch_fill(batch, EGM_E_INVALID);
    }
}

/* ---- one value, of one or many parts ---- */

/* Parts are bytes in a row each; anything with a shape of its own is a caller's mistake that
 * upstream names so. */
static int check_part(const Py_buffer *view)
{
    if (view->ndim != 1 || view->itemsize != 1) {
        PyErr_SetString(PyExc_RuntimeError, "each part must be a one-dimensional buffer of bytes");
        return -1;
    }
    if (!PyBuffer_IsContiguous(view, 'C')) {
        PyErr_SetString(PyExc_TypeError, "the value's memory must be C-contiguous");
        return -1;
    }
    return 0;
}

static int add_parts(struct egmpy_batch *batch, struct views *views, PyObject *parts, bool is_plain)
{
    size_t count = (size_t)PyTuple_GET_SIZE(parts);
    if (views_init(views, count) < 0) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        int flags = is_plain ? PyBUF_SIMPLE : PyBUF_FULL_RO;
        if (add_view(views, PyTuple_GET_ITEM(parts, (Py_ssize_t)i), flags) < 0) {
            return -1;
        }
        if (!is_plain && check_part(&views->items[i]) < 0) {
            return -1;
        }
        if (add_segment(batch, &views->items[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *put_value(PyObject *object, PyObject *key, PyObject *parts, PyObject *config,
                           enum egmpy_put_kind kind, bool is_plain)
{
    struct egmpy_store *self = (struct egmpy_store *)object;
    struct egmpy_batch batch = {0};
    struct egmpy_put_plan plan = {0};
    struct views views = {0};
    int r = egmpy_batch_key(&batch, key);
    if (r == 0) {
        r = add_parts(&batch, &views, parts, is_plain);
    }
    if (r == 0) {
        r = egmpy_put_plan_init(&plan, self, config, 1, kind);
    }
    if (r == 0) {
        batch.groups = plan.groups;
        r = egmpy_batch_item(&batch, 0, 0);
    }
    if (r == 0) {
        egmpy_batch_finish(&batch);
        run(self, &batch, &plan);
        r = (int)batch.results[0];
    }
    views_release(&views);
    egmpy_batch_release(&batch);
    egmpy_put_plan_release(&plan);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(egmpy_code(EGMPY_CALL_PUT, r));
}

static PyObject *put_one(PyObject *self, PyObject *args, PyObject *kwargs, enum egmpy_put_kind kind)
{
    static const char *const names[] = {"key", "value", "config", NULL};
    PyObject *key;
    PyObject *value;
    PyObject *config = NULL;
    if (!egmpy_parse(args, kwargs, kind == EGMPY_PUT ? "OO|O:put" : "OO|O:upsert", names, &key,
                     &value, &config)) {
        return NULL;
    }
    PyObject *parts = PyTuple_Pack(1, value);
    PyObject *answer = parts ? put_value(self, key, parts, config, kind, /*is_plain=*/true) : NULL;
    Py_XDECREF(parts);
    return answer;
}

PyObject *egmpy_put(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return put_one(self, args, kwargs, EGMPY_PUT);
}

PyObject *egmpy_upsert(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return put_one(self, args, kwargs, EGMPY_UPSERT);
}

/* put_parts(key, *parts, config=None): only config may be named. */
static PyObject *put_many_parts(PyObject *self, PyObject *args, PyObject *kwargs,
                                enum egmpy_put_kind kind)
{
    const char *name = kind == EGMPY_PUT ? "put_parts" : "upsert_parts";
    PyObject *config = kwargs ? PyDict_GetItemString(kwargs, "config") : NULL;
    if (kwargs && PyDict_GET_SIZE(kwargs) > (config ? 1 : 0)) {
        PyErr_Format(PyExc_TypeError, "%s() takes no keyword argument but config", name);
        return NULL;
    }
    if (PyTuple_GET_SIZE(args) < 1) {
        PyErr_Format(PyExc_TypeError, "%s() needs a key", name);
        return NULL;
    }
    PyObject *parts = PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args));
    PyObject *key = PyTuple_GET_ITEM(args, 0);
    PyObject *answer = parts ? put_value(self, key, parts, config, kind, /*is_plain=*/false) : NULL;
    Py_XDECREF(parts);
    return answer;
}

PyObject *egmpy_put_parts(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return put_many_parts(self, args, kwargs, EGMPY_PUT);
}

PyObject *egmpy_upsert_parts(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return put_many_parts(self, args, kwargs, EGMPY_UPSERT);
}

/* ---- many values ---- */

static int add_values(struct egmpy_batch *batch, struct views *views, PyObject *values)
{
    size_t count = (size_t)PySequence_Fast_GET_SIZE(values);
    if (count != batch->count) {
        egmpy_batch_fill(batch, EGM_E_INVALID);
        return 0;
    }
    if (views_init(views, count) < 0) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        size_t first = batch->segment_count;
        if (add_view(views, PyTuple_GET_ITEM(values, (Py_ssize_t)i), PyBUF_SIMPLE) < 0 ||
            add_segment(batch, &views->items[i]) < 0 || egmpy_batch_item(batch, i, first) < 0) {
            return -1;
        }
    }
    egmpy_batch_finish(batch);
    return 0;
}

/* A tuple, because exporting a buffer may run Python code that changes the caller's list. */
static PyObject *values_tuple(PyObject *values)
{
    PyObject *list = egmpy_sequence(values, "values");
    PyObject *tuple = list ? PySequence_Tuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

static int prepare_batch(struct egmpy_store *self, struct egmpy_batch *batch,
                         struct egmpy_put_plan *plan, struct views *views, PyObject *values,
                         PyObject *config, enum egmpy_put_kind kind)
{
    int r = egmpy_put_plan_init(plan, self, config, batch->count, kind);
    if (r < 0) {
        return r;
    }
    batch->groups = plan->groups;
    PyObject *tuple = values_tuple(values);
    r = tuple ? add_values(batch, views, tuple) : -1;
    Py_XDECREF(tuple); /* the views hold the values */
    return r;
}

static PyObject *put_batch(PyObject *object, PyObject *args, PyObject *kwargs,
                           enum egmpy_put_kind kind)
{
    static const char *const names[] = {"keys", "values", "config", NULL};
    struct egmpy_store *self = (struct egmpy_store *)object;
    struct egmpy_batch batch = {0};
    struct egmpy_put_plan plan = {0};
    struct views views = {0};
    PyObject *keys;
    PyObject *values;
    PyObject *config = NULL;
    if (!egmpy_parse(args, kwargs, kind == EGMPY_PUT ? "OO|O:put_batch" : "OO|O:upsert_batch",
                     names, &keys, &values, &config)) {
        return NULL;
    }
    int64_t code = egmpy_batch_keys(&batch, keys);
    if (code == 0) {
        int r = prepare_batch(self, &batch, &plan, &views, values, config, kind);
        code = egmpy_code(EGMPY_CALL_PUT, r);
    }
    if (code == 0) {
        run(self, &batch, &plan);
        code = self->session ? egmpy_batch_first_error(&batch)
                             : egmpy_code(EGMPY_CALL_PUT, EGM_E_CLOSED);
    }
    views_release(&views);
    egmpy_batch_release(&batch);
    egmpy_put_plan_release(&plan);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(code);
}

PyObject *egmpy_put_batch(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return put_batch(self, args, kwargs, EGMPY_PUT);
}

PyObject *egmpy_upsert_batch(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return put_batch(self, args, kwargs, EGMPY_UPSERT);
}
