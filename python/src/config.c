/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Python class ReplicateConfig: a bag of settings with checked attributes.
 *
 * Attributes follow the contract's table. Reading a list attribute gives a copy, as upstream's
 * does: change it by assignment. `with_soft_pin` is the older name for soft_pin_action and both act
 * on the same field.
 */
#include "config.h"

#include <stddef.h>

static int refuse_delete(PyObject *value)
{
    if (value) {
        return 0;
    }
    PyErr_SetString(PyExc_AttributeError, "attributes of ReplicateConfig cannot be deleted");
    return -1;
}

/* Getters and setters get the field's offset as closure. */
static void *field(PyObject *self, void *offset)
{
    return (char *)self + (size_t)(uintptr_t)offset;
}

static PyObject *get_count(PyObject *self, void *offset)
{
    return PyLong_FromUnsignedLongLong(*(uint64_t *)field(self, offset));
}

static int set_count(PyObject *self, PyObject *value, void *offset)
{
    uint64_t number;
    if (refuse_delete(value) < 0 || !egmpy_convert_u64(value, &number)) {
        return -1;
    }
    *(uint64_t *)field(self, offset) = number;
    return 0;
}

static PyObject *get_flag(PyObject *self, void *offset)
{
    return PyBool_FromLong(*(bool *)field(self, offset));
}

static int read_flag(PyObject *value, bool *ret)
{
    if (refuse_delete(value) < 0) {
        return -1;
    }
    int truth = value == Py_None || PyUnicode_Check(value) ? -1 : PyObject_IsTrue(value);
    if (truth < 0) {
        PyErr_Format(PyExc_TypeError, "expected a bool, not %.100s", Py_TYPE(value)->tp_name);
        return -1;
    }
    *ret = truth == 1;
    return 0;
}

static int set_flag(PyObject *self, PyObject *value, void *offset)
{
    return read_flag(value, field(self, offset));
}

static int check_text(PyObject *value)
{
    if (!PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "expected a str, not %.100s", Py_TYPE(value)->tp_name);
        return -1;
    }
    if (!PyUnicode_AsUTF8(value)) {
        if (PyErr_ExceptionMatches(PyExc_UnicodeError)) {
            PyErr_SetString(PyExc_TypeError, "no valid Unicode text");
        }
        return -1;
    }
    return 0;
}

static PyObject *get_text(PyObject *self, void *offset)
{
    return Py_NewRef(*(PyObject **)field(self, offset));
}

static int set_text(PyObject *self, PyObject *value, void *offset)
{
    if (refuse_delete(value) < 0 || check_text(value) < 0) {
        return -1;
    }
    PyObject **slot = field(self, offset);
    Py_SETREF(*slot, Py_NewRef(value));
    return 0;
}

/* A new tuple of the str in `value`; TypeError for anything else. A tuple, because puts borrow its
 * texts while the GIL is released: even who digs it out of the collector cannot change it. */
static PyObject *copy_texts(PyObject *value)
{
    if (PyUnicode_Check(value) || PyBytes_Check(value) || !PySequence_Check(value)) {
        PyErr_Format(PyExc_TypeError, "expected a list of str, not %.100s",
                     Py_TYPE(value)->tp_name);
        return NULL;
    }
    PyObject *texts = PySequence_Tuple(value);
    for (Py_ssize_t i = 0; texts && i < PyTuple_GET_SIZE(texts); i++) {
        if (check_text(PyTuple_GET_ITEM(texts, i)) < 0) {
            Py_CLEAR(texts);
        }
    }
    return texts;
}

static PyObject *get_texts(PyObject *self, void *offset)
{
    PyObject *texts = *(PyObject **)field(self, offset);
    return texts ? PySequence_List(texts) : Py_NewRef(Py_None);
}

