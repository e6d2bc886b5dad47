/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MooncakeDistributedStore.setup in its two forms: seven positional arguments and some options, or
 * one dict. Both are read into one struct egmpy_requester; requester.h says what they mean.
 *
 * A mistake of type is a TypeError; a value that cannot be used is -600 with the reason in
 * last_error(). Connecting happens without the GIL; a close() that comes meanwhile wins.
 */
#include "binding.h"
#include "requester.h"
#include "session.h"

#include <errno.h>
#include <string.h>

struct setup_args {
    struct egmpy_requester requester; /* texts are borrowed from the arguments or from `holder` */
    PyObject *holder;                 /* list of the str that the dict form made, or NULL */
};

/* Leaves the text for last_error(). Returns code. */
static int note_detail(struct egmpy_store *self, int code, const struct egm_detail *detail)
{
    egmpy_note(self, "%s", detail->text[0] ? detail->text : egm_strerror(code));
    return code;
}

/* ---- the dict form ---- */

/* Text without a NUL inside, borrowed from the str; NULL without an exception if there is none. */
static const char *plain_text(PyObject *text)
{
    Py_ssize_t size;
    const char *bytes = PyUnicode_AsUTF8AndSize(text, &size);
    if (!bytes && PyErr_ExceptionMatches(PyExc_UnicodeError)) {
        PyErr_Clear();
    }
    return bytes && strlen(bytes) == (size_t)size ? bytes : NULL;
}

/* str(value), kept alive by the holder. NULL as plain_text, or with an exception. */
static const char *stringify(struct setup_args *args, PyObject *value)
{
    PyObject *text = PyObject_Str(value);
    int r = text ? PyList_Append(args->holder, text) : -1;
    Py_XDECREF(text);
    return r == 0 ? plain_text(text) : NULL;
}

static int read_entry(struct egmpy_store *self, struct setup_args *args, PyObject *key,
                      PyObject *value)
{
    const char *name = PyUnicode_Check(key) ? plain_text(key) : NULL;
    if (!name) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "setup(config): keys must be plain str");
        }
        return -1;
    }
    const char *text = stringify(args, value);
    if (!text) {
        return PyErr_Occurred() ? -1 : egmpy_refuse(self, "setup: %s is no plain text", name);
    }
    struct egm_detail detail = {0};
    int r = egmpy_requester_set(&args->requester, name, text, &detail);
    if (r == EGM_E_NOT_FOUND) {
        return PyErr_WarnFormat(PyExc_UserWarning, 1,
                                "setup(config): unknown key '%.100s' is ignored", name);
    }
    return r < 0 ? note_detail(self, r, &detail) : 0;
}

/* 0, EGM_E_INVALID (noted), or -1 with an exception. The dict is copied first: stringifying runs
 * Python code. */
static int read_dict(struct egmpy_store *self, PyObject *dict, struct setup_args *args)
{
    args->holder = PyList_New(0);
    PyObject *entries = args->holder ? PyDict_Items(dict) : NULL;
    int r = entries ? 0 : -1;
    for (Py_ssize_t i = 0; r == 0 && i < PyList_GET_SIZE(entries); i++) {
        PyObject *pair = PyList_GET_ITEM(entries, i);
        r = read_entry(self, args, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
    }
    Py_XDECREF(entries);
    if (r == 0) {
        struct egm_detail detail = {0};
        r = egmpy_requester_is_whole(&args->requester, &detail);
        r = r < 0 ? note_detail(self, r, &detail) : 0;
    }
    return r;
}

/* ---- the positional form ---- */

static const char *const keywords[] = {"local_hostname",
                                       "metadata_server",
                                       "global_segment_size",
                                       "local_buffer_size",
                                       "protocol",
                                       "rdma_devices",
                                       "master_server_addr",
                                       "engine",
                                       "enable_ssd_offload",
                                       "ssd_offload_path",
                                       "tenant_id",
                                       "enable_client_http_server",
                                       "client_http_port",
                                       NULL};

/* Frameworks probe which arguments exist by reading this text, so it says what upstream's would:
 * that the arguments are incompatible, which one, and the whole signature. Text that is no text (a
 * NUL inside, a lone surrogate) is one of them, though Python calls it a ValueError. */
static int refuse_arguments(void)
{
    PyObject *type;
    PyObject *value;
    PyObject *traceback;
    if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_ValueError)) {
        return -1;
    }
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_Format(
        PyExc_TypeError,
        "setup(): incompatible function arguments. %S. Supported: 1. setup(local_hostname: str, "
        "metadata_server: str, global_segment_size: int, local_buffer_size: int, protocol: str, "
        "rdma_devices: str, master_server_addr: str, engine: object = None, enable_ssd_offload: "
        "bool = "
        "False, ssd_offload_path: str = '', tenant_id: str = 'default', enable_client_http_server: "
        "bool = "
        "False, client_http_port: int = 9300) -> int; 2. setup(config: dict) -> int",
        value ? value : Py_None);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return -1;
}

