/* SPDX-License-Identifier: Apache-2.0 */
/* What `provider` and `mooncake-client` have in common: lending memory in the foreground until a
 * signal. */
#ifndef EGM_CLI_PROVIDER_PROCESS_H
#define EGM_CLI_PROVIDER_PROCESS_H

#include "cli/cli.h"
#include "egmstore/provider.h"

/* From here on the first SIGTERM or SIGINT is noted and a second one ends the process at once, as
 * one does before egm_provider_process_run has its provider. Once per process. */
void egm_provider_process_signals(void);

struct egm_provider_process {
    struct egm_provider_options options; /* progress is set here */
    uint32_t drain_ms;
    bool is_json;
    /* Called when the provider is ready, and before it drains; may be NULL. 0 or EGM_EXIT_*. */
    int (*started)(void *arg, struct egm_provider *provider);
    void (*ending)(void *arg);
    void *arg;
};

/* Opens the provider, prints the ready line, waits for a signal, drains. Returns the exit code. */
int egm_provider_process_run(const struct egm_cli *cli, struct egm_provider_process *process);

#endif
