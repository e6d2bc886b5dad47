/* SPDX-License-Identifier: Apache-2.0 */
/* egmstore provider: lends memory of this host to the store. */
#include "cli/provider_process.h"

static const struct egm_option rows[] = {
    EGM_ROW_MASTER,
    EGM_ROW_CLUSTER,
    {.name = "wait-master",
     .placeholder = "duration",
     .type = EGM_OPTION_DURATION_MS,
     .default_text = "10s",
     .max = 86400000,
     .unit = "ms",
     .help = "how long to wait for a master at start",
     .group = "Connection"},
    {.name = "hostname",
     .placeholder = "name",
     .type = EGM_OPTION_STRING,
     .max = 300,
     .help = "name under which others reach this provider, host or host:port; not set: an address "
             "of this host",
     .group = "Identity"},
    {.name = "data-address",
     .placeholder = "address",
     .type = EGM_OPTION_STRING,
     .max = 300,
     .help = "where the TCP data port listens, host or host:port, or 'off'; not set: 127.0.0.1, "
             "reachable from this host only",
     .group = "Identity"},
    {.name = "memory",
     .placeholder = "auto|shm",
     .type = EGM_OPTION_CHOICE,
     .default_text = "auto",
     .help = "kind of memory; auto takes the best that works here",
     .group = "Memory"},
    {.name = "size",
     .placeholder = "bytes",
     .type = EGM_OPTION_SIZE,
     .min = 1048576,
     .unit = "bytes",
     .help = "pool size",
     .group = "Memory"},
    {.name = "size-gib",
     .placeholder = "number",
     .type = EGM_OPTION_U64,
     .min = 1,
     .max = 16384,
     .unit = "GiB",
     .help = "pool size, in GiB",
     .group = "Memory"},
    {.name = "drain-timeout",
     .placeholder = "duration",
     .type = EGM_OPTION_DURATION_MS,
     .default_text = "8s",
     .max = 3600000,
     .unit = "ms",
     .help = "how long SIGTERM waits for requesters to let go; below the time after which your "
             "service manager kills",
     .group = "Life"},
    EGM_ROW_LOG_LEVEL,
    EGM_ROW_JSON,
};

static int run(struct egm_cli *cli)
{
    const struct egm_options *o = &cli->options;
    bool has_size = egm_options_is_set(o, "size");
    bool has_gib = egm_options_is_set(o, "size-gib");

    if (has_size == has_gib) {
        return egm_cli_misuse(cli, has_size ? "give --size or --size-gib, not both"
                                            : "give the pool's size with --size");
    }
    egm_cli_apply_common(cli);
    egm_provider_process_signals();
    struct egm_provider_process process = {
        .options = {.master = egm_options_text(o, "master"),
                    .hostname = egm_options_text(o, "hostname"),
                    .memory_kind = egm_options_text(o, "memory"),
                    .data_address = egm_options_text(o, "data-address"),
                    .size_bytes = has_size ? egm_options_u64(o, "size")
                                           : egm_options_u64(o, "size-gib") << 30,
                    .wait_master_ms = (uint32_t)egm_options_u64(o, "wait-master")},
        .drain_ms = (uint32_t)egm_options_u64(o, "drain-timeout"),
        .is_json = egm_options_bool(o, "json"),
    };
    return egm_provider_process_run(cli, &process);
}

const struct egm_command egm_command_provider = {
    .name = "provider",
    .summary = "lend memory of this host to the store",
    .usage = "",
    .about = "Prints one line when its memory is ready. SIGTERM drains: objects are hidden, "
             "requesters told to let go, and\n"
             "the process ends with 0, or with 1 and the names of those who did not. A second "
             "SIGTERM leaves at once.",
    .examples = "  egmstore provider --size 512MB\n"
                "  egmstore provider --master 10.0.0.1:50051 --hostname 10.0.0.2 --data-address "
                "10.0.0.2 --memory shm --size-gib 16\n"
                "  egmstore provider --master unix:/run/egmstore/master-50051.sock --size 4GB "
                "--data-address off\n",
    .rows = rows,
    .row_count = sizeof(rows) / sizeof(rows[0]),
    .run = run,
};
