/* SPDX-License-Identifier: Apache-2.0 */
/* One table of names for the process, since the resolver is the process's too:
 *
 *   FREE --asked for--> PENDING (a helper thread runs) --answered--> DONE --expired, asked-->
 * PENDING
 *
 * An entry leaves PENDING only by its helper, so the helper may write to it. After fork the helper
 * is not there: the child frees pending entries. At most ENTRIES look-ups run at a time; a resolver
 * that hangs holds so many threads and no more. */
#include "os/resolve.h"

#include "base/assert.h"
#include "base/checked.h"

#include "os/clock.h"
#include "os/thread.h"
#include "os/wait.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>

#define ENTRIES 16u
#define KEEP_NS (5 * EGM_NS_PER_S)
/* A name that is missing may come up any moment: its service is just being started. */
#define KEEP_FAILURE_NS EGM_NS_PER_S

enum entry_state {
    FREE = 0,
    PENDING,
    DONE
};

struct entry {
    enum entry_state state;
    char host[256];
    uint64_t until_ns; /* DONE: kept so long */
    int code;          /* DONE: 0 or getaddrinfo's */
    int err;           /* DONE: errno of EAI_SYSTEM */
    struct egm_resolved found;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t answered; /* with lock */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct entry entries[ENTRIES]; /* under lock */

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
    for (size_t i = 0; i < ENTRIES; i++) {
        if (entries[i].state == PENDING) {
            entries[i].state = FREE;
        }
    }
    egm_wait_cond_init(&answered); /* its waiters are gone */
    pthread_mutex_unlock(&lock);
}

static void install(void)
{
    egm_wait_cond_init(&answered);
    EGM_ASSERT(pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0);
}

/* ---- asking ---- */

/* getaddrinfo's code. */
static int ask(const char *host, int flags, struct egm_resolved *ret)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};
    struct addrinfo *all;
    int r = getaddrinfo(host, "0", &hints, &all);

    if (r != 0) {
        return r;
    }
    *ret = (struct egm_resolved){0};
    for (struct addrinfo *one = all; one && ret->count < EGM_RESOLVED_MAX; one = one->ai_next) {
        if (one->ai_addrlen <= sizeof(ret->all[0].at)) {
            memcpy(&ret->all[ret->count].at, one->ai_addr, one->ai_addrlen);
            ret->all[ret->count++].size = one->ai_addrlen;
        }
    }
    freeaddrinfo(all);
    return 0;
}

static void *look_up(void *arg)
{
    struct entry *entry = arg;
    struct egm_resolved found = {0};
    int code = ask(entry->host, 0, &found);
    int err = errno;

    pthread_mutex_lock(&lock);
    entry->code = code;
    entry->err = err;
    entry->found = found;
    entry->until_ns = egm_clock_ns() + (code == 0 ? KEEP_NS : KEEP_FAILURE_NS);
    entry->state = DONE;
    pthread_cond_broadcast(&answered);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* ---- the table; under lock ---- */

/* The entry that holds, or will hold, the answer for host; or NULL. */
static struct entry *find(const char *host)
{
    for (size_t i = 0; i < ENTRIES; i++) {
        bool is_valid = entries[i].state == PENDING ||
                        (entries[i].state == DONE && entries[i].until_ns > egm_clock_ns());
        if (is_valid && strcmp(entries[i].host, host) == 0) {
            return &entries[i];
        }
    }
    return NULL;
}

/* Starts a look-up in a free entry, or in place of the answer that expires first. */
static int start(const char *host, struct entry **ret_entry)
{
    struct entry *entry = NULL;
    pthread_t thread;

    for (size_t i = 0; i < ENTRIES; i++) {
        if (entries[i].state != PENDING &&
            (!entry || entries[i].state == FREE || entries[i].until_ns < entry->until_ns)) {
            entry = &entries[i];
            if (entry->state == FREE) {
                break;
            }
        }
    }
    if (!entry) {
        return -EHOSTUNREACH;
    }
    memcpy(entry->host, host, strlen(host) + 1);
    entry->state = PENDING;
    int r = egm_thread_start(&thread, "egm-resolve", look_up, entry);
    if (r < 0) {
        entry->state = FREE;
        return r;
    }
    pthread_detach(thread);
    *ret_entry = entry;
    return 0;
}

/* 0 and a copy of the answer, or why there is none. */
static int look_up_within(const char *host, uint64_t deadline_ns, struct entry *ret_answer)
{
    int r = 0;

    pthread_once(&once, install);
    pthread_mutex_lock(&lock);
    while (r == 0) {
        struct entry *entry = find(host);
        if (!entry) {
            r = start(host, &entry);
        } else if (entry->state == DONE) {
            *ret_answer = *entry;
            break;
        }
        if (r == 0) {
            r = egm_wait_cond(&answered, &lock, deadline_ns);
        }
    }
    pthread_mutex_unlock(&lock);
    return r;
}

int egm_resolve(const char *host, uint16_t port, uint64_t deadline_ns, struct egm_resolved *ret,
                struct egm_detail *reterr)
{
    struct entry answer;

    if (strlen(host) >= sizeof(answer.host)) {
        return egm_fail(reterr, EGM_E_INVALID, "address", "the host name is too long");
    }
    answer.code = ask(host, AI_NUMERICHOST, &answer.found);
    if (answer.code != 0) {
        int r = look_up_within(host, deadline_ns, &answer);
        if (r < 0) {
            return egm_fail(reterr, r, "address", "cannot resolve '%.200s' now: %s", host,
                            egm_strerror(r));
        }
    }
    if (answer.code != 0) {
        int r = answer.code == EAI_SYSTEM && answer.err > 0 ? -answer.err : -EHOSTUNREACH;
        return egm_fail(reterr, r, "address", "cannot resolve '%.200s': %s", host,
                        gai_strerror(answer.code));
    }
    for (size_t i = 0; i < answer.found.count; i++) {
        struct sockaddr_storage *at = &answer.found.all[i].at;
        if (at->ss_family == AF_INET6) {
            ((struct sockaddr_in6 *)at)->sin6_port = htons(port);
        } else {
            ((struct sockaddr_in *)at)->sin_port = htons(port);
        }
    }
    *ret = answer.found;
    return 0;
}
