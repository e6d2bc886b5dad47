/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"

#include "base/log.h"

#include <stdlib.h>

void egm_assert_failed(const char *text, const char *file, int line, const char *function)
{
    egm_log(EGM_LOG_ERROR, "assertion failed, aborting expr=\"%s\" at=%s:%d function=%s", text,
            file, line, function);
    abort();
}
