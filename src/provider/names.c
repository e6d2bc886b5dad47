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

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOOPBACK "127.0.0.1"

static int listen_port(uint16_t port, int *ret_fd, char *ret_address)
{
    char address[32];

    egm_ignore(snprintf(address, sizeof(address), LOOPBACK ":%u", port), "fits");
    return egm_net_listen(address, ret_fd, ret_address, EGM_ADDRESS_TEXT, NULL);
}

static int take_listening(void *arg, uint16_t port)
{
    struct egm_provider *p = arg;

    return listen_port(port, &p->tcp_listener.fd, p->data_address);
}

static int take_held(void *arg, uint16_t port)
{
    struct egm_provider *p = arg;
    int fd = egm_host_hold_port(port);

    p->reserved_fd = fd < 0 ? -1 : fd;
    return fd;
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
        /* listening, or only held when there is to be no data port */
        r = egm_host_name_port(has_data ? take_listening : take_held, p, &port, reterr);
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
