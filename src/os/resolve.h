/* SPDX-License-Identifier: Apache-2.0 */
/* Host names to socket addresses, within a deadline.
 *
 * The resolver has timeouts of its own, of many seconds, and cannot be interrupted. So a helper
 * thread asks it, and the caller waits no longer than it may; what comes too late is there for the
 * next one. Numeric addresses are parsed on the spot. Answers are kept for some seconds, and all
 * who ask for a name share one look-up. @threadsafe */
#ifndef EGM_OS_RESOLVE_H
#define EGM_OS_RESOLVE_H

#include "base/detail.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define EGM_RESOLVED_MAX 8

struct egm_resolved {
    size_t count;
    struct {
        struct sockaddr_storage at;
        socklen_t size;
    } all[EGM_RESOLVED_MAX]; /* in the resolver's order */
};

/* `host` as egm_parse_address leaves it. EGM_E_TIMEOUT: no answer by deadline_ns; EGM_E_CLOSED: see
 * os/wait.h; -EHOSTUNREACH: no such name, or too many look-ups are under way; -errno. */
EGM_MUST_CHECK int egm_resolve(const char *host, uint16_t port, uint64_t deadline_ns,
                               struct egm_resolved *ret, struct egm_detail *reterr);

#endif
