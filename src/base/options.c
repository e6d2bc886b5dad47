/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options from one table; forms, sources and ranks are described in options.h.
 *
 * A row's value is always the text as given plus its parsed form; both are replaced together, after
 * the new text has parsed and its copy exists, so that a failure leaves the old value whole. Tables
 * have some dozens of rows and are read once at start: look-up by name is a plain walk.
 */
#include "base/options.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/limits.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define STAGE "options"
#define HELP_COLUMN 34
#define HELP_WIDTH 100

/* ---- Names ---- */

/* Compares `len` bytes of `name` with all of `row_name`; '-' and '_' are the same. */
static bool is_same_name(const char *name, size_t len, const char *row_name, size_t row_len)
{
    if (len != row_len) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        char a = name[i] == '_' ? '-' : name[i];
        char b = row_name[i] == '_' ? '-' : row_name[i];

        if (a != b) {
            return false;
        }
    }
    return true;
}

/* True if a word of the list is the wanted name. */
static bool has_word(const char *list, char separator, const char *name, size_t len)
{
    while (list && *list != '\0') {
        const char *end = strchr(list, separator);
        size_t word_len = end ? (size_t)(end - list) : strlen(list);

        if (is_same_name(name, len, list, word_len)) {
            return true;
        }
        list = end ? end + 1 : NULL;
    }
    return false;
}

/* The row's index, or -1. */
static int find_row(const struct egm_options *o, const char *name, size_t len)
{
    for (size_t i = 0; i < o->row_count; i++) {
        const struct egm_option *row = &o->rows[i];

        if (is_same_name(name, len, row->name, strlen(row->name)) ||
            has_word(row->aliases, ' ', name, len)) {
            return (int)i;
        }
    }
    return -1;
}

/* The boolean row that "noNAME" or "no-NAME" negates, or -1. */
static int find_negated_row(const struct egm_options *o, const char *name, size_t len)
{
    int index;

    if (len < 3 || name[0] != 'n' || name[1] != 'o') {
        return -1;
    }
    name += 2;
    len -= 2;
    if (*name == '-' || *name == '_') {
        name++;
        len--;
    }
    index = find_row(o, name, len);
    return index >= 0 && o->rows[index].type == EGM_OPTION_BOOL ? index : -1;
}

/* ---- Values ---- */

static uint64_t max_of(const struct egm_option *row)
{
    if (row->max > 0) {
        return row->max;
    }
    return row->type == EGM_OPTION_STRING ? EGM_MAX_OPTION_TEXT : UINT64_MAX;
}

/* Parses into everything but text, is_set and source. */
static int parse_value(const struct egm_option *row, const char *text, struct egm_option_value *ret)
{
    struct egm_option_value v = {0};
    struct egm_address address;
    size_t len;
    int r = 0;

    switch (row->type) {
    case EGM_OPTION_BOOL:
        r = egm_parse_bool(text, &v.flag);
        break;
    case EGM_OPTION_U64:
        r = egm_parse_u64(text, row->min, max_of(row), &v.number);
        break;
    case EGM_OPTION_SIZE:
        r = egm_parse_size(text, row->min, max_of(row), &v.number);
        break;
    case EGM_OPTION_DURATION_MS:
        r = egm_parse_duration_ms(text, row->min, max_of(row), &v.number);
        break;
    case EGM_OPTION_DOUBLE:
        r = egm_parse_double(text, (double)row->min, (double)max_of(row), &v.real);
        break;
    case EGM_OPTION_STRING:
        len = strlen(text);
        r = len < row->min || len > max_of(row) ? EGM_E_LIMIT : 0;
        break;
    case EGM_OPTION_ADDRESS:
        r = egm_parse_address(text, &address);
        break;
    case EGM_OPTION_CHOICE:
        r = *text != '\0' && has_word(row->placeholder, '|', text, strlen(text)) ? 0
                                                                                 : EGM_E_INVALID;
        break;
    case EGM_OPTION_TYPE_COUNT:
    default:
        EGM_ASSERT(row->type < EGM_OPTION_TYPE_COUNT);
    }
    if (r == 0) {
        *ret = v;
    }
    return r;
}

static int store_value(struct egm_options *o, size_t index, const char *text,
                       enum egm_option_source source)
{
    struct egm_option_value *value = &o->values[index];
    struct egm_option_value parsed;
    int r;

