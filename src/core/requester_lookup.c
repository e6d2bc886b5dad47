/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/checked.h"

#include "core/requester.h"
#include "wire/keys.h"
#include "wire/status.h"

#include <string.h>

#define ENTRY_BYTES 30u
#define EXTENT_BYTES 16u

static int put_keys(struct egm_buf *buf, size_t begin, const struct egm_key *keys, size_t count)
{
    struct egm_key_writer writer = {0};

    for (size_t i = 0; i < count; i++) {
        int r = egm_put_key(&writer, buf, keys[i].data, keys[i].size);
        if (r < 0) {
            return r;
        }
    }
    egm_frame_end(buf, begin);
    return buf->failed;
}

int egm_exist_encode(const struct egm_requester *r, struct egm_buf *buf, uint64_t request,
                     uint8_t flags, const struct egm_key *keys, size_t count)
{
    struct egm_exist head = {.session = r->session, .flags = flags, .key_count = (uint32_t)count};
    size_t begin = egm_frame_begin(buf, EGM_MSG_EXIST, request);

    egm_put_exist(buf, &head);
    return put_keys(buf, begin, keys, count);
}

int egm_prefix_encode(const struct egm_requester *r, struct egm_buf *buf, uint64_t request,
                      const struct egm_key *keys, size_t count)
{
    struct egm_prefix head = {.session = r->session, .key_count = (uint32_t)count};
    size_t begin = egm_frame_begin(buf, EGM_MSG_PREFIX, request);

    egm_put_prefix(buf, &head);
    return put_keys(buf, begin, keys, count);
}

int egm_query_encode(const struct egm_requester *r, struct egm_buf *buf, uint64_t request,
                     const struct egm_key *keys, size_t count)
{
    struct egm_get_start head = {.session = r->session, .key_count = (uint32_t)count};
    size_t begin = egm_frame_begin(buf, EGM_MSG_GET_START, request);

    egm_put_get_start(buf, &head);
    return put_keys(buf, begin, keys, count);
}

int egm_remove_encode(const struct egm_requester *r, struct egm_buf *buf, uint64_t request,
                      uint8_t flags, const struct egm_key *keys, size_t count)
{
    struct egm_remove head = {.session = r->session, .flags = flags, .key_count = (uint32_t)count};
    size_t begin = egm_frame_begin(buf, EGM_MSG_REMOVE, request);

    egm_put_remove(buf, &head);
    return put_keys(buf, begin, keys, count);
}

void egm_remove_all_encode(const struct egm_requester *r, struct egm_buf *buf, uint64_t request,
                           uint8_t flags)
{
    struct egm_remove_all head = {.session = r->session, .flags = flags};
    size_t begin = egm_frame_begin(buf, EGM_MSG_REMOVE_ALL, request);

    egm_put_remove_all(buf, &head);
    egm_frame_end(buf, begin);
}

void egm_remove_matching_encode(const struct egm_requester *r, struct egm_buf *buf,
                                uint64_t request, uint8_t flags, const char *pattern)
{
    struct egm_remove_matching head = {
        .session = r->session, .flags = flags, .pattern = egm_bytes_of(pattern, strlen(pattern))};
    size_t begin = egm_frame_begin(buf, EGM_MSG_REMOVE_MATCHING, request);

    egm_put_remove_matching(buf, &head);
    egm_frame_end(buf, begin);
}

/* What a head's status means once the reply is known to be whole. */
static int refused(struct egm_cursor *cursor, int32_t status)
{
    return status > 0 || egm_cursor_end(cursor) < 0 ? EGM_E_PROTO : egm_status_from_wire(status);
}

int egm_exist_parse(const void *payload, size_t size, size_t count, int *results)
{
    struct egm_cursor cursor = egm_cursor_of(payload, size);
    struct egm_exist_reply reply;

    egm_take_exist_reply(&cursor, &reply);
    if (cursor.failed) {
        return EGM_E_PROTO;
    }
    if (reply.status != 0) {
        return refused(&cursor, reply.status);
    }
    if (reply.count != count || egm_cursor_left(&cursor) != count) {
        return EGM_E_PROTO;
    }
    struct egm_bytes flags = egm_take_bytes(&cursor, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        if (flags.data[i] > 1) {
            return EGM_E_PROTO;
        }
    }
    for (size_t i = 0; i < count; i++) {
        results[i] = flags.data[i];
    }
    return 0;
}