static int set_texts(PyObject *self, PyObject *value, void *offset)
{
    if (refuse_delete(value) < 0) {
        return -1;
    }
    PyObject *texts = copy_texts(value);
    if (!texts) {
        return -1;
    }
    PyObject **slot = field(self, offset);
    Py_XSETREF(*slot, texts);
    return 0;
}

static int set_texts_or_none(PyObject *self, PyObject *value, void *offset)
{
    if (value != Py_None) {
        return set_texts(self, value, offset);
    }
    PyObject **slot = field(self, offset);
    Py_CLEAR(*slot);
    return 0;
}

/* Enum members or their numbers, checked by asking the enum class. */
static int read_member(PyObject *value, PyObject *enum_class, int *ret)
{
    if (refuse_delete(value) < 0) {
        return -1;
    }
    PyObject *member = PyLong_Check(value) ? PyObject_CallOneArg(enum_class, value) : NULL;
    if (!member) {
        PyErr_Format(PyExc_TypeError, "expected a member of %R, not %.100R", enum_class, value);
        return -1;
    }
    *ret = (int)PyLong_AsLong(member);
    Py_DECREF(member);
    return 0;
}

static PyObject *get_soft_pin_action(PyObject *object, void *unused)
{
    (void)unused;
    struct egmpy_config *self = (struct egmpy_config *)object;
    return PyObject_CallFunction(self->state->soft_pin_enum, "i", self->soft_pin_action);
}

static int set_soft_pin_action(PyObject *object, PyObject *value, void *unused)
{
    (void)unused;
    struct egmpy_config *self = (struct egmpy_config *)object;
    return read_member(value, self->state->soft_pin_enum, &self->soft_pin_action);
}

static PyObject *get_with_soft_pin(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((struct egmpy_config *)object)->soft_pin_action == EGM_SOFT_PIN_ENABLE);
}

static int set_with_soft_pin(PyObject *object, PyObject *value, void *unused)
{
    (void)unused;
    bool is_pinned;
    if (read_flag(value, &is_pinned) < 0) {
        return -1;
    }
    ((struct egmpy_config *)object)->soft_pin_action =
        is_pinned ? EGM_SOFT_PIN_ENABLE : EGM_SOFT_PIN_PRESERVE;
    return 0;
}

static PyObject *get_soft_pin_ttl(PyObject *object, void *unused)
{
    (void)unused;
    struct egmpy_config *self = (struct egmpy_config *)object;
    return self->has_soft_pin_ttl ? PyLong_FromUnsignedLongLong(self->soft_pin_ttl_ms)
                                  : Py_NewRef(Py_None);
}

static int set_soft_pin_ttl(PyObject *object, PyObject *value, void *unused)
{
    (void)unused;
    struct egmpy_config *self = (struct egmpy_config *)object;
    if (value != Py_None) {
        if (refuse_delete(value) < 0 || !egmpy_convert_u64(value, &self->soft_pin_ttl_ms)) {
            return -1;
        }
    }
    self->has_soft_pin_ttl = value != Py_None;
    return 0;
}

static PyObject *get_data_type(PyObject *object, void *unused)
{
    (void)unused;
    struct egmpy_config *self = (struct egmpy_config *)object;
    return PyObject_CallFunction(self->state->data_type_enum, "i", self->data_type);
}

static int set_data_type(PyObject *object, PyObject *value, void *unused)
{
    (void)unused;
    struct egmpy_config *self = (struct egmpy_config *)object;
    return read_member(value, self->state->data_type_enum, &self->data_type);
}

#define FIELD(name) ((void *)offsetof(struct egmpy_config, name))

