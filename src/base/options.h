/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options: one table row per option drives the command line, the environment, config files, the
 * help text and the dump of the effective configuration, so that these cannot drift apart.
 *
 * Command line forms, '-' and '_' in names being the same: --name value, --name=value, -name value,
 * -name=value,
 * --flag, --noflag, --no-flag (booleans only; --flag=false too). "--" ends the options; other words
 * are arguments. A value that itself begins with "--" needs the '=' form. -h and --help are always
 * there (is_help_wanted).
 *
 * Sources rank: default < config file < environment < command line. A value never replaces one of a
 * higher source. Bad values are an error on the command line and in a file; in the environment they
 * give a warning and change nothing. Unknown names are an error in egm_options_set (its caller
 * decides whether a file's key is worth one).
 *
 * Texts in rows must outlive the options; texts of values are copied. Pure: the caller brings argv
 * and getenv. Not threadsafe; the getters may run in parallel once parsing is done.
 */
#ifndef EGM_BASE_OPTIONS_H
#define EGM_BASE_OPTIONS_H

#include "base/buf.h"
#include "base/detail.h"
#include "base/parse.h"

#include "egmstore/errors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum egm_option_type {
    EGM_OPTION_BOOL,
    EGM_OPTION_U64,
    EGM_OPTION_SIZE,        /* bytes, egm_parse_size; read with egm_options_u64 */
    EGM_OPTION_DURATION_MS, /* ms, egm_parse_duration_ms; read with egm_options_u64 */
    EGM_OPTION_DOUBLE,      /* min and max are whole numbers */
    EGM_OPTION_STRING,      /* min and max bound its length in bytes; max 0 = EGM_MAX_OPTION_TEXT */
    EGM_OPTION_ADDRESS,     /* checked by egm_parse_address; read with egm_options_text */
    EGM_OPTION_CHOICE,      /* one of the words of `placeholder`: "auto|shm|vmm"; read with
                               egm_options_text */
    EGM_OPTION_TYPE_COUNT
};

struct egm_option {
    const char *name;    /* without dashes, words joined by '-': "rpc-port" */
    const char *aliases; /* more names, separated by spaces, or NULL */
    const char
        *placeholder; /* "port" for "--rpc-port <port>"; the choices for CHOICE; NULL for BOOL */
    enum egm_option_type type;
    const char *default_text; /* parsed like a user's; NULL = not set: number 0, text NULL, false */
    uint64_t min;             /* range of numbers, inclusive; max 0 = no upper bound */
    uint64_t max;
    const char *unit;  /* shown in help: "ms", "bytes"; or NULL */
    const char *help;  /* a phrase: "lease time" */
    const char *group; /* heading in help; rows of one group stand together; NULL = "Options" */
    const char *env;   /* environment variable, or NULL */
};

enum egm_option_source {
    EGM_SOURCE_DEFAULT = 0,
    EGM_SOURCE_FILE = 1,
    EGM_SOURCE_ENV = 2,
    EGM_SOURCE_ARGS = 3,
};

struct egm_option_value {
    enum egm_option_source source;
    bool is_set; /* false: no default and nobody gave one */
    bool flag;
    uint64_t number;
    double real;
    char *text; /* as given; owned */
};

struct egm_options {
    const char *program;           /* for hints: "egmstore put" */
    const struct egm_option *rows; /* borrowed */
    size_t row_count;
    struct egm_option_value *values; /* one per row */
    const char **args;               /* words that are no options; they point into argv */
    size_t arg_count;
    bool is_help_wanted;
};

/* Looks up an environment variable; NULL if unset. */
typedef const char *(*egm_getenv_fn)(void *ctx, const char *name);

/* Fills in the defaults. `program` and `rows` are borrowed for the life of `o`. A default that does
 * not parse, or two rows that share a name, are bugs and assert. 0 or -ENOMEM (then nothing is to
 * be released). */
EGM_MUST_CHECK int egm_options_init(struct egm_options *o, const char *program,
                                    const struct egm_option *rows, size_t row_count);

/* Frees all values; a zeroed struct is fine. */
void egm_options_release(struct egm_options *o);

/* Parses argv[1..]; argv is borrowed for the life of `o`. 0, or an error whose one-line text names
 * the option and ends in the hint "(try '<program> --help')": EGM_E_NOT_FOUND, EGM_E_INVALID,
 * EGM_E_LIMIT, -ENOMEM. After --help it stops with is_help_wanted set and returns 0. On error,
 * options before the bad one are set. */
EGM_MUST_CHECK int egm_options_parse_args(struct egm_options *o, int argc, char *const *argv,
                                          struct egm_detail *reterr);

/* Sets one option by name or alias. 0 (also when a higher source already decided), or errors as
 * above. */
EGM_MUST_CHECK int egm_options_set(struct egm_options *o, const char *name, const char *text,
                                   enum egm_option_source source, struct egm_detail *reterr);

/* Applies the environment of all rows that name a variable. Bad values append one line each to
 * `warnings` and are skipped. 0 or -ENOMEM. */
EGM_MUST_CHECK int egm_options_parse_env(struct egm_options *o, egm_getenv_fn lookup, void *ctx,
                                         struct egm_buf *warnings);

/* Values by row name (not alias). An unknown name or a wrong type is a bug and asserts. Text is
 * borrowed, NULL if the option is not set. */
bool egm_options_bool(const struct egm_options *o, const char *name);
uint64_t egm_options_u64(const struct egm_options *o, const char *name);
double egm_options_double(const struct egm_options *o, const char *name);
const char *egm_options_text(const struct egm_options *o, const char *name);
bool egm_options_is_set(const struct egm_options *o, const char *name);
enum egm_option_source egm_options_source(const struct egm_options *o, const char *name);

/* Appends the help: "usage: " + usage, then the rows by group with placeholder, meaning, default,
 * range and unit, then the examples (NULL: none). 0 or the buffer's failure. */
EGM_MUST_CHECK int egm_options_help(const struct egm_options *o, const char *usage,
                                    const char *examples, struct egm_buf *out);

/* Appends one line per row, "name = value  (source)": the effective configuration. 0 or the
 * buffer's failure. */
EGM_MUST_CHECK int egm_options_dump(const struct egm_options *o, struct egm_buf *out);

/* "default", "file", "environment", "command line". Static. */
const char *egm_option_source_name(enum egm_option_source source);

#endif
