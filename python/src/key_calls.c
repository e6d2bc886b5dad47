/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls about keys, without data: exist, size, remove in its forms, replica descriptors.
 *
 * exist and remove hand the whole key list to the library in one call: a look-up of 65,536 keys is
 * the common case. Descriptors go in windows, since the library's answer is 2 KiB per key.
 */
#include "batch.h"

#include <stdlib.h>
#include <string.h>

enum {
    WINDOW_KEYS = 256
};

/* exist and remove, which differ in one library call only. */
struct key_question {
    bool is_remove;
    bool force;
};

static int ask_library(struct egm_store *store, struct key_question question,
                       const struct egmpy_batch *batch, int *answers)
{
    if (question.is_remove) {
        return egm_remove(store, question.force, batch->count, batch->keys, answers, NULL);
    }
    return egm_exist(store, batch->count, batch->keys, answers, NULL);
}

/* Without the GIL. True if any answer is negative. */
static bool take_answers(struct egmpy_batch *batch, int code, const int *answers)
{
    bool failed = false;
    for (size_t i = 0; i < batch->count; i++) {
        batch->results[i] = code < 0 ? code : answers[i];
        failed = failed || batch->results[i] < 0;
    }
    return failed;
}

/* Fills batch->results. -1 only with an exception. */
static int ask(PyObject *object, struct egmpy_batch *batch, struct key_question question)
{
    struct egmpy_store *self = (struct egmpy_store *)object;
    struct egmpy_call call;
    int *answers = malloc(sizeof(*answers) * (batch->count ? batch->count : 1));
    if (!answers) {
        PyErr_NoMemory();
        return -1;
    }
    if (egmpy_enter(self, &call)) {
        int r = batch->count > 0 ? ask_library(call.store, question, batch, answers) : 0;
        bool failed = take_answers(batch, r, answers);
        egmpy_leave(self, &call, failed);
    } else {
        egmpy_batch_fill(batch, EGM_E_CLOSED);
    }
    free(answers);
    return 0;
}

static PyObject *ask_one(PyObject *self, PyObject *key, struct key_question question)
{
    struct egmpy_batch batch = {0};
    PyObject *answer = NULL;
    if (egmpy_batch_key(&batch, key) == 0 && ask(self, &batch, question) == 0) {
        answer = PyLong_FromLongLong(egmpy_code(EGMPY_CALL_OTHER, batch.results[0]));
    }
    egmpy_batch_release(&batch);
    return answer;
}

static PyObject *ask_many(PyObject *self, PyObject *keys, struct key_question question)
{
    struct egmpy_batch batch = {0};
    PyObject *answer = NULL;
    if (egmpy_batch_keys(&batch, keys) == 0 && ask(self, &batch, question) == 0) {
        answer = egmpy_batch_list(&batch);
    }
    egmpy_batch_release(&batch);
    return answer;
}

PyObject *egmpy_is_exist(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"key", NULL};
    PyObject *key;
    if (!egmpy_parse(args, kwargs, "O:is_exist", names, &key)) {
        return NULL;
    }
    return ask_one(self, key, (struct key_question){.is_remove = false});
}

PyObject *egmpy_batch_is_exist(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"keys", NULL};
    PyObject *keys;
    if (!egmpy_parse(args, kwargs, "O:batch_is_exist", names, &keys)) {
        return NULL;
    }
    return ask_many(self, keys, (struct key_question){.is_remove = false});
}

PyObject *egmpy_remove(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"key", "force", NULL};
    PyObject *key;
    int force = 0;
    if (!egmpy_parse(args, kwargs, "O|p:remove", names, &key, &force)) {
        return NULL;
    }
    return ask_one(self, key, (struct key_question){.is_remove = true, .force = force != 0});
}

PyObject *egmpy_batch_remove(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"keys", "force", NULL};
    PyObject *keys;
    int force = 0;
    if (!egmpy_parse(args, kwargs, "O|p:batch_remove", names, &keys, &force)) {
        return NULL;
    }
    return ask_many(self, keys, (struct key_question){.is_remove = true, .force = force != 0});
}

/* ---- whole key spaces ---- */

/* Removes all objects, or those that match. The count, or a negative code. */
static int64_t remove_many(struct egmpy_store *self, const char *pattern, bool force)
{
    struct egmpy_call call;
    uint64_t count = 0;
    if (!egmpy_enter(self, &call)) {
        return EGM_E_CLOSED;
    }
    int r = pattern ? egm_remove_matching(call.store, pattern, force, &count, NULL)
                    : egm_remove_all(call.store, force, &count, NULL);
    egmpy_leave(self, &call, r < 0);
    return r < 0 ? r : (int64_t)count;
}

PyObject *egmpy_remove_by_regex(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"regex_pattern", "force", NULL};
    const char *pattern;
    Py_ssize_t size;
    int force = 0;
    if (!egmpy_parse(args, kwargs, "s#|p:remove_by_regex", names, &pattern, &size, &force)) {
        return NULL;
    }
    struct egmpy_store *store = (struct egmpy_store *)self;
    int64_t r = strlen(pattern) == (size_t)size
                    ? remove_many(store, pattern, force != 0)
                    : egmpy_refuse(store, "the pattern contains a NUL character");
    return PyLong_FromLongLong(egmpy_code(EGMPY_CALL_OTHER, r));
}

