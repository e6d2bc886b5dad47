/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream sockets with deadlines.
 *
 * Model: every fd is non-blocking; a transfer is a loop of {try, and when the kernel has nothing to
 * give or take, wait (os/wait.h) until the deadline}. The deadline is looked at before each try but
 * the first and that on a ready fd, so a peer that trickles bytes cannot stretch a call beyond it,
 * and a call with an expired deadline still takes what is already there.
 *
 * Ends of a connection come in several shapes (0 from recv, ECONNRESET, EPIPE); all of them are
 * EGM_E_PEER_GONE here, so that callers decide by one code.
 *
 * fd passing: one sendmsg carries the fds with the first byte; the receiver may get the bytes in
 * pieces and collects fds from each. Fds that arrive in a call that fails are closed by it.
 *
 * Names are looked up within the deadline as well (os/resolve.h).
 */
#include "os/net.h"

#include "base/checked.h"
#include "base/parse.h"

#include "os/clock.h"
#include "os/resolve.h"
#include "os/wait.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define UNIX_PREFIX "unix:"
#define LISTEN_BACKLOG 1024
/* The kernel takes at most 1024 pieces a call (UIO_MAXIOV). */
#define IOV_BATCH 1024
/* A name to listen at is looked up for so long. */
#define LISTEN_NAME_NS (10 * EGM_NS_PER_S)

static bool is_gone(int err)
{
    return err == ECONNRESET || err == EPIPE || err == ENOTCONN || err == ESHUTDOWN;
}

static bool has_passed(uint64_t deadline_ns)
{
    return deadline_ns != 0 && egm_clock_ns() >= deadline_ns;
}

/* ---- addresses ---- */

static int unix_address(const char *path, struct sockaddr_un *ret, struct egm_detail *reterr)
{
    size_t n = strlen(path);

    if (n == 0 || n >= sizeof(ret->sun_path)) {
        return egm_fail(reterr, EGM_E_INVALID, "address",
                        "the socket path '%.120s' must have 1..%zu bytes; set "
                        "EGMSTORE_RUNTIME_DIR to a shorter directory",
                        path, sizeof(ret->sun_path) - 1);
    }
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(ret->sun_path, path, n + 1);
    return 0;
}

/* "host:port" to socket addresses. */
static int resolve(const char *address, bool is_passive, uint64_t deadline_ns,
                   struct egm_resolved *ret, struct egm_detail *reterr)
{
    char text[EGM_ADDRESS_TEXT];
    size_t n = strlen(address);
    struct egm_address parsed;

    /* "any port" is ":0" here and no port in the parser's language. */
    if (is_passive && n > 2 && n < sizeof(text) && strcmp(address + n - 2, ":0") == 0) {
        n -= 2;
    }
    if (n >= sizeof(text)) {
        return egm_fail(reterr, EGM_E_INVALID, "address", "the address is too long");
    }
    memcpy(text, address, n);
    text[n] = '\0';
    if (egm_parse_address(text, &parsed) < 0 || (!parsed.has_port && !is_passive)) {
        return egm_fail(reterr, EGM_E_INVALID, "address",
                        "'%.200s' is not an address; write host:port, [v6]:port or unix:/path",
                        address);
    }
    return egm_resolve(parsed.host, parsed.has_port ? parsed.port : 0, deadline_ns, ret, reterr);
}

static void set_nodelay(int fd)
{
    int one = 1;

    /* Fails on Unix sockets, where nothing is delayed anyhow. */
    egm_ignore(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), "an optimisation");
}

static int open_socket(int family)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    return fd < 0 ? -errno : fd;
}

/* ---- connecting ---- */

static int finish_connect(int fd, uint64_t deadline_ns)
{
    int err = 0;
    socklen_t size = sizeof(err);
    int r = egm_wait_fd(fd, POLLOUT, deadline_ns);

    if (r < 0) {
        return r;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &size) < 0) {
        return -errno;
    }
    return -err;
}

static int connect_one(const struct sockaddr *sa, socklen_t size, uint64_t deadline_ns, int *ret_fd)
{
    int fd = open_socket(sa->sa_family);

    if (fd < 0) {
        return fd;
    }
    int r = 0;
    for (;;) {
        r = connect(fd, sa, size) < 0 ? -errno : 0;
        if (r == -EINTR || r == -EINPROGRESS) {
            r = finish_connect(fd, deadline_ns);
        }
        /* A Unix listener whose backlog is full says EAGAIN and cannot be polled for room. */
        if (r != -EAGAIN) {
            break;
        }
        if (has_passed(deadline_ns)) {
            r = EGM_E_TIMEOUT;
            break;
        }
        r = egm_wait_time(egm_clock_ns() + EGM_NS_PER_MS);
        if (r < 0) {
            break;
        }
    }
    if (r < 0) {
        close(fd);
        return r;
    }
    set_nodelay(fd);
    *ret_fd = fd;
    return 0;
}

