/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict text parsers; the accepted forms are in parse.h.
 *
 * All numbers go through one scanner, which reads digits[.digits] into an integer part and a
 * fraction in units of 10^-9. Scaling by a unit is then integer arithmetic, checked for overflow,
 * so "1.5gb" is exact and nothing depends on the locale or on the rounding of floating point.
 * Digits of a fraction beyond the ninth are checked and dropped.
 */
#include "base/parse.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

#define FRACTION_ONE UINT64_C(1000000000)

struct number {
    uint64_t whole;
    uint64_t fraction; /* in 10^-9 */
    bool has_fraction;
    bool is_huge; /* well-formed, but beyond 64 bits */
};

struct unit {
    const char *name; /* lower case */
    uint64_t factor;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static char to_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_equal_nocase(const char *s, const char *lower)
{
    while (*s != '\0' && to_lower(*s) == *lower) {
        s++;
        lower++;
    }
    return *s == '\0' && *lower == '\0';
}

/* Reads digits[.digits]; returns what follows, or NULL if there is no number. */
static const char *scan_number(const char *s, struct number *ret)
{
    struct number n = {0};
    uint64_t digit_value = FRACTION_ONE / 10;

    if (!s || !is_digit(*s)) {
        return NULL;
    }
    for (; is_digit(*s); s++) {
        if (egm_mul_u64(&n.whole, n.whole, 10) < 0 ||
            egm_add_u64(&n.whole, n.whole, (uint64_t)(*s - '0')) < 0) {
            n.is_huge = true;
        }
    }
    if (*s == '.') {
        s++;
        if (!is_digit(*s)) {
            return NULL;
        }
        n.has_fraction = true;
        for (; is_digit(*s); s++) {
            n.fraction += (uint64_t)(*s - '0') * digit_value;
            digit_value /= 10;
        }
    }
    *ret = n;
    return s;
}

static int check_range(uint64_t v, uint64_t min, uint64_t max, uint64_t *ret)
{
    if (v < min || v > max) {
        return EGM_E_LIMIT;
    }
    *ret = v;
    return 0;
}

/* whole * factor + the fraction's share, rounded down. */
static int scale(const struct number *n, uint64_t factor, uint64_t *ret)
{
    uint64_t v, share;

    if (n->is_huge || egm_mul_u64(&v, n->whole, factor) < 0) {
        return EGM_E_LIMIT;
    }
    /* split the factor so that the product with a fraction below 10^9 fits 64 bits for factors up
     * to 2^63 */
    share =
        factor / FRACTION_ONE * n->fraction + factor % FRACTION_ONE * n->fraction / FRACTION_ONE;
    return egm_add_u64(ret, v, share);
}

static int parse_with_units(const char *s, const struct unit *units, size_t unit_count,
                            uint64_t min, uint64_t max, uint64_t *ret)
{
    struct number n;
    uint64_t v;
    const char *rest = scan_number(s, &n);
    const char *unit_text;

    if (!rest) {
        return EGM_E_INVALID;
    }
    if (*rest == '\0') {
        if (n.has_fraction) {
            return EGM_E_INVALID;
        }
        return n.is_huge ? EGM_E_LIMIT : check_range(n.whole, min, max, ret);
    }
    unit_text = rest + strspn(rest, " ");
    for (size_t i = 0; i < unit_count; i++) {
        if (is_equal_nocase(unit_text, units[i].name)) {
            int r = scale(&n, units[i].factor, &v);

            return r < 0 ? r : check_range(v, min, max, ret);
        }
    }
    return EGM_E_INVALID;
}

int egm_parse_u64(const char *s, uint64_t min, uint64_t max, uint64_t *ret)
{
    struct number n;
    const char *rest = scan_number(s, &n);

    if (!rest || *rest != '\0' || n.has_fraction) {
        return EGM_E_INVALID;
    }
    return n.is_huge ? EGM_E_LIMIT : check_range(n.whole, min, max, ret);
}

int egm_parse_size(const char *s, uint64_t min, uint64_t max, uint64_t *ret)
{
    static const struct unit units[] = {
        {"b", 1},
        {"k", UINT64_C(1) << 10},
        {"kb", UINT64_C(1) << 10},
        {"kib", UINT64_C(1) << 10},
        {"m", UINT64_C(1) << 20},
        {"mb", UINT64_C(1) << 20},
        {"mib", UINT64_C(1) << 20},
        {"g", UINT64_C(1) << 30},
        {"gb", UINT64_C(1) << 30},
        {"gib", UINT64_C(1) << 30},
        {"t", UINT64_C(1) << 40},
        {"tb", UINT64_C(1) << 40},
        {"tib", UINT64_C(1) << 40},
    };

    return parse_with_units(s, units, EGM_COUNT_OF(units), min, max, ret);
}

int egm_parse_duration_ms(const char *s, uint64_t min, uint64_t max, uint64_t *ret)
{
    static const struct unit units[] = {
        {"ms", 1},
        {"s", 1000},
        {"m", 60 * 1000},
        {"h", 60 * 60 * 1000},
    };

    return parse_with_units(s, units, EGM_COUNT_OF(units), min, max, ret);
}

int egm_parse_double(const char *s, double min, double max, double *ret)
{
    struct number n;
    const char *rest = scan_number(s, &n);
    double v;

    if (!rest || *rest != '\0') {
        return EGM_E_INVALID;
    }
    v = (double)n.whole + (double)n.fraction / (double)FRACTION_ONE;
    if (n.is_huge || v < min || v > max) {
        return EGM_E_LIMIT;
    }
    *ret = v;
    return 0;
}

int egm_parse_bool(const char *s, bool *ret)
{
    static const struct {
        const char *word;
        bool value;
    } words[] = {
        {"true", true},   {"1", true},  {"yes", true}, {"on", true},
        {"false", false}, {"0", false}, {"no", false}, {"off", false},
    };

    for (size_t i = 0; s && i < EGM_COUNT_OF(words); i++) {
        if (is_equal_nocase(s, words[i].word)) {
            *ret = words[i].value;
            return 0;
        }
    }
    return EGM_E_INVALID;
}

static bool is_hex_digit(char c)
{
    return is_digit(c) || (to_lower(c) >= 'a' && to_lower(c) <= 'f');
}

static bool is_ipv4(const char *s, size_t len)
{
    size_t at = 0;

    for (int part = 0; part < 4; part++) {
        unsigned value = 0;
        size_t digit_count = 0;

        if (part > 0 && (at == len || s[at++] != '.')) {
            return false;
        }
        while (at < len && is_digit(s[at]) && digit_count < 3) {
            value = value * 10 + (unsigned)(s[at] - '0');
            at++;
            digit_count++;
        }
        if (digit_count == 0 || value > 255) {
            return false;
        }
    }
    return at == len;
}

/* An IPv6 address without scope: eight groups, or fewer with one "::"; the last two may be an IPv4
 * address. */
static bool is_ipv6(const char *s, size_t len)
{
    size_t at = 0;
    int group_count = 0;
    bool has_gap = false;

    if (len >= 2 && s[0] == ':' && s[1] == ':') {
        has_gap = true;
        at = 2;
    }
    while (at < len) {
        size_t start = at;

        while (at < len && is_hex_digit(s[at])) {
            at++;
        }
        if (at < len && s[at] == '.') {
            group_count += 2;
            at = is_ipv4(s + start, len - start) ? len : start;
            if (at != len) {
                return false;
            }
            break;
        }
        if (at == start || at - start > 4) {
            return false;
        }
        group_count++;
        if (at == len) {
            break;
        }
        if (s[at++] != ':' || at == len) {
            return false;
        }
        if (s[at] == ':') {
            if (has_gap) {
                return false;
            }
            has_gap = true;
            at++;
        }
    }
    return has_gap ? group_count <= 7 : group_count == 8;
}

/* Length of the IPv6 address with its optional %scope that begins at s and ends at the first of
 * `stop` characters behind it, or 0 if there is none. */
static size_t ipv6_length(const char *s, const char *stop)
{
    size_t len = strspn(s, "0123456789abcdefABCDEF:.");
    size_t scope_len = 0;

    if (!is_ipv6(s, len)) {
        return 0;
    }
    if (s[len] == '%') {
        scope_len = 1 + strcspn(s + len + 1, stop);
        if (scope_len == 1) {
            return 0;
        }
        for (size_t i = 1; i < scope_len; i++) {
            char c = s[len + i];

            if (c <= ' ' || c == '%' || c == '[' || c == ']' || c == '/' || c > '~') {
                return 0;
            }
        }
    }
    return len + scope_len;
}

/* Length of the host name or IPv4 address at s, which ends at ':' or NUL; 0 if it is neither. */
static size_t name_length(const char *s)
{
    size_t len = strcspn(s, ":");
    size_t last_label = len;
    bool is_numeric = true;

    for (size_t i = 0; i < len; i++) {
        char c = to_lower(s[i]);

        if (!is_digit(c) && !(c >= 'a' && c <= 'z') && c != '-' && c != '_' && c != '.') {
            return 0;
        }
    }
    if (len == 0 || s[0] == '.' || s[0] == '-') {
        return 0;
    }
    while (last_label > 0 && s[last_label - 1] != '.') {
        last_label--;
        is_numeric = is_numeric && is_digit(s[last_label]);
    }
    /* resolvers read such a name as a number in odd ways ("1" is 0.0.0.1): only the plain form is
     * allowed */
    if (((is_numeric && last_label < len) || strspn(s, "0123456789.") >= len) && !is_ipv4(s, len)) {
        return 0;
    }
    return len;
}

int egm_parse_address(const char *s, struct egm_address *ret)
{
    struct egm_address address = {0};
    const char *host = s;
    const char *rest;
    size_t len;
    uint64_t port;

    if (!s) {
        return EGM_E_INVALID;
    }
    if (*s == '[') {
        host = s + 1;
        len = ipv6_length(host, "]");
        if (len == 0 || host[len] != ']') {
            return EGM_E_INVALID;
        }
        rest = host + len + 1;
    } else {
        len = ipv6_length(host, ":");
        if (len == 0) {
            len = name_length(host);
        }
        rest = host + len;
    }
    if (len == 0) {
        return EGM_E_INVALID;
    }
    if (len >= sizeof(address.host)) {
        return EGM_E_LIMIT;
    }
    memcpy(address.host, host, len);
    if (*rest != '\0') {
        int r = *rest == ':' ? egm_parse_u64(rest + 1, 1, UINT16_MAX, &port) : EGM_E_INVALID;

        if (r < 0) {
            return r;
        }
        address.port = (uint16_t)port;
        address.has_port = true;
    }
    *ret = address;
    return 0;
}

int egm_format_address(const struct egm_address *address, char *ret_text, size_t size)
{
    bool is_v6 = strchr(address->host, ':') != NULL;
    int n;

    EGM_ASSERT(size > 0);
    n = snprintf(ret_text, size, "%s%s%s", is_v6 ? "[" : "", address->host, is_v6 ? "]" : "");
    if (n >= 0 && (size_t)n < size && address->has_port) {
        int m = snprintf(ret_text + n, size - (size_t)n, ":%u", (unsigned)address->port);

        n = m < 0 ? m : n + m;
    }
    if (n < 0 || (size_t)n >= size) {
        ret_text[0] = '\0';
        return EGM_E_TOO_LARGE;
    }
    return n;
}
