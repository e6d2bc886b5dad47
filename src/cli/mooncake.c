/* SPDX-License-Identifier: Apache-2.0 */
/* Config file and leftovers of Mooncake's flags. */
#include "cli/mooncake.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log.h"

#include "cli/mooncake_config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define CONFIG_MAX (1u << 20)

bool egm_mooncake_is_given(const struct egm_cli *cli, const char *name)
{
    return egm_options_source(&cli->options, name) != EGM_SOURCE_DEFAULT;
}

/* The whole file, at most CONFIG_MAX bytes. 0, -errno, or EGM_E_LIMIT. */
static int read_file(const char *path, char **ret_text, size_t *ret_size)
{
    FILE *file = fopen(path, "re");
    char *text = file ? egm_alloc(CONFIG_MAX + 1) : NULL;
    int r = !file ? -errno : !text ? -ENOMEM : 0;

    if (r == 0) {
        *ret_size = fread(text, 1, CONFIG_MAX + 1, file);
        r = ferror(file) ? -EIO : *ret_size > CONFIG_MAX ? EGM_E_LIMIT : 0;
    }
    if (file) {
        fclose(file);
    }
    if (r < 0) {
        egm_free(text);
        return r;
    }
    *ret_text = text;
    return 0;
}

static int read_config(struct egm_cli *cli)
{
    const char *path = egm_options_text(&cli->options, "config-path");
    struct egm_detail detail = {0};
    char *text;
    size_t size = 0;

    if (!path || !path[0]) {
        return EGM_EXIT_OK;
    }
    int r = read_file(path, &text, &size);
    if (r < 0) {
        return egm_cli_misuse(cli, "cannot read --config-path %s: %s (at most %u bytes)", path,
                              egm_strerror(r), CONFIG_MAX);
    }
    r = egm_mooncake_config_apply(&cli->options, text, size, &detail);
    egm_free(text);
    if (r < 0) {
        fprintf(stderr, "%s: %s: %s\n", cli->program, path, detail.text); /* has its own hint */
        return EGM_EXIT_USAGE;
    }
    return EGM_EXIT_OK;
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