int egm_net_connect(const char *address, uint64_t deadline_ns, int *ret_fd,
                    struct egm_detail *reterr)
{
    int r;

    if (strncmp(address, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0) {
        struct sockaddr_un un;
        r = unix_address(address + strlen(UNIX_PREFIX), &un, reterr);
        if (r < 0) {
            return r;
        }
        r = connect_one((const struct sockaddr *)&un, sizeof(un), deadline_ns, ret_fd);
    } else {
        struct egm_resolved found;
        r = resolve(address, /*is_passive=*/false, deadline_ns, &found, reterr);
        if (r < 0) {
            return r;
        }
        r = -EHOSTUNREACH;
        for (size_t i = 0; i < found.count && r < 0 && r != EGM_E_TIMEOUT && r != EGM_E_CLOSED;
             i++) {
            r = connect_one((const struct sockaddr *)&found.all[i].at, found.all[i].size,
                            deadline_ns, ret_fd);
        }
    }
    if (r < 0) {
        return egm_fail(reterr, r, "connect", "cannot connect to '%.200s': %s", address,
                        egm_strerror(r));
    }
    return 0;
}

/* ---- listening ---- */

/* True if a process accepts connections at the path. */
static bool is_path_served(const struct sockaddr_un *un)
{
    int fd = open_socket(AF_UNIX);

    if (fd < 0) {
        return true;
    }
    int r = connect(fd, (const struct sockaddr *)un, sizeof(*un)) < 0 ? -errno : 0;
    close(fd);
    return r == 0 || r == -EAGAIN || r == -EINPROGRESS;
}

static int bind_path(int fd, const struct sockaddr_un *un)
{
    struct stat st;

    if (bind(fd, (const struct sockaddr *)un, sizeof(*un)) == 0) {
        return 0;
    }
    int r = -errno;
    if (r != -EADDRINUSE || lstat(un->sun_path, &st) < 0 || !S_ISSOCK(st.st_mode) ||
        is_path_served(un)) {
        return r;
    }
    /* Left behind by a process that was killed. */
    if (unlink(un->sun_path) < 0 && errno != ENOENT) {
        return -errno;
    }
    return bind(fd, (const struct sockaddr *)un, sizeof(*un)) < 0 ? -errno : 0;
}

static int listen_path(const char *path, int *ret_fd, struct egm_detail *reterr)
{
    struct sockaddr_un un;
    int r = unix_address(path, &un, reterr);

    if (r < 0) {
        return r;
    }
    int fd = open_socket(AF_UNIX);
    if (fd < 0) {
        return egm_fail(reterr, fd, "listen", "cannot open a socket: %s", strerror(-fd));
    }
    r = bind_path(fd, &un);
    /* Nobody can connect before listen(), so the mode is right from the first connection on. */
    if (r == 0 && chmod(path, 0660) < 0) {
        r = -errno;
    }
    if (r == 0 && listen(fd, LISTEN_BACKLOG) < 0) {
        r = -errno;
    }
    if (r < 0) {
        close(fd);
        return egm_fail(reterr, r, "listen", "cannot listen at '%s': %s", path, strerror(-r));
    }
    *ret_fd = fd;
    return 0;
}

static int listen_one(const struct sockaddr *sa, socklen_t size, int *ret_fd)
{
    int on = 1;
    int off = 0;
    int fd = open_socket(sa->sa_family);

    if (fd < 0) {
        return fd;
    }
    int r = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ? -errno : 0;
    if (r == 0 && sa->sa_family == AF_INET6) {
        /* "::" serves IPv4 as well, whatever the host's default is. */
        egm_ignore(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)),
                   "a host without IPv4");
    }
    if (r == 0 && bind(fd, sa, size) < 0) {
        r = -errno;
    }
    if (r == 0 && listen(fd, LISTEN_BACKLOG) < 0) {
        r = -errno;
    }
    if (r < 0) {
        close(fd);
        return r;
    }
    *ret_fd = fd;
    return 0;
}

