/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict parsers of what people and peers write: numbers, sizes, durations, booleans, addresses.
 *
 * The whole string must match; there is no leading or trailing space, no sign, no hex, no exponent,
 * and no silent wrap. All return 0, EGM_E_INVALID for malformed text, or EGM_E_LIMIT for a
 * well-formed value outside [min, max]; *ret is written only on success. NULL is malformed. No
 * locale is consulted. @threadsafe
 */
#ifndef EGM_BASE_PARSE_H
#define EGM_BASE_PARSE_H

#include "egmstore/errors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decimal digits: "0", "42". */
EGM_MUST_CHECK int egm_parse_u64(const char *s, uint64_t min, uint64_t max, uint64_t *ret);

/* Bytes: digits, or a decimal fraction with a unit, spaces between allowed: "16777216", "16MB", "16
 * MB", "1.5gb". Units in any case: B, K, KB, KiB, M.., G.., T..; all 1024-based. A part of a byte
 * is cut off. A fraction without a unit is malformed ("1.5"), as are "50%", "1e9", "0x10", "-1",
 * "". */
EGM_MUST_CHECK int egm_parse_size(const char *s, uint64_t min, uint64_t max, uint64_t *ret);

/* Milliseconds: digits (ms), or with a unit in any case: "250ms", "5s", "30m", "1h", "1.5s"; min
 * and max in ms. */
EGM_MUST_CHECK int egm_parse_duration_ms(const char *s, uint64_t min, uint64_t max, uint64_t *ret);

/* Decimal fraction: "0.8", "1", ".5" is malformed. */
EGM_MUST_CHECK int egm_parse_double(const char *s, double min, double max, double *ret);

/* true/false/1/0/yes/no/on/off in any case. */
EGM_MUST_CHECK int egm_parse_bool(const char *s, bool *ret);

struct egm_address {
    char host[256]; /* never empty; an IPv6 address without brackets, its %scope included */
    uint16_t port;  /* 1..65535, or 0 if has_port is false */
    bool has_port;
};

/* "host", "host:port", "1.2.3.4[:port]", "::1" (never with a port), "[::1]", "[::1]:port",
 * "fe80::1%lo",
 * "[fe80::1%lo]:port", "fe80::1%lo:port" (an interface name holds no colon, so this can only be a
 * port). A name has letters, digits, '-', '_', '.'; a name that ends in a number must be an IPv4
 * address. Port 0 is malformed: "any port" is said by leaving the port out. */
EGM_MUST_CHECK int egm_parse_address(const char *s, struct egm_address *ret);

/* Writes the address with brackets around IPv6, and its port if it has one, NUL included. Returns
 * the length, or EGM_E_TOO_LARGE and leaves an empty string. EGM_ADDRESS_TEXT bytes always suffice.
 * Pre: size > 0. */
EGM_MUST_CHECK int egm_format_address(const struct egm_address *address, char *ret_text,
                                      size_t size);

#define EGM_ADDRESS_TEXT (256 + 2 + 6)

#endif
