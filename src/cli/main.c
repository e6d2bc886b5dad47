/* SPDX-License-Identifier: Apache-2.0 */
/*
 * egmstore: one program for master, provider and operator.
 *
 * Called as mooncake_master or mooncake_client (a link), it is that command at once; otherwise the
 * first argument names the command. The command's options are parsed here, from its table:
 * environment first, then the command line, which wins.
 */
#include "base/assert.h"
#include "base/log.h"

#include "cli/cli.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *lookup_env(void *ctx, const char *name)
{
    (void)ctx;
    return getenv(name);
}

static int check_args(const struct egm_cli *cli)
{
    size_t count = cli->options.arg_count;

    if (count < cli->command->args_min) {
        return egm_cli_misuse(cli, "an argument is missing, usage: %s %s", cli->program,
                              cli->command->usage);
    }
    if (count > cli->command->args_max) {
        return egm_cli_misuse(cli, "unexpected argument '%.64s'",
                              cli->options.args[cli->command->args_max]);
    }
    return EGM_EXIT_OK;
}

static int parse(struct egm_cli *cli, int argc, char **argv)
{
    struct egm_detail detail = {0};
    struct egm_buf warnings;

    egm_buf_init(&warnings, 65536);
    int r = egm_options_parse_env(&cli->options, lookup_env, NULL, &warnings);
    if (warnings.len > 0) {
        fprintf(stderr, "%s: %s", cli->program, egm_buf_str(&warnings));
    }
    egm_buf_release(&warnings);
    if (r == 0) {
        r = egm_options_parse_args(&cli->options, argc, argv, &detail);
    }
    if (r < 0) {
        fprintf(stderr, "%s: %s\n", cli->program, detail.text[0] ? detail.text : egm_strerror(r));
        return EGM_EXIT_USAGE;
    }
    return EGM_EXIT_OK;
}

static int print_help(const struct egm_cli *cli)
{
    struct egm_buf out;

    egm_buf_init(&out, 1 << 20);
    egm_cli_write_help(cli->command, &cli->options, &out);
    int code = egm_cli_print(cli, &out);
    egm_buf_release(&out);
    return code;
}

/* argv[0] is the command's own name. */
static int run_command(const struct egm_command *command, bool is_alias, int argc, char **argv)
{
    struct egm_cli cli = {.command = command, .program = egm_cli_program(command, is_alias)};

    if (egm_options_init(&cli.options, cli.program, command->rows, command->row_count) < 0) {
        return egm_cli_fail(&cli, "out of memory");
    }
    int code = parse(&cli, argc, argv);
    if (code == EGM_EXIT_OK) {
        if (cli.options.is_help_wanted) {
            code = print_help(&cli);
        } else {
            code = check_args(&cli);
            if (code == EGM_EXIT_OK) {
                code = command->run(&cli);
            }
        }
    }
    egm_options_release(&cli.options);
    return code;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int main(int argc, char **argv)
{
    const char *name = base_name(argc > 0 ? argv[0] : "egmstore");

    /* a reader that went away is an error of the write, not the end of a daemon */
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < egm_command_count; i++) {
        /* the Python console scripts pass the command as well, and keep their own name */
        if (egm_commands[i]->alias && strcmp(name, egm_commands[i]->alias) == 0) {
            bool is_named = argc > 1 && strcmp(argv[1], egm_commands[i]->name) == 0;
            return run_command(egm_commands[i], /*is_alias=*/true, argc - is_named,
                               argv + is_named);
        }
    }
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        int code = run_command(&egm_command_help, /*is_alias=*/false, 1, argv);
        return argc < 2 && code == EGM_EXIT_OK ? EGM_EXIT_USAGE : code;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-version") == 0) {
        printf("egmstore %s\n", EGM_VERSION);
        return EGM_EXIT_OK;
    }
    for (size_t i = 0; i < egm_command_count; i++) {
        if (strcmp(argv[1], egm_commands[i]->name) == 0) {
            return run_command(egm_commands[i], /*is_alias=*/false, argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "egmstore: unknown command '%.64s' (try 'egmstore help')\n", argv[1]);
    return EGM_EXIT_USAGE;
}