static PyGetSetDef attributes[] = {
    {"replica_num", get_count, set_count, "memory replicas (default 1)", FIELD(replica_num)},
    {"nof_replica_num", get_count, set_count, "must be 0 here", FIELD(nof_replica_num)},
    {"dfs_replica_num", get_count, set_count, "must be 0 here", FIELD(dfs_replica_num)},
    {"soft_pin_action", get_soft_pin_action, set_soft_pin_action, "a SoftPinAction", NULL},
    {"soft_pin_ttl_ms", get_soft_pin_ttl, set_soft_pin_ttl, "lifetime of the soft pin, or None",
     NULL},
    {"with_soft_pin", get_with_soft_pin, set_with_soft_pin, "older form of soft_pin_action", NULL},
    {"with_hard_pin", get_flag, set_flag, "never evicted", FIELD(with_hard_pin)},
    {"preferred_segments", get_texts, set_texts, "providers to try first",
     FIELD(preferred_segments)},
    {"preferred_nof_segments", get_texts, set_texts, "without effect here",
     FIELD(preferred_nof_segments)},
    {"preferred_segment", get_text, set_text, "wins over preferred_segments",
     FIELD(preferred_segment)},
    {"prefer_alloc_in_same_node", get_flag, set_flag, "for multi-buffer puts",
     FIELD(prefer_alloc_in_same_node)},
    {"data_type", get_data_type, set_data_type, "an ObjectDataType", NULL},
    {"group_ids", get_texts, set_texts_or_none, "one group per key, or None", FIELD(group_ids)},
    {0},
};

static PyObject *config_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_GET_SIZE(args) > 0 || (kwargs && PyDict_GET_SIZE(kwargs) > 0)) {
        PyErr_SetString(PyExc_TypeError, "ReplicateConfig() takes no arguments");
        return NULL;
    }
    struct egmpy_state *state = egmpy_state_of(type, NULL);
    struct egmpy_config *self = state ? (struct egmpy_config *)type->tp_alloc(type, 0) : NULL;
    if (!self) {
        return NULL;
    }
    self->state = state;
    self->replica_num = 1;
    self->preferred_segments = PyTuple_New(0);
    self->preferred_nof_segments = PyTuple_New(0);
    self->preferred_segment = PyUnicode_FromString("");
    if (!self->preferred_segments || !self->preferred_nof_segments || !self->preferred_segment) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void config_dealloc(PyObject *object)
{
    struct egmpy_config *self = (struct egmpy_config *)object;
    Py_CLEAR(self->preferred_segments);
    Py_CLEAR(self->preferred_nof_segments);
    Py_CLEAR(self->preferred_segment);
    Py_CLEAR(self->group_ids);
    PyTypeObject *type = Py_TYPE(object);
    type->tp_free(object);
    Py_DECREF(type);
}

/* "ReplicateConfig: { replica_num: 1, ... }" with every attribute of the table, in its order. */
static PyObject *config_str(PyObject *self)
{
    PyObject *parts = PyList_New(0);
    for (const PyGetSetDef *row = attributes; parts && row->name; row++) {
        PyObject *value = row->get(self, row->closure);
        PyObject *part = value ? PyUnicode_FromFormat("%s: %R", row->name, value) : NULL;
        if (!part || PyList_Append(parts, part) < 0) {
            Py_CLEAR(parts);
        }
        Py_XDECREF(value);
        Py_XDECREF(part);
    }
    PyObject *comma = parts ? PyUnicode_FromString(", ") : NULL;
    PyObject *joined = comma ? PyUnicode_Join(comma, parts) : NULL;
    PyObject *text = joined ? PyUnicode_FromFormat("ReplicateConfig: { %U }", joined) : NULL;
    Py_XDECREF(parts);
    Py_XDECREF(comma);
    Py_XDECREF(joined);
    return text;
}

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)"How a put places and keeps an object."},
    {Py_tp_new, (void *)config_new},
    {Py_tp_dealloc, (void *)config_dealloc},
    {Py_tp_str, (void *)config_str},
    {Py_tp_getset, attributes},
    {0, NULL},
};

PyType_Spec egmpy_config_spec = {
    .name = "mooncake.store.ReplicateConfig",
    .basicsize = sizeof(struct egmpy_config),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};
