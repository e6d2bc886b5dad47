/* SPDX-License-Identifier: Apache-2.0 */
/* The master's shell over real sockets: frames, strangers, bounds, admin pages, start and end. What
 * the core answers is tested in the core's own tests; here a HELLO, a STAT and a SESSION with
 * lookups are enough. */
#include "base/parse.h"

#include "master/master_daemon.h"
#include "master/regex.h"
#include "master/turns.h"
#include "os/clock.h"
#include "os/host.h"
#include "os/net.h"
#include "test.h"
#include "wire/keys.h"
#include "wire/messages.h"
#include "wire/status.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#define SECOND EGM_NS_PER_S

static char runtime_folder[] = "/tmp/egm-shell-XXXXXX";

static struct egm_master_daemon_options options_of(const char *rpc, const char *http)
{
    return (struct egm_master_daemon_options){
        .rpc_address = rpc, .http_address = http, .core = egm_master_defaults()};
}

static void begin_runtime_folder(void)
{
    ck_assert_ptr_nonnull(mkdtemp(runtime_folder));
    setenv("EGMSTORE_RUNTIME_DIR", runtime_folder, 1);
}

static struct egm_master_daemon *start_master(const char *http)
{
    struct egm_master_daemon_options options = options_of("127.0.0.1:0", http);
    struct egm_master_daemon *master;
    struct egm_detail detail = {0};

    begin_runtime_folder();
    ck_assert_msg(egm_master_daemon_create(&options, &master, &detail) == 0, "%s", detail.text);
    ck_assert_int_eq(egm_master_daemon_start(master), 0);
    return master;
}

static void end_master(struct egm_master_daemon *master)
{
    egm_master_daemon_stop(master);
    egm_master_daemon_destroy(master);
    ck_assert_msg(rmdir(runtime_folder) == 0, "the Unix socket was left behind: %s",
                  strerror(errno));
}

static int dial(const char *address)
{
    int fd;
    ck_assert_int_eq(egm_net_connect(address, egm_clock_ns() + 5 * SECOND, &fd, NULL), 0);
    return fd;
}

static void send_all(int fd, const void *data, size_t size)
{
    ck_assert_int_eq(egm_net_send(fd, data, size, egm_clock_ns() + 5 * SECOND), 0);
}

/* Receives one frame; the payload is the caller's. */
static uint8_t *receive(int fd, struct egm_frame *ret_frame)
{
    uint8_t header[EGM_FRAME_HEADER];
    uint64_t deadline = egm_clock_ns() + 5 * SECOND;

    ck_assert_int_eq(egm_net_recv(fd, header, sizeof(header), deadline), 0);
    ck_assert_int_eq(egm_frame_parse(header, ret_frame), 0);
    uint8_t *payload = egm_alloc(ret_frame->length + 1);
    ck_assert_int_eq(egm_net_recv(fd, payload, ret_frame->length, deadline), 0);
    return payload;
}

static void put_hello(struct egm_buf *out, const char *cluster)
{
    size_t begin = egm_frame_begin(out, EGM_MSG_HELLO, 1);
    egm_put_hello(out, &(struct egm_hello){.version_min = 1,
                                           .version_max = 1,
                                           .role = EGM_ROLE_REQUESTER,
                                           .process = 7,
                                           .cluster = egm_bytes_of(cluster, strlen(cluster))});
    egm_frame_end(out, begin);
}

static void put_stat(struct egm_buf *out, uint64_t request)
{
    size_t begin = egm_frame_begin(out, EGM_MSG_STAT, request);
    egm_put_stat(out, &(struct egm_stat){.what = egm_bytes_of("stat", 4)});
    egm_frame_end(out, begin);
}

static int32_t hello_status(int fd)
{
    struct egm_frame frame;
    struct egm_hello_reply reply;
    uint8_t *payload = receive(fd, &frame);
    struct egm_cursor cursor = egm_cursor_of(payload, frame.length);

    ck_assert_int_eq(frame.type, EGM_MSG_HELLO_REPLY);
    egm_take_hello_reply(&cursor, &reply);
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    egm_free(payload);
    return reply.status;
}

