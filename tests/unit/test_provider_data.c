/* SPDX-License-Identifier: Apache-2.0 */
/* The data port: what is granted and sealed moves; peers that break the protocol harm nobody. */
#include "test_provider.h"

START_TEST(tcp_moves_what_was_granted_and_sealed)
{
    struct world w;
    uint64_t size = 32 * EGM_GRANULE - 77, checksum = 0;
    uint8_t *bytes = pattern(size), *got = calloc(1, size);
    set_up(&w);
    struct egm_import *import = attach(&w, &egm_mover_tcp, 0);
    record(&w.master, EGM_RECORD_GRANT, G(1), 0, 0, &place);
    ck_assert_int_eq(move(import, true, G(1), bytes, size, &checksum), 0);
    record(&w.master, EGM_RECORD_SEAL, G(1), size, checksum, &place);
    ck_assert_int_eq(move(import, false, G(1), got, size, &checksum), 0);
    ck_assert_int_eq(memcmp(got, bytes, size), 0);
    /* Sealed is not written any more; and the connection goes on after the refusal. */
    uint64_t other = 0;
    ck_assert_int_eq(move(import, true, G(1), got, size, &other), EGM_E_STALE);
    record(&w.master, EGM_RECORD_DROP, G(1), 0, 0, &place);
    ck_assert_int_eq(move(import, false, G(1), got, size, &checksum), EGM_E_STALE);
    egm_mover_tcp.detach(import);
    WAIT_FOR(LOCKED(&w.master, freed) == 1);
    free(bytes);
    free(got);
    tear_down(&w);
}
END_TEST

struct late {
    struct master *master;
    uint64_t size;
};

static void *grant_late(void *arg)
{
    struct late *late = arg;
    egm_sleep_ns(150 * MS);
    send_record(late->master, EGM_RECORD_GRANT, G(1), late->size, 0, &place);
    return NULL;
}

START_TEST(write_waits_for_its_grant_but_not_for_ever)
{
    struct world w;
    uint64_t size = 100000, checksum = 0;
    uint8_t *bytes = pattern(size);
    pthread_t thread;
    set_up(&w);
    struct egm_import *import = attach(&w, &egm_mover_tcp, 0);
    struct late late = {.master = &w.master};
    ck_assert_int_eq(pthread_create(&thread, NULL, grant_late, &late), 0);
    ck_assert_int_eq(move(import, true, G(1), bytes, size, &checksum), 0);
    pthread_join(thread, NULL);
    uint64_t since = egm_clock_ns();
    ck_assert_int_eq(move(import, true, G(2), bytes, size, &checksum), EGM_E_STALE);
    ck_assert_uint_ge(egm_clock_ns() - since, 900 * MS);
    ck_assert_uint_lt(egm_clock_ns() - since, 2000 * MS);
    egm_mover_tcp.detach(import);
    free(bytes);
    tear_down(&w);
}
END_TEST

/* Does the handshake of a tcp requester by hand; returns the attached connection. */
static int attach_raw(struct world *w)
{
    int fd;
    struct egm_hello_reply reply;
    struct egm_greeting greeting = {
        .role = EGM_ROLE_REQUESTER, .process = 9, .cluster = "egmstore"};
    struct egm_buf buf;
    egm_buf_init(&buf, 4096);
    ck_assert_int_eq(egm_net_connect(w->master.data_address, in_ms(2000), &fd, NULL), 0);
    ck_assert_int_eq(egm_hello_exchange(fd, &greeting, in_ms(2000), &reply, NULL), 0);
    size_t at = egm_frame_begin(&buf, EGM_MSG_ATTACH, 2);
    egm_put_attach(&buf, &(struct egm_attach){.provider = w->master.provider,
                                              .epoch = w->master.epoch,
                                              .session = SESSION,
                                              .kind = EGM_IMPORT_TCP});
    egm_frame_end(&buf, at);
    ck_assert_int_eq(egm_frame_send(fd, &buf, in_ms(2000)), 0);
    ck_assert_int_eq(egm_frame_expect(fd, EGM_MSG_ATTACH_REPLY, 2, &buf, in_ms(2000)), 0);
    egm_buf_release(&buf);
    return fd;
}

static void send_request(int fd, uint16_t type, const struct egm_read *head,
                         const struct egm_extent *extent)
{
    struct egm_buf buf;
    egm_buf_init(&buf, 4096);
    size_t at = egm_frame_begin(&buf, type, 3);
    egm_put_read(&buf, head);
    for (uint8_t i = 0; i < head->extent_count; i++) {
        egm_put_extent(&buf, extent);
    }
    egm_frame_end(&buf, at);
    ck_assert_int_eq(egm_frame_send(fd, &buf, in_ms(1000)), 0);
    egm_buf_release(&buf);
}

