/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/mem.h"

#include "base/checked.h"
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* Left to everybody else on the machine or in the cgroup: a pool that takes the very last page ends
 * in the OOM killer as soon as anything else moves. */
#define RESERVE_BYTES (UINT64_C(64) << 20)

#define MIB(bytes) ((bytes) >> 20)

static const struct egm_mem_ops *const kinds[] = {&egm_mem_shm}; /* best first */

int egm_mem_check_room(uint64_t size_bytes, const struct egm_limits *limits,
                       struct egm_detail *reterr)
{
    uint64_t wanted;

    /* Fence tables of granules and slots, at most size/512 + size/8192, come on top. */
    if (egm_add_u64(&wanted, size_bytes, size_bytes / 512 + size_bytes / 8192 + RESERVE_BYTES) <
        0) {
        wanted = UINT64_MAX;
    }
    if (limits->available_bytes != EGM_NO_LIMIT && wanted > limits->available_bytes) {
        return egm_fail(reterr, -ENOMEM, "memory",
                        "a pool of %" PRIu64 " MiB needs %" PRIu64 " MiB with tables and reserve, "
                        "but the machine has %" PRIu64 " MiB available; ask for a smaller pool",
                        MIB(size_bytes), MIB(wanted), MIB(limits->available_bytes));
    }
    if (limits->cgroup_limit_bytes != EGM_NO_LIMIT) {
        uint64_t room = limits->cgroup_limit_bytes > limits->cgroup_used_bytes
                            ? limits->cgroup_limit_bytes - limits->cgroup_used_bytes
                            : 0;
        if (wanted > room) {
            return egm_fail(
                reterr, EGM_E_LIMIT, "memory",
                "a pool of %" PRIu64 " MiB needs %" PRIu64
                " MiB with tables and reserve, but the cgroup's limit of %" PRIu64
                " MiB leaves %" PRIu64 " MiB; ask for a smaller pool or raise the limit",
                MIB(size_bytes), MIB(wanted), MIB(limits->cgroup_limit_bytes), MIB(room));
        }
    }
    return 0;
}

static int choose_best(const struct egm_mem_ops **ret_ops, struct egm_detail *reterr)
{
    int r = EGM_E_UNSUPPORTED;

    for (size_t i = 0; i < EGM_COUNT_OF(kinds); i++) {
        struct egm_detail why = {0};
        r = kinds[i]->probe(&why);
        if (r == 0) {
            *ret_ops = kinds[i];
            return 0;
        }
        egm_warn("memory kind does not work kind=%s reason=\"%s\", continuing with the next",
                 kinds[i]->name, why.text);
    }
    return egm_fail(reterr, EGM_E_UNSUPPORTED, "memory_kind",
                    "no memory kind works on this machine; the log has the reason of each");
}

int egm_mem_choose(const char *name, const struct egm_mem_ops **ret_ops, struct egm_detail *reterr)
{
    if (!name || strcmp(name, "auto") == 0) {
        return choose_best(ret_ops, reterr);
    }
    for (size_t i = 0; i < EGM_COUNT_OF(kinds); i++) {
        if (strcmp(name, kinds[i]->name) == 0) {
            struct egm_detail why = {0};
            if (kinds[i]->probe(&why) < 0) {
                return egm_fail(reterr, EGM_E_UNSUPPORTED, "memory_kind",
                                "memory kind '%s' does not work here: %s", name, why.text);
            }
            *ret_ops = kinds[i];
            return 0;
        }
    }
    if (strcmp(name, "vmm") == 0 || strcmp(name, "egm") == 0) {
        return egm_fail(reterr, EGM_E_UNSUPPORTED, "memory_kind",
                        "memory kind '%s' is not in this build; use shm or auto", name);
    }
    return egm_fail(reterr, EGM_E_INVALID, "memory_kind",
                    "'%.60s' is not a memory kind; use shm or auto", name);
}