    r = parse_value(&o->rows[index], text, &parsed);
    if (r < 0) {
        return r;
    }
    if (value->is_set && value->source > source) {
        return 0;
    }
    parsed.text = egm_strndup(text, strlen(text));
    if (!parsed.text) {
        return -ENOMEM;
    }
    parsed.is_set = true;
    parsed.source = source;
    egm_free(value->text);
    *value = parsed;
    return 0;
}

/* What a value of this row looks like, for error lines: "a size of 4096 to 1048576 bytes". */
static void describe(const struct egm_option *row, char *ret_text, size_t size)
{
    static const char *const nouns[EGM_OPTION_TYPE_COUNT] = {
        [EGM_OPTION_BOOL] = "true or false",
        [EGM_OPTION_U64] = "a whole number",
        [EGM_OPTION_SIZE] = "a size in bytes such as 16MB",
        [EGM_OPTION_DURATION_MS] = "a duration such as 5s (plain numbers are ms)",
        [EGM_OPTION_DOUBLE] = "a number",
        [EGM_OPTION_STRING] = "a text, length in bytes",
        [EGM_OPTION_ADDRESS] = "an address such as host:port or [::1]:port",
        [EGM_OPTION_CHOICE] = "one of ",
    };
    const char *noun = nouns[row->type];

    if (row->type == EGM_OPTION_CHOICE) {
        snprintf(ret_text, size, "%s%s", noun, row->placeholder);
    } else if (row->max > 0) {
        snprintf(ret_text, size, "%s, from %" PRIu64 " to %" PRIu64, noun, row->min, row->max);
    } else if (row->min > 0) {
        snprintf(ret_text, size, "%s, at least %" PRIu64, noun, row->min);
    } else {
        snprintf(ret_text, size, "%s", noun);
    }
}

static int fail_value(const struct egm_options *o, size_t index, const char *text, int code,
                      struct egm_detail *reterr)
{
    const struct egm_option *row = &o->rows[index];
    char wanted[160];

    if (code == -ENOMEM) {
        return egm_fail(reterr, code, STAGE, "out of memory while setting --%s", row->name);
    }
    describe(row, wanted, sizeof(wanted));
    return egm_fail(reterr, code, STAGE,
                    "bad value '%.64s' for --%s: expected %s (try '%s --help')", text, row->name,
                    wanted, o->program);
}

/* ---- Life ---- */

static void assert_names_are_unique(const struct egm_options *o)
{
    for (size_t i = 0; i < o->row_count; i++) {
        const char *name = o->rows[i].name;
        const char *alias = o->rows[i].aliases;

        EGM_ASSERT(find_row(o, name, strlen(name)) == (int)i);
        while (alias && *alias != '\0') {
            size_t len = strcspn(alias, " ");

            EGM_ASSERT(find_row(o, alias, len) == (int)i);
            alias += len;
            alias += strspn(alias, " ");
        }
    }
}

int egm_options_init(struct egm_options *o, const char *program, const struct egm_option *rows,
                     size_t row_count)
{
    struct egm_options made = {.program = program, .rows = rows, .row_count = row_count};

    assert_names_are_unique(&made);
    made.values = egm_calloc(row_count, sizeof(*made.values));
    if (!made.values) {
        return -ENOMEM;
    }
    for (size_t i = 0; i < row_count; i++) {
        int r = rows[i].default_text
                    ? store_value(&made, i, rows[i].default_text, EGM_SOURCE_DEFAULT)
                    : 0;

        if (r < 0) {
            EGM_ASSERT(r == -ENOMEM); /* a default that does not parse is a bug of the table */
            egm_options_release(&made);
            return r;
        }
    }
    *o = made;
    return 0;
}

void egm_options_release(struct egm_options *o)
{
    for (size_t i = 0; o->values && i < o->row_count; i++) {
        egm_free(o->values[i].text);
    }
    egm_free(o->values);
    egm_free(o->args);
    *o = (struct egm_options){0};
}

/* ---- Sources ---- */

int egm_options_set(struct egm_options *o, const char *name, const char *text,
                    enum egm_option_source source, struct egm_detail *reterr)
{
    int index = find_row(o, name, strlen(name));
    int r;

    if (index < 0) {
        return egm_fail(reterr, EGM_E_NOT_FOUND, STAGE, "unknown option '%.64s' (try '%s --help')",
                        name, o->program);
    }
    r = store_value(o, (size_t)index, text, source);
    return r < 0 ? fail_value(o, (size_t)index, text, r, reterr) : 0;
}