START_TEST(drop_does_not_wait_for_a_peer_that_stopped_reading)
{
    struct world w;
    uint64_t size = place.length;
    set_up(&w);
    record(&w.master, EGM_RECORD_SEAL, G(1), size, 0, &place);
    int fd = attach_raw(&w);
    /* More than all socket buffers hold: several reads, none of them taken. */
    struct egm_read head = {.generation = G(1), .length = size, .extent_count = 1};
    for (int i = 0; i < 16; i++) {
        send_request(fd, EGM_MSG_READ, &head, &place);
    }
    egm_sleep_ns(100 * MS);
    uint64_t since = egm_clock_ns();
    record(&w.master, EGM_RECORD_DROP, G(1), 0, 0, &place);
    ck_assert_uint_lt(egm_clock_ns() - since, 1500 * MS);
    close(fd);
    WAIT_FOR(LOCKED(&w.master, freed) == 1);
    tear_down(&w);
}
END_TEST

#if !defined(__SANITIZE_THREAD__) /* two writers of one place at once are what it is about */
START_TEST(seal_ends_a_writer_whose_connection_is_orphaned)
{
    struct world w;
    uint64_t size = 32 * EGM_GRANULE - 77, checksum = 0;
    uint8_t *bytes = pattern(size), *got = calloc(1, size), rest;
    set_up(&w);
    record(&w.master, EGM_RECORD_GRANT, G(1), 0, 0, &place);
    /* a WRITE whose bytes stop coming; its requester writes again over another connection */
    int fd = attach_raw(&w);
    struct egm_read head = {.generation = G(1), .length = size, .extent_count = 1};
    send_request(fd, EGM_MSG_WRITE, &head, &place);
    ck_assert_int_eq(egm_net_send(fd, bytes, size / 2, in_ms(1000)), 0);
    const volatile uint8_t *pool = w.provider->segments[0].mem.base;
    WAIT_FOR(pool[place.offset + 1] == bytes[1]); /* begun: after the seal it would be late */
    struct egm_import *import = attach(&w, &egm_mover_tcp, 0);
    ck_assert_int_eq(move(import, true, G(1), bytes, size, &checksum), 0);
    record(&w.master, EGM_RECORD_SEAL, G(1), size, checksum, &place);
    uint64_t since = egm_clock_ns();
    ck_assert_int_eq(move(import, false, G(1), got, size, &checksum), 0);
    ck_assert_uint_lt(egm_clock_ns() - since, 900 * MS);
    ck_assert_int_eq(memcmp(got, bytes, size), 0);
    ck_assert_int_eq(egm_net_recv(fd, &rest, 1, in_ms(1000)), EGM_E_PEER_GONE);
    close(fd);
    egm_mover_tcp.detach(import);
    free(bytes);
    free(got);
    tear_down(&w);
}
END_TEST
#endif

START_TEST(nonsense_ends_the_connection_and_nothing_else)
{
    static const struct {
        uint64_t generation, offset, length, skip, size;
    } cases[] = {
        {G(1), 0, EGM_GRANULE, 0, 16},
        {G(1), POOL, EGM_GRANULE, 0, 16},
        {G(1), UINT64_MAX - 65535, EGM_GRANULE, 0, 16},
        {G(1), EGM_GRANULE, EGM_GRANULE, UINT64_MAX - 8, 16},
        {G(1), EGM_GRANULE, EGM_GRANULE, 0, UINT64_C(1) << 63},
        {0, EGM_GRANULE, EGM_GRANULE, 0, 16},
    };
    struct world w;
    set_up(&w);
    for (size_t i = 0; i < 2 * EGM_COUNT_OF(cases); i++) {
        struct egm_extent extent = {.offset = cases[i / 2].offset, .length = cases[i / 2].length};
        struct egm_read head = {.generation = cases[i / 2].generation,
                                .skip = cases[i / 2].skip,
                                .length = cases[i / 2].size,
                                .extent_count = 1};
        char byte;
        int fd = attach_raw(&w);
        send_request(fd, i % 2 ? EGM_MSG_WRITE : EGM_MSG_READ, &head, &extent);
        ck_assert_msg(egm_net_recv(fd, &byte, 1, in_ms(2000)) == EGM_E_PEER_GONE, "case %zu", i);
        close(fd);
    }
    struct egm_import *import = attach(&w, &egm_mover_tcp, 0);
    egm_mover_tcp.detach(import);
    tear_down(&w);
}
END_TEST

static bool is_closed(int fd, uint64_t deadline)
{
    char byte;
    int r;
    do {
        r = egm_net_recv(fd, &byte, 1, deadline);
    } while (r == 0);
    return r == EGM_E_PEER_GONE;
}

