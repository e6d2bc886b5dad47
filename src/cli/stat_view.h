/* SPDX-License-Identifier: Apache-2.0 */
/* The master's state as text, for `stat` and `top`. */
#ifndef EGM_CLI_STAT_VIEW_H
#define EGM_CLI_STAT_VIEW_H

#include "base/buf.h"

#include <jansson.h>
#include <stdbool.h>

/* A number of the object, 0 if it is not there. */
double egm_stat_number(const json_t *object, const char *name);
/* Totals, one line each; then segments and, with sessions, sessions as tables. */
void egm_stat_view_totals(struct egm_buf *out, const json_t *root);
void egm_stat_view_tables(struct egm_buf *out, const json_t *root, bool has_sessions);
/* "1.5 GiB" */
void egm_stat_view_bytes(char *ret_text, size_t size, double bytes);

#endif
