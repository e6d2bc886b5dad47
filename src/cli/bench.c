/* SPDX-License-Identifier: Apache-2.0 */
/*
 * egmstore bench: put, get and exist of one shape against a running store, through the public API,
 * next to what memcpy of the same shape does on this machine in the same run: compare the ratio,
 * not the figure.
 *
 * A round puts all keys as one batch, gets them into other memory, compares the bytes, asks for
 * their existence and removes them. The best and the median round are shown; a round with one
 * failed key fails the run.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"

#include "cli/cli.h"
#include "egmstore/store.h"
#include "os/clock.h"
#include "os/host.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_ROUNDS 1000

enum phase {
    PHASE_MEMCPY,
    PHASE_PUT,
    PHASE_GET,
    PHASE_EXIST,
    PHASE_COUNT
};
static const char *const phase_names[PHASE_COUNT] = {"memcpy", "put", "get", "exist"};

static const struct egm_option rows[] = {
    EGM_ROW_MASTER,
    EGM_ROW_CLUSTER,
    EGM_ROW_TENANT,
    EGM_ROW_TIMEOUT,
    {.name = "keys",
     .placeholder = "count",
     .type = EGM_OPTION_U64,
     .default_text = "64",
     .min = 1,
     .max = 65536,
     .help = "objects of a batch",
     .group = "Shape"},
    {.name = "size",
     .placeholder = "bytes",
     .type = EGM_OPTION_SIZE,
     .default_text = "2MiB",
     .min = 1,
     .max = 17179869184,
     .unit = "bytes",
     .help = "bytes of an object",
     .group = "Shape"},
    {.name = "segments",
     .placeholder = "count",
     .type = EGM_OPTION_U64,
     .default_text = "32",
     .min = 1,
     .max = 4096,
     .help = "buffers that an object is cut into",
     .group = "Shape"},
    {.name = "rounds",
     .placeholder = "count",
     .type = EGM_OPTION_U64,
     .default_text = "5",
     .min = 1,
     .max = MAX_ROUNDS,
     .help = "repetitions",
     .group = "Shape"},
    {.name = "verify",
     .type = EGM_OPTION_BOOL,
     .default_text = "true",
     .help = "compare what was read, outside the times",
     .group = "Shape"},
    EGM_ROW_LOG_LEVEL_QUIET,
    EGM_ROW_JSON,
};

struct bench {
    const struct egm_cli *cli;
    struct egm_store *store;
    size_t keys, size, segments, bytes; /* bytes: keys * size */
    uint8_t *source, *target;           /* `bytes` each */
    char (*names)[64];
    struct egm_key *key_list;
    struct egm_item *puts, *gets;
    struct iovec *put_iov, *get_iov; /* keys * segments */
    int64_t *results;
    int *flags;
    uint64_t times_ns[PHASE_COUNT][MAX_ROUNDS];
    uint64_t rounds;
};

static void *map_pages(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
                   -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Cuts one object's bytes into its segments; the last takes the rest. */
static void cut(struct iovec *iov, size_t segments, uint8_t *data, size_t size)
{
    size_t piece = size / segments;

    for (size_t i = 0; i < segments; i++) {
        iov[i] = (struct iovec){data + i * piece, i + 1 < segments ? piece : size - i * piece};
    }
}

static void fill(uint8_t *data, size_t bytes)
{
    uint64_t x = egm_random_u64();

    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        memcpy(data + i, &x, 8);
    }
}

static int prepare(struct bench *b)
{
    size_t pieces = b->keys * b->segments;
    uint64_t run = egm_random_u64();

    b->source = map_pages(b->bytes);
    b->target = map_pages(b->bytes);
    b->names = egm_calloc(b->keys, sizeof(*b->names));
    b->key_list = egm_calloc(b->keys, sizeof(*b->key_list));
    b->puts = egm_calloc(b->keys, sizeof(*b->puts));
    b->gets = egm_calloc(b->keys, sizeof(*b->gets));
    b->put_iov = egm_calloc(pieces, sizeof(*b->put_iov));
    b->get_iov = egm_calloc(pieces, sizeof(*b->get_iov));
    b->results = egm_calloc(b->keys, sizeof(*b->results));
    b->flags = egm_calloc(b->keys, sizeof(*b->flags));
    if (!b->source || !b->target || !b->names || !b->key_list || !b->puts || !b->gets ||
        !b->put_iov || !b->get_iov || !b->results || !b->flags) {
        return egm_cli_fail(
            b->cli, "no memory for twice %zu bytes; choose fewer --keys or a smaller --size",
            b->bytes);
    }
    fill(b->source, b->bytes);
    for (size_t i = 0; i < b->keys; i++) {
        int n =
            snprintf(b->names[i], sizeof(b->names[i]), "egmstore-bench-%016" PRIx64 "-%zu", run, i);
        b->key_list[i] = (struct egm_key){b->names[i], (size_t)n};
        cut(b->put_iov + i * b->segments, b->segments, b->source + i * b->size, b->size);
        cut(b->get_iov + i * b->segments, b->segments, b->target + i * b->size, b->size);
        b->puts[i] =
            (struct egm_item){b->key_list[i], b->put_iov + i * b->segments, b->segments, NULL};
        b->gets[i] =
            (struct egm_item){b->key_list[i], b->get_iov + i * b->segments, b->segments, NULL};
    }
    return EGM_EXIT_OK;
}