static int greet(const char *address)
{
    int fd = dial(address);
    struct egm_buf out;

    egm_buf_init(&out, 4096);
    put_hello(&out, "egmstore");
    send_all(fd, out.data, out.len);
    egm_buf_release(&out);
    ck_assert_int_eq(hello_status(fd), 0);
    return fd;
}

/* True if the peer closes within the time, whatever it sends before. */
static bool closes_within(int fd, uint64_t ns)
{
    uint64_t deadline = egm_clock_ns() + ns;
    uint8_t byte;
    int r;

    while ((r = egm_net_recv(fd, &byte, 1, deadline)) == 0) {
    }
    return r != EGM_E_TIMEOUT;
}

/* GET on the admin port; the answer with its head is the caller's. */
static char *http_ask(struct egm_master_daemon *master, const char *method, const char *target)
{
    int fd = dial(egm_master_daemon_http_address(master));
    struct egm_buf text;
    uint8_t *piece;
    int r = 0;

    egm_buf_init(&text, 1 << 20);
    egm_buf_printf(&text, "%s %s HTTP/1.0\r\nHost: x\r\n\r\n", method, target);
    send_all(fd, text.data, text.len);
    egm_buf_clear(&text);
    while (r == 0) {
        uint8_t byte;
        r = egm_net_recv(fd, &byte, 1, egm_clock_ns() + 5 * SECOND);
        if (r == 0) {
            egm_buf_append(&text, &byte, 1);
        }
    }
    close(fd);
    ck_assert_int_eq(r, EGM_E_PEER_GONE);
    piece = egm_alloc(text.len + 1);
    memcpy(piece, egm_buf_str(&text), text.len + 1);
    egm_buf_release(&text);
    return (char *)piece;
}

static void expect_http(struct egm_master_daemon *master, const char *method, const char *target,
                        const char *status, const char *part)
{
    char *text = http_ask(master, method, target);
    ck_assert_msg(strncmp(text + 9, status, 3) == 0, "%s: %.60s", target, text);
    ck_assert_msg(strstr(text, part) != NULL, "%s lacks '%s': %s", target, part, text);
    egm_free(text);
}

START_TEST(answers_hello_on_both_listeners)
{
    struct egm_master_daemon *master = start_master(NULL);

    close(greet(egm_master_daemon_rpc_address(master)));
    close(greet(egm_master_daemon_unix_address(master)));
    end_master(master);
}
END_TEST

START_TEST(hello_in_single_bytes_is_one_hello)
{
    struct egm_master_daemon *master = start_master(NULL);
    int fd = dial(egm_master_daemon_rpc_address(master));
    struct egm_buf out;

    egm_buf_init(&out, 4096);
    put_hello(&out, "egmstore");
    for (size_t i = 0; i < out.len; i++) {
        send_all(fd, out.data + i, 1);
        egm_sleep_ns(300000);
    }
    ck_assert_int_eq(hello_status(fd), 0);
    egm_buf_release(&out);
    close(fd);
    end_master(master);
}
END_TEST

START_TEST(another_cluster_is_told_and_closed)
{
    struct egm_master_daemon *master = start_master(NULL);
    int fd = dial(egm_master_daemon_rpc_address(master));
    struct egm_buf out;

    egm_buf_init(&out, 4096);
    put_hello(&out, "another");
    send_all(fd, out.data, out.len);
    egm_buf_release(&out);
    ck_assert_int_eq(hello_status(fd), egm_status_to_wire(EGM_E_NOT_PERMITTED));
    ck_assert(closes_within(fd, SECOND));
    close(fd);
    end_master(master);
}
END_TEST

