/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 for NEON, which every aarch64 CPU has. */
#define XXH_VECTOR XXH_NEON
#define EGM_VARIANT egm_checksum_neon
#define EGM_VARIANT_NAME "neon"
#include "mover/checksum_xxh3.h"
