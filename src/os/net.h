/* SPDX-License-Identifier: Apache-2.0 */
/* Blocking stream sockets with deadlines, TCP and Unix paths, and fd passing. Deadlines are
 * egm_clock_ns times; 0 means none. All fds are O_CLOEXEC and non-blocking inside; waiting is
 * that of os/wait.h. @threadsafe per fd and direction.
 *
 * An address is "host:port", "[v6]:port" or "unix:/path". Errors: -errno of the failing call,
 * EGM_E_TIMEOUT when the deadline passed, EGM_E_PEER_GONE when the peer closed, EGM_E_CLOSED when
 * the thread must stop (os/wait.h). */
#ifndef EGM_OS_NET_H
#define EGM_OS_NET_H

#include "base/detail.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

int egm_net_connect(const char *address, uint64_t deadline_ns, int *ret_fd,
                    struct egm_detail *reterr);

/* Binds and listens; port 0 takes a free one. ret_address (may be NULL) receives the bound address,
 * NUL-terminated. A Unix path is replaced only when nobody listens on it; its mode is 0660. */
int egm_net_listen(const char *address, int *ret_fd, char *ret_address, size_t ret_size,
                   struct egm_detail *reterr);
int egm_net_accept(int listen_fd, int *ret_fd);

int egm_net_send(int fd, const void *data, size_t size, uint64_t deadline_ns);
int egm_net_recv(int fd, void *data, size_t size, uint64_t deadline_ns);
/* Vectored forms. `iov` is consumed (modified). */
int egm_net_sendv(int fd, struct iovec *iov, size_t count, uint64_t deadline_ns);
int egm_net_recvv(int fd, struct iovec *iov, size_t count, uint64_t deadline_ns);

/* At most EGM_NET_FDS fds with at least one byte. */
#define EGM_NET_FDS 64
int egm_net_send_fds(int fd, const void *data, size_t size, const int *fds, size_t fd_count,
                     uint64_t deadline_ns);
/* Receives exactly `size` bytes; fds that came with them are appended to fds (capacity fd_max),
 * *ret_count updated. Fds beyond the capacity are closed and the call fails with EGM_E_LIMIT. */
int egm_net_recv_fds(int fd, void *data, size_t size, int *fds, size_t fd_max, size_t *ret_count,
                     uint64_t deadline_ns);

/* True when the peer has closed or sent something nobody asked for: such a pooled connection is not
 * usable. @no blocking */
bool egm_net_is_stale(int fd);

struct egm_net_peer {
    uint32_t pid, uid, gid;
};
int egm_net_peer_of(int unix_fd, struct egm_net_peer *ret_peer);

#endif
