/* SPDX-License-Identifier: Apache-2.0 */
/* egmstore master: keeps the metadata. There is no authentication yet, so it listens on loopback
 * and the Unix socket unless
 * --insecure-bind names another address. */
#include "base/assert.h"

#include "cli/master_process.h"

static const struct egm_option rows[] = {
    {.name = "port",
     .aliases = "rpc-port",
     .placeholder = "port",
     .type = EGM_OPTION_U64,
     .default_text = "50051",
     .max = 65535,
     .help = "TCP port of the protocol; 0 takes a free one",
     .group = "Network"},
    {.name = "insecure-bind",
     .placeholder = "address",
     .type = EGM_OPTION_STRING,
     .min = 1,
     .max = 255,
     .help = "listen there instead of on 127.0.0.1: whoever can connect may read, write and remove "
             "everything",
     .group = "Network"},
    {.name = "unix-socket",
     .type = EGM_OPTION_BOOL,
     .default_text = "true",
     .help = "also listen on master-<port>.sock in the runtime folder, which requesters on this "
             "host prefer",
     .group = "Network"},
    {.name = "metrics-port",
     .placeholder = "port",
     .type = EGM_OPTION_U64,
     .default_text = "9003",
     .max = 65535,
     .help = "HTTP port for /metrics, /health and queries; 0 turns it off",
     .group = "Network"},
    {.name = "metrics-host",
     .placeholder = "address",
     .type = EGM_OPTION_STRING,
     .default_text = "127.0.0.1",
     .min = 1,
     .max = 255,
     .help = "address of the HTTP port; it shows keys and names, and changes nothing",
     .group = "Network"},
    {.name = "max-connections",
     .placeholder = "count",
     .type = EGM_OPTION_U64,
     .max = 262144,
     .help = "connections at a time; not set: what the limit of open files allows",
     .group = "Network"},
    EGM_ROW_CLUSTER,
    {.name = "kv-lease-ttl",
     .aliases = "default-kv-lease-ttl",
     .placeholder = "duration",
     .type = EGM_OPTION_DURATION_MS,
     .default_text = "10s",
     .max = 86400000,
     .unit = "ms",
     .help =
         "how long an object that was read or asked for is kept from eviction and unforced removal",
     .group = "Leases"},
    {.name = "client-ttl",
     .placeholder = "duration",
     .type = EGM_OPTION_DURATION_MS,
     .default_text = "10s",
     .min = 500,
     .max = 3600000,
     .unit = "ms",
     .help = "silence after which a requester or a lost provider is given up",
     .group = "Leases"},
    {.name = "put-timeout",
     .placeholder = "duration",
     .type = EGM_OPTION_DURATION_MS,
     .default_text = "30s",
     .min = 1000,
     .max = 3600000,
     .unit = "ms",
     .help = "time after which an unfinished put is given up",
     .group = "Leases"},
    {.name = "eviction-high-watermark",
     .aliases = "eviction-high-watermark-ratio",
     .placeholder = "ratio",
     .type = EGM_OPTION_DOUBLE,
     .default_text = "0.95",
     .max = 1,
     .help =
         "share of the pool above which objects are evicted; lower it if puts find the pool full",
     .group = "Eviction"},
    {.name = "soft-pin-ttl",
     .placeholder = "duration",
     .type = EGM_OPTION_DURATION_MS,
     .default_text = "30m",
     .max = 86400000,
     .unit = "ms",
     .help = "how long a soft pin without a time of its own holds",
     .group = "Eviction"},
    {.name = "evict-soft-pinned",
     .type = EGM_OPTION_BOOL,
     .default_text = "true",
     .help = "evict soft-pinned objects when nothing else is left",
     .group = "Eviction"},
    {.name = "report-interval",
     .placeholder = "duration",
     .type = EGM_OPTION_DURATION_MS,
     .default_text = "0",
     .max = 86400000,
     .unit = "ms",
     .help = "log a line of totals every so often; 0: never",
     .group = "Logging"},
    EGM_ROW_LOG_LEVEL,
};

static int run(struct egm_cli *cli)
{
    const struct egm_options *o = &cli->options;
    bool is_bound = egm_options_is_set(o, "insecure-bind");
    uint64_t metrics_port = egm_options_u64(o, "metrics-port");
    char rpc[EGM_ADDRESS_TEXT];
    char http[EGM_ADDRESS_TEXT];

    egm_cli_apply_common(cli);
    int code = egm_master_process_address(
        cli, "insecure-bind",
        (struct egm_listen_at){is_bound ? egm_options_text(o, "insecure-bind") : "127.0.0.1",
                               egm_options_u64(o, "port")},
        rpc, sizeof(rpc));
    if (code == EGM_EXIT_OK) {
        code = egm_master_process_address(
            cli, "metrics-host",
            (struct egm_listen_at){egm_options_text(o, "metrics-host"), metrics_port}, http,
            sizeof(http));
    }
    if (code != EGM_EXIT_OK) {
        return code;
    }
    struct egm_master_daemon_options options = {
        .rpc_address = rpc,
        .http_address = metrics_port ? http : NULL,
        .is_unix_off = !egm_options_bool(o, "unix-socket"),
        .takes_signals = true,
        .max_connections = (uint32_t)egm_options_u64(o, "max-connections"),
        .report_ms = (uint32_t)egm_options_u64(o, "report-interval"),
        .core = egm_master_defaults()};
    options.core.cluster = egm_options_text(o, "cluster");
    options.core.hold_ms = egm_options_u64(o, "kv-lease-ttl");
    options.core.session_ttl_ms = egm_options_u64(o, "client-ttl");
    options.core.put_timeout_ms = egm_options_u64(o, "put-timeout");
    options.core.soft_pin_ttl_ms = egm_options_u64(o, "soft-pin-ttl");
    options.core.high_watermark = egm_options_double(o, "eviction-high-watermark");
    options.core.evict_soft_pinned = egm_options_bool(o, "evict-soft-pinned");
    return egm_master_process_run(cli, &options);
}

const struct egm_command egm_command_master = {
    .name = "master",
    .summary = "run the master, which keeps the metadata",
    .usage = "",
    .about = "Listens on loopback and on a Unix socket. SIGTERM or SIGINT ends it in order, a "
             "second one at once.",
    .examples =
        "  egmstore master\n"
        "  egmstore master --port 50051 --metrics-port 9003 --kv-lease-ttl 10s --client-ttl 10s\n"
        "  egmstore master --insecure-bind 10.0.0.1 --cluster blue --eviction-high-watermark 0.9\n"
        "  curl -s http://127.0.0.1:9003/metrics\n",
    .rows = rows,
    .row_count = sizeof(rows) / sizeof(rows[0]),
    .run = run,
};
