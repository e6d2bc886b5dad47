/* SPDX-License-Identifier: Apache-2.0 */
#include "mover/map/child.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

/* The process's registry: fork() is a matter of the process, so this is one of the few globals
 * (R22). All under lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct egm_link hooks = {&hooks, &hooks};
static int *fds;
static size_t fd_count;
static size_t fd_cap;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void)
{
    for (size_t i = 0; i < fd_count; i++) {
        close(fds[i]);
    }
    fd_count = 0;
    EGM_LIST_FOR_EACH (link, &hooks) {
        struct egm_child_hook *hook = egm_container_of(link, struct egm_child_hook, link);
        hook->in_child(hook);
    }
    pthread_mutex_unlock(&lock);
}

static void install(void)
{
    /* Fails only for lack of memory; then a child keeps what it inherits, which costs a slot until
     * it ends. */
    egm_ignore(pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child),
               "a child then holds its copies until it ends");
}

void egm_child_lock(void)
{
    pthread_once(&once, install);
    pthread_mutex_lock(&lock);
}

void egm_child_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

int egm_child_track_locked(int fd)
{
    if (fd_count == fd_cap) {
        size_t cap = fd_cap ? fd_cap * 2 : 64;
        int *more = egm_realloc(fds, cap * sizeof(*fds));
        if (!more) {
            return -ENOMEM;
        }
        fds = more;
        fd_cap = cap;
    }
    fds[fd_count++] = fd;
    return 0;
}

int egm_child_track(int fd)
{
    egm_child_lock();
    int r = egm_child_track_locked(fd);
    egm_child_unlock();
    return r;
}

void egm_child_close_locked(int fd)
{
    for (size_t i = 0; i < fd_count; i++) {
        if (fds[i] == fd) {
            fds[i] = fds[--fd_count];
            close(fd);
            break;
        }
    }
    if (fd_count == 0) {
        egm_free(fds);
        fds = NULL;
        fd_cap = 0;
    }
}

void egm_child_close(int fd)
{
    egm_child_lock();
    egm_child_close_locked(fd);
    egm_child_unlock();
}

void egm_child_hook_add(struct egm_child_hook *hook)
{
    egm_child_lock();
    egm_list_push_back(&hooks, &hook->link);
    egm_child_unlock();
}

void egm_child_hook_remove(struct egm_child_hook *hook)
{
    egm_child_lock();
    egm_list_remove(&hook->link);
    egm_child_unlock();
}
