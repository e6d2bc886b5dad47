/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BufferHandle: an object's bytes in memory of the handle's own.
 *
 * The handle depends on no store: it stays valid after close() and until its last reference and its
 * last exported view are gone. Its memory is page-aligned from a page on, so that the copy into it
 * and callers' vector code run well.
 */
#include "binding.h"

#include <stdlib.h>

struct buffer {
    PyObject_HEAD uint8_t *data;
    size_t size;
};

enum {
    PAGE = 4096,
    CACHE_LINE = 64
};

PyObject *egmpy_buffer_create(struct egmpy_state *state, size_t size, uint8_t **ret_data)
{
    struct buffer *self = (struct buffer *)state->buffer_type->tp_alloc(state->buffer_type, 0);
    if (!self) {
        return NULL;
    }
    void *data;
    if (posix_memalign(&data, size >= PAGE ? PAGE : CACHE_LINE, size ? size : 1) != 0) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->data = data;
    self->size = size;
    *ret_data = self->data;
    return (PyObject *)self;
}

void egmpy_buffer_shrink(PyObject *buffer, size_t size)
{
    ((struct buffer *)buffer)->size = size;
}

static void buffer_dealloc(PyObject *object)
{
    free(((struct buffer *)object)->data);
    PyTypeObject *type = Py_TYPE(object);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *buffer_ptr(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyLong_FromVoidPtr(((struct buffer *)object)->data);
}

static PyObject *buffer_size(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyLong_FromSize_t(((struct buffer *)object)->size);
}

static Py_ssize_t buffer_length(PyObject *object)
{
    return (Py_ssize_t)((struct buffer *)object)->size;
}

static int buffer_get(PyObject *object, Py_buffer *view, int flags)
{
    struct buffer *self = (struct buffer *)object;
    return PyBuffer_FillInfo(view, object, self->data, (Py_ssize_t)self->size, /*readonly=*/0,
                             flags);
}

static PyMethodDef methods[] = {
    {"ptr", buffer_ptr, METH_NOARGS, "Address of the first byte; valid while the handle lives."},
    {"size", buffer_size, METH_NOARGS, "Bytes."},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)"An object's bytes in host memory; supports the buffer protocol."},
    {Py_tp_dealloc, (void *)buffer_dealloc},
    {Py_tp_methods, methods},
    {Py_mp_length, (void *)buffer_length},
    {Py_bf_getbuffer, (void *)buffer_get},
    {0, NULL},
};

PyType_Spec egmpy_buffer_spec = {
    .name = "mooncake.store.BufferHandle",
    .basicsize = sizeof(struct buffer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};
