/* SPDX-License-Identifier: Apache-2.0 */
#include "base/options.h"

#include "test.h"

#include <string.h>

static const struct egm_option rows[] = {
    {.name = "rpc-port",
     .aliases = "port p",
     .placeholder = "port",
     .type = EGM_OPTION_U64,
     .default_text = "50051",
     .min = 1,
     .max = 65535,
     .help = "port that requesters and providers connect to",
     .group = "Network",
     .env = "TEST_PORT"},
    {.name = "rpc-address",
     .placeholder = "address",
     .type = EGM_OPTION_ADDRESS,
     .default_text = "127.0.0.1",
     .help = "address to listen on",
     .group = "Network"},
    {.name = "enable-metric-reporting",
     .type = EGM_OPTION_BOOL,
     .default_text = "true",
     .help = "print a line of metrics every ten seconds",
     .group = "Metrics",
     .env = "TEST_METRIC"},
    {.name = "notify",
     .type = EGM_OPTION_BOOL,
     .help = "a name that begins with no",
     .group = "Metrics"},
    {.name = "eviction-high-watermark-ratio",
     .placeholder = "ratio",
     .type = EGM_OPTION_DOUBLE,
     .default_text = "0.95",
     .min = 0,
     .max = 1,
     .help = "share of a segment that may be used before eviction begins, of all its bytes",
     .group = "Memory"},
    {.name = "segment-size",
     .placeholder = "size",
     .type = EGM_OPTION_SIZE,
     .default_text = "64MB",
     .min = 65536,
     .max = UINT64_C(1) << 44,
     .unit = "bytes",
     .help = "memory to lend",
     .group = "Memory",
     .env = "TEST_SIZE"},
    {.name = "ttl",
     .placeholder = "ms",
     .type = EGM_OPTION_DURATION_MS,
     .default_text = "10s",
     .max = 3600000,
     .unit = "ms",
     .help = "life of a session",
     .group = "Memory"},
    {.name = "kind",
     .placeholder = "auto|shm|vmm",
     .type = EGM_OPTION_CHOICE,
     .default_text = "auto",
     .help = "kind of memory",
     .group = "Memory"},
    {.name = "cluster-id",
     .placeholder = "name",
     .type = EGM_OPTION_STRING,
     .max = 8,
     .help = "name"},
};

static struct egm_options o;
static struct egm_detail detail;

static void begin(void)
{
    detail = (struct egm_detail){0};
    ck_assert_int_eq(egm_options_init(&o, "egmstore test", rows, EGM_COUNT_OF(rows)), 0);
}

/* Parses words given as one space-separated text; they stay allocated until `end`. */
static char words[512];
static char *argv_space[32];

static int parse(const char *line)
{
    int argc = 1;
    char *save = NULL;

    ck_assert_uint_lt(strlen(line), sizeof(words));
    memcpy(words, line, strlen(line) + 1);
    argv_space[0] = words;
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        argv_space[argc++] = w;
    }
    return egm_options_parse_args(&o, argc, argv_space, &detail);
}

START_TEST(defaults_come_from_the_table)
{
    begin();
    ck_assert_uint_eq(egm_options_u64(&o, "rpc-port"), 50051);
    ck_assert_str_eq(egm_options_text(&o, "rpc-address"), "127.0.0.1");
    ck_assert(egm_options_bool(&o, "enable-metric-reporting"));
    ck_assert(!egm_options_bool(&o, "notify"));
    ck_assert_uint_eq(egm_options_u64(&o, "segment-size"), 64u << 20);
    ck_assert_uint_eq(egm_options_u64(&o, "ttl"), 10000);
    ck_assert_double_eq_tol(egm_options_double(&o, "eviction-high-watermark-ratio"), 0.95, 1e-12);
    ck_assert_ptr_null(egm_options_text(&o, "cluster-id"));
    ck_assert(!egm_options_is_set(&o, "cluster-id"));
    ck_assert(egm_options_is_set(&o, "kind"));
    ck_assert_int_eq(egm_options_source(&o, "kind"), EGM_SOURCE_DEFAULT);
    egm_options_release(&o);
    egm_options_release(&o);
}
END_TEST

