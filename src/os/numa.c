/* SPDX-License-Identifier: Apache-2.0 */
#include "os/numa.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HAS_CPU "/sys/devices/system/node/has_cpu"

static bool has(const struct egm_numa_set *set, uint64_t node)
{
    return set->words[node / 64] >> (node % 64) & 1;
}

/* One number; moves *text behind it. */
static int take_number(const char **text, uint64_t *ret_number)
{
    uint64_t number = 0;
    const char *at = *text;

    while (*at >= '0' && *at <= '9' && number < EGM_NUMA_NODES) {
        number = number * 10 + (uint64_t)(*at++ - '0');
    }
    if (at == *text || number >= EGM_NUMA_NODES) {
        return EGM_E_INVALID;
    }
    *text = at;
    *ret_number = number;
    return 0;
}

int egm_numa_parse(const char *text, struct egm_numa_set *ret_set)
{
    struct egm_numa_set set = {0};
    bool goes_on = *text && *text != '\n';

    while (goes_on) {
        uint64_t first, last;
        int r = take_number(&text, &first);
        last = first;
        if (r == 0 && *text == '-') {
            text++;
            r = take_number(&text, &last);
        }
        if (r < 0 || last < first) {
            return EGM_E_INVALID;
        }
        for (uint64_t node = first; node <= last; node++) {
            set.words[node / 64] |= UINT64_C(1) << (node % 64);
        }
        goes_on = *text == ',';
        text += goes_on;
    }
    while (*text == ' ' || *text == '\n') {
        text++;
    }
    if (*text) {
        return EGM_E_INVALID;
    }
    *ret_set = set;
    return 0;
}

static int read_processors(struct egm_numa_set *ret_set)
{
    char text[1024];
    int fd = open(HAS_CPU, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return -errno;
    }
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n < 0) {
        return -EIO;
    }
    text[n] = '\0';
    return egm_numa_parse(text, ret_set);
}

uint32_t egm_numa_nodes(uint32_t *ret_nodes, uint32_t most)
{
    struct egm_numa_set memory = {0};
    struct egm_numa_set processors;
    uint32_t count = 0;

    if (syscall(SYS_get_mempolicy, NULL, memory.words, EGM_NUMA_NODES, NULL, MPOL_F_MEMS_ALLOWED) ==
            0 &&
        read_processors(&processors) == 0) {
        for (uint32_t node = 0; node < EGM_NUMA_NODES && count < most; node++) {
            if (has(&memory, node) && has(&processors, node)) {
                ret_nodes[count++] = node;
            }
        }
    }
    if (count == 0) {
        ret_nodes[count++] = 0;
    }
    return count;
}

int egm_numa_prefer(void *at, uint64_t size, uint32_t node)
{
    struct egm_numa_set set = {0};

    if (node >= EGM_NUMA_NODES) {
        return -EINVAL;
    }
    set.words[node / 64] = UINT64_C(1) << (node % 64);
    return syscall(SYS_mbind, at, size, MPOL_PREFERRED, set.words, EGM_NUMA_NODES, 0) < 0 ? -errno
                                                                                          : 0;
}
