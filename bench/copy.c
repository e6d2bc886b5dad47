/* SPDX-License-Identifier: Apache-2.0 */
/* Question: what do the movers' copies cost against plain memcpy on this machine, and does the
 * hash hide behind them?
 *
 * Two areas, touched before the clock starts: one shared (as a pool is mapped), one private (the
 * user's memory). An area is copied as objects of 4 MiB; on the pool side an object is one extent,
 * on the user's side a list of pieces of 8 KiB, 64 KiB or 2 MiB. The pieces lie in order (as in
 * limits.c, the raw ceiling that the project compares with) or, with --shuffled, scattered over
 * the private area. The ceiling is memcpy piece by piece over the very same layout.
 * All ways use one thread; "threads" is what the movers would choose for large batches.
 *
 * All ways are measured in turn within a round, so that a disturbance of the machine does not hit
 * one alone; a ratio is taken within each round against that round's memcpy. Printed are the
 * medians and quartiles over the rounds.
 *
 *   copy [--rounds N] [--area-mib N] [--shuffled]        one JSON document on stdout; GB are 10^9
 *                                                        bytes */
#include "mover/copy.h"

#include "base/parse.h"

#include "mover/checksum.h"
#include "mover/copy_team.h"
#include "os/clock.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define OBJECT_BYTES ((size_t)4 << 20)
#define STEP_BYTES ((size_t)1 << 20) /* as the movers do */
#define MAX_ROUNDS 1000u

enum way {
    WAY_MEMCPY,
    WAY_PLAIN_HASH,
    WAY_NT,
    WAY_NT_HASH,
    WAY_POLICY_HASH,
    WAY_COUNT
};

static const char *const way_names[WAY_COUNT] = {"memcpy", "plain+hash", "nt", "nt+hash",
                                                 "chosen+hash"};

struct bench {
    unsigned char *pool;
    unsigned char *user;
    struct iovec *pieces; /* the user's side, piece_count long */
    size_t area_bytes;
    size_t piece_bytes;
    uint64_t rounds;
    bool is_shuffled;
    bool has_nt; /* else the ways that need it are left out */
    enum egm_copy_direction direction;
    uint64_t sum; /* of checksums, so that none can be left out */
    double gb_s[WAY_COUNT][MAX_ROUNDS];
};

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Lays the pieces over the private area: in order, or in an order that is the same in every run. */
static void lay_pieces(struct bench *b)
{
    size_t count = b->area_bytes / b->piece_bytes;
    uint64_t state = 1;

    for (size_t i = 0; i < count; i++) {
        b->pieces[i] = (struct iovec){b->user + i * b->piece_bytes, b->piece_bytes};
    }
    for (size_t i = count; b->is_shuffled && i > 1; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t other = (size_t)((state >> 33) % i);
        struct iovec kept = b->pieces[i - 1];
        b->pieces[i - 1] = b->pieces[other];
        b->pieces[other] = kept;
    }
}

static void copy_with_memcpy(struct bench *b)
{
    for (size_t i = 0, at = 0; at < b->area_bytes; i++, at += b->piece_bytes) {
        if (b->direction == EGM_COPY_IN) {
            memcpy(b->pool + at, b->pieces[i].iov_base, b->piece_bytes);
        } else {
            memcpy(b->pieces[i].iov_base, b->pool + at, b->piece_bytes);
        }
    }
}

static void copy_object(struct bench *b, size_t at, bool is_hashed)
{
    struct iovec extent = {b->pool + at, OBJECT_BYTES};
    struct egm_copy_list pool = {&extent, 1};
    struct egm_copy_list user = {b->pieces + at / b->piece_bytes, OBJECT_BYTES / b->piece_bytes};
    bool is_put = b->direction == EGM_COPY_IN;
    struct egm_checksum checksum;
    struct egm_copy c;

    egm_checksum_init(&checksum, OBJECT_BYTES);
    if (egm_copy_init(&c, b->direction, is_put ? pool : user, is_put ? user : pool,
                      is_hashed ? &checksum : NULL) < 0) {
        abort();
    }
    while (egm_copy_step(&c, STEP_BYTES) > 0) {
    }
    if (is_hashed) {
        b->sum += egm_checksum_final(&checksum);
    }
}

static void copy_objects(struct bench *b, const char *policy, bool is_hashed)
{
    if (egm_copy_use_policy(policy) < 0) {
        abort();
    }
    for (size_t at = 0; at < b->area_bytes; at += OBJECT_BYTES) {
        copy_object(b, at, is_hashed);
    }
}