START_TEST(all_forms_of_b112_are_read)
{
    static const char *const lines[] = {
        "--rpc-port 7", "--rpc-port=7", "-rpc-port=7",  "-rpc-port 7",
        "--rpc_port 7", "--rpc_port=7", "-rpc_port=7",  "--port=7",
        "-p 7",         "-p=7",         "-port 1 -p 7",
    };

    for (size_t i = 0; i < EGM_COUNT_OF(lines); i++) {
        begin();
        ck_assert_msg(parse(lines[i]) == 0, "%s: %s", lines[i], detail.text);
        ck_assert_msg(egm_options_u64(&o, "rpc-port") == 7, "%s", lines[i]);
        ck_assert_int_eq(egm_options_source(&o, "rpc-port"), EGM_SOURCE_ARGS);
        egm_options_release(&o);
    }
}
END_TEST

START_TEST(booleans_are_switched_and_negated)
{
    static const struct {
        const char *line;
        bool value;
    } cases[] = {
        {"--enable-metric-reporting", true},        {"--noenable_metric_reporting", false},
        {"--no-enable-metric-reporting", false},    {"-noenable-metric-reporting", false},
        {"--enable_metric_reporting=false", false}, {"--enable-metric-reporting=On", true},
        {"--enable-metric-reporting=0", false},
    };

    for (size_t i = 0; i < EGM_COUNT_OF(cases); i++) {
        begin();
        ck_assert_msg(parse(cases[i].line) == 0, "%s", detail.text);
        ck_assert_msg(egm_options_bool(&o, "enable-metric-reporting") == cases[i].value, "%s",
                      cases[i].line);
        egm_options_release(&o);
    }
    begin();
    ck_assert_int_eq(parse("--notify"), 0);
    ck_assert(egm_options_bool(&o, "notify"));
    ck_assert_int_eq(parse("--nonotify"), 0);
    ck_assert(!egm_options_bool(&o, "notify"));
    egm_options_release(&o);
}
END_TEST

START_TEST(bad_words_are_named_in_one_line)
{
    static const struct {
        const char *line;
        int code;
        const char *part;
    } cases[] = {
        {"--rpc-port 70000", EGM_E_LIMIT, "--rpc-port"},
        {"--rpc-port 70000", EGM_E_LIMIT, "from 1 to 65535"},
        {"--port 0", EGM_E_LIMIT, "--rpc-port"},
        {"--port -1", EGM_E_INVALID, "'-1'"},
        {"--ttl abc", EGM_E_INVALID, "--ttl"},
        {"--eviction-high-watermark-ratio 1.5", EGM_E_LIMIT, "ratio"},
        {"--segment-size 50%", EGM_E_INVALID, "'50%'"},
        {"--enable-metric-reporting=maybe", EGM_E_INVALID, "true or false"},
        {"--noenable-metric-reporting=1", EGM_E_INVALID, "no value"},
        {"--kind egm", EGM_E_INVALID, "auto|shm|vmm"},
        {"--kind auto|shm", EGM_E_INVALID, "kind"},
        {"--kind=", EGM_E_INVALID, "kind"},
        {"--rpc-address a:b:c", EGM_E_INVALID, "rpc-address"},
        {"--cluster-id 123456789", EGM_E_LIMIT, "cluster-id"},
        {"--rpc-port", EGM_E_INVALID, "needs a value <port>"},
        {"--rpc-port --ttl 5", EGM_E_INVALID, "needs a value"},
        {"--unknown 5", EGM_E_NOT_FOUND, "'--unknown'"},
        {"--unknown=5", EGM_E_NOT_FOUND, "'--unknown'"},
        {"--norpc-port", EGM_E_NOT_FOUND, "norpc-port"},
        {"--rpc-por 5", EGM_E_NOT_FOUND, "rpc-por'"},
        {"--=5", EGM_E_NOT_FOUND, "unknown"},
        {"--no", EGM_E_NOT_FOUND, "--no'"},
    };

    for (size_t i = 0; i < EGM_COUNT_OF(cases); i++) {
        int r;

        begin();
        r = parse(cases[i].line);
        ck_assert_msg(r == cases[i].code, "%s gave %d", cases[i].line, r);
        ck_assert_msg(strstr(detail.text, cases[i].part) != NULL, "%s: %s", cases[i].line,
                      detail.text);
        ck_assert_msg(strstr(detail.text, "(try 'egmstore test --help')") != NULL, "%s",
                      detail.text);
        ck_assert_ptr_null(strchr(detail.text, '\n'));
        ck_assert_uint_eq(egm_options_u64(&o, "rpc-port"), 50051);
        egm_options_release(&o);
    }
}
END_TEST

