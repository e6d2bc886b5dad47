/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <string.h>

enum {
    REPLICAS_MAX = 8,
    NAME_MAX_BYTES = 255 + 6 /* the longest host and its port */
};

/* A positive lifetime means something only for ENABLE; an ENABLE that ends at once pins nothing. */
static int plan_soft_pin(struct egmpy_put_plan *plan, struct egmpy_store *store,
                         const struct egmpy_config *config)
{
    if (!config->has_soft_pin_ttl) {
        plan->options.soft_pin = (enum egm_soft_pin)config->soft_pin_action;
        return 0;
    }
    if (config->soft_pin_action != EGM_SOFT_PIN_ENABLE) {
        return egmpy_refuse(store, "ReplicateConfig: soft_pin_ttl_ms needs soft_pin_action ENABLE");
    }
    if (config->soft_pin_ttl_ms > 0) {
        plan->options.soft_pin = EGM_SOFT_PIN_ENABLE;
        plan->options.soft_pin_ttl_ms = config->soft_pin_ttl_ms;
    }
    return 0;
}

static int plan_replicas(struct egmpy_put_plan *plan, struct egmpy_store *store,
                         const struct egmpy_config *config)
{
    if (config->nof_replica_num > 0 || config->dfs_replica_num > 0) {
        return egmpy_refuse(store, "ReplicateConfig: nof_replica_num and dfs_replica_num must be "
                                   "0: only memory replicas exist here");
    }
    if (config->replica_num == 0) {
        return egmpy_refuse(store, "ReplicateConfig: replica_num is 0");
    }
    /* Replicas are best effort by contract: asking for more than can exist is as good as asking for
     * the most. */
    plan->options.replica_count =
        config->replica_num < REPLICAS_MAX ? (uint32_t)config->replica_num : REPLICAS_MAX;
    return 0;
}

static int add_name(struct egmpy_put_plan *plan, PyObject *text)
{
    Py_ssize_t size;
    const char *name = PyUnicode_AsUTF8AndSize(text, &size);
    if (!name) {
        return -1;
    }
    /* A name with a NUL inside, or one that is too long, can name no provider; preferences are
     * wishes, so it is passed over. */
    if (size > 0 && size <= NAME_MAX_BYTES && strlen(name) == (size_t)size &&
        plan->options.preferred_count < EGMPY_PREFERRED_MAX) {
        plan->names[plan->options.preferred_count++] = name;
    }
    return 0;
}

static int plan_names(struct egmpy_put_plan *plan, const struct egmpy_config *config)
{
    plan->options.preferred_names = plan->names;
    if (PyUnicode_GET_LENGTH(config->preferred_segment) > 0) {
        plan->names_holder = Py_NewRef(config->preferred_segment);
        return add_name(plan, config->preferred_segment);
    }
    plan->names_holder = Py_NewRef(config->preferred_segments);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plan->names_holder); i++) {
        if (add_name(plan, PyTuple_GET_ITEM(plan->names_holder, i)) < 0) {
            return -1;
        }
    }
    return 0;
}

static int plan_groups(struct egmpy_put_plan *plan, struct egmpy_store *store,
                       const struct egmpy_config *config, size_t key_count)
{
    if (!config->group_ids) {
        return 0;
    }
    if ((size_t)PyTuple_GET_SIZE(config->group_ids) != key_count) {
        return egmpy_refuse(store, "ReplicateConfig: group_ids must have one entry per key");
    }
    plan->groups = Py_NewRef(config->group_ids);
    for (size_t i = 0; i < key_count; i++) {
        Py_ssize_t size;
        const char *group =
            PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(plan->groups, (Py_ssize_t)i), &size);
        if (!group) {
            return -1;
        }
        if (strlen(group) != (size_t)size) {
            return egmpy_refuse(store, "ReplicateConfig: a group id contains a NUL character");
        }
    }
    return 0;
}

static int plan_same_node(struct egmpy_put_plan *plan, struct egmpy_store *store,
                          const struct egmpy_config *config, enum egmpy_put_kind kind)
{
    if (!config->prefer_alloc_in_same_node) {
        return 0;
    }
    if (kind != EGMPY_PUT_NESTED || plan->options.replica_count != 1) {
        return egmpy_refuse(store, "ReplicateConfig: prefer_alloc_in_same_node is for multi-buffer "
                                   "puts of one replica");
    }
    plan->options.same_node = true;
    return 0;
}

static const struct egmpy_config *as_config(struct egmpy_store *store, PyObject *config)
{
    if (!PyObject_TypeCheck(config, store->state->config_type)) {
        PyErr_Format(PyExc_TypeError, "config must be a ReplicateConfig, not %.100s",
                     Py_TYPE(config)->tp_name);
        return NULL;
    }
    return (const struct egmpy_config *)config;
}

int egmpy_put_plan_init(struct egmpy_put_plan *plan, struct egmpy_store *store, PyObject *object,
                        size_t key_count, enum egmpy_put_kind kind)
{
    *plan =
        (struct egmpy_put_plan){.options = {.replica_count = 1, .upsert = kind == EGMPY_UPSERT}};
    if (!object || object == Py_None) {
        return 0;
    }
    const struct egmpy_config *config = as_config(store, object);
    if (!config) {
        return -1;
    }
    plan->options.hard_pin = config->with_hard_pin;
    plan->options.data_type = (uint8_t)config->data_type;
    int r = plan_replicas(plan, store, config);
    if (r == 0) {
        r = plan_same_node(plan, store, config, kind);
    }
    if (r == 0) {
        r = plan_soft_pin(plan, store, config);
    }
    if (r == 0) {
        r = plan_groups(plan, store, config, key_count);
    }
    if (r == 0) {
        r = plan_names(plan, config);
    }
    return r;
}

void egmpy_put_plan_release(struct egmpy_put_plan *plan)
{
    Py_CLEAR(plan->names_holder);
    Py_CLEAR(plan->groups);
}