/* The bound address as "host:port". */
static int name_of(int fd, char *ret_text, size_t size)
{
    struct sockaddr_storage sa;
    socklen_t sa_size = sizeof(sa);
    char port[8];
    struct egm_address address = {.has_port = true};

    if (getsockname(fd, (struct sockaddr *)&sa, &sa_size) < 0) {
        return -errno;
    }
    if (getnameinfo((const struct sockaddr *)&sa, sa_size, address.host, sizeof(address.host), port,
                    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        return EGM_E_INTERNAL;
    }
    uint64_t number;
    if (egm_parse_u64(port, 1, UINT16_MAX, &number) < 0) {
        return EGM_E_INTERNAL;
    }
    address.port = (uint16_t)number;
    int n = egm_format_address(&address, ret_text, size);
    return n < 0 ? n : 0;
}

int egm_net_listen(const char *address, int *ret_fd, char *ret_address, size_t ret_size,
                   struct egm_detail *reterr)
{
    int fd = -1;
    int r;

    if (strncmp(address, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0) {
        r = listen_path(address + strlen(UNIX_PREFIX), &fd, reterr);
        if (r == 0 && ret_address) {
            int n = snprintf(ret_address, ret_size, "%s", address);
            r = n >= 0 && (size_t)n < ret_size ? 0 : EGM_E_TOO_LARGE;
        }
    } else {
        struct egm_resolved found;
        r = resolve(address, /*is_passive=*/true, egm_clock_ns() + LISTEN_NAME_NS, &found, reterr);
        if (r < 0) {
            return r;
        }
        r = -EADDRNOTAVAIL;
        for (size_t i = 0; i < found.count && r < 0; i++) {
            r = listen_one((const struct sockaddr *)&found.all[i].at, found.all[i].size, &fd);
        }
        if (r < 0) {
            return egm_fail(reterr, r, "listen", "cannot listen at '%.200s': %s", address,
                            strerror(-r));
        }
        r = ret_address ? name_of(fd, ret_address, ret_size) : 0;
    }
    if (r < 0) {
        if (fd >= 0) {
            close(fd);
        }
        return r;
    }
    *ret_fd = fd;
    return 0;
}

int egm_net_accept(int listen_fd, int *ret_fd)
{
    int fd;

    do {
        fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    } while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    if (fd < 0) {
        return -errno;
    }
    set_nodelay(fd);
    *ret_fd = fd;
    return 0;
}

/* ---- moving bytes ---- */

/* Drops the first n bytes of the list; returns how many whole pieces are done. */
static size_t advance(struct iovec *iov, size_t count, size_t n)
{
    size_t done = 0;

    while (done < count && n >= iov[done].iov_len) {
        n -= iov[done].iov_len;
        iov[done].iov_len = 0;
        done++;
    }
    if (done < count) {
        iov[done].iov_base = (char *)iov[done].iov_base + n;
        iov[done].iov_len -= n;
    }
    return done;
}

/* Result of one try: bytes moved, 0 to wait, or an error. */
static ssize_t try_send(int fd, struct msghdr *msg)
{
    ssize_t n = sendmsg(fd, msg, MSG_NOSIGNAL);

    if (n >= 0) {
        return n;
    }
    if (errno == EAGAIN || errno == EINTR) {
        return 0;
    }
    return is_gone(errno) ? EGM_E_PEER_GONE : -errno;
}

static ssize_t try_recv(int fd, struct msghdr *msg)
{
    ssize_t n = recvmsg(fd, msg, MSG_CMSG_CLOEXEC);

    if (n > 0) {
        return n;
    }
    if (n == 0) {
        return EGM_E_PEER_GONE;
    }
    if (errno == EAGAIN || errno == EINTR) {
        return 0;
    }
    return is_gone(errno) ? EGM_E_PEER_GONE : -errno;
}

static int move_bytes(int fd, struct iovec *iov, size_t count, uint64_t deadline_ns, bool is_send)
{
    bool is_ready = true; /* worth a try whatever the time is */
    bool is_last = false; /* and it is the last one */

    for (;;) {
        size_t done = 0;
        while (done < count && iov[done].iov_len == 0) {
            done++;
        }
        iov += done;
        count -= done;
        if (count == 0) {
            return 0;
        }
        if (!is_ready && has_passed(deadline_ns)) {
            return EGM_E_TIMEOUT;
        }
        is_ready = false;
        struct msghdr msg = {.msg_iov = iov, .msg_iovlen = egm_min_u64(count, IOV_BATCH)};
        ssize_t n = is_send ? try_send(fd, &msg) : try_recv(fd, &msg);
        if (n < 0) {
            return (int)n;
        }
        if (n == 0) {
            int r =
                is_last ? EGM_E_TIMEOUT : egm_wait_fd(fd, is_send ? POLLOUT : POLLIN, deadline_ns);
            if (r < 0) {
                return r;
            }
            is_ready = true;
            is_last = has_passed(deadline_ns);
            continue;
        }
        done = advance(iov, count, (size_t)n);
        iov += done;
        count -= done;
    }
}

int egm_net_send(int fd, const void *data, size_t size, uint64_t deadline_ns)
{
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = size};

    return move_bytes(fd, &iov, 1, deadline_ns, /*is_send=*/true);
}

int egm_net_recv(int fd, void *data, size_t size, uint64_t deadline_ns)
{
    struct iovec iov = {.iov_base = data, .iov_len = size};

    return move_bytes(fd, &iov, 1, deadline_ns, /*is_send=*/false);
}

int egm_net_sendv(int fd, struct iovec *iov, size_t count, uint64_t deadline_ns)
{
    return move_bytes(fd, iov, count, deadline_ns, /*is_send=*/true);
}

int egm_net_recvv(int fd, struct iovec *iov, size_t count, uint64_t deadline_ns)
{
    return move_bytes(fd, iov, count, deadline_ns, /*is_send=*/false);
}

/* ---- fds ---- */

union fd_control {
    char bytes[CMSG_SPACE(sizeof(int) * EGM_NET_FDS)];
    struct cmsghdr align;
};

int egm_net_send_fds(int fd, const void *data, size_t size, const int *fds, size_t fd_count,
                     uint64_t deadline_ns)
{
    if (size == 0 || fd_count > EGM_NET_FDS) {
        return EGM_E_INVALID;
    }
    if (fd_count == 0) {
        return egm_net_send(fd, data, size, deadline_ns);
    }
    union fd_control control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = CMSG_SPACE(sizeof(int) * fd_count)};
    struct cmsghdr *head = CMSG_FIRSTHDR(&msg);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
    memcpy(CMSG_DATA(head), fds, sizeof(int) * fd_count);
    for (;;) {
        ssize_t n = try_send(fd, &msg);
        if (n < 0) {
            return (int)n;
        }
        if (n > 0) {
            /* The fds went with these bytes; the rest follows plain. */
            return egm_net_send(fd, (const char *)data + n, size - (size_t)n, deadline_ns);
        }
        int r = egm_wait_fd(fd, POLLOUT, deadline_ns);
        if (r < 0) {
            return r;
        }
    }
}

