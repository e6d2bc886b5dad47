/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* First allocation: most messages and lines fit without growing again. */
#define FIRST_CAP 256

void egm_buf_init(struct egm_buf *b, size_t max)
{
    /* one byte is needed behind max for the NUL (B2) */
    EGM_ASSERT(max < SIZE_MAX);
    *b = (struct egm_buf){.max = max};
}

void egm_buf_release(struct egm_buf *b)
{
    egm_free(b->data);
    *b = (struct egm_buf){.max = b->max};
}

void egm_buf_clear(struct egm_buf *b)
{
    b->len = 0;
    b->failed = 0;
    if (b->data) {
        b->data[0] = '\0';
    }
}

/* Makes room for n more bytes and the NUL. */
static int reserve(struct egm_buf *b, size_t n)
{
    size_t need, cap;
    uint8_t *data;

    EGM_ASSERT(b->len <= b->max); /* B1 */
    if (b->failed) {
        return b->failed;
    }
    if (n > b->max - b->len) {
        b->failed = EGM_E_LIMIT;
        return b->failed;
    }
    need = b->len + n + 1;
    if (need <= b->cap) {
        return 0;
    }
    cap = b->cap > b->max / 2 ? b->max + 1 : b->cap * 2;
    cap = egm_max_u64(cap, egm_min_u64(FIRST_CAP, b->max + 1));
    cap = egm_max_u64(cap, need);
    data = egm_realloc(b->data, cap);
    if (!data) {
        b->failed = -ENOMEM;
        return b->failed;
    }
    b->data = data;
    b->cap = cap;
    return 0;
}

uint8_t *egm_buf_extend(struct egm_buf *b, size_t n)
{
    uint8_t *at;

    if (reserve(b, n) < 0) {
        return NULL;
    }
    at = b->data + b->len;
    b->len += n;
    b->data[b->len] = '\0';
    return at;
}

int egm_buf_append(struct egm_buf *b, const void *p, size_t n)
{
    uint8_t *at = egm_buf_extend(b, n);

    if (!at) {
        return b->failed;
    }
    if (n > 0) {
        memcpy(at, p, n);
    }
    return 0;
}

int egm_buf_vprintf(struct egm_buf *b, const char *fmt, va_list ap)
{
    va_list again;
    int n;

    if (b->failed) {
        return b->failed;
    }
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0) {
        b->failed = EGM_E_INVALID;
        return b->failed;
    }
    if (reserve(b, (size_t)n) < 0) {
        return b->failed;
    }
    vsnprintf((char *)b->data + b->len, (size_t)n + 1, fmt, ap);
    b->len += (size_t)n;
    return 0;
}

int egm_buf_printf(struct egm_buf *b, const char *fmt, ...)
{
    va_list ap;
    int r;

    va_start(ap, fmt);
    r = egm_buf_vprintf(b, fmt, ap);
    va_end(ap);
    return r;
}

const char *egm_buf_str(const struct egm_buf *b)
{
    return b->data ? (const char *)b->data : "";
}
