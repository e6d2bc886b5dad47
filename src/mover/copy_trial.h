/* SPDX-License-Identifier: Apache-2.0 */
/* What copy_team.c measures to choose the number of threads: real batches (put, then get) over
 * memory of its own, one side a shared mapping as a pool is, dropped from the caches before.
 * Private to copy_team.c.
 *
 * Where there is no kernel past the cache there is no way to drop lines either; then the copies may
 * be warm, which favours more threads a little. */
#ifndef EGM_MOVER_COPY_TRIAL_H
#define EGM_MOVER_COPY_TRIAL_H

#include "egmstore/errors.h"

#include <stddef.h>
#include <stdint.h>

struct egm_copy_trial {
    unsigned char *pool, *user; /* `bytes` each */
    size_t bytes;
};

/* Memory for trials with up to `thread_count` threads: 8 MiB and more a side. 0 or -errno. */
EGM_MUST_CHECK int egm_copy_trial_init(struct egm_copy_trial *trial, unsigned thread_count);
void egm_copy_trial_release(struct egm_copy_trial *trial);

/* Time of one trial, in ns; 0 if fewer threads came to help. @blocking for some ms */
uint64_t egm_copy_trial_run(const struct egm_copy_trial *trial, unsigned thread_count);

#endif
