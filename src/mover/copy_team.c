/* SPDX-License-Identifier: Apache-2.0 */
#include "mover/copy_team.h"

#include "base/assert.h"
#include "base/checked.h"
#include "base/list.h"
#include "base/log.h"
#include "base/parse.h"

#include "mover/copy_trial.h"
#include "os/clock.h"
#include "os/fork.h"
#include "os/host.h"
#include "os/memfd.h"
#include "os/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HELPERS_MAX (EGM_COPY_TEAM_MAX - 1u)

#define GAIN_LEAST 1.2
#define ROUNDS 11u            /* per step; their median decides */
#define ROUNDS_SPOILT_MAX 15u /* then the host is too busy to tell */
/* A program that ends right after its batch is not held up by a measurement. */
#define QUIET_NS (3 * EGM_NS_PER_MS)
#define WAIT_NS (5 * EGM_NS_PER_MS)
/* Who never finds a quiet moment tries again later. */
#define PATIENCE_NS (10 * EGM_NS_PER_S)
#define RETRY_NS (60 * EGM_NS_PER_S)

#define SLOTS_PATH_SIZE 288u
#define PROBE_BYTE (UINT64_C(1) << 20) /* of the slots' file: locked while a process measures */

enum probe_state {
    PROBE_NEVER = 0,   /* no thread */
    PROBE_RUNNING = 1, /* the thread works */
    PROBE_ENDED = 2,   /* the thread is to be joined */
};

/* One call of egm_copy_team_run; lies on its caller's stack. All under lock. */
struct job {
    struct egm_link link;
    egm_copy_work_fn work;
    void *arg;
    unsigned thread_count;
    unsigned wanted_count; /* helpers that may still enter */
    unsigned inside_count;
};

struct helper {
    pthread_t thread;
    unsigned index;
    bool is_started; /* the thread exists or is to be joined */
    bool has_ended;  /* it will touch nothing any more */
};

/* All under lock. */
struct team {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* jobs, target_count, is_ending: for helpers and the probe */
    pthread_cond_t left;    /* a helper left, the probe or the team ended: for callers */
    unsigned ref_count;
    bool is_ending;       /* the last unref joins threads */
    unsigned asked_count; /* threads by configuration; 0: to be measured */
    /* "": none. Kept, because helpers must not read the environment, which the program may be
     * changing. */
    char slots_path[SLOTS_PATH_SIZE];
    unsigned slot_count; /* of the host */
    struct egm_copy_team_choice choice;
    struct egm_link jobs;
    uint64_t batch_count;   /* large batches begun */
    unsigned running_count; /* large batches that run */
    unsigned target_count;  /* helpers wanted: those above it end */
    struct helper helpers[HELPERS_MAX];
    enum probe_state probe;
    pthread_t probe_thread;
    uint64_t next_probe_ns;
};

#define TEAM_AT_REST                                                            \
    {                                                                           \
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, \
        .left = PTHREAD_COND_INITIALIZER, .asked_count = 1, .jobs = {           \
            &team.jobs,                                                         \
            &team.jobs                                                          \
        }                                                                       \
    }

static struct team team = TEAM_AT_REST;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The child has none of the threads, and the lock may be held by one of them: everything anew but
 * what describes the machine (P4). os/fork.h closes the helpers' fds. */
static void in_child(void)
{
    struct team fresh = TEAM_AT_REST;

    fresh.asked_count = team.asked_count;
    memcpy(fresh.slots_path, team.slots_path, sizeof(fresh.slots_path));
    fresh.slot_count = team.slot_count;
    fresh.choice = team.choice;
    team = fresh;
}

static void install(void)
{
    EGM_ASSERT(pthread_atfork(NULL, NULL, in_child) == 0);
}

/* ---- slots (P3) ---- */

static int open_slots(void)
{
    char path[SLOTS_PATH_SIZE];

    pthread_mutex_lock(&team.lock);
    memcpy(path, team.slots_path, sizeof(path));
    pthread_mutex_unlock(&team.lock);
    if (!path[0]) {
        return -ENOENT;
    }
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0660);
    if (fd < 0) {
        return -errno;
    }
    egm_fork_enter(fd);
    return fd;
}

/* A free slot, locked, or a negative code. `hint` spreads those who look. */
static int64_t take_slot(int fd, unsigned count, unsigned hint)
{
    for (unsigned i = 0; fd >= 0 && i < count; i++) {
        unsigned slot = (hint + i) % count;
        if (egm_lock_set(fd, slot) == 0) {
            return slot;
        }
    }
    return -EAGAIN;
}

/* ---- helpers ---- */

