/* SPDX-License-Identifier: Apache-2.0 */
/* egmstore help: the list of commands, one command's help, and (--markdown) docs/config.md. */
#include "base/assert.h"

#include "cli/cli.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct egm_option rows[] = {
    {.name = "markdown",
     .type = EGM_OPTION_BOOL,
     .help = "print the reference of all options, docs/config.md"},
};

/* Variables that no option stands for. */
static const struct {
    const char *name, *meaning;
} variables[] = {
    {"EGMSTORE_RUNTIME_DIR",
     "folder of the Unix sockets; default: `/run/egmstore` for root, else "
     "`$XDG_RUNTIME_DIR/egmstore` or "
     "`/tmp/egmstore-<uid>`. Master, providers and requesters of one host must agree on it"},
    {"EGMSTORE_MAP", "`0` turns copying through shared memory off, so that every transfer uses TCP "
                     "(also `MC_STORE_MEMCPY=0`)"},
    {"EGMSTORE_DEADLINE_MS",
     "deadline of each call of the library, in ms; default 30000 (also `MC_RPC_TIMEOUT_MS`)"},
    {"EGMSTORE_COPY",
     "copy kernel instead of the one measured at start: `plain`, `nt`, `nt-sse2`, `nt-avx512`"},
    {"EGMSTORE_COPY_THREADS",
     "threads that copy a batch of 8 MiB and more through shared memory; `1` turns helpers off; "
     "default `auto` (or `0`): measured once per process, after its first such batch, and more "
     "than one only where that gains at least 20 %. Never more than 16, the CPUs that the process "
     "may use, or one plus half of the host's CPUs, and all processes of a host together have "
     "helpers for half of its CPUs"},
    {"MC_STORE_CLIENT_MIN_PORT",
     "first port that the name of a provider or requester may get; default 12300"},
    {"MC_STORE_CLIENT_MAX_PORT",
     "last port that the name of a provider or requester may get; default 14300"},
    {"EGMSTORE_BINARY", "program that the Python package's console scripts run"},
};

static void write_list(struct egm_buf *out)
{
    egm_buf_printf(out, "usage: egmstore COMMAND [option...] [argument...]\n\nCommands:\n");
    for (size_t i = 0; i < egm_command_count; i++) {
        egm_buf_printf(out, "  %-18s%s\n", egm_commands[i]->name, egm_commands[i]->summary);
    }
    egm_buf_printf(out, "\n'egmstore COMMAND --help' explains a command and its options.\n"
                        "\nExamples:\n"
                        "  egmstore master --port 50051 --metrics-port 9003\n"
                        "  egmstore provider --master 127.0.0.1:50051 --size 16GB\n"
                        "  egmstore put greeting hello.txt && egmstore get greeting -\n"
                        "  egmstore stat\n");
}

static void write_cell(struct egm_buf *out, const char *text)
{
    for (const char *at = text ? text : ""; *at; at++) {
        if (*at == '|') {
            egm_buf_printf(out, "\\|");
        } else if (*at == '<') {
            egm_buf_printf(out, "&lt;");
        } else {
            egm_buf_append(out, at, 1);
        }
    }
}

static void write_range(struct egm_buf *out, const struct egm_option *row)
{
    if (row->type == EGM_OPTION_BOOL) {
        egm_buf_printf(out, "true or false");
    } else if (row->type == EGM_OPTION_CHOICE) {
        write_cell(out, row->placeholder);
    } else if (row->type == EGM_OPTION_STRING) {
        egm_buf_printf(out, "text");
    } else if (row->max > 0) {
        egm_buf_printf(out, "%" PRIu64 " to %" PRIu64, row->min, row->max);
    } else if (row->min > 0) {
        egm_buf_printf(out, "at least %" PRIu64, row->min);
    }
    if (row->unit) {
        egm_buf_printf(out, " %s", row->unit);
    }
}

