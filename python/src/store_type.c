/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Python class MooncakeDistributedStore: its life and its method table.
 *
 *      new --setup--> open --close--> closed --setup--> open ...
 *
 * Outside of "open" every call answers -600 (or b"", None) for each key and never raises. close()
 * may be called at any time, by any thread, any number of times; see session.h for calls that are
 * inside meanwhile.
 *
 * last_error() names the cause of the latest failure: our own text for what the binding refused,
 * the library's for the rest. It is one text per store, not per thread.
 */
#include "binding.h"
#include "session.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <structmember.h>
#include <unistd.h>

/* How long close() waits for calls of other threads. They carry their own deadline; a longer wait
 * would only delay the caller, since the last of them closes the store anyway. */
enum {
    CLOSE_WAIT_MS = 5000
};

void egmpy_note(struct egmpy_store *self, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(self->error, sizeof(self->error), format, args);
    va_end(args);
    self->error_is_own = true;
}

int egmpy_refuse(struct egmpy_store *self, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(self->error, sizeof(self->error), format, args);
    va_end(args);
    self->error_is_own = true;
    return EGM_E_INVALID;
}

/* ---- signals while a call waits ---- */

/* The exception that a handler raised, kept until the method returns: between, results are built as
 * if nothing had happened. Python runs handlers on the main thread only, so only that thread ever
 * finds one here. */
static _Thread_local struct {
    PyObject *type, *value, *traceback;
} raised;

static int run_handlers(void *arg)
{
    PyThreadState **thread = arg;
    if (raised.type) {
        return 1; /* the call waits once more on its way out; the first exception is to be seen */
    }
    PyEval_RestoreThread(*thread);
    bool has_raised = PyErr_CheckSignals() < 0;
    if (has_raised) {
        PyErr_Fetch(&raised.type, &raised.value, &raised.traceback);
    }
    *thread = PyEval_SaveThread();
    return has_raised;
}

PyThreadState **egmpy_watch_signals(PyThreadState **thread)
{
    static _Thread_local PyThreadState **watched;
    PyThreadState **before = watched;
    watched = thread;
    /* Only the main thread runs handlers. Another one has no use for the GIL in a wait, and must
     * not ask for it there: an interpreter that ends would end the thread amid the call. */
    bool has_handlers = thread && gettid() == getpid();
    egm_on_interrupt(has_handlers ? run_handlers : NULL, thread);
    return before;
}

PyObject *egmpy_checked(PyObject *result)
{
    if (!raised.type) {
        return result;
    }
    Py_XDECREF(result);
    PyErr_Restore(raised.type, raised.value, raised.traceback);
    raised.type = NULL;
    return NULL;
}

bool egmpy_enter(struct egmpy_store *self, struct egmpy_call *ret_call)
{
    struct egmpy_session *session = self->session;
    struct egm_store *store = session ? egmpy_session_enter(session) : NULL;
    if (!store) {
        egmpy_note(self, "%s",
                   session ? "the store belongs to the process before fork(); set up a new one"
                           : "the store is not open: call setup() first");
        return false;
    }
    *ret_call =
        (struct egmpy_call){.session = session, .store = store, .thread = PyEval_SaveThread()};
    ret_call->outer = egmpy_watch_signals(&ret_call->thread);
    return true;
}

void egmpy_leave(struct egmpy_store *self, struct egmpy_call *call, bool failed)
{
    egmpy_session_leave(
        call->session); /* before the GIL: the last leave of a closed session may block (B3) */
    egmpy_watch_signals(call->outer);
    PyEval_RestoreThread(call->thread);
    if (failed) {
        self->error_is_own = false;
    }
}

static PyObject *store_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs; /* a subclass may take arguments in its __init__ */
    PyObject *module = NULL;
    struct egmpy_state *state = egmpy_state_of(type, &module);
    struct egmpy_store *self = state ? (struct egmpy_store *)type->tp_alloc(type, 0) : NULL;
    if (self) {
        self->module = Py_NewRef(module);
        self->state = state;
        self->error_is_own = true;
    }
    return (PyObject *)self;
}

static int store_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    (void)self;
    if (PyTuple_GET_SIZE(args) > 0 || (kwargs && PyDict_GET_SIZE(kwargs) > 0)) {
        PyErr_SetString(PyExc_TypeError, "MooncakeDistributedStore() takes no arguments");
        return -1;
    }
    return 0;
}

/* The library's text is fetched before its handle goes. */
static void keep_error(struct egmpy_store *self)
{
    if (self->error_is_own) {
        return;
    }
    struct egm_store *store = egmpy_session_enter(self->session);
    if (store) {
        egm_store_last_error(store, self->error, sizeof(self->error));
        egmpy_session_leave(self->session);
        self->error_is_own = true;
    }
}

