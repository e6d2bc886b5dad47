/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct egmpy_session {
    struct egm_store *store; /* NULL once somebody has taken it to close it; guarded by lock */
    pid_t process_id;        /* constant */
    pthread_mutex_t lock;
    pthread_cond_t left; /* signalled when calls falls to 0 after close */
    uint32_t calls;      /* threads inside; guarded by lock */
    uint32_t references; /* guarded by lock */
    bool is_closed;      /* guarded by lock */
};

struct egmpy_session *egmpy_session_create(struct egm_store *store)
{
    struct egmpy_session *session = calloc(1, sizeof(*session));
    if (!session) {
        return NULL;
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&session->left, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&session->lock, NULL);
    session->store = store;
    session->process_id = getpid();
    session->references = 1;
    return session;
}

static void destroy(struct egmpy_session *session)
{
    pthread_cond_destroy(&session->left);
    pthread_mutex_destroy(&session->lock);
    free(session);
}

struct egm_store *egmpy_session_enter(struct egmpy_session *session)
{
    if (session->process_id != getpid()) {
        return NULL;
    }
    struct egm_store *store = NULL;
    pthread_mutex_lock(&session->lock);
    if (!session->is_closed) {
        store = session->store;
        session->calls++;
        session->references++;
    }
    pthread_mutex_unlock(&session->lock);
    return store;
}

/* Drops one reference and unlocks; frees the session with the last one. */
static void unref_and_unlock(struct egmpy_session *session)
{
    bool is_last = --session->references == 0;
    pthread_mutex_unlock(&session->lock);
    if (is_last) {
        destroy(session);
    }
}

void egmpy_session_leave(struct egmpy_session *session)
{
    struct egm_store *to_close = NULL;
    pthread_mutex_lock(&session->lock);
    session->calls--;
    if (session->is_closed && session->calls == 0) {
        to_close = session->store;
        session->store = NULL;
    }
    if (to_close) {
        /* Our reference keeps the session while the lock is open; whoever waits in close sees the
         * store gone after. */
        pthread_mutex_unlock(&session->lock);
        egm_store_close(to_close);
        pthread_mutex_lock(&session->lock);
        pthread_cond_broadcast(&session->left);
    }
    unref_and_unlock(session);
}

static struct timespec after_ms(uint32_t wait_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    return until;
}

void egmpy_session_close(struct egmpy_session *session, uint32_t wait_ms)
{
    if (session->process_id != getpid()) {
        egm_store_close(session->store);
        free(session); /* the lock and the condition belong to threads that this process does not
                          have */
        return;
    }
    pthread_mutex_lock(&session->lock);
    session->is_closed = true;
    egm_store_shutdown(session->store); /* calls in flight end now */
    struct timespec until = after_ms(wait_ms);
    uint32_t inside = session->calls;
    if (inside == 0) {
        struct egm_store *store = session->store;
        session->store = NULL;
        pthread_mutex_unlock(&session->lock);
        egm_store_close(store);
        pthread_mutex_lock(&session->lock);
    } else {
        int r = 0;
        while (r == 0 && (session->calls > 0 || session->references > 1)) {
            r = pthread_cond_timedwait(&session->left, &session->lock, &until);
        }
    }
    unref_and_unlock(session);
}
