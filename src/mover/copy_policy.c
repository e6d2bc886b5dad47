/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel copies: asked for by name, or measured once.
 *
 * The measurement runs the real thing (a copy with its checksum, pieces of 64 KiB, one side a
 * shared mapping as a pool is) over lines that were first dropped from the caches, because pools
 * are far larger than caches and a warm measurement would favour plain. Per direction the best of
 * many short rounds counts, taken in turns, so that a disturbance hits all alike and costs a round,
 * not the decision. Plain leaves its destination dirty in the cache and pays for writing it back
 * after the clock has stopped; hence it has to win by more than a tenth. (On the reference machine,
 * for get, the probe sees streaming at 0.9 to 1.2 of plain's speed, from run to run; over 256 MiB
 * it has 1.1 to 1.2.)
 *
 * The choice is the one piece of process-wide mutable state here: it describes the machine, not a
 * store. */
#include "base/checked.h"

#include "mover/copy_kernel.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define PROBE_BYTES ((size_t)512 << 10)
#define PROBE_PIECE_BYTES ((size_t)64 << 10)
#define PROBE_PIECES (PROBE_BYTES / PROBE_PIECE_BYTES)
#define PROBE_ROUNDS 40u
#define PROBE_BUDGET_NS 25000000u /* no round begins that would probably end later */
#define PROBE_PLAIN_MARGIN 1.1

/* Written by use/probe, read at each init. Relaxed: kernels are constants, nothing else is
 * published with the pointer. */
static _Atomic(const struct egm_copy_kernel *) policy[EGM_COPY_DIRECTION_COUNT] = {
    &egm_copy_plain,
    &egm_copy_plain,
};

const struct egm_copy_kernel *egm_copy_best_nt(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") ? &egm_copy_nt_avx512 : &egm_copy_nt_sse2;
#else
    return NULL;
#endif
}

static void set_policy(enum egm_copy_direction direction, const struct egm_copy_kernel *kernel)
{
    atomic_store_explicit(&policy[direction], kernel, memory_order_relaxed);
}

const struct egm_copy_kernel *egm_copy_policy(enum egm_copy_direction direction, size_t bytes,
                                              uint64_t batch_bytes)
{
    if (bytes <= EGM_COPY_SMALL_BYTES ||
        (direction == EGM_COPY_OUT && batch_bytes <= EGM_COPY_CACHED_OUT_BYTES)) {
        return &egm_copy_plain;
    }
    return atomic_load_explicit(&policy[direction], memory_order_relaxed);
}

const char *egm_copy_policy_name(enum egm_copy_direction direction)
{
    return atomic_load_explicit(&policy[direction], memory_order_relaxed)->name;
}

/* Finds the kernel that `name` asks for; the errors of egm_copy_use_policy. */
static int find_kernel(const char *name, const struct egm_copy_kernel **ret_kernel)
{
    const struct egm_copy_kernel *found = NULL;

    if (strcmp(name, "plain") == 0) {
        found = &egm_copy_plain;
    } else if (strcmp(name, "nt") == 0) {
        found = egm_copy_best_nt();
    } else if (strcmp(name, "nt-sse2") == 0 || strcmp(name, "nt-avx512") == 0) {
#if defined(__x86_64__)
        if (strcmp(name, "nt-sse2") == 0) {
            found = &egm_copy_nt_sse2;
        } else if (__builtin_cpu_supports("avx512f")) {
            found = &egm_copy_nt_avx512;
        }
#endif
    } else {
        return EGM_E_INVALID;
    }
    if (!found) {
        return EGM_E_UNSUPPORTED;
    }
    *ret_kernel = found;
    return 0;
}

int egm_copy_use_policy(const char *name)
{
    const struct egm_copy_kernel *kernel;

    int r = find_kernel(name, &kernel);
    if (r < 0) {
        return r;
    }
    set_policy(EGM_COPY_IN, kernel);
    set_policy(EGM_COPY_OUT, kernel);
    return 0;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Cuts `area` into pieces for a list. */
static void cut(unsigned char *area, struct iovec pieces[PROBE_PIECES])
{
    for (size_t i = 0; i < PROBE_PIECES; i++) {
        pieces[i] = (struct iovec){area + i * PROBE_PIECE_BYTES, PROBE_PIECE_BYTES};
    }
}

/* Time of one cold copy of PROBE_BYTES. `nt` evicts; `kernel` copies. */
static uint64_t measure(enum egm_copy_direction direction, const struct egm_copy_kernel *kernel,
                        const struct egm_copy_kernel *nt, unsigned char *pool, unsigned char *user)
{
    struct iovec pieces[PROBE_PIECES];
    struct iovec extent = {pool, PROBE_BYTES};
    struct egm_copy_list user_list = {pieces, PROBE_PIECES}, pool_list = {&extent, 1};
    struct egm_checksum checksum;
    struct egm_copy c;

    cut(user, pieces);
    nt->evict(pool, PROBE_BYTES);
    nt->evict(user, PROBE_BYTES);
    uint64_t start_ns = now_ns();
    egm_checksum_init(&checksum, PROBE_BYTES);
    int r = direction == EGM_COPY_IN
                ? egm_copy_init(&c, direction, pool_list, user_list, &checksum)
                : egm_copy_init(&c, direction, user_list, pool_list, &checksum);
    EGM_ASSERT(r == 0);
    egm_copy_force_kernel(&c, kernel);
    (void)egm_copy_step(&c, PROBE_BYTES);
    (void)egm_checksum_final(&checksum);
    return now_ns() - start_ns;
}

/* Measures plain against `nt` in both directions and sets the policy. */
static void choose(const struct egm_copy_kernel *nt, unsigned char *pool, unsigned char *user)
{
    uint64_t best[EGM_COPY_DIRECTION_COUNT][2];
    uint64_t start_ns = now_ns();

    memset(best, 0xff, sizeof best);
    for (unsigned round = 0; round < PROBE_ROUNDS; round++) {
        for (int d = 0; d < EGM_COPY_DIRECTION_COUNT; d++) {
            for (int k = 0; k < 2; k++) {
                uint64_t took =
                    measure((enum egm_copy_direction)d, k ? nt : &egm_copy_plain, nt, pool, user);
                best[d][k] = egm_min_u64(best[d][k], took);
            }
        }
        if (now_ns() - start_ns > (uint64_t)PROBE_BUDGET_NS * (round + 1) / (round + 2)) {
            break;
        }
    }
    for (int d = 0; d < EGM_COPY_DIRECTION_COUNT; d++) {
        bool is_plain = (double)best[d][0] * PROBE_PLAIN_MARGIN < (double)best[d][1];
        set_policy((enum egm_copy_direction)d, is_plain ? &egm_copy_plain : nt);
    }
}

int egm_copy_probe(void)
{
    const char *asked = getenv("EGMSTORE_COPY");
    const struct egm_copy_kernel *nt = egm_copy_best_nt();

    if (asked) {
        return egm_copy_use_policy(asked);
    }
    if (!nt) {
        return 0;
    }
    unsigned char *pool = mmap(NULL, PROBE_BYTES, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (pool == MAP_FAILED) {
        return -errno;
    }
    unsigned char *user = mmap(NULL, PROBE_BYTES, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (user == MAP_FAILED) {
        int r = -errno;
        (void)munmap(pool, PROBE_BYTES);
        return r;
    }
    choose(nt, pool, user);
    (void)munmap(user, PROBE_BYTES);
    (void)munmap(pool, PROBE_BYTES);
    return 0;
}