static void close_store(struct egmpy_store *self)
{
    struct egmpy_session *session = self->session;
    self->close_count++;
    if (!session) {
        return;
    }
    keep_error(self);
    self->session = NULL;
    PyThreadState *thread = PyEval_SaveThread();
    egmpy_session_close(session, CLOSE_WAIT_MS);
    PyEval_RestoreThread(thread);
}

static PyObject *store_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    close_store((struct egmpy_store *)self);
    return PyLong_FromLong(0);
}

static int store_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((struct egmpy_store *)object)->module);
    return 0;
}

static int store_clear(PyObject *object)
{
    (void)object; /* the module is needed until the end; it does not hold stores except as an
                     attribute set by users */
    return 0;
}

static void store_dealloc(PyObject *object)
{
    struct egmpy_store *self = (struct egmpy_store *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->weak_references) {
        PyObject_ClearWeakRefs(object);
    }
    if (self->session) {
        close_store(self);
    }
    Py_CLEAR(self->module);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *store_health_check(PyObject *object, PyObject *unused)
{
    (void)unused;
    enum {
        HEALTHY = 0,
        NOT_OPEN = 1,
        MASTER_UNREACHABLE = 2
    };
    struct egmpy_store *self = (struct egmpy_store *)object;
    struct egmpy_call call;
    if (!egmpy_enter(self, &call)) {
        return PyLong_FromLong(NOT_OPEN);
    }
    int r = egm_store_health(call.store);
    egmpy_leave(self, &call, r < 0);
    long answer = r == EGM_E_CLOSED ? NOT_OPEN : MASTER_UNREACHABLE;
    return PyLong_FromLong(r < 0 ? answer : HEALTHY);
}

static PyObject *store_get_hostname(PyObject *object, PyObject *unused)
{
    (void)unused;
    char name[512] = "";
    struct egmpy_store *self = (struct egmpy_store *)object;
    struct egmpy_call call;
    if (egmpy_enter(self, &call)) {
        snprintf(name, sizeof(name), "%s", egm_store_hostname(call.store));
        egmpy_leave(self, &call, /*failed=*/false);
    }
    return PyUnicode_FromString(name);
}

static PyObject *store_last_error(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct egmpy_store *self = (struct egmpy_store *)object;
    char text[sizeof(self->error)] = "";
    struct egmpy_call call;
    if (!self->error_is_own && self->session && egmpy_enter(self, &call)) {
        egm_store_last_error(call.store, text, sizeof(text));
        egmpy_leave(self, &call, /*failed=*/false);
    }
    const char *shown = text[0] ? text : self->error;
    return PyUnicode_DecodeUTF8(shown, (Py_ssize_t)strlen(shown), "replace");
}

/* Every method that may wait goes through egmpy_checked. */
/* clang-format off */
#define EGMPY_METHODS(M)                                                                          \
    M(setup)                                                                                      \
    M(register_buffer) M(unregister_buffer) M(put) M(put_parts) M(put_batch) M(put_from)          \
        M(batch_put_from) M(batch_put_from_multi_buffers) M(upsert) M(upsert_parts)               \
            M(upsert_batch) M(upsert_from) M(batch_upsert_from) M(get) M(get_batch) M(get_buffer) \
                M(batch_get_buffer) M(get_into) M(batch_get_into) M(batch_get_into_multi_buffers) \
                    M(is_exist) M(batch_is_exist) M(get_size) M(remove) M(batch_remove)           \
                        M(remove_by_regex) M(remove_all) M(get_replica_desc)                      \
                            M(batch_get_replica_desc)
/* clang-format on */
#define CHECKED(name)                                                                 \
    static PyObject *checked_##name(PyObject *self, PyObject *args, PyObject *kwargs) \
    {                                                                                 \
        return egmpy_checked(egmpy_##name(self, args, kwargs));                       \
    }
EGMPY_METHODS(CHECKED)

static PyObject *checked_health_check(PyObject *self, PyObject *unused)
{
    return egmpy_checked(store_health_check(self, unused));
}

#define METHOD(name, text)                                                                     \
    {                                                                                          \
#name, (PyCFunction)(void (*)(void))checked_##name, METH_VARARGS | METH_KEYWORDS, text \
    }

static PyMethodDef methods[] = {
    METHOD(setup, "Opens the store: setup(local_hostname, metadata_server, global_segment_size, "
                  "local_buffer_size, "
                  "protocol, rdma_devices, master_server_addr, ...) or setup(config). 0, or a "
                  "negative code."),
    {"close", store_close, METH_NOARGS,
     "Closes the store; 0, also when it is not open. Calls of other threads end with -600 or their "
     "own result."},
    {"health_check", checked_health_check, METH_NOARGS,
     "0 healthy, 1 not open, 2 master unreachable."},
    {"get_hostname", store_get_hostname, METH_NOARGS,
     "The registered name \"host:port\"; \"\" when not open."},
    {"last_error", store_last_error, METH_NOARGS,
     "Why the latest failed call of this store failed, as a sentence."},
    METHOD(register_buffer,
           "register_buffer(buffer_ptr, size): memory that calls may name by address."),
    METHOD(unregister_buffer,
           "unregister_buffer(buffer_ptr): undoes one register_buffer of that address."),
    METHOD(put, "put(key, value, config=None): stores a buffer; 0 also if the key exists (value "
                "unchanged)."),
    METHOD(put_parts, "put_parts(key, *parts, config=None): stores the parts' concatenation."),
    METHOD(put_batch, "put_batch(keys, values, config=None): 0, or the first failure's code."),
    METHOD(put_from, "put_from(key, buffer_ptr, size, config=None): stores registered memory."),
    METHOD(batch_put_from,
           "batch_put_from(keys, buffer_ptrs, sizes, config=None): one code per key."),
    METHOD(batch_put_from_multi_buffers, "batch_put_from_multi_buffers(keys, all_buffer_ptrs, "
                                         "all_sizes, config=None): gathers many pieces per key; "
                                         "one code per key."),
    METHOD(upsert, "Like put, but replaces an existing value."),
    METHOD(upsert_parts, "Like put_parts, but replaces an existing value."),
    METHOD(upsert_batch, "Like put_batch, but replaces existing values."),
    METHOD(upsert_from, "Like put_from, but replaces an existing value."),
    METHOD(batch_upsert_from, "Like batch_put_from, but replaces existing values."),
    METHOD(get, "get(key): the value, or b\"\" on any failure."),
    METHOD(get_batch, "get_batch(keys): values, b\"\" per failure."),
    METHOD(get_buffer, "get_buffer(key): a BufferHandle, or None."),
    METHOD(batch_get_buffer, "batch_get_buffer(keys): BufferHandle or None per key."),
    METHOD(
        get_into,
        "get_into(key, buffer_ptr, size): bytes read into registered memory, or a negative code."),
    METHOD(batch_get_into,
           "batch_get_into(keys, buffer_ptrs, sizes): bytes read or a code per key."),
    METHOD(batch_get_into_multi_buffers, "batch_get_into_multi_buffers(keys, all_buffer_ptrs, "
                                         "all_sizes, prefer_alloc_in_same_node=False): scatters "
                                         "each value over pieces; bytes read or a code per key."),
    METHOD(is_exist, "is_exist(key): 1, 0, or a negative code."),
    METHOD(batch_is_exist, "batch_is_exist(keys): 1, 0, or a negative code per key."),
    METHOD(get_size, "get_size(key): bytes, or a negative code."),
    METHOD(remove, "remove(key, force=False): 0 or a negative code; force also removes objects "
                   "that are held."),
    METHOD(batch_remove, "batch_remove(keys, force=False): 0 or a negative code per key."),
    METHOD(
        remove_by_regex,
        "remove_by_regex(regex_pattern, force=False): how many were removed, or a negative code."),
    METHOD(remove_all, "remove_all(force=False): how many were removed, or a negative code. With "
                       "force=True a failure of an open store raises "
                       "RuntimeError: callers that force a reset do not look at the result, and a "
                       "code would pass for success."),
    METHOD(get_replica_desc, "get_replica_desc(key): list of ReplicaDescriptor, [] if missing."),
    METHOD(batch_get_replica_desc,
           "batch_get_replica_desc(keys): dict of lists; missing keys are left out."),
    {0},
};

static PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(struct egmpy_store, weak_references), READONLY,
     NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     (void *)"A session with the store: puts and gets objects straight from and into memory.\n\n"
             "Thread-safe; every call that may wait releases the GIL and ends within the store's "
             "deadline."},
    {Py_tp_new, (void *)store_new},
    {Py_tp_init, (void *)store_init},
    {Py_tp_dealloc, (void *)store_dealloc},
    {Py_tp_traverse, (void *)store_traverse},
    {Py_tp_clear, (void *)store_clear},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {0, NULL},
};

PyType_Spec egmpy_store_spec = {
    .name = "mooncake.store.MooncakeDistributedStore",
    .basicsize = sizeof(struct egmpy_store),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};
