/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growable bytes with a bound; also the string builder.
 *
 * B1: len <= max, always; what would exceed it is refused with EGM_E_LIMIT, nothing is cut.
 * B2: behind the last byte lies a NUL once anything was allocated, so that egm_buf_str() is free.
 * B3: failure is sticky. After the first one `failed` holds its code, later calls change nothing
 *     and return it, and a writer of many small pieces may check once, at the end. egm_buf_clear()
 *     makes the buffer usable again.
 *
 * Growth doubles, so appending n bytes costs O(n). Pointers into `data` are valid until the next
 * growing call. The caller owns the struct; its memory goes with egm_buf_release(). Fields may be
 * read freely. Not threadsafe.
 */
#ifndef EGM_BASE_BUF_H
#define EGM_BASE_BUF_H

#include "egmstore/errors.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct egm_buf {
    uint8_t *data; /* NULL until the first byte */
    size_t len;
    size_t cap; /* bytes allocated, the NUL's included */
    size_t max; /* bound of len */
    int failed; /* 0, or the first failure: EGM_E_LIMIT or -ENOMEM */
};

/* Empty, allocates nothing. `max` bounds len in bytes. */
void egm_buf_init(struct egm_buf *b, size_t max);

/* Frees the memory and leaves an empty buffer with the same bound. A zeroed struct is fine. */
void egm_buf_release(struct egm_buf *b);

/* Empties it, keeps the memory, forgets a failure. */
void egm_buf_clear(struct egm_buf *b);

/* Appends n bytes (borrowed until return; p may be NULL if n is 0). 0, EGM_E_LIMIT or -ENOMEM. */
int egm_buf_append(struct egm_buf *b, const void *p, size_t n);

/* Appends n uninitialised bytes and returns where they begin, or NULL with `failed` set. */
EGM_MUST_CHECK uint8_t *egm_buf_extend(struct egm_buf *b, size_t n);

/* Appends formatted text. 0, EGM_E_LIMIT, -ENOMEM, or EGM_E_INVALID for a broken format. */
__attribute__((format(printf, 2, 3))) int egm_buf_printf(struct egm_buf *b, const char *fmt, ...);
__attribute__((format(printf, 2, 0))) int egm_buf_vprintf(struct egm_buf *b, const char *fmt,
                                                          va_list ap);

/* The content as a C string, "" if nothing was appended; borrowed until the next call that changes
 * b. */
const char *egm_buf_str(const struct egm_buf *b);

#endif