START_TEST(many_pipelined_requests_are_answered_in_order)
{
    enum {
        COUNT = 3000
    };
    struct egm_master_daemon *master = start_master(NULL);
    int fd = greet(egm_master_daemon_rpc_address(master));
    struct egm_buf out;

    egm_buf_init(&out, 1 << 20);
    for (uint64_t i = 0; i < COUNT; i++) {
        put_stat(&out, 100 + i);
    }
    send_all(fd, out.data, out.len);
    egm_buf_release(&out);
    for (uint64_t i = 0; i < COUNT; i++) {
        struct egm_frame frame;
        egm_free(receive(fd, &frame));
        ck_assert_int_eq(frame.type, EGM_MSG_STAT_REPLY);
        ck_assert_uint_eq(frame.request, 100 + i);
    }
    close(fd);
    end_master(master);
}
END_TEST

/* A request of 65,536 keys: its payload spans many reads, and the core gives way 64 times. */
START_TEST(large_lookup_is_answered_while_others_are_served)
{
    enum {
        COUNT = 65536
    };
    struct egm_master_daemon *master = start_master(NULL);
    int fd = greet(egm_master_daemon_rpc_address(master));
    int other = greet(egm_master_daemon_unix_address(master));
    struct egm_buf out;
    struct egm_frame frame;

    egm_buf_init(&out, 32 << 20);
    size_t begin = egm_frame_begin(&out, EGM_MSG_SESSION, 2);
    egm_put_session(&out, &(struct egm_session){
                              .session = 77, .host = 1, .tenant = egm_bytes_of("default", 7)});
    egm_frame_end(&out, begin);
    begin = egm_frame_begin(&out, EGM_MSG_EXIST, 3);
    egm_put_exist(&out, &(struct egm_exist){.session = 77, .key_count = COUNT});
    struct egm_key_writer writer = {0};
    char keys[2][64];
    for (uint32_t i = 0; i < COUNT; i++) {
        char *key = keys[i % 2]; /* the writer looks back at the one before */
        int n = snprintf(key, sizeof(keys[0]), "model@%08x@rank0@layer", i * 2654435761u);
        ck_assert_int_eq(egm_put_key(&writer, &out, key, (size_t)n), 0);
    }
    egm_frame_end(&out, begin);
    ck_assert_int_eq(out.failed, 0);
    send_all(fd, out.data, out.len);
    egm_buf_release(&out);
    egm_free(receive(fd, &frame));
    ck_assert_int_eq(frame.type, EGM_MSG_SESSION_REPLY);
    egm_buf_init(&out, 4096);
    put_stat(&out, 9);
    send_all(other, out.data, out.len);
    egm_buf_release(&out);
    egm_free(receive(other, &frame));
    ck_assert_uint_eq(frame.request, 9);
    uint8_t *payload = receive(fd, &frame);
    struct egm_cursor cursor = egm_cursor_of(payload, frame.length);
    struct egm_exist_reply reply;
    egm_take_exist_reply(&cursor, &reply);
    ck_assert_int_eq(reply.status, 0);
    ck_assert_uint_eq(reply.count, COUNT);
    egm_free(payload);
    close(fd);
    close(other);
    end_master(master);
}
END_TEST

START_TEST(peer_that_does_not_read_is_closed)
{
    struct egm_master_daemon *master = start_master(NULL);
    int fd = greet(egm_master_daemon_rpc_address(master));
    struct egm_buf out;
    int r = 0;

    egm_buf_init(&out, 1 << 20);
    for (int i = 0; i < 2000; i++) {
        put_stat(&out, 5);
    }
    /* it is not read from once it has too much output, and closed ten seconds later */
    uint64_t deadline = egm_clock_ns() + 20 * SECOND;
    while (r == 0 && egm_clock_ns() < deadline) {
        r = egm_net_send(fd, out.data, out.len, deadline);
    }
    ck_assert_int_eq(r, EGM_E_PEER_GONE);
    egm_buf_release(&out);
    close(fd);
    end_master(master);
}
END_TEST

static long rss_kib(void)
{
    struct rusage usage;
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss;
}

/* B55 on both listeners: wrong bytes are closed at once, silence after five seconds; others are
 * served meanwhile. */
