/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What people write: command lines, environment and config files against the real tables of all
 * commands, the dict that setup() of the Python module takes, and names and addresses as a
 * requester reads them.
 *
 * The first byte chooses the form, the second the command; the rest is text. Lines are the words of
 * a command line, the "NAME=value" of an environment, or the fields of an address case; the other
 * two forms are JSON. What is accepted must come back when it is written down and read again:
 *
 *   options    every value that was given, as "--name=value" and as a file's {"name": "value"}
 *   requester  the published name and the master's address, as options of the next requester
 *
 * Names take ports of a range of their own (MC_STORE_CLIENT_MIN_PORT), so that a run beside other
 * tests takes none of theirs.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/log.h"
#include "base/options.h"

#include "../../python/src/requester.h"
#include "cli/cli.h"
#include "cli/mooncake_config.h"
#include "client/internal.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define LINES_MAX 64
#define PROGRAM "egmstore fuzz"

/* ---- lines ---- */

struct lines {
    char *at[LINES_MAX + 1];
    size_t count;
};

/* Cuts the text in place. */
static struct lines split(char *text)
{
    struct lines lines = {0};
    char *rest = text;

    while (rest && lines.count < LINES_MAX) {
        lines.at[lines.count++] = strsep(&rest, "\n");
    }
    return lines;
}

static const char *line_or_empty(const struct lines *lines, size_t i)
{
    return i < lines->count ? lines->at[i] : "";
}

/* ---- options ---- */

static const struct egm_command *command_of(uint8_t choice)
{
    return egm_commands[choice % egm_command_count];
}

static void begin(struct egm_options *o, const struct egm_command *command)
{
    EGM_ASSERT(egm_options_init(o, PROGRAM, command->rows, command->row_count) == 0);
}

static bool is_same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static void check_same(const struct egm_options *a, const struct egm_options *b,
                       enum egm_option_source source)
{
    for (size_t i = 0; i < a->row_count; i++) {
        const struct egm_option_value *x = &a->values[i];
        const struct egm_option_value *y = &b->values[i];
        if (x->source == source && x->is_set) {
            EGM_ASSERT(y->is_set && y->source == source && x->flag == y->flag &&
                       x->number == y->number && is_same_text(x->text, y->text));
            EGM_ASSERT(x->real >= y->real && x->real <= y->real);
        }
    }
}

/* The dump names every row once, whatever the values are. */
static void check_dump(const struct egm_options *o)
{
    struct egm_buf out;
    size_t lines = 0;

    egm_buf_init(&out, 1u << 20);
    EGM_ASSERT(egm_options_dump(o, &out) == 0);
    for (size_t i = 0; i < out.len; i++) {
        lines += out.data[i] == '\n';
    }
    EGM_ASSERT(lines >= o->row_count);
    egm_buf_release(&out);
}

/* Everything that `o` was given on its command line, once more, with its arguments behind "--". */
static void parse_again(const struct egm_options *o, const struct egm_command *command)
{
    size_t word_count = 0;
    char **words = egm_calloc(o->row_count + o->arg_count + 2, sizeof(*words));
    struct egm_options again;
    struct egm_buf text;

    EGM_ASSERT(words);
    egm_buf_init(&text, 4u << 20);
    words[word_count++] = egm_strndup("fuzz", 4);
    for (size_t i = 0; i < o->row_count; i++) {
        if (o->values[i].source == EGM_SOURCE_ARGS) {
            egm_buf_clear(&text);
            EGM_ASSERT(egm_buf_printf(&text, "--%s=%s", o->rows[i].name, o->values[i].text) >= 0);
            words[word_count++] = egm_strndup(egm_buf_str(&text), text.len);
        }
    }
    words[word_count++] = egm_strndup("--", 2);
    for (size_t i = 0; i < o->arg_count; i++) {
        words[word_count++] = egm_strndup(o->args[i], strlen(o->args[i]));
    }
    begin(&again, command);
    EGM_ASSERT(egm_options_parse_args(&again, (int)word_count, words, NULL) == 0);
    EGM_ASSERT(again.arg_count == o->arg_count);
    for (size_t i = 0; i < o->arg_count; i++) {
        EGM_ASSERT(strcmp(again.args[i], o->args[i]) == 0);
    }
    check_same(o, &again, EGM_SOURCE_ARGS);
    egm_options_release(&again);
    for (size_t i = 0; i < word_count; i++) {
        egm_free(words[i]);
    }
    egm_free(words);
    egm_buf_release(&text);
}

