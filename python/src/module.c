/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The module object of `mooncake.store`: multi-phase initialisation, so that each interpreter gets
 * its own copy.
 *
 * All types are heap types made from the specs of the other files; the state owns a reference to
 * each and the module's dict another. There is no order of destruction to care for: stores and
 * configs keep the module alive themselves.
 */
#include "binding.h"
#include "egmstore/version.h"

#include <stdarg.h>

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **slot)
{
    *slot = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *slot ? PyModule_AddType(module, *slot) : -1;
}

static int add_types(PyObject *module, struct egmpy_state *state)
{
    if (add_type(module, &egmpy_store_spec, &state->store_type) < 0 ||
        add_type(module, &egmpy_config_spec, &state->config_type) < 0 ||
        add_type(module, &egmpy_buffer_spec, &state->buffer_type) < 0 ||
        add_type(module, &egmpy_replica_spec, &state->replica_type) < 0 ||
        add_type(module, &egmpy_memory_spec, &state->memory_type) < 0 ||
        add_type(module, &egmpy_place_spec, &state->place_type) < 0 ||
        add_type(module, &egmpy_disk_spec, &state->disk_type) < 0) {
        return -1;
    }
    return 0;
}

static int exec_module(PyObject *module)
{
    struct egmpy_state *state = PyModule_GetState(module);
    if (egmpy_add_enums(module, state) < 0 || add_types(module, state) < 0 ||
        egmpy_add_absent_methods(state->store_type) < 0) {
        return -1;
    }
    return PyModule_AddStringConstant(module, "egmstore_version", EGMSTORE_VERSION);
}

static int traverse_module(PyObject *module, visitproc visit, void *arg)
{
    struct egmpy_state *state = PyModule_GetState(module);
    Py_VISIT(state->store_type);
    Py_VISIT(state->config_type);
    Py_VISIT(state->buffer_type);
    Py_VISIT(state->replica_type);
    Py_VISIT(state->memory_type);
    Py_VISIT(state->place_type);
    Py_VISIT(state->disk_type);
    Py_VISIT(state->data_type_enum);
    Py_VISIT(state->soft_pin_enum);
    Py_VISIT(state->replica_status_enum);
    return 0;
}

static int clear_module(PyObject *module)
{
    struct egmpy_state *state = PyModule_GetState(module);
    Py_CLEAR(state->store_type);
    Py_CLEAR(state->config_type);
    Py_CLEAR(state->buffer_type);
    Py_CLEAR(state->replica_type);
    Py_CLEAR(state->memory_type);
    Py_CLEAR(state->place_type);
    Py_CLEAR(state->disk_type);
    Py_CLEAR(state->data_type_enum);
    Py_CLEAR(state->soft_pin_enum);
    Py_CLEAR(state->replica_status_enum);
    return 0;
}

static void free_module(void *module)
{
    clear_module(module);
}

bool egmpy_parse(PyObject *args, PyObject *kwargs, const char *format, const char *const *names,
                 ...)
{
    va_list targets;
    va_start(targets, names);
    /* Python's prototype predates const; it does not write to the names. */
    int is_parsed = PyArg_VaParseTupleAndKeywords(args, kwargs, format, (char **)names, targets);
    va_end(targets);
    return is_parsed != 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)exec_module},
#if PY_VERSION_HEX >= 0x030c0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "mooncake.store",
    .m_doc = "Mooncake's store API served by egmstore.",
    .m_size = sizeof(struct egmpy_state),
    .m_slots = slots,
    .m_traverse = traverse_module,
    .m_clear = clear_module,
    .m_free = free_module,
};

/* A Python subclass has no module of its own, so the search goes up to the first type that belongs
 * to us. */
struct egmpy_state *egmpy_state_of(PyTypeObject *type, PyObject **ret_module)
{
    for (PyTypeObject *base = type; base; base = base->tp_base) {
        PyObject *module =
            PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE) ? PyType_GetModule(base) : NULL;
        if (module && PyModule_GetDef(module) == &definition) {
            if (ret_module) {
                *ret_module = module;
            }
            return PyModule_GetState(module);
        }
        PyErr_Clear();
    }
    PyErr_SetString(PyExc_SystemError, "not a type of mooncake.store");
    return NULL;
}

PyMODINIT_FUNC PyInit_store(void); /* the interpreter looks it up by name: no header declares it */

PyMODINIT_FUNC PyInit_store(void)
{
    return PyModuleDef_Init(&definition);
}
