/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/mooncake_config.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#define STAGE "config"
#define VALUE_TEXT 4096

/* A scalar as a flag's text. False: not a scalar, or too long. */
static bool text_of(const json_t *value, char *ret_text, size_t size)
{
    int n = -1;

    if (json_is_string(value)) {
        n = snprintf(ret_text, size, "%s", json_string_value(value));
    } else if (json_is_boolean(value)) {
        n = snprintf(ret_text, size, "%s", json_is_true(value) ? "true" : "false");
    } else if (json_is_integer(value)) {
        n = snprintf(ret_text, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    } else if (json_is_real(value)) {
        n = snprintf(ret_text, size, "%.10f", json_real_value(value));
    }
    return n >= 0 && (size_t)n < size;
}

static int apply(struct egm_options *o, json_t *root, struct egm_detail *reterr)
{
    char text[VALUE_TEXT];
    const char *key;
    json_t *value;

    json_object_foreach(root, key, value)
    {
        if (!text_of(value, text, sizeof(text))) {
            return egm_fail(reterr, EGM_E_INVALID, STAGE,
                            "bad value of '%.64s': expected a text, number or boolean", key);
        }
        int r = egm_options_set(o, key, text, EGM_SOURCE_FILE, reterr);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

int egm_mooncake_config_apply(struct egm_options *o, const char *text, size_t size,
                              struct egm_detail *reterr)
{
    json_error_t error;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);

    if (!root) {
        return egm_fail(reterr, EGM_E_INVALID, STAGE,
                        "cannot be read as JSON: %.160s at line %d (YAML is not read)", error.text,
                        error.line);
    }
    int r = json_is_object(root)
                ? apply(o, root, reterr)
                : egm_fail(reterr, EGM_E_INVALID, STAGE, "does not hold a JSON object");
    json_decref(root);
    return r;
}
