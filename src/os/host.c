/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identity of the host, random numbers, the folder for sockets, and the published name.
 *
 * The boot id is what two processes compare to find that a shared file *may* be reachable; being
 * handed the file is what proves it (DESIGN 6). It is hashed, not copied, because it only needs to
 * be compared and a u64 is what the wire carries.
 *
 * The runtime folder holds sockets that hand out pool memory, so a folder that somebody else could
 * have prepared is refused: it must be a real directory (no link) that we or root own.
 */
#include "os/host.h"

#include "base/assert.h"
#include "base/parse.h"

#include "os/clock.h"
#include "os/resolve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_NS EGM_NS_PER_S
#define BOOT_ID_PATH "/proc/sys/kernel/random/boot_id"
#define NAME_PORT_MIN 12300
#define NAME_PORT_MAX 14300

/* FNV-1a, then a finishing mix so that close texts differ in all bits. */
static uint64_t hash_text(const char *text, size_t size)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < size; i++) {
        h = (h ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3);
    }
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    h ^= h >> 32;
    return h ? h : 1;
}

uint64_t egm_host_id(void)
{
    char text[256];
    ssize_t n = -1;
    int fd = open(BOOT_ID_PATH, O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        n = read(fd, text, sizeof(text));
        close(fd);
    }
    if (n <= 0) {
        /* A /proc without it: the name is the next best thing that processes of one host share. */
        text[0] = '\0';
        egm_ignore(gethostname(text, sizeof(text)), "an empty name still gives a stable id");
        text[sizeof(text) - 1] = '\0';
        n = (ssize_t)strlen(text);
    }
    return hash_text(text, (size_t)n);
}

uint64_t egm_random_u64(void)
{
    uint64_t v = 0;

    while (v == 0) {
        /* Up to 256 bytes are never cut short once the pool is ready; only a signal can interfere
         * before that. */
        ssize_t n = getrandom(&v, sizeof(v), 0);
        if (n != (ssize_t)sizeof(v)) {
            EGM_ASSERT(n >= 0 || errno == EINTR);
            v = 0;
        }
    }
    return v;
}

static int check_dir(const char *path, struct egm_detail *reterr)
{
    struct stat st;

    if (lstat(path, &st) < 0) {
        int r = -errno;
        return egm_fail(reterr, r, "runtime_dir", "cannot look at '%s': %s", path, strerror(-r));
    }
    if (!S_ISDIR(st.st_mode)) {
        return egm_fail(reterr, -ENOTDIR, "runtime_dir",
                        "'%s' is not a directory; remove it or set EGMSTORE_RUNTIME_DIR", path);
    }
    if (st.st_uid != geteuid() && st.st_uid != 0) {
        return egm_fail(
            reterr, EGM_E_NOT_PERMITTED, "runtime_dir",
            "'%s' belongs to uid %u; set EGMSTORE_RUNTIME_DIR to a directory of your own", path,
            (unsigned)st.st_uid);
    }
    return 0;
}

static int choose_dir(char *ret_path, size_t size)
{
    const char *chosen = getenv("EGMSTORE_RUNTIME_DIR");
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    int n;

    if (chosen && chosen[0]) {
        n = snprintf(ret_path, size, "%s", chosen);
    } else if (geteuid() == 0) {
        n = snprintf(ret_path, size, "/run/egmstore");
    } else if (xdg && xdg[0]) {
        n = snprintf(ret_path, size, "%s/egmstore", xdg);
    } else {
        n = snprintf(ret_path, size, "/tmp/egmstore-%u", (unsigned)geteuid());
    }
    return n > 0 && (size_t)n < size ? 0 : EGM_E_TOO_LARGE;
}

int egm_runtime_dir(char *ret_path, size_t size, struct egm_detail *reterr)
{
    int r = choose_dir(ret_path, size);

    if (r < 0) {
        return egm_fail(reterr, r, "runtime_dir",
                        "the runtime directory's path is longer than %zu bytes", size);
    }
    if (mkdir(ret_path, 0770) < 0 && errno != EEXIST) {
        r = -errno;
        return egm_fail(reterr, r, "runtime_dir",
                        "cannot create '%s': %s; set EGMSTORE_RUNTIME_DIR to a writable place",
                        ret_path, strerror(-r));
    }
    return check_dir(ret_path, reterr);
}

/* 2: an IPv4 address others can reach; 1: such an IPv6 address; 0: neither. */
static int rank_address(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET) {
        uint32_t ip = ntohl(((const struct sockaddr_in *)(const void *)sa)->sin_addr.s_addr);
        bool is_local = (ip >> 24) == 127 || (ip >> 16) == 0xa9fe;
        return is_local ? 0 : 2;
    }
    if (sa->sa_family == AF_INET6) {
        const struct in6_addr *ip = &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(ip) || IN6_IS_ADDR_LINKLOCAL(ip) ? 0 : 1;
    }
    return 0;
}

