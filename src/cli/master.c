/* SPDX-License-Identifier: Apache-2.0 */
/* egmstore master: keeps the metadata. There is no authentication yet, so it listens on loopback
 * and the Unix socket unless
 * --insecure-bind names another address. */
#include "cli/master_process.h"

static const struct egm_option rows[] = {
    EGM_MASTER_PORT("port", "rpc-port", "50051", "TCP port of the protocol; 0 takes a free one"),
    EGM_MASTER_HOST("insecure-bind", NULL,
                    "listen there instead of on 127.0.0.1: whoever can connect may read, write and "
                    "remove everything"),
    {.name = "unix-socket",
     .type = EGM_OPTION_BOOL,
     .default_text = "true",
     .help = "also listen on master-<port>.sock in the runtime folder, which requesters on this "
             "host prefer",
     .group = "Network"},
    EGM_MASTER_ROW_METRICS_PORT,
    EGM_MASTER_HOST("metrics-host", "127.0.0.1",
                    "address of the HTTP port; it shows keys and names, and changes nothing"),
    {.name = "max-connections",
     .placeholder = "count",
     .type = EGM_OPTION_U64,
     .max = 262144,
     .help = "connections at a time; not set: what the limit of open files allows",
     .group = "Network"},
    EGM_ROW_CLUSTER,
    EGM_MASTER_ROW_HOLD("kv-lease-ttl", "default-kv-lease-ttl", "10s"),
    EGM_MASTER_ROW_SESSION_MS("client-ttl", "10s"),
    EGM_MASTER_ROW_PUT_MS("put-timeout", "30s"),
    EGM_MASTER_ROW_WATERMARK("eviction-high-watermark", "eviction-high-watermark-ratio"),
    EGM_MASTER_ROW_SOFT_PIN("soft-pin-ttl", "30m"),
    EGM_MASTER_ROW_EVICT_SOFT_PINNED("evict-soft-pinned"),
    EGM_MASTER_MS("report-interval", NULL, "0", 0, 86400000,
                  "log a line of totals every so often; 0: never", "Logging"),
    EGM_ROW_LOG_LEVEL,
};

static int run(struct egm_cli *cli)
{
    const struct egm_options *o = &cli->options;
    const char *bind = egm_options_text(o, "insecure-bind");
    struct egm_master_process process = {
        .names = {.hold = "kv-lease-ttl",
                  .session = "client-ttl",
                  .put_timeout = "put-timeout",
                  .soft_pin = "soft-pin-ttl",
                  .watermark = "eviction-high-watermark",
                  .evict_soft_pinned = "evict-soft-pinned"},
        .rpc = {"insecure-bind", bind ? bind : "127.0.0.1", egm_options_u64(o, "port")},
        .http = {"metrics-host", egm_options_text(o, "metrics-host"),
                 egm_options_u64(o, "metrics-port")},
        .cluster = egm_options_text(o, "cluster"),
        .max_connections = (uint32_t)egm_options_u64(o, "max-connections"),
        .report_ms = egm_options_u64(o, "report-interval"),
        .is_unix_off = !egm_options_bool(o, "unix-socket"),
    };

    egm_cli_apply_common(cli);
    return egm_master_process_run(cli, &process);
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
