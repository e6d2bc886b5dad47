/* SPDX-License-Identifier: Apache-2.0 */
#include "os/fork.h"

#include "base/assert.h"

#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#define FD_MAX 65536
#define WORD_BITS 64

/* Process-wide because fork is: the one place where state hangs off no handle (R22). */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t entered[FD_MAX / WORD_BITS]; /* under lock; one bit per fd */

static void in_child(void)
{
    for (unsigned word = 0; word < FD_MAX / WORD_BITS; word++) {
        while (entered[word] != 0) {
            unsigned bit = (unsigned)__builtin_ctzll(entered[word]);
            close((int)(word * WORD_BITS + bit));
            entered[word] &= entered[word] - 1;
        }
    }
    pthread_mutex_unlock(&lock);
}

static void install(void)
{
    EGM_ASSERT(pthread_atfork(egm_fork_lock, egm_fork_unlock, in_child) == 0);
}

void egm_fork_lock(void)
{
    pthread_mutex_lock(&lock);
}

void egm_fork_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void egm_fork_enter(int fd)
{
    pthread_once(&once, install);
    if (fd < 0 || fd >= FD_MAX) {
        return;
    }
    pthread_mutex_lock(&lock);
    entered[fd / WORD_BITS] |= UINT64_C(1) << (fd % WORD_BITS);
    pthread_mutex_unlock(&lock);
}

void egm_fork_close(int fd)
{
    if (fd < 0) {
        return;
    }
    pthread_mutex_lock(&lock);
    if (fd < FD_MAX) {
        entered[fd / WORD_BITS] &= ~(UINT64_C(1) << (fd % WORD_BITS));
    }
    close(fd);
    pthread_mutex_unlock(&lock);
}
