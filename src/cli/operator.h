/* SPDX-License-Identifier: Apache-2.0 */
/* Asking a master for its state, as an operator: one connection, HELLO, then STAT as often as
 * wanted. */
#ifndef EGM_CLI_OPERATOR_H
#define EGM_CLI_OPERATOR_H

#include "base/detail.h"

#include <jansson.h>
#include <stdint.h>

/* Connects and greets. ret_fd: close with close(2). @blocking until deadline_ms from now */
EGM_MUST_CHECK int egm_operator_open(const char *address, const char *cluster, uint32_t deadline_ms,
                                     int *ret_fd, struct egm_detail *reterr);

/* ret_root: decref by the caller. */
EGM_MUST_CHECK int egm_operator_stat(int fd, uint32_t deadline_ms, json_t **ret_root,
                                     struct egm_detail *reterr);

#endif
