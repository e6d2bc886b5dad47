/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our result codes in Mooncake's numbers: the only place where these numbers stand.
 *
 * Callers of Mooncake's API compare against its numbers (vLLM's "store pressure" is -200, its
 * encoder-cache connector refuses codes it does not know), so each cause gets the number that
 * upstream would have used for it. Several causes share -600: upstream has no words for them, and
 * last_error() tells them apart.
 */
#include "binding.h"

#include <errno.h>

struct code_pair {
    int ours;
    int mooncakes;
};

enum {
    INTERNAL_ERROR = -1
};

static const struct code_pair code_pairs[] = {
    {EGM_E_NO_SPACE, -200},     {EGM_E_NO_SEGMENT, -101},
    {EGM_E_NOT_FOUND, -704},    {EGM_E_EVICTED, -704},
    {EGM_E_EXISTS, -705},       {EGM_E_LEASED, -706},
    {EGM_E_NOT_READY, -703},    {EGM_E_STALE, -707},
    {EGM_E_TOO_LARGE, -600},    {EGM_E_UNREGISTERED, -600},
    {EGM_E_INVALID, -600},      {EGM_E_BAD_KEY, -600},
    {EGM_E_LIMIT, -600},        {EGM_E_CLOSED, -600},
    {EGM_E_NOT_OWNER, -601},    {EGM_E_NOT_PERMITTED, -601},
    {EGM_E_TRANSFER, -800},     {EGM_E_CHECKSUM, -801},
    {EGM_E_PEER_GONE, -900},    {EGM_E_PROTO, -900},
    {EGM_E_AGAIN, -900},        {EGM_E_TIMEOUT, -901},
    {-ETIMEDOUT, -901},         {EGM_E_VERSION, -300},
    {EGM_E_UNSUPPORTED, -1012}, {EGM_E_INTERNAL, INTERNAL_ERROR},
};

int64_t egmpy_code(int64_t code)
{
    if (code >= 0) {
        return code;
    }
    for (size_t i = 0; i < sizeof(code_pairs) / sizeof(code_pairs[0]); i++) {
        if (code_pairs[i].ours == code) {
            return code_pairs[i].mooncakes;
        }
    }
    return INTERNAL_ERROR; /* every other errno */
}
