/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Filling struct egm_detail (egmstore/errors.h), the error text with a place.
 *
 * The text names what failed, on which thing, why, and what to do next: "cannot map segment 'kv0':
 * out of huge pages (try --hugepages=try)". Filling needs no allocation, so it works when memory
 * ran out.
 */
#ifndef EGM_BASE_DETAIL_H
#define EGM_BASE_DETAIL_H

#include "egmstore/errors.h"

/* Fills *reterr (NULL: nothing to fill) and returns `code`, so that a failure is one line: return
 * egm_fail(...). The innermost call that knows the cause fills it; callers pass it up untouched.
 * Pre: code < 0. @threadsafe */
__attribute__((format(printf, 4, 5))) int egm_fail(struct egm_detail *reterr, int code,
                                                   const char *stage, const char *fmt, ...);

#endif
