/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ReplicateConfig and what a put makes of it.
 *
 * The object is one per worker in vLLM and is changed between puts, possibly while another thread's
 * put is running. So setters replace the tuples they hold, and a put takes what it needs, plus
 * references to those tuples, before it lets the GIL go (B2).
 */
#ifndef EGMPY_CONFIG_H
#define EGMPY_CONFIG_H

#include "binding.h"

struct egmpy_config {
    PyObject_HEAD struct egmpy_state *state; /* borrowed from the type's module */
    uint64_t replica_num;
    uint64_t nof_replica_num;
    uint64_t dfs_replica_num;
    int soft_pin_action;
    int data_type;
    bool has_soft_pin_ttl;
    uint64_t soft_pin_ttl_ms;
    bool with_hard_pin;
    bool prefer_alloc_in_same_node;
    PyObject *preferred_segments;     /* tuple of str */
    PyObject *preferred_nof_segments; /* the same */
    PyObject *preferred_segment;      /* str */
    PyObject *group_ids;              /* the same, or NULL for None */
};

enum {
    EGMPY_PREFERRED_MAX = 16
};

struct egmpy_put_plan {
    struct egm_put_options options;
    const char *names[EGMPY_PREFERRED_MAX]; /* borrowed from names_holder */
    PyObject *names_holder;                 /* owned */
    PyObject *groups;                       /* tuple of str, one per key, or NULL; owned */
};

enum egmpy_put_kind {
    EGMPY_PUT,
    EGMPY_PUT_NESTED, /* of many buffers per key */
    EGMPY_UPSERT
};

/* `config`: a ReplicateConfig, or NULL or None for the defaults. Returns 0, EGM_E_INVALID if the
 * contract refuses it (noted in `store`), or -1 with an exception set. Release after any outcome.
 */
int egmpy_put_plan_init(struct egmpy_put_plan *plan, struct egmpy_store *store, PyObject *config,
                        size_t key_count, enum egmpy_put_kind kind);
/* Same-node placement exists for multi-buffer puts only, and for one replica: in other puts
 * egmpy_put_plan_init refuses it. */
void egmpy_put_plan_release(struct egmpy_put_plan *plan);

#endif
