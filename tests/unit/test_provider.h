/* SPDX-License-Identifier: Apache-2.0 */
/* A provider of the library between a scripted master (a thread of the test) and the real movers,
 * for test_provider*.c. */
#ifndef EGM_TEST_PROVIDER_H
#define EGM_TEST_PROVIDER_H

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
    bool is_mount_silent; /* takes it and says nothing */
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

__attribute__((unused)) static uint64_t in_ms(uint64_t ms)
{
    return egm_clock_ns() + ms * MS;
}

__attribute__((unused)) static void send_result(int fd, uint16_t type, uint64_t request, int status)
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

__attribute__((unused)) static void send_lease(int fd)
{
    struct egm_buf buf;
    egm_buf_init(&buf, 4096);
    size_t at = egm_frame_begin(&buf, EGM_MSG_LEASE, 0);
    egm_put_lease(&buf, &(struct egm_lease){.instance = 77, .term = 1, .duration_ms = 5000});
    egm_frame_end(&buf, at);
    egm_ignore(egm_frame_send(fd, &buf, in_ms(1000)), "the test notices");
    egm_buf_release(&buf);
}

__attribute__((unused)) static void copy_bytes(char *ret, size_t size, struct egm_bytes bytes)
{
    ck_assert_uint_lt(bytes.size, size);
    memcpy(ret, bytes.data, bytes.size);
    ret[bytes.size] = '\0';
}

__attribute__((unused)) static void on_mount(struct master *m, uint64_t request,
                                             struct egm_cursor cursor)
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
    if (m->is_mount_silent) {
        return;
    }
    send_result(m->fd, EGM_MSG_MOUNT_REPLY, request, m->mount_status);
    if (m->mount_status == 0) {
        send_lease(m->fd);
    }
}

__attribute__((unused)) static void on_slot_change(struct master *m, uint64_t request,
                                                   struct egm_cursor cursor)
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

__attribute__((unused)) static void on_frame(struct master *m, const struct egm_frame *frame,
                                             const struct egm_buf *payload)
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

__attribute__((unused)) static int greet(int fd)
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

__attribute__((unused)) static void serve(struct master *m, int fd)
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

__attribute__((unused)) static void *run_master(void *arg)
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

__attribute__((unused)) static void start_master_at(struct master *m, const char *address)
{
    *m = (struct master){.fd = -1, .verify_status = 1};
    ck_assert_int_eq(pthread_mutex_init(&m->lock, NULL), 0);
    ck_assert_int_eq(egm_net_listen(address, &m->listener, m->address, sizeof(m->address), NULL),
                     0);
    ck_assert_int_eq(pthread_create(&m->thread, NULL, run_master, m), 0);
}

__attribute__((unused)) static void start_master(struct master *m)
{
    start_master_at(m, "127.0.0.1:0");
}

/* Breaks the provider's connection; it comes back. */
__attribute__((unused)) static void cut(struct master *m)
{
    pthread_mutex_lock(&m->lock);
    if (m->fd >= 0) {
        shutdown(m->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&m->lock);
}

__attribute__((unused)) static void stop_master(struct master *m)
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

__attribute__((unused)) static void send_record(struct master *m, uint8_t kind, uint64_t generation,
                                                uint64_t size, uint64_t checksum,
                                                const struct egm_extent *extent)
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

__attribute__((unused)) static void record(struct master *m, uint8_t kind, uint64_t generation,
                                           uint64_t size, uint64_t checksum,
                                           const struct egm_extent *extent)
{
    send_record(m, kind, generation, size, checksum, extent);
    WAIT_FOR(LOCKED(m, acknowledged) == LOCKED(m, sequence));
}

/* ---- one provider ---- */

/* As on a host of two NUMA nodes. The second one is nowhere: its pages come from anywhere then. */
__attribute__((unused)) static const struct egm_plan_segment two_nodes[] = {{0, POOL / 2},
                                                                            {1000, POOL / 2}};

struct world {
    struct master master;
    struct egm_provider *provider;
    char dir[32];
};

__attribute__((unused)) static const struct egm_extent place = {.offset = 2 * EGM_GRANULE,
                                                                .length = 32 * EGM_GRANULE};

__attribute__((unused)) static void set_up_on(struct world *w, const struct egm_plan_segment *plan,
                                              uint32_t count)
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

__attribute__((unused)) static void set_up(struct world *w)
{
    set_up_on(w, NULL, 0);
}

__attribute__((unused)) static void tear_down(struct world *w)
{
    egm_provider_close(w->provider);
    stop_master(&w->master);
    ck_assert_int_eq(rmdir(w->dir), 0); /* the socket is gone */
}

__attribute__((unused)) static struct egm_import_options import_options(
    struct world *w, const struct egm_mover_ops *ops)
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

__attribute__((unused)) static struct egm_import *attach(struct world *w,
                                                         const struct egm_mover_ops *ops,
                                                         int wanted)
{
    struct egm_import *import = NULL;
    struct egm_detail why = {0};
    struct egm_import_options options = import_options(w, ops);
    int r = ops->attach(&options, &import, &why);

    ck_assert_msg(r == wanted, "%d %s: %s", r, why.stage, why.text);
    return import;
}

__attribute__((unused)) static int move(struct egm_import *import, bool is_write,
                                        uint64_t generation, void *data, uint64_t size,
                                        uint64_t *checksum)
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

__attribute__((unused)) static uint8_t *pattern(uint64_t size)
{
    uint8_t *bytes = malloc(size);
    for (uint64_t i = 0; i < size; i++) {
        bytes[i] = (uint8_t)(i * 7 + (i >> 9));
    }
    return bytes;
}

/* ---- life ---- */

#endif
