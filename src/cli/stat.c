/* SPDX-License-Identifier: Apache-2.0 */
/* egmstore stat: the master's totals, segments and sessions, once. */
#include "base/assert.h"

#include "cli/cli.h"
#include "cli/operator.h"
#include "cli/stat_view.h"

#include <unistd.h>

static const struct egm_option rows[] = {
    EGM_ROW_MASTER,
    EGM_ROW_CLUSTER,
    {.name = "timeout",
     .placeholder = "duration",
     .type = EGM_OPTION_DURATION_MS,
     .default_text = "5s",
     .min = 100,
     .max = 3600000,
     .unit = "ms",
     .help = "how long to wait for the master",
     .group = "Connection"},
    EGM_ROW_JSON,
};

static int run(struct egm_cli *cli)
{
    const struct egm_options *o = &cli->options;
    uint32_t timeout_ms = (uint32_t)egm_options_u64(o, "timeout");
    struct egm_detail detail = {0};
    json_t *root;
    int fd;

    if (egm_operator_open(egm_options_text(o, "master"), egm_options_text(o, "cluster"), timeout_ms,
                          &fd, &detail) < 0) {
        return egm_cli_fail(cli, "%s", detail.text);
    }
    int r = egm_operator_stat(fd, timeout_ms, &root, &detail);
    close(fd);
    if (r < 0) {
        return egm_cli_fail(cli, "%s", detail.text);
    }
    struct egm_buf out;
    egm_buf_init(&out, 256 << 20);
    if (egm_options_bool(o, "json")) {
        char *text = json_dumps(root, JSON_INDENT(2));
        egm_buf_printf(&out, "%s\n", text ? text : "null");
        free(text);
    } else {
        egm_stat_view_totals(&out, root);
        egm_stat_view_tables(&out, root, /*has_sessions=*/true);
    }
    json_decref(root);
    int code = egm_cli_print(cli, &out);
    egm_buf_release(&out);
    return code;
}

const struct egm_command egm_command_stat = {
    .name = "stat",
    .summary = "show the master's totals, segments and sessions",
    .usage = "",
    .about = "States of a segment: joining, ready, draining, recovering, disconnected.",
    .examples = "  egmstore stat\n"
                "  egmstore stat --master unix:/run/egmstore/master-50051.sock --json\n",
    .rows = rows,
    .row_count = sizeof(rows) / sizeof(rows[0]),
    .run = run,
};
