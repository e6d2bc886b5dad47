/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 without vector instructions: the reference of the others, and the fallback on any CPU. */
#define XXH_VECTOR XXH_SCALAR
#define EGM_VARIANT egm_checksum_scalar
#define EGM_VARIANT_NAME "scalar"
#include "mover/checksum_xxh3.h"
