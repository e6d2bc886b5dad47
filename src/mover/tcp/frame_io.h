/* SPDX-License-Identifier: Apache-2.0 */
/* Whole frames over a blocking socket, and the first exchange of a connection. Used by the movers
 * and by the client.
 *
 * A peer is given a bound for every payload before anything is allocated. Whatever breaks the
 * protocol is EGM_E_PROTO and leaves the stream at an unknown place: the caller closes the
 * connection. Not threadsafe per fd and direction. */
#ifndef EGM_MOVER_TCP_FRAME_IO_H
#define EGM_MOVER_TCP_FRAME_IO_H

#include "base/buf.h"
#include "base/detail.h"

#include "wire/messages.h"

#include <stdint.h>

/* Sends what the buffer holds (one or more finished frames). The buffer's own failure, or a code of
 * os/net.h. */
EGM_MUST_CHECK int egm_frame_send(int fd, const struct egm_buf *frames, uint64_t deadline_ns);

/* Receives one frame; its payload replaces the content of `payload`. Codes of os/net.h and
 * egm_frame_parse, -ENOMEM. */
EGM_MUST_CHECK int egm_frame_recv(int fd, struct egm_frame *ret_frame, struct egm_buf *payload,
                                  uint64_t deadline_ns);

/* As above, and the frame must be the answer `type` to `request`; else EGM_E_PROTO. */
EGM_MUST_CHECK int egm_frame_expect(int fd, uint16_t type, uint64_t request,
                                    struct egm_buf *payload, uint64_t deadline_ns);

struct egm_greeting {
    enum egm_role role;
    uint64_t process;    /* random, one per process */
    const char *cluster; /* borrowed */
};

/* HELLO and its reply. ret_reply's strings are cleared: they do not outlive the call. Errors: the
 * peer's status with its reason, EGM_E_VERSION, EGM_E_PROTO, codes of os/net.h. */
EGM_MUST_CHECK int egm_hello_exchange(int fd, const struct egm_greeting *greeting,
                                      uint64_t deadline_ns, struct egm_hello_reply *ret_reply,
                                      struct egm_detail *reterr);

#endif