static void try_arguments(const struct egm_command *command, char *text)
{
    struct lines lines = split(text);
    struct egm_detail detail = {0};
    char *words[LINES_MAX + 2] = {(char *)(uintptr_t) "fuzz"};
    struct egm_options o;

    memcpy(words + 1, lines.at, lines.count * sizeof(*words));
    begin(&o, command);
    int r = egm_options_parse_args(&o, (int)lines.count + 1, words, &detail);
    EGM_ASSERT(r == 0 ||
               (r < 0 && detail.code == r && detail.text[0] && !strchr(detail.text, '\n')));
    if (r == 0 && !o.is_help_wanted) {
        parse_again(&o, command);
    }
    check_dump(&o);
    egm_options_release(&o);
}

/* An environment of the input's lines. */
static const char *look_up(void *arg, const char *name)
{
    const struct lines *lines = arg;
    size_t length = strlen(name);

    for (size_t i = 0; i < lines->count; i++) {
        if (strncmp(lines->at[i], name, length) == 0 && lines->at[i][length] == '=') {
            return lines->at[i] + length + 1;
        }
    }
    return NULL;
}

static void try_environment(const struct egm_command *command, char *text)
{
    struct lines lines = split(text);
    struct egm_buf warnings;
    struct egm_options o;

    egm_buf_init(&warnings, 1u << 20);
    begin(&o, command);
    EGM_ASSERT(egm_options_parse_env(&o, look_up, &lines, &warnings) == 0);
    for (size_t i = 0; i < o.row_count; i++) {
        const char *given = o.rows[i].env ? look_up(&lines, o.rows[i].env) : NULL;
        bool is_taken = o.values[i].source == EGM_SOURCE_ENV;
        EGM_ASSERT(!is_taken || (given && strcmp(o.values[i].text, given) == 0));
        EGM_ASSERT(!given || is_taken || warnings.len > 0);
    }
    check_dump(&o);
    egm_buf_release(&warnings);
    egm_options_release(&o);
}

static void apply_again(const struct egm_options *o, const struct egm_command *command)
{
    struct egm_options again;
    json_t *root = json_object();

    EGM_ASSERT(root);
    for (size_t i = 0; i < o->row_count; i++) {
        if (o->values[i].source == EGM_SOURCE_FILE) {
            EGM_ASSERT(json_object_set_new(root, o->rows[i].name, json_string(o->values[i].text)) ==
                       0);
        }
    }
    char *text = json_dumps(root, JSON_COMPACT);
    EGM_ASSERT(text);
    begin(&again, command);
    EGM_ASSERT(egm_mooncake_config_apply(&again, text, strlen(text), NULL) == 0);
    check_same(o, &again, EGM_SOURCE_FILE);
    egm_options_release(&again);
    free(text);
    json_decref(root);
}

static void try_file(const struct egm_command *command, const char *text, size_t size)
{
    struct egm_detail detail = {0};
    struct egm_options o;

    begin(&o, command);
    int r = egm_mooncake_config_apply(&o, text, size, &detail);
    EGM_ASSERT(r == 0 || (r < 0 && detail.code == r && detail.text[0]));
    if (r == 0) {
        apply_again(&o, command);
    }
    check_dump(&o);
    egm_options_release(&o);
}

/* ---- the requester ---- */

static void init_again(const struct egm_client_config *config)
{
    struct egm_store_options options = {
        .master = config->master, .hostname = config->name, .tenant = config->tenant};
    struct egm_client_config again;

    EGM_ASSERT(egm_client_config_init(&again, &options, NULL) == 0);
    EGM_ASSERT(strcmp(config->name, again.name) == 0 && again.name_fd == -1);
    EGM_ASSERT(strcmp(config->master, again.master) == 0 &&
               strcmp(config->unix_master, again.unix_master) == 0 &&
               strcmp(config->tenant, again.tenant) == 0);
    egm_client_config_release(&again);
}

static void try_options(const struct egm_store_options *options)
{
    struct egm_detail detail = {0};
    struct egm_client_config config;
    struct egm_address name;

    int r = egm_client_config_init(&config, options, &detail);
    if (r < 0) {
        EGM_ASSERT(detail.code == r && detail.text[0] && config.name_fd == -1);
        return;
    }
    EGM_ASSERT(egm_parse_address(config.name, &name) == 0 && name.has_port);
    EGM_ASSERT(config.tenant[0] && config.cluster[0] && config.deadline_ns > 0);
    init_again(&config);
    egm_client_config_release(&config);
}

