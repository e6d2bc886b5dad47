/* SPDX-License-Identifier: Apache-2.0 */
/* egmstore's provider API: lend memory to the store, as a process of its own or inside a requester.
 *
 * Life: joining (memory is being populated and mounted) -> ready -> draining -> gone.
 * egm_provider_open returns when the whole pool is visible at the master, or fails with nothing
 * left behind. The provider runs on threads of its own. */
#ifndef EGMSTORE_PROVIDER_H
#define EGMSTORE_PROVIDER_H

#include "egmstore/types.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct egm_provider;

enum egm_provider_state {
    EGM_PROVIDER_JOINING = 0,
    EGM_PROVIDER_READY = 1,
    EGM_PROVIDER_DRAINING = 2,
    EGM_PROVIDER_GONE = 3,
};

struct egm_provider_options {
    const char *master; /* "host:port" or "unix:/path"; NULL: 127.0.0.1:50051 */
    const char
        *hostname; /* published name "host[:port]"; wildcards are refused; NULL or "": chosen */
    const char *memory_kind;  /* "shm" or "auto"; NULL: "auto" */
    const char *data_address; /* "host:port" the TCP data port listens on; NULL: loopback, any port;
                                 "off": none */
    uint64_t size_bytes;      /* pool; rounded down to the 64 KiB granule; at least 1 MiB */
    uint32_t wait_master_ms;  /* how long to wait for a master at start; 0: 10000 */
    /* Called from egm_provider_open while pages are populated; may be NULL. */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_arg;
};

/* Errors: EGM_E_INVALID (an option), -ENOMEM / EGM_E_LIMIT (memory, /dev/shm or cgroup limit: with
 * the numbers), EGM_E_PEER_GONE / EGM_E_TIMEOUT (no master), EGM_E_UNSUPPORTED (memory kind, with
 * its reason). @blocking */
EGM_EXPORT EGM_MUST_CHECK int egm_provider_open(const struct egm_provider_options *options,
                                                struct egm_provider **ret_provider,
                                                struct egm_detail *reterr);

EGM_EXPORT enum egm_provider_state egm_provider_state(struct egm_provider *provider);
EGM_EXPORT const char *egm_provider_hostname(const struct egm_provider *provider);
EGM_EXPORT uint64_t egm_provider_capacity(const struct egm_provider *provider);

/* No new placement, objects hidden, importers told to unmap, waits up to timeout_ms for them. 0, or
 * -EBUSY with the importers that still hold memory named in reterr. */
EGM_EXPORT EGM_MUST_CHECK int egm_provider_drain(struct egm_provider *provider, uint32_t timeout_ms,
                                                 struct egm_detail *reterr);

/* Leaves: releases the memory. Call after drain for an orderly end. NULL is allowed. */
EGM_EXPORT void egm_provider_close(struct egm_provider *provider);

#ifdef __cplusplus
}
#endif
#endif
