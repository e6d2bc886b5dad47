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
    EGM_MASTER_PORT("rpc-port", NULL, "0", "TCP port of the protocol; 0: --port's"),
    EGM_MASTER_PORT("port", NULL, "50051", "old name of --rpc-port"),
    EGM_MASTER_HOST("rpc-address", NULL,
                    "address to listen on; not given: 127.0.0.1, with a warning"),
    EGM_MASTER_ROW_METRICS_PORT,
    EGM_MASTER_HOST("metrics-host", NULL, "address of the HTTP port; not given: 127.0.0.1"),
    EGM_MASTER_ROW_HOLD("default-kv-lease-ttl", NULL, "10000"),
    EGM_MASTER_ROW_SESSION_S("client-ttl", "client-live-ttl-sec", "10"),
    EGM_MASTER_ROW_PUT_S("put-start-discard-timeout-sec", "30"),
    EGM_MASTER_ROW_WATERMARK("eviction-high-watermark-ratio", NULL),
    EGM_MASTER_ROW_SOFT_PIN("default-kv-soft-pin-ttl", "1800000"),
    EGM_MASTER_ROW_EVICT_SOFT_PINNED("allow-evict-soft-pinned-objects"),
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
    int code;

    if (!egm_mooncake_begin(cli, &code)) {
        return code;
    }
    const char *host = egm_options_text(o, "rpc-address");
    const char *http_host = egm_options_text(o, "metrics-host");
    const char *cluster = getenv("EGMSTORE_CLUSTER");
    uint64_t port = egm_options_u64(o, "rpc-port");
    struct egm_master_process process = {
        .names = {.hold = "default-kv-lease-ttl",
                  .session = "client-ttl",
                  .put_timeout = "put-start-discard-timeout-sec",
                  .soft_pin = "default-kv-soft-pin-ttl",
                  .watermark = "eviction-high-watermark-ratio",
                  .evict_soft_pinned = "allow-evict-soft-pinned-objects"},
        .rpc = {"rpc-address", host ? host : LOOPBACK, port ? port : egm_options_u64(o, "port")},
        .http = {"metrics-host", http_host ? http_host : LOOPBACK,
                 egm_options_u64(o, "metrics-port")},
        .cluster = cluster && cluster[0] ? cluster : NULL,
        .report_ms = egm_options_bool(o, "enable-metric-reporting") ? 10000 : 0,
    };

    if (!host) {
        egm_warn("listening on " LOOPBACK
                 " only, because peers are not authenticated; give --rpc_address=0.0.0.0 (and "
                 "--metrics_host) to serve other hosts, continuing");
    }
    warn_of_missing(o);
    return egm_master_process_run(cli, &process);
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
