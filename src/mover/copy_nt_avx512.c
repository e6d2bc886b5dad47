/* SPDX-License-Identifier: Apache-2.0 */
/* Copy past the cache with AVX-512 F, a line per store. Compiled with -mavx512f; called only where
 * the CPU has it. */
#include <immintrin.h>

#define BLOCK_BYTES 256u
#define EGM_KERNEL egm_copy_nt_avx512
#define EGM_KERNEL_NAME "nt-avx512"

static inline void store_block(unsigned char *dst, const unsigned char *src)
{
    __m512i a = _mm512_loadu_si512(src);
    __m512i b = _mm512_loadu_si512(src + 64);
    __m512i c = _mm512_loadu_si512(src + 128);
    __m512i d = _mm512_loadu_si512(src + 192);
    _mm512_stream_si512((void *)dst, a);
    _mm512_stream_si512((void *)(dst + 64), b);
    _mm512_stream_si512((void *)(dst + 128), c);
    _mm512_stream_si512((void *)(dst + 192), d);
}

#include "mover/copy_nt.h"
