/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 for AVX-512 F. Compiled with -mavx512f; called only where the CPU has it. */
#define XXH_VECTOR XXH_AVX512
#define EGM_VARIANT egm_checksum_avx512
#define EGM_VARIANT_NAME "avx512"
#include "mover/checksum_xxh3.h"
