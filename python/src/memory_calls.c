/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that name memory by address: register_buffer and the put_from / get_into family, single and
 * in batches.
 *
 * They all are the same three steps: lists to a batch, the batch through the library, results to
 * Python. A single call is a batch of one key. Addresses are numbers to us; whether they are
 * registered, and readable, the library checks.
 */
#include "calls.h"

static void note_unusable(struct egmpy_store *self, const struct egmpy_batch *batch)
{
    if (batch->item_count < batch->count) {
        egmpy_note(self,
                   "%zu of %zu keys have unusable memory: lists of different lengths, no bytes at "
                   "all, or a NULL "
                   "address",
                   batch->count - batch->item_count, batch->count);
    }
}

void egmpy_run_put(struct egmpy_store *self, struct egmpy_batch *batch,
                   const struct egm_put_options *options)
{
    struct egmpy_call call;
    batch->kind = EGMPY_CALL_PUT;
    note_unusable(self, batch);
    if (!egmpy_enter(self, &call)) {
        egmpy_batch_fill(batch, EGM_E_CLOSED);
        return;
    }
    int r = 0;
    if (batch->item_count > 0) {
        r = egm_put(call.store, options, batch->item_count, batch->items, batch->item_results,
                    NULL);
    }
    bool failed = egmpy_batch_settle(batch, r);
    egmpy_leave(self, &call, failed);
}

void egmpy_run_get(struct egmpy_store *self, struct egmpy_batch *batch)
{
    struct egmpy_call call;
    batch->kind = EGMPY_CALL_GET;
    note_unusable(self, batch);
    if (!egmpy_enter(self, &call)) {
        egmpy_batch_fill(batch, EGM_E_CLOSED);
        return;
    }
    int r = 0;
    if (batch->item_count > 0) {
        r = egm_get(call.store, /*any_memory=*/false, batch->item_count, batch->items,
                    batch->item_results, NULL);
    }
    bool failed = egmpy_batch_settle(batch, r);
    egmpy_leave(self, &call, failed);
}

PyObject *egmpy_register_buffer(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"buffer_ptr", "size", NULL};
    struct egmpy_store *self = (struct egmpy_store *)object;
    uint64_t address;
    uint64_t size;
    struct egmpy_call call;
    if (!egmpy_parse(args, kwargs, "O&O&:register_buffer", names, egmpy_convert_u64, &address,
                     egmpy_convert_u64, &size)) {
        return NULL;
    }
    if (!egmpy_enter(self, &call)) {
        return PyLong_FromLongLong(egmpy_code(EGMPY_CALL_OTHER, EGM_E_CLOSED));
    }
    int r = egm_register(call.store, (void *)(uintptr_t)address, size, NULL);
    egmpy_leave(self, &call, r < 0);
    return PyLong_FromLongLong(egmpy_code(EGMPY_CALL_OTHER, r));
}

PyObject *egmpy_unregister_buffer(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"buffer_ptr", NULL};
    struct egmpy_store *self = (struct egmpy_store *)object;
    uint64_t address;
    struct egmpy_call call;
    if (!egmpy_parse(args, kwargs, "O&:unregister_buffer", names, egmpy_convert_u64, &address)) {
        return NULL;
    }
    if (!egmpy_enter(self, &call)) {
        return PyLong_FromLongLong(egmpy_code(EGMPY_CALL_OTHER, EGM_E_CLOSED));
    }
    int r = egm_unregister(call.store, (void *)(uintptr_t)address, NULL);
    egmpy_leave(self, &call, r < 0);
    /* Upstream answers its "bad parameter" for an address that nobody registered, not "object not
     * found". */
    return PyLong_FromLongLong(
        egmpy_code(EGMPY_CALL_OTHER, r == EGM_E_NOT_FOUND ? EGM_E_UNREGISTERED : r));
}

/* ---- single ---- */

static int add_single(struct egmpy_batch *batch, PyObject *key, uint64_t address, uint64_t size)
{
    if (egmpy_batch_key(batch, key) < 0 || egmpy_batch_segment(batch, address, size) < 0) {
        return -1;
    }
    return 0;
}

/* The single item, after a put's groups are known. */
static int finish_single(struct egmpy_batch *batch)
{
    int r = egmpy_batch_item(batch, 0, 0);
    egmpy_batch_finish(batch);
    return r;
}

static PyObject *put_one(PyObject *object, PyObject *args, PyObject *kwargs,
                         enum egmpy_put_kind kind)
{
    static const char *const names[] = {"key", "buffer_ptr", "size", "config", NULL};
    struct egmpy_store *self = (struct egmpy_store *)object;
    struct egmpy_batch batch = {0};
    struct egmpy_put_plan plan = {0};
    PyObject *key;
    PyObject *config = NULL;
    uint64_t address;
    uint64_t size;
    if (!egmpy_parse(args, kwargs, kind == EGMPY_PUT ? "OO&O&|O:put_from" : "OO&O&|O:upsert_from",
                     names, &key, egmpy_convert_u64, &address, egmpy_convert_u64, &size, &config)) {
        return NULL;
    }
    int r = add_single(&batch, key, address, size);
    if (r == 0) {
        r = egmpy_put_plan_init(&plan, self, config, 1, kind);
    }
    if (r == 0) {
        batch.groups = plan.groups;
        r = finish_single(&batch);
    }
    if (r == 0) {
        egmpy_run_put(self, &batch, &plan.options);
        r = (int)batch.results[0];
    }
    egmpy_batch_release(&batch);
    egmpy_put_plan_release(&plan);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(egmpy_code(EGMPY_CALL_PUT, r));
}

PyObject *egmpy_put_from(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return put_one(self, args, kwargs, EGMPY_PUT);
}

