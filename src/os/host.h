/* SPDX-License-Identifier: Apache-2.0 */
/* What this process and host are called. */
#ifndef EGM_OS_HOST_H
#define EGM_OS_HOST_H

#include "base/detail.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Same for all processes of one boot of one kernel: a hash of /proc/sys/kernel/random/boot_id. */
uint64_t egm_host_id(void);

/* Random bits from getrandom(2); never 0. */
uint64_t egm_random_u64(void);

/* $EGMSTORE_RUNTIME_DIR, else /run/egmstore for root, $XDG_RUNTIME_DIR/egmstore, or
 * /tmp/egmstore-<uid>; created 0770 if it is not there. A folder that another user owns is refused.
 */
int egm_runtime_dir(char *ret_path, size_t size, struct egm_detail *reterr);

/* A name for this host that others can reach: `wanted` when it is concrete; the address of a
 * routable interface for ""; wildcards are EGM_E_INVALID with the reason. */
int egm_host_name(const char *wanted, char *ret_name, size_t size, struct egm_detail *reterr);

/* True if "host:port" or a bare host is a loopback address by its text. Asks nobody. */
bool egm_host_is_loopback(const char *address);

/* A port for a published name that brings none: from the range that Mooncake's clients use
 * (12300..14300, or MC_STORE_CLIENT_MIN_PORT..MC_STORE_CLIENT_MAX_PORT), beginning anywhere in it.
 * `take` is asked for one port after the other and keeps what it opens: >= 0 took it, -EADDRINUSE
 * and -EACCES mean "another one", any other error ends the search. 0, or take's last error with a
 * text. */
int egm_host_name_port(int (*take)(void *arg, uint16_t port), void *arg, uint16_t *ret_port,
                       struct egm_detail *reterr);

/* A socket that keeps a port of loopback from all others and listens to nobody. The descriptor, or
 * -errno. */
int egm_host_hold_port(uint16_t port);

/* True if `host` (a name or numeric address) is this host itself. Asks the resolver for names, for
 * a second at most; false without an answer. @blocking */
bool egm_host_is_local(const char *host);

#endif
