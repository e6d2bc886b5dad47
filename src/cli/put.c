/* SPDX-License-Identifier: Apache-2.0 */
/* egmstore put: stores a file, or standard input, under a key. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"

#include "cli/cli.h"
#include "egmstore/store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct egm_option rows[] = {
    EGM_ROW_MASTER,
    EGM_ROW_CLUSTER,
    EGM_ROW_TENANT,
    EGM_ROW_TIMEOUT,
    {.name = "replicas",
     .placeholder = "count",
     .type = EGM_OPTION_U64,
     .default_text = "1",
     .min = 1,
     .max = 8,
     .help = "copies, each at another provider",
     .group = "Object"},
    {.name = "upsert",
     .type = EGM_OPTION_BOOL,
     .help = "replace a value that is there; without it, that one stays",
     .group = "Object"},
    {.name = "hard-pin", .type = EGM_OPTION_BOOL, .help = "never evict it", .group = "Object"},
    {.name = "soft-pin", .type = EGM_OPTION_BOOL, .help = "evict it last", .group = "Object"},
    {.name = "preferred",
     .placeholder = "name",
     .type = EGM_OPTION_STRING,
     .max = 300,
     .help = "provider to try first",
     .group = "Object"},
    EGM_ROW_LOG_LEVEL_QUIET,
    EGM_ROW_JSON,
};

/* Reads all of a stream. */
static int read_all(const struct egm_cli *cli, const char *path, struct egm_buf *out)
{
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "rbe");
    int code = EGM_EXIT_OK;

    if (!file) {
        return egm_cli_fail(cli, "cannot open '%s': %s", path, strerror(errno));
    }
    while (code == EGM_EXIT_OK) {
        size_t room = egm_max_u64(1 << 20, out->len);
        uint8_t *at = egm_buf_extend(out, room);
        if (!at) {
            code = egm_cli_fail(cli, "cannot hold '%s' in memory: %s", path,
                                egm_strerror(out->failed));
            break;
        }
        size_t n = fread(at, 1, room, file);
        out->len -= room - n;
        if (n < room) {
            code = ferror(file) ? egm_cli_fail(cli, "cannot read '%s': %s", path, strerror(errno))
                                : EGM_EXIT_OK;
            break;
        }
    }
    if (!is_stdin) {
        fclose(file);
    }
    return code;
}

static int put(const struct egm_cli *cli, struct egm_store *store, const char *key,
               const struct egm_buf *value)
{
    const struct egm_options *o = &cli->options;
    const char *preferred = egm_options_text(o, "preferred");
    struct iovec segment = {value->data, value->len};
    struct egm_item item = {.key = {key, strlen(key)}, .segments = &segment, .segment_count = 1};
    struct egm_put_options options = {
        .replica_count = (uint32_t)egm_options_u64(o, "replicas"),
        .upsert = egm_options_bool(o, "upsert"),
        .hard_pin = egm_options_bool(o, "hard-pin"),
        .soft_pin = egm_options_bool(o, "soft-pin") ? EGM_SOFT_PIN_ENABLE : EGM_SOFT_PIN_PRESERVE,
        .preferred_names = &preferred,
        .preferred_count = preferred ? 1 : 0,
        .any_memory = true};
    int64_t result = 0;
    struct egm_detail detail = {0};

    int r = egm_put(store, &options, 1, &item, &result, &detail);
    if (r < 0 || result < 0) {
        return egm_cli_fail(cli, "cannot put '%.200s': %s", key,
                            detail.text[0] ? detail.text : egm_strerror((int)(r < 0 ? r : result)));
    }
    struct egm_buf out;
    egm_buf_init(&out, 65536);
    if (egm_options_bool(o, "json")) {
        egm_buf_printf(&out, "{\"key\":");
        egm_cli_json_text(&out, key);
        egm_buf_printf(&out, ",\"size\":%zu}\n", value->len);
    }
    int code = egm_cli_print(cli, &out);
    egm_buf_release(&out);
    return code;
}

static int run(struct egm_cli *cli)
{
    struct egm_buf value;
    struct egm_store *store;

    egm_cli_apply_common(cli);
    egm_buf_init(&value, SIZE_MAX / 4);
    int code = read_all(cli, cli->options.args[1], &value);
    if (code == EGM_EXIT_OK && value.len == 0) {
        code =
            egm_cli_fail(cli, "'%s' is empty: a value has at least one byte", cli->options.args[1]);
    }
    if (code == EGM_EXIT_OK) {
        code = egm_cli_open_store(cli, &store);
        if (code == EGM_EXIT_OK) {
            code = put(cli, store, cli->options.args[0], &value);
            egm_store_close(store);
        }
    }
    egm_buf_release(&value);
    return code;
}

const struct egm_command egm_command_put = {
    .name = "put",
    .summary = "store a file under a key",
    .usage = "KEY FILE|-",
    .examples =
        "  egmstore put greeting hello.txt\n"
        "  tar c model | egmstore put --upsert model -\n"
        "  egmstore put --master 10.0.0.1:50051 --replicas 2 --hard-pin config config.json\n",
    .rows = rows,
    .row_count = sizeof(rows) / sizeof(rows[0]),
    .args_min = 2,
    .args_max = 2,
    .run = run,
};