static void run_way(struct bench *b, enum way way, const char *chosen)
{
    switch (way) {
    case WAY_MEMCPY:
        copy_with_memcpy(b);
        break;
    case WAY_PLAIN_HASH:
        copy_objects(b, "plain", /*is_hashed=*/true);
        break;
    case WAY_NT:
        copy_objects(b, "nt", /*is_hashed=*/false);
        break;
    case WAY_NT_HASH:
        copy_objects(b, "nt", /*is_hashed=*/true);
        break;
    case WAY_POLICY_HASH:
    case WAY_COUNT:
        copy_objects(b, chosen, /*is_hashed=*/true);
        break;
    }
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_spread(const char *name, double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    printf("\"%s\": {\"median\": %.3f, \"q1\": %.3f, \"q3\": %.3f}", name, values[count / 2],
           values[count / 4], values[count * 3 / 4]);
}

static bool has_way(const struct bench *b, int way)
{
    return b->has_nt || (way != WAY_NT && way != WAY_NT_HASH);
}

static void print_results(struct bench *b, bool is_last)
{
    static double ratios[WAY_COUNT][MAX_ROUNDS];
    const char *direction = b->direction == EGM_COPY_IN ? "put" : "get";

    for (int way = 0; way < WAY_COUNT; way++) {
        for (uint64_t round = 0; round < b->rounds; round++) {
            ratios[way][round] = b->gb_s[way][round] / b->gb_s[WAY_MEMCPY][round];
        }
    }
    for (int way = 0; way < WAY_COUNT; way++) {
        if (!has_way(b, way)) {
            continue;
        }
        printf("    {\"direction\": \"%s\", \"piece_bytes\": %zu, \"way\": \"%s\", ", direction,
               b->piece_bytes, way_names[way]);
        print_spread("gb_s", b->gb_s[way], b->rounds);
        printf(", ");
        print_spread("ratio_to_memcpy", ratios[way], b->rounds);
        printf("}%s\n", is_last && way + 1 == WAY_COUNT ? "" : ",");
    }
}

static void measure(struct bench *b, const char *chosen)
{
    lay_pieces(b);
    for (uint64_t round = 0; round < b->rounds; round++) {
        for (int way = 0; way < WAY_COUNT; way++) {
            if (!has_way(b, way)) {
                continue;
            }
            double start = now_s();
            run_way(b, (enum way)way, chosen);
            b->gb_s[way][round] = (double)b->area_bytes / (now_s() - start) / 1e9;
        }
    }
}

static int parse_arguments(struct bench *b, int argc, char **argv)
{
    uint64_t area_mib = 256;

    b->rounds = 11;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--shuffled") == 0) {
            b->is_shuffled = true;
        } else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
            if (egm_parse_u64(argv[++i], 1, MAX_ROUNDS, &b->rounds) < 0) {
                return -1;
            }
        } else if (strcmp(argv[i], "--area-mib") == 0 && i + 1 < argc) {
            if (egm_parse_u64(argv[++i], 4, 65536, &area_mib) < 0 || area_mib % 4 != 0) {
                return -1;
            }
        } else {
            return -1;
        }
    }
    b->area_bytes = (size_t)area_mib << 20;
    return 0;
}

static unsigned char *map_area(size_t size, int flags, int fill)
{
    unsigned char *area = mmap(NULL, size, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) {
        perror("copy: mmap");
        exit(1);
    }
    memset(area, fill, size);
    return area;
}

/* Both directions with all piece sizes; then the sum, which makes every hash count. */
static void measure_all(struct bench *b, char chosen[EGM_COPY_DIRECTION_COUNT][16])
{
    static const size_t piece_sizes[] = {(size_t)8 << 10, (size_t)64 << 10, (size_t)2 << 20};

    printf("  \"results\": [\n");
    for (int d = 0; d < EGM_COPY_DIRECTION_COUNT; d++) {
        for (size_t i = 0; i < 3; i++) {
            b->direction = (enum egm_copy_direction)d;
            b->piece_bytes = piece_sizes[i];
            measure(b, chosen[d]);
            print_results(b, d + 1 == EGM_COPY_DIRECTION_COUNT && i == 2);
        }
    }
    printf("  ],\n  \"sum_of_checksums\": \"%016" PRIx64 "\"\n}\n", b->sum);
}

/* What the movers would choose for large batches; thread_count 0: too busy to tell. */
static struct egm_copy_team_choice measure_threads(void)
{
    struct egm_copy_team_choice choice = {0};

    if (egm_copy_team_configure() == 0) {
        egm_copy_team_measure(egm_clock_ns() + 10 * EGM_NS_PER_S);
        egm_copy_team_read(&choice);
    }
    return choice;
}

int main(int argc, char **argv)
{
    static struct bench b;
    char chosen[EGM_COPY_DIRECTION_COUNT][16];

    if (parse_arguments(&b, argc, argv) < 0) {
        fprintf(stderr, "usage: copy [--rounds 1..1000] [--area-mib multiple of 4] [--shuffled]\n");
        return 2;
    }
    double start = now_s();
    if (egm_copy_probe() < 0) {
        fprintf(stderr, "copy: probe failed; is EGMSTORE_COPY one of plain, nt?\n");
        return 1;
    }
    double probe_ms = (now_s() - start) * 1e3;
    struct egm_copy_team_choice threads = measure_threads();
    for (int d = 0; d < EGM_COPY_DIRECTION_COUNT; d++) {
        const char *name = egm_copy_policy_name((enum egm_copy_direction)d);
        (void)snprintf(chosen[d], sizeof chosen[d], "%s", name);
    }
    b.has_nt = egm_copy_use_policy("nt") == 0;
    b.pool = map_area(b.area_bytes, MAP_SHARED, 1);
    b.user = map_area(b.area_bytes, MAP_PRIVATE, 2);
    b.pieces = calloc(b.area_bytes / ((size_t)8 << 10), sizeof *b.pieces);
    if (!b.pieces) {
        fprintf(stderr, "copy: out of memory\n");
        return 1;
    }
    printf(
        "{\n  \"bench\": \"copy\", \"area_bytes\": %zu, \"object_bytes\": %zu, \"rounds\": %" PRIu64
        ", \"order\": \"%s\",\n",
        b.area_bytes, OBJECT_BYTES, b.rounds, b.is_shuffled ? "shuffled" : "sequential");
    printf("  \"checksum\": \"%s\", \"put_policy\": \"%s\", \"get_policy\": \"%s\", \"probe_ms\": "
           "%.1f,\n",
           egm_checksum_variant_name(egm_checksum_variant_at(0)), chosen[EGM_COPY_IN],
           chosen[EGM_COPY_OUT], probe_ms);
    printf("  \"threads\": %u, \"threads_tried\": %u, \"threads_gain\": %.2f,\n",
           threads.thread_count, threads.tried_count, threads.gain);
    measure_all(&b, chosen);
    free(b.pieces);
    return 0;
}
