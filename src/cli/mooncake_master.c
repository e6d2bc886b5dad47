/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mooncake_master: our master behind Mooncake's flags, so that scripts and deployments start it
 * unchanged.
 *
 * Served flags map to ours. All others that upstream knows are parsed as strictly, have no effect,
 * and are named once in the log when given. Differences on purpose: the default addresses are
 * loopback, with one warning, because there is no authentication (an explicit --rpc_address is
 * obeyed); and cluster_id is not checked against peers, because Mooncake's clients do not send one
 * (EGMSTORE_CLUSTER is).
 */
#include "base/assert.h"
#include "base/log.h"

#include "cli/master_process.h"
#include "cli/mooncake.h"

#include <stdlib.h>
#include <string.h>

#define LOOPBACK "127.0.0.1"
#define RATIO_ROW(option, text)                                                                  \
    {                                                                                            \
        .name = option, .placeholder = "ratio", .type = EGM_OPTION_DOUBLE, .default_text = text, \
        .max = 1, .help = "accepted for compatibility", .group = EGM_MOONCAKE_IGNORED            \
    }
#define CHOICE_ROW(option, words, text)                                                        \
    {                                                                                          \
        .name = option, .placeholder = words, .type = EGM_OPTION_CHOICE, .default_text = text, \
        .help = "accepted for compatibility", .group = EGM_MOONCAKE_IGNORED                    \
    }

