/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The published name "host:port" and the data port.
 *
 * A name is unique because its port is bound for the provider's life. Without a data address the
 * data port is on loopback and, where the name brings no port, in the range that Mooncake's clients
 * use for names (12300..14300, MC_STORE_CLIENT_MIN_PORT / _MAX_PORT), so one port serves both. A
 * name with a port is taken as it is: whoever chose it answers for it, and may hold that port
 * itself; then the data port is another one.
 */
#include "base/checked.h"

#include "os/fork.h"
#include "os/host.h"
#include "provider/shell.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NAME_PORT_MIN 12300
#define NAME_PORT_MAX 14300
#define LOOPBACK "127.0.0.1"

static uint64_t port_from_env(const char *name, uint64_t or_else)
{
    uint64_t port = or_else;

    egm_ignore(egm_parse_u64(getenv(name), 1, UINT16_MAX, &port), "the default then");
    return port;
}

/* Binds without listening, and without SO_REUSEADDR, so that nobody else can bind it. */
static int bind_only(uint16_t port)
{
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return -errno;
    }
    if (bind(fd, (const struct sockaddr *)&sa, sizeof(sa)) < 0) {
        int r = -errno;
        close(fd);
        return r;
    }
    return fd;
}

static int listen_port(uint16_t port, int *ret_fd, char *ret_address)
{
    char address[32];

    egm_ignore(snprintf(address, sizeof(address), LOOPBACK ":%u", port), "fits");
    return egm_net_listen(address, ret_fd, ret_address, EGM_ADDRESS_TEXT, NULL);
}

/* A free port of the range: listening, or only bound when there is to be no data port. */
static int take_name_port(struct egm_provider *p, bool has_data, uint16_t *ret_port,
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
        if (has_data) {
            r = listen_port(port, &p->tcp_listener.fd, p->data_address);
        } else {
            r = bind_only(port);
            p->reserved_fd = r < 0 ? -1 : r;
        }
        if (r >= 0) {
            *ret_port = port;
            return 0;
        }
    }
    return egm_fail(reterr, r, "name", "no free port in %llu..%llu for the provider's name: %s",
                    (unsigned long long)min, (unsigned long long)max, egm_strerror(r));
}

/* A data port where the user said. Published is an address that others can connect to. */
static int open_wanted(struct egm_provider *p, const char *wanted, const char *name_host,
                       uint16_t *ret_port, struct egm_detail *reterr)
{
    char bound[EGM_ADDRESS_TEXT];
    struct egm_address address;
    int r = egm_net_listen(wanted, &p->tcp_listener.fd, bound, sizeof(bound), reterr);

    if (r < 0) {
        return r;
    }
    if (strncmp(wanted, "unix:", 5) == 0 || egm_parse_address(bound, &address) < 0) {
        return egm_fail(reterr, EGM_E_INVALID, "data_address",
                        "the data address '%.100s' must be host:port", wanted);
    }
    *ret_port = address.port;
    if (egm_host_name(bound, p->data_address, sizeof(p->data_address), NULL) < 0) {
        /* A wildcard: others reach it under the name. */
        memcpy(address.host, name_host, sizeof(address.host));
        r = egm_format_address(&address, p->data_address, sizeof(p->data_address));
    }
    return r < 0 ? r : 0;
}

int egm_shell_names(struct egm_provider *p, const struct egm_provider_options *options,
                    struct egm_detail *reterr)
{
    const char *data = options->data_address;
    bool has_data = !data || strcmp(data, "off") != 0;
    struct egm_address name;
    uint16_t port = 0;
    int r = egm_host_name(options->hostname, p->hostname, sizeof(p->hostname), reterr);

    if (r < 0) {
        return r;
    }
    r = egm_parse_address(p->hostname, &name);
    if (r < 0) {
        return egm_fail(reterr, EGM_E_INVALID, "name", "'%s' is not a host name", p->hostname);
    }
    if (data && data[0] && has_data) {
        r = open_wanted(p, data, name.host, &port, reterr);
    } else if (!name.has_port) {
        r = take_name_port(p, has_data, &port, reterr);
    } else if (has_data) {
        r = listen_port(name.port, &p->tcp_listener.fd, p->data_address);
        if (r < 0) {
            r = listen_port(0, &p->tcp_listener.fd, p->data_address);
        }
        if (r < 0) {
            return egm_fail(reterr, r, "data_port", "cannot listen on loopback: %s",
                            egm_strerror(r));
        }
    }
    if (r < 0) {
        return r;
    }
    egm_fork_enter(p->tcp_listener.fd);
    egm_fork_enter(p->reserved_fd);
    if (!name.has_port) {
        name.port = port;
        name.has_port = true;
        r = egm_format_address(&name, p->hostname, sizeof(p->hostname));
    }
    return r < 0 ? r : 0;
}
