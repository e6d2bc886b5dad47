/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MooncakeDistributedStore.setup in its two forms: seven positional arguments and some options, or
 * one dict.
 *
 * Both forms are read into one struct setup_args; what Mooncake's arguments mean here is decided
 * after that:
 *
 *   metadata_server, rdma_devices, engine, client_http_port
 *       accepted, without effect: the master is the only directory.
 *   local_buffer_size
 *       Only whether it is 0 matters: values are copied straight from and to the caller's memory,
 *       so there is no staging buffer to size. 0 disables the calls that take or return bytes, as
 *       it does upstream.
 *   global_segment_size
 *       Memory this process lends. Upstream takes 1 KiB and more, a provider needs 1 MiB, so less
 *       is rounded up.
 *   protocol "rpc_only"
 *       A requester that moves no data: the same session, its data path unused.
 *   SSD offload, client HTTP server
 *       Do not exist yet: a warning, and the store works without.
 *
 * A mistake of type is a TypeError; a value that cannot be used is -600 with the reason in
 * last_error(). Connecting happens without the GIL; a close() that comes meanwhile wins.
 */
#include "base/detail.h"
#include "base/parse.h"

#include "binding.h"
#include "session.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#define LOCAL_BUFFER_MAX_BYTES (1ull << 40)
#define SEGMENT_MIN_BYTES (1ull << 20)
#define SIZE_MIN_BYTES 1024ull
#define DICT_SIZE_DEFAULT_BYTES (16ull << 20)
#define MASTER_DEFAULT "127.0.0.1:50051"

struct setup_args {
    const char *hostname; /* texts are borrowed from the arguments or from `holder` */
    const char *metadata_server;
    const char *master;
    const char *protocol;
    const char *tenant;
    uint64_t segment_bytes;
    uint64_t local_buffer_bytes;
    int wants_ssd;
    int wants_http;
    PyObject *holder; /* list of the str that the dict form made, or NULL */
};

/* ---- the dict form ---- */

enum option_kind {
    OPTION_TEXT,
    OPTION_SIZE,
    OPTION_BOOL,
    OPTION_PORT, /* checked, then ignored */
    OPTION_IGNORED
};

struct option_row {
    const char *name;
    enum option_kind kind;
    size_t offset;
};

static const struct option_row option_rows[] = {
    {"local_hostname", OPTION_TEXT, offsetof(struct setup_args, hostname)},
    {"metadata_server", OPTION_TEXT, offsetof(struct setup_args, metadata_server)},
    {"global_segment_size", OPTION_SIZE, offsetof(struct setup_args, segment_bytes)},
    {"local_buffer_size", OPTION_SIZE, offsetof(struct setup_args, local_buffer_bytes)},
    {"protocol", OPTION_TEXT, offsetof(struct setup_args, protocol)},
    {"rdma_devices", OPTION_IGNORED, 0},
    {"master_server_addr", OPTION_TEXT, offsetof(struct setup_args, master)},
    {"ipc_socket_path", OPTION_IGNORED, 0},
    {"enable_ssd_offload", OPTION_BOOL, offsetof(struct setup_args, wants_ssd)},
    {"ssd_offload_path", OPTION_IGNORED, 0},
    {"tenant_id", OPTION_TEXT, offsetof(struct setup_args, tenant)},
    {"enable_client_http_server", OPTION_BOOL, offsetof(struct setup_args, wants_http)},
    {"client_http_port", OPTION_PORT, 0},
};

static const struct option_row *find_option(const char *name)
{
    for (size_t i = 0; i < sizeof(option_rows) / sizeof(option_rows[0]); i++) {
        if (strcmp(option_rows[i].name, name) == 0) {
            return &option_rows[i];
        }
    }
    return NULL;
}

static int read_size(struct egmpy_store *self, const struct option_row *row, const char *text,
                     uint64_t *ret)
{
    if (strcasecmp(text, "infinite") == 0) {
        *ret = UINT64_MAX;
        return 0;
    }
    if (egm_parse_size(text, 0, UINT64_MAX, ret) < 0) {
        return egmpy_refuse(self,
                            "setup: %s is no size: '%.64s' (write 16777216, \"16MB\" or \"1.5GB\")",
                            row->name, text);
    }
    return 0;
}

static int read_option(struct egmpy_store *self, const struct option_row *row, const char *text,
                       struct setup_args *args)
{
    void *target = (char *)args + row->offset;
    switch (row->kind) {
    case OPTION_TEXT:
        *(const char **)target = text;
        return 0;
    case OPTION_SIZE:
        return read_size(self, row, text, target);
    case OPTION_BOOL: {
        bool value;
        if (egm_parse_bool(text, &value) < 0) {
            return egmpy_refuse(self, "setup: %s is neither true nor false: '%.64s'", row->name,
                                text);
        }
        *(int *)target = value;
        return 0;
    }
    case OPTION_PORT: {
        uint64_t port;
        if (egm_parse_u64(text, 0, UINT16_MAX, &port) < 0) {
            return egmpy_refuse(self, "setup: %s is no port (0 to 65535): '%.64s'", row->name,
                                text);
        }
        return 0;
    }
    case OPTION_IGNORED:
        return 0;
    }
    return 0;
}

