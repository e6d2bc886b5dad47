/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading the memory limits.
 *
 * Sources: /proc/meminfo (MemAvailable, HugePages_*), /proc/self/cgroup for our place in the
 * hierarchies, then every cgroup from there up to the root, because each of them limits us. The
 * tightest is the one with the least room, not the one with the least limit.
 *
 *   v2  line "0::/path"          fs/cgroup/path/{memory.max, memory.current, memory.stat}
 *   v1  line "N:...memory:/path" fs/cgroup/memory/path/{memory.limit_in_bytes,
 * memory.usage_in_bytes, memory.stat}
 *
 * Inside a container the path often names a place outside of what is mounted; a directory that is
 * not there is skipped and the walk ends at the mount's root, which then is our own cgroup.
 * "Used" leaves out inactive file pages: the kernel drops them before it refuses memory.
 */
#include "os/limits.h"

#include "base/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The largest file read here is memory.stat: about 2 KiB. */
#define FILE_MAX 16384

/* v1 says "no limit" with the largest multiple of the page size that fits a long. */
#define V1_UNLIMITED (UINT64_C(1) << 62)

static bool read_file(const char *path, char *ret_text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t got = 0;

    if (fd < 0) {
        return false;
    }
    while (got < size - 1) {
        ssize_t n = read(fd, ret_text + got, size - 1 - got);
        if (n <= 0) {
            break;
        }
        got += (size_t)n;
    }
    close(fd);
    ret_text[got] = '\0';
    return got > 0;
}

/* The number behind the line that starts with `name` and a blank or colon. */
static bool find_number(const char *text, const char *name, uint64_t *ret)
{
    size_t n = strlen(name);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, n) != 0 || (line[n] != ' ' && line[n] != ':')) {
            continue;
        }
        const char *from = line + n + strspn(line + n, ": \t");
        char digits[24];
        size_t size = strspn(from, "0123456789");
        if (size == 0 || size >= sizeof(digits)) {
            return false;
        }
        memcpy(digits, from, size);
        digits[size] = '\0';
        return egm_parse_u64(digits, 0, UINT64_MAX, ret) == 0;
    }
    return false;
}

static bool read_number(const char *dir, const char *name, uint64_t *ret)
{
    char path[PATH_MAX];
    char text[64];

    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) >= sizeof(path) ||
        !read_file(path, text, sizeof(text))) {
        return false;
    }
    text[strcspn(text, "\n")] = '\0';
    /* "max" is no number and so no limit. */
    return egm_parse_u64(text, 0, UINT64_MAX, ret) == 0;
}

struct cgroup_names {
    const char *limit, *used, *inactive;
};

static void look_at_cgroup(const char *dir, const struct cgroup_names *names,
                           struct egm_limits *ret)
{
    uint64_t limit, used, inactive;
    char path[PATH_MAX];
    char text[FILE_MAX];

    if (!read_number(dir, names->limit, &limit) || limit >= V1_UNLIMITED ||
        !read_number(dir, names->used, &used)) {
        return;
    }
    if ((size_t)snprintf(path, sizeof(path), "%s/memory.stat", dir) < sizeof(path) &&
        read_file(path, text, sizeof(text)) && find_number(text, names->inactive, &inactive)) {
        used = used > inactive ? used - inactive : 0;
    }
    uint64_t room = limit > used ? limit - used : 0;
    uint64_t known = ret->cgroup_limit_bytes > ret->cgroup_used_bytes
                         ? ret->cgroup_limit_bytes - ret->cgroup_used_bytes
                         : 0;
    if (ret->cgroup_limit_bytes == EGM_NO_LIMIT || room < known) {
        ret->cgroup_limit_bytes = limit;
        ret->cgroup_used_bytes = used;
    }
}

/* From root/path up to root. */
static void walk_cgroups(const char *root, const char *cgroup, const struct cgroup_names *names,
                         struct egm_limits *ret)
{
    char dir[PATH_MAX];
    size_t root_size = strlen(root);
    int n = snprintf(dir, sizeof(dir), "%s%s", root, strcmp(cgroup, "/") == 0 ? "" : cgroup);

