/* SPDX-License-Identifier: Apache-2.0 */
/* Body of copy_nt_<width>.c. The including file defines store_block(dst, src), which stores
 * BLOCK_BYTES past the cache to a destination aligned to a cache line, and EGM_KERNEL and
 * EGM_KERNEL_NAME. No include guard: included once per file.
 *
 * Stores past the cache are outside the C11 memory model: release orders do not cover them on x86
 * and no C11 fence is sure to emit the needed instruction, hence the sfence here. */
#include "mover/copy_kernel.h"

#include <cpuid.h>
#include <immintrin.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define LINE_BYTES 64u

static void prefetch_block(const unsigned char *at)
{
    for (size_t i = 0; i < BLOCK_BYTES; i += LINE_BYTES) {
        __builtin_prefetch(at + i, /*write=*/0, /*locality=*/3);
    }
}

static void kernel_stream(void *dst, const void *src, size_t size, const void *ahead,
                          size_t ahead_size)
{
    unsigned char *to = dst;
    const unsigned char *from = src;
    const unsigned char *next = ahead;
    size_t head = (size_t)(-(uintptr_t)to & (LINE_BYTES - 1u));

    memcpy(to, from, head);
    to += head;
    from += head;
    size -= head;
    for (; size >= BLOCK_BYTES; size -= BLOCK_BYTES) {
        if (ahead_size >= BLOCK_BYTES) {
            prefetch_block(next);
            next += BLOCK_BYTES;
            ahead_size -= BLOCK_BYTES;
        }
        store_block(to, from);
        to += BLOCK_BYTES;
        from += BLOCK_BYTES;
    }
    memcpy(to, from, size);
}

static void kernel_settle(void)
{
    _mm_sfence();
}

/* CLFLUSHOPT, for which the compiler's own question about the CPU has no name. Asked once: in a
 * virtual machine the question is slow. */
static bool has_weak_flush(void)
{
    static _Atomic int known; /* 0: not yet; 1: no; 2: yes. relaxed: each thread finds the same */
    unsigned a, b, c, d;

    if (atomic_load_explicit(&known, memory_order_relaxed) == 0) {
        bool has = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 23 & 1) != 0;
        atomic_store_explicit(&known, has ? 2 : 1, memory_order_relaxed);
    }
    return atomic_load_explicit(&known, memory_order_relaxed) == 2;
}

/* Measured: 8 MiB take 0.4 ms; flushes that wait for each other take 20 ms. */
__attribute__((target("clflushopt"))) static void flush_weakly(const unsigned char *at, size_t size)
{
    for (size_t i = 0; i < size; i += LINE_BYTES) {
        _mm_clflushopt((void *)(uintptr_t)(at + i));
    }
}

static void kernel_evict(const void *data, size_t size)
{
    const unsigned char *at = data;

    if (has_weak_flush()) {
        flush_weakly(at, size);
    } else {
        for (size_t i = 0; i < size; i += LINE_BYTES) {
            _mm_clflush(at + i);
        }
    }
    _mm_mfence();
}

const struct egm_copy_kernel EGM_KERNEL = {
    .name = EGM_KERNEL_NAME,
    .stream = kernel_stream,
    .settle = kernel_settle,
    .evict = kernel_evict,
};