static void release(struct bench *b)
{
    if (b->source) {
        munmap(b->source, b->bytes);
    }
    if (b->target) {
        munmap(b->target, b->bytes);
    }
    egm_free(b->names);
    egm_free(b->key_list);
    egm_free(b->puts);
    egm_free(b->gets);
    egm_free(b->put_iov);
    egm_free(b->get_iov);
    egm_free(b->results);
    egm_free(b->flags);
}

static int fail_phase(const struct bench *b, enum phase phase, int64_t code,
                      const struct egm_detail *detail)
{
    return egm_cli_fail(b->cli, "%s failed: %s", phase_names[phase],
                        detail->text[0] ? detail->text : egm_strerror((int)code));
}

static int check_results(const struct bench *b, enum phase phase, int64_t least,
                         const struct egm_detail *detail)
{
    for (size_t i = 0; i < b->keys; i++) {
        if (b->results[i] < least) {
            return fail_phase(b, phase, b->results[i] < 0 ? b->results[i] : EGM_E_TRANSFER, detail);
        }
    }
    return EGM_EXIT_OK;
}

static int remove_keys(struct bench *b)
{
    struct egm_detail detail = {0};

    int r = egm_remove(b->store, /*force=*/true, b->keys, b->key_list, b->flags, &detail);
    return r < 0 ? egm_cli_fail(b->cli, "remove failed: %s", detail.text) : EGM_EXIT_OK;
}

static int exist_all(struct bench *b, uint64_t *ret_ns)
{
    struct egm_detail detail = {0};
    uint64_t begin = egm_clock_ns();
    int r = egm_exist(b->store, b->keys, b->key_list, b->flags, &detail);

    *ret_ns = egm_clock_ns() - begin;
    for (size_t i = 0; r >= 0 && i < b->keys; i++) {
        r = b->flags[i] == 1 ? r : EGM_E_NOT_FOUND;
    }
    return r < 0 ? fail_phase(b, PHASE_EXIST, r, &detail) : EGM_EXIT_OK;
}

static int round_of(struct bench *b, uint64_t round)
{
    struct egm_detail detail = {0};
    uint64_t begin = egm_clock_ns();

    for (size_t i = 0; i < b->keys * b->segments; i++) {
        memcpy(b->get_iov[i].iov_base, b->put_iov[i].iov_base, b->put_iov[i].iov_len);
    }
    b->times_ns[PHASE_MEMCPY][round] = egm_clock_ns() - begin;
    memset(b->target, 0, b->bytes);

    begin = egm_clock_ns();
    int r = egm_put(b->store, NULL, b->keys, b->puts, b->results, &detail);
    b->times_ns[PHASE_PUT][round] = egm_clock_ns() - begin;
    int code =
        r < 0 ? fail_phase(b, PHASE_PUT, r, &detail) : check_results(b, PHASE_PUT, 0, &detail);
    if (code == EGM_EXIT_OK) {
        begin = egm_clock_ns();
        r = egm_get(b->store, /*any_memory=*/false, b->keys, b->gets, b->results, &detail);
        b->times_ns[PHASE_GET][round] = egm_clock_ns() - begin;
        code = r < 0 ? fail_phase(b, PHASE_GET, r, &detail)
                     : check_results(b, PHASE_GET, (int64_t)b->size, &detail);
    }
    if (code == EGM_EXIT_OK && egm_options_bool(&b->cli->options, "verify") &&
        memcmp(b->source, b->target, b->bytes) != 0) {
        code = egm_cli_fail(b->cli, "wrong bytes were read; please report this");
    }
    if (code == EGM_EXIT_OK) {
        code = exist_all(b, &b->times_ns[PHASE_EXIST][round]);
    }
    int removed = remove_keys(b);
    return code == EGM_EXIT_OK ? removed : code;
}

