/* SPDX-License-Identifier: Apache-2.0 */
#include "os/thread.h"

#include "base/assert.h"

#include <sched.h>
#include <signal.h>
#include <unistd.h>

/* Our deepest frames hold a few KiB of iovecs and messages. */
#define STACK_BYTES (512 * 1024)

int egm_thread_start(pthread_t *ret_thread, const char *name, void *(*run)(void *arg), void *arg)
{
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t thread;
    int r = pthread_attr_init(&attr);

    if (r != 0) {
        return -r;
    }
    r = pthread_attr_setstacksize(&attr, STACK_BYTES);
    if (r == 0) {
        /* A new thread inherits the mask, so it is blocked before it exists: no window. */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        r = pthread_create(&thread, &attr, run, arg);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    pthread_attr_destroy(&attr);
    if (r != 0) {
        return -r;
    }
    egm_ignore(pthread_setname_np(thread, name), "only for people");
    *ret_thread = thread;
    return 0;
}

unsigned egm_cpus_online(void)
{
    long count = sysconf(_SC_NPROCESSORS_ONLN);

    return count > 1 ? (unsigned)count : 1;
}

unsigned egm_cpus_allowed(void)
{
    cpu_set_t sets[8]; /* 8,192 CPUs, the most that a kernel of today is built for */

    if (sched_getaffinity(0, sizeof(sets), sets) < 0) {
        return egm_cpus_online();
    }
    int count = CPU_COUNT_S(sizeof(sets), sets);
    return count > 1 ? (unsigned)count : 1;
}
