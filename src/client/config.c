/* SPDX-License-Identifier: Apache-2.0 */
/* Options, environment and names.
 *
 * EGMSTORE_DEADLINE_MS, MC_RPC_TIMEOUT_MS   deadline of a call, ms, above options.deadline_ms
 * EGMSTORE_MAP, MC_STORE_MEMCPY             false: no shared mappings
 * EGMSTORE_CLUSTER                          id of master and providers; default "egmstore"
 * MC_STORE_CLIENT_MIN_PORT, .._MAX_PORT     ports for a name that brings none (os/host.h)
 *
 * A bad value gives one warning and counts as not set. */
#include "base/assert.h"
#include "base/log.h"
#include "base/parse.h"

#include "client/internal.h"
#include "os/clock.h"
#include "os/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_MASTER "127.0.0.1:50051"
#define DEFAULT_CLUSTER "egmstore"
#define DEFAULT_DEADLINE_MS 30000u
#define DEADLINE_MAX_MS (24u * 3600u * 1000u)
#define UNIX_PREFIX "unix:"

static int copy_text(char *to, size_t size, const char *text, const char *what,
                     struct egm_detail *reterr)
{
    size_t length = strlen(text);

    if (length >= size) {
        return egm_fail(reterr, EGM_E_INVALID, "open", "%s is too long: at most %zu bytes", what,
                        size - 1);
    }
    memcpy(to, text, length + 1);
    return 0;
}

static const char *or_default(const char *text, const char *other)
{
    return text && text[0] ? text : other;
}

static void warn_env(const char *name, const char *value, const char *wanted)
{
    egm_warn(
        "environment ignored name=%s value=\"%.64s\" wanted=\"%s\", continuing with the default",
        name, value, wanted);
}

static bool env_ms(const char *name, uint64_t *ret_ms)
{
    const char *value = getenv(name);

    if (!value || !value[0]) {
        return false;
    }
    if (egm_parse_u64(value, 1, DEADLINE_MAX_MS, ret_ms) < 0) {
        warn_env(name, value, "milliseconds, 1..86400000");
        return false;
    }
    return true;
}

static bool env_is_off(const char *name)
{
    const char *value = getenv(name);
    bool is_on;

    if (!value || !value[0]) {
        return false;
    }
    if (egm_parse_bool(value, &is_on) < 0) {
        warn_env(name, value, "true or false");
        return false;
    }
    return !is_on;
}

static uint64_t deadline_ms(const struct egm_store_options *options)
{
    uint64_t ms;

    if (env_ms("EGMSTORE_DEADLINE_MS", &ms) || env_ms("MC_RPC_TIMEOUT_MS", &ms)) {
        return ms;
    }
    return options->deadline_ms ? options->deadline_ms : DEFAULT_DEADLINE_MS;
}

/* ---- the master's address ---- */

static bool is_this_host(const char *host)
{
    char own[256];

    if (strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
        strncmp(host, "127.", 4) == 0) {
        return true;
    }
    if (gethostname(own, sizeof(own)) == 0 && strcmp(host, own) == 0) {
        return true;
    }
    return egm_host_name("", own, sizeof(own), NULL) == 0 && strcmp(host, own) == 0;
}

/* A master on this host also listens at a path, which is quicker and needs no port. */
static void find_unix_master(struct egm_client_config *config, const struct egm_address *address)
{
    char dir[128];
    struct stat st;

    if (!is_this_host(address->host) || egm_runtime_dir(dir, sizeof(dir), NULL) < 0) {
        return;
    }
    int n = snprintf(config->unix_master, sizeof(config->unix_master),
                     UNIX_PREFIX "%s/master-%u.sock", dir, address->port);
    if (n < 0 || (size_t)n >= sizeof(config->unix_master)) {
        config->unix_master[0] = '\0';
        return;
    }
    if (stat(config->unix_master + strlen(UNIX_PREFIX), &st) < 0) {
        egm_debug("no socket of a local master path=%s", config->unix_master + strlen(UNIX_PREFIX));
    }
}

