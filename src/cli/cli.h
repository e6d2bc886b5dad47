/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frame of the `egmstore` program: a table of commands, each with a table of options
 * (base/options.h).
 *
 * main.c finds the command, by the name the program was called under or by its first argument, and
 * parses; a command's run then finds everything in struct egm_cli. Results go to stdout; errors are
 * one line on stderr with a hint; exit codes: 0 done, 1 failed, 2 wrong usage. Texts, defaults and
 * bounds of --help and docs/config.md come from the tables.
 */
#ifndef EGM_CLI_CLI_H
#define EGM_CLI_CLI_H

#include "base/options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum egm_exit {
    EGM_EXIT_OK = 0,
    EGM_EXIT_FAILED = 1,
    EGM_EXIT_USAGE = 2
};

struct egm_store;

struct egm_cli {
    const struct egm_command *command;
    const char *program; /* for messages: "egmstore put" */
    struct egm_options options;
};

struct egm_command {
    const char *name;
    const char *summary; /* a phrase for the list of commands */
    const char *usage;   /* behind the program's name: "KEY FILE|-" */
    const char *about;   /* sentences below the usage; or NULL */
    const char *examples;
    const struct egm_option *rows;
    size_t row_count;
    size_t args_min, args_max;
    const char *alias; /* program name that stands for the command ("mooncake_master"), or NULL */
    int (*run)(struct egm_cli *cli);
};

extern const struct egm_command egm_command_master, egm_command_provider, egm_command_put,
    egm_command_get, egm_command_exist, egm_command_remove, egm_command_stat, egm_command_top,
    egm_command_info, egm_command_bench, egm_command_help, egm_command_mooncake_master,
    egm_command_mooncake_client;

/* All of them, in the order of the list; the last two are for programs that know Mooncake's flags.
 */
extern const struct egm_command *const egm_commands[];
extern const size_t egm_command_count;

/* "egmstore put: text" on stderr; returns EGM_EXIT_FAILED. */
__attribute__((format(printf, 2, 3))) int egm_cli_fail(const struct egm_cli *cli, const char *fmt,
                                                       ...);
/* The same with the hint to --help; returns EGM_EXIT_USAGE. */
__attribute__((format(printf, 2, 3))) int egm_cli_misuse(const struct egm_cli *cli, const char *fmt,
                                                         ...);

/* Usage, options, examples of a command. */
void egm_cli_write_help(const struct egm_command *command, const struct egm_options *options,
                        struct egm_buf *out);
/* The options' name of the program: "egmstore put", or the alias. Static storage per command. */
const char *egm_cli_program(const struct egm_command *command, bool is_alias);

/* Writes a buffer to stdout. 0 or EGM_EXIT_FAILED after a message. */
int egm_cli_print(const struct egm_cli *cli, const struct egm_buf *text);

/* Appends a JSON string. Bytes that are no UTF-8 of a key are left to the caller. */
void egm_cli_json_text(struct egm_buf *out, const char *text);

/* Makes --cluster, --log-level of the command effective for the libraries, which read the
 * environment. Call first. */
void egm_cli_apply_common(const struct egm_cli *cli);

/* Opens a store with --master, --tenant, --timeout. 0, or EGM_EXIT_FAILED after a message. */
int egm_cli_open_store(const struct egm_cli *cli, struct egm_store **ret_store);

/* Rows that several commands share. */
#define EGM_ROW_MASTER                                                                     \
    {                                                                                      \
        .name = "master", .placeholder = "address", .type = EGM_OPTION_STRING,             \
        .default_text = "127.0.0.1:50051", .min = 1, .max = 300, .env = "EGMSTORE_MASTER", \
        .help = "the master: host:port, or unix:/path of its socket on this host",         \
        .group = "Connection"                                                              \
    }
#define EGM_ROW_CLUSTER                                                              \
    {                                                                                \
        .name = "cluster", .placeholder = "id", .type = EGM_OPTION_STRING,           \
        .default_text = "egmstore", .min = 1, .max = 127, .env = "EGMSTORE_CLUSTER", \
        .help = "id that master, providers and requesters must have in common",      \
        .group = "Connection"                                                        \
    }
#define EGM_ROW_TENANT                                                        \
    {                                                                         \
        .name = "tenant", .placeholder = "name", .type = EGM_OPTION_STRING,   \
        .default_text = "default", .min = 1, .max = 255, .help = "key space", \
        .group = "Connection"                                                 \
    }
#define EGM_ROW_TIMEOUT                                                               \
    {                                                                                 \
        .name = "timeout", .placeholder = "duration", .type = EGM_OPTION_DURATION_MS, \
        .default_text = "30s", .min = 100, .max = 3600000, .unit = "ms",              \
        .help = "deadline of each call", .group = "Connection"                        \
    }
/* Daemons say what happens; commands only what went wrong. */
#define EGM_ROW_LOG_LEVEL_OF(text)                                                 \
    {                                                                              \
        .name = "log-level", .placeholder = "error|warn|info|debug|trace",         \
        .type = EGM_OPTION_CHOICE, .default_text = text, .env = "EGMSTORE_LOG",    \
        .help = "least severe lines that are logged to stderr", .group = "Logging" \
    }
#define EGM_ROW_LOG_LEVEL EGM_ROW_LOG_LEVEL_OF("info")
#define EGM_ROW_LOG_LEVEL_QUIET EGM_ROW_LOG_LEVEL_OF("warn")
#define EGM_ROW_JSON                                                                \
    {                                                                               \
        .name = "json", .type = EGM_OPTION_BOOL, .help = "print JSON for programs", \
        .group = "Output"                                                           \
    }

#endif