static const struct egm_option rows[] = {
    EGM_MOONCAKE_COMMON_ROWS,
    {.name = "rpc-port",
     .placeholder = "port",
     .type = EGM_OPTION_U64,
     .default_text = "0",
     .max = 65535,
     .help = "TCP port of the protocol; 0: --port's",
     .group = "Network"},
    {.name = "port",
     .placeholder = "port",
     .type = EGM_OPTION_U64,
     .default_text = "50051",
     .max = 65535,
     .help = "old name of --rpc-port",
     .group = "Network"},
    {.name = "rpc-address",
     .placeholder = "address",
     .type = EGM_OPTION_STRING,
     .min = 1,
     .max = 255,
     .help = "address to listen on; not given: 127.0.0.1, with a warning",
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
     .min = 1,
     .max = 255,
     .help = "address of the HTTP port; not given: 127.0.0.1",
     .group = "Network"},
    {.name = "default-kv-lease-ttl",
     .placeholder = "duration",
     .type = EGM_OPTION_DURATION_MS,
     .default_text = "10000",
     .max = 86400000,
     .unit = "ms",
     .help =
         "how long an object that was read or asked for is kept from eviction and unforced removal",
     .group = "Leases"},
    {.name = "default-kv-soft-pin-ttl",
     .placeholder = "duration",
     .type = EGM_OPTION_DURATION_MS,
     .default_text = "1800000",
     .max = 86400000,
     .unit = "ms",
     .help = "how long a soft pin without a time of its own holds",
     .group = "Leases"},
    {.name = "client-ttl",
     .aliases = "client-live-ttl-sec",
     .placeholder = "seconds",
     .type = EGM_OPTION_U64,
     .default_text = "10",
     .min = 1,
     .max = 3600,
     .unit = "s",
     .help = "silence after which a requester or a lost provider is given up",
     .group = "Leases"},
    {.name = "put-start-discard-timeout-sec",
     .placeholder = "seconds",
     .type = EGM_OPTION_U64,
     .default_text = "30",
     .min = 1,
     .max = 3600,
     .unit = "s",
     .help = "time after which an unfinished put is given up",
     .group = "Leases"},
    {.name = "eviction-high-watermark-ratio",
     .placeholder = "ratio",
     .type = EGM_OPTION_DOUBLE,
     .default_text = "0.95",
     .max = 1,
     .help = "share of the pool above which objects are evicted",
     .group = "Eviction"},
    {.name = "allow-evict-soft-pinned-objects",
     .type = EGM_OPTION_BOOL,
     .default_text = "true",
     .help = "evict soft-pinned objects when nothing else is left",
     .group = "Eviction"},
    {.name = "enable-metric-reporting",
     .type = EGM_OPTION_BOOL,
     .default_text = "true",
     .help = "log a line of totals every 10 s",
     .group = "Logging"},

    EGM_IGNORED_U64("max-threads", "16"),
    EGM_IGNORED_U64("rpc-thread-num", "0"),
    EGM_IGNORED_TEXT("rpc-interface", ""),
    EGM_IGNORED_U64("rpc-conn-timeout-seconds", "0"),
    EGM_IGNORED_BOOL("rpc-enable-tcp-no-delay", "true"),
    EGM_IGNORED_TEXT("rpc-protocol", "tcp"),
    EGM_IGNORED_TEXT("cluster-id", "mooncake_cluster"),
    CHOICE_ROW("memory-allocator", "offset|cachelib", "offset"),
    EGM_IGNORED_TEXT("allocation-strategy", "random"),
    {.name = "max-kv-soft-pin-ttl",
     .placeholder = "duration",
     .type = EGM_OPTION_DURATION_MS,
     .default_text = "86400000",
     .unit = "ms",
     .help = "accepted for compatibility",
     .group = EGM_MOONCAKE_IGNORED},
    RATIO_ROW("eviction-ratio", "0.05"),
    RATIO_ROW("nof-eviction-ratio", "0.05"),
    RATIO_ROW("nof-eviction-high-watermark-ratio", "0.90"),
    EGM_IGNORED_U64("put-start-release-timeout-sec", "600"),
    EGM_IGNORED_BOOL("enable-http-metadata-server", "false"),
    EGM_IGNORED_TEXT("http-metadata-server-host", "0.0.0.0"),
    {.name = "http-metadata-server-port",
     .placeholder = "port",
     .type = EGM_OPTION_U64,
     .default_text = "8080",
     .max = 65535,
     .help = "accepted for compatibility",
     .group = EGM_MOONCAKE_IGNORED},
    EGM_IGNORED_BOOL("enable-metadata-cleanup-on-timeout", "false"),
    EGM_IGNORED_BOOL("enable-ha", "false"),
    CHOICE_ROW("ha-backend-type", "etcd|redis|k8s", "etcd"),
    EGM_IGNORED_TEXT("ha-backend-connstring", ""),
    EGM_IGNORED_TEXT("etcd-endpoints", ""),
    EGM_IGNORED_TEXT("pod-name", ""),
    EGM_IGNORED_TEXT("pod-namespace", ""),
    EGM_IGNORED_BOOL("enable-oplog", "false"),
    EGM_IGNORED_U64("oplog-poll-interval-ms", "1000"),
    EGM_IGNORED_U64("oplog-batch-max-entries", "1024"),
    EGM_IGNORED_U64("batch-oplog-retry-timeout-sec", "180"),
    EGM_IGNORED_BOOL("enable-snapshot", "false"),
    EGM_IGNORED_BOOL("enable-snapshot-restore", "false"),
    EGM_IGNORED_U64("snapshot-interval-seconds", "600"),
    EGM_IGNORED_U64("snapshot-child-timeout-seconds", "300"),
    EGM_IGNORED_U64("snapshot-retention-count", "2"),
    CHOICE_ROW("snapshot-object-store-type", "local|s3", "local"),
    CHOICE_ROW("snapshot-catalog-store-type", "embedded|redis", "embedded"),
    EGM_IGNORED_TEXT("snapshot-object-store-connstring", ""),
    EGM_IGNORED_TEXT("snapshot-catalog-store-connstring", ""),
    EGM_IGNORED_TEXT("snapshot-backup-dir", ""),
    EGM_IGNORED_TEXT("root-fs-dir", ""),
    EGM_IGNORED("global-file-segment-size", EGM_OPTION_SIZE, "9223372036854775807", "bytes"),
    EGM_IGNORED_BOOL("enable-disk-eviction", "true"),
    EGM_IGNORED("quota-bytes", EGM_OPTION_SIZE, "0", "bytes"),
    EGM_IGNORED_BOOL("enable-offload", "false"),
    EGM_IGNORED_BOOL("offload-on-evict", "false"),
    EGM_IGNORED_BOOL("offload-force-evict", "false"),
    EGM_IGNORED_U64("offloading-queue-limit", "50000"),
    RATIO_ROW("offload-cap-ratio", "0.5"),
    EGM_IGNORED_BOOL("promotion-on-hit", "false"),
    EGM_IGNORED_U64("promotion-admission-threshold", "2"),
    EGM_IGNORED_U64("promotion-queue-limit", "50000"),
    EGM_IGNORED_U64("promotion-max-per-heartbeat", "1"),
    CHOICE_ROW("dynamic-replication-mode", "off|observe|enforce", "off"),
    EGM_IGNORED_U64("dynamic-replication-window-sec", "10"),
    EGM_IGNORED_RATIO("dynamic-replication-qps-threshold", "0.8"),
    EGM_IGNORED_U64("dynamic-replication-max-replicas", "2"),
    EGM_IGNORED_BOOL("enable-cxl", "false"),
    EGM_IGNORED_TEXT("cxl-path", "/dev/dax0.0"),
    EGM_IGNORED("cxl-size", EGM_OPTION_SIZE, "8 GB", "bytes"),
    EGM_IGNORED_U64("nof-heartbeat-interval-sec", "10"),
    EGM_IGNORED_U64("nof-heartbeat-timeout-ms", "1000"),
    EGM_IGNORED_U64("nof-heartbeat-max-failures", "3"),
    EGM_IGNORED_BOOL("enable-multi-tenants", "false"),
    CHOICE_ROW("tenant-quota-connector-type", "file|etcd", "file"),
    EGM_IGNORED_TEXT("tenant-quota-connector-uri", ""),
    EGM_IGNORED_U64("max-total-finished-tasks", "10000"),
    EGM_IGNORED_U64("max-total-pending-tasks", "10000"),
    EGM_IGNORED_U64("max-total-processing-tasks", "10000"),
    EGM_IGNORED_U64("pending-task-timeout-sec", "300"),
    EGM_IGNORED_U64("processing-task-timeout-sec", "300"),
    EGM_IGNORED_U64("max-retry-attempts", "10"),
    EGM_IGNORED_BOOL("enable-kv-events", "false"),
    EGM_IGNORED_TEXT("kv-events-bind-endpoint", ""),
    EGM_IGNORED_TEXT("kv-events-model-name", ""),
    EGM_IGNORED_TEXT("kv-events-backend-id", ""),
    EGM_IGNORED_TEXT("kv-events-tenant-id", ""),
    EGM_IGNORED_TEXT("kv-events-additional-salt", ""),
    EGM_IGNORED_TEXT("kv-events-lora-name", ""),
    EGM_IGNORED_U64("kv-events-block-size", "0"),
    EGM_IGNORED_U64("kv-events-dp-rank", "0"),
    EGM_IGNORED_BOOL("kv-events-emit-legacy-compat", "true"),
    EGM_IGNORED_BOOL("kv-events-emit-object-key", "true"),
    EGM_IGNORED_U64("kv-events-queue-capacity", "65536"),
    EGM_MOONCAKE_GLOG_ROWS,
};

