/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of what users write, whole: contract/faults.md B104 (addresses) and B109 (sizes, booleans,
 * integers), with our answer to each, and the edges next to them.
 */
#include "base/parse.h"

#include "test.h"

#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

struct number_case {
    const char *text;
    int result;
    uint64_t value;
};

typedef int (*number_parser_fn)(const char *s, uint64_t min, uint64_t max, uint64_t *ret);

static void check_numbers(number_parser_fn parse, const struct number_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t v = 12345;
        int r = parse(cases[i].text, 0, UINT64_MAX, &v);

        ck_assert_msg(r == cases[i].result, "'%s' gave %d, not %d", cases[i].text, r,
                      cases[i].result);
        ck_assert_msg(v == (r == 0 ? cases[i].value : 12345), "'%s' gave %lu", cases[i].text,
                      (unsigned long)v);
    }
}

START_TEST(sizes_of_b109)
{
    static const struct number_case cases[] = {
        {"16777216", 0, 16 * MIB},
        {"16MB", 0, 16 * MIB},
        {"16 MB", 0, 16 * MIB},
        {"1.5gb", 0, GIB + GIB / 2},
        {"1g", 0, GIB},
        {"0x10", EGM_E_INVALID, 0},
        {"-1", EGM_E_INVALID, 0},
        {"", EGM_E_INVALID, 0},
        {"abc", EGM_E_INVALID, 0},
        {"50%", EGM_E_INVALID, 0},
        {"1e9", EGM_E_INVALID, 0},
        {"1.5", EGM_E_INVALID, 0},
        {"9223372036854775808", 0, UINT64_C(1) << 63},
        {"512MB", 0, 512 * MIB},
    };

    check_numbers(egm_parse_size, cases, EGM_COUNT_OF(cases));
}
END_TEST

START_TEST(sizes_at_their_edges)
{
    static const struct number_case cases[] = {
        {"0", 0, 0},
        {"0b", 0, 0},
        {"4GiB", 0, 4 * GIB},
        {"4GIB", 0, 4 * GIB},
        {"1k", 0, 1024},
        {"1KB", 0, 1024},
        {"2kib", 0, 2048},
        {"3M", 0, 3 * MIB},
        {"3mib", 0, 3 * MIB},
        {"1t", 0, GIB * 1024},
        {"1TB", 0, GIB * 1024},
        {"0.5TiB", 0, GIB * 512},
        {"7 b", 0, 7},
        {"16   MB", 0, 16 * MIB},
        {"1.0001k", 0, 1024},
        {"1.9999999999999k", 0, 2047},
        {"18446744073709551615", 0, UINT64_MAX},
        {"18446744073709551616", EGM_E_LIMIT, 0},
        {"16777215T", 0, UINT64_C(16777215) << 40},
        {"16777216T", EGM_E_LIMIT, 0},
        {"99999999999999999999999999G", EGM_E_LIMIT, 0},
        {NULL, EGM_E_INVALID, 0},
        {" 5", EGM_E_INVALID, 0},
        {"5 ", EGM_E_INVALID, 0},
        {"5MB ", EGM_E_INVALID, 0},
        {"+5", EGM_E_INVALID, 0},
        {"5\tMB", EGM_E_INVALID, 0},
        {".5MB", EGM_E_INVALID, 0},
        {"5.MB", EGM_E_INVALID, 0},
        {"1.2.3MB", EGM_E_INVALID, 0},
        {"1,5MB", EGM_E_INVALID, 0},
        {"5MBs", EGM_E_INVALID, 0},
        {"MB", EGM_E_INVALID, 0},
        {"5 M B", EGM_E_INVALID, 0},
        {"infinity", EGM_E_INVALID, 0},
    };

    check_numbers(egm_parse_size, cases, EGM_COUNT_OF(cases));
}
END_TEST

START_TEST(integers_of_b109)
{
    static const struct number_case cases[] = {
        {"", EGM_E_INVALID, 0},
        {" 5", EGM_E_INVALID, 0},
        {"5x", EGM_E_INVALID, 0},
        {"-1", EGM_E_INVALID, 0},
        {"999999999999", 0, UINT64_C(999999999999)},
        {"abc", EGM_E_INVALID, 0},
        {"0", 0, 0},
        {"007", 0, 7},
        {"18446744073709551615", 0, UINT64_MAX},
        {"18446744073709551616", EGM_E_LIMIT, 0},
        {"0x10", EGM_E_INVALID, 0},
        {"1.0", EGM_E_INVALID, 0},
        {"1e3", EGM_E_INVALID, 0},
        {"+1", EGM_E_INVALID, 0},
        {"5\n", EGM_E_INVALID, 0},
        {NULL, EGM_E_INVALID, 0},
    };
    uint64_t v = 1;

    check_numbers(egm_parse_u64, cases, EGM_COUNT_OF(cases));
    ck_assert_int_eq(egm_parse_u64("999999999999", 0, UINT32_MAX, &v), EGM_E_LIMIT);
    ck_assert_int_eq(egm_parse_u64("4", 5, 6, &v), EGM_E_LIMIT);
    ck_assert_int_eq(egm_parse_u64("7", 5, 6, &v), EGM_E_LIMIT);
    ck_assert_uint_eq(v, 1);
    ck_assert_int_eq(egm_parse_u64("5", 5, 6, &v), 0);
    ck_assert_int_eq(egm_parse_u64("6", 5, 6, &v), 0);
    ck_assert_uint_eq(v, 6);
}
END_TEST

