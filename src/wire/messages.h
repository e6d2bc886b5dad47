/* SPDX-License-Identifier: Apache-2.0 */
/* Frames, records and messages of the control and data protocol: encoding and bounds-checked
 * decoding. Pure.
 *
 * Frame = header of 24 bytes, then `length` bytes of payload:
 *
 *   offset size meaning (all little-endian)
 *   0      4    magic 0x314d4745 ("EGM1")
 *   4      2    protocol version of the sender (EGM_PROTOCOL_VERSION)
 *   6      2    type: a message number of messages.def
 *   8      4    length of the payload, at most EGM_MAX_FRAME
 *   12     4    flags: zero; an unknown bit is refused
 *   16     8    request id: a reply repeats it; one-way messages carry 0
 *
 * Payload = the message's head record, then the records its comment in messages.def names. Raw
 * bytes of READ_REPLY and WRITE follow the frame and are not counted in `length`.
 *
 * Validity, for a receiver: magic, version range, known type, flags zero, length within bounds;
 * every count is checked against the bytes that remain before anything is allocated; every byte of
 * the payload is used. A message that breaks one of these closes the connection (EGM_E_PROTO); it
 * never aborts the process. */
#ifndef EGM_WIRE_MESSAGES_H
#define EGM_WIRE_MESSAGES_H

#include "base/buf.h"

#include "wire/messages.def"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EGM_FRAME_MAGIC 0x314d4745u
#define EGM_FRAME_HEADER 24u
#define EGM_PROTOCOL_VERSION 1u

enum egm_role {
    EGM_ROLE_REQUESTER = 1,
    EGM_ROLE_PROVIDER = 2,
    EGM_ROLE_OPERATOR = 3
};
enum egm_record_kind {
    EGM_RECORD_GRANT = 1,
    EGM_RECORD_SEAL = 2,
    EGM_RECORD_DROP = 3,
    EGM_RECORD_FLOOR = 4
};
enum egm_import_kind {
    EGM_IMPORT_MAP = 1,
    EGM_IMPORT_TCP = 2
};
enum egm_unmount_mode {
    EGM_UNMOUNT_DRAIN = 1,
    EGM_UNMOUNT_NOW = 2
};
enum egm_request_flags {
    EGM_FORCE = 1u << 0,
    EGM_UPSERT = 1u << 1,
    EGM_HARD_PIN = 1u << 2,
    EGM_SAME_NODE = 1u << 3,
    EGM_PROBE = 1u << 4
};

enum egm_message {
#define EGM_ENUM(number, name, head) EGM_MSG_##name = (number),
    EGM_MESSAGES(EGM_ENUM)
#undef EGM_ENUM
};

/* Bytes inside a received payload: borrowed from it. Not NUL-terminated. */
struct egm_bytes {
    const uint8_t *data;
    uint32_t size;
};

/* Reads a payload front to back. After the first failure `failed` is EGM_E_PROTO and every read
 * yields zero. */
struct egm_cursor {
    const uint8_t *at, *end;
    int failed;
};

typedef uint8_t egm_field_u8;
typedef uint16_t egm_field_u16;
typedef uint32_t egm_field_u32;
typedef uint64_t egm_field_u64;
typedef int32_t egm_field_i32;
#define egm_field_str struct egm_bytes

#define EGM_MEMBER(type, field) egm_field_##type field;
#define EGM_STRUCT(record)              \
    struct egm_##record {               \
        EGM_FIELDS_##record(EGM_MEMBER) \
    };
EGM_RECORDS(EGM_STRUCT)
#undef EGM_STRUCT
#undef EGM_MEMBER

/* egm_put_<record>(buf, &value) appends; a full buffer sets buf->failed. egm_take_<record>(cursor,
 * &value) reads; strings point into the payload. */
#define EGM_DECLARE(record)                                                       \
    void egm_put_##record(struct egm_buf *buf, const struct egm_##record *value); \
    void egm_take_##record(struct egm_cursor *cursor, struct egm_##record *ret_value);
EGM_RECORDS(EGM_DECLARE)
#undef EGM_DECLARE

struct egm_frame {
    uint16_t type;    /* enum egm_message */
    uint32_t length;  /* payload bytes */
    uint64_t request; /* id */
};

/* Appends a header with length 0 and returns its place; egm_frame_end writes the length once the
 * payload is there. */
size_t egm_frame_begin(struct egm_buf *buf, uint16_t type, uint64_t request);
void egm_frame_end(struct egm_buf *buf, size_t begin);

/* Parses 24 bytes. Returns 0, EGM_E_PROTO, EGM_E_VERSION or EGM_E_LIMIT (length). */
int egm_frame_parse(const uint8_t header[EGM_FRAME_HEADER], struct egm_frame *ret_frame);

struct egm_cursor egm_cursor_of(const void *data, size_t size);
size_t egm_cursor_left(const struct egm_cursor *cursor);
/* 0 when everything was read and nothing failed, else EGM_E_PROTO. */
int egm_cursor_end(const struct egm_cursor *cursor);
/* Fails the cursor unless `count` records of at least `least` bytes can still follow and count <=
 * most. */
bool egm_cursor_expect(struct egm_cursor *cursor, uint64_t count, size_t least, uint64_t most);
struct egm_bytes egm_take_bytes(struct egm_cursor *cursor, uint32_t size);
uint32_t egm_take_u32(struct egm_cursor *cursor);
void egm_put_u32(struct egm_buf *buf, uint32_t value);
/* Overwrites four bytes that were appended before. */
void egm_patch_u32(struct egm_buf *buf, size_t at, uint32_t value);

/* Name of a message for logs ("PUT_START"), or "unknown". */
const char *egm_message_name(uint16_t type);

static inline struct egm_bytes egm_bytes_of(const void *data, size_t size)
{
    return (struct egm_bytes){.data = data, .size = (uint32_t)size};
}

#endif