START_TEST(strangers_are_closed_and_cost_little)
{
    enum {
        MANY = 500
    };
    static const struct {
        const char *data;
        size_t size;
        uint64_t within_ns;
    } kinds[] = {
        {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27, SECOND},
        {"\x16\x03\x01\x00\xc8\x01\x00\x00", 8, SECOND},
        {"\xff\xff\xff\xff\xff\xff\xff\xff", 8, SECOND},
        {"EGM1\x01\x00\x02\x00\x00\x00\x00\x80\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00", 24,
         SECOND},
        {"EGM1\x01\x00\x10\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00", 24,
         SECOND},
        {"", 0, 8 * SECOND},
        {"EGM1\x01", 5, 8 * SECOND},
    };
    struct egm_master_daemon *master = start_master(NULL);
    int good = greet(egm_master_daemon_rpc_address(master));
    egm_sleep_ns(
        SECOND /
        2); /* the master touches memory for its tables ahead; strangers do not cost that */
    long before = rss_kib();

    for (size_t kind = 0; kind < EGM_COUNT_OF(kinds); kind++) {
        int fds[MANY];
        const char *address = kind % 2 ? egm_master_daemon_unix_address(master)
                                       : egm_master_daemon_rpc_address(master);
        for (int i = 0; i < MANY; i++) {
            fds[i] = dial(address);
            egm_ignore(
                egm_net_send(fds[i], kinds[kind].data, kinds[kind].size, egm_clock_ns() + SECOND),
                "may be closed");
        }
        struct egm_buf out;
        struct egm_frame frame;
        egm_buf_init(&out, 4096);
        put_stat(&out, 3);
        uint64_t asked = egm_clock_ns();
        send_all(good, out.data, out.len);
        egm_free(receive(good, &frame));
        ck_assert_msg(egm_clock_ns() - asked < SECOND, "others wait %llu ms",
                      (unsigned long long)(egm_clock_ns() - asked) / 1000000);
        egm_buf_release(&out);
        uint64_t begin = egm_clock_ns();
        for (int i = 0; i < MANY; i++) {
            uint64_t gone = egm_clock_ns() - begin;
            uint64_t left = kinds[kind].within_ns > gone ? kinds[kind].within_ns - gone : 1;
            ck_assert_msg(closes_within(fds[i], left), "stranger %zu/%d is still held", kind, i);
            close(fds[i]);
        }
    }
#if !defined(__SANITIZE_THREAD__) /* TSan keeps 34 MiB of its own for all these descriptors */
    ck_assert_int_lt(rss_kib() - before, 32 * 1024); /* a plain build: 128 KiB */
#else
    (void)before;
#endif
    close(good);
    end_master(master);
}
END_TEST

START_TEST(connections_beyond_the_limit_are_turned_away)
{
    struct egm_master_daemon_options options = options_of("127.0.0.1:0", NULL);
    struct egm_master_daemon *master;

    options.max_connections = 4;
    options.is_unix_off = true;
    ck_assert_int_eq(egm_master_daemon_create(&options, &master, NULL), 0);
    ck_assert_int_eq(egm_master_daemon_start(master), 0);
    const char *address = egm_master_daemon_rpc_address(master);
    int fds[4];
    for (int i = 0; i < 4; i++) {
        fds[i] = greet(address);
    }
    int extra = dial(address);
    ck_assert(closes_within(extra, SECOND));
    close(extra);
    close(fds[0]);
    egm_sleep_ns(SECOND / 5);
    fds[0] = greet(address); /* room again */
    for (int i = 0; i < 4; i++) {
        close(fds[i]);
    }
    egm_master_daemon_stop(master);
    egm_master_daemon_destroy(master);
}
END_TEST

