/* SPDX-License-Identifier: Apache-2.0 */
/* egmstore remove: removes keys, all that match a pattern, or all. */
#include "base/alloc.h"
#include "base/assert.h"

#include "cli/cli.h"
#include "egmstore/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct egm_option rows[] = {
    EGM_ROW_MASTER,
    EGM_ROW_CLUSTER,
    EGM_ROW_TENANT,
    EGM_ROW_TIMEOUT,
    {.name = "force",
     .type = EGM_OPTION_BOOL,
     .help = "also objects that were read or asked for within the hold time",
     .group = "Objects"},
    {.name = "matching",
     .placeholder = "regex",
     .type = EGM_OPTION_STRING,
     .min = 1,
     .max = 4096,
     .help = "remove the keys in which this PCRE2 pattern is found, instead of KEYs",
     .group = "Objects"},
    {.name = "all",
     .type = EGM_OPTION_BOOL,
     .help = "remove everything of the tenant, instead of KEYs",
     .group = "Objects"},
    EGM_ROW_LOG_LEVEL_QUIET,
    EGM_ROW_JSON,
};

static int print_count(const struct egm_cli *cli, uint64_t count)
{
    struct egm_buf out;

    egm_buf_init(&out, 256);
    egm_buf_printf(&out,
                   egm_options_bool(&cli->options, "json") ? "{\"removed\":%" PRIu64 "}\n"
                                                           : "removed %" PRIu64 "\n",
                   count);
    int code = egm_cli_print(cli, &out);
    egm_buf_release(&out);
    return code;
}

static int remove_keys(const struct egm_cli *cli, struct egm_store *store, bool force)
{
    size_t count = cli->options.arg_count;
    struct egm_key *keys = egm_calloc(count, sizeof(*keys));
    int *results = egm_calloc(count, sizeof(*results));
    struct egm_detail detail = {0};
    uint64_t removed = 0;
    int code = EGM_EXIT_OK;

    if (!keys || !results) {
        code = egm_cli_fail(cli, "out of memory");
        count = 0;
    }
    for (size_t i = 0; i < count; i++) {
        keys[i] = (struct egm_key){cli->options.args[i], strlen(cli->options.args[i])};
    }
    int r = count > 0 ? egm_remove(store, force, count, keys, results, &detail) : 0;
    if (r < 0) {
        code = egm_cli_fail(cli, "%s", detail.text[0] ? detail.text : egm_strerror(r));
        count = 0;
    }
    for (size_t i = 0; i < count; i++) {
        removed += results[i] == 0;
        if (results[i] < 0) {
            code = egm_cli_fail(
                cli, "cannot remove '%.200s': %s%s", cli->options.args[i], egm_strerror(results[i]),
                results[i] == EGM_E_LEASED ? " (--force removes it all the same)" : "");
        }
    }
    if (count > 0) {
        int printed = print_count(cli, removed);
        code = code == EGM_EXIT_OK ? printed : code;
    }
    egm_free(keys);
    egm_free(results);
    return code;
}

static int remove_many(const struct egm_cli *cli, struct egm_store *store, const char *pattern,
                       bool force)
{
    struct egm_detail detail = {0};
    uint64_t removed = 0;

    int r = pattern ? egm_remove_matching(store, pattern, force, &removed, &detail)
                    : egm_remove_all(store, force, &removed, &detail);
    if (r < 0) {
        return egm_cli_fail(cli, "%s", detail.text[0] ? detail.text : egm_strerror(r));
    }
    return print_count(cli, removed);
}

static int run(struct egm_cli *cli)
{
    const char *pattern = egm_options_text(&cli->options, "matching");
    bool is_all = egm_options_bool(&cli->options, "all");
    bool force = egm_options_bool(&cli->options, "force");
    struct egm_store *store;

    if ((pattern != NULL) + is_all + (cli->options.arg_count > 0) != 1) {
        return egm_cli_misuse(cli, "give KEYs, --matching or --all");
    }
    egm_cli_apply_common(cli);
    int code = egm_cli_open_store(cli, &store);
    if (code != EGM_EXIT_OK) {
        return code;
    }
    code = pattern || is_all ? remove_many(cli, store, pattern, force)
                             : remove_keys(cli, store, force);
    egm_store_close(store);
    return code;
}

const struct egm_command egm_command_remove = {
    .name = "remove",
    .summary = "remove keys",
    .usage = "KEY... | --matching REGEX | --all",
    .examples = "  egmstore remove greeting\n"
                "  egmstore remove --matching '^model-7b@' --force\n"
                "  egmstore remove --all\n",
    .rows = rows,
    .row_count = sizeof(rows) / sizeof(rows[0]),
    .args_max = SIZE_MAX,
    .run = run,
};
