/* SPDX-License-Identifier: Apache-2.0 */
/* What commands share: messages, help texts, opening a store. */
#include "cli/cli.h"

#include "base/assert.h"
#include "base/log.h"

#include "egmstore/store.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int egm_cli_fail(const struct egm_cli *cli, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    egm_ignore(vsnprintf(text, sizeof(text), fmt, ap), "cut is fine");
    va_end(ap);
    fprintf(stderr, "%s: %s\n", cli->program, text);
    return EGM_EXIT_FAILED;
}

int egm_cli_misuse(const struct egm_cli *cli, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    egm_ignore(vsnprintf(text, sizeof(text), fmt, ap), "cut is fine");
    va_end(ap);
    fprintf(stderr, "%s: %s (try '%s --help')\n", cli->program, text, cli->program);
    return EGM_EXIT_USAGE;
}

const char *egm_cli_program(const struct egm_command *command, bool is_alias)
{
    /* one per process: a process runs one command */
    static char text[64];

    if (is_alias && command->alias) {
        return command->alias;
    }
    egm_ignore(snprintf(text, sizeof(text), "egmstore %s", command->name), "names are short");
    return text;
}

void egm_cli_write_help(const struct egm_command *command, const struct egm_options *options,
                        struct egm_buf *out)
{
    struct egm_buf usage;

    egm_buf_init(&usage, 4096);
    egm_buf_printf(&usage, "%s%s%s%s%s", options->program,
                   command->row_count > 0 ? " [option...]" : "", command->usage[0] ? " " : "",
                   command->usage, command->about ? "\n\n" : "");
    if (command->about) {
        egm_buf_printf(&usage, "%s", command->about);
    }
    egm_ignore(egm_options_help(options, egm_buf_str(&usage), command->examples, out),
               "the caller looks at out->failed");
    egm_buf_release(&usage);
}

int egm_cli_print(const struct egm_cli *cli, const struct egm_buf *text)
{
    if (text->failed) {
        return egm_cli_fail(cli, "cannot write the output: %s", egm_strerror(text->failed));
    }
    if (text->len > 0 && fwrite(text->data, 1, text->len, stdout) != text->len) {
        return egm_cli_fail(cli, "cannot write to standard output: %s", strerror(errno));
    }
    if (fflush(stdout) != 0) {
        return egm_cli_fail(cli, "cannot write to standard output: %s", strerror(errno));
    }
    return EGM_EXIT_OK;
}

void egm_cli_json_text(struct egm_buf *out, const char *text)
{
    egm_buf_append(out, "\"", 1);
    for (const char *at = text ? text : ""; *at; at++) {
        unsigned char b = (unsigned char)*at;
        if (b < 0x20 || b == '"' || b == '\\' || b == 0x7f) {
            egm_buf_printf(out, "\\u%04x", b);
        } else {
            egm_buf_append(out, at, 1);
        }
    }
    egm_buf_append(out, "\"", 1);
}

static bool has_row(const struct egm_cli *cli, const char *name)
{
    for (size_t i = 0; i < cli->command->row_count; i++) {
        if (strcmp(cli->command->rows[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

void egm_cli_apply_common(const struct egm_cli *cli)
{
    enum egm_log_level level;

    if (has_row(cli, "log-level") &&
        egm_log_level_parse(egm_options_text(&cli->options, "log-level"), &level) == 0) {
        egm_log_set_level(level);
    }
    if (has_row(cli, "cluster")) {
        egm_ignore(setenv("EGMSTORE_CLUSTER", egm_options_text(&cli->options, "cluster"), 1),
                   "only ENOMEM is possible");
    }
}

int egm_cli_open_store(const struct egm_cli *cli, struct egm_store **ret_store)
{
    struct egm_store_options options = {
        .master = egm_options_text(&cli->options, "master"),
        .tenant = egm_options_text(&cli->options, "tenant"),
        .deadline_ms = (uint32_t)egm_options_u64(&cli->options, "timeout"),
    };
    struct egm_detail detail = {0};

    if (egm_store_open(&options, ret_store, &detail) < 0) {
        return egm_cli_fail(cli, "%s", detail.text);
    }
    return EGM_EXIT_OK;
}
