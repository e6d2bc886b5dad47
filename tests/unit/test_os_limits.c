/* SPDX-License-Identifier: Apache-2.0 */
/* Limits are read from trees that the test builds in place of /proc and /sys. */
#include "os/limits.h"
#include "test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static char root[64];

/* Writes root/path, making its directories. */
static void put(const char *path, const char *text)
{
    char full[512];
    int n = snprintf(full, sizeof(full), "%s/%s", root, path);

    ck_assert(n > 0 && (size_t)n < sizeof(full));
    for (char *at = full + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        ck_assert(mkdir(full, 0700) == 0 || errno == EEXIST);
        *at = '/';
    }
    FILE *file = fopen(full, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static struct egm_limits look(void)
{
    char proc[80], sys[80];
    struct egm_limits limits;

    snprintf(proc, sizeof(proc), "%s/proc", root);
    snprintf(sys, sizeof(sys), "%s/sys", root);
    egm_limits_read(proc, sys, &limits);
    return limits;
}

static void open_tree(void)
{
    snprintf(root, sizeof(root), "/tmp/egm-limits-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
}

static void close_tree(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -r %s", root);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(empty_trees_mean_no_limit)
{
    open_tree();
    struct egm_limits limits = look();
    ck_assert_uint_eq(limits.available_bytes, EGM_NO_LIMIT);
    ck_assert_uint_eq(limits.cgroup_limit_bytes, EGM_NO_LIMIT);
    ck_assert_uint_eq(limits.huge_page_size, 0);
    close_tree();
}
END_TEST

START_TEST(meminfo_gives_available_and_free_huge_pages)
{
    open_tree();
    put("proc/meminfo", "MemTotal: 100 kB\nMemFree: 5 kB\nMemAvailable:    2048 kB\n"
                        "HugePages_Total: 9\nHugePages_Free:  7\nHugePages_Rsvd: 3\n"
                        "Hugepagesize: 2048 kB\n");
    struct egm_limits limits = look();
    ck_assert_uint_eq(limits.available_bytes, 2 * MIB);
    ck_assert_uint_eq(limits.huge_page_size, 2 * MIB);
    ck_assert_uint_eq(limits.huge_free_bytes, 8 * MIB);
    close_tree();
}
END_TEST

START_TEST(v2_tightest_ancestor_wins_and_droppable_cache_does_not_count)
{
    open_tree();
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/memory.max", "max\n");
    put("sys/fs/cgroup/a/b/memory.current", "1\n");
    put("sys/fs/cgroup/a/memory.max", "104857600\n");
    put("sys/fs/cgroup/a/memory.current", "94371840\n");
    put("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 20971520\nactive_file 7\n");
    put("sys/fs/cgroup/memory.max", "209715200\n");
    put("sys/fs/cgroup/memory.current", "94371840\n");
    struct egm_limits limits = look();
    ck_assert_uint_eq(limits.cgroup_limit_bytes, 100 * MIB);
    ck_assert_uint_eq(limits.cgroup_used_bytes, 70 * MIB);
    close_tree();
}
END_TEST

START_TEST(v1_path_outside_of_the_mount_falls_to_its_root)
{
    open_tree();
    put("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/0123\n1:name=systemd:/\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "52428800\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "10485760\n");
    put("sys/fs/cgroup/memory/memory.stat", "inactive_file 9\ntotal_inactive_file 5242880\n");
    struct egm_limits limits = look();
    ck_assert_uint_eq(limits.cgroup_limit_bytes, 50 * MIB);
    ck_assert_uint_eq(limits.cgroup_used_bytes, 5 * MIB);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    ck_assert_uint_eq(look().cgroup_limit_bytes, EGM_NO_LIMIT);
    close_tree();
}
END_TEST

START_TEST(this_machine_can_be_read)
{
    struct egm_limits limits;
    egm_limits_read(NULL, NULL, &limits);
    ck_assert_uint_gt(limits.available_bytes, MIB);
    ck_assert_uint_ne(limits.available_bytes, EGM_NO_LIMIT);
}
END_TEST

EGM_TEST_MAIN("os_limits", empty_trees_mean_no_limit, meminfo_gives_available_and_free_huge_pages,
              v2_tightest_ancestor_wins_and_droppable_cache_does_not_count,
              v1_path_outside_of_the_mount_falls_to_its_root, this_machine_can_be_read)
