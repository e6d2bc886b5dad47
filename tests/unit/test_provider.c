/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a provider: mounting, importers, draining, closing. */
#include "test_provider.h"

START_TEST(provider_is_ready_when_mounted_and_leased)
{
    struct world w;
    set_up(&w);
    ck_assert_int_eq(egm_provider_state(w.provider), EGM_PROVIDER_READY);
    ck_assert_uint_eq(egm_provider_capacity(w.provider), POOL);
    unsigned port = 0;
    ck_assert_int_eq(sscanf(egm_provider_hostname(w.provider), "127.0.0.1:%u", &port), 1);
    ck_assert(port >= 12300 && port <= 14300);
    ck_assert_str_eq(egm_provider_hostname(w.provider), w.master.data_address);
    egm_provider_close(w.provider);
    ck_assert_uint_eq(LOCKED(&w.master, unmounts), 1);
    egm_provider_close(NULL);
    stop_master(&w.master);
    ck_assert_int_eq(rmdir(w.dir), 0);
}
END_TEST

START_TEST(missing_master_is_reported_within_the_wait)
{
    char dir[] = "/tmp/egm-prov-XXXXXX";
    struct egm_provider *provider;
    struct egm_detail why = {0};
    struct egm_provider_options options = {
        .master = "127.0.0.1:1", .size_bytes = POOL, .wait_master_ms = 300};
    ck_assert_ptr_nonnull(mkdtemp(dir));
    setenv("EGMSTORE_RUNTIME_DIR", dir, 1);
    uint64_t since = egm_clock_ns();
    ck_assert_int_eq(egm_provider_open(&options, &provider, &why), EGM_E_PEER_GONE);
    ck_assert_uint_lt(egm_clock_ns() - since, 2000 * MS);
    ck_assert_ptr_nonnull(strstr(why.text, "127.0.0.1:1"));
    ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

START_TEST(mount_that_was_not_answered_is_taken_back)
{
    struct world w;
    struct egm_detail why = {0};
    memcpy(w.dir, "/tmp/egm-prov-XXXXXX", 21);
    ck_assert_ptr_nonnull(mkdtemp(w.dir));
    setenv("EGMSTORE_RUNTIME_DIR", w.dir, 1);
    start_master(&w.master);
    w.master.is_mount_silent = true;
    struct egm_provider_options options = {
        .master = w.master.address, .size_bytes = POOL, .wait_master_ms = 300};
    ck_assert_int_eq(egm_provider_open(&options, &w.provider, &why), EGM_E_TIMEOUT);
    ck_assert_uint_eq(LOCKED(&w.master, mounts), 1);
    ck_assert_uint_eq(LOCKED(&w.master, unmounts), 1);
    stop_master(&w.master);
    ck_assert_int_eq(rmdir(w.dir), 0);
}
END_TEST

START_TEST(master_of_this_host_is_reached_at_its_unix_socket)
{
    struct world w;
    char address[64];
    memcpy(w.dir, "/tmp/egm-prov-XXXXXX", 21);
    ck_assert_ptr_nonnull(mkdtemp(w.dir));
    setenv("EGMSTORE_RUNTIME_DIR", w.dir, 1);
    snprintf(address, sizeof(address), "unix:%s/master-5.sock", w.dir);
    start_master_at(&w.master, address);
    struct egm_provider_options options = {.master = "localhost:5", /* nobody listens there */
                                           .size_bytes = POOL,
                                           .data_address = "off",
                                           .wait_master_ms = 5000};
    ck_assert_int_eq(egm_provider_open(&options, &w.provider, NULL), 0);
    ck_assert_str_eq(w.master.data_address, "");
    ck_assert_ptr_nonnull(strchr(egm_provider_hostname(w.provider), ':'));
    egm_provider_close(w.provider);
    stop_master(&w.master);
    unlink(address + 5);
    ck_assert_int_eq(rmdir(w.dir), 0);
}
END_TEST

START_TEST(bad_options_are_refused)
{
    static const struct egm_provider_options bad[] = {
        {.size_bytes = 4096},
        {.size_bytes = POOL, .hostname = "0.0.0.0"},
        {.size_bytes = POOL, .hostname = "::"},
        {.size_bytes = POOL, .master = "a:b:c"},
        {.size_bytes = POOL, .memory_kind = "paper"},
        {.size_bytes = UINT64_MAX},
    };
    for (size_t i = 0; i < EGM_COUNT_OF(bad); i++) {
        struct egm_provider *provider;
        struct egm_detail why = {0};
        ck_assert_msg(egm_provider_open(&bad[i], &provider, &why) == EGM_E_INVALID, "case %zu", i);
        ck_assert_int_ne(why.text[0], 0);
    }
    struct egm_provider_options huge = {.size_bytes = UINT64_C(8) << 40};
    struct egm_provider *provider;
    struct egm_detail why = {0};
    ck_assert_int_eq(egm_provider_open(&huge, &provider, &why), -ENOMEM);
    ck_assert_ptr_nonnull(strstr(why.text, "MiB"));
}
END_TEST

START_TEST(refused_mount_is_reported_with_the_master_s_reason)
{
    struct world w;
    struct egm_detail why = {0};
    memcpy(w.dir, "/tmp/egm-prov-XXXXXX", 21);
    ck_assert_ptr_nonnull(mkdtemp(w.dir));
    setenv("EGMSTORE_RUNTIME_DIR", w.dir, 1);
    start_master(&w.master);
    pthread_mutex_lock(&w.master.lock);
    w.master.mount_status = EGM_E_INVALID;
    pthread_mutex_unlock(&w.master.lock);
    struct egm_provider_options options = {
        .master = w.master.address, .hostname = "127.0.0.1", .size_bytes = POOL};
    ck_assert_int_eq(egm_provider_open(&options, &w.provider, &why), EGM_E_INVALID);
    ck_assert_ptr_nonnull(strstr(why.text, "no"));
    stop_master(&w.master);
    ck_assert_int_eq(rmdir(w.dir), 0);
}
END_TEST

START_TEST(lost_master_is_found_again_and_told_of_the_slots)
{
    struct world w;
    set_up(&w);
    struct egm_import *import = attach(&w, &egm_mover_map, 0);
    cut(&w.master);
    WAIT_FOR(LOCKED(&w.master, mounts) == 2 && LOCKED(&w.master, leases) >= 2);
    ck_assert_uint_eq(LOCKED(&w.master, listed), 1);
    ck_assert_int_eq(egm_provider_state(w.provider), EGM_PROVIDER_READY);
    egm_mover_map.detach(import);
    WAIT_FOR(LOCKED(&w.master, freed) == 1);
    tear_down(&w);
}
END_TEST

START_TEST(forked_child_may_close_without_harm)
{
    struct world w;
    int status;
    set_up(&w);
    pid_t pid = fork();
    if (pid == 0) {
        bool is_gone = egm_provider_state(w.provider) == EGM_PROVIDER_GONE;
        egm_provider_close(w.provider);
        _exit(is_gone ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    struct egm_import *import = attach(&w, &egm_mover_map, 0);
    egm_mover_map.detach(import);
    tear_down(&w);
}
END_TEST

START_TEST(sockets_of_killed_providers_are_swept)
{
    struct world w;
    char left[80], fresh[80], address[96];
    int fd;
    struct timespec old[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
    memcpy(w.dir, "/tmp/egm-prov-XXXXXX", 21);
    ck_assert_ptr_nonnull(mkdtemp(w.dir));
    snprintf(left, sizeof(left), "%s/provider-0123456789abcdef.sock", w.dir);
    snprintf(fresh, sizeof(fresh), "%s/provider-0123456789abcdee.sock", w.dir);
    for (int i = 0; i < 2; i++) {
        snprintf(address, sizeof(address), "unix:%s", i ? fresh : left);
        ck_assert_int_eq(egm_net_listen(address, &fd, NULL, 0, NULL), 0);
        close(fd);
    }
    ck_assert_int_eq(utimensat(AT_FDCWD, left, old, 0), 0);
    setenv("EGMSTORE_RUNTIME_DIR", w.dir, 1);
    start_master(&w.master);
    struct egm_provider_options options = {
        .master = w.master.address, .hostname = "127.0.0.1", .size_bytes = POOL};
    ck_assert_int_eq(egm_provider_open(&options, &w.provider, NULL), 0);
    ck_assert_int_lt(access(left, F_OK), 0);
    ck_assert_int_eq(access(fresh, F_OK), 0);
    unlink(fresh);
    tear_down(&w);
}
END_TEST

/* ---- map ---- */

START_TEST(importer_reads_what_another_wrote_until_it_is_dropped)
{
    struct world w;
    uint64_t size = 1000000, checksum = 0;
    uint8_t *bytes = pattern(size), *got = calloc(1, size);
    set_up(&w);
    struct egm_import *writer = attach(&w, &egm_mover_map, 0);
    struct egm_import *reader = attach(&w, &egm_mover_map, 0);
    ck_assert_int_eq(move(writer, true, G(1), bytes, size, &checksum), 0);
    ck_assert_int_eq(move(reader, false, G(1), got, size, &checksum), 0);
    ck_assert_int_eq(memcmp(got, bytes, size), 0);
    record(&w.master, EGM_RECORD_DROP, G(1), 0, 0, &place);
    ck_assert_int_eq(move(reader, false, G(1), got, size, &checksum), EGM_E_STALE);
    ck_assert_int_eq(move(writer, true, G(2), bytes, size, &checksum), 0);
    egm_mover_map.detach(writer);
    egm_mover_map.detach(reader);
    WAIT_FOR(LOCKED(&w.master, freed) == 2);
    free(bytes);
    free(got);
    tear_down(&w);
}
END_TEST

START_TEST(pool_on_two_nodes_is_two_segments_of_one_import)
{
    struct world w;
    uint64_t size = 1000000, checksum = 0;
    uint8_t *bytes = pattern(size), *got = calloc(1, size);
    set_up_on(&w, two_nodes, EGM_COUNT_OF(two_nodes));
    ck_assert_uint_eq(egm_provider_capacity(w.provider), POOL);
    ck_assert_uint_eq(w.master.segment_count, 2);
    ck_assert_uint_eq(w.master.segments[1].size, POOL / 2);
    ck_assert_uint_eq(w.master.segments[1].numa_node, 1000);
    struct egm_import *map = attach(&w, &egm_mover_map, 0);
    ck_assert_uint_eq(LOCKED(&w.master, held), 2);
    for (segment_used = 0; segment_used < 2; segment_used++) { /* the same place of each */
        bytes[0] = (uint8_t)segment_used;
        ck_assert_int_eq(move(map, true, G(1 + segment_used), bytes, size, &checksum), 0);
        record(&w.master, EGM_RECORD_SEAL, G(1 + segment_used), size, checksum, &place);
    }
    struct egm_import *tcp = attach(&w, &egm_mover_tcp, 0);
    for (segment_used = 0; segment_used < 2; segment_used++) {
        bytes[0] = (uint8_t)segment_used;
        checksum = egm_checksum_of(bytes, size);
        ck_assert_int_eq(move(map, false, G(1 + segment_used), got, size, &checksum), 0);
        ck_assert_int_eq(memcmp(got, bytes, size), 0);
        memset(got, 0xee, size);
        ck_assert_int_eq(move(tcp, false, G(1 + segment_used), got, size, &checksum), 0);
        ck_assert_int_eq(memcmp(got, bytes, size), 0);
    }
    segment_used = 1;
    record(&w.master, EGM_RECORD_DROP, G(2), 0, 0, &place);
    ck_assert_int_eq(move(map, false, G(2), got, size, &checksum), EGM_E_STALE);
    ck_assert_int_eq(move(tcp, false, G(2), got, size, &checksum), EGM_E_STALE);
    segment_used = 0; /* there is the other checksum */
    ck_assert_int_eq(move(tcp, false, G(1), got, size, &checksum), EGM_E_CHECKSUM);
    egm_mover_map.detach(map);
    egm_mover_tcp.detach(tcp);
    WAIT_FOR(LOCKED(&w.master, freed) == 4);
    free(bytes);
    free(got);
    tear_down(&w);
}
END_TEST

START_TEST(importer_is_refused_when_the_master_does_not_know_its_session)
{
    struct world w;
    set_up(&w);
    pthread_mutex_lock(&w.master.lock);
    w.master.slot_status = EGM_E_NOT_FOUND;
    pthread_mutex_unlock(&w.master.lock);
    ck_assert_ptr_null(attach(&w, &egm_mover_map, EGM_E_NOT_FOUND));
    ck_assert_ptr_null(attach(&w, &egm_mover_tcp, EGM_E_NOT_FOUND));
    tear_down(&w);
}
END_TEST

START_TEST(nothing_is_handed_out_before_the_master_knows)
{
    struct world w;
    set_up(&w);
    pthread_mutex_lock(&w.master.lock);
    w.master.is_slot_silent = true;
    pthread_mutex_unlock(&w.master.lock);
    struct egm_import *import = NULL;
    struct egm_import_options options = import_options(&w, &egm_mover_map);
    options.deadline_ns = in_ms(300);
    ck_assert_int_eq(egm_mover_map.attach(&options, &import, NULL), EGM_E_TIMEOUT);
    /* It went without anything, so its slot is free at once. */
    WAIT_FOR(LOCKED(&w.master, held) == 1 && LOCKED(&w.master, freed) == 1);
    tear_down(&w);
}
END_TEST

START_TEST(slot_of_a_killed_importer_is_freed_and_that_of_a_stopped_one_kept)
{
    struct world w;
    int ready[2];
    char byte;
    set_up(&w);
    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    /* Before fork: the child must take no lock that a thread may have held. */
    struct egm_import_options options = import_options(&w, &egm_mover_map);
    pid_t pid = fork();
    if (pid == 0) {
        struct egm_import *import;
        if (egm_mover_map.attach(&options, &import, NULL) < 0 || write(ready[1], "r", 1) != 1) {
            _exit(1);
        }
        for (;;) {
            pause();
        }
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    egm_sleep_ns(300 * MS);
    ck_assert_uint_eq(LOCKED(&w.master, freed), 0);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    WAIT_FOR(LOCKED(&w.master, freed) == 1);
    tear_down(&w);
}
END_TEST

START_TEST(drain_waits_for_importers_and_names_those_that_stay)
{
    struct world w;
    struct egm_detail why = {0};
    char pid[32];
    set_up(&w);
    struct egm_import *map = attach(&w, &egm_mover_map, 0);
    struct egm_import *tcp = attach(&w, &egm_mover_tcp, 0);
    ck_assert_int_eq(egm_provider_drain(w.provider, 200, &why), -EBUSY);
    ck_assert_uint_eq(LOCKED(&w.master, unmounts), 1);
    snprintf(pid, sizeof(pid), "pid %d", getpid());
    ck_assert_ptr_nonnull(strstr(why.text, pid));
    ck_assert_ptr_nonnull(strstr(why.text, "5e55"));
    /* Both were told. */
    ck_assert(egm_mover_map.is_lost(map));
    ck_assert_int_eq(egm_provider_state(w.provider), EGM_PROVIDER_DRAINING);
    egm_mover_map.detach(map);
    egm_mover_tcp.detach(tcp);
    ck_assert_int_eq(egm_provider_drain(w.provider, 3000, &why), 0);
    ck_assert_int_eq(egm_provider_state(w.provider), EGM_PROVIDER_GONE);
    ck_assert_uint_eq(LOCKED(&w.master, unmounts), 1);
    tear_down(&w);
}
END_TEST

START_TEST(master_that_does_not_answer_keeps_importers_no_longer_than_2_s)
{
    struct world w;
    struct egm_detail why = {0};
    set_up(&w);
    w.master.is_unmount_silent = true;
    struct egm_import *map = attach(&w, &egm_mover_map, 0);
    ck_assert_int_eq(egm_provider_drain(w.provider, 3000, &why), -EBUSY);
    ck_assert(egm_mover_map.is_lost(map)); /* it was told */
    egm_mover_map.detach(map);
    ck_assert_int_eq(egm_provider_drain(w.provider, 3000, &why), 0);
    tear_down(&w);
}
END_TEST

EGM_TEST_MAIN("provider", provider_is_ready_when_mounted_and_leased,
              missing_master_is_reported_within_the_wait, mount_that_was_not_answered_is_taken_back,
              master_that_does_not_answer_keeps_importers_no_longer_than_2_s,
              master_of_this_host_is_reached_at_its_unix_socket, bad_options_are_refused,
              refused_mount_is_reported_with_the_master_s_reason,
              lost_master_is_found_again_and_told_of_the_slots, forked_child_may_close_without_harm,
              sockets_of_killed_providers_are_swept,
              importer_reads_what_another_wrote_until_it_is_dropped,
              pool_on_two_nodes_is_two_segments_of_one_import,
              importer_is_refused_when_the_master_does_not_know_its_session,
              nothing_is_handed_out_before_the_master_knows,
              slot_of_a_killed_importer_is_freed_and_that_of_a_stopped_one_kept,
              drain_waits_for_importers_and_names_those_that_stay)
