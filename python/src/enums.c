/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The enum classes of the API, made by Python's own enum.IntEnum from one table.
 *
 * Members compare equal to their numbers, which upstream code relies on when it stores them. Where
 * the contract says so, members are also attributes of the module; of two members with one name the
 * later class's is visible there.
 */
#include "binding.h"

struct enum_member {
    const char *name;
    int value;
};

enum {
    MEMBERS_MAX = 10
};

struct enum_row {
    const char *name;
    bool is_exported; /* members also at module level */
    struct enum_member members[MEMBERS_MAX + 1];
};

static const struct enum_row enum_rows[] = {
    {"ObjectDataType",
     true,
     {{"UNKNOWN", 0},
      {"KVCACHE", 1},
      {"TENSOR", 2},
      {"WEIGHT", 3},
      {"SAMPLE", 4},
      {"ACTIVATION", 5},
      {"GRADIENT", 6},
      {"OPTIMIZER_STATE", 7},
      {"METADATA", 8},
      {"GENERAL", 9}}},
    {"SoftPinAction",
     false,
     {{"PRESERVE", EGM_SOFT_PIN_PRESERVE},
      {"ENABLE", EGM_SOFT_PIN_ENABLE},
      {"DISABLE", EGM_SOFT_PIN_DISABLE}}},
    {"ReplicaStatus",
     true,
     {{"UNDEFINED", 0},
      {"INITIALIZED", 1},
      {"PROCESSING", 2},
      {"COMPLETE", 3},
      {"REMOVED", 4},
      {"FAILED", 5}}},
    {"TaskType", true, {{"REPLICA_COPY", 0}, {"REPLICA_MOVE", 1}}},
    {"TaskStatus", true, {{"PENDING", 0}, {"PROCESSING", 1}, {"FAILED", 2}, {"SUCCESS", 3}}},
};

static PyObject *member_list(const struct enum_row *row)
{
    PyObject *list = PyList_New(0);
    for (const struct enum_member *member = row->members; list && member->name; member++) {
        PyObject *pair = Py_BuildValue("(si)", member->name, member->value);
        if (!pair || PyList_Append(list, pair) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(pair);
    }
    return list;
}

static PyObject *create_enum(PyObject *int_enum, const struct enum_row *row)
{
    PyObject *members = member_list(row);
    PyObject *args = members ? Py_BuildValue("(sO)", row->name, members) : NULL;
    PyObject *kwargs = args ? Py_BuildValue("{ss}", "module", "mooncake.store") : NULL;
    PyObject *created = kwargs ? PyObject_Call(int_enum, args, kwargs) : NULL;
    Py_XDECREF(members);
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    return created;
}

static int export_members(PyObject *module, PyObject *enum_class, const struct enum_row *row)
{
    for (const struct enum_member *member = row->members; member->name; member++) {
        PyObject *value = PyObject_GetAttrString(enum_class, member->name);
        int r = value ? PyObject_SetAttrString(module, member->name, value) : -1;
        Py_XDECREF(value);
        if (r < 0) {
            return -1;
        }
    }
    return 0;
}

/* Where the state keeps the classes that C code needs. */
static PyObject **state_slot(struct egmpy_state *state, size_t i)
{
    PyObject **slots[] = {&state->data_type_enum, &state->soft_pin_enum,
                          &state->replica_status_enum};
    return i < sizeof(slots) / sizeof(slots[0]) ? slots[i] : NULL;
}

static int add_enum(PyObject *module, struct egmpy_state *state, PyObject *int_enum, size_t i)
{
    const struct enum_row *row = &enum_rows[i];
    PyObject *created = create_enum(int_enum, row);
    if (!created) {
        return -1;
    }
    int r = PyObject_SetAttrString(module, row->name, created);
    if (r == 0 && row->is_exported) {
        r = export_members(module, created, row);
    }
    PyObject **slot = state_slot(state, i);
    if (slot) {
        Py_XSETREF(*slot, Py_NewRef(created));
    }
    Py_DECREF(created);
    return r;
}

int egmpy_add_enums(PyObject *module, struct egmpy_state *state)
{
    PyObject *enum_module = PyImport_ImportModule("enum");
    PyObject *int_enum = enum_module ? PyObject_GetAttrString(enum_module, "IntEnum") : NULL;
    int r = int_enum ? 0 : -1;
    for (size_t i = 0; r == 0 && i < sizeof(enum_rows) / sizeof(enum_rows[0]); i++) {
        r = add_enum(module, state, int_enum, i);
    }
    Py_XDECREF(enum_module);
    Py_XDECREF(int_enum);
    return r;
}
