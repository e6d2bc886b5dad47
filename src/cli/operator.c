/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/operator.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/limits.h"

#include "os/clock.h"
#include "os/host.h"
#include "os/net.h"
#include "wire/messages.h"
#include "wire/status.h"

#include <string.h>
#include <unistd.h>

/* Sends the frame in `out` and receives one answer of the wanted type; the payload is the caller's.
 */
static int exchange(int fd, const struct egm_buf *out, uint16_t wanted, uint64_t deadline_ns,
                    uint8_t **ret_payload, uint32_t *ret_size)
{
    uint8_t header[EGM_FRAME_HEADER];
    struct egm_frame frame;

    int r = out->failed ? out->failed : egm_net_send(fd, out->data, out->len, deadline_ns);
    if (r == 0) {
        r = egm_net_recv(fd, header, sizeof(header), deadline_ns);
    }
    if (r == 0) {
        r = egm_frame_parse(header, &frame);
    }
    if (r < 0) {
        return r;
    }
    if (frame.type != wanted) {
        return EGM_E_PROTO;
    }
    uint8_t *payload = egm_alloc(frame.length + 1u);
    if (!payload) {
        return EGM_E_LIMIT;
    }
    r = egm_net_recv(fd, payload, frame.length, deadline_ns);
    if (r < 0) {
        egm_free(payload);
        return r;
    }
    *ret_payload = payload;
    *ret_size = frame.length;
    return 0;
}

static int greet(int fd, const char *cluster, uint64_t deadline_ns, struct egm_detail *reterr)
{
    struct egm_buf out;
    struct egm_hello_reply reply;
    uint8_t *payload;
    uint32_t size;

    egm_buf_init(&out, 4096);
    size_t begin = egm_frame_begin(&out, EGM_MSG_HELLO, 1);
    egm_put_hello(&out, &(struct egm_hello){.version_min = EGM_PROTOCOL_VERSION,
                                            .version_max = EGM_PROTOCOL_VERSION,
                                            .role = EGM_ROLE_OPERATOR,
                                            .process = egm_random_u64(),
                                            .cluster = egm_bytes_of(cluster, strlen(cluster))});
    egm_frame_end(&out, begin);
    int r = exchange(fd, &out, EGM_MSG_HELLO_REPLY, deadline_ns, &payload, &size);
    egm_buf_release(&out);
    if (r < 0) {
        return egm_fail(reterr, r, "hello",
                        "the peer does not answer as a master does: %s; check --master",
                        egm_strerror(r));
    }
    struct egm_cursor cursor = egm_cursor_of(payload, size);
    egm_take_hello_reply(&cursor, &reply);
    r = egm_cursor_end(&cursor) < 0 ? EGM_E_PROTO : egm_status_from_wire(reply.status);
    if (r < 0) {
        egm_fail(reterr, r, "hello", "the master refused: %.*s; check --cluster",
                 (int)reply.reason.size, reply.reason.data ? (const char *)reply.reason.data : "");
    }
    egm_free(payload);
    return r;
}

int egm_operator_open(const char *address, const char *cluster, uint32_t deadline_ms, int *ret_fd,
                      struct egm_detail *reterr)
{
    uint64_t deadline_ns = egm_clock_ns() + deadline_ms * EGM_NS_PER_MS;
    int fd;

    int r = egm_net_connect(address, deadline_ns, &fd, reterr);
    if (r < 0) {
        return r;
    }
    r = greet(fd, cluster, deadline_ns, reterr);
    if (r < 0) {
        close(fd);
        return r;
    }
    *ret_fd = fd;
    return 0;
}

int egm_operator_stat(int fd, uint32_t deadline_ms, json_t **ret_root, struct egm_detail *reterr)
{
    struct egm_buf out;
    struct egm_text_reply reply;
    uint8_t *payload;
    uint32_t size;

    egm_buf_init(&out, 4096);
    size_t begin = egm_frame_begin(&out, EGM_MSG_STAT, 2);
    egm_put_stat(&out, &(struct egm_stat){.what = egm_bytes_of("stat", 4)});
    egm_frame_end(&out, begin);
    int r = exchange(fd, &out, EGM_MSG_STAT_REPLY, egm_clock_ns() + deadline_ms * EGM_NS_PER_MS,
                     &payload, &size);
    egm_buf_release(&out);
    if (r < 0) {
        return egm_fail(reterr, r, "stat", "the master does not answer: %s", egm_strerror(r));
    }
    struct egm_cursor cursor = egm_cursor_of(payload, size);
    egm_take_text_reply(&cursor, &reply);
    struct egm_bytes text = egm_take_bytes(&cursor, reply.text_length);
    json_t *root = cursor.failed ? NULL : json_loadb((const char *)text.data, text.size, 0, NULL);
    egm_free(payload);
    if (!root) {
        return egm_fail(reterr, EGM_E_PROTO, "stat", "the master's answer is no JSON");
    }
    *ret_root = root;
    return 0;
}
