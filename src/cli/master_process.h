/* SPDX-License-Identifier: Apache-2.0 */
/* What `master` and `mooncake-master` have in common: running the daemon in the foreground. */
#ifndef EGM_CLI_MASTER_PROCESS_H
#define EGM_CLI_MASTER_PROCESS_H

#include "cli/cli.h"
#include "master/master_daemon.h"

/* Where to listen, before it is an address. */
struct egm_listen_at {
    const char *host; /* as in addresses; IPv6 with or without brackets */
    uint64_t port;    /* 0: any free one */
};

/* Writes "host:port" for the listener. 0, or EGM_EXIT_USAGE after a message that names the option.
 */
int egm_master_process_address(const struct egm_cli *cli, const char *option,
                               struct egm_listen_at at, char *ret_text, size_t size);

/* Creates the daemon, serves until a signal, and cleans up; returns the exit code. */
int egm_master_process_run(const struct egm_cli *cli,
                           const struct egm_master_daemon_options *options);

#endif
