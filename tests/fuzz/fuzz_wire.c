/* SPDX-License-Identifier: Apache-2.0 */
/* Every decoder on arbitrary bytes: nothing may crash, and what decodes whole must encode to the
 * same bytes. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/buf.h"

#include "wire/keys.h"
#include "wire/messages.h"
#include "wire/status.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef void (*try_fn)(const uint8_t *data, size_t size);

#define TRY(record)                                                     \
    static void try_##record(const uint8_t *data, size_t size)          \
    {                                                                   \
        struct egm_cursor cursor = egm_cursor_of(data, size);           \
        struct egm_##record value;                                      \
        struct egm_buf buf;                                             \
        egm_take_##record(&cursor, &value);                             \
        egm_buf_init(&buf, 1u << 20);                                   \
        egm_put_##record(&buf, &value);                                 \
        size_t used = size - egm_cursor_left(&cursor);                  \
        if (!cursor.failed) {                                           \
            EGM_ASSERT(buf.failed == 0 && buf.len == used);             \
            EGM_ASSERT(used == 0 || memcmp(buf.data, data, used) == 0); \
        }                                                               \
        egm_buf_release(&buf);                                          \
    }
EGM_RECORDS(TRY)

#define ROW(record) try_##record,
static const try_fn tries[] = {EGM_RECORDS(ROW)};

/* A key list: what is read must come back when it is written and read again. */
static void try_keys(const uint8_t *data, size_t size)
{
    static struct egm_key_reader reader, again;
    static uint8_t previous[2][EGM_MAX_KEY];
    struct egm_key_writer writer = {0};
    struct egm_cursor cursor = egm_cursor_of(data, size);
    struct egm_buf buf;
    unsigned turn = 0;
    reader.size = 0;
    again.size = 0;
    egm_buf_init(&buf, 64u << 20);
    size_t at = 0;
    while (egm_cursor_left(&cursor) > 0) {
        struct egm_bytes key = egm_take_key(&reader, &cursor);
        if (cursor.failed) {
            break;
        }
        memcpy(previous[turn], key.data, key.size);
        EGM_ASSERT(egm_put_key(&writer, &buf, previous[turn], key.size) == 0);
        struct egm_cursor check = egm_cursor_of(buf.data + at, buf.len - at);
        struct egm_bytes back = egm_take_key(&again, &check);
        EGM_ASSERT(back.size == key.size && memcmp(back.data, previous[turn], key.size) == 0);
        at = buf.len;
        turn ^= 1u;
    }
    egm_buf_release(&buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) {
        return 0;
    }
    /* Exact copies, so that one byte beyond the end is seen. */
    uint8_t *exact = egm_alloc(size - 1);
    EGM_ASSERT(exact);
    memcpy(exact, data + 1, size - 1);
    size_t which = data[0] % (sizeof tries / sizeof tries[0] + 2);
    if (which < sizeof tries / sizeof tries[0]) {
        tries[which](exact, size - 1);
    } else if (which == sizeof tries / sizeof tries[0]) {
        try_keys(exact, size - 1);
    } else if (size - 1 >= EGM_FRAME_HEADER) {
        struct egm_frame frame;
        if (egm_frame_parse(exact, &frame) == 0) {
            EGM_ASSERT(frame.length <= EGM_MAX_FRAME && egm_message_name(frame.type));
        }
    }
    egm_free(exact);
    return 0;
}
