/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the extension `mooncake.store` share.
 *
 * The extension translates: Python arguments into the arrays that egmstore/store.h wants, its
 * results into Mooncake's numbers. It holds no data and takes no decision about objects. Its parts:
 *
 *   module.c        the module, its state, its exec slot
 *   store_type.c    MooncakeDistributedStore: life cycle, method table
 *   setup.c         the two forms of setup()
 *   requester.c     what their arguments mean; no Python in it
 *   session.c       the open store: who uses it, who frees it
 *   memory_calls.c  calls that name memory by address
 *   value_calls.c   puts that take bytes
 *   fetch_calls.c   gets that return bytes or a handle
 *   key_calls.c     exist, size, remove, descriptors
 *   batch.c         lists -> items, items -> results
 *   config.c        ReplicateConfig
 *   put_plan.c      a config as options of one put
 *   buffer.c        BufferHandle
 *   replica.c       descriptor classes
 *   enums.c         IntEnum classes
 *   codes.c         our codes -> Mooncake's, the only such table
 *   absent.c        names of the API that do nothing yet
 *
 * Rules of the whole extension:
 *  B1  Everything mutable hangs off the module state or an object; no file has a mutable global.
 *  B2  While the GIL is released no Python object is touched. What the library reads then (keys,
 *      segments, names) lies in memory that the call owns, or in objects to which the call has a
 *      reference of its own.
 *  B3  The session's lock is never held while the GIL is being acquired, so the two cannot form a
 *      cycle.
 *  B4  A list result has exactly as many entries as keys were given, also before setup and after
 *      close. The one exception is get_batch, which upstream lets answer [b""] then.
 *
 * Exceptions are for callers' mistakes of type (TypeError) and for what the contract names
 * (RuntimeError); everything else is a code, and its reason is in last_error().
 */
#ifndef EGMPY_BINDING_H
#define EGMPY_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "egmstore/store.h"

#include <stdbool.h>
#include <stdint.h>

struct egmpy_session;

struct egmpy_state {
    PyTypeObject *store_type;
    PyTypeObject *config_type;
    PyTypeObject *buffer_type;
    PyTypeObject *replica_type;
    PyTypeObject *memory_type;
    PyTypeObject *place_type; /* called Descriptor in Python */
    PyTypeObject *disk_type;
    PyObject *data_type_enum;
    PyObject *soft_pin_enum;
    PyObject *replica_status_enum;
};

/* MooncakeDistributedStore. All fields are guarded by the GIL. */
struct egmpy_store {
    PyObject_HEAD PyObject *module; /* keeps the state alive */
    struct egmpy_state *state;      /* borrowed from module */
    PyObject *weak_references;
    struct egmpy_session *session; /* NULL before setup and after close */
    uint64_t close_count;          /* a setup that was overtaken by close notices */
    bool is_opening;               /* one setup at a time */
    bool has_staging;              /* local_buffer_size > 0: calls that take or return bytes work */
    bool error_is_own;             /* last_error is `error`, not the library's */
    char error[512];
};

/* module.c: the state behind a type of this module or a Python subclass of one; NULL with an
 * exception set. */
struct egmpy_state *egmpy_state_of(PyTypeObject *type, PyObject **ret_module);

/* module.c: PyArg_ParseTupleAndKeywords for constant names. False: an exception is set. */
bool egmpy_parse(PyObject *args, PyObject *kwargs, const char *format, const char *const *names,
                 ...);

/* What a code answers: callers expect different numbers from a put than from a get. */
enum egmpy_call_kind {
    EGMPY_CALL_OTHER = 0,
    EGMPY_CALL_PUT, /* and upsert */
    EGMPY_CALL_GET, /* of data; sizes and places are OTHER */
    EGMPY_CALL_COUNT
};

/* codes.c: maps any negative code of the library to Mooncake's; values >= 0 pass. */
int64_t egmpy_code(enum egmpy_call_kind kind, int64_t code);

