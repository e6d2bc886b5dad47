/* SPDX-License-Identifier: Apache-2.0 */
#include "os/clock.h"
#include "os/host.h"
#include "os/net.h"
#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define MS EGM_NS_PER_MS

static uint64_t in_ms(uint64_t ms)
{
    return egm_clock_ns() + ms * MS;
}

static void make_pair(int ret_fds[2])
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ret_fds),
                     0);
}

static void close_pair(int fds[2])
{
    close(fds[0]);
    close(fds[1]);
}

/* Fails unless `took` is within [least, least + 150 ms]. */
static void check_took(uint64_t since_ns, uint64_t least_ms)
{
    uint64_t took_ms = (egm_clock_ns() - since_ns) / MS;

    ck_assert_uint_ge(took_ms, least_ms);
    ck_assert_uint_le(took_ms, least_ms + 150);
}

START_TEST(receive_ends_at_its_deadline)
{
    int fds[2];
    char byte;
    make_pair(fds);
    uint64_t since = egm_clock_ns();
    ck_assert_int_eq(egm_net_recv(fds[0], &byte, 1, in_ms(60)), EGM_E_TIMEOUT);
    check_took(since, 60);
    /* What is there is taken even when the deadline has passed. */
    ck_assert_int_eq(egm_net_send(fds[1], "x", 1, 1), 0);
    ck_assert_int_eq(egm_net_recv(fds[0], &byte, 1, 1), 0);
    close_pair(fds);
}
END_TEST

START_TEST(send_to_a_peer_that_does_not_read_ends_at_its_deadline)
{
    int fds[2];
    static char big[8 << 20];
    make_pair(fds);
    uint64_t since = egm_clock_ns();
    ck_assert_int_eq(egm_net_send(fds[0], big, sizeof(big), in_ms(60)), EGM_E_TIMEOUT);
    check_took(since, 60);
    close_pair(fds);
}
END_TEST

static void *trickle(void *arg)
{
    int fd = *(int *)arg;

    while (send(fd, "x", 1, MSG_NOSIGNAL) == 1) {
        egm_sleep_ns(2 * MS);
    }
    return NULL;
}

START_TEST(trickling_peer_cannot_stretch_a_deadline)
{
    int fds[2];
    char bytes[4096];
    pthread_t thread;
    make_pair(fds);
    ck_assert_int_eq(pthread_create(&thread, NULL, trickle, &fds[1]), 0);
    uint64_t since = egm_clock_ns();
    ck_assert_int_eq(egm_net_recv(fds[0], bytes, sizeof(bytes), in_ms(100)), EGM_E_TIMEOUT);
    check_took(since, 100);
    close(fds[0]);
    pthread_join(thread, NULL);
    close(fds[1]);
}
END_TEST

START_TEST(timed_out_vector_goes_on_where_it_stopped)
{
    int fds[2];
    char a[3] = "", b[5] = "";
    struct iovec iov[] = {{.iov_base = a, .iov_len = 3},
                          {.iov_base = a, .iov_len = 0},
                          {.iov_base = b, .iov_len = 5}};
    make_pair(fds);
    ck_assert_int_eq(egm_net_send(fds[1], "abcde", 5, 0), 0);
    ck_assert_int_eq(egm_net_recvv(fds[0], iov, 3, in_ms(5)), EGM_E_TIMEOUT);
    ck_assert_int_eq(egm_net_send(fds[1], "fgh", 3, 0), 0);
    ck_assert_int_eq(egm_net_recvv(fds[0], iov, 3, in_ms(1000)), 0);
    ck_assert_int_eq(memcmp(a, "abc", 3), 0);
    ck_assert_int_eq(memcmp(b, "defgh", 5), 0);
    close_pair(fds);
}
END_TEST

struct stream {
    int fd;
    size_t count;
    uint8_t *bytes;
};

static void *send_pieces(void *arg)
{
    struct stream *s = arg;
    struct iovec *iov = calloc(s->count, sizeof(*iov));
    for (size_t i = 0; i < s->count; i++) {
        iov[i] = (struct iovec){.iov_base = s->bytes + i * 999, .iov_len = 999};
    }
    int r = egm_net_sendv(s->fd, iov, s->count, in_ms(20000));
    free(iov);
    return (void *)(intptr_t)r;
}

