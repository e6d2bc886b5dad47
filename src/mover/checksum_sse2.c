/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 for SSE2, which every x86-64 CPU has. */
#define XXH_VECTOR XXH_SSE2
#define EGM_VARIANT egm_checksum_sse2
#define EGM_VARIANT_NAME "sse2"
#include "mover/checksum_xxh3.h"
