/* SPDX-License-Identifier: Apache-2.0 */
/* The provider library against a scripted master (a thread of this test) and the real movers. */
#include "base/log.h"

#include "egmstore/provider.h"
#include "mover/checksum.h"
#include "mover/mover.h"
#include "mover/tcp/frame_io.h"
#include "os/clock.h"
#include "os/net.h"
#include "provider/shell.h"
#include "test.h"
#include "wire/status.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#define POOL (UINT64_C(8) << 20)
#define MS EGM_NS_PER_MS
#define G(counter) ((UINT64_C(1) << 44) | (counter))
#define SESSION 0x5e55

/* libuv keeps a pipe for signals from its first loop to the end of the process; it must be there
 * before descriptors are counted. */
__attribute__((constructor)) static void prime_libuv(void)
{
    uv_loop_t loop;

    if (uv_loop_init(&loop) == 0) {
        egm_ignore(uv_loop_close(&loop), "it is empty");
    }
}

/* ---- the scripted master ---- */

struct master {
    pthread_t thread;
    int listener;
    char address[64];
    pthread_mutex_t lock; /* all below */
    int fd;               /* -1: no provider */
    bool is_stopping;
    int slot_status;     /* the answer to SLOT_CHANGE 1 */
    bool is_slot_silent; /* no answer to it */
    bool is_unmount_silent;
    int mount_status;
    unsigned mounts, leases, held, freed, unmounts, listed;
    uint64_t acknowledged; /* sequence of the last RECORDS_REPLY */
    uint64_t sequence;
    int verify_status; /* 1: no answer yet */
    uint64_t provider, epoch;
    uint32_t segment_count;
    struct egm_segment segments[4];
    char unix_address[128], data_address[64];
};

static uint64_t in_ms(uint64_t ms)
{
    return egm_clock_ns() + ms * MS;
}

static void send_result(int fd, uint16_t type, uint64_t request, int status)
{
    struct egm_buf buf;
    egm_buf_init(&buf, 4096);
    size_t at = egm_frame_begin(&buf, type, request);
    if (type == EGM_MSG_MOUNT_REPLY) {
        egm_put_mount_reply(&buf, &(struct egm_mount_reply){.status = egm_status_to_wire(status),
                                                            .reason = egm_bytes_of("no", 2)});
    } else {
        egm_put_result(&buf, &(struct egm_result){.status = egm_status_to_wire(status)});
    }
    egm_frame_end(&buf, at);
    egm_ignore(egm_frame_send(fd, &buf, in_ms(1000)), "the test notices");
    egm_buf_release(&buf);
}

static void send_lease(int fd)
{
    struct egm_buf buf;
    egm_buf_init(&buf, 4096);
    size_t at = egm_frame_begin(&buf, EGM_MSG_LEASE, 0);
    egm_put_lease(&buf, &(struct egm_lease){.instance = 77, .term = 1, .duration_ms = 5000});
    egm_frame_end(&buf, at);
    egm_ignore(egm_frame_send(fd, &buf, in_ms(1000)), "the test notices");
    egm_buf_release(&buf);
}

static void copy_bytes(char *ret, size_t size, struct egm_bytes bytes)
{
    ck_assert_uint_lt(bytes.size, size);
    memcpy(ret, bytes.data, bytes.size);
    ret[bytes.size] = '\0';
}

static void on_mount(struct master *m, uint64_t request, struct egm_cursor cursor)
{
    struct egm_mount mount;
    egm_take_mount(&cursor, &mount);
    ck_assert(!cursor.failed);
    m->provider = mount.provider;
    m->epoch = mount.epoch;
    m->listed = mount.slot_count;
    m->segment_count = mount.segment_count;
    ck_assert_uint_le(mount.segment_count, EGM_COUNT_OF(m->segments));
    for (uint32_t i = 0; i < mount.segment_count; i++) {
        egm_take_segment(&cursor, &m->segments[i]);
    }
    memcpy(m->unix_address, "unix:", 6);
    copy_bytes(m->unix_address + 5, sizeof(m->unix_address) - 5, mount.unix_path);
    copy_bytes(m->data_address, sizeof(m->data_address), mount.data_address);
    m->mounts++;
    send_result(m->fd, EGM_MSG_MOUNT_REPLY, request, m->mount_status);
    if (m->mount_status == 0) {
        send_lease(m->fd);
    }
}

