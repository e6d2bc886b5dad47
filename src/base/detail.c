/* SPDX-License-Identifier: Apache-2.0 */
#include "base/detail.h"

#include "base/assert.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int egm_fail(struct egm_detail *reterr, int code, const char *stage, const char *fmt, ...)
{
    static const char cut[] = "...";
    va_list ap;
    int n;

    EGM_ASSERT(code < 0);
    if (!reterr) {
        return code;
    }
    reterr->code = code;
    snprintf(reterr->stage, sizeof(reterr->stage), "%s", stage);
    va_start(ap, fmt);
    n = vsnprintf(reterr->text, sizeof(reterr->text), fmt, ap);
    va_end(ap);
    if (n < 0) {
        snprintf(reterr->text, sizeof(reterr->text), "%s", egm_strerror(code));
    } else if ((size_t)n >= sizeof(reterr->text)) {
        memcpy(reterr->text + sizeof(reterr->text) - sizeof(cut), cut, sizeof(cut));
    }
    return code;
}
