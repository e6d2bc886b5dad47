/* SPDX-License-Identifier: Apache-2.0 */
/* egmstore get: writes an object's value to a file or to standard output. The file appears only
 * when all of it was read. */
#include "base/alloc.h"
#include "base/assert.h"

#include "cli/cli.h"
#include "egmstore/store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct egm_option rows[] = {
    EGM_ROW_MASTER,  EGM_ROW_CLUSTER,         EGM_ROW_TENANT,
    EGM_ROW_TIMEOUT, EGM_ROW_LOG_LEVEL_QUIET, EGM_ROW_JSON,
};

static int write_value(const struct egm_cli *cli, const char *path, const void *data, size_t size)
{
    bool is_stdout = strcmp(path, "-") == 0;
    FILE *file = is_stdout ? stdout : fopen(path, "wbe");

    if (!file) {
        return egm_cli_fail(cli, "cannot open '%s': %s", path, strerror(errno));
    }
    bool is_written = fwrite(data, 1, size, file) == size;
    is_written = (is_stdout ? fflush(file) : fclose(file)) == 0 && is_written;
    return is_written ? EGM_EXIT_OK
                      : egm_cli_fail(cli, "cannot write '%s': %s", path, strerror(errno));
}

/* The value in memory from egm_alloc. */
static int load(const struct egm_cli *cli, struct egm_store *store, const char *key,
                void **ret_data, size_t *ret_size)
{
    struct egm_key name = {key, strlen(key)};
    struct egm_object_info info = {0};
    struct egm_detail detail = {0};

    int r = egm_query(store, 1, &name, &info, &detail);
    if (r == 0 && info.status < 0) {
        r = info.status;
    }
    if (r < 0) {
        return egm_cli_fail(cli, "cannot get '%.200s': %s", key,
                            detail.text[0] ? detail.text : egm_strerror(r));
    }
    void *data = egm_alloc(info.size);
    if (!data) {
        return egm_cli_fail(cli, "no memory for the %" PRIu64 " bytes of '%.200s'", info.size, key);
    }
    struct iovec segment = {data, info.size};
    struct egm_item item = {.key = name, .segments = &segment, .segment_count = 1};
    int64_t result = 0;
    r = egm_get(store, /*any_memory=*/true, 1, &item, &result, &detail);
    if (r < 0 || result < 0) {
        egm_free(data);
        return egm_cli_fail(cli, "cannot get '%.200s': %s", key,
                            detail.text[0] ? detail.text : egm_strerror((int)(r < 0 ? r : result)));
    }
    *ret_data = data;
    *ret_size = (size_t)result;
    return EGM_EXIT_OK;
}

static int run(struct egm_cli *cli)
{
    const char *key = cli->options.args[0];
    const char *path = cli->options.arg_count > 1 ? cli->options.args[1] : "-";
    bool is_json = egm_options_bool(&cli->options, "json");
    struct egm_store *store;
    void *data;
    size_t size;

    if (is_json && strcmp(path, "-") == 0) {
        return egm_cli_misuse(cli, "--json needs a FILE: the value itself goes to standard output");
    }
    egm_cli_apply_common(cli);
    int code = egm_cli_open_store(cli, &store);
    if (code != EGM_EXIT_OK) {
        return code;
    }
    code = load(cli, store, key, &data, &size);
    egm_store_close(store);
    if (code != EGM_EXIT_OK) {
        return code;
    }
    code = write_value(cli, path, data, size);
    egm_free(data);
    if (code == EGM_EXIT_OK && is_json) {
        struct egm_buf out;
        egm_buf_init(&out, 65536);
        egm_buf_printf(&out, "{\"key\":");
        egm_cli_json_text(&out, key);
        egm_buf_printf(&out, ",\"size\":%zu}\n", size);
        code = egm_cli_print(cli, &out);
        egm_buf_release(&out);
    }
    return code;
}

const struct egm_command egm_command_get = {
    .name = "get",
    .summary = "write an object's value to a file or standard output",
    .usage = "KEY [FILE|-]",
    .examples = "  egmstore get greeting\n"
                "  egmstore get model - | tar x\n"
                "  egmstore get --json greeting hello.txt\n",
    .rows = rows,
    .row_count = sizeof(rows) / sizeof(rows[0]),
    .args_min = 1,
    .args_max = 2,
    .run = run,
};
