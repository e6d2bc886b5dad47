/* SPDX-License-Identifier: Apache-2.0 */
/* What checksum.c needs from one build of XXH3. Private to checksum*.c.
 *
 * State pointers are EGM_CHECKSUM_STATE_ALIGN aligned and EGM_CHECKSUM_STATE_BYTES large. Files
 * that implement a variant hold nothing else: they may be compiled for instructions that the CPU
 * at hand does not have. */
#ifndef EGM_MOVER_CHECKSUM_VARIANT_H
#define EGM_MOVER_CHECKSUM_VARIANT_H

#include <stddef.h>
#include <stdint.h>

struct egm_checksum_variant {
    const char *name;
    uint64_t (*hash)(const void *data, size_t size); /* seed 0, at once */
    void (*start)(void *state, uint64_t seed);
    void (*feed)(void *state, const void *data, size_t size);
    uint64_t (*finish)(const void *state);
};

extern const struct egm_checksum_variant egm_checksum_scalar;
#if defined(__x86_64__)
extern const struct egm_checksum_variant egm_checksum_sse2;
extern const struct egm_checksum_variant egm_checksum_avx2;
extern const struct egm_checksum_variant egm_checksum_avx512;
#elif defined(__aarch64__)
extern const struct egm_checksum_variant egm_checksum_neon;
#endif

#endif
