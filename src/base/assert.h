/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assertions: statements about our own code, never about data from a peer or a user (that is
 * validated and refused).
 *
 * EGM_ASSERT stays in release builds: a wrong byte served is worse than a restart. It must be cheap
 * and free of side effects. EGM_ASSERT_SLOW is for checks that walk structures; it exists only
 * where EGM_DEBUG is 1 (build type debug).
 */
#ifndef EGM_BASE_ASSERT_H
#define EGM_BASE_ASSERT_H

#include "egmstore/errors.h"

#include <assert.h> /* static_assert */

#ifndef EGM_DEBUG
#define EGM_DEBUG 0
#endif

/* Logs the place and the text, then aborts. */
__attribute__((noreturn, cold)) void egm_assert_failed(const char *text, const char *file, int line,
                                                       const char *function);

#define EGM_ASSERT(x) \
    (__builtin_expect(!(x), 0) ? egm_assert_failed(#x, __FILE__, __LINE__, __func__) : (void)0)

/* The release form still compiles the expression, so that it cannot rot, but never evaluates it. */
#if EGM_DEBUG
#define EGM_ASSERT_SLOW(x) EGM_ASSERT(x)
#else
#define EGM_ASSERT_SLOW(x) ((void)sizeof(!(x)))
#endif

/* Drops the result of an EGM_MUST_CHECK call on purpose; `why` is for the reader. */
static inline void egm_ignore(int result, const char *why)
{
    (void)result;
    (void)why;
}

#endif