static void write_row(struct egm_buf *out, const struct egm_option *row)
{
    egm_buf_printf(out, "| `--%s`", row->name);
    if (row->aliases) {
        egm_buf_printf(out, " (also %s)", row->aliases);
    }
    egm_buf_printf(out, " | ");
    if (row->default_text && row->default_text[0]) {
        egm_buf_printf(out, "`%s`", row->default_text);
    } else {
        egm_buf_printf(out, "%s",
                       row->default_text              ? "empty"
                       : row->type == EGM_OPTION_BOOL ? "`false`"
                                                      : "none");
    }
    egm_buf_printf(out, " | ");
    write_range(out, row);
    egm_buf_printf(out, row->env ? " | `%s` | " : " | %s | ", row->env ? row->env : "");
    write_cell(out, row->help);
    egm_buf_printf(out, " |\n");
}

static void write_command(struct egm_buf *out, const struct egm_command *command)
{
    const char *group = NULL;

    egm_buf_printf(out, "\n## egmstore %s\n\n%c%s.\n", command->name, toupper(command->summary[0]),
                   command->summary + 1);
    if (command->alias) {
        egm_buf_printf(out, "Also installed as `%s`.\n", command->alias);
    }
    if (command->about) {
        egm_buf_printf(out, "%s\n", command->about);
    }
    for (size_t i = 0; i < command->row_count; i++) {
        const struct egm_option *row = &command->rows[i];
        const char *its = row->group ? row->group : "Options";
        if (!group || strcmp(group, its) != 0) {
            group = its;
            egm_buf_printf(out,
                           "\n%s:\n\n| option | default | values | environment | meaning "
                           "|\n|---|---|---|---|---|\n",
                           group);
        }
        write_row(out, row);
    }
}

static void write_markdown(struct egm_buf *out)
{
    egm_buf_printf(out, "# Options and environment\n\n"
                        "Written by `egmstore help --markdown` from the tables that the program "
                        "parses with; a test compares. "
                        "Do not edit.\n\n"
                        "Names may be written with `-` or `_`, and as `--name value`, "
                        "`--name=value`, `-name=value`; booleans as "
                        "`--name`, `--noname`, `--name=false`. Sizes are bytes or a number with a "
                        "unit (`512MB`, `1.5gb`, "
                        "`4GiB`; powers of 1024), durations ms or a number with a unit (`250ms`, "
                        "`10s`, `30m`, `1h`). "
                        "The command line wins over the environment, that over a config file, that "
                        "over the default.\n");
    for (size_t i = 0; i < egm_command_count; i++) {
        write_command(out, egm_commands[i]);
    }
    egm_buf_printf(out, "\n## Other environment variables\n\n| variable | meaning |\n|---|---|\n");
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        egm_buf_printf(out, "| `%s` | %s |\n", variables[i].name, variables[i].meaning);
    }
}

static int help_of(const struct egm_cli *cli, const char *name, struct egm_buf *out)
{
    for (size_t i = 0; i < egm_command_count; i++) {
        const struct egm_command *command = egm_commands[i];
        if (strcmp(name, command->name) != 0) {
            continue;
        }
        struct egm_options options;
        if (egm_options_init(&options, egm_cli_program(command, false), command->rows,
                             command->row_count) < 0) {
            return egm_cli_fail(cli, "out of memory");
        }
        egm_cli_write_help(command, &options, out);
        egm_options_release(&options);
        return EGM_EXIT_OK;
    }
    return egm_cli_misuse(cli, "unknown command '%.64s'", name);
}

static int run(struct egm_cli *cli)
{
    struct egm_buf out;
    int code = EGM_EXIT_OK;

    egm_buf_init(&out, 1 << 20);
    if (egm_options_bool(&cli->options, "markdown")) {
        write_markdown(&out);
    } else if (cli->options.arg_count > 0) {
        code = help_of(cli, cli->options.args[0], &out);
    } else {
        write_list(&out);
    }
    if (code == EGM_EXIT_OK) {
        code = egm_cli_print(cli, &out);
    }
    egm_buf_release(&out);
    return code;
}

const struct egm_command egm_command_help = {
    .name = "help",
    .summary = "list the commands, or explain one",
    .usage = "[COMMAND]",
    .examples = "  egmstore help\n  egmstore help put\n",
    .rows = rows,
    .row_count = sizeof(rows) / sizeof(rows[0]),
    .args_max = 1,
    .run = run,
};
