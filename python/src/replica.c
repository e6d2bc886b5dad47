/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What get_replica_desc returns: ReplicaDescriptor -> MemoryDescriptor -> Descriptor, immutable.
 *
 * Every replica here is one in memory, so the other kinds answer False or raise; DiskDescriptor is
 * a name for callers' isinstance and type hints, without instances. `buffer_address` is the offset
 * of the replica's first extent in its segment: there is no address in this process to name, and
 * upstream's value is not usable by callers either.
 */
#include "binding.h"

#include <structmember.h>

struct replica {
    PyObject_HEAD PyObject *status; /* ReplicaStatus */
    PyObject *memory;               /* MemoryDescriptor */
};

struct memory {
    PyObject_HEAD PyObject *buffer_descriptor; /* Descriptor */
};

struct place {
    PyObject_HEAD uint64_t size;
    uint64_t buffer_address;
    PyObject *transport_endpoint; /* str */
};

struct disk {
    PyObject_HEAD PyObject *file_path; /* str */
    uint64_t object_size;
};

enum {
    STATUS_COMPLETE = 3
};

static void free_instance(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static void replica_dealloc(PyObject *self)
{
    Py_XDECREF(((struct replica *)self)->status);
    Py_XDECREF(((struct replica *)self)->memory);
    free_instance(self);
}

static void memory_dealloc(PyObject *self)
{
    Py_XDECREF(((struct memory *)self)->buffer_descriptor);
    free_instance(self);
}

static void place_dealloc(PyObject *self)
{
    Py_XDECREF(((struct place *)self)->transport_endpoint);
    free_instance(self);
}

static void disk_dealloc(PyObject *self)
{
    Py_XDECREF(((struct disk *)self)->file_path);
    free_instance(self);
}

static PyObject *place_repr(PyObject *object)
{
    struct place *self = (struct place *)object;
    return PyUnicode_FromFormat("<Descriptor size=%llu buffer_address=%llu transport_endpoint=%U>",
                                (unsigned long long)self->size,
                                (unsigned long long)self->buffer_address, self->transport_endpoint);
}

static PyObject *answer_true(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    Py_RETURN_TRUE;
}

static PyObject *answer_false(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    Py_RETURN_FALSE;
}

static PyObject *get_memory_descriptor(PyObject *self, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(((struct replica *)self)->memory);
}

static PyObject *get_disk_descriptor(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    PyErr_SetString(PyExc_RuntimeError, "this replica is in memory; ask is_disk_replica() first");
    return NULL;
}

static PyMethodDef replica_methods[] = {
    {"is_memory_replica", answer_true, METH_NOARGS, "True: replicas are in memory."},
    {"is_disk_replica", answer_false, METH_NOARGS, "False."},
    {"is_local_disk_replica", answer_false, METH_NOARGS, "False."},
    {"get_memory_descriptor", get_memory_descriptor, METH_NOARGS, "The MemoryDescriptor."},
    {"get_disk_descriptor", get_disk_descriptor, METH_NOARGS, "Raises RuntimeError."},
    {0},
};

static PyMemberDef replica_members[] = {
    {"status", T_OBJECT_EX, offsetof(struct replica, status), READONLY, "a ReplicaStatus"},
    {0},
};

static PyMemberDef memory_members[] = {
    {"buffer_descriptor", T_OBJECT_EX, offsetof(struct memory, buffer_descriptor), READONLY,
     "a Descriptor"},
    {0},
};

static PyMemberDef place_members[] = {
    {"size", T_ULONGLONG, offsetof(struct place, size), READONLY, "bytes"},
    {"buffer_address", T_ULONGLONG, offsetof(struct place, buffer_address), READONLY,
     "offset in the segment"},
    {"transport_endpoint", T_OBJECT_EX, offsetof(struct place, transport_endpoint), READONLY,
     "provider's name"},
    {0},
};

static PyMemberDef disk_members[] = {
    {"file_path", T_OBJECT_EX, offsetof(struct disk, file_path), READONLY, "where it lies"},
    {"object_size", T_ULONGLONG, offsetof(struct disk, object_size), READONLY, "bytes"},
    {0},
};

static PyType_Slot replica_slots[] = {
    {Py_tp_dealloc, (void *)replica_dealloc},
    {Py_tp_methods, replica_methods},
    {Py_tp_members, replica_members},
    {0, NULL},
};

static PyType_Slot memory_slots[] = {
    {Py_tp_dealloc, (void *)memory_dealloc},
    {Py_tp_members, memory_members},
    {0, NULL},
};

static PyType_Slot place_slots[] = {
    {Py_tp_dealloc, (void *)place_dealloc},
    {Py_tp_members, place_members},
    {Py_tp_repr, (void *)place_repr},
    {0, NULL},
};

static PyType_Slot disk_slots[] = {
    {Py_tp_dealloc, (void *)disk_dealloc},
    {Py_tp_members, disk_members},
    {0, NULL},
};

PyType_Spec egmpy_replica_spec = {
    .name = "mooncake.store.ReplicaDescriptor",
    .basicsize = sizeof(struct replica),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = replica_slots,
};

PyType_Spec egmpy_memory_spec = {
    .name = "mooncake.store.MemoryDescriptor",
    .basicsize = sizeof(struct memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = memory_slots,
};

PyType_Spec egmpy_place_spec = {
    .name = "mooncake.store.Descriptor",
    .basicsize = sizeof(struct place),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = place_slots,
};

PyType_Spec egmpy_disk_spec = {
    .name = "mooncake.store.DiskDescriptor",
    .basicsize = sizeof(struct disk),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = disk_slots,
};

static PyObject *create_place(struct egmpy_state *state, const struct egm_replica_info *info)
{
    struct place *place = (struct place *)state->place_type->tp_alloc(state->place_type, 0);
    if (!place) {
        return NULL;
    }
    place->size = info->size;
    place->buffer_address = info->offset;
    place->transport_endpoint =
        PyUnicode_DecodeUTF8(info->provider, (Py_ssize_t)strlen(info->provider), "replace");
    if (!place->transport_endpoint) {
        Py_CLEAR(place);
    }
    return (PyObject *)place;
}

static PyObject *create_memory(struct egmpy_state *state, const struct egm_replica_info *info)
{
    struct memory *memory = (struct memory *)state->memory_type->tp_alloc(state->memory_type, 0);
    if (!memory) {
        return NULL;
    }
    memory->buffer_descriptor = create_place(state, info);
    if (!memory->buffer_descriptor) {
        Py_CLEAR(memory);
    }
    return (PyObject *)memory;
}

static PyObject *create_replica(struct egmpy_state *state, const struct egm_replica_info *info)
{
    struct replica *replica =
        (struct replica *)state->replica_type->tp_alloc(state->replica_type, 0);
    if (!replica) {
        return NULL;
    }
    replica->status = PyObject_CallFunction(state->replica_status_enum, "i", STATUS_COMPLETE);
    replica->memory = replica->status ? create_memory(state, info) : NULL;
    if (!replica->memory) {
        Py_CLEAR(replica);
    }
    return (PyObject *)replica;
}

PyObject *egmpy_replicas_of(struct egmpy_state *state, const struct egm_object_info *info)
{
    const size_t kept = sizeof(info->replicas) / sizeof(info->replicas[0]);
    size_t count = info->replica_count < kept ? info->replica_count : kept;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *replica = create_replica(state, &info->replicas[i]);
        if (!replica || PyList_Append(list, replica) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(replica);
    }
    return list;
}
