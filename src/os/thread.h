/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of a library: they take no signal of the program that hosts them, and have a name and a
 * small stack. */
#ifndef EGM_OS_THREAD_H
#define EGM_OS_THREAD_H

#include "egmstore/errors.h"

#include <pthread.h>
#include <stddef.h>

/* Starts run(arg) with every signal blocked. name: at most 15 bytes, for ps and debuggers. 0 or
 * -errno; on success the caller joins the thread. */
EGM_MUST_CHECK int egm_thread_start(pthread_t *ret_thread, const char *name,
                                    void *(*run)(void *arg), void *arg);

/* CPUs that the calling thread may run on, and CPUs of this host that are on; at least 1. */
unsigned egm_cpus_allowed(void);
unsigned egm_cpus_online(void);

#endif
