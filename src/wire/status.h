/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses on the wire: a fixed table of their own, so that no errno or library code crosses a
 * socket (R26). */
#ifndef EGM_WIRE_STATUS_H
#define EGM_WIRE_STATUS_H

#include <stdint.h>

/* S(wire number, our code) */
/* clang-format off */
#define EGM_STATUSES(S)                                                                     \
    S(1, EGM_E_STALE)                                                                       \
    S(2, EGM_E_EVICTED) S(3, EGM_E_NO_SPACE) S(4, EGM_E_PEER_GONE) S(5, EGM_E_PROTO)        \
        S(6, EGM_E_NOT_FOUND) S(7, EGM_E_EXISTS) S(8, EGM_E_LEASED) S(9, EGM_E_NOT_READY)   \
            S(10, EGM_E_NO_SEGMENT) S(11, EGM_E_TOO_LARGE) S(12, EGM_E_CHECKSUM)            \
                S(13, EGM_E_TRANSFER) S(14, EGM_E_NOT_OWNER) S(15, EGM_E_CLOSED)            \
                    S(16, EGM_E_UNREGISTERED) S(17, EGM_E_BAD_KEY) S(18, EGM_E_VERSION)     \
                        S(19, EGM_E_AGAIN) S(20, EGM_E_UNSUPPORTED) S(21, EGM_E_LIMIT)      \
                            S(22, EGM_E_INVALID) S(23, EGM_E_TIMEOUT) S(24, EGM_E_INTERNAL) \
                                S(25, EGM_E_NOT_PERMITTED)
/* clang-format on */

/* 0 and positive values stay; an errno becomes EGM_E_INTERNAL's number. */
int32_t egm_status_to_wire(int code);
/* An unknown number becomes EGM_E_PROTO. */
int egm_status_from_wire(int32_t status);

#endif
