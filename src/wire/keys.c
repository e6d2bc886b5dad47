/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/keys.h"

#include "egmstore/errors.h"

#include <string.h>

/* Compares eight bytes at a time: keys of a batch agree for a hundred bytes. */
static size_t shared_head(const uint8_t *a, const uint8_t *b, size_t most)
{
    size_t n = 0;
    while (n + 8 <= most && memcmp(a + n, b + n, 8) == 0) {
        n += 8;
    }
    while (n < most && a[n] == b[n]) {
        n++;
    }
    return n;
}

static size_t shared_tail(const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size,
                          size_t most)
{
    size_t n = 0;
    while (n + 8 <= most && memcmp(a + a_size - n - 8, b + b_size - n - 8, 8) == 0) {
        n += 8;
    }
    while (n < most && a[a_size - n - 1] == b[b_size - n - 1]) {
        n++;
    }
    return n;
}

/* Out of line: where gcc knows that a size is below 64 KiB it emits "rep movs", five times slower
 * for keys. */
__attribute__((noinline)) static void copy(uint8_t *to, const uint8_t *from, size_t size)
{
    if (size > 0) {
        memcpy(to, from, size);
    }
}

static void put_le16(uint8_t *at, size_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

int egm_put_key(struct egm_key_writer *writer, struct egm_buf *buf, const void *key, size_t size)
{
    if (size == 0 || size > EGM_MAX_KEY) {
        return EGM_E_BAD_KEY;
    }
    size_t most = size < writer->previous_size ? size : writer->previous_size;
    size_t head = shared_head(key, writer->previous, most);
    size_t tail = shared_tail(key, size, writer->previous, writer->previous_size, most - head);
    size_t middle = size - head - tail;
    uint8_t *at = egm_buf_extend(buf, EGM_KEY_CODED_LEAST + middle);
    if (!at) {
        return buf->failed;
    }
    put_le16(at, head);
    put_le16(at + 2, tail);
    put_le16(at + 4, middle);
    copy(at + EGM_KEY_CODED_LEAST, (const uint8_t *)key + head, middle);
    writer->previous = key;
    writer->previous_size = size;
    return 0;
}

struct egm_bytes egm_take_key(struct egm_key_reader *reader, struct egm_cursor *cursor)
{
    struct egm_bytes code = egm_take_bytes(cursor, EGM_KEY_CODED_LEAST);
    if (!code.data) {
        return (struct egm_bytes){0};
    }
    uint32_t head = code.data[0] | (uint32_t)code.data[1] << 8;
    uint32_t tail = code.data[2] | (uint32_t)code.data[3] << 8;
    uint32_t middle = code.data[4] | (uint32_t)code.data[5] << 8;
    uint32_t size = head + tail + middle;
    struct egm_bytes fresh = egm_take_bytes(cursor, middle);
    if (cursor->failed || size == 0 || size > EGM_MAX_KEY || head + tail > reader->size) {
        cursor->failed = EGM_E_PROTO;
        return (struct egm_bytes){0};
    }
    const uint8_t *previous = reader->keys[reader->turn];
    uint8_t *key = reader->keys[reader->turn ^ 1u];
    /* The key before the previous one still lies where this one goes, and agrees with it that far.
     */
    uint32_t same = head < reader->head ? head : reader->head;
    copy(key + same, previous + same, head - same);
    copy(key + head, fresh.data, middle);
    copy(key + head + middle, previous + reader->size - tail, tail);
    reader->turn ^= 1u;
    reader->size = size;
    reader->head = head;
    return (struct egm_bytes){.data = key, .size = size};
}
