/* SPDX-License-Identifier: Apache-2.0 */
#include "mover/tcp/frame_io.h"

#include "base/assert.h"
#include "base/checked.h"
#include "base/limits.h"

#include "egmstore/errors.h"
#include "os/host.h"
#include "os/net.h"
#include "wire/status.h"

#include <string.h>

#define HELLO_MAX 4096u

int egm_frame_send(int fd, const struct egm_buf *frames, uint64_t deadline_ns)
{
    if (frames->failed) {
        return frames->failed;
    }
    return egm_net_send(fd, frames->data, frames->len, deadline_ns);
}

int egm_frame_recv(int fd, struct egm_frame *ret_frame, struct egm_buf *payload,
                   uint64_t deadline_ns)
{
    uint8_t header[EGM_FRAME_HEADER];
    struct egm_frame frame;
    int r = egm_net_recv(fd, header, sizeof(header), deadline_ns);

    if (r < 0) {
        return r;
    }
    r = egm_frame_parse(header, &frame);
    if (r < 0) {
        return r == EGM_E_LIMIT ? EGM_E_PROTO : r;
    }
    egm_buf_clear(payload);
    if (frame.length > payload->max) {
        return EGM_E_PROTO;
    }
    uint8_t *at = egm_buf_extend(payload, frame.length);
    if (!at) {
        return payload->failed;
    }
    r = egm_net_recv(fd, at, frame.length, deadline_ns);
    if (r < 0) {
        return r;
    }
    *ret_frame = frame;
    return 0;
}

int egm_frame_expect(int fd, uint16_t type, uint64_t request, struct egm_buf *payload,
                     uint64_t deadline_ns)
{
    struct egm_frame frame = {0}; /* gcc -O3 does not see that failures are negative */
    int r = egm_frame_recv(fd, &frame, payload, deadline_ns);

    if (r < 0) {
        return r;
    }
    return frame.type == type && frame.request == request ? 0 : EGM_E_PROTO;
}

static int read_reply(const struct egm_buf *payload, struct egm_hello_reply *ret_reply,
                      struct egm_detail *reterr)
{
    struct egm_cursor cursor = egm_cursor_of(payload->data, payload->len);
    struct egm_hello_reply reply;

    egm_take_hello_reply(&cursor, &reply);
    if (egm_cursor_end(&cursor) < 0) {
        return egm_fail(reterr, EGM_E_PROTO, "hello",
                        "the peer's greeting is malformed: is it an egmstore server?");
    }
    if (reply.status != 0) {
        int code = egm_status_from_wire(reply.status);
        code = code < 0 ? code : EGM_E_PROTO;
        return egm_fail(reterr, code, "hello", "refused by the peer: %.*s (%s)",
                        (int)egm_min_u64(reply.reason.size, 200),
                        reply.reason.data ? (const char *)reply.reason.data : "",
                        egm_strerror(code));
    }
    if (reply.version != EGM_PROTOCOL_VERSION) {
        return egm_fail(reterr, EGM_E_VERSION, "hello",
                        "the peer chose protocol version %u, this library has %u", reply.version,
                        EGM_PROTOCOL_VERSION);
    }
    reply.proof = (struct egm_bytes){0};
    reply.reason = (struct egm_bytes){0};
    *ret_reply = reply;
    return 0;
}

int egm_hello_exchange(int fd, const struct egm_greeting *greeting, uint64_t deadline_ns,
                       struct egm_hello_reply *ret_reply, struct egm_detail *reterr)
{
    struct egm_hello hello = {.version_min = EGM_PROTOCOL_VERSION,
                              .version_max = EGM_PROTOCOL_VERSION,
                              .role = (uint8_t)greeting->role,
                              .process = greeting->process,
                              .cluster = egm_bytes_of(greeting->cluster, strlen(greeting->cluster)),
                              .nonce = egm_random_u64()};
    struct egm_buf buf;

    egm_buf_init(&buf, HELLO_MAX);
    size_t begin = egm_frame_begin(&buf, EGM_MSG_HELLO, 1);
    egm_put_hello(&buf, &hello);
    egm_frame_end(&buf, begin);
    int r = egm_frame_send(fd, &buf, deadline_ns);
    if (r == 0) {
        r = egm_frame_expect(fd, EGM_MSG_HELLO_REPLY, 1, &buf, deadline_ns);
    }
    if (r < 0) {
        egm_ignore(
            egm_fail(reterr, r, "hello", "no valid greeting from the peer: %s", egm_strerror(r)),
            "returned below");
    } else {
        r = read_reply(&buf, ret_reply, reterr);
    }
    egm_buf_release(&buf);
    return r;
}
