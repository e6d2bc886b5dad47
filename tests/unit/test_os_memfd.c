/* SPDX-License-Identifier: Apache-2.0 */
#include "os/clock.h"
#include "os/fork.h"
#include "os/memfd.h"
#include "test.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (UINT64_C(1) << 20)
#define SLOT_BYTE ((UINT64_C(1) << 40) + 5)

static struct egm_memfd open_file(void)
{
    struct egm_memfd file;
    struct egm_detail why = {0};
    int r = egm_memfd_create("egm-test", SIZE, /*try_huge=*/false, &file, &why);

    ck_assert_msg(r == 0, "%s", why.text);
    return file;
}

static bool is_held(int fd)
{
    bool held;

    ck_assert_int_eq(egm_lock_test(fd, SLOT_BYTE, &held), 0);
    return held;
}

/* Waits for the lock to come free; false after two seconds. */
static bool comes_free(int fd)
{
    for (int i = 0; i < 200; i++) {
        if (!is_held(fd)) {
            return true;
        }
        egm_sleep_ns(10 * EGM_NS_PER_MS);
    }
    return false;
}

START_TEST(file_can_neither_shrink_nor_grow)
{
    struct egm_memfd file = open_file();
    struct stat st;
    ck_assert_int_lt(ftruncate(file.fd, 4096), 0);
    ck_assert_int_lt(ftruncate(file.fd, 2 * SIZE), 0);
    ck_assert_int_eq(fstat(file.fd, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    ck_assert_int_eq(st.st_size, SIZE);
    close(file.fd);
}
END_TEST

START_TEST(frozen_file_is_written_only_through_the_old_mapping)
{
    struct egm_memfd file = open_file();
    char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    ck_assert_ptr_ne(at, MAP_FAILED);
    ck_assert_int_eq(egm_memfd_freeze(file.fd), 0);
    at[0] = 'x';
    int other = egm_memfd_reopen(file.fd, /*is_writable=*/true);
    ck_assert_int_ge(other, 0);
    ck_assert_int_lt(write(other, "y", 1), 0);
    ck_assert_ptr_eq(mmap(NULL, SIZE, PROT_WRITE, MAP_SHARED, other, 0), MAP_FAILED);
    int reader = egm_memfd_reopen(file.fd, /*is_writable=*/false);
    char *view = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, reader, 0);
    ck_assert_ptr_ne(view, MAP_FAILED);
    ck_assert_int_eq(view[0], 'x');
    munmap(view, SIZE);
    munmap(at, SIZE);
    close(reader);
    close(other);
    close(file.fd);
}
END_TEST

START_TEST(lock_is_one_description_s)
{
    struct egm_memfd file = open_file();
    int importer = egm_memfd_reopen(file.fd, true);
    int rival = egm_memfd_reopen(file.fd, true);
    ck_assert(!is_held(file.fd));
    ck_assert_int_eq(egm_lock_set(importer, SLOT_BYTE), 0);
    ck_assert(is_held(file.fd));
    ck_assert_int_eq(egm_lock_set(rival, SLOT_BYTE), -EAGAIN);
    ck_assert_int_eq(egm_lock_set(rival, SLOT_BYTE + 1), 0);
    close(importer);
    ck_assert(!is_held(file.fd));
    close(rival);
    close(file.fd);
}
END_TEST

/* In a child: takes the description as an importer does (map, close the fd), says so, and waits. */
static void import_and_wait(int importer, int ready)
{
    void *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, importer, 0);

    if (at == MAP_FAILED) {
        _exit(1);
    }
    close(importer);
    if (write(ready, "r", 1) != 1) {
        _exit(1);
    }
    for (;;) {
        pause();
    }
}

/* Starts such a child; afterwards only it has the locked description. */
static pid_t start_importer(struct egm_memfd *file)
{
    int ready[2];
    char byte;
    int importer = egm_memfd_reopen(file->fd, true);

    ck_assert_int_eq(egm_lock_set(importer, SLOT_BYTE), 0);
    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        import_and_wait(importer, ready[1]);
    }
    close(importer);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return pid;
}

START_TEST(lock_of_a_killed_importer_comes_free_and_that_of_a_stopped_one_does_not)
{
    struct egm_memfd file = open_file();
    pid_t pid = start_importer(&file);
    ck_assert(is_held(file.fd)); /* although the fd is closed: the mapping holds it */
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(pid, NULL, WUNTRACED), pid);
    ck_assert(is_held(file.fd));
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert(comes_free(file.fd));
    close(file.fd);
}
END_TEST

START_TEST(lock_survives_in_a_forked_child_of_the_importer)
{
    struct egm_memfd file = open_file();
    int importer = egm_memfd_reopen(file.fd, true);
    ck_assert_int_eq(egm_lock_set(importer, SLOT_BYTE), 0);
    void *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, importer, 0);
    ck_assert_ptr_ne(at, MAP_FAILED);
    close(importer);
    pid_t pid = fork(); /* inherits the mapping */
    if (pid == 0) {
        for (;;) {
            pause();
        }
    }
    munmap(at, SIZE);
    ck_assert(is_held(file.fd));
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert(comes_free(file.fd));
    close(file.fd);
}
END_TEST

static void count_step(void *arg, uint64_t done, uint64_t total)
{
    uint64_t *last = arg;

    ck_assert_uint_gt(done, *last);
    ck_assert_uint_le(done, total);
    *last = done;
}

START_TEST(populated_pages_are_there_and_keep_their_bytes)
{
    struct egm_memfd file = open_file();
    unsigned char present[SIZE / 4096]; /* room for the smallest pages */
    uint64_t last = 0;
    uint8_t *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    ck_assert_ptr_ne(at, MAP_FAILED);
    at[5000] = 77;
    ck_assert_int_eq(egm_populate(at, SIZE, count_step, &last), 0);
    ck_assert_uint_eq(last, SIZE);
    ck_assert_int_eq(at[5000], 77);
    ck_assert_int_eq(mincore(at, SIZE, present), 0);
    for (size_t i = 0; i < SIZE / (uint64_t)sysconf(_SC_PAGESIZE); i++) {
        ck_assert_int_eq(present[i] & 1, 1);
    }
    munmap(at, SIZE);
    close(file.fd);
}
END_TEST

START_TEST(child_does_not_keep_entered_fds)
{
    struct egm_memfd file = open_file();
    int kept = egm_memfd_reopen(file.fd, true);
    int status;
    egm_fork_enter(file.fd);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(fcntl(file.fd, F_GETFD) < 0 && fcntl(kept, F_GETFD) >= 0 ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_int_ge(fcntl(file.fd, F_GETFD), 0);
    egm_fork_close(file.fd);
    ck_assert_int_lt(fcntl(file.fd, F_GETFD), 0);
    egm_fork_close(-1);
    close(kept);
}
END_TEST

EGM_TEST_MAIN("os_memfd", file_can_neither_shrink_nor_grow,
              frozen_file_is_written_only_through_the_old_mapping, lock_is_one_description_s,
              lock_of_a_killed_importer_comes_free_and_that_of_a_stopped_one_does_not,
              lock_survives_in_a_forked_child_of_the_importer,
              populated_pages_are_there_and_keep_their_bytes, child_does_not_keep_entered_fds)