static void on_slot_change(struct master *m, uint64_t request, struct egm_cursor cursor)
{
    struct egm_slot_change change;
    egm_take_slot_change(&cursor, &change);
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    if (change.state == 0) {
        m->freed++;
        send_result(m->fd, EGM_MSG_SLOT_CHANGE_REPLY, request, 0);
        return;
    }
    m->held++;
    if (!m->is_slot_silent) {
        send_result(m->fd, EGM_MSG_SLOT_CHANGE_REPLY, request, m->slot_status);
    }
}

static void on_frame(struct master *m, const struct egm_frame *frame, const struct egm_buf *payload)
{
    struct egm_cursor cursor = egm_cursor_of(payload->data, payload->len);
    struct egm_records_reply records;
    struct egm_result result;

    switch (frame->type) {
    case EGM_MSG_MOUNT:
        on_mount(m, frame->request, cursor);
        break;
    case EGM_MSG_LEASE_REPLY:
        m->leases++;
        break;
    case EGM_MSG_SLOT_CHANGE:
        on_slot_change(m, frame->request, cursor);
        break;
    case EGM_MSG_RECORDS_REPLY:
        egm_take_records_reply(&cursor, &records);
        ck_assert_int_eq(records.status, 0);
        m->acknowledged = records.sequence;
        break;
    case EGM_MSG_VERIFY_REPLY:
        egm_take_result(&cursor, &result);
        m->verify_status = egm_status_from_wire(result.status);
        break;
    case EGM_MSG_UNMOUNT:
        m->unmounts++;
        if (!m->is_unmount_silent) {
            send_result(m->fd, EGM_MSG_UNMOUNT_REPLY, frame->request, 0);
        }
        break;
    default:
        ck_abort_msg("unexpected %s", egm_message_name(frame->type));
    }
}

static int greet(int fd)
{
    struct egm_frame frame;
    struct egm_buf buf;
    egm_buf_init(&buf, 4096);
    int r = egm_frame_recv(fd, &frame, &buf, in_ms(2000));
    if (r == 0) {
        egm_buf_clear(&buf);
        size_t at = egm_frame_begin(&buf, EGM_MSG_HELLO_REPLY, frame.request);
        egm_put_hello_reply(&buf, &(struct egm_hello_reply){.version = 1, .instance = 77});
        egm_frame_end(&buf, at);
        r = egm_frame_send(fd, &buf, in_ms(1000));
    }
    egm_buf_release(&buf);
    return r;
}

static void serve(struct master *m, int fd)
{
    struct egm_buf payload;
    struct egm_frame frame;

    egm_buf_init(&payload, 1 << 20);
    if (greet(fd) == 0) {
        pthread_mutex_lock(&m->lock);
        m->fd = fd;
        pthread_mutex_unlock(&m->lock);
        while (egm_frame_recv(fd, &frame, &payload, 0) == 0) {
            pthread_mutex_lock(&m->lock);
            on_frame(m, &frame, &payload);
            pthread_mutex_unlock(&m->lock);
        }
    }
    egm_buf_release(&payload);
    pthread_mutex_lock(&m->lock);
    m->fd = -1;
    pthread_mutex_unlock(&m->lock);
    close(fd);
}

static void *run_master(void *arg)
{
    struct master *m = arg;
    bool is_stopping = false;

    while (!is_stopping) {
        int fd;
        if (egm_net_accept(m->listener, &fd) == 0) {
            serve(m, fd);
        } else {
            egm_sleep_ns(2 * MS);
        }
        pthread_mutex_lock(&m->lock);
        is_stopping = m->is_stopping;
        pthread_mutex_unlock(&m->lock);
    }
    return NULL;
}

