/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of MooncakeDistributedStore that callers may look up and that do nothing here.
 *
 * They exist so that a caller learns at the call, in one sentence, what is missing, and not from an
 * AttributeError deep inside a framework. One builtin serves all of them: each attribute is that
 * builtin bound to its own name.
 */
#include "binding.h"

static const char *const absent_names[] = {
    /* life cycle and segments */
    "setup_dummy",
    "init_all",
    "mount_segment",
    "unmount_segment",
    "allocate_and_mount_segment",
    "unmount_and_free_segment",
    "unmount_local_disk_segment",
    "alloc_from_mem_pool",
    "get_offload_rpc_read_count",
    /* reads, tasks, read sessions */
    "get_into_ranges",
    "batch_replica_clear",
    "create_copy_task",
    "create_move_task",
    "query_task",
    "batch_get_session_start",
    "batch_get_into_multi_buffer_ranges",
    "batch_get_session_end",
    /* writes, write sessions */
    "put_from_with_metadata",
    "batch_put_session_start",
    "batch_put_from_multi_buffer_ranges",
    "batch_put_session_end",
    "batch_put_session_revoke",
    /* tensors */
    "put_tensor",
    "get_tensor",
    "batch_put_tensor",
    "batch_get_tensor",
    "put_tensor_with_tp",
    "get_tensor_with_tp",
    "batch_put_tensor_with_tp",
    "batch_get_tensor_with_tp",
    "pub_tensor",
    "batch_pub_tensor",
    "pub_tensor_with_tp",
    "batch_pub_tensor_with_tp",
    "get_tensor_into",
    "batch_get_tensor_into",
    "get_tensor_with_tp_into",
    "batch_get_tensor_with_tp_into",
    "get_tensor_into_cuda",
    "batch_get_tensor_into_cuda",
    "put_tensor_from",
    "batch_put_tensor_from",
    "put_tensor_with_tp_from",
    "batch_put_tensor_with_tp_from",
    "upsert_tensor",
    "upsert_tensor_from",
    "batch_upsert_tensor",
    "batch_upsert_tensor_from",
    "upsert_pub_tensor",
    "batch_upsert_pub_tensor",
    "put_tensor_with_parallelism",
    "upsert_tensor_with_parallelism",
    "put_tensor_with_parallelism_from",
    "upsert_tensor_with_parallelism_from",
    "batch_put_tensor_with_parallelism",
    "batch_upsert_tensor_with_parallelism",
    "batch_put_tensor_with_parallelism_from",
    "batch_upsert_tensor_with_parallelism_from",
    "get_tensor_with_parallelism",
    "batch_get_tensor_with_parallelism",
    "get_tensor_with_parallelism_into",
    "batch_get_tensor_with_parallelism_into",
    "save_tensor_to_safetensor",
    "load_tensor_from_safetensor",
};

static PyObject *raise_absent(PyObject *name, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    PyErr_Format(PyExc_NotImplementedError,
                 "egmstore does not offer MooncakeDistributedStore.%U yet; put_from, get_into and "
                 "the batch calls "
                 "cover plain memory",
                 name);
    return NULL;
}

static PyMethodDef absent_method = {
    "absent",
    (PyCFunction)(void (*)(void))raise_absent,
    METH_VARARGS | METH_KEYWORDS,
    "Part of Mooncake's API that egmstore does not offer yet: raises NotImplementedError.",
};

int egmpy_add_absent_methods(PyTypeObject *store_type)
{
    for (size_t i = 0; i < sizeof(absent_names) / sizeof(absent_names[0]); i++) {
        PyObject *name = PyUnicode_FromString(absent_names[i]);
        PyObject *function = name ? PyCFunction_New(&absent_method, name) : NULL;
        Py_XDECREF(name);
        int r = function ? PyObject_SetAttrString((PyObject *)store_type, absent_names[i], function)
                         : -1;
        Py_XDECREF(function);
        if (r < 0) {
            return -1;
        }
    }
    return 0;
}