PyObject *egmpy_upsert_from(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return put_one(self, args, kwargs, EGMPY_UPSERT);
}

PyObject *egmpy_get_into(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"key", "buffer_ptr", "size", NULL};
    struct egmpy_batch batch = {0};
    PyObject *key;
    PyObject *answer = NULL;
    uint64_t address;
    uint64_t size;
    if (!egmpy_parse(args, kwargs, "OO&O&:get_into", names, &key, egmpy_convert_u64, &address,
                     egmpy_convert_u64, &size)) {
        return NULL;
    }
    if (add_single(&batch, key, address, size) == 0 && finish_single(&batch) == 0) {
        egmpy_run_get((struct egmpy_store *)object, &batch);
        answer = PyLong_FromLongLong(egmpy_code(EGMPY_CALL_GET, batch.results[0]));
    }
    egmpy_batch_release(&batch);
    return answer;
}

/* ---- batches ---- */

typedef int (*fill_fn)(struct egmpy_batch *batch, PyObject *addresses, PyObject *sizes);

struct batch_arguments {
    PyObject *keys;
    PyObject *addresses;
    PyObject *sizes;
    PyObject *config;
};

/* Plan, then items (which need the plan's groups). */
static int prepare_put(struct egmpy_store *self, const struct batch_arguments *arguments,
                       enum egmpy_put_kind kind, fill_fn fill, struct egmpy_batch *batch,
                       struct egmpy_put_plan *plan)
{
    if (egmpy_batch_keys(batch, arguments->keys) < 0) {
        return -1;
    }
    int r = egmpy_put_plan_init(plan, self, arguments->config, batch->count, kind);
    if (r == 0) {
        batch->groups = plan->groups;
        r = fill(batch, arguments->addresses, arguments->sizes);
    }
    return r;
}

static PyObject *put_many(PyObject *object, const struct batch_arguments *arguments,
                          enum egmpy_put_kind kind, fill_fn fill)
{
    struct egmpy_store *self = (struct egmpy_store *)object;
    struct egmpy_batch batch = {0};
    struct egmpy_put_plan plan = {0};
    int r = prepare_put(self, arguments, kind, fill, &batch, &plan);
    PyObject *answer = NULL;
    if (r == 0) {
        egmpy_run_put(self, &batch, &plan.options);
    } else if (!PyErr_Occurred()) {
        egmpy_batch_fill(&batch, r);
    }
    if (!PyErr_Occurred()) {
        answer = egmpy_batch_list(&batch);
    }
    egmpy_batch_release(&batch);
    egmpy_put_plan_release(&plan);
    return answer;
}

static int parse_put(PyObject *args, PyObject *kwargs, const char *format, const char *const *names,
                     struct batch_arguments *ret)
{
    *ret = (struct batch_arguments){0};
    return egmpy_parse(args, kwargs, format, names, &ret->keys, &ret->addresses, &ret->sizes,
                       &ret->config);
}

static const char *const flat_names[] = {"keys", "buffer_ptrs", "sizes", "config", NULL};
static const char *const nested_names[] = {"keys", "all_buffer_ptrs", "all_sizes", "config", NULL};

PyObject *egmpy_batch_put_from(PyObject *self, PyObject *args, PyObject *kwargs)
{
    struct batch_arguments parsed;
    if (!parse_put(args, kwargs, "OOO|O:batch_put_from", flat_names, &parsed)) {
        return NULL;
    }
    return put_many(self, &parsed, EGMPY_PUT, egmpy_batch_flat);
}

PyObject *egmpy_batch_upsert_from(PyObject *self, PyObject *args, PyObject *kwargs)
{
    struct batch_arguments parsed;
    if (!parse_put(args, kwargs, "OOO|O:batch_upsert_from", flat_names, &parsed)) {
        return NULL;
    }
    return put_many(self, &parsed, EGMPY_UPSERT, egmpy_batch_flat);
}

PyObject *egmpy_batch_put_from_multi_buffers(PyObject *self, PyObject *args, PyObject *kwargs)
{
    struct batch_arguments parsed;
    if (!parse_put(args, kwargs, "OOO|O:batch_put_from_multi_buffers", nested_names, &parsed)) {
        return NULL;
    }
    return put_many(self, &parsed, EGMPY_PUT_NESTED, egmpy_batch_nested);
}

static PyObject *get_many(PyObject *self, PyObject *keys, PyObject *addresses, PyObject *sizes,
                          fill_fn fill)
{
    struct egmpy_batch batch = {0};
    PyObject *answer = NULL;
    if (egmpy_batch_keys(&batch, keys) == 0 && fill(&batch, addresses, sizes) == 0) {
        egmpy_run_get((struct egmpy_store *)self, &batch);
        answer = egmpy_batch_list(&batch);
    }
    egmpy_batch_release(&batch);
    return answer;
}

PyObject *egmpy_batch_get_into(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"keys", "buffer_ptrs", "sizes", NULL};
    PyObject *keys;
    PyObject *addresses;
    PyObject *sizes;
    if (!egmpy_parse(args, kwargs, "OOO:batch_get_into", names, &keys, &addresses, &sizes)) {
        return NULL;
    }
    return get_many(self, keys, addresses, sizes, egmpy_batch_flat);
}

PyObject *egmpy_batch_get_into_multi_buffers(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"keys", "all_buffer_ptrs", "all_sizes",
                                        "prefer_alloc_in_same_node", NULL};
    PyObject *keys;
    PyObject *addresses;
    PyObject *sizes;
    int same_node; /* a wish about placement says nothing to a read */
    if (!egmpy_parse(args, kwargs, "OOO|p:batch_get_into_multi_buffers", names, &keys, &addresses,
                     &sizes, &same_node)) {
        return NULL;
    }
    return get_many(self, keys, addresses, sizes, egmpy_batch_nested);
}