static int read_arguments(PyObject *args, PyObject *kwargs, struct egmpy_requester *ret)
{
    const char *devices;
    const char *ssd_path = "";
    PyObject *engine = Py_None;
    int http_port;
    if (!egmpy_parse(args, kwargs, "ssO&O&sss|Opsspi:setup", keywords, &ret->hostname,
                     &ret->metadata_server, egmpy_convert_u64, &ret->segment_bytes,
                     egmpy_convert_u64, &ret->local_buffer_bytes, &ret->protocol, &devices,
                     &ret->master, &engine, &ret->wants_ssd, &ssd_path, &ret->tenant,
                     &ret->wants_http, &http_port)) {
        return refuse_arguments();
    }
    return 0;
}

static PyObject *dict_argument(PyObject *args, PyObject *kwargs)
{
    Py_ssize_t positional = PyTuple_GET_SIZE(args);
    Py_ssize_t named = kwargs ? PyDict_GET_SIZE(kwargs) : 0;
    PyObject *candidate = NULL;
    if (positional == 1 && named == 0) {
        candidate = PyTuple_GET_ITEM(args, 0);
    } else if (positional == 0 && named == 1) {
        candidate = PyDict_GetItemString(kwargs, "config");
    }
    return candidate && PyDict_Check(candidate) ? candidate : NULL;
}

/* ---- opening ---- */

/* Connects. With the GIL released; a failed open leaves its text in reterr. */
static int open_session(const struct egm_store_options *options, struct egmpy_session **ret,
                        struct egm_detail *reterr)
{
    struct egm_store *store;
    int r = egm_store_open(options, &store, reterr);
    if (r < 0) {
        return r;
    }
    *ret = egmpy_session_create(store);
    if (!*ret) {
        egm_store_close(store);
        return -ENOMEM;
    }
    return 0;
}

static int connect_store(struct egmpy_store *self, const struct egm_store_options *options)
{
    struct egmpy_session *session = NULL;
    struct egm_detail detail = {0};
    uint64_t close_count = self->close_count;
    self->is_opening = true;
    PyThreadState *thread = PyEval_SaveThread();
    PyThreadState **outer = egmpy_watch_signals(&thread);
    int r = open_session(options, &session, &detail);
    egmpy_watch_signals(outer);
    PyEval_RestoreThread(thread);
    self->is_opening = false;
    if (r < 0) {
        return note_detail(self, r, &detail);
    }
    if (close_count != self->close_count) {
        thread = PyEval_SaveThread();
        egmpy_session_close(session, 0);
        PyEval_RestoreThread(thread);
        egmpy_note(self, "setup: close() was called meanwhile");
        return EGM_E_CLOSED;
    }
    self->session = session;
    return 0;
}

static int warn_about(const struct egmpy_requester *args)
{
    if (args->wants_ssd &&
        PyErr_WarnEx(PyExc_RuntimeWarning,
                     "egmstore has no SSD tier yet: enable_ssd_offload is ignored", 1) < 0) {
        return -1;
    }
    if (args->wants_http &&
        PyErr_WarnEx(PyExc_RuntimeWarning,
                     "egmstore requesters serve no HTTP: enable_client_http_server is ignored",
                     1) < 0) {
        return -1;
    }
    return 0;
}

/* 0, an own code (noted), or -1 with an exception. */
static int run_setup(struct egmpy_store *self, const struct egmpy_requester *args)
{
    struct egm_store_options options;
    struct egm_detail detail = {0};
    int r = egmpy_requester_options(args, &options, &detail);
    if (r < 0) {
        return note_detail(self, r, &detail);
    }
    if (warn_about(args) < 0) {
        return -1;
    }
    if (self->session || self->is_opening) {
        return egmpy_refuse(self, "setup: this store is %s; close() it first",
                            self->session ? "open" : "being opened");
    }
    self->has_staging = args->local_buffer_bytes > 0;
    return connect_store(self, &options);
}

PyObject *egmpy_setup(PyObject *object, PyObject *args, PyObject *kwargs)
{
    struct egmpy_store *self = (struct egmpy_store *)object;
    struct setup_args parsed = {.holder = NULL};
    PyObject *dict = dict_argument(args, kwargs);
    egmpy_requester_init(&parsed.requester);
    int r = dict ? read_dict(self, dict, &parsed) : read_arguments(args, kwargs, &parsed.requester);
    if (r == 0) {
        r = run_setup(self, &parsed.requester);
    }
    Py_XDECREF(parsed.holder);
    return r < 0 && PyErr_Occurred() ? NULL : PyLong_FromLongLong(egmpy_code(EGMPY_CALL_OTHER, r));
}
