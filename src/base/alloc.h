/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one place where heap memory comes from.
 *
 * Same contract as malloc and friends, with two additions: a size of 0 gives a valid unique
 * pointer, and a test can arm a countdown that makes the N-th allocation fail. With it, a sweep N =
 * 0, 1, 2... walks a piece of code through every possible out-of-memory (STYLE, section 6.13).
 *
 * Ownership: what these return is freed with egm_free. @threadsafe, the countdown included.
 */
#ifndef EGM_BASE_ALLOC_H
#define EGM_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Frees p; NULL is fine. */
void egm_free(void *p);

/* `size` uninitialised bytes, or NULL. */
__attribute__((malloc, alloc_size(1), warn_unused_result)) void *egm_alloc(size_t size);

/* n * size zero bytes, or NULL (also when the product overflows). */
__attribute__((malloc, alloc_size(1, 2), warn_unused_result)) void *egm_calloc(size_t n,
                                                                               size_t size);

/* `size` uninitialised bytes at a multiple of `alignment`, or NULL. Pre: alignment is a power of
 * two and size a multiple of it. */
__attribute__((malloc, alloc_align(1), alloc_size(2), warn_unused_result)) void *egm_alloc_aligned(
    size_t alignment, size_t size);

/* For allocators that cut up memory of their own: counts one allocation there. False: it is the one
 * that the armed countdown makes fail. */
bool egm_alloc_admits(void);

/* Grows or shrinks p (NULL: allocates). On NULL the old block is untouched and still owned by the
 * caller. */
__attribute__((alloc_size(2), warn_unused_result)) void *egm_realloc(void *p, size_t size);

/* Copy of at most n bytes of s, with a NUL behind; or NULL. */
__attribute__((malloc, warn_unused_result)) char *egm_strndup(const char *s, size_t n);

/* For tests: n more allocations succeed, the one after them fails, those after it succeed again. -1
 * disarms. Counts over all threads. */
void egm_alloc_fail_after(int64_t n);

/* True from arming until the failure has happened. */
bool egm_alloc_fail_is_armed(void);

/* For EGM_CLEANUP on a pointer variable of any type: frees *pp. */
void egm_freep(void *pp);

/* Runs fn(&variable) when the variable goes out of scope. Not together with a goto ladder in one
 * function (R28). */
#define EGM_CLEANUP(fn) __attribute__((cleanup(fn)))

#endif
