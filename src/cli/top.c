/* SPDX-License-Identifier: Apache-2.0 */
/* egmstore top: stat again and again, with rates. On a terminal it redraws one screen; elsewhere it
 * prints a line a time. */
#include "base/assert.h"

#include "cli/cli.h"
#include "cli/operator.h"
#include "cli/stat_view.h"
#include "os/clock.h"

#include <stdio.h>
#include <unistd.h>

static const struct egm_option rows[] = {
    EGM_ROW_MASTER,
    EGM_ROW_CLUSTER,
    {.name = "interval",
     .placeholder = "duration",
     .type = EGM_OPTION_DURATION_MS,
     .default_text = "1s",
     .min = 100,
     .max = 3600000,
     .unit = "ms",
     .help = "time between two looks",
     .group = "Output"},
    {.name = "count",
     .placeholder = "number",
     .type = EGM_OPTION_U64,
     .default_text = "0",
     .help = "looks before it ends; 0: until interrupted",
     .group = "Output"},
    EGM_ROW_JSON,
};

/* Change of a counter per second. */
static double rate(const json_t *now, const json_t *before, const char *name, double seconds)
{
    double change = before ? egm_stat_number(now, name) - egm_stat_number(before, name) : 0;
    return seconds > 0 && change > 0 ? change / seconds : 0;
}

static void view(const struct egm_cli *cli, struct egm_buf *out, const json_t *root,
                 const json_t *before, double seconds)
{
    double gets =
        rate(root, before, "get_hits", seconds) + rate(root, before, "get_misses", seconds);
    double puts = rate(root, before, "puts", seconds);
    double evictions = rate(root, before, "evicted_objects", seconds);

    if (egm_options_bool(&cli->options, "json")) {
        char *text = json_dumps(root, JSON_COMPACT);
        egm_buf_printf(out, "%s\n", text ? text : "null");
        free(text);
        return;
    }
    if (isatty(STDOUT_FILENO)) {
        egm_buf_printf(out, "\033[H\033[2J");
        egm_stat_view_totals(out, root);
        egm_buf_printf(out, "rates     %.0f gets/s, %.0f puts/s, %.0f evictions/s\n", gets, puts,
                       evictions);
        egm_stat_view_tables(out, root, /*has_sessions=*/false);
        return;
    }
    char used[32];
    char capacity[32];
    egm_stat_view_bytes(used, sizeof(used), egm_stat_number(root, "used_bytes"));
    egm_stat_view_bytes(capacity, sizeof(capacity), egm_stat_number(root, "capacity_bytes"));
    egm_buf_printf(out,
                   "objects %.0f used %s of %s gets/s %.0f puts/s %.0f evictions/s %.0f sessions "
                   "%zu segments %zu\n",
                   egm_stat_number(root, "objects"), used, capacity, gets, puts, evictions,
                   json_array_size(json_object_get(root, "sessions")),
                   json_array_size(json_object_get(root, "mounts")));
}

static int look(const struct egm_cli *cli, int fd, json_t **before, uint64_t *last_ns)
{
    struct egm_detail detail = {0};
    struct egm_buf out;
    json_t *root;

    if (egm_operator_stat(fd, 5000, &root, &detail) < 0) {
        return egm_cli_fail(cli, "%s", detail.text);
    }
    uint64_t now_ns = egm_clock_ns();
    egm_buf_init(&out, 64 << 20);
    view(cli, &out, root, *before, (double)(now_ns - *last_ns) / EGM_NS_PER_S);
    int code = egm_cli_print(cli, &out);
    egm_buf_release(&out);
    json_decref(*before);
    *before = root;
    *last_ns = now_ns;
    return code;
}

static int run(struct egm_cli *cli)
{
    const struct egm_options *o = &cli->options;
    uint64_t count = egm_options_u64(o, "count");
    struct egm_detail detail = {0};
    json_t *before = NULL;
    uint64_t last_ns = egm_clock_ns();
    int code = EGM_EXIT_OK;
    int fd;

    if (egm_operator_open(egm_options_text(o, "master"), egm_options_text(o, "cluster"), 5000, &fd,
                          &detail) < 0) {
        return egm_cli_fail(cli, "%s", detail.text);
    }
    for (uint64_t n = 0; code == EGM_EXIT_OK && (count == 0 || n < count); n++) {
        if (n > 0) {
            egm_sleep_ns(egm_options_u64(o, "interval") * EGM_NS_PER_MS);
        }
        code = look(cli, fd, &before, &last_ns);
    }
    json_decref(before);
    close(fd);
    return code;
}

const struct egm_command egm_command_top = {
    .name = "top",
    .summary = "show totals and rates again and again",
    .usage = "",
    .examples = "  egmstore top\n"
                "  egmstore top --interval 5s --count 12 >> totals.log\n",
    .rows = rows,
    .row_count = sizeof(rows) / sizeof(rows[0]),
    .run = run,
};
