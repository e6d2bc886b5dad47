/* SPDX-License-Identifier: Apache-2.0 */
/* A few threads per process that help with large batches of copies.
 *
 * A run is a function that the caller calls, and that some helpers call as well, at the same time;
 * it finds its work in its argument (copy_batch.c). The caller always works and never waits for a
 * helper to wake up: when its own call has returned no further helper enters, and it waits for
 * those that are inside.
 *
 *   caller   run ── work(arg) ───────────────┐ close ── wait for those inside ── return
 *   helper   asleep ──> enter ─ slot ─ work(arg) ─┘ leave ──> asleep
 *
 *   P1 When egm_copy_team_run returns, no other thread is in work(arg) or will be (I7).
 *   P2 Helpers exist only between the first large batch and the last unref; they sleep when there
 *      is no run. A process without large batches has none.
 *   P3 A helper enters only with a slot: a locked byte of <runtime folder>/copy-threads. There are
 *      as many as half the host's CPUs, at least one, for all processes that share the folder. The
 *      kernel frees a dead process's slots (an OFD lock). Without the folder nobody helps.
 *   P4 A child after fork has no helpers, and no reference; its own first ones are made anew.
 *
 * How many threads a batch may have, with the caller: EGMSTORE_COPY_THREADS, or measured once per
 * process: the first large batch starts a thread that waits until no large batch runs, and then
 * compares copies (copy_trial.h) of one thread with two, of two with four and so on, while each
 * step gains at least a fifth in the median, up to the CPUs that the thread may run on. Rounds
 * during which a batch ran do not count. Processes measure one after the other. Until it is known,
 * and where two gain less, it is one, and the team costs a batch two uncontended locks.
 *
 * The state is the process's: CPUs are shared by all stores of it (R22). All functions @threadsafe;
 * the lock is a leaf. */
#ifndef EGM_MOVER_COPY_TEAM_H
#define EGM_MOVER_COPY_TEAM_H

#include "egmstore/errors.h"

#include <stdbool.h>
#include <stdint.h>

/* Threads of one batch, with the caller: more than any host needs to fill its memory bus. */
#define EGM_COPY_TEAM_MAX 16u

/* Smaller batches are done before a helper is awake (about 0.1 ms), or nearly. */
#define EGM_COPY_TEAM_LEAST_BYTES (UINT64_C(8) << 20)

/* thread_count: how many may take part, the same for each; 1: this one alone. */
typedef void (*egm_copy_work_fn)(void *arg, unsigned thread_count);

struct egm_copy_team_choice {
    unsigned thread_count; /* 0: not measured yet */
    bool is_given;         /* by EGMSTORE_COPY_THREADS, not measured */
    unsigned tried_count;  /* the most threads measured; 0: none */
    double gain;           /* of these against the count tried before: 2 is twice as fast */
};

/* Reads EGMSTORE_COPY_THREADS ("", "auto" or 0, or a number up to EGM_COPY_TEAM_MAX) and what names
 * the runtime folder. Before the first call nobody helps. Call it once at start, before other
 * threads change the environment. EGM_E_INVALID for anything else, which changes nothing. */
EGM_MUST_CHECK int egm_copy_team_configure(void);

/* Whoever may run large batches holds a reference meanwhile; the last unref ends the threads and
 * waits for that. @blocking for some ms */
void egm_copy_team_ref(void);
void egm_copy_team_unref(void);

/* Runs a large batch (P1). */
void egm_copy_team_run(egm_copy_work_fn work, void *arg);

/* The same with a given number of threads: for measurements and tests. */
void egm_copy_team_run_with(unsigned thread_count, egm_copy_work_fn work, void *arg);

void egm_copy_team_read(struct egm_copy_team_choice *ret_choice);

/* Measures now, if that is still to be done, and waits for it until the deadline. @blocking */
void egm_copy_team_measure(uint64_t deadline_ns);

#endif