int egm_options_parse_env(struct egm_options *o, egm_getenv_fn lookup, void *ctx,
                          struct egm_buf *warnings)
{
    for (size_t i = 0; i < o->row_count; i++) {
        const struct egm_option *row = &o->rows[i];
        const char *text = row->env ? lookup(ctx, row->env) : NULL;
        char wanted[160];
        int r;

        if (!text) {
            continue;
        }
        r = store_value(o, i, text, EGM_SOURCE_ENV);
        if (r == -ENOMEM) {
            return r;
        }
        if (r < 0) {
            describe(row, wanted, sizeof(wanted));
            r = egm_buf_printf(warnings, "bad value '%.64s' in %s, ignored: expected %s\n", text,
                               row->env, wanted);
            if (r < 0) {
                return r;
            }
        }
    }
    return 0;
}

/* One option word without its dashes; *next is the index of the word behind it and moves when that
 * is the value. */
static int parse_option(struct egm_options *o, const char *word, int argc, char *const *argv,
                        int *next, struct egm_detail *reterr)
{
    size_t len = strcspn(word, "=");
    const char *text = word[len] == '=' ? word + len + 1 : NULL;
    int index = find_row(o, word, len);
    bool is_negated = false;
    int r;

    if (index < 0) {
        index = find_negated_row(o, word, len);
        is_negated = index >= 0;
    }
    if (index < 0) {
        return egm_fail(reterr, EGM_E_NOT_FOUND, STAGE, "unknown option '--%.*s' (try '%s --help')",
                        len < 64 ? (int)len : 64, word, o->program);
    }
    if (is_negated && text) {
        return egm_fail(reterr, EGM_E_INVALID, STAGE,
                        "option '--no%s' takes no value (try '%s --help')", o->rows[index].name,
                        o->program);
    }
    if (!text && o->rows[index].type == EGM_OPTION_BOOL) {
        text = is_negated ? "false" : "true";
    }
    if (!text) {
        if (*next >= argc || strncmp(argv[*next], "--", 2) == 0) {
            return egm_fail(reterr, EGM_E_INVALID, STAGE,
                            "option '--%s' needs a value <%s> (try '%s --help')",
                            o->rows[index].name, o->rows[index].placeholder, o->program);
        }
        text = argv[(*next)++];
    }
    r = store_value(o, (size_t)index, text, EGM_SOURCE_ARGS);
    return r < 0 ? fail_value(o, (size_t)index, text, r, reterr) : 0;
}

static bool is_help_word(const struct egm_options *o, const char *word)
{
    if (strcmp(word, "--help") == 0 || strcmp(word, "-help") == 0) {
        return find_row(o, "help", 4) < 0;
    }
    return strcmp(word, "-h") == 0 && find_row(o, "h", 1) < 0;
}

int egm_options_parse_args(struct egm_options *o, int argc, char *const *argv,
                           struct egm_detail *reterr)
{
    bool are_options_over = false;
    int at = 1;

