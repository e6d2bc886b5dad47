/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/messages.h"

#include "base/limits.h"

#include "egmstore/errors.h"

#include <string.h>

/* ---- little-endian scalars ---- */
static void store_le(uint8_t *at, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        at[i] = (uint8_t)(value >> (8 * i));
    }
}

static uint64_t load_le(const uint8_t *at, size_t size)
{
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++) {
        value |= (uint64_t)at[i] << (8 * i);
    }
    return value;
}

static void put_le(struct egm_buf *buf, uint64_t value, size_t size)
{
    uint8_t *at = egm_buf_extend(buf, size);
    if (at) {
        store_le(at, value, size);
    }
}

static uint64_t take_le(struct egm_cursor *cursor, size_t size)
{
    if (cursor->failed || egm_cursor_left(cursor) < size) {
        cursor->failed = EGM_E_PROTO;
        return 0;
    }
    uint64_t value = load_le(cursor->at, size);
    cursor->at += size;
    return value;
}

static void put_u8(struct egm_buf *buf, uint8_t value)
{
    put_le(buf, value, 1);
}

static void put_u16(struct egm_buf *buf, uint16_t value)
{
    put_le(buf, value, 2);
}

void egm_put_u32(struct egm_buf *buf, uint32_t value)
{
    put_le(buf, value, 4);
}

void egm_patch_u32(struct egm_buf *buf, size_t at, uint32_t value)
{
    if (!buf->failed) {
        store_le(buf->data + at, value, 4);
    }
}

static void put_u64(struct egm_buf *buf, uint64_t value)
{
    put_le(buf, value, 8);
}

static void put_i32(struct egm_buf *buf, int32_t value)
{
    put_le(buf, (uint32_t)value, 4);
}

static void put_str(struct egm_buf *buf, struct egm_bytes value)
{
    if (value.size > UINT16_MAX) {
        buf->failed = EGM_E_LIMIT;
        return;
    }
    put_u16(buf, (uint16_t)value.size);
    uint8_t *at = egm_buf_extend(buf, value.size);
    if (at && value.size > 0) {
        memcpy(at, value.data, value.size);
    }
}

static uint8_t take_u8(struct egm_cursor *cursor)
{
    return (uint8_t)take_le(cursor, 1);
}

static uint16_t take_u16(struct egm_cursor *cursor)
{
    return (uint16_t)take_le(cursor, 2);
}

uint32_t egm_take_u32(struct egm_cursor *cursor)
{
    return (uint32_t)take_le(cursor, 4);
}

static uint64_t take_u64(struct egm_cursor *cursor)
{
    return take_le(cursor, 8);
}

static int32_t take_i32(struct egm_cursor *cursor)
{
    return (int32_t)(uint32_t)take_le(cursor, 4);
}

struct egm_bytes egm_take_bytes(struct egm_cursor *cursor, uint32_t size)
{
    if (cursor->failed || egm_cursor_left(cursor) < size) {
        cursor->failed = EGM_E_PROTO;
        return (struct egm_bytes){0};
    }
    struct egm_bytes bytes = {.data = cursor->at, .size = size};
    cursor->at += size;
    return bytes;
}

static struct egm_bytes take_str(struct egm_cursor *cursor)
{
    return egm_take_bytes(cursor, take_u16(cursor));
}

/* ---- records ---- */
#define EGM_PUT_u8 put_u8
#define EGM_PUT_u16 put_u16
#define EGM_PUT_u32 egm_put_u32
#define EGM_PUT_u64 put_u64
#define EGM_PUT_i32 put_i32
#define EGM_PUT_str put_str
#define EGM_TAKE_u8 take_u8
#define EGM_TAKE_u16 take_u16
#define EGM_TAKE_u32 egm_take_u32
#define EGM_TAKE_u64 take_u64
#define EGM_TAKE_i32 take_i32
#define EGM_TAKE_str take_str

#define EGM_PUT_FIELD(type, field) EGM_PUT_##type(buf, value->field);
#define EGM_TAKE_FIELD(type, field) ret_value->field = EGM_TAKE_##type(cursor);
#define EGM_CODEC(record)                                                             \
    void egm_put_##record(struct egm_buf *buf, const struct egm_##record *value)      \
    {                                                                                 \
        EGM_FIELDS_##record(EGM_PUT_FIELD)                                            \
    }                                                                                 \
    void egm_take_##record(struct egm_cursor *cursor, struct egm_##record *ret_value) \
    {                                                                                 \
        EGM_FIELDS_##record(EGM_TAKE_FIELD)                                           \
    }
EGM_RECORDS(EGM_CODEC)

/* ---- frames ---- */
size_t egm_frame_begin(struct egm_buf *buf, uint16_t type, uint64_t request)
{
    size_t begin = buf->len;
    egm_put_u32(buf, EGM_FRAME_MAGIC);
    put_u16(buf, EGM_PROTOCOL_VERSION);
    put_u16(buf, type);
    egm_put_u32(buf, 0);
    egm_put_u32(buf, 0);
    put_u64(buf, request);
    return begin;
}

void egm_frame_end(struct egm_buf *buf, size_t begin)
{
    if (buf->failed) {
        return;
    }
    size_t length = buf->len - begin - EGM_FRAME_HEADER;
    if (length > EGM_MAX_FRAME) {
        buf->failed = EGM_E_LIMIT;
        return;
    }
    store_le(buf->data + begin + 8, length, 4);
}

int egm_frame_parse(const uint8_t header[EGM_FRAME_HEADER], struct egm_frame *ret_frame)
{
    if (load_le(header, 4) != EGM_FRAME_MAGIC || load_le(header + 12, 4) != 0) {
        return EGM_E_PROTO;
    }
    /* N and N+1 interoperate: the handshake picks the version; a frame may carry either. */
    uint64_t version = load_le(header + 4, 2);
    if (version == 0 || version > EGM_PROTOCOL_VERSION + 1) {
        return EGM_E_VERSION;
    }
    uint64_t length = load_le(header + 8, 4);
    if (length > EGM_MAX_FRAME) {
        return EGM_E_LIMIT;
    }
    *ret_frame = (struct egm_frame){.type = (uint16_t)load_le(header + 6, 2),
                                    .length = (uint32_t)length,
                                    .request = load_le(header + 16, 8)};
    return 0;
}

struct egm_cursor egm_cursor_of(const void *data, size_t size)
{
    const uint8_t *at = data;
    return (struct egm_cursor){.at = at, .end = at ? at + size : NULL};
}

size_t egm_cursor_left(const struct egm_cursor *cursor)
{
    return (size_t)(cursor->end - cursor->at);
}

int egm_cursor_end(const struct egm_cursor *cursor)
{
    return cursor->failed || cursor->at != cursor->end ? EGM_E_PROTO : 0;
}

bool egm_cursor_expect(struct egm_cursor *cursor, uint64_t count, size_t least, uint64_t most)
{
    if (!cursor->failed && count <= most && count * least <= egm_cursor_left(cursor)) {
        return true;
    }
    cursor->failed = EGM_E_PROTO;
    return false;
}

const char *egm_message_name(uint16_t type)
{
    switch (type) {
#define EGM_NAME(number, name, head) \
    case (number):                   \
        return #name;
        EGM_MESSAGES(EGM_NAME)
#undef EGM_NAME
    default:
        return "unknown";
    }
}
