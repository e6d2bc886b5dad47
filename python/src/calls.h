/* SPDX-License-Identifier: Apache-2.0 */
/* A batch through the library: put or get its items, without the GIL, and leave one result per key.
 */
#ifndef EGMPY_CALLS_H
#define EGMPY_CALLS_H

#include "batch.h"
#include "config.h"

/* Stores that are not open answer EGM_E_CLOSED for each key. */
void egmpy_run_put(struct egmpy_store *self, struct egmpy_batch *batch,
                   const struct egm_put_options *options);
void egmpy_run_get(struct egmpy_store *self, struct egmpy_batch *batch);

/* False, and the reason noted, if the store was set up without a local buffer. */
bool egmpy_has_staging(struct egmpy_store *self);

#endif
