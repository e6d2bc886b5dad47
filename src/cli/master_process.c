/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/master_process.h"

#include "base/assert.h"

#include <stdio.h>
#include <string.h>

int egm_master_process_address(const struct egm_cli *cli, const char *option,
                               struct egm_listen_at at, char *ret_text, size_t size)
{
    struct egm_address address;

    if (egm_parse_address(at.host, &address) < 0 || address.has_port) {
        return egm_cli_misuse(cli,
                              "bad value '%.64s' for --%s: expected an address without port, such "
                              "as 127.0.0.1 or ::1",
                              at.host, option);
    }
    /* a v6 address needs its brackets, and "any port" can only be written as :0 */
    bool is_v6 = strchr(address.host, ':') != NULL;
    int n = snprintf(ret_text, size, "%s%s%s:%u", is_v6 ? "[" : "", address.host, is_v6 ? "]" : "",
                     (unsigned)at.port);
    EGM_ASSERT(n > 0 && (size_t)n < size);
    return EGM_EXIT_OK;
}

int egm_master_process_run(const struct egm_cli *cli,
                           const struct egm_master_daemon_options *options)
{
    struct egm_master_daemon *master;
    struct egm_detail detail = {0};

    if (egm_master_daemon_create(options, &master, &detail) < 0) {
        return egm_cli_fail(cli, "%s", detail.text);
    }
    int r = egm_master_daemon_run(master, &detail);
    egm_master_daemon_destroy(master);
    return r < 0 ? egm_cli_fail(cli, "%s", detail.text) : EGM_EXIT_OK;
}