START_TEST(durations)
{
    static const struct number_case cases[] = {
        {"5000", 0, 5000},         {"250ms", 0, 250},
        {"5s", 0, 5000},           {"5 S", 0, 5000},
        {"1.5s", 0, 1500},         {"30m", 0, 1800000},
        {"1h", 0, 3600000},        {"0", 0, 0},
        {"1d", EGM_E_INVALID, 0},  {"1.5", EGM_E_INVALID, 0},
        {"-1s", EGM_E_INVALID, 0}, {"", EGM_E_INVALID, 0},
        {"s", EGM_E_INVALID, 0},   {"18446744073709551615h", EGM_E_LIMIT, 0},
    };

    check_numbers(egm_parse_duration_ms, cases, EGM_COUNT_OF(cases));
}
END_TEST

START_TEST(booleans_of_b109)
{
    static const char *const yes[] = {"true", "1", "yes", "on", "TRUE", "Yes", "oN", "True"};
    static const char *const no[] = {"false", "0", "no", "off", "FALSE", "No", "OFF", "False"};
    static const char *const bad[] = {"maybe", "",      "2",     "y",  "tru",
                                      "truee", " true", "true ", "01", NULL};
    bool v;

    for (size_t i = 0; i < EGM_COUNT_OF(yes); i++) {
        v = false;
        ck_assert_int_eq(egm_parse_bool(yes[i], &v), 0);
        ck_assert_msg(v, "%s", yes[i]);
    }
    for (size_t i = 0; i < EGM_COUNT_OF(no); i++) {
        v = true;
        ck_assert_int_eq(egm_parse_bool(no[i], &v), 0);
        ck_assert_msg(!v, "%s", no[i]);
    }
    for (size_t i = 0; i < EGM_COUNT_OF(bad); i++) {
        v = true;
        ck_assert_int_eq(egm_parse_bool(bad[i], &v), EGM_E_INVALID);
        ck_assert(v);
    }
}
END_TEST

START_TEST(fractions)
{
    double v = 7;

    ck_assert_int_eq(egm_parse_double("0.8", 0, 1, &v), 0);
    ck_assert_double_eq_tol(v, 0.8, 1e-12);
    ck_assert_int_eq(egm_parse_double("1", 0, 1, &v), 0);
    ck_assert_double_eq(v, 1.0);
    ck_assert_int_eq(egm_parse_double("1.5", 0, 1, &v), EGM_E_LIMIT);
    ck_assert_int_eq(egm_parse_double("-0.5", 0, 1, &v), EGM_E_INVALID);
    ck_assert_int_eq(egm_parse_double(".5", 0, 1, &v), EGM_E_INVALID);
    ck_assert_int_eq(egm_parse_double("0,5", 0, 1, &v), EGM_E_INVALID);
    ck_assert_int_eq(egm_parse_double("nan", 0, 1, &v), EGM_E_INVALID);
    ck_assert_int_eq(egm_parse_double("", 0, 1, &v), EGM_E_INVALID);
    ck_assert_double_eq(v, 1.0);
}
END_TEST

struct address_case {
    const char *text;
    const char *host; /* NULL: refused */
    int port;         /* -1: none */
    const char *formatted;
};

static void check_addresses(const struct address_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct address_case *c = &cases[i];
        struct egm_address address = {.port = 1};
        char text[EGM_ADDRESS_TEXT];
        int r = egm_parse_address(c->text, &address);

        if (!c->host) {
            ck_assert_msg(r < 0, "'%s' was accepted as host '%s'", c->text, address.host);
            ck_assert_uint_eq(address.port, 1);
            continue;
        }
        ck_assert_msg(r == 0, "'%s' gave %d", c->text, r);
        ck_assert_str_eq(address.host, c->host);
        ck_assert_int_eq(address.has_port ? address.port : -1, c->port);
        ck_assert_int_eq(egm_format_address(&address, text, sizeof(text)),
                         (int)strlen(c->formatted));
        ck_assert_str_eq(text, c->formatted);
    }
}