/* enums.c, absent.c: called once per module. 0 or -1 with an exception set. */
int egmpy_add_enums(PyObject *module, struct egmpy_state *state);
int egmpy_add_absent_methods(PyTypeObject *store_type);

/* Type specs of the other files. */
extern PyType_Spec egmpy_store_spec;
extern PyType_Spec egmpy_config_spec;
extern PyType_Spec egmpy_buffer_spec;
extern PyType_Spec egmpy_replica_spec;
extern PyType_Spec egmpy_memory_spec;
extern PyType_Spec egmpy_place_spec;
extern PyType_Spec egmpy_disk_spec;

/* store_type.c: sets last_error() to a text of our own. */
__attribute__((format(printf, 2, 3))) void egmpy_note(struct egmpy_store *self, const char *format,
                                                      ...);

/* The same, and returns EGM_E_INVALID: a refusal in one line. */
__attribute__((format(printf, 2, 3))) int egmpy_refuse(struct egmpy_store *self, const char *format,
                                                       ...);

/* One library call: its session stays open in between, the GIL is released. */
struct egmpy_call {
    struct egmpy_session *session;
    struct egm_store *store;
    PyThreadState *thread;
    PyThreadState **outer; /* watched before */
};

/* store_type.c: for library calls of this thread with the GIL released by *thread: a signal that
 * comes while one waits runs Python's handlers. If one raises, the call ends early and
 * egmpy_checked raises in its place. Returns what was watched before, to be watched again: a
 * handler may call the store. */
PyThreadState **egmpy_watch_signals(PyThreadState **thread);
/* The result of a method, or NULL with the exception that a signal handler raised meanwhile. Takes
 * `result`. */
PyObject *egmpy_checked(PyObject *result);

/* With the GIL held. False: the store is not open (noted); nothing was released, do not call
 * egmpy_leave. */
bool egmpy_enter(struct egmpy_store *self, struct egmpy_call *ret_call);
/* Takes the GIL again. `failed`: last_error() is now the library's. */
void egmpy_leave(struct egmpy_store *self, struct egmpy_call *call, bool failed);

/* Converters for PyArg_Parse "O&"; TypeError for what is no integer of the range. */
int egmpy_convert_u64(PyObject *object, void *ret_u64);

/* buffer.c: a BufferHandle with `size` bytes; ret_data is borrowed from it. */
PyObject *egmpy_buffer_create(struct egmpy_state *state, size_t size, uint8_t **ret_data);
void egmpy_buffer_shrink(PyObject *buffer, size_t size);

/* replica.c: the list of descriptors of one object. */
PyObject *egmpy_replicas_of(struct egmpy_state *state, const struct egm_object_info *info);

/* Methods, one prototype each for the table in store_type.c. */
PyObject *egmpy_setup(PyObject *self, PyObject *args, PyObject *kwargs);

PyObject *egmpy_register_buffer(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_unregister_buffer(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_put_from(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_upsert_from(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_get_into(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_batch_put_from(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_batch_upsert_from(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_batch_get_into(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_batch_put_from_multi_buffers(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_batch_get_into_multi_buffers(PyObject *self, PyObject *args, PyObject *kwargs);

PyObject *egmpy_put(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_upsert(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_put_parts(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_upsert_parts(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_put_batch(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_upsert_batch(PyObject *self, PyObject *args, PyObject *kwargs);

PyObject *egmpy_get(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_get_batch(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_get_buffer(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_batch_get_buffer(PyObject *self, PyObject *args, PyObject *kwargs);

PyObject *egmpy_is_exist(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_batch_is_exist(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_get_size(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_remove(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_batch_remove(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_remove_by_regex(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_remove_all(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_get_replica_desc(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *egmpy_batch_get_replica_desc(PyObject *self, PyObject *args, PyObject *kwargs);

#endif