static int set_master(struct egm_client_config *config, const char *master,
                      struct egm_detail *reterr)
{
    struct egm_address address;

    if (strncmp(master, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0) {
        return copy_text(config->master, sizeof(config->master), master, "the master's path",
                         reterr);
    }
    int r = egm_parse_address(master, &address);
    if (r < 0 || strlen(master) >= sizeof(config->master)) {
        return egm_fail(
            reterr, EGM_E_INVALID, "open",
            "'%.200s' is not the address of a master; write host:port, [v6]:port or unix:/path",
            master);
    }
    if (!address.has_port) {
        address.has_port = true;
        address.port = 50051;
    }
    r = egm_format_address(&address, config->master, sizeof(config->master));
    if (r < 0) {
        return egm_fail(reterr, r, "open", "the master's address is too long");
    }
    find_unix_master(config, &address);
    return 0;
}

/* ---- our name ---- */

/* The port is a number that no other process of this host has in its name: we hold it, and do not
 * listen there. */
static int take_port(void *arg, uint16_t port)
{
    struct egm_client_config *config = arg;
    int fd = egm_host_hold_port(port);

    if (fd < 0) {
        return fd;
    }
    int r = egm_child_track(fd);
    if (r < 0) {
        close(fd);
        return r;
    }
    config->name_fd = fd;
    return 0;
}

static int set_name(struct egm_client_config *config, const char *wanted, struct egm_detail *reterr)
{
    char text[EGM_ADDRESS_TEXT];
    struct egm_address address;
    int r = egm_host_name(wanted, text, sizeof(text), reterr);

    if (r < 0) {
        return r;
    }
    r = egm_parse_address(text, &address);
    EGM_ASSERT(r == 0); /* it was made of one */
    if (!address.has_port) {
        r = egm_host_name_port(take_port, config, &address.port, reterr);
        if (r < 0) {
            return r;
        }
        address.has_port = true;
    }
    r = egm_format_address(&address, config->name, sizeof(config->name));
    return r < 0 ? egm_fail(reterr, r, "open", "the host name is too long") : 0;
}

static int check_protocol(const struct egm_store_options *options, struct egm_detail *reterr)
{
    const char *protocol = or_default(options->protocol, "tcp");

    if (strcmp(protocol, "tcp") == 0) {
        return 0;
    }
    if (options->strict_protocol) {
        return egm_fail(
            reterr, EGM_E_UNSUPPORTED, "open",
            "protocol '%.64s' is not served by this build; use tcp, or leave strict_protocol off",
            protocol);
    }
    egm_warn("protocol not served by this build protocol=%.64s, continuing with tcp to other hosts",
             protocol);
    return 0;
}

int egm_client_config_init(struct egm_client_config *config,
                           const struct egm_store_options *options, struct egm_detail *reterr)
{
    *config = (struct egm_client_config){.name_fd = -1};
    config->deadline_ns = deadline_ms(options) * EGM_NS_PER_MS;
    config->is_map_on = !env_is_off("EGMSTORE_MAP") && !env_is_off("MC_STORE_MEMCPY");
    int r = copy_text(config->tenant, sizeof(config->tenant),
                      or_default(options->tenant, "default"), "the tenant", reterr);
    if (r == 0) {
        r = copy_text(config->cluster, sizeof(config->cluster),
                      or_default(getenv("EGMSTORE_CLUSTER"), DEFAULT_CLUSTER), "EGMSTORE_CLUSTER",
                      reterr);
    }
    if (r == 0) {
        r = check_protocol(options, reterr);
    }
    if (r == 0) {
        r = set_master(config, or_default(options->master, DEFAULT_MASTER), reterr);
    }
    if (r == 0) {
        r = set_name(config, or_default(options->hostname, ""), reterr);
    }
    if (r < 0) {
        egm_client_config_release(config);
    }
    return r;
}

void egm_client_config_release(struct egm_client_config *config)
{
    if (config->name_fd >= 0) {
        egm_child_close(config->name_fd);
    }
    config->name_fd = -1;
}