int egm_results_parse(const void *payload, size_t size, size_t count, int *results)
{
    struct egm_cursor cursor = egm_cursor_of(payload, size);
    struct egm_results_reply reply;

    egm_take_results_reply(&cursor, &reply);
    if (cursor.failed) {
        return EGM_E_PROTO;
    }
    if (reply.status != 0) {
        return refused(&cursor, reply.status);
    }
    if (reply.count != count || egm_cursor_left(&cursor) != count * 4) {
        return EGM_E_PROTO;
    }
    struct egm_cursor check = cursor;
    struct egm_result result;
    for (size_t i = 0; i < count; i++) {
        egm_take_result(&check, &result);
        if (result.status > 0) {
            return EGM_E_PROTO;
        }
    }
    for (size_t i = 0; i < count; i++) {
        egm_take_result(&cursor, &result);
        results[i] = egm_status_from_wire(result.status);
    }
    return 0;
}

int egm_count_parse(const void *payload, size_t size, uint64_t max, uint64_t *ret_count,
                    char *reason, size_t reason_size)
{
    struct egm_cursor cursor = egm_cursor_of(payload, size);
    struct egm_count_reply reply;

    egm_take_count_reply(&cursor, &reply);
    if (egm_cursor_end(&cursor) < 0 || reply.status > 0 || reply.count > max) {
        return EGM_E_PROTO;
    }
    if (reason) {
        size_t length = egm_min_u64(reply.reason.size, reason_size - 1);
        if (length > 0) {
            memcpy(reason, reply.reason.data, length);
        }
        reason[length] = '\0';
    }
    if (reply.status != 0) {
        return egm_status_from_wire(reply.status);
    }
    *ret_count = reply.count;
    return 0;
}

static bool take_found(struct egm_cursor *cursor, struct egm_found *found)
{
    struct egm_entry entry;

    egm_take_entry(cursor, &entry);
    if (cursor->failed || entry.status > 0 || entry.replica_count > EGM_MAX_REPLICAS ||
        (entry.status != 0 && entry.replica_count != 0)) {
        return false;
    }
    *found = (struct egm_found){.status = egm_status_from_wire(entry.status)};
    if (entry.status == 0) {
        found->size = entry.size;
        found->replica_count = entry.replica_count;
    }
    for (uint8_t i = 0; i < entry.replica_count; i++) {
        struct egm_replica replica;
        egm_take_replica(cursor, &replica);
        if (cursor->failed || replica.extent_count == 0 ||
            !egm_cursor_expect(cursor, replica.extent_count, EXTENT_BYTES, EGM_MAX_EXTENTS)) {
            return false;
        }
        found->mounts[i] = replica.mount;
        for (uint8_t e = 0; e < replica.extent_count; e++) {
            struct egm_extent extent;
            egm_take_extent(cursor, &extent);
            if (e == 0) {
                found->offsets[i] = extent.offset;
            }
        }
    }
    return !cursor->failed;
}

int egm_query_parse(const void *payload, size_t size, size_t count, struct egm_found *found)
{
    struct egm_cursor cursor = egm_cursor_of(payload, size);
    struct egm_items_reply reply;

    egm_take_items_reply(&cursor, &reply);
    if (cursor.failed) {
        return EGM_E_PROTO;
    }
    if (reply.status != 0) {
        return refused(&cursor, reply.status);
    }
    if (reply.count != count ||
        !egm_cursor_expect(&cursor, count, ENTRY_BYTES, EGM_MAX_BATCH_KEYS)) {
        return EGM_E_PROTO;
    }
    for (size_t i = 0; i < count; i++) {
        if (!take_found(&cursor, &found[i])) {
            return EGM_E_PROTO;
        }
    }
    return egm_cursor_end(&cursor);
}