static void close_fds(const int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        close(fds[i]);
    }
}

/* Appends the fds of one message; those that do not fit are closed. */
static int collect_fds(struct msghdr *msg, int *fds, size_t fd_max, size_t *count)
{
    int r = (msg->msg_flags & MSG_CTRUNC) ? EGM_E_LIMIT : 0;

    for (struct cmsghdr *head = CMSG_FIRSTHDR(msg); head; head = CMSG_NXTHDR(msg, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t n = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int one;
            memcpy(&one, CMSG_DATA(head) + i * sizeof(int), sizeof(one));
            if (*count < fd_max) {
                fds[(*count)++] = one;
            } else {
                close(one);
                r = EGM_E_LIMIT;
            }
        }
    }
    return r;
}

int egm_net_recv_fds(int fd, void *data, size_t size, int *fds, size_t fd_max, size_t *ret_count,
                     uint64_t deadline_ns)
{
    size_t before = *ret_count;
    size_t count = before;
    size_t got = 0;
    int r = 0;

    while (got < size) {
        union fd_control control = {0};
        struct iovec iov = {.iov_base = (char *)data + got, .iov_len = size - got};
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
        ssize_t n = try_recv(fd, &msg);
        if (n > 0) {
            got += (size_t)n;
            r = collect_fds(&msg, fds, fd_max, &count);
            if (r == 0 && got < size && has_passed(deadline_ns)) {
                r = EGM_E_TIMEOUT;
            }
        } else {
            r = n < 0 ? (int)n : egm_wait_fd(fd, POLLIN, deadline_ns);
        }
        if (r < 0) {
            close_fds(fds + before, count - before);
            return r;
        }
    }
    *ret_count = count;
    return 0;
}

bool egm_net_is_stale(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN | POLLRDHUP};

    return poll(&p, 1, 0) != 0;
}

int egm_net_peer_of(int unix_fd, struct egm_net_peer *ret_peer)
{
    struct ucred cred;
    socklen_t size = sizeof(cred);

    if (getsockopt(unix_fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) < 0) {
        return -errno;
    }
    *ret_peer = (struct egm_net_peer){
        .pid = (uint32_t)cred.pid, .uid = (uint32_t)cred.uid, .gid = (uint32_t)cred.gid};
    return 0;
}
