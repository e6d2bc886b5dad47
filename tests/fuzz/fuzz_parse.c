/* SPDX-License-Identifier: Apache-2.0 */
/* The parsers of what people write. What an address parser accepts must survive formatting. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/parse.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_address(const char *text)
{
    struct egm_address address;
    struct egm_address again;
    char formatted[EGM_ADDRESS_TEXT];
    if (egm_parse_address(text, &address) < 0) {
        return;
    }
    EGM_ASSERT(egm_format_address(&address, formatted, sizeof formatted) > 0);
    EGM_ASSERT(egm_parse_address(formatted, &again) == 0);
    EGM_ASSERT(strcmp(address.host, again.host) == 0 && address.has_port == again.has_port &&
               address.port == again.port);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = egm_strndup((const char *)data, size);
    EGM_ASSERT(text);
    uint64_t value = 7;
    double fraction = 7;
    bool flag;
    if (egm_parse_u64(text, 1, 1000, &value) == 0) {
        EGM_ASSERT(value >= 1 && value <= 1000);
    }
    if (egm_parse_size(text, 4096, UINT64_C(1) << 44, &value) == 0) {
        EGM_ASSERT(value >= 4096 && value <= UINT64_C(1) << 44);
    }
    if (egm_parse_duration_ms(text, 1, 86400000, &value) == 0) {
        EGM_ASSERT(value >= 1 && value <= 86400000);
    }
    if (egm_parse_double(text, 0, 1, &fraction) == 0) {
        EGM_ASSERT(fraction >= 0 && fraction <= 1);
    }
    (void)!egm_parse_bool(text, &flag);
    try_address(text);
    egm_free(text);
    return 0;
}
