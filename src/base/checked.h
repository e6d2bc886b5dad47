/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic on sizes that cannot wrap silently, and the small helpers everyone needs.
 *
 * Lengths and counts from outside are compared against a bound first; where two of them are
 * combined, these functions do it. The checked ones return 0, or EGM_E_LIMIT and leave *ret alone.
 * The inline ones without a code have their precondition stated and asserted.
 */
#ifndef EGM_BASE_CHECKED_H
#define EGM_BASE_CHECKED_H

#include "base/assert.h"

#include "egmstore/errors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

EGM_MUST_CHECK static inline int egm_mul_size(size_t *ret, size_t a, size_t b)
{
    size_t v;

    if (__builtin_mul_overflow(a, b, &v)) {
        return EGM_E_LIMIT;
    }
    *ret = v;
    return 0;
}

EGM_MUST_CHECK static inline int egm_add_size(size_t *ret, size_t a, size_t b)
{
    size_t v;

    if (__builtin_add_overflow(a, b, &v)) {
        return EGM_E_LIMIT;
    }
    *ret = v;
    return 0;
}

EGM_MUST_CHECK static inline int egm_mul_u64(uint64_t *ret, uint64_t a, uint64_t b)
{
    uint64_t v;

    if (__builtin_mul_overflow(a, b, &v)) {
        return EGM_E_LIMIT;
    }
    *ret = v;
    return 0;
}

EGM_MUST_CHECK static inline int egm_add_u64(uint64_t *ret, uint64_t a, uint64_t b)
{
    uint64_t v;

    if (__builtin_add_overflow(a, b, &v)) {
        return EGM_E_LIMIT;
    }
    *ret = v;
    return 0;
}

static inline bool egm_is_pow2(uint64_t v)
{
    return v != 0 && (v & (v - 1)) == 0;
}

/* Pre: pow2 is a power of two. */
static inline uint64_t egm_align_down(uint64_t v, uint64_t pow2)
{
    EGM_ASSERT(egm_is_pow2(pow2));
    return v & ~(pow2 - 1);
}

/* Pre: pow2 is a power of two and v + pow2 - 1 does not wrap. */
static inline uint64_t egm_align_up(uint64_t v, uint64_t pow2)
{
    EGM_ASSERT(egm_is_pow2(pow2) && v <= UINT64_MAX - (pow2 - 1));
    return (v + (pow2 - 1)) & ~(pow2 - 1);
}

static inline uint64_t egm_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t egm_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Smallest n with n * b >= a; never wraps. Pre: b > 0. */
static inline uint64_t egm_div_ceil_u64(uint64_t a, uint64_t b)
{
    EGM_ASSERT(b > 0);
    return a / b + (a % b != 0);
}

/* Number of elements of an array (not of a pointer: that does not compile). */
#define EGM_COUNT_OF(array)                                                  \
    (sizeof(array) / sizeof((array)[0]) +                                    \
     0 * sizeof(char[1 - 2 * __builtin_types_compatible_p(__typeof__(array), \
                                                          __typeof__(&(array)[0]))]))

/* The struct of type `type` whose member `member` is at `ptr`. */
#define egm_container_of(ptr, type, member) \
    ((type *)(void *)((char *)(1 ? (ptr) : &((type *)0)->member) - offsetof(type, member)))

#endif