/* str(value), kept alive by the holder. */
static const char *stringify(struct setup_args *args, PyObject *value)
{
    PyObject *text = PyObject_Str(value);
    int r = text ? PyList_Append(args->holder, text) : -1;
    Py_XDECREF(text);
    return r == 0 ? PyUnicode_AsUTF8(text) : NULL;
}

static int read_entry(struct egmpy_store *self, struct setup_args *args, PyObject *key,
                      PyObject *value)
{
    const char *name = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : NULL;
    if (!name) {
        PyErr_SetString(PyExc_TypeError, "setup(config): keys must be str");
        return -1;
    }
    const struct option_row *row = find_option(name);
    if (!row) {
        return PyErr_WarnFormat(PyExc_UserWarning, 1,
                                "setup(config): unknown key '%.100s' is ignored", name);
    }
    const char *text = stringify(args, value);
    return text ? read_option(self, row, text, args) : -1;
}

/* 0, EGM_E_INVALID (noted), or -1 with an exception. The dict is copied first: stringifying runs
 * Python code. */
static int read_dict(struct egmpy_store *self, PyObject *dict, struct setup_args *args)
{
    args->segment_bytes = DICT_SIZE_DEFAULT_BYTES;
    args->local_buffer_bytes = DICT_SIZE_DEFAULT_BYTES;
    args->holder = PyList_New(0);
    PyObject *entries = args->holder ? PyDict_Items(dict) : NULL;
    int r = entries ? 0 : -1;
    for (Py_ssize_t i = 0; r == 0 && i < PyList_GET_SIZE(entries); i++) {
        PyObject *pair = PyList_GET_ITEM(entries, i);
        r = read_entry(self, args, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
    }
    Py_XDECREF(entries);
    if (r == 0 && !args->hostname) {
        r = egmpy_refuse(self, "setup: the config lacks %s", "local_hostname");
    }
    if (r == 0 && !args->metadata_server) {
        r = egmpy_refuse(self, "setup: the config lacks %s", "metadata_server");
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
 * that the arguments are incompatible, which one, and the whole signature. */
static int refuse_arguments(void)
{
    PyObject *type;
    PyObject *value;
    PyObject *traceback;
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
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

static int read_arguments(PyObject *args, PyObject *kwargs, struct setup_args *ret)
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

/* ---- what the arguments mean ---- */

static int check_sizes(struct egmpy_store *self, const struct setup_args *args)
{
    if (args->segment_bytes > 0 && args->segment_bytes < SIZE_MIN_BYTES) {
        return egmpy_refuse(self, "setup: %s must be 0 or at least 1 KiB", "global_segment_size");
    }
    if (args->local_buffer_bytes > 0 && args->local_buffer_bytes < SIZE_MIN_BYTES) {
        return egmpy_refuse(self, "setup: %s must be 0 or at least 1 KiB", "local_buffer_size");
    }
    if (args->local_buffer_bytes > LOCAL_BUFFER_MAX_BYTES) {
        return egmpy_refuse(self, "setup: %s may be at most 1 TiB", "local_buffer_size");
    }
    return 0;
}

static int choose_protocol(struct egmpy_store *self, const char *name, const char **ret)
{
    static const char *const wires[] = {"tcp", "rdma", "nvlink"};
    if (name[0] == '\0' || strcasecmp(name, "rpc_only") == 0) {
        *ret = NULL;
        return 0;
    }
    for (size_t i = 0; i < sizeof(wires) / sizeof(wires[0]); i++) {
        if (strcasecmp(name, wires[i]) == 0) {
            *ret = wires[i];
            return 0;
        }
    }
    return egmpy_refuse(self, "setup: unknown protocol '%.64s' (tcp, rdma, nvlink, rpc_only)",
                        name);
}

static const char *text_or_null(const char *text)
{
    return text && text[0] != '\0' ? text : NULL;
}

static int make_options(struct egmpy_store *self, const struct setup_args *args,
                        struct egm_store_options *ret)
{
    int r = check_sizes(self, args);
    if (r < 0) {
        return r;
    }
    *ret = (struct egm_store_options){
        .master = text_or_null(args->master),
        .hostname = text_or_null(args->hostname),
        .tenant = text_or_null(args->tenant),
        .segment_bytes = args->segment_bytes,
    };
    if (ret->segment_bytes > 0 && ret->segment_bytes < SEGMENT_MIN_BYTES) {
        ret->segment_bytes = SEGMENT_MIN_BYTES;
    }
    return choose_protocol(self, args->protocol, &ret->protocol);
}

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
        egmpy_note(self, "%s", detail.text[0] ? detail.text : egm_strerror(r));
        return r;
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

static int warn_about(const struct setup_args *args)
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
static int run_setup(struct egmpy_store *self, const struct setup_args *args)
{
    struct egm_store_options options;
    int r = make_options(self, args, &options);
    if (r < 0) {
        return r;
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
    struct setup_args parsed = {.master = MASTER_DEFAULT, .protocol = "tcp"};
    PyObject *dict = dict_argument(args, kwargs);
    int r = dict ? read_dict(self, dict, &parsed) : read_arguments(args, kwargs, &parsed);
    if (r == 0) {
        r = run_setup(self, &parsed);
    }
    Py_XDECREF(parsed.holder);
    return r < 0 && PyErr_Occurred() ? NULL : PyLong_FromLongLong(egmpy_code(r));
}
