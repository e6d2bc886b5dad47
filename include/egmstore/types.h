/* SPDX-License-Identifier: Apache-2.0 */
/* Types that requesters, providers and errors share.
 *
 * Every call that can fail takes `struct egm_detail *reterr` (may be NULL): on failure it is filled
 * with the code, the stage at which it arose and one sentence that names the thing, the reason and
 * what to do. On success it is untouched. */
#ifndef EGMSTORE_TYPES_H
#define EGMSTORE_TYPES_H

#include "egmstore/errors.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A key: any bytes, 1 to 4096 of them. Borrowed for the call. */
struct egm_key {
    const void *data;
    size_t size; /* bytes */
};

/* Numbers are Mooncake's, so that bindings pass them through. */
enum egm_soft_pin {
    EGM_SOFT_PIN_PRESERVE = 0,
    EGM_SOFT_PIN_ENABLE = 1,
    EGM_SOFT_PIN_DISABLE = 2
};

#ifdef __cplusplus
}
#endif
#endif
