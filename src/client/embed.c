/* SPDX-License-Identifier: Apache-2.0 */
/* The provider inside a requester's process: the same library as the daemon's, through its public
 * API. */
#include "base/alloc.h"
#include "base/log.h"

#include "client/internal.h"

#include <errno.h>
#include <stdlib.h>

/* Below the 10 s at which service managers and vLLM's shutdown lose patience. */
#define DRAIN_MS 8000u
#define WAIT_MASTER_MS 10000u

struct egm_embedded {
    struct egm_provider *provider;
};

int egm_embedded_open(const struct egm_store_options *options, const char *master,
                      struct egm_embedded **ret_embedded, struct egm_detail *reterr)
{
    struct egm_embedded *embedded = egm_calloc(1, sizeof(*embedded));
    struct egm_provider_options wanted = {.master = master,
                                          .hostname = options->hostname,
                                          .memory_kind = options->memory_kind,
                                          /* NULL: loopback. There is no authentication yet, so that
                                           * a routable address has to be asked for. */
                                          .data_address = getenv("EGMSTORE_DATA_ADDRESS"),
                                          .size_bytes = options->segment_bytes,
                                          .wait_master_ms = WAIT_MASTER_MS};

    if (!embedded) {
        return egm_fail(reterr, -ENOMEM, "open", "no memory for the embedded provider");
    }
    int r = egm_provider_open(&wanted, &embedded->provider, reterr);
    if (r < 0) {
        egm_free(embedded);
        return r;
    }
    *ret_embedded = embedded;
    return 0;
}

const char *egm_embedded_name(const struct egm_embedded *embedded)
{
    return egm_provider_hostname(embedded->provider);
}

void egm_embedded_close(struct egm_embedded *embedded)
{
    struct egm_detail detail;

    if (!embedded) {
        return;
    }
    if (egm_provider_drain(embedded->provider, DRAIN_MS, &detail) < 0) {
        egm_warn("embedded provider leaves without its importers' consent err=\"%s\", continuing",
                 detail.text);
    }
    egm_provider_close(embedded->provider);
    egm_free(embedded);
}
