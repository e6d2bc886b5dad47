/* SPDX-License-Identifier: Apache-2.0 */
/* Config file and leftovers of Mooncake's flags. The file is one JSON object; its keys are flag
 * names, its values strings, numbers or booleans, checked like the flags. YAML, which upstream also
 * reads, is not: it is told so. */
#include "cli/mooncake.h"

#include "base/assert.h"
#include "base/log.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define CONFIG_MAX (1u << 20)

bool egm_mooncake_is_given(const struct egm_cli *cli, const char *name)
{
    return egm_options_source(&cli->options, name) != EGM_SOURCE_DEFAULT;
}

/* A scalar as a flag's text. False: not a scalar. */
static bool text_of(const json_t *value, char *ret_text, size_t size)
{
    int n = -1;

    if (json_is_string(value)) {
        n = snprintf(ret_text, size, "%s", json_string_value(value));
    } else if (json_is_boolean(value)) {
        n = snprintf(ret_text, size, "%s", json_is_true(value) ? "true" : "false");
    } else if (json_is_integer(value)) {
        n = snprintf(ret_text, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    } else if (json_is_real(value)) {
        n = snprintf(ret_text, size, "%.10f", json_real_value(value));
    }
    return n >= 0 && (size_t)n < size;
}

static int apply(struct egm_cli *cli, const char *path, json_t *root)
{
    struct egm_detail detail = {0};
    char text[4096];
    const char *key;
    json_t *value;

    json_object_foreach(root, key, value)
    {
        if (!text_of(value, text, sizeof(text))) {
            return egm_cli_misuse(
                cli, "bad value of '%.64s' in %s: expected a text, number or boolean", key, path);
        }
        if (egm_options_set(&cli->options, key, text, EGM_SOURCE_FILE, &detail) < 0) {
            fprintf(stderr, "%s: %s: %s\n", cli->program, path, detail.text);
            return EGM_EXIT_USAGE;
        }
    }
    return EGM_EXIT_OK;
}

static int read_config(struct egm_cli *cli)
{
    const char *path = egm_options_text(&cli->options, "config-path");
    json_error_t error;

    if (!path || !path[0]) {
        return EGM_EXIT_OK;
    }
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!root) {
        return egm_cli_misuse(
            cli, "cannot read --config-path %s as JSON: %s at line %d (YAML is not read)", path,
            error.text, error.line);
    }
    int code = json_is_object(root)
                   ? apply(cli, path, root)
                   : egm_cli_misuse(cli, "--config-path %s does not hold a JSON object", path);
    json_decref(root);
    return code;
}

static void apply_log_level(const struct egm_cli *cli)
{
    uint64_t v = egm_options_u64(&cli->options, "v");
    uint64_t least = egm_options_u64(&cli->options, "minloglevel");

    if (v > 0) {
        egm_log_set_level(v > 1 ? EGM_LOG_TRACE : EGM_LOG_DEBUG);
    } else if (least > 0) {
        egm_log_set_level(least > 1 ? EGM_LOG_ERROR : EGM_LOG_WARN);
    }
}

static void name_ignored(const struct egm_cli *cli)
{
    struct egm_buf line;

    egm_buf_init(&line, 4096);
    for (size_t i = 0; i < cli->command->row_count; i++) {
        const struct egm_option *row = &cli->command->rows[i];
        if (row->group && strcmp(row->group, EGM_MOONCAKE_IGNORED) == 0 &&
            egm_mooncake_is_given(cli, row->name)) {
            egm_buf_printf(&line, " %s", row->name);
        }
    }
    if (line.len > 0) {
        egm_warn("flags accepted without effect:%s", egm_buf_str(&line));
    }
    egm_buf_release(&line);
}

bool egm_mooncake_begin(struct egm_cli *cli, int *ret_code)
{
    if (egm_options_bool(&cli->options, "version")) {
        printf("%s: egmstore %s\n", cli->program, EGM_VERSION);
        *ret_code = EGM_EXIT_OK;
        return false;
    }
    *ret_code = read_config(cli);
    if (*ret_code != EGM_EXIT_OK) {
        return false;
    }
    apply_log_level(cli);
    name_ignored(cli);
    return true;
}