START_TEST(silent_and_wrong_peers_are_dropped_and_delay_nobody)
{
    static const char *const wrong[] = {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02",
                                        "\xff\xff\xff\xff\xff\xff\xff\xff"};
    struct world w;
    int silent[200];
    set_up(&w);
    for (size_t i = 0; i < EGM_COUNT_OF(silent); i++) {
        ck_assert_int_eq(egm_net_connect(w.master.data_address, in_ms(2000), &silent[i], NULL), 0);
    }
    for (size_t i = 0; i < EGM_COUNT_OF(wrong); i++) {
        int fd;
        ck_assert_int_eq(egm_net_connect(w.master.data_address, in_ms(2000), &fd, NULL), 0);
        ck_assert_int_eq(egm_net_send(fd, wrong[i], strlen(wrong[i]), in_ms(1000)), 0);
        ck_assert(is_closed(fd, in_ms(2000)));
        close(fd);
    }
    /* A length that a real frame may have, but no greeting. */
    int fd;
    uint8_t header[EGM_FRAME_HEADER] = {0x45, 0x47, 0x4d, 0x31, 1, 0, 2, 0, 0, 0, 0, 2};
    ck_assert_int_eq(egm_net_connect(w.master.data_address, in_ms(2000), &fd, NULL), 0);
    ck_assert_int_eq(egm_net_send(fd, header, sizeof(header), in_ms(1000)), 0);
    ck_assert(is_closed(fd, in_ms(2000)));
    close(fd);
    uint64_t since = egm_clock_ns();
    struct egm_import *import = attach(&w, &egm_mover_tcp, 0);
    ck_assert_uint_lt(egm_clock_ns() - since, 1000 * MS);
    egm_mover_tcp.detach(import);
    for (size_t i = 0; i < EGM_COUNT_OF(silent); i++) {
        ck_assert_msg(is_closed(silent[i], in_ms(8000)), "silent peer %zu", i);
        close(silent[i]);
    }
    tear_down(&w);
}
END_TEST

START_TEST(verify_tells_right_bytes_from_wrong_ones)
{
    struct world w;
    uint64_t size = 300000, checksum = 0;
    uint8_t *bytes = pattern(size);
    set_up(&w);
    struct egm_import *import = attach(&w, &egm_mover_map, 0);
    ck_assert_int_eq(move(import, true, G(1), bytes, size, &checksum), 0);
    for (uint64_t wrong = 0; wrong < 2; wrong++) {
        struct egm_buf buf;
        egm_buf_init(&buf, 4096);
        size_t at = egm_frame_begin(&buf, EGM_MSG_VERIFY, 5);
        egm_put_verify(&buf, &(struct egm_verify){.generation = G(1),
                                                  .size = size,
                                                  .checksum = checksum + wrong,
                                                  .extent_count = 1});
        egm_put_extent(&buf, &place);
        egm_frame_end(&buf, at);
        pthread_mutex_lock(&w.master.lock);
        w.master.verify_status = 1;
        ck_assert_int_eq(egm_frame_send(w.master.fd, &buf, in_ms(1000)), 0);
        pthread_mutex_unlock(&w.master.lock);
        egm_buf_release(&buf);
        WAIT_FOR(LOCKED(&w.master, verify_status) != 1);
        ck_assert_int_eq(LOCKED(&w.master, verify_status), wrong ? EGM_E_CHECKSUM : 0);
    }
    egm_mover_map.detach(import);
    free(bytes);
    tear_down(&w);
}
END_TEST

/* ---- leaving ---- */

START_TEST(close_does_not_wait_for_a_master_that_says_nothing)
{
    struct world w;
    set_up(&w);
    pthread_mutex_lock(&w.master.lock);
    w.master.is_unmount_silent = true;
    pthread_mutex_unlock(&w.master.lock);
    int fd = attach_raw(&w);
    uint64_t since = egm_clock_ns();
    egm_provider_close(w.provider);
    ck_assert_uint_lt(egm_clock_ns() - since, 2000 * MS);
    ck_assert(is_closed(fd, in_ms(1000)));
    close(fd);
    stop_master(&w.master);
    ck_assert_int_eq(rmdir(w.dir), 0);
}
END_TEST

EGM_TEST_MAIN("provider_data", tcp_moves_what_was_granted_and_sealed,
              write_waits_for_its_grant_but_not_for_ever,
              drop_does_not_wait_for_a_peer_that_stopped_reading,

#if !defined(__SANITIZE_THREAD__)
              seal_ends_a_writer_whose_connection_is_orphaned,
#endif

              nonsense_ends_the_connection_and_nothing_else,
              silent_and_wrong_peers_are_dropped_and_delay_nobody,
              verify_tells_right_bytes_from_wrong_ones,
              close_does_not_wait_for_a_master_that_says_nothing)