START_TEST(addresses_of_b104)
{
    static const struct address_case cases[] = {
        {"1.2.3.4", "1.2.3.4", -1, "1.2.3.4"},
        {"1.2.3.4:5", "1.2.3.4", 5, "1.2.3.4:5"},
        {"h", "h", -1, "h"},
        {"h:5", "h", 5, "h:5"},
        {"::1", "::1", -1, "[::1]"},
        {"[::1]", "::1", -1, "[::1]"},
        {"[::1]:5", "::1", 5, "[::1]:5"},
        {"fe80::1%lo", "fe80::1%lo", -1, "[fe80::1%lo]"},
        {"[fe80::1%lo]:5", "fe80::1%lo", 5, "[fe80::1%lo]:5"},
        {"fe80::1%lo:5", "fe80::1%lo", 5, "[fe80::1%lo]:5"},
        {":5", NULL, 0, NULL},
        {"", NULL, 0, NULL},
        {"h:", NULL, 0, NULL},
        {"h:0", NULL, 0, NULL},
        {"h:65536", NULL, 0, NULL},
        {"h:abc", NULL, 0, NULL},
        {"a:b:c", NULL, 0, NULL},
        {"::", "::", -1, "[::]"},
        {"[::1]:17001", "::1", 17001, "[::1]:17001"},
        {"http://[::1]:8080/metadata", NULL, 0, NULL},
    };

    check_addresses(cases, EGM_COUNT_OF(cases));
}
END_TEST

START_TEST(addresses_at_their_edges)
{
    static const struct address_case cases[] = {
        {"h:1", "h", 1, "h:1"},
        {"h:65535", "h", 65535, "h:65535"},
        {"node-1.rack_2.example", "node-1.rack_2.example", -1, "node-1.rack_2.example"},
        {"2001:db8::8:5", "2001:db8::8:5", -1, "[2001:db8::8:5]"},
        {"1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8", -1, "[1:2:3:4:5:6:7:8]"},
        {"1::2:3:4:5:6:7:8", NULL, 0, NULL},
        {"1:2:3:4:5:6:7::", "1:2:3:4:5:6:7::", -1, "[1:2:3:4:5:6:7::]"},
        {"1:2:3:4:5:6:7", NULL, 0, NULL},
        {"1:2:3:4:5:6:7:8:9", NULL, 0, NULL},
        {"1::2::3", NULL, 0, NULL},
        {":::", NULL, 0, NULL},
        {"1:", NULL, 0, NULL},
        {"::1:", NULL, 0, NULL},
        {":1::", NULL, 0, NULL},
        {"12345::", NULL, 0, NULL},
        {"::ffff:1.2.3.4", "::ffff:1.2.3.4", -1, "[::ffff:1.2.3.4]"},
        {"[::ffff:1.2.3.4]:9", "::ffff:1.2.3.4", 9, "[::ffff:1.2.3.4]:9"},
        {"::ffff:1.2.3.256", NULL, 0, NULL},
        {"::1.2.3.4:5", NULL, 0, NULL},
        {"[::1", NULL, 0, NULL},
        {"::1]", NULL, 0, NULL},
        {"[::1]x", NULL, 0, NULL},
        {"[::1]:", NULL, 0, NULL},
        {"[::1]:0", NULL, 0, NULL},
        {"[]:5", NULL, 0, NULL},
        {"[h]:5", NULL, 0, NULL},
        {"[1.2.3.4]:5", NULL, 0, NULL},
        {"fe80::1%", NULL, 0, NULL},
        {"fe80::1%lo:", NULL, 0, NULL},
        {"fe80::1%l/o", NULL, 0, NULL},
        {"h%lo", NULL, 0, NULL},
        {"256.1.1.1", NULL, 0, NULL},
        {"1.2.3", NULL, 0, NULL},
        {"1.2.3.4.5", NULL, 0, NULL},
        {"1.2.3.4.", NULL, 0, NULL},
        {"5", NULL, 0, NULL},
        {"h h", NULL, 0, NULL},
        {" h", NULL, 0, NULL},
        {"h:5 ", NULL, 0, NULL},
        {"h:+5", NULL, 0, NULL},
        {"-h", NULL, 0, NULL},
        {".h", NULL, 0, NULL},
        {"h/x", NULL, 0, NULL},
        {"h\xc3\xa9", NULL, 0, NULL},
        {NULL, NULL, 0, NULL},
    };

    check_addresses(cases, EGM_COUNT_OF(cases));
}
END_TEST

START_TEST(longest_host_fits_and_one_more_does_not)
{
    char text[300];
    char formatted[EGM_ADDRESS_TEXT];
    struct egm_address address;

    memset(text, 'a', sizeof(text));
    memcpy(text + 255, ":65535", 7);
    ck_assert_int_eq(egm_parse_address(text, &address), 0);
    ck_assert_uint_eq(strlen(address.host), 255);
    ck_assert_int_eq(egm_format_address(&address, formatted, sizeof(formatted)), 261);
    ck_assert_int_eq(egm_format_address(&address, formatted, 261), EGM_E_TOO_LARGE);
    ck_assert_str_eq(formatted, "");
    ck_assert_int_eq(egm_format_address(&address, formatted, 262), 261);
    text[255] = 'a';
    text[256] = '\0';
    ck_assert_int_eq(egm_parse_address(text, &address), EGM_E_LIMIT);
}
END_TEST

EGM_TEST_MAIN("base_parse", sizes_of_b109, sizes_at_their_edges, integers_of_b109, durations,
              booleans_of_b109, fractions, addresses_of_b104, addresses_at_their_edges,
              longest_host_fits_and_one_more_does_not)