    if (n < 0 || (size_t)n >= sizeof(dir)) {
        return;
    }
    for (;;) {
        look_at_cgroup(dir, names, ret);
        char *slash = strrchr(dir, '/');
        if (!slash || strlen(dir) <= root_size) {
            return;
        }
        *slash = '\0';
    }
}

/* True if `list` ("cpu,memory") has "memory". */
static bool has_memory(const char *list, size_t size)
{
    static const char word[] = "memory";
    size_t n = sizeof(word) - 1;

    for (size_t i = 0; i + n <= size; i++) {
        if (memcmp(list + i, word, n) == 0 && (i == 0 || list[i - 1] == ',') &&
            (i + n == size || list[i + n] == ',')) {
            return true;
        }
    }
    return false;
}

static void read_cgroups(const char *proc_root, const char *sys_root, struct egm_limits *ret)
{
    static const struct cgroup_names v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                           "total_inactive_file"};
    static const struct cgroup_names v2 = {"memory.max", "memory.current", "inactive_file"};
    char path[PATH_MAX];
    char root[PATH_MAX];
    char text[FILE_MAX];

    if ((size_t)snprintf(path, sizeof(path), "%s/self/cgroup", proc_root) >= sizeof(path) ||
        !read_file(path, text, sizeof(text))) {
        return;
    }
    for (char *line = text; line && *line;) {
        char *end = strchr(line, '\n');
        if (end) {
            *end = '\0';
        }
        char *list = strchr(line, ':');
        char *cgroup = list ? strchr(list + 1, ':') : NULL;
        if (cgroup && cgroup[1] == '/') {
            bool is_v2 = cgroup == list + 1;
            bool is_v1 = !is_v2 && has_memory(list + 1, (size_t)(cgroup - list - 1));
            int n =
                snprintf(root, sizeof(root), "%s/fs/cgroup%s", sys_root, is_v1 ? "/memory" : "");
            if ((is_v1 || is_v2) && n > 0 && (size_t)n < sizeof(root)) {
                walk_cgroups(root, cgroup + 1, is_v1 ? &v1 : &v2, ret);
            }
        }
        line = end ? end + 1 : NULL;
    }
}

static void read_meminfo(const char *proc_root, struct egm_limits *ret)
{
    char path[PATH_MAX];
    char text[FILE_MAX];
    uint64_t kib, page_count, reserved = 0;

    if ((size_t)snprintf(path, sizeof(path), "%s/meminfo", proc_root) >= sizeof(path) ||
        !read_file(path, text, sizeof(text))) {
        return;
    }
    if (find_number(text, "MemAvailable", &kib) && kib < UINT64_MAX / 1024) {
        ret->available_bytes = kib * 1024;
    }
    if (find_number(text, "Hugepagesize", &kib) && kib < (UINT64_C(1) << 40) &&
        find_number(text, "HugePages_Free", &page_count)) {
        ret->huge_page_size = kib * 1024;
        if (find_number(text, "HugePages_Rsvd", &reserved) && reserved <= page_count) {
            page_count -= reserved;
        }
        if (page_count < UINT64_MAX / (ret->huge_page_size + 1)) {
            ret->huge_free_bytes = page_count * ret->huge_page_size;
        }
    }
}

void egm_limits_read(const char *proc_root, const char *sys_root, struct egm_limits *ret_limits)
{
    struct egm_limits limits = {.available_bytes = EGM_NO_LIMIT,
                                .cgroup_limit_bytes = EGM_NO_LIMIT,
                                .memlock_bytes = EGM_NO_LIMIT};
    struct rlimit memlock;

    read_meminfo(proc_root ? proc_root : "/proc", &limits);
    read_cgroups(proc_root ? proc_root : "/proc", sys_root ? sys_root : "/sys", &limits);
    if (getrlimit(RLIMIT_MEMLOCK, &memlock) == 0 && memlock.rlim_cur != RLIM_INFINITY) {
        limits.memlock_bytes = memlock.rlim_cur;
    }
    *ret_limits = limits;
}
