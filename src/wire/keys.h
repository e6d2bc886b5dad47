/* SPDX-License-Identifier: Apache-2.0 */
/* Key lists on the wire: each key is coded against the one before it. Pure.
 *
 * The keys of one batch share a long head and often a tail (contract/vllm-connector.md 3.1), so a
 * key is {u16 shared head, u16 shared tail, u16 middle length, middle bytes}: head and tail are
 * copied from the previous key (for the first: an empty one). Head + middle + tail = 1..EGM_MAX_KEY
 * bytes; head + tail <= the previous key's size. 65,536 vLLM keys take a twelfth of their plain
 * size. Decoding needs memory for two keys only. */
#ifndef EGM_WIRE_KEYS_H
#define EGM_WIRE_KEYS_H

#include "base/limits.h"

#include "wire/messages.h"

/* A coded key takes at least this many bytes: for egm_cursor_expect. */
#define EGM_KEY_CODED_LEAST 6u

/* Zero-initialise, then call egm_put_key for each key in order; `previous` must stay valid until
 * the next call. */
struct egm_key_writer {
    const uint8_t *previous;
    size_t previous_size;
};

/* Appends one key. Returns 0 or EGM_E_BAD_KEY (empty, or longer than EGM_MAX_KEY). */
int egm_put_key(struct egm_key_writer *writer, struct egm_buf *buf, const void *key, size_t size);

/* Zero-initialise, then call egm_take_key. The key read is valid until the next call but one. */
struct egm_key_reader {
    uint8_t keys[2][EGM_MAX_KEY];
    uint32_t size; /* of the key read last */
    uint32_t head; /* how much of it is as in the key before it */
    unsigned turn; /* which half of keys it is in */
};

/* Reads the next key; a bad code fails the cursor and yields an empty key. */
struct egm_bytes egm_take_key(struct egm_key_reader *reader, struct egm_cursor *cursor);

#endif