static void start_master_at(struct master *m, const char *address)
{
    *m = (struct master){.fd = -1, .verify_status = 1};
    ck_assert_int_eq(pthread_mutex_init(&m->lock, NULL), 0);
    ck_assert_int_eq(egm_net_listen(address, &m->listener, m->address, sizeof(m->address), NULL),
                     0);
    ck_assert_int_eq(pthread_create(&m->thread, NULL, run_master, m), 0);
}

static void start_master(struct master *m)
{
    start_master_at(m, "127.0.0.1:0");
}

/* Breaks the provider's connection; it comes back. */
static void cut(struct master *m)
{
    pthread_mutex_lock(&m->lock);
    if (m->fd >= 0) {
        shutdown(m->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&m->lock);
}

static void stop_master(struct master *m)
{
    pthread_mutex_lock(&m->lock);
    m->is_stopping = true;
    pthread_mutex_unlock(&m->lock);
    cut(m);
    pthread_join(m->thread, NULL);
    close(m->listener);
}

#define LOCKED(m, field)                        \
    __extension__({                             \
        pthread_mutex_lock(&(m)->lock);         \
        __typeof__((m)->field) v_ = (m)->field; \
        pthread_mutex_unlock(&(m)->lock);       \
        v_;                                     \
    })

#define WAIT_FOR(condition)                                   \
    do {                                                      \
        uint64_t end_ = in_ms(5000);                          \
        while (!(condition)) {                                \
            ck_assert_msg(egm_clock_ns() < end_, #condition); \
            egm_sleep_ns(2 * MS);                             \
        }                                                     \
    } while (0)

static uint32_t segment_used; /* by records and transfers */

static void send_record(struct master *m, uint8_t kind, uint64_t generation, uint64_t size,
                        uint64_t checksum, const struct egm_extent *extent)
{
    struct egm_buf buf;
    egm_buf_init(&buf, 4096);
    pthread_mutex_lock(&m->lock);
    size_t at = egm_frame_begin(&buf, EGM_MSG_RECORDS, 1000 + m->sequence);
    egm_put_records(&buf, &(struct egm_records){.sequence = ++m->sequence, .count = 1});
    egm_put_record(&buf, &(struct egm_record){.kind = kind,
                                              .segment = segment_used,
                                              .generation = generation,
                                              .size = size,
                                              .checksum = checksum,
                                              .extent_count = 1});
    egm_put_extent(&buf, extent);
    egm_frame_end(&buf, at);
    ck_assert_int_eq(egm_frame_send(m->fd, &buf, in_ms(1000)), 0);
    pthread_mutex_unlock(&m->lock);
    egm_buf_release(&buf);
}

static void record(struct master *m, uint8_t kind, uint64_t generation, uint64_t size,
                   uint64_t checksum, const struct egm_extent *extent)
{
    send_record(m, kind, generation, size, checksum, extent);
    WAIT_FOR(LOCKED(m, acknowledged) == LOCKED(m, sequence));
}

/* ---- one provider ---- */

/* As on a host of two NUMA nodes. The second one is nowhere: its pages come from anywhere then. */
static const struct egm_plan_segment two_nodes[] = {{0, POOL / 2}, {1000, POOL / 2}};

struct world {
    struct master master;
    struct egm_provider *provider;
    char dir[32];
};

static const struct egm_extent place = {.offset = 2 * EGM_GRANULE, .length = 32 * EGM_GRANULE};

static void set_up_on(struct world *w, const struct egm_plan_segment *plan, uint32_t count)
{
    egm_log_set_level(EGM_LOG_ERROR);
    memcpy(w->dir, "/tmp/egm-prov-XXXXXX", 21);
    ck_assert_ptr_nonnull(mkdtemp(w->dir));
    setenv("EGMSTORE_RUNTIME_DIR", w->dir, 1);
    start_master(&w->master);
    struct egm_provider_options options = {.master = w->master.address,
                                           .hostname = "127.0.0.1",
                                           .size_bytes = POOL + 4096,
                                           .wait_master_ms = 5000};
    struct egm_detail why = {0};
    int r = plan ? egm_shell_open(&options, plan, count, &w->provider, &why)
                 : egm_provider_open(&options, &w->provider, &why);
    ck_assert_msg(r == 0, "%s: %s", why.stage, why.text);
}

static void set_up(struct world *w)
{
    set_up_on(w, NULL, 0);
}

static void tear_down(struct world *w)
{
    egm_provider_close(w->provider);
    stop_master(&w->master);
    ck_assert_int_eq(rmdir(w->dir), 0); /* the socket is gone */
}

static struct egm_import_options import_options(struct world *w, const struct egm_mover_ops *ops)
{
    return (struct egm_import_options){.provider = LOCKED(&w->master, provider),
                                       .epoch = LOCKED(&w->master, epoch),
                                       .session = SESSION,
                                       .process = 1,
                                       .cluster = "egmstore",
                                       .address = ops == &egm_mover_map ? w->master.unix_address
                                                                        : w->master.data_address,
                                       .deadline_ns = in_ms(5000)};
}

static struct egm_import *attach(struct world *w, const struct egm_mover_ops *ops, int wanted)
{
    struct egm_import *import = NULL;
    struct egm_detail why = {0};
    struct egm_import_options options = import_options(w, ops);
    int r = ops->attach(&options, &import, &why);

    ck_assert_msg(r == wanted, "%d %s: %s", r, why.stage, why.text);
    return import;
}

static int move(struct egm_import *import, bool is_write, uint64_t generation, void *data,
                uint64_t size, uint64_t *checksum)
{
    struct iovec iov = {.iov_base = data, .iov_len = size};
    struct egm_transfer transfer = {.generation = generation,
                                    .segment = segment_used,
                                    .extent_count = 1,
                                    .extents = {place},
                                    .iov = &iov,
                                    .iov_count = 1,
                                    .length = size,
                                    .is_write = is_write,
                                    .has_checksum = !is_write,
                                    .checksum = *checksum};
    import->ops->transfer(import, &transfer, 1, in_ms(5000));
    *checksum = transfer.checksum;
    return transfer.status;
}

static uint8_t *pattern(uint64_t size)
{
    uint8_t *bytes = malloc(size);
    for (uint64_t i = 0; i < size; i++) {
        bytes[i] = (uint8_t)(i * 7 + (i >> 9));
    }
    return bytes;
}

/* ---- life ---- */

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

/* ---- tcp ---- */

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

EGM_TEST_MAIN(
    "provider", provider_is_ready_when_mounted_and_leased,
    missing_master_is_reported_within_the_wait, master_of_this_host_is_reached_at_its_unix_socket,
    bad_options_are_refused, refused_mount_is_reported_with_the_master_s_reason,
    lost_master_is_found_again_and_told_of_the_slots, forked_child_may_close_without_harm,
    sockets_of_killed_providers_are_swept, importer_reads_what_another_wrote_until_it_is_dropped,
    pool_on_two_nodes_is_two_segments_of_one_import,
    importer_is_refused_when_the_master_does_not_know_its_session,
    nothing_is_handed_out_before_the_master_knows,
    slot_of_a_killed_importer_is_freed_and_that_of_a_stopped_one_kept,
    tcp_moves_what_was_granted_and_sealed, write_waits_for_its_grant_but_not_for_ever,
    drop_does_not_wait_for_a_peer_that_stopped_reading,
    seal_ends_a_writer_whose_connection_is_orphaned, nonsense_ends_the_connection_and_nothing_else,
    silent_and_wrong_peers_are_dropped_and_delay_nobody, verify_tells_right_bytes_from_wrong_ones,
    drain_waits_for_importers_and_names_those_that_stay,
    close_does_not_wait_for_a_master_that_says_nothing)