START_TEST(taken_ports_fail_the_start_and_are_named)
{
    struct egm_master_daemon *master = start_master("127.0.0.1:0");
    struct egm_master_daemon *second;
    struct egm_detail detail = {0};
    struct egm_master_daemon_options options =
        options_of(egm_master_daemon_rpc_address(master), NULL);

    ck_assert_int_eq(egm_master_daemon_create(&options, &second, &detail), -EADDRINUSE);
    ck_assert_msg(strstr(detail.text, egm_master_daemon_rpc_address(master)) != NULL, "%s",
                  detail.text);
    options = options_of("127.0.0.1:0", egm_master_daemon_http_address(master));
    ck_assert_int_eq(egm_master_daemon_create(&options, &second, &detail), -EADDRINUSE);
    ck_assert_msg(strstr(detail.text, egm_master_daemon_http_address(master)) != NULL, "%s",
                  detail.text);
    end_master(master);
}
END_TEST

static int create_and_destroy(void *ctx)
{
    struct egm_master_daemon_options options = options_of("127.0.0.1:0", "127.0.0.1:0");
    struct egm_master_daemon *master;
    int r;

    (void)ctx;
    r = egm_master_daemon_create(&options, &master, NULL);
    if (r == 0) {
        egm_master_daemon_destroy(master);
    }
    return r;
}

START_TEST(create_survives_each_failing_allocation)
{
    begin_runtime_folder();
    egm_test_sweep(create_and_destroy, NULL);
    ck_assert_int_eq(rmdir(runtime_folder), 0);
}
END_TEST

START_TEST(admin_pages_answer)
{
    struct egm_master_daemon *master = start_master("127.0.0.1:0");

    expect_http(master, "GET", "/metrics", "200", "\nmaster_key_count 0\n");
    expect_http(master, "GET", "/metrics", "200", "\nmaster_total_capacity_bytes 0\n");
    expect_http(master, "GET", "/metrics", "200", "text/plain; version=0.0.4");
    expect_http(master, "GET", "/metrics", "200", "egmstore_loop_turn_max_seconds 0.");
    expect_http(master, "GET", "/metrics/summary", "200", "keys=0 used_bytes=0");
    expect_http(master, "GET", "/health", "200", "\"service_ready\":true");
    expect_http(master, "GET", "/health", "200", "\"role\":\"leader\"");
    expect_http(master, "GET", "/role", "200", "leader");
    expect_http(master, "GET", "/get_all_segments", "200", "\r\n\r\n");
    expect_http(master, "GET", "/get_all_keys", "200", "\r\n\r\n");
    expect_http(master, "GET", "/get_segments_detail", "200", "[]");
    expect_http(master, "GET", "/query_key?key=a%00b", "404", "\"success\":false");
    expect_http(master, "GET", "/query_key", "400", "missing");
    expect_http(master, "GET", "/query_segment?segment=none", "500", "no such segment");
    expect_http(master, "GET", "/batch_query_keys?keys=a,%22b", "200",
                "\"\\u0022b\":{\"ok\":false");
    expect_http(master, "GET", "/nothing", "404", "no such page");
    expect_http(master, "POST", "/api/v1/remove_all", "405", "Allow: GET, HEAD");
    expect_http(master, "DELETE", "/metrics", "405", "only GET");
    end_master(master);
}
END_TEST

START_TEST(stop_hands_over_to_the_next_on_the_same_port)
{
    struct egm_master_daemon *master = start_master("127.0.0.1:0");
    char address[EGM_ADDRESS_TEXT];
    int fd = greet(egm_master_daemon_rpc_address(master));

    snprintf(address, sizeof(address), "%s", egm_master_daemon_rpc_address(master));
    uint64_t begin = egm_clock_ns();
    end_master(master);
    ck_assert_uint_lt(egm_clock_ns() - begin, 2 * SECOND);
    ck_assert(closes_within(fd, SECOND));
    close(fd);
    struct egm_master_daemon_options options = options_of(address, NULL);
    ck_assert_int_eq(egm_master_daemon_create(&options, &master, NULL), 0);
    ck_assert_int_eq(egm_master_daemon_start(master), 0);
    close(greet(address));
    end_master(master);
}
END_TEST