START_TEST(more_pieces_than_the_kernel_takes_at_once)
{
    int fds[2];
    pthread_t thread;
    struct stream s = {.count = 5000};
    uint8_t *got = calloc(s.count, 999);
    void *result;
    make_pair(fds);
    s.fd = fds[1];
    s.bytes = malloc(s.count * 999);
    for (size_t i = 0; i < s.count * 999; i++) {
        s.bytes[i] = (uint8_t)(i * 31 >> 3);
    }
    ck_assert_int_eq(pthread_create(&thread, NULL, send_pieces, &s), 0);
    ck_assert_int_eq(egm_net_recv(fds[0], got, s.count * 999, in_ms(20000)), 0);
    pthread_join(thread, &result);
    ck_assert_ptr_null(result);
    ck_assert_int_eq(memcmp(got, s.bytes, s.count * 999), 0);
    free(got);
    free(s.bytes);
    close_pair(fds);
}
END_TEST

START_TEST(closed_peer_is_gone_and_stale)
{
    int fds[2];
    char byte;
    make_pair(fds);
    ck_assert(!egm_net_is_stale(fds[0]));
    ck_assert_int_eq(egm_net_send(fds[1], "x", 1, 0), 0);
    ck_assert(egm_net_is_stale(fds[0]));
    ck_assert_int_eq(egm_net_recv(fds[0], &byte, 1, 0), 0);
    ck_assert(!egm_net_is_stale(fds[0]));
    close(fds[1]);
    ck_assert(egm_net_is_stale(fds[0]));
    ck_assert_int_eq(egm_net_recv(fds[0], &byte, 1, 0), EGM_E_PEER_GONE);
    ck_assert_int_eq(egm_net_send(fds[0], "x", 1, 0), EGM_E_PEER_GONE);
    close(fds[0]);
}
END_TEST