static struct job *find_job(void)
{
    EGM_LIST_FOR_EACH (link, &team.jobs) {
        struct job *job = egm_container_of(link, struct job, link);
        if (job->wanted_count > 0) {
            return job;
        }
    }
    return NULL;
}

/* Under lock, which is let go meanwhile. */
static void help(struct job *job, int fd, unsigned hint)
{
    job->wanted_count--;
    job->inside_count++;
    unsigned slot_count = team.slot_count;
    pthread_mutex_unlock(&team.lock);
    int64_t slot = take_slot(fd, slot_count, hint);
    if (slot >= 0) {
        job->work(job->arg, job->thread_count);
        egm_lock_clear(fd, (uint64_t)slot);
    }
    pthread_mutex_lock(&team.lock);
    if (--job->inside_count == 0) {
        pthread_cond_broadcast(&team.left);
    }
}

static void *run_helper(void *arg)
{
    struct helper *self = arg;
    unsigned index = self->index;
    unsigned hint = (unsigned)getpid() * HELPERS_MAX + index;
    int fd = open_slots();
    struct job *job;

    pthread_mutex_lock(&team.lock);
    while (index < team.target_count) {
        job = find_job();
        if (job) {
            help(job, fd, hint);
        } else {
            pthread_cond_wait(&team.changed, &team.lock);
        }
    }
    self->has_ended = true;
    pthread_mutex_unlock(&team.lock);
    egm_fork_close(fd);
    return NULL;
}

/* Sees to it that `count` helpers exist, as far as the system allows; returns how many do. Under
 * lock. */
static unsigned raise_helpers(unsigned count)
{
    unsigned have = 0;

    if (team.ref_count == 0) {
        return 0;
    }
    team.target_count = (unsigned)egm_max_u64(team.target_count, count);
    for (unsigned i = 0; i < count; i++) {
        struct helper *helper = &team.helpers[i];
        if (helper->has_ended) {
            pthread_join(helper->thread, NULL); /* it takes no lock of ours any more */
            *helper = (struct helper){0};
        }
        if (!helper->is_started) {
            char name[16];
            helper->index = i;
            egm_ignore(snprintf(name, sizeof(name), "egm-copy-%u", i + 1), "fits");
            helper->is_started = egm_thread_start(&helper->thread, name, run_helper, helper) == 0;
        }
        have += helper->is_started;
    }
    return have;
}

/* ---- runs ---- */

void egm_copy_team_run_with(unsigned thread_count, egm_copy_work_fn work, void *arg)
{
    struct job job = {.work = work, .arg = arg};

    EGM_ASSERT(thread_count >= 1 && thread_count <= EGM_COPY_TEAM_MAX);
    if (thread_count == 1) {
        work(arg, 1);
        return;
    }
    pthread_mutex_lock(&team.lock);
    job.wanted_count = raise_helpers(thread_count - 1);
    job.thread_count = 1 + job.wanted_count;
    if (job.wanted_count > 0) {
        egm_list_push_back(&team.jobs, &job.link);
        pthread_cond_broadcast(&team.changed);
    }
    pthread_mutex_unlock(&team.lock);
    work(arg, job.thread_count);
    if (job.thread_count > 1) {
        pthread_mutex_lock(&team.lock);
        egm_list_remove(&job.link);
        while (job.inside_count > 0) {
            pthread_cond_wait(&team.left, &team.lock);
        }
        pthread_mutex_unlock(&team.lock);
    }
}

/* The most threads that a batch of this thread can have. Under lock. */
static unsigned thread_max(void)
{
    uint64_t here = egm_min_u64(egm_cpus_allowed(), team.slot_count + 1u);

    return (unsigned)egm_min_u64(here, EGM_COPY_TEAM_MAX);
}

static void start_probe(void);

/* Under lock. */
static unsigned choose_count(void)
{
    if (team.ref_count == 0) {
        return 1;
    }
    if (team.choice.thread_count == 0 && team.asked_count > 0) {
        team.choice = (struct egm_copy_team_choice){
            .thread_count = (unsigned)egm_min_u64(team.asked_count, thread_max()),
            .is_given = true};
    }
    if (team.choice.thread_count == 0) {
        start_probe();
        return 1;
    }
    return team.choice.thread_count;
}

void egm_copy_team_run(egm_copy_work_fn work, void *arg)
{
    pthread_mutex_lock(&team.lock);
    team.batch_count++;
    team.running_count++;
    unsigned thread_count = choose_count();
    pthread_mutex_unlock(&team.lock);
    egm_copy_team_run_with(thread_count, work, arg);
    pthread_mutex_lock(&team.lock);
    team.running_count--;
    pthread_mutex_unlock(&team.lock);
}

/* ---- the probe ---- */