START_TEST(regex_searches_anywhere_and_explains_errors)
{
    struct egm_regex *regex;
    uint64_t over = 0;
    char text[256] = "";

    ck_assert_int_eq(egm_regex_compile("b+c$", &over, &regex, text, sizeof(text)), 0);
    ck_assert_int_eq(egm_regex_match(regex, "aabbc", 5), 1);
    ck_assert_int_eq(egm_regex_match(regex, "bca", 3), 0);
    ck_assert_int_eq(egm_regex_match(regex, "\xff\0bc", 4), 1);
    egm_regex_free(regex);
    ck_assert_int_eq(egm_regex_compile("a(b", &over, &regex, text, sizeof(text)), EGM_E_INVALID);
    ck_assert_msg(strstr(text, "at byte 3") != NULL, "%s", text);
    ck_assert_uint_eq(over, 0);
}
END_TEST

/* A pattern with exponential backtracking over 100,000 keys takes a bounded time and is counted. */
START_TEST(hostile_regex_is_bounded)
{
    struct egm_regex *regex;
    uint64_t over = 0;
    char text[256];
    char key[41];

    memset(key, 'a', 40);
    key[40] = '!';
    ck_assert_int_eq(egm_regex_compile("^(a+)+$", &over, &regex, text, sizeof(text)), 0);
    uint64_t begin = egm_clock_ns();
    for (int i = 0; i < 100000; i++) {
        ck_assert_int_lt(egm_regex_match(regex, key, sizeof(key)), 0);
    }
    ck_assert_uint_eq(over, 100000);
    ck_assert_uint_lt(egm_clock_ns() - begin, SECOND);
    egm_regex_free(regex);
}
END_TEST

START_TEST(turn_quantiles_are_within_an_eighth)
{
    struct egm_turns turns = {0};

    ck_assert_uint_eq(egm_turns_quantile_ns(&turns, 0.99), 0);
    for (uint64_t ns = 1; ns <= 100000; ns++) {
        egm_turns_add(&turns, ns);
    }
    egm_turns_add(&turns, UINT64_MAX);
    uint64_t median = egm_turns_quantile_ns(&turns, 0.5);
    uint64_t p99 = egm_turns_quantile_ns(&turns, 0.99);
    ck_assert_msg(median >= 50000 && median <= 56250, "%llu", (unsigned long long)median);
    ck_assert_msg(p99 >= 99000 && p99 <= 111400, "%llu", (unsigned long long)p99);
    ck_assert_uint_eq(egm_turns_quantile_ns(&turns, 1.0), UINT64_MAX);
    ck_assert_uint_eq(turns.max_ns, UINT64_MAX);
    uint64_t below = egm_turns_at_most(&turns, 10000);
    ck_assert_msg(below >= 8750 && below <= 10000, "%llu", (unsigned long long)below);
}
END_TEST

/* libuv keeps two descriptors per process from its first loop on: made here, before the tests count
 * theirs. */
static void use_libuv_once(void)
{
    uv_loop_t loop;

    if (uv_loop_init(&loop) == 0) {
        uv_loop_close(&loop);
    }
}

int main(void)
{
    const TTest *const tests[] = {answers_hello_on_both_listeners,
                                  hello_in_single_bytes_is_one_hello,
                                  another_cluster_is_told_and_closed,
                                  many_pipelined_requests_are_answered_in_order,
                                  large_lookup_is_answered_while_others_are_served,
                                  peer_that_does_not_read_is_closed,
                                  strangers_are_closed_and_cost_little,
                                  connections_beyond_the_limit_are_turned_away,
                                  taken_ports_fail_the_start_and_are_named,
                                  create_survives_each_failing_allocation,
                                  admin_pages_answer,
                                  stop_hands_over_to_the_next_on_the_same_port,
                                  regex_searches_anywhere_and_explains_errors,
                                  hostile_regex_is_bounded,
                                  turn_quantiles_are_within_an_eighth};

    use_libuv_once();
    return egm_test_run_with_aborts("master_shell", tests, EGM_COUNT_OF(tests), NULL, 0);
}