static PyObject *raise_last_error(PyObject *self, int64_t code)
{
    PyObject *text = PyObject_CallMethod(self, "last_error", NULL);
    if (text) {
        PyErr_Format(PyExc_RuntimeError, "remove_all failed (%lld): %U",
                     (long long)egmpy_code(EGMPY_CALL_OTHER, code), text);
        Py_DECREF(text);
    }
    return NULL;
}

PyObject *egmpy_remove_all(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"force", NULL};
    int force = 0;
    if (!egmpy_parse(args, kwargs, "|p:remove_all", names, &force)) {
        return NULL;
    }
    int64_t r = remove_many((struct egmpy_store *)self, NULL, force != 0);
    /* Outside of "open" no call raises, by contract. */
    if (r < 0 && r != EGM_E_CLOSED && force) {
        return raise_last_error(self, r);
    }
    return PyLong_FromLongLong(egmpy_code(EGMPY_CALL_OTHER, r));
}

/* ---- sizes and places ---- */

static int query(struct egmpy_store *self, size_t count, const struct egm_key *keys,
                 struct egm_object_info *infos)
{
    struct egmpy_call call;
    if (!egmpy_enter(self, &call)) {
        return EGM_E_CLOSED;
    }
    int r = egm_query(call.store, count, keys, infos, NULL);
    bool failed = r < 0;
    for (size_t i = 0; !failed && i < count; i++) {
        failed = infos[i].status < 0;
    }
    egmpy_leave(self, &call, failed);
    return r;
}

PyObject *egmpy_get_size(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"key", NULL};
    struct egmpy_batch batch = {0};
    PyObject *key;
    PyObject *answer = NULL;
    if (!egmpy_parse(args, kwargs, "O:get_size", names, &key)) {
        return NULL;
    }
    if (egmpy_batch_key(&batch, key) == 0) {
        struct egm_object_info info;
        int r = query((struct egmpy_store *)self, 1, batch.keys, &info);
        if (r == 0) {
            r = info.status;
        }
        answer = PyLong_FromLongLong(r < 0 ? egmpy_code(EGMPY_CALL_OTHER, r) : (int64_t)info.size);
    }
    egmpy_batch_release(&batch);
    return answer;
}

PyObject *egmpy_get_replica_desc(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"key", NULL};
    struct egmpy_batch batch = {0};
    struct egmpy_store *store = (struct egmpy_store *)self;
    PyObject *key;
    PyObject *answer = NULL;
    if (!egmpy_parse(args, kwargs, "O:get_replica_desc", names, &key)) {
        return NULL;
    }
    if (egmpy_batch_key(&batch, key) == 0) {
        struct egm_object_info info;
        int r = query(store, 1, batch.keys, &info);
        answer =
            r == 0 && info.status == 0 ? egmpy_replicas_of(store->state, &info) : PyList_New(0);
    }
    egmpy_batch_release(&batch);
    return answer;
}

static int describe_window(struct egmpy_store *self, const struct egmpy_batch *batch, size_t first,
                           size_t count, struct egm_object_info *infos, PyObject *answer)
{
    if (query(self, count, batch->keys + first, infos) < 0) {
        /* nothing is known about these keys and the rest: left out, last_error() says why */
        return 1;
    }
    int r = 0;
    for (size_t i = 0; r == 0 && i < count; i++) {
        if (infos[i].status == 0) {
            PyObject *list = egmpy_replicas_of(self->state, &infos[i]);
            r = list ? PyDict_SetItem(answer, batch->held[first + i], list) : -1;
            Py_XDECREF(list);
        }
    }
    return r;
}

static PyObject *describe_all(struct egmpy_store *self, const struct egmpy_batch *batch)
{
    PyObject *answer = PyDict_New();
    struct egm_object_info *infos = malloc(WINDOW_KEYS * sizeof(*infos));
    int r = answer && infos ? 0 : -1;
    if (r < 0 && !PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    for (size_t first = 0; r == 0 && first < batch->count; first += WINDOW_KEYS) {
        size_t left = batch->count - first;
        r = describe_window(self, batch, first, left < WINDOW_KEYS ? left : WINDOW_KEYS, infos,
                            answer);
    }
    free(infos);
    if (r < 0) {
        Py_CLEAR(answer);
    }
    return answer;
}

PyObject *egmpy_batch_get_replica_desc(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"keys", NULL};
    struct egmpy_batch batch = {0};
    PyObject *keys;
    PyObject *answer = NULL;
    if (!egmpy_parse(args, kwargs, "O:batch_get_replica_desc", names, &keys)) {
        return NULL;
    }
    if (egmpy_batch_keys(&batch, keys) == 0) {
        answer = describe_all((struct egmpy_store *)self, &batch);
    }
    egmpy_batch_release(&batch);
    return answer;
}