static int compare_times(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double gb_per_s(const struct bench *b, uint64_t ns)
{
    return (double)b->bytes / (double)egm_max_u64(ns, 1);
}

static int report(struct bench *b)
{
    bool is_json = egm_options_bool(&b->cli->options, "json");
    struct egm_buf out;

    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        qsort(b->times_ns[phase], b->rounds, sizeof(uint64_t), compare_times);
    }
    uint64_t copy_ns = b->times_ns[PHASE_MEMCPY][b->rounds / 2];
    egm_buf_init(&out, 65536);
    if (is_json) {
        egm_buf_printf(&out,
                       "{\"keys\":%zu,\"size_bytes\":%zu,\"segments\":%zu,\"rounds\":%" PRIu64
                       ",\"phases\":{",
                       b->keys, b->size, b->segments, b->rounds);
    } else {
        egm_buf_printf(&out,
                       "%zu keys x %zu bytes x %zu segments, %" PRIu64
                       " rounds\n%-8s %12s %12s %10s %10s\n",
                       b->keys, b->size, b->segments, b->rounds, "", "best ms", "median ms", "GB/s",
                       "of memcpy");
    }
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        uint64_t best = b->times_ns[phase][0];
        uint64_t median = b->times_ns[phase][b->rounds / 2];
        bool has_bytes = phase != PHASE_EXIST;
        double ratio = (double)copy_ns / (double)egm_max_u64(median, 1);
        if (is_json) {
            egm_buf_printf(&out, "%s\"%s\":{\"best_ns\":%" PRIu64 ",\"median_ns\":%" PRIu64,
                           phase > 0 ? "," : "", phase_names[phase], best, median);
            if (has_bytes) {
                egm_buf_printf(&out, ",\"gb_per_s\":%.3f,\"of_memcpy\":%.3f", gb_per_s(b, median),
                               ratio);
            }
            egm_buf_printf(&out, "}");
        } else {
            egm_buf_printf(&out, "%-8s %12.3f %12.3f", phase_names[phase], (double)best / 1e6,
                           (double)median / 1e6);
            if (has_bytes) {
                egm_buf_printf(&out, " %10.2f %10.2f", gb_per_s(b, median), ratio);
            }
            egm_buf_printf(&out, "\n");
        }
    }
    egm_buf_printf(&out, is_json ? "}}\n" : "");
    int code = egm_cli_print(b->cli, &out);
    egm_buf_release(&out);
    return code;
}

static int measure(struct bench *b)
{
    struct egm_detail detail = {0};
    int code = EGM_EXIT_OK;

    if (egm_register(b->store, b->source, b->bytes, &detail) < 0 ||
        egm_register(b->store, b->target, b->bytes, &detail) < 0) {
        return egm_cli_fail(b->cli, "%s", detail.text);
    }
    for (uint64_t round = 0; round < b->rounds && code == EGM_EXIT_OK; round++) {
        code = round_of(b, round);
    }
    egm_ignore(egm_unregister(b->store, b->source, NULL), "the store is closed next");
    egm_ignore(egm_unregister(b->store, b->target, NULL), "the store is closed next");
    return code == EGM_EXIT_OK ? report(b) : code;
}

static int run(struct egm_cli *cli)
{
    const struct egm_options *o = &cli->options;
    struct bench *b = egm_calloc(1, sizeof(*b));
    int code;

    if (!b) {
        return egm_cli_fail(cli, "out of memory");
    }
    b->cli = cli;
    b->keys = egm_options_u64(o, "keys");
    b->size = egm_options_u64(o, "size");
    b->segments = egm_options_u64(o, "segments");
    b->rounds = egm_options_u64(o, "rounds");
    egm_cli_apply_common(cli);
    if (b->segments > b->size || egm_mul_size(&b->bytes, b->keys, b->size) < 0) {
        code = egm_cli_misuse(cli, "an object of %zu bytes cannot be cut into %zu segments",
                              b->size, b->segments);
    } else {
        code = egm_cli_open_store(cli, &b->store);
    }
    if (code == EGM_EXIT_OK) {
        code = prepare(b);
        code = code == EGM_EXIT_OK ? measure(b) : code;
        egm_store_close(b->store);
    }
    release(b);
    egm_free(b);
    return code;
}

const struct egm_command egm_command_bench = {
    .name = "bench",
    .summary = "measure put, get and exist on a running store",
    .usage = "",
    .about = "Ratios to memcpy of the same shape in the same run are what to compare between "
             "machines and days.",
    .examples = "  egmstore bench\n"
                "  egmstore bench --keys 512 --size 4KiB --segments 1 --rounds 20\n"
                "  egmstore bench --keys 128 --size 640KiB --segments 80 --json\n",
    .rows = rows,
    .row_count = sizeof(rows) / sizeof(rows[0]),
    .run = run,
};