    EGM_ASSERT(argc >= 0);
    egm_free(o->args);
    o->arg_count = 0;
    o->args = egm_calloc((size_t)argc, sizeof(*o->args));
    if (!o->args) {
        return egm_fail(reterr, -ENOMEM, STAGE, "out of memory while reading the command line");
    }
    while (at < argc) {
        const char *word = argv[at++];
        int r;

        /* a lone "-" is an argument: by custom it names standard input */
        if (are_options_over || word[0] != '-' || word[1] == '\0') {
            o->args[o->arg_count++] = word;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            are_options_over = true;
            continue;
        }
        if (is_help_word(o, word)) {
            o->is_help_wanted = true;
            return 0;
        }
        r = parse_option(o, word + (word[1] == '-' ? 2 : 1), argc, argv, &at, reterr);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

/* ---- Reading ---- */

static size_t index_of(const struct egm_options *o, const char *name)
{
    int index = find_row(o, name, strlen(name));

    EGM_ASSERT(index >= 0);
    return (size_t)index;
}

bool egm_options_bool(const struct egm_options *o, const char *name)
{
    size_t index = index_of(o, name);

    EGM_ASSERT(o->rows[index].type == EGM_OPTION_BOOL);
    return o->values[index].flag;
}

uint64_t egm_options_u64(const struct egm_options *o, const char *name)
{
    size_t index = index_of(o, name);
    enum egm_option_type type = o->rows[index].type;

    EGM_ASSERT(type == EGM_OPTION_U64 || type == EGM_OPTION_SIZE || type == EGM_OPTION_DURATION_MS);
    return o->values[index].number;
}

double egm_options_double(const struct egm_options *o, const char *name)
{
    size_t index = index_of(o, name);

    EGM_ASSERT(o->rows[index].type == EGM_OPTION_DOUBLE);
    return o->values[index].real;
}

const char *egm_options_text(const struct egm_options *o, const char *name)
{
    return o->values[index_of(o, name)].text;
}

bool egm_options_is_set(const struct egm_options *o, const char *name)
{
    return o->values[index_of(o, name)].is_set;
}

enum egm_option_source egm_options_source(const struct egm_options *o, const char *name)
{
    return o->values[index_of(o, name)].source;
}

const char *egm_option_source_name(enum egm_option_source source)
{
    switch (source) {
    case EGM_SOURCE_FILE:
        return "file";
    case EGM_SOURCE_ENV:
        return "environment";
    case EGM_SOURCE_ARGS:
        return "command line";
    case EGM_SOURCE_DEFAULT:
    default:
        return "default";
    }
}

/* ---- Help ---- */

static const char *group_of(const struct egm_option *row)
{
    return row->group ? row->group : "Options";
}

/* "help (default X, A to B UNIT; env NAME)" */
static void append_meaning(const struct egm_option *row, struct egm_buf *text)
{
    egm_buf_printf(text, "%s", row->help);
    if (row->default_text) {
        egm_buf_printf(text, " (default %s",
                       *row->default_text != '\0' ? row->default_text : "empty");
    }
    if (row->max > 0 && row->type != EGM_OPTION_STRING) {
        egm_buf_printf(text, "%s%" PRIu64 " to %" PRIu64, row->default_text ? ", " : " (", row->min,
                       row->max);
    } else if (!row->default_text && row->unit) {
        egm_buf_printf(text, " (");
    }
    if (row->unit) {
        egm_buf_printf(text, "%s%s", row->max > 0 || row->default_text ? " " : "", row->unit);
    }
    if (row->default_text || row->unit || (row->max > 0 && row->type != EGM_OPTION_STRING)) {
        egm_buf_printf(text, ")");
    }
    if (row->env) {
        egm_buf_printf(text, " [%s]", row->env);
    }
}

/* Appends words with line breaks before HELP_WIDTH; continuation lines begin at HELP_COLUMN. */
static void append_wrapped(struct egm_buf *out, const char *text, size_t column)
{
    while (*text != '\0') {
        size_t len = strcspn(text, " ");

        if (column + 1 + len > HELP_WIDTH && column > HELP_COLUMN) {
            egm_buf_printf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            egm_buf_printf(out, " ");
            column++;
        }
        egm_buf_append(out, text, len);
        column += len;
        text += len;
        text += strspn(text, " ");
    }
    egm_buf_printf(out, "\n");
}

static int append_row(const struct egm_option *row, struct egm_buf *out)
{
    struct egm_buf text;
    size_t start = out->len;
    size_t width;
    int r;

    egm_buf_init(&text, 4096);
    egm_buf_printf(out, row->type == EGM_OPTION_BOOL ? "  --[no]%s" : "  --%s", row->name);
    if (row->type != EGM_OPTION_BOOL) {
        egm_buf_printf(out, " <%s>", row->placeholder);
    }
    width = out->len - start;
    if (width + 2 > HELP_COLUMN) {
        egm_buf_printf(out, "\n");
        width = 0;
    }
    egm_buf_printf(out, "%*s", (int)(HELP_COLUMN - width), "");
    append_meaning(row, &text);
    append_wrapped(out, egm_buf_str(&text), HELP_COLUMN);
    r = text.failed ? text.failed : out->failed;
    egm_buf_release(&text);
    return r;
}

int egm_options_help(const struct egm_options *o, const char *usage, const char *examples,
                     struct egm_buf *out)
{
    egm_buf_printf(out, "usage: %s\n", usage);
    for (size_t i = 0; i < o->row_count; i++) {
        const char *group = group_of(&o->rows[i]);
        int r;

        if (i == 0 || strcmp(group, group_of(&o->rows[i - 1])) != 0) {
            egm_buf_printf(out, "\n%s:\n", group);
        }
        r = append_row(&o->rows[i], out);
        if (r < 0) {
            return r;
        }
    }
    if (examples) {
        egm_buf_printf(out, "\nExamples:\n%s", examples);
    }
    return out->failed;
}

int egm_options_dump(const struct egm_options *o, struct egm_buf *out)
{
    for (size_t i = 0; i < o->row_count; i++) {
        const struct egm_option_value *value = &o->values[i];

        egm_buf_printf(out, "%s = %s  (%s)\n", o->rows[i].name, value->text ? value->text : "",
                       value->is_set ? egm_option_source_name(value->source) : "not set");
    }
    return out->failed;
}
