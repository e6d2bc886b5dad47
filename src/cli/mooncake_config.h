/* SPDX-License-Identifier: Apache-2.0 */
/* The config file of the programs that take Mooncake's flags. */
#ifndef EGM_CLI_MOONCAKE_CONFIG_H
#define EGM_CLI_MOONCAKE_CONFIG_H

#include "base/options.h"

/* Applies one JSON object, whose keys are names of flags and whose values are strings, numbers or
 * booleans, checked like the flags; what the command line has set stays. YAML, which upstream also
 * reads, is not read. 0, or EGM_E_INVALID, EGM_E_NOT_FOUND, EGM_E_LIMIT, -ENOMEM with one line of
 * text; entries before the bad one are applied. */
EGM_MUST_CHECK int egm_mooncake_config_apply(struct egm_options *o, const char *text, size_t size,
                                             struct egm_detail *reterr);

#endif