/* Python's str() of what JSON can say. The caller frees. */
static char *python_text(const json_t *value)
{
    char number[64];

    if (json_is_string(value)) {
        return egm_strndup(json_string_value(value), json_string_length(value));
    }
    if (json_is_integer(value)) {
        snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    } else if (json_is_real(value)) {
        snprintf(number, sizeof(number), "%.17g", json_real_value(value));
    } else {
        snprintf(number, sizeof(number), "%s",
                 json_is_true(value)    ? "True"
                 : json_is_false(value) ? "False"
                 : json_is_null(value)  ? "None"
                                        : "[]");
    }
    return egm_strndup(number, strlen(number));
}

static void try_dict(const char *text, size_t size)
{
    struct egmpy_requester requester;
    struct egm_detail detail = {0};
    char *texts[LINES_MAX] = {0};
    size_t count = 0;
    json_t *root = json_loadb(text, size, 0, NULL);
    const char *key;
    json_t *value;
    int r = 0;

    egmpy_requester_init(&requester);
    json_object_foreach(root, key, value)
    {
        if (count == LINES_MAX || r < 0) {
            break;
        }
        texts[count] = python_text(value);
        EGM_ASSERT(texts[count]);
        r = egmpy_requester_set(&requester, key, texts[count++], &detail);
        EGM_ASSERT(r == 0 || (r < 0 && detail.code == r && detail.text[0]));
        r = r == EGM_E_NOT_FOUND ? 0 : r; /* a warning there */
    }
    struct egm_store_options options;
    if (r == 0 && egmpy_requester_is_whole(&requester, &detail) == 0 &&
        egmpy_requester_options(&requester, &options, &detail) == 0) {
        EGM_ASSERT(options.segment_bytes == 0 || options.segment_bytes >= 1u << 20);
        try_options(&options);
    }
    for (size_t i = 0; i < count; i++) {
        egm_free(texts[i]);
    }
    json_decref(root);
}

/* The environment that src/client/config.c reads: one text each, changed in place, because setenv
 * keeps what it is given. */
static struct variable {
    const char *name;
    char text[256];
} variables[] = {{"EGMSTORE_DEADLINE_MS", ""},
                 {"MC_RPC_TIMEOUT_MS", ""},
                 {"EGMSTORE_MAP", ""},
                 {"MC_STORE_MEMCPY", ""},
                 {"EGMSTORE_CLUSTER", ""}};

static void set_variable(struct variable *variable, const char *value)
{
    snprintf(variable->text, sizeof(variable->text), "%s=%s", variable->name, value);
}

/* master, hostname, tenant, protocol, then the environment. */
static void try_fields(uint8_t flags, char *text)
{
    struct lines lines = split(text);
    struct egm_store_options options = {
        .master = line_or_empty(&lines, 0),
        .hostname = line_or_empty(&lines, 1),
        .tenant = line_or_empty(&lines, 2),
        .protocol = line_or_empty(&lines, 3),
        .strict_protocol = flags & 1,
        .deadline_ms = flags,
    };
    const size_t count = sizeof(variables) / sizeof(variables[0]);

    for (size_t i = 0; i < count; i++) {
        set_variable(&variables[i], line_or_empty(&lines, 4 + i));
    }
    try_options(&options);
    for (size_t i = 0; i < count; i++) {
        set_variable(&variables[i], "");
    }
}

/* ---- all ---- */

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    egm_log_set_level(EGM_LOG_ERROR);
    setenv("EGMSTORE_RUNTIME_DIR", "/tmp", 1);
    setenv("MC_STORE_CLIENT_MIN_PORT", "61000", 1);
    setenv("MC_STORE_CLIENT_MAX_PORT", "64000", 1);
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        set_variable(&variables[i], "");
        putenv(variables[i].text);
    }
    for (size_t i = 0; i < egm_command_count; i++) {
        struct egm_options o;
        struct egm_buf out;
        begin(&o, egm_commands[i]);
        egm_buf_init(&out, 1u << 20);
        EGM_ASSERT(egm_options_help(&o, "usage", egm_commands[i]->examples, &out) == 0);
        egm_buf_release(&out);
        egm_options_release(&o);
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    const struct egm_command *command = command_of(data[1]);
    char *text = egm_strndup((const char *)data + 2, size - 2); /* up to a NUL */
    EGM_ASSERT(text);
    switch (data[0] % 5) {
    case 0:
        try_arguments(command, text);
        break;
    case 1:
        try_environment(command, text);
        break;
    case 2:
        try_file(command, (const char *)data + 2, size - 2);
        break;
    case 3:
        try_dict((const char *)data + 2, size - 2);
        break;
    case 4:
        try_fields(data[1], text);
        break;
    }
    egm_free(text);
    return 0;
}
