/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions for the core's io, with bounds on time, stack and memory, since patterns come
 * from peers.
 *
 * Bytes, not characters: a key is any bytes. A match that meets a bound on a key counts as no match
 * there and is counted; after REGEX_STRIKES such keys the pattern is taken as hostile and matches
 * nothing any more, so that a scan of a million keys costs a bounded multiple of one bound. One
 * thread. */
#ifndef EGM_MASTER_REGEX_H
#define EGM_MASTER_REGEX_H

#include "egmstore/errors.h"

#include <stddef.h>
#include <stdint.h>

struct egm_regex;

/* pattern: NUL-terminated. 0, or EGM_E_INVALID with the reason and place in text, or -ENOMEM.
 * ret_regex: free with egm_regex_free. over_limit counts keys that met a bound; borrowed for the
 * regex's life. */
EGM_MUST_CHECK int egm_regex_compile(const char *pattern, uint64_t *over_limit,
                                     struct egm_regex **ret_regex, char *text, size_t text_size);
/* Searches anywhere in the key. 1, 0, or EGM_E_LIMIT. */
int egm_regex_match(struct egm_regex *regex, const void *key, size_t size);
void egm_regex_free(struct egm_regex *regex);

#endif
