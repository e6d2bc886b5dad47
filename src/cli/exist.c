/* SPDX-License-Identifier: Apache-2.0 */
/* egmstore exist: says for each key whether a get would find it. */
#include "base/alloc.h"
#include "base/assert.h"

#include "cli/cli.h"
#include "egmstore/store.h"

#include <string.h>

static const struct egm_option rows[] = {
    EGM_ROW_MASTER,  EGM_ROW_CLUSTER,         EGM_ROW_TENANT,
    EGM_ROW_TIMEOUT, EGM_ROW_LOG_LEVEL_QUIET, EGM_ROW_JSON,
};

static int print_results(const struct egm_cli *cli, const int *results)
{
    bool is_json = egm_options_bool(&cli->options, "json");
    size_t count = cli->options.arg_count;
    int code = EGM_EXIT_OK;
    struct egm_buf out;

    egm_buf_init(&out, 64 << 20);
    egm_buf_printf(&out, is_json ? "{" : "");
    for (size_t i = 0; i < count; i++) {
        const char *word = results[i] == 1   ? "present"
                           : results[i] == 0 ? "absent"
                                             : egm_error_name(results[i]);
        code = results[i] == 1 ? code : EGM_EXIT_FAILED;
        if (is_json) {
            egm_buf_printf(&out, "%s", i > 0 ? "," : "");
            egm_cli_json_text(&out, cli->options.args[i]);
            egm_buf_printf(&out, ":\"%s\"", word);
        } else {
            egm_buf_printf(&out, "%s %s\n", word, cli->options.args[i]);
        }
    }
    egm_buf_printf(&out, is_json ? "}\n" : "");
    int printed = egm_cli_print(cli, &out);
    egm_buf_release(&out);
    return printed != EGM_EXIT_OK ? printed : code;
}

static int ask(const struct egm_cli *cli, struct egm_store *store)
{
    size_t count = cli->options.arg_count;
    struct egm_key *keys = egm_calloc(count, sizeof(*keys));
    int *results = egm_calloc(count, sizeof(*results));
    struct egm_detail detail = {0};
    int code;

    if (!keys || !results) {
        code = egm_cli_fail(cli, "out of memory");
    } else {
        for (size_t i = 0; i < count; i++) {
            keys[i] = (struct egm_key){cli->options.args[i], strlen(cli->options.args[i])};
        }
        int r = egm_exist(store, count, keys, results, &detail);
        code = r < 0 ? egm_cli_fail(cli, "%s", detail.text[0] ? detail.text : egm_strerror(r))
                     : print_results(cli, results);
    }
    egm_free(keys);
    egm_free(results);
    return code;
}

static int run(struct egm_cli *cli)
{
    struct egm_store *store;

    egm_cli_apply_common(cli);
    int code = egm_cli_open_store(cli, &store);
    if (code == EGM_EXIT_OK) {
        code = ask(cli, store);
        egm_store_close(store);
    }
    return code;
}

const struct egm_command egm_command_exist = {
    .name = "exist",
    .summary = "say whether keys are there; exit code 1 if one is not",
    .usage = "KEY...",
    .examples = "  egmstore exist greeting\n"
                "  egmstore exist --json a b c\n",
    .rows = rows,
    .row_count = sizeof(rows) / sizeof(rows[0]),
    .args_min = 1,
    .args_max = SIZE_MAX,
    .run = run,
};