/* The first routable address of an interface that is up, else loopback. */
static void own_address(struct egm_address *ret)
{
    struct ifaddrs *all = NULL;
    int best = 0;

    *ret = (struct egm_address){.host = "127.0.0.1"};
    if (getifaddrs(&all) < 0) {
        return;
    }
    for (struct ifaddrs *one = all; one; one = one->ifa_next) {
        int rank = one->ifa_addr && (one->ifa_flags & IFF_UP) && !(one->ifa_flags & IFF_LOOPBACK)
                       ? rank_address(one->ifa_addr)
                       : 0;
        if (rank > best) {
            const void *ip =
                rank == 2
                    ? (const void *)&((struct sockaddr_in *)(void *)one->ifa_addr)->sin_addr
                    : (const void *)&((struct sockaddr_in6 *)(void *)one->ifa_addr)->sin6_addr;
            if (inet_ntop(one->ifa_addr->sa_family, ip, ret->host, sizeof(ret->host))) {
                best = rank;
            }
        }
    }
    freeifaddrs(all);
}

static bool is_wildcard(const char *host)
{
    struct in6_addr v6;
    struct in_addr v4;

    if (inet_pton(AF_INET, host, &v4) == 1) {
        return v4.s_addr == INADDR_ANY;
    }
    if (inet_pton(AF_INET6, host, &v6) == 1) {
        return IN6_IS_ADDR_UNSPECIFIED(&v6) ||
               (IN6_IS_ADDR_V4MAPPED(&v6) && memcmp(&v6.s6_addr[12], "\0\0\0\0", 4) == 0);
    }
    return false;
}

/* ---- the port of a name ---- */

static uint64_t port_from_env(const char *name, uint64_t or_else)
{
    uint64_t port = or_else;

    egm_ignore(egm_parse_u64(getenv(name), 1, UINT16_MAX, &port), "the default then");
    return port;
}

int egm_host_name_port(int (*take)(void *arg, uint16_t port), void *arg, uint16_t *ret_port,
                       struct egm_detail *reterr)
{
    uint64_t min = port_from_env("MC_STORE_CLIENT_MIN_PORT", NAME_PORT_MIN);
    uint64_t max = port_from_env("MC_STORE_CLIENT_MAX_PORT", NAME_PORT_MAX);
    int r = -EADDRINUSE;

    if (max < min) {
        max = min;
    }
    uint64_t count = max - min + 1;
    /* Starts of many processes at once rarely meet when each begins somewhere else. */
    uint64_t start = egm_random_u64() % count;
    for (uint64_t i = 0; i < count && (r == -EADDRINUSE || r == -EACCES); i++) {
        uint16_t port = (uint16_t)(min + (start + i) % count);
        r = take(arg, port);
        if (r >= 0) {
            *ret_port = port;
            return 0;
        }
    }
    return egm_fail(reterr, r, "name",
                    "no free port in %llu..%llu for the published name: %s; set "
                    "MC_STORE_CLIENT_MIN_PORT and MC_STORE_CLIENT_MAX_PORT",
                    (unsigned long long)min, (unsigned long long)max, egm_strerror(r));
}

int egm_host_hold_port(uint16_t port)
{
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return -errno;
    }
    /* without SO_REUSEADDR, so that nobody else can bind it */
    if (bind(fd, (const struct sockaddr *)&sa, sizeof(sa)) < 0) {
        int r = -errno;
        close(fd);
        return r;
    }
    return fd;
}

/* ---- the name ---- */

int egm_host_name(const char *wanted, char *ret_name, size_t size, struct egm_detail *reterr)
{
    struct egm_address address;

    if (!wanted || !wanted[0]) {
        own_address(&address);
    } else {
        int r = egm_parse_address(wanted, &address);
        if (r < 0) {
            return egm_fail(reterr, EGM_E_INVALID, "host_name",
                            "'%.200s' is not a host name or address (host, host:port, [v6]:port)",
                            wanted);
        }
        if (is_wildcard(address.host)) {
            return egm_fail(reterr, EGM_E_INVALID, "host_name",
                            "'%s' is a wildcard that nobody can connect to; give the address of "
                            "one interface, or an empty name to have it chosen",
                            wanted);
        }
    }
    char text[EGM_ADDRESS_TEXT];
    int n = egm_format_address(&address, text, sizeof(text));
    if (n < 0 || (size_t)n >= size) {
        return egm_fail(reterr, EGM_E_TOO_LARGE, "host_name", "the host name is too long");
    }
    memcpy(ret_name, text, (size_t)n + 1);
    return 0;
}

/* Only an address of our own can be bound. */
static bool can_bind(const struct sockaddr *sa, socklen_t size)
{
    int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return false;
    }
    bool can = bind(fd, sa, size) == 0;
    close(fd);
    return can;
}

bool egm_host_is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strncmp(address, "[::1]", 5) == 0 ||
           strcmp(address, "::1") == 0 || strncmp(address, "localhost", 9) == 0;
}

bool egm_host_is_local(const char *host)
{
    struct egm_resolved found;
    bool is_local = false;

    if (is_wildcard(host)) {
        return true;
    }
    if (egm_resolve(host, 0, egm_clock_ns() + NAME_NS, &found, NULL) < 0) {
        return false;
    }
    for (size_t i = 0; i < found.count && !is_local; i++) {
        is_local = can_bind((const struct sockaddr *)&found.all[i].at, found.all[i].size);
    }
    return is_local;
}