START_TEST(tcp_connects_to_the_port_that_was_chosen)
{
    static const char *const hosts[] = {"127.0.0.1:0", "[::1]:0", "localhost"};
    for (size_t i = 0; i < EGM_COUNT_OF(hosts); i++) {
        int listener, client, server = -1;
        char address[300];
        char byte;
        struct egm_detail why = {0};
        int r = egm_net_listen(hosts[i], &listener, address, sizeof(address), &why);
        if (r == -EADDRNOTAVAIL && i == 1) {
            continue; /* a host without IPv6 */
        }
        ck_assert_msg(r == 0, "%s", why.text);
        ck_assert_int_eq(egm_net_accept(listener, &server), -EAGAIN);
        ck_assert_int_eq(egm_net_connect(address, in_ms(2000), &client, &why), 0);
        while (egm_net_accept(listener, &server) == -EAGAIN) {
        }
        ck_assert_int_eq(egm_net_send(client, "y", 1, in_ms(1000)), 0);
        ck_assert_int_eq(egm_net_recv(server, &byte, 1, in_ms(1000)), 0);
        ck_assert_int_eq(fcntl(server, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        ck_assert_int_eq(fcntl(client, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        close(server);
        close(client);
        close(listener);
        ck_assert_int_eq(egm_net_connect(address, in_ms(2000), &client, &why), -ECONNREFUSED);
        ck_assert_ptr_nonnull(strstr(why.text, address));
    }
}
END_TEST

START_TEST(bad_addresses_say_what_is_wrong)
{
    static const char *const bad[] = {"", "127.0.0.1", "h:0", "h:65536", "a:b:c", ":5", "unix:"};
    for (size_t i = 0; i < EGM_COUNT_OF(bad); i++) {
        int fd;
        struct egm_detail why = {0};
        ck_assert_msg(egm_net_connect(bad[i], in_ms(100), &fd, &why) == EGM_E_INVALID, "%s",
                      bad[i]);
        ck_assert_int_ne(why.text[0], 0);
    }
}
END_TEST

START_TEST(unix_path_is_replaced_only_when_nobody_serves_it)
{
    char dir[] = "/tmp/egm-net-XXXXXX";
    char address[64];
    struct stat st;
    int first, second, client;
    struct egm_net_peer peer;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(address, sizeof(address), "unix:%s/s", dir);
    ck_assert_int_eq(egm_net_listen(address, &first, NULL, 0, NULL), 0);
    ck_assert_int_eq(stat(address + 5, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0660);
    ck_assert_int_eq(egm_net_listen(address, &second, NULL, 0, NULL), -EADDRINUSE);
    ck_assert_int_eq(egm_net_connect(address, in_ms(1000), &client, NULL), 0);
    ck_assert_int_eq(egm_net_peer_of(client, &peer), 0);
    ck_assert_uint_eq(peer.pid, (uint32_t)getpid());
    close(client);
    close(first); /* as a killed process: the path stays */
    ck_assert_int_eq(egm_net_listen(address, &second, NULL, 0, NULL), 0);
    close(second);
    unlink(address + 5);
    /* Never a file that is no socket. */
    int file = open(address + 5, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    close(file);
    ck_assert_int_eq(egm_net_listen(address, &second, NULL, 0, NULL), -EADDRINUSE);
    unlink(address + 5);
    rmdir(dir);
}
END_TEST

START_TEST(fds_arrive_with_their_bytes)
{
    int fds[2], ends[2], got[4];
    char text[9] = "";
    size_t count = 1;
    make_pair(fds);
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    ck_assert_int_eq(egm_net_send_fds(fds[0], "12345678", 8, ends, 2, in_ms(1000)), 0);
    got[0] = -1;
    ck_assert_int_eq(egm_net_recv_fds(fds[1], text, 8, got, 4, &count, in_ms(1000)), 0);
    ck_assert_uint_eq(count, 3);
    ck_assert_str_eq(text, "12345678");
    ck_assert_int_eq(fcntl(got[1], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    ck_assert_int_eq(write(got[2], "z", 1), 1);
    ck_assert_int_eq(read(ends[0], text, 1), 1);
    close(got[1]);
    close(got[2]);
    close_pair(ends);
    close_pair(fds);
}
END_TEST

START_TEST(fds_beyond_the_capacity_are_closed)
{
    int fds[2], ends[2], got[1];
    char text[4];
    size_t count = 0;
    make_pair(fds);
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    ck_assert_int_eq(egm_net_send_fds(fds[0], "1234", 4, ends, 2, in_ms(1000)), 0);
    ck_assert_int_eq(egm_net_recv_fds(fds[1], text, 4, got, 1, &count, in_ms(1000)), EGM_E_LIMIT);
    ck_assert_uint_eq(count, 0);
    close_pair(ends);
    close_pair(fds); /* the fixture counts what is left */
}
END_TEST

START_TEST(names_are_concrete)
{
    static const char *const wildcards[] = {"0.0.0.0", "::", "[::]:12", "0.0.0.0:9",
                                            "::ffff:0.0.0.0"};
    char name[300];
    struct egm_detail why = {0};
    for (size_t i = 0; i < EGM_COUNT_OF(wildcards); i++) {
        ck_assert_int_eq(egm_host_name(wildcards[i], name, sizeof(name), &why), EGM_E_INVALID);
        ck_assert_ptr_nonnull(strstr(why.text, "wildcard"));
    }
    ck_assert_int_eq(egm_host_name("h.example:17", name, sizeof(name), NULL), 0);
    ck_assert_str_eq(name, "h.example:17");
    ck_assert_int_eq(egm_host_name("", name, sizeof(name), NULL), 0);
    ck_assert_int_ne(name[0], 0);
    ck_assert(egm_host_is_local(name));
    ck_assert(egm_host_is_local("127.0.0.1"));
    ck_assert(egm_host_is_local("localhost"));
    ck_assert(!egm_host_is_local("203.0.113.77")); /* TEST-NET-3: nobody's */
    ck_assert_uint_eq(egm_host_id(), egm_host_id());
    ck_assert_uint_ne(egm_random_u64(), egm_random_u64());
}
END_TEST

START_TEST(runtime_dir_must_be_a_real_directory)
{
    char dir[] = "/tmp/egm-run-XXXXXX";
    char path[100], got[200];
    struct egm_detail why = {0};
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/new", dir);
    setenv("EGMSTORE_RUNTIME_DIR", path, 1);
    ck_assert_int_eq(egm_runtime_dir(got, sizeof(got), NULL), 0);
    ck_assert_str_eq(got, path);
    ck_assert_int_eq(egm_runtime_dir(got, sizeof(got), NULL), 0);
    ck_assert_int_eq(egm_runtime_dir(got, 5, &why), EGM_E_TOO_LARGE);
    ck_assert_int_eq(rmdir(path), 0);
    ck_assert_int_eq(symlink("/tmp", path), 0);
    ck_assert_int_eq(egm_runtime_dir(got, sizeof(got), &why), -ENOTDIR);
    unlink(path);
    rmdir(dir);
}
END_TEST

EGM_TEST_MAIN("os_net", receive_ends_at_its_deadline,
              send_to_a_peer_that_does_not_read_ends_at_its_deadline,
              trickling_peer_cannot_stretch_a_deadline, timed_out_vector_goes_on_where_it_stopped,
              more_pieces_than_the_kernel_takes_at_once, closed_peer_is_gone_and_stale,
              tcp_connects_to_the_port_that_was_chosen, bad_addresses_say_what_is_wrong,
              unix_path_is_replaced_only_when_nobody_serves_it, fds_arrive_with_their_bytes,
              fds_beyond_the_capacity_are_closed, names_are_concrete,
              runtime_dir_must_be_a_real_directory)
