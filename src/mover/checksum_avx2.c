/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 for AVX2. Compiled with -mavx2; called only where the CPU has it. */
#define XXH_VECTOR XXH_AVX2
#define EGM_VARIANT egm_checksum_avx2
#define EGM_VARIANT_NAME "avx2"
#include "mover/checksum_xxh3.h"
