/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `master` and `mooncake-master` have in common: the rows of their options, what the options
 * mean to the daemon, and running it in the foreground.
 *
 * A row's meaning, bounds and heading stand here once. A program gives what differs: the name, its
 * aliases, and the default as its users write it; and lists the names in struct egm_master_names,
 * so that the values find their way. Times are durations to our users (MS) and whole seconds to
 * Mooncake's where the flag says so (S).
 */
#ifndef EGM_CLI_MASTER_PROCESS_H
#define EGM_CLI_MASTER_PROCESS_H

#include "cli/cli.h"
#include "master/master_daemon.h"

/* ---- rows ---- */

#define EGM_MASTER_PORT(option, also, text, what)                                       \
    {                                                                                   \
        .name = option, .aliases = also, .placeholder = "port", .type = EGM_OPTION_U64, \
        .default_text = text, .max = 65535, .help = what, .group = "Network"            \
    }
#define EGM_MASTER_HOST(option, text, what)                                                        \
    {                                                                                              \
        .name = option, .placeholder = "address", .type = EGM_OPTION_STRING, .default_text = text, \
        .min = 1, .max = 255, .help = what, .group = "Network"                                     \
    }
#define EGM_MASTER_MS(option, also, text, least, most, what, heading)                    \
    {                                                                                    \
        .name = option, .aliases = also, .placeholder = "duration",                      \
        .type = EGM_OPTION_DURATION_MS, .default_text = text, .min = least, .max = most, \
        .unit = "ms", .help = what, .group = heading                                     \
    }
#define EGM_MASTER_S(option, also, text, most, what, heading)                                    \
    {                                                                                            \
        .name = option, .aliases = also, .placeholder = "seconds", .type = EGM_OPTION_U64,       \
        .default_text = text, .min = 1, .max = most, .unit = "s", .help = what, .group = heading \
    }

#define EGM_MASTER_ROW_METRICS_PORT               \
    EGM_MASTER_PORT("metrics-port", NULL, "9003", \
                    "HTTP port for /metrics, /health and queries; 0 turns it off")
#define EGM_MASTER_ROW_HOLD(option, also, text)                                              \
    EGM_MASTER_MS(option, also, text, 0, 86400000,                                           \
                  "how long an object that was read or asked for is kept from eviction and " \
                  "unforced removal",                                                        \
                  "Leases")
#define EGM_MASTER_SESSION_HELP "silence after which a requester or a lost provider is given up"
#define EGM_MASTER_ROW_SESSION_MS(option, text) \
    EGM_MASTER_MS(option, NULL, text, 500, 3600000, EGM_MASTER_SESSION_HELP, "Leases")
#define EGM_MASTER_ROW_SESSION_S(option, also, text) \
    EGM_MASTER_S(option, also, text, 3600, EGM_MASTER_SESSION_HELP, "Leases")
#define EGM_MASTER_PUT_HELP "time after which an unfinished put is given up"
#define EGM_MASTER_ROW_PUT_MS(option, text) \
    EGM_MASTER_MS(option, NULL, text, 1000, 3600000, EGM_MASTER_PUT_HELP, "Leases")
#define EGM_MASTER_ROW_PUT_S(option, text) \
    EGM_MASTER_S(option, NULL, text, 3600, EGM_MASTER_PUT_HELP, "Leases")
#define EGM_MASTER_ROW_SOFT_PIN(option, text)      \
    EGM_MASTER_MS(option, NULL, text, 0, 86400000, \
                  "how long a soft pin without a time of its own holds", "Eviction")
#define EGM_MASTER_ROW_WATERMARK(option, also)                                                  \
    {                                                                                           \
        .name = option, .aliases = also, .placeholder = "ratio", .type = EGM_OPTION_DOUBLE,     \
        .default_text = "0.95", .max = 1,                                                       \
        .help = "share of the pool above which objects are evicted; lower it if puts find the " \
                "pool full",                                                                    \
        .group = "Eviction"                                                                     \
    }
#define EGM_MASTER_ROW_EVICT_SOFT_PINNED(option)                                           \
    {                                                                                      \
        .name = option, .type = EGM_OPTION_BOOL, .default_text = "true",                   \
        .help = "evict soft-pinned objects when nothing else is left", .group = "Eviction" \
    }

/* ---- values ---- */

/* How a program spells the settings of the core. */
struct egm_master_names {
    const char *hold, *session, *put_timeout, *soft_pin, *watermark, *evict_soft_pinned;
};

/* Where to listen, before it is an address. */
struct egm_listen_at {
    const char *option; /* that names the host, for messages */
    const char *host;   /* as in addresses; IPv6 with or without brackets */
    uint64_t port;
};

struct egm_master_process {
    struct egm_master_names names;
    struct egm_listen_at rpc;  /* port 0: any free one */
    struct egm_listen_at http; /* port 0: none */
    const char *cluster;       /* NULL: the core's default */
    uint32_t max_connections;  /* 0: what the limit of open files allows */
    uint64_t report_ms;        /* 0: never */
    bool is_unix_off;
};

/* Creates the daemon, serves until a signal, and cleans up; returns the exit code. */
int egm_master_process_run(const struct egm_cli *cli, const struct egm_master_process *process);

#endif
