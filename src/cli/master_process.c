/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/master_process.h"

#include "base/assert.h"

#include <stdio.h>
#include <string.h>

/* Writes "host:port" for the listener. 0, or EGM_EXIT_USAGE after a message that names the option.
 */
static int write_address(const struct egm_cli *cli, const struct egm_listen_at *at, char *ret_text,
                         size_t size)
{
    struct egm_address address;

    if (egm_parse_address(at->host, &address) < 0 || address.has_port) {
        return egm_cli_misuse(cli,
                              "bad value '%.64s' for --%s: expected an address without port, such "
                              "as 127.0.0.1 or ::1",
                              at->host, at->option);
    }
    /* a v6 address needs its brackets, and "any port" can only be written as :0 */
    bool is_v6 = strchr(address.host, ':') != NULL;
    int n = snprintf(ret_text, size, "%s%s%s:%u", is_v6 ? "[" : "", address.host, is_v6 ? "]" : "",
                     (unsigned)at->port);
    EGM_ASSERT(n > 0 && (size_t)n < size);
    return EGM_EXIT_OK;
}

/* A time in ms, whichever of the two spellings its row has. */
static uint64_t read_ms(const struct egm_options *o, const char *name)
{
    uint64_t value = egm_options_u64(o, name);

    for (size_t i = 0; i < o->row_count; i++) {
        if (strcmp(o->rows[i].name, name) == 0 && strcmp(o->rows[i].unit, "s") == 0) {
            return value * 1000;
        }
    }
    return value;
}

static struct egm_master_options read_core(const struct egm_options *o,
                                           const struct egm_master_names *names)
{
    struct egm_master_options core = egm_master_defaults();

    core.hold_ms = read_ms(o, names->hold);
    core.session_ttl_ms = read_ms(o, names->session);
    core.put_timeout_ms = read_ms(o, names->put_timeout);
    core.soft_pin_ttl_ms = read_ms(o, names->soft_pin);
    core.high_watermark = egm_options_double(o, names->watermark);
    core.evict_soft_pinned = egm_options_bool(o, names->evict_soft_pinned);
    return core;
}

static int serve(const struct egm_cli *cli, const struct egm_master_daemon_options *options)
{
    struct egm_master_daemon *master;
    struct egm_detail detail = {0};

    if (egm_master_daemon_create(options, &master, &detail) < 0) {
        return egm_cli_fail(cli, "%s", detail.text);
    }
    int r = egm_master_daemon_run(master, &detail);
    egm_master_daemon_destroy(master);
    return r < 0 ? egm_cli_fail(cli, "%s", detail.text) : EGM_EXIT_OK;
}

int egm_master_process_run(const struct egm_cli *cli, const struct egm_master_process *process)
{
    char rpc[EGM_ADDRESS_TEXT];
    char http[EGM_ADDRESS_TEXT];
    int code = write_address(cli, &process->rpc, rpc, sizeof(rpc));

    if (code == EGM_EXIT_OK) {
        code = write_address(cli, &process->http, http, sizeof(http));
    }
    if (code != EGM_EXIT_OK) {
        return code;
    }
    struct egm_master_daemon_options options = {
        .rpc_address = rpc,
        .http_address = process->http.port ? http : NULL,
        .is_unix_off = process->is_unix_off,
        .takes_signals = true,
        .max_connections = process->max_connections,
        .report_ms = (uint32_t)process->report_ms,
        .core = read_core(&cli->options, &process->names),
    };
    if (process->cluster) {
        options.core.cluster = process->cluster;
    }
    return serve(cli, &options);
}
