/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Allocations that still succeed before one fails; negative = disarmed. A test arms it before it
 * starts threads, and nothing else is published through it, so relaxed order suffices everywhere.
 */
static _Atomic int64_t fail_countdown = -1;

void egm_alloc_fail_after(int64_t n)
{
    atomic_store_explicit(&fail_countdown, n < 0 ? -1 : n, memory_order_relaxed);
}

bool egm_alloc_fail_is_armed(void)
{
    return atomic_load_explicit(&fail_countdown, memory_order_relaxed) >= 0;
}

static bool must_fail(void)
{
    /* relaxed: only a hint that the countdown is armed */
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) < 0) {
        return false;
    }
    /* relaxed: the atomic decrement alone decides which thread meets the zero */
    return atomic_fetch_sub_explicit(&fail_countdown, 1, memory_order_relaxed) == 0;
}

void egm_free(void *p)
{
    free(p);
}

void egm_freep(void *pp)
{
    void *p;

    /* the variable may be a pointer of any type: copy its bytes instead of reading it as void * */
    memcpy(&p, pp, sizeof(p));
    free(p);
}

void *egm_alloc(size_t size)
{
    return must_fail() ? NULL : malloc(size > 0 ? size : 1);
}

void *egm_calloc(size_t n, size_t size)
{
    return must_fail() ? NULL : (n > 0 && size > 0 ? calloc(n, size) : calloc(1, 1));
}

void *egm_alloc_aligned(size_t alignment, size_t size)
{
    return must_fail() ? NULL : aligned_alloc(alignment, size);
}

bool egm_alloc_admits(void)
{
    return !must_fail();
}

void *egm_realloc(void *p, size_t size)
{
    return must_fail() ? NULL : realloc(p, size > 0 ? size : 1);
}

char *egm_strndup(const char *s, size_t n)
{
    size_t len = strnlen(s, n);
    char *copy = egm_alloc(len + 1);

    if (copy) {
        memcpy(copy, s, len);
        copy[len] = '\0';
    }
    return copy;
}
