/* SPDX-License-Identifier: Apache-2.0 */
#include "base/limits.h"

#include "mem/mem.h"
#include "test.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE (UINT64_C(4) << 20)

START_TEST(piece_is_shared_through_an_exported_description)
{
    const struct egm_mem_ops *ops;
    struct egm_mem mem;
    struct egm_mem_options options = {.size_bytes = SIZE};
    int fd;
    ck_assert_int_eq(egm_mem_choose("auto", &ops, NULL), 0);
    ck_assert_int_eq(ops->allocate(&options, &mem, NULL), 0);
    ck_assert_int_eq(ops->map(&mem, &options, NULL), 0);
    ck_assert_int_eq(ops->map(&mem, &options, NULL), EGM_E_INVALID); /* not twice */
    ck_assert_int_eq(ops->export(&mem, &fd, NULL), 0);
    char *view = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(view, MAP_FAILED);
    mem.base[SIZE - 1] = 42;
    ck_assert_int_eq(view[SIZE - 1], 42);
    ck_assert_int_eq(ops->release(&mem, NULL), 0);
    ck_assert_uint_eq(mem.stages, 0);
    ck_assert_int_eq(ops->release(&mem, NULL), 0); /* nothing is left to do */
    ck_assert_int_eq(view[SIZE - 1], 42);          /* an importer keeps its memory */
    munmap(view, SIZE);
    close(fd);
}
END_TEST

START_TEST(release_after_allocate_alone_is_complete)
{
    struct egm_mem mem;
    struct egm_mem_options options = {.size_bytes = SIZE};
    ck_assert_int_eq(egm_mem_shm.allocate(&options, &mem, NULL), 0);
    ck_assert_int_eq(egm_mem_shm.release(&mem, NULL), 0);
}
END_TEST

START_TEST(size_beyond_the_machine_is_refused_with_the_numbers)
{
    struct egm_limits limits = {.available_bytes = UINT64_C(1000) << 20,
                                .cgroup_limit_bytes = EGM_NO_LIMIT};
    struct egm_detail why = {0};
    ck_assert_int_eq(egm_mem_check_room(UINT64_C(900) << 20, &limits, &why), 0);
    ck_assert_int_eq(egm_mem_check_room(UINT64_C(960) << 20, &limits, &why), -ENOMEM);
    ck_assert_ptr_nonnull(strstr(why.text, "960 MiB"));
    ck_assert_ptr_nonnull(strstr(why.text, "1000 MiB"));
    ck_assert_int_eq(egm_mem_check_room(UINT64_MAX, &limits, &why), -ENOMEM);
}
END_TEST

START_TEST(size_beyond_the_cgroup_is_refused_with_the_numbers)
{
    struct egm_limits limits = {.available_bytes = EGM_NO_LIMIT,
                                .cgroup_limit_bytes = UINT64_C(512) << 20,
                                .cgroup_used_bytes = UINT64_C(200) << 20};
    struct egm_detail why = {0};
    ck_assert_int_eq(egm_mem_check_room(UINT64_C(200) << 20, &limits, &why), 0);
    ck_assert_int_eq(egm_mem_check_room(UINT64_C(300) << 20, &limits, &why), EGM_E_LIMIT);
    ck_assert_ptr_nonnull(strstr(why.text, "512 MiB"));
    ck_assert_ptr_nonnull(strstr(why.text, "312 MiB"));
    limits.cgroup_used_bytes = UINT64_C(600) << 20;
    ck_assert_int_eq(egm_mem_check_room(1 << 20, &limits, &why), EGM_E_LIMIT);
}
END_TEST

START_TEST(impossible_sizes_are_refused_before_anything_is_taken)
{
    static const uint64_t sizes[] = {0, 4096, EGM_GRANULE + 1, UINT64_C(10) << 40, UINT64_MAX};
    for (size_t i = 0; i < EGM_COUNT_OF(sizes); i++) {
        struct egm_mem mem;
        struct egm_mem_options options = {.size_bytes = sizes[i]};
        struct egm_detail why = {0};
        ck_assert_int_lt(egm_mem_shm.allocate(&options, &mem, &why), 0);
        ck_assert_int_ne(why.text[0], 0);
    }
}
END_TEST

START_TEST(kinds_are_chosen_by_name_and_refused_with_a_reason)
{
    const struct egm_mem_ops *ops;
    struct egm_detail why = {0};
    ck_assert_int_eq(egm_mem_choose("shm", &ops, &why), 0);
    ck_assert_str_eq(ops->name, "shm");
    ck_assert_int_eq(egm_mem_choose(NULL, &ops, &why), 0);
    ck_assert_int_eq(egm_mem_choose("egm", &ops, &why), EGM_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(why.text, "egm"));
    ck_assert_int_eq(egm_mem_choose("disk", &ops, &why), EGM_E_INVALID);
}
END_TEST

EGM_TEST_MAIN("mem_shm", piece_is_shared_through_an_exported_description,
              release_after_allocate_alone_is_complete,
              size_beyond_the_machine_is_refused_with_the_numbers,
              size_beyond_the_cgroup_is_refused_with_the_numbers,
              impossible_sizes_are_refused_before_anything_is_taken,
              kinds_are_chosen_by_name_and_refused_with_a_reason)
