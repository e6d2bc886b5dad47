/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ReplicateConfig and what a put makes of it.
 *
 * The object is one per worker in vLLM and is changed between puts, possibly while another thread's
 * put is running. So setters replace the lists they hold and never change them in place, and a put
 * takes what it needs, plus references to those lists, before it lets the GIL go (B2).
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
    PyObject *preferred_segments;     /* list of str, ours alone, never changed in place */
    PyObject *preferred_nof_segments; /* the same */
    PyObject *preferred_segment;      /* str */
    PyObject *group_ids;              /* the same kind of list, or NULL for None */
};

enum {
    EGMPY_PREFERRED_MAX = 16
};

struct egmpy_put_plan {
    struct egm_put_options options;
    const char *names[EGMPY_PREFERRED_MAX]; /* borrowed from names_holder */
    PyObject *names_holder;                 /* owned */
    PyObject *groups;                       /* list of str with one entry per key, or NULL; owned */
};

enum egmpy_put_kind {
    EGMPY_PUT,
    EGMPY_UPSERT
};

/* `config`: a ReplicateConfig, or NULL or None for the defaults. Returns 0, EGM_E_INVALID if the
 * contract refuses it (noted in `store`), or -1 with an exception set. Release after any outcome.
 */
int egmpy_put_plan_init(struct egmpy_put_plan *plan, struct egmpy_store *store, PyObject *config,
                        size_t key_count, enum egmpy_put_kind kind);
/* Same-node placement exists for multi-buffer puts only, and for one replica. 0 or EGM_E_INVALID.
 */
int egmpy_put_plan_same_node(struct egmpy_put_plan *plan, struct egmpy_store *store,
                             PyObject *config);
void egmpy_put_plan_release(struct egmpy_put_plan *plan);

#endif
