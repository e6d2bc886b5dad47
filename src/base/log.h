/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines.
 *
 * Style (R51): lower case, what happened first, then key=value fields:
 *     egm_warn("segment map failed seg=%u off=%" PRIu64 " err=\"%s\", continuing", ...)
 * error: an operator must act; warn: degraded, continuing; info: life cycle; debug: per object;
 * trace: per operation. A function either logs or returns a detail, not both. Whatever a peer can
 * trigger goes through a gate, which lets one line per second pass and says how many it kept back.
 *
 * A line goes to the sink whole; the default sink writes "time level message" to stderr in one
 * write, so that lines of several threads and processes do not mix. Lines beyond 2,000 bytes are
 * cut. The level is EGMSTORE_LOG (error, warn, info, debug, trace) at the first use, info if that
 * is unset or wrong, until egm_log_set_level is called.
 *
 * This file and alloc are the only ones of base that talk to the OS. @threadsafe, except that
 * egm_log_set_sink must happen before other threads log.
 */
#ifndef EGM_BASE_LOG_H
#define EGM_BASE_LOG_H

#include "egmstore/errors.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum egm_log_level {
    EGM_LOG_ERROR = 0,
    EGM_LOG_WARN = 1,
    EGM_LOG_INFO = 2,
    EGM_LOG_DEBUG = 3,
    EGM_LOG_TRACE = 4,
    EGM_LOG_LEVEL_COUNT
};

/* Takes one finished message (no newline; borrowed until return). Called on the logging thread;
 * must not log. */
typedef void (*egm_log_sink_fn)(void *ctx, enum egm_log_level level, const char *message,
                                size_t len);

/* NULL brings back the default sink. */
void egm_log_set_sink(egm_log_sink_fn sink, void *ctx);

void egm_log_set_level(enum egm_log_level level);

/* True if a message of this level would be written. */
bool egm_log_enabled(enum egm_log_level level);

/* "error".."trace" in any case -> level; EGM_E_INVALID otherwise. */
EGM_MUST_CHECK int egm_log_level_parse(const char *s, enum egm_log_level *ret_level);

__attribute__((format(printf, 2, 3))) void egm_log(enum egm_log_level level, const char *fmt, ...);

/* The arguments are evaluated only when the level is on. */
#define EGM_LOG_AT(level, ...) (egm_log_enabled(level) ? egm_log((level), __VA_ARGS__) : (void)0)
#define egm_error(...) EGM_LOG_AT(EGM_LOG_ERROR, __VA_ARGS__)
#define egm_warn(...) EGM_LOG_AT(EGM_LOG_WARN, __VA_ARGS__)
#define egm_info(...) EGM_LOG_AT(EGM_LOG_INFO, __VA_ARGS__)
#define egm_debug(...) EGM_LOG_AT(EGM_LOG_DEBUG, __VA_ARGS__)
#define egm_trace(...) EGM_LOG_AT(EGM_LOG_TRACE, __VA_ARGS__)

/* Limits one call site (or one peer) to a line per second. Zeroed = ready. */
struct egm_log_gate {
    _Atomic uint64_t next_ms;    /* monotonic time of the next line that may pass */
    _Atomic uint32_t held_count; /* lines kept back since the last one */
};

/* As egm_log behind the gate; a line that passes after others were kept back ends in "
 * suppressed=N". */
__attribute__((format(printf, 3, 4))) void egm_log_gated(struct egm_log_gate *gate,
                                                         enum egm_log_level level, const char *fmt,
                                                         ...);

#endif
