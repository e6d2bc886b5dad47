/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that this code base does not use; the build includes this file before everything else.
 *
 * strcpy, strcat, sprintf, vsprintf, strtok: no bound or hidden state; use struct egm_buf or
 * snprintf. gmtime: static result; use gmtime_r. atoi: no errors; use egm_parse_u64. alloca:
 * unbounded stack. rand: neither random nor repeatable; take randomness from the caller (pure code)
 * or from os/.
 *
 * The headers that declare these names come first, because a poisoned name may not even be
 * declared.
 */
#ifndef EGM_BASE_BANNED_H
#define EGM_BASE_BANNED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#undef alloca
#pragma GCC poison strcpy strcat sprintf vsprintf strtok gmtime atoi alloca rand

#endif