START_TEST(words_that_are_no_options_are_arguments)
{
    begin();
    ck_assert_int_eq(parse("key1 --rpc-port 7 - --kind shm -- --rpc-port -x"), 0);
    ck_assert_uint_eq(o.arg_count, 4);
    ck_assert_str_eq(o.args[0], "key1");
    ck_assert_str_eq(o.args[1], "-");
    ck_assert_str_eq(o.args[2], "--rpc-port");
    ck_assert_str_eq(o.args[3], "-x");
    ck_assert(!o.is_help_wanted);
    ck_assert_int_eq(parse("a -h --unknown"), 0);
    ck_assert(o.is_help_wanted);
    egm_options_release(&o);
}
END_TEST

static const char *fake_getenv(void *ctx, const char *name)
{
    const char *const *pairs = ctx;

    for (; pairs[0]; pairs += 2) {
        if (strcmp(pairs[0], name) == 0) {
            return pairs[1];
        }
    }
    return NULL;
}

START_TEST(bad_environment_warns_and_keeps_the_default)
{
    static const char *const bad[] = {"", " 5", "5x", "-1", "999999999999"};
    struct egm_buf warnings;

    egm_buf_init(&warnings, 4096);
    for (size_t i = 0; i < EGM_COUNT_OF(bad); i++) {
        const char *env[] = {"TEST_PORT", bad[i], "TEST_SIZE", "1.5gb", NULL};

        begin();
        egm_buf_clear(&warnings);
        ck_assert_int_eq(egm_options_parse_env(&o, fake_getenv, env, &warnings), 0);
        ck_assert_uint_eq(egm_options_u64(&o, "rpc-port"), 50051);
        ck_assert_uint_eq(egm_options_u64(&o, "segment-size"), (UINT64_C(3) << 30) / 2);
        ck_assert_ptr_nonnull(strstr(egm_buf_str(&warnings), "TEST_PORT"));
        ck_assert_ptr_null(strstr(egm_buf_str(&warnings), "TEST_SIZE"));
        egm_options_release(&o);
    }
    egm_buf_release(&warnings);
}
END_TEST

START_TEST(higher_source_wins_in_any_order)
{
    static const char *env[] = {"TEST_PORT", "2", NULL};
    struct egm_buf warnings;

    egm_buf_init(&warnings, 4096);
    begin();
    ck_assert_int_eq(parse("--rpc-port 3"), 0);
    ck_assert_int_eq(egm_options_parse_env(&o, fake_getenv, env, &warnings), 0);
    ck_assert_int_eq(egm_options_set(&o, "port", "1", EGM_SOURCE_FILE, &detail), 0);
    ck_assert_uint_eq(egm_options_u64(&o, "rpc-port"), 3);
    egm_options_release(&o);
    begin();
    ck_assert_int_eq(egm_options_set(&o, "port", "1", EGM_SOURCE_FILE, &detail), 0);
    ck_assert_uint_eq(egm_options_u64(&o, "rpc-port"), 1);
    ck_assert_int_eq(egm_options_parse_env(&o, fake_getenv, env, &warnings), 0);
    ck_assert_uint_eq(egm_options_u64(&o, "rpc-port"), 2);
    ck_assert_str_eq(egm_option_source_name(egm_options_source(&o, "rpc-port")), "environment");
    ck_assert_int_eq(egm_options_set(&o, "nothing", "1", EGM_SOURCE_FILE, &detail),
                     EGM_E_NOT_FOUND);
    egm_options_release(&o);
    egm_buf_release(&warnings);
}
END_TEST

/* The text with each run of white space as one space: what a person reads, wherever lines break. */
static const char *folded(const char *text)
{
    static char out[1u << 14];
    size_t len = 0;

    for (; *text != '\0' && len + 1 < sizeof(out); text++) {
        char c = *text == '\n' ? ' ' : *text;

        if (c != ' ' || len == 0 || out[len - 1] != ' ') {
            out[len++] = c;
        }
    }
    out[len] = '\0';
    return out;
}

