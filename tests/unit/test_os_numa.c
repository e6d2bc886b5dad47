/* SPDX-License-Identifier: Apache-2.0 */
#include "os/numa.h"
#include "test.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

START_TEST(lists_of_nodes_are_read_as_sysfs_writes_them)
{
    struct egm_numa_set set;
    ck_assert_int_eq(egm_numa_parse("0\n", &set), 0);
    ck_assert_uint_eq(set.words[0], 1);
    ck_assert_int_eq(egm_numa_parse("0-1,4,62-65\n", &set), 0);
    ck_assert_uint_eq(set.words[0], UINT64_C(0x13) | UINT64_C(3) << 62);
    ck_assert_uint_eq(set.words[1], 3);
    ck_assert_int_eq(egm_numa_parse("1023", &set), 0);
    ck_assert_uint_eq(set.words[15], UINT64_C(1) << 63);
    ck_assert_int_eq(egm_numa_parse("\n", &set), 0);
    ck_assert_uint_eq(set.words[0], 0);
}
END_TEST

START_TEST(broken_lists_are_refused)
{
    static const char *const bad[] = {"1-", "-1",   ",",  "0,",  "3-1",
                                      "x",  "1024", "0x", "1 2", "99999999999999999999"};
    struct egm_numa_set set;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_msg(egm_numa_parse(bad[i], &set) == EGM_E_INVALID, "%s", bad[i]);
    }
}
END_TEST

START_TEST(this_host_has_a_node_and_memory_can_be_asked_of_it)
{
    uint32_t nodes[EGM_NUMA_NODES];
    uint32_t count = egm_numa_nodes(nodes, EGM_NUMA_NODES);
    ck_assert_uint_ge(count, 1);
    ck_assert_uint_eq(egm_numa_nodes(nodes, 1), 1);
    void *at = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(at, MAP_FAILED);
    int r = egm_numa_prefer(at, 65536, nodes[0]);
    ck_assert_msg(r == 0 || r == -EPERM || r == -ENOSYS, "%d", r); /* some containers forbid it */
    ck_assert_int_lt(egm_numa_prefer(at, 65536, EGM_NUMA_NODES), 0);
    memset(at, 1, 65536);
    munmap(at, 65536);
}
END_TEST

EGM_TEST_MAIN("os_numa", lists_of_nodes_are_read_as_sysfs_writes_them, broken_lists_are_refused,
              this_host_has_a_node_and_memory_can_be_asked_of_it)
