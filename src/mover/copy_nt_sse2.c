/* SPDX-License-Identifier: Apache-2.0 */
/* Copy past the cache with SSE2, which every x86-64 CPU has. */
#include <emmintrin.h>

#define BLOCK_BYTES 64u
#define EGM_KERNEL egm_copy_nt_sse2
#define EGM_KERNEL_NAME "nt-sse2"

static inline void store_block(unsigned char *dst, const unsigned char *src)
{
    const __m128i *from = (const __m128i *)src;
    __m128i *to = (__m128i *)dst;
    __m128i a = _mm_loadu_si128(from);
    __m128i b = _mm_loadu_si128(from + 1);
    __m128i c = _mm_loadu_si128(from + 2);
    __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
}

#include "mover/copy_nt.h"
