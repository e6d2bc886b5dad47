/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/status.h"

#include "egmstore/errors.h"

int32_t egm_status_to_wire(int code)
{
    switch (code) {
#define EGM_TO(number, code) \
    case (code):             \
        return -(number);
        EGM_STATUSES(EGM_TO)
#undef EGM_TO
    default:
        return code >= 0 ? code : egm_status_to_wire(EGM_E_INTERNAL);
    }
}

int egm_status_from_wire(int32_t status)
{
    switch (-(int64_t)status) {
#define EGM_FROM(number, code) \
    case (number):             \
        return (code);
        EGM_STATUSES(EGM_FROM)
#undef EGM_FROM
    default:
        return status >= 0 ? (int)status : EGM_E_PROTO;
    }
}
