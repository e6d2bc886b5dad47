/* SPDX-License-Identifier: Apache-2.0 */
/* Everything: include this one, or the parts. */
#ifndef EGMSTORE_EGMSTORE_H
#define EGMSTORE_EGMSTORE_H

#include "egmstore/errors.h"
#include "egmstore/provider.h"
#include "egmstore/store.h"
#include "egmstore/types.h"
#include "egmstore/version.h"

#endif
