/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "master/regex.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log.h"

#include <errno.h>
#include <pcre2.h>
#include <stdio.h>

/* Steps of one match: enough for two ".*" over a key of 200 bytes, 1.5 ms when they are used up. */
#define REGEX_MATCH_LIMIT 50000
/* Nested backtracking points. */
#define REGEX_DEPTH_LIMIT 2000
#define REGEX_HEAP_KIB 1024
#define REGEX_STRIKES 16

struct egm_regex {
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *context;
    uint64_t *over_limit; /* borrowed */
    uint32_t strikes;     /* keys on which a bound was met */
};

void egm_regex_free(struct egm_regex *regex)
{
    if (!regex) {
        return;
    }
    pcre2_match_context_free(regex->context);
    pcre2_match_data_free(regex->data);
    pcre2_code_free(regex->code);
    egm_free(regex);
}

int egm_regex_compile(const char *pattern, uint64_t *over_limit, struct egm_regex **ret_regex,
                      char *text, size_t text_size)
{
    struct egm_regex *regex = egm_calloc(1, sizeof(*regex));
    int code;
    PCRE2_SIZE place;

    if (!regex) {
        return -ENOMEM;
    }
    regex->over_limit = over_limit;
    /* Without UTF: a key need not be valid UTF-8. \C would be harmless here; a callout needs a
     * callback, there is none. */
    regex->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, 0, &code, &place, NULL);
    if (!regex->code) {
        PCRE2_UCHAR reason[160] = "";
        egm_ignore(pcre2_get_error_message(code, reason, sizeof(reason)), "an empty reason then");
        egm_ignore(
            snprintf(text, text_size, "%s at byte %zu of the pattern", (const char *)reason, place),
            "cut is fine");
        egm_regex_free(regex);
        return EGM_E_INVALID;
    }
    regex->data = pcre2_match_data_create(1, NULL);
    regex->context = pcre2_match_context_create(NULL);
    if (!regex->data || !regex->context) {
        egm_regex_free(regex);
        return -ENOMEM;
    }
    egm_ignore(pcre2_set_match_limit(regex->context, REGEX_MATCH_LIMIT), "always 0");
    egm_ignore(pcre2_set_depth_limit(regex->context, REGEX_DEPTH_LIMIT), "always 0");
    egm_ignore(pcre2_set_heap_limit(regex->context, REGEX_HEAP_KIB), "always 0");
    *ret_regex = regex;
    return 0;
}

int egm_regex_match(struct egm_regex *regex, const void *key, size_t size)
{
    if (regex->strikes >= REGEX_STRIKES) {
        (*regex->over_limit)++;
        return EGM_E_LIMIT;
    }
    int r = pcre2_match(regex->code, key, size, 0, 0, regex->data, regex->context);
    if (r >= 0) {
        return 1;
    }
    if (r == PCRE2_ERROR_NOMATCH) {
        return 0;
    }
    (*regex->over_limit)++;
    if (++regex->strikes == REGEX_STRIKES) {
        egm_warn("regular expression given up after meeting its bounds keys=%u, its other keys "
                 "count as no match",
                 regex->strikes);
    }
    return EGM_E_LIMIT;
}