/* Sleeps, or less if the team ends. Under lock. */
static void doze(uint64_t duration_ns)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    duration_ns += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(duration_ns / EGM_NS_PER_S);
    until.tv_nsec = (long)(duration_ns % EGM_NS_PER_S);
    int r = 0;
    while (r == 0 && !team.is_ending) {
        r = pthread_cond_clockwait(&team.changed, &team.lock, CLOCK_MONOTONIC, &until);
    }
}

/* Waits for a time without large batches. 0, -EBUSY when there is none, EGM_E_CLOSED when the team
 * ends. Under lock. */
static int wait_until_quiet(uint64_t until_ns)
{
    for (;;) {
        uint64_t seen = team.batch_count;
        bool was_quiet = team.running_count == 0;
        doze(was_quiet ? QUIET_NS : WAIT_NS);
        if (team.is_ending) {
            return EGM_E_CLOSED;
        }
        if (was_quiet && team.batch_count == seen) {
            return 0;
        }
        if (egm_clock_ns() >= until_ns) {
            return -EBUSY;
        }
    }
}

/* How much faster `more` threads are than `less`, in one round; 0 if the round does not count.
 * Under lock, which is let go meanwhile. */
static double compare_once(const struct egm_copy_trial *trial, unsigned less, unsigned more)
{
    uint64_t seen = team.batch_count;

    pthread_mutex_unlock(&team.lock);
    uint64_t less_ns = egm_copy_trial_run(trial, less);
    uint64_t more_ns = egm_copy_trial_run(trial, more);
    pthread_mutex_lock(&team.lock);
    bool is_clean = team.batch_count == seen && less_ns > 0 && more_ns > 0;
    return is_clean ? (double)less_ns / (double)more_ns : 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median gain of `more` threads over `less`, 0 on a host that is too busy to tell. Under lock.
 */
static int compare(unsigned less, unsigned more, uint64_t until_ns, double *ret_gain)
{
    struct egm_copy_trial trial;
    double gains[ROUNDS] = {0};
    unsigned count = 0, spoilt_count = 0;

    pthread_mutex_unlock(&team.lock);
    int r = egm_copy_trial_init(&trial, more);
    pthread_mutex_lock(&team.lock);
    if (r < 0) {
        return r;
    }
    while (r == 0 && count < ROUNDS && spoilt_count < ROUNDS_SPOILT_MAX) {
        r = wait_until_quiet(until_ns);
        if (r == 0) {
            gains[count] = compare_once(&trial, less, more);
            *(gains[count] > 0 ? &count : &spoilt_count) += 1;
        }
    }
    pthread_mutex_unlock(&team.lock);
    egm_copy_trial_release(&trial);
    pthread_mutex_lock(&team.lock);
    if (r < 0 || count < ROUNDS) {
        return r < 0 ? r : -EBUSY;
    }
    qsort(gains, ROUNDS, sizeof(gains[0]), by_value);
    *ret_gain = gains[ROUNDS / 2];
    return 0;
}

/* Under lock. */
static int measure(uint64_t until_ns)
{
    struct egm_copy_team_choice choice = {.thread_count = 1};
    unsigned cap = thread_max();

    for (unsigned count = 2; count <= cap; count *= 2) {
        int r = compare(choice.thread_count, count, until_ns, &choice.gain);
        if (r == -EBUSY && choice.tried_count > 0) {
            break; /* what is measured so far holds */
        }
        if (r < 0) {
            return r;
        }
        choice.tried_count = count;
        if (choice.gain < GAIN_LEAST) {
            break;
        }
        choice.thread_count = count;
    }
    team.choice = choice;
    return 0;
}

/* Only one process at a time, else each would see the others. Under lock. */
static int wait_for_turn(int fd, uint64_t until_ns)
{
    while (egm_lock_set(fd, PROBE_BYTE) < 0) {
        doze(WAIT_NS);
        if (team.is_ending) {
            return EGM_E_CLOSED;
        }
        if (egm_clock_ns() >= until_ns) {
            return -EBUSY;
        }
    }
    return 0;
}

static void *run_probe(void *arg)
{
    uint64_t start_ns = egm_clock_ns();
    int fd = open_slots();

    (void)arg;
    pthread_mutex_lock(&team.lock);
    int r = fd < 0 ? fd : wait_for_turn(fd, start_ns + PATIENCE_NS);
    if (r == 0) {
        r = measure(start_ns + PATIENCE_NS);
    }
    team.target_count = r == 0 && !team.is_ending ? team.choice.thread_count - 1 : 0;
    team.next_probe_ns = egm_clock_ns() + RETRY_NS;
    pthread_cond_broadcast(&team.changed);
    struct egm_copy_team_choice choice = team.choice;
    pthread_mutex_unlock(&team.lock);
    egm_fork_close(fd);
    if (r == 0) {
        egm_debug("copy threads measured threads=%u tried=%u gain_percent=%.0f took_us=%llu",
                  choice.thread_count, choice.tried_count, (choice.gain - 1) * 100,
                  (unsigned long long)(egm_clock_ns() - start_ns) / 1000);
    }
    pthread_mutex_lock(&team.lock);
    team.probe = PROBE_ENDED;
    pthread_cond_broadcast(&team.left);
    pthread_mutex_unlock(&team.lock);
    return NULL;
}

static void start_probe(void)
{
    if (team.probe == PROBE_RUNNING || egm_clock_ns() < team.next_probe_ns) {
        return;
    }
    if (thread_max() < 2) {
        team.choice = (struct egm_copy_team_choice){.thread_count = 1};
        return;
    }
    if (team.probe == PROBE_ENDED) {
        pthread_join(team.probe_thread, NULL); /* it takes no lock of ours any more */
    }
    int r = egm_thread_start(&team.probe_thread, "egm-copy-probe", run_probe, NULL);
    team.probe = r == 0 ? PROBE_RUNNING : PROBE_NEVER;
    team.next_probe_ns = r == 0 ? 0 : egm_clock_ns() + RETRY_NS;
}

/* ---- life ---- */

int egm_copy_team_configure(void)
{
    const char *text = getenv("EGMSTORE_COPY_THREADS");
    char folder[SLOTS_PATH_SIZE - 32], path[SLOTS_PATH_SIZE] = "";
    unsigned slot_count = (unsigned)egm_max_u64(egm_cpus_online() / 2, 1);
    uint64_t count = 0;

    if (text && text[0] && strcmp(text, "auto") != 0 &&
        egm_parse_u64(text, 0, EGM_COPY_TEAM_MAX, &count) < 0) {
        return EGM_E_INVALID;
    }
    if (count != 1 && egm_runtime_dir(folder, sizeof(folder), NULL) == 0) {
        egm_ignore(snprintf(path, sizeof(path), "%s/copy-threads", folder), "fits");
    }
    pthread_mutex_lock(&team.lock);
    memcpy(team.slots_path, path, sizeof(path));
    team.slot_count = slot_count;
    if (team.asked_count != count) {
        team.asked_count = (unsigned)count;
        team.choice = (struct egm_copy_team_choice){0};
    }
    pthread_mutex_unlock(&team.lock);
    return 0;
}

void egm_copy_team_ref(void)
{
    pthread_once(&once, install);
    pthread_mutex_lock(&team.lock);
    while (team.is_ending) {
        pthread_cond_wait(&team.left, &team.lock);
    }
    team.ref_count++;
    pthread_mutex_unlock(&team.lock);
}

/* By the thread that set is_ending: nobody else starts or joins threads then. */
static void join_all(bool has_probe)
{
    if (has_probe) {
        pthread_join(team.probe_thread, NULL);
    }
    for (unsigned i = 0; i < HELPERS_MAX; i++) {
        if (team.helpers[i].is_started) {
            pthread_join(team.helpers[i].thread, NULL);
        }
    }
}

void egm_copy_team_unref(void)
{
    pthread_mutex_lock(&team.lock);
    EGM_ASSERT(team.ref_count > 0);
    if (--team.ref_count > 0) {
        pthread_mutex_unlock(&team.lock);
        return;
    }
    team.is_ending = true;
    team.target_count = 0;
    bool has_probe = team.probe != PROBE_NEVER;
    pthread_cond_broadcast(&team.changed);
    pthread_mutex_unlock(&team.lock);
    join_all(has_probe);
    pthread_mutex_lock(&team.lock);
    memset(team.helpers, 0, sizeof(team.helpers));
    team.probe = PROBE_NEVER;
    team.next_probe_ns = 0;
    team.is_ending = false;
    pthread_cond_broadcast(&team.left);
    pthread_mutex_unlock(&team.lock);
}

void egm_copy_team_read(struct egm_copy_team_choice *ret_choice)
{
    pthread_mutex_lock(&team.lock);
    *ret_choice = team.choice;
    pthread_mutex_unlock(&team.lock);
}

void egm_copy_team_measure(uint64_t deadline_ns)
{
    egm_copy_team_ref();
    pthread_mutex_lock(&team.lock);
    egm_ignore((int)choose_count(), "starts the probe");
    while (team.probe == PROBE_RUNNING && egm_clock_ns() < deadline_ns) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += 1;
        egm_ignore(pthread_cond_clockwait(&team.left, &team.lock, CLOCK_MONOTONIC, &until),
                   "looked at again");
    }
    pthread_mutex_unlock(&team.lock);
    egm_copy_team_unref();
}
