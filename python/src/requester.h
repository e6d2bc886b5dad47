/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What setup() was asked for, and what that means to libegmstore. No Python in here: names and
 * texts in, options out, so that tests reach every line with plain bytes
 * (tests/fuzz/fuzz_config.c).
 *
 * Both forms of setup() fill struct egmpy_requester; what Mooncake's arguments mean here is decided
 * after that:
 *
 *   metadata_server, rdma_devices, engine, client_http_port, ipc_socket_path
 *       accepted, without effect: the master is the only directory.
 *   local_buffer_size
 *       Only whether it is 0 matters: values are copied straight from and to the caller's memory,
 *       so there is no staging buffer to size. 0 disables the calls that take or return bytes, as
 *       it does upstream.
 *   global_segment_size
 *       Memory this process lends. Upstream takes 1 KiB and more, a provider needs 1 MiB, so less
 *       is rounded up.
 *   protocol "rpc_only"
 *       A requester that moves no data: the same session, its data path unused.
 *   SSD offload, client HTTP server
 *       Do not exist yet: the caller warns, and the store works without.
 */
#ifndef EGMPY_REQUESTER_H
#define EGMPY_REQUESTER_H

#include "base/detail.h"

#include "egmstore/store.h"

#include <stdint.h>

struct egmpy_requester {
    const char *hostname; /* texts are borrowed from whoever set them */
    const char *metadata_server;
    const char *master;
    const char *protocol;
    const char *tenant;
    uint64_t segment_bytes;
    uint64_t local_buffer_bytes;
    int wants_ssd; /* int: Python's argument parser writes it */
    int wants_http;
};

/* What the dict form starts from. */
void egmpy_requester_init(struct egmpy_requester *requester);

/* One entry of the dict form, its value as text (borrowed). 0; EGM_E_NOT_FOUND: no such name;
 * EGM_E_INVALID: a value that means nothing. Errors have their text in reterr. */
EGM_MUST_CHECK int egmpy_requester_set(struct egmpy_requester *requester, const char *name,
                                       const char *text, struct egm_detail *reterr);

/* Whether the dict form had all that it needs. 0 or EGM_E_INVALID. */
EGM_MUST_CHECK int egmpy_requester_is_whole(const struct egmpy_requester *requester,
                                            struct egm_detail *reterr);

/* 0 or EGM_E_INVALID. ret_options borrows the texts. */
EGM_MUST_CHECK int egmpy_requester_options(const struct egmpy_requester *requester,
                                           struct egm_store_options *ret_options,
                                           struct egm_detail *reterr);

#endif