/* Flags whose absence of effect changes what the deployment may rely on. */
static void warn_of_missing(const struct egm_options *o)
{
    static const struct {
        const char *flag, *what;
    } missing[] = {
        {"enable-http-metadata-server",
         "http metadata server disabled: providers and requesters here need none"},
        {"enable-ha", "high availability disabled: this is the only master"},
        {"enable-snapshot",
         "snapshots disabled: the directory is rebuilt from providers only while they live"},
        {"enable-multi-tenants", "tenant quotas disabled: tenants separate keys, not space"},
        {"enable-offload", "offload disabled: evicted objects are gone"},
        {"enable-kv-events", "kv events disabled: no publisher is started"},
    };

    for (size_t i = 0; i < sizeof(missing) / sizeof(missing[0]); i++) {
        if (egm_options_bool(o, missing[i].flag)) {
            egm_warn("%s flag=%s, continuing", missing[i].what, missing[i].flag);
        }
    }
}

static int run(struct egm_cli *cli)
{
    const struct egm_options *o = &cli->options;
    char rpc[EGM_ADDRESS_TEXT];
    char http[EGM_ADDRESS_TEXT];
    int code;

    if (!egm_mooncake_begin(cli, &code)) {
        return code;
    }
    const char *host = egm_options_text(o, "rpc-address");
    const char *http_host = egm_options_text(o, "metrics-host");
    uint64_t port = egm_options_u64(o, "rpc-port") ? egm_options_u64(o, "rpc-port")
                                                   : egm_options_u64(o, "port");
    uint64_t metrics_port = egm_options_u64(o, "metrics-port");
    code = egm_master_process_address(
        cli, "rpc-address", (struct egm_listen_at){host ? host : LOOPBACK, port}, rpc, sizeof(rpc));
    if (code == EGM_EXIT_OK) {
        code = egm_master_process_address(
            cli, "metrics-host",
            (struct egm_listen_at){http_host ? http_host : LOOPBACK, metrics_port}, http,
            sizeof(http));
    }
    if (code != EGM_EXIT_OK) {
        return code;
    }
    if (!host) {
        egm_warn("listening on " LOOPBACK
                 " only, because peers are not authenticated; give --rpc_address=0.0.0.0 (and "
                 "--metrics_host) to serve other hosts, continuing");
    }
    warn_of_missing(o);
    const char *cluster = getenv("EGMSTORE_CLUSTER");
    struct egm_master_daemon_options options = {
        .rpc_address = rpc,
        .http_address = metrics_port ? http : NULL,
        .takes_signals = true,
        .report_ms = egm_options_bool(o, "enable-metric-reporting") ? 10000 : 0,
        .core = egm_master_defaults()};
    options.core.cluster = cluster && cluster[0] ? cluster : options.core.cluster;
    options.core.hold_ms = egm_options_u64(o, "default-kv-lease-ttl");
    options.core.session_ttl_ms = egm_options_u64(o, "client-ttl") * 1000;
    options.core.put_timeout_ms = egm_options_u64(o, "put-start-discard-timeout-sec") * 1000;
    options.core.soft_pin_ttl_ms = egm_options_u64(o, "default-kv-soft-pin-ttl");
    options.core.high_watermark = egm_options_double(o, "eviction-high-watermark-ratio");
    options.core.evict_soft_pinned = egm_options_bool(o, "allow-evict-soft-pinned-objects");
    return egm_master_process_run(cli, &options);
}

const struct egm_command egm_command_mooncake_master = {
    .name = "mooncake-master",
    .summary = "run the master with Mooncake's flags",
    .usage = "",
    .about = "Takes the flags of Mooncake's mooncake_master, in all spellings of gflags.",
    .examples =
        "  mooncake_master -port=50051 -metrics_port=9003\n"
        "  mooncake_master --rpc_address=0.0.0.0 --default_kv_lease_ttl=5s --client_ttl 10\n"
        "  mooncake_master --config_path /etc/mooncake/master.json --noenable_metric_reporting\n",
    .rows = rows,
    .row_count = sizeof(rows) / sizeof(rows[0]),
    .alias = "mooncake_master",
    .run = run,
};
