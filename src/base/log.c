/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "base/assert.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

/* Longest line: below PIPE_BUF with its prefix, so that one write to a pipe stays whole. */
#define LINE_MAX_BYTES 2000
#define GATE_MS 1000u

static const char *const level_names[EGM_LOG_LEVEL_COUNT] = {"error", "warn", "info", "debug",
                                                             "trace"};

/* Allowed by R22. The level is -1 until the environment was read; relaxed, nothing is published
 * through it. */
static _Atomic int current_level = -1;
static egm_log_sink_fn current_sink;
static void *current_sink_ctx;

int egm_log_level_parse(const char *s, enum egm_log_level *ret_level)
{
    for (int i = 0; s && i < EGM_LOG_LEVEL_COUNT; i++) {
        if (strcasecmp(s, level_names[i]) == 0) {
            *ret_level = (enum egm_log_level)i;
            return 0;
        }
    }
    return EGM_E_INVALID;
}

void egm_log_set_level(enum egm_log_level level)
{
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

bool egm_log_enabled(enum egm_log_level level)
{
    int limit = atomic_load_explicit(&current_level, memory_order_relaxed);

    if (limit < 0) {
        enum egm_log_level from_env = EGM_LOG_INFO;

        egm_ignore(egm_log_level_parse(getenv("EGMSTORE_LOG"), &from_env),
                   "a wrong level means the default");
        limit = (int)from_env;
        /* two threads may both get here: they store the same value */
        atomic_store_explicit(&current_level, limit, memory_order_relaxed);
    }
    return (int)level <= limit;
}

void egm_log_set_sink(egm_log_sink_fn sink, void *ctx)
{
    current_sink = sink;
    current_sink_ctx = ctx;
}

static void write_to_stderr(enum egm_log_level level, const char *message, size_t len)
{
    char line[LINE_MAX_BYTES + 64];
    struct timespec now;
    struct tm tm;
    size_t at;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    at = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &tm);
    at += (size_t)snprintf(line + at, sizeof(line) - at, ".%03ldZ %-5s ", now.tv_nsec / 1000000,
                           level_names[level]);
    memcpy(line + at, message, len);
    at += len;
    line[at++] = '\n';
    while (write(STDERR_FILENO, line, at) < 0 && errno == EINTR) {
        /* a line that stderr does not take otherwise is lost: there is no better place to say so */
    }
}

/* Formats, makes one line of it and hands it to the sink. `suffix` may be "". */
__attribute__((format(printf, 3, 0))) static void emit(enum egm_log_level level, const char *suffix,
                                                       const char *fmt, va_list ap)
{
    char message[LINE_MAX_BYTES];
    int saved_errno = errno;
    size_t suffix_len = strlen(suffix);
    size_t room = sizeof(message) - suffix_len;
    size_t len;
    int n;

    n = vsnprintf(message, room, fmt, ap);
    len = n < 0 ? 0 : ((size_t)n < room ? (size_t)n : room - 1);
    memcpy(message + len, suffix, suffix_len + 1);
    len += suffix_len;
    for (size_t i = 0; i < len; i++) {
        /* values may come from outside: no forged lines, no terminal control */
        if ((unsigned char)message[i] < 0x20 || message[i] == 0x7f) {
            message[i] = ' ';
        }
    }
    if (current_sink) {
        current_sink(current_sink_ctx, level, message, len);
    } else {
        write_to_stderr(level, message, len);
    }
    errno = saved_errno;
}

void egm_log(enum egm_log_level level, const char *fmt, ...)
{
    va_list ap;

    if (!egm_log_enabled(level)) {
        return;
    }
    va_start(ap, fmt);
    emit(level, "", fmt, ap);
    va_end(ap);
}

static uint64_t monotonic_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void egm_log_gated(struct egm_log_gate *gate, enum egm_log_level level, const char *fmt, ...)
{
    char suffix[32] = "";
    uint64_t now_ms, next_ms;
    uint32_t held;
    va_list ap;

    if (!egm_log_enabled(level)) {
        return;
    }
    now_ms = monotonic_ms();
    /* relaxed: the exchange alone decides which thread may pass; no other data depends on it */
    next_ms = atomic_load_explicit(&gate->next_ms, memory_order_relaxed);
    if (now_ms < next_ms ||
        !atomic_compare_exchange_strong_explicit(&gate->next_ms, &next_ms, now_ms + GATE_MS,
                                                 memory_order_relaxed, memory_order_relaxed)) {
        atomic_fetch_add_explicit(&gate->held_count, 1, memory_order_relaxed);
        return;
    }
    held = atomic_exchange_explicit(&gate->held_count, 0, memory_order_relaxed);
    if (held > 0) {
        snprintf(suffix, sizeof(suffix), " suppressed=%u", held);
    }
    va_start(ap, fmt);
    emit(level, suffix, fmt, ap);
    va_end(ap);
}