START_TEST(help_shows_default_range_and_unit)
{
    struct egm_buf out;
    const char *text;

    egm_buf_init(&out, 1u << 16);
    begin();
    ck_assert_int_eq(egm_options_help(&o, "egmstore test [options]", "  egmstore test\n", &out), 0);
    text = egm_buf_str(&out);
    ck_assert_ptr_eq(
        strstr(text, "usage: egmstore test [options]\n\nNetwork:\n  --rpc-port <port>"), text);
    ck_assert_ptr_nonnull(strstr(folded(text), "(default 50051, 1 to 65535) [TEST_PORT]"));
    ck_assert_ptr_nonnull(
        strstr(folded(text), "life of a session (default 10s, 0 to 3600000 ms) "));
    ck_assert_ptr_nonnull(strstr(text, "\n  --[no]enable-metric-reporting "));
    ck_assert_ptr_nonnull(strstr(text, "kind of memory (default auto)\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n  --eviction-high-watermark-ratio <ratio>\n      "));
    ck_assert_ptr_nonnull(strstr(text, "\nExamples:\n  egmstore test\n"));
    for (const char *line = text; *line != '\0';) {
        size_t len = strcspn(line, "\n");

        ck_assert_msg(len <= 100, "%.*s", (int)len, line);
        ck_assert_msg(len == 0 || line[len - 1] != ' ', "%.*s", (int)len, line);
        line += len + 1;
    }
    egm_options_release(&o);
    egm_buf_release(&out);
}
END_TEST

START_TEST(dump_tells_values_and_sources)
{
    struct egm_buf out;

    egm_buf_init(&out, 1u << 16);
    begin();
    ck_assert_int_eq(parse("--kind=shm"), 0);
    ck_assert_int_eq(egm_options_dump(&o, &out), 0);
    ck_assert_ptr_nonnull(strstr(egm_buf_str(&out), "kind = shm  (command line)\n"));
    ck_assert_ptr_nonnull(strstr(egm_buf_str(&out), "ttl = 10s  (default)\n"));
    ck_assert_ptr_nonnull(strstr(egm_buf_str(&out), "cluster-id =   (not set)\n"));
    egm_options_release(&o);
    egm_buf_release(&out);
}
END_TEST

static int use_all(void *ctx)
{
    static const char *env[] = {"TEST_PORT", "5x", NULL};
    struct egm_buf out;
    int r;

    (void)ctx;
    r = egm_options_init(&o, "egmstore test", rows, EGM_COUNT_OF(rows));
    if (r < 0) {
        return r;
    }
    egm_buf_init(&out, 1u << 16);
    r = parse("a --rpc-port 7 --kind=shm --nonotify");
    if (r == 0) {
        r = egm_options_set(&o, "cluster-id", "c", EGM_SOURCE_FILE, &detail);
    }
    if (r == 0) {
        r = egm_options_parse_env(&o, fake_getenv, env, &out);
    }
    if (r == 0) {
        r = egm_options_help(&o, "x", NULL, &out);
    }
    egm_buf_release(&out);
    egm_options_release(&o);
    return r;
}

START_TEST(every_failed_allocation_is_reported)
{
    egm_test_sweep(use_all, NULL);
}
END_TEST

START_TEST(unknown_name_in_our_own_code_aborts)
{
    begin();
    (void)egm_options_u64(&o, "no-such-row");
}
END_TEST

START_TEST(wrong_type_in_our_own_code_aborts)
{
    begin();
    (void)egm_options_bool(&o, "rpc-port");
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        defaults_come_from_the_table,
        all_forms_of_b112_are_read,
        booleans_are_switched_and_negated,
        bad_words_are_named_in_one_line,
        words_that_are_no_options_are_arguments,
        bad_environment_warns_and_keeps_the_default,
        higher_source_wins_in_any_order,
        help_shows_default_range_and_unit,
        dump_tells_values_and_sources,
        every_failed_allocation_is_reported,
    };
    const TTest *const aborting[] = {unknown_name_in_our_own_code_aborts,
                                     wrong_type_in_our_own_code_aborts};

    return egm_test_run_with_aborts("base_options", tests, EGM_COUNT_OF(tests), aborting,
                                    EGM_COUNT_OF(aborting));
}
