/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp mover against a data port in a thread, which can answer in crumbs, late, wrongly, or not
 * at all. */
#include "mover/checksum.h"
#include "mover/tcp/frame_io.h"
#include "mover/tcp/tcp.h"
#include "os/clock.h"
#include "os/net.h"
#include "test.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define POOL_BYTES (8u << 20)
#define CONNECTIONS_MAX 64u

enum trick {
    HONEST,
    CRUMBS,        /* answers leave in pieces of 1..13 bytes */
    STALL,         /* the answer stops half-way until `release` is set, then goes on */
    CLOSE,         /* closes in the middle of an answer */
    WRONG_REQUEST, /* another request's id */
    WRONG_LENGTH,  /* says more bytes than were asked for */
    STALE,         /* refuses by status */
    TAKEN_BACK,    /* closes in the middle of an answer, then refuses by status */
    DRIP,          /* the answer leaves in 16 pieces, 100 ms apart */
    MUTE,          /* says nothing at all, not even a greeting, until `release` is set */
    RESTLESS,      /* another nonce each time */
};

struct fake {
    char address[64];
    int listen_fd;
    pthread_t acceptor;
    pthread_t servers[CONNECTIONS_MAX];
    int fds[CONNECTIONS_MAX];
    _Atomic unsigned count; /* connections ever */
    _Atomic bool ends, release;
    _Atomic int trick;
    _Atomic unsigned requests;
    _Atomic int hang_ups; /* so many more requests are answered by closing */
    unsigned char *pool;  /* one object space: extents are offsets into it */
};

struct server {
    struct fake *fake;
    unsigned index;
};

static void send_crumbs(int fd, const unsigned char *data, size_t size)
{
    for (size_t at = 0, n = 1; at < size; at += n, n = n % 13 + 1) {
        n = egm_min_u64(n, size - at);
        /* plenty of crumbs at the ends, the bulk in the middle at once */
        if (at > 300 && size - at > 300) {
            n = size - at - 300;
        }
        if (egm_net_send(fd, data + at, n, 0) < 0) {
            return;
        }
    }
}

static void wait_for_release(struct fake *fake)
{
    while (!fake->release && !fake->ends) {
        egm_sleep_ns(EGM_NS_PER_MS);
    }
}

static int send_drops(struct fake *fake, int fd, const struct egm_buf *buf)
{
    size_t drop = buf->len / 16 + 1;

    for (size_t at = 0; at < buf->len && !fake->ends; at += drop) {
        if (egm_net_send(fd, buf->data + at, egm_min_u64(drop, buf->len - at), 0) < 0) {
            return -1;
        }
        egm_sleep_ns(100 * EGM_NS_PER_MS);
    }
    return 0;
}

static int send_answer(struct fake *fake, int fd, struct egm_buf *buf)
{
    switch ((int)fake->trick) {
    case CRUMBS:
        send_crumbs(fd, buf->data, buf->len);
        return 0;
    case STALL:
        if (egm_net_send(fd, buf->data, buf->len / 2, 0) < 0) {
            return -1;
        }
        wait_for_release(fake);
        return egm_net_send(fd, buf->data + buf->len / 2, buf->len - buf->len / 2, 0);
    case DRIP:
        return send_drops(fake, fd, buf);
    case TAKEN_BACK:
        fake->trick = STALE;
        egm_ignore(egm_net_send(fd, buf->data, buf->len / 2, 0), "it closes anyhow");
        return -1;
    case CLOSE:
        egm_ignore(egm_net_send(fd, buf->data, buf->len / 2, 0), "it closes anyhow");
        return -1;
    default:
        return egm_net_send(fd, buf->data, buf->len, 0);
    }
}

/* The object's bytes [skip, skip + length) on its extents: copies them out of the pool, or into
 * it. */
static void move(struct fake *fake, const struct egm_extent *extents, size_t count, uint64_t skip,
                 unsigned char *data, uint64_t length, bool is_write)
{
    for (size_t i = 0; i < count && length > 0; i++) {
        if (skip >= extents[i].length) {
            skip -= extents[i].length;
            continue;
        }
        uint64_t n = egm_min_u64(length, extents[i].length - skip);
        unsigned char *at = fake->pool + extents[i].offset + skip;
        memcpy(is_write ? at : data, is_write ? data : at, n);
        data += n;
        length -= n;
        skip = 0;
    }
}

static int answer_read(struct fake *fake, int fd, const struct egm_frame *frame,
                       struct egm_cursor cursor, struct egm_buf *buf)
{
    struct egm_read read;
    struct egm_extent extents[EGM_MAX_EXTENTS];
    int trick = fake->trick;

    if (fake->hang_ups > 0) {
        fake->hang_ups--;
        return -1;
    }
    egm_take_read(&cursor, &read);
    for (unsigned i = 0; i < read.extent_count; i++) {
        egm_take_extent(&cursor, &extents[i]);
    }
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    bool is_probe = read.generation == 0;
    if (is_probe && trick != RESTLESS) {
        trick = HONEST;
    }
    egm_buf_clear(buf);
    size_t begin =
        egm_frame_begin(buf, EGM_MSG_READ_REPLY, frame->request + (trick == WRONG_REQUEST));
    uint64_t length = trick == STALE ? 0 : read.length;
    egm_put_read_reply(buf, &(struct egm_read_reply){.status = trick == STALE ? -1 : 0,
                                                     .length = length + (trick == WRONG_LENGTH)});
    egm_frame_end(buf, begin);
    unsigned char *data = egm_buf_extend(buf, length);
    if (is_probe) {
        for (size_t i = 0; i < EGM_SLOT / 8; i++) {
            memcpy(data + i * 8, &(uint64_t){99 + (trick == RESTLESS ? fake->requests : 0)}, 8);
        }
        fake->requests++;
        return egm_net_send(fd, buf->data, buf->len, 0);
    }
    move(fake, extents, read.extent_count, read.skip, data, length, false);
    fake->requests++;
    return send_answer(fake, fd, buf);
}

static int answer_write(struct fake *fake, int fd, const struct egm_frame *frame,
                        struct egm_cursor cursor, struct egm_buf *buf)
{
    struct egm_write write;
    struct egm_extent extents[EGM_MAX_EXTENTS];

    egm_take_write(&cursor, &write);
    for (unsigned i = 0; i < write.extent_count; i++) {
        egm_take_extent(&cursor, &extents[i]);
    }
    ck_assert_int_eq(egm_cursor_end(&cursor), 0);
    ck_assert_uint_le(write.length, EGM_COPY_CHUNK);
    unsigned char *data = egm_alloc(write.length);
    int r = egm_net_recv(fd, data, write.length, 0);
    if (r == 0) {
        move(fake, extents, write.extent_count, write.skip, data, write.length, true);
        egm_buf_clear(buf);
        size_t begin = egm_frame_begin(buf, EGM_MSG_WRITE_REPLY, frame->request);
        egm_put_result(buf, &(struct egm_result){.status = fake->trick == STALE ? -1 : 0});
        egm_frame_end(buf, begin);
        fake->requests++;
        r = send_answer(fake, fd, buf);
    }
    egm_free(data);
    return r;
}

static int answer(struct fake *fake, int fd, const struct egm_frame *frame,
                  const struct egm_buf *in, struct egm_buf *out)
{
    struct egm_cursor cursor = egm_cursor_of(in->data, in->len);
    size_t begin;

    switch (frame->type) {
    case EGM_MSG_HELLO:
        if (fake->trick == MUTE) {
            wait_for_release(fake);
        }
        egm_buf_clear(out);
        begin = egm_frame_begin(out, EGM_MSG_HELLO_REPLY, frame->request);
        egm_put_hello_reply(out, &(struct egm_hello_reply){.version = 1});
        egm_frame_end(out, begin);
        return egm_net_send(fd, out->data, out->len, 0);
    case EGM_MSG_ATTACH:
        egm_buf_clear(out);
        begin = egm_frame_begin(out, EGM_MSG_ATTACH_REPLY, frame->request);
        egm_put_attach_reply(out, &(struct egm_attach_reply){.count = 1});
        egm_put_attached(out, &(struct egm_attached){.segment = 3, .size = POOL_BYTES});
        egm_frame_end(out, begin);
        return egm_net_send(fd, out->data, out->len, 0);
    case EGM_MSG_READ:
        return answer_read(fake, fd, frame, cursor, out);
    case EGM_MSG_WRITE:
        return answer_write(fake, fd, frame, cursor, out);
    default:
        return EGM_E_PROTO;
    }
}

static void *serve(void *arg)
{
    struct server *server = arg;
    struct fake *fake = server->fake;
    int fd = fake->fds[server->index];
    struct egm_frame frame;
    struct egm_buf in;
    struct egm_buf out;

    egm_buf_init(&in, 1 << 20);
    egm_buf_init(&out, 4 << 20);
    while (!fake->ends && egm_frame_recv(fd, &frame, &in, 0) == 0 &&
           answer(fake, fd, &frame, &in, &out) == 0) {
    }
    shutdown(fd, SHUT_RDWR);
    egm_buf_release(&in);
    egm_buf_release(&out);
    egm_free(server);
    return NULL;
}

static void *accept_all(void *arg)
{
    struct fake *fake = arg;

    while (!fake->ends) {
        struct pollfd p = {.fd = fake->listen_fd, .events = POLLIN};
        int fd;
        if (poll(&p, 1, 5) <= 0 || egm_net_accept(fake->listen_fd, &fd) < 0) {
            continue;
        }
        unsigned index = fake->count;
        ck_assert_uint_lt(index, CONNECTIONS_MAX);
        struct server *server = egm_alloc(sizeof(*server));
        *server = (struct server){fake, index};
        fake->fds[index] = fd;
        fake->count = index + 1; /* before the server answers: tests look at it then */
        ck_assert_int_eq(pthread_create(&fake->servers[index], NULL, serve, server), 0);
    }
    return NULL;
}

static struct fake *fake_create(int trick)
{
    struct fake *fake = egm_calloc(1, sizeof(*fake));

    fake->pool = egm_calloc(1, POOL_BYTES);
    fake->trick = trick;
    ck_assert_int_eq(
        egm_net_listen("127.0.0.1:0", &fake->listen_fd, fake->address, sizeof(fake->address), NULL),
        0);
    ck_assert_int_eq(pthread_create(&fake->acceptor, NULL, accept_all, fake), 0);
    return fake;
}

static void cut_all(struct fake *fake)
{
    for (unsigned i = 0; i < fake->count; i++) {
        shutdown(fake->fds[i], SHUT_RDWR);
    }
}

static void fake_destroy(struct fake *fake)
{
    fake->ends = true;
    pthread_join(fake->acceptor, NULL);
    cut_all(fake);
    for (unsigned i = 0; i < fake->count; i++) {
        pthread_join(fake->servers[i], NULL);
        close(fake->fds[i]);
    }
    close(fake->listen_fd);
    egm_free(fake->pool);
    egm_free(fake);
}

static int attach(struct fake *fake, struct egm_import **ret_import)
{
    struct egm_import_options options = {.provider = 1,
                                         .epoch = 2,
                                         .session = 3,
                                         .process = 4,
                                         .cluster = "c",
                                         .address = fake->address,
                                         .deadline_ns = egm_clock_ns() + 3 * EGM_NS_PER_S};

    return egm_mover_tcp.attach(&options, ret_import, NULL);
}

static struct egm_transfer transfer(bool is_write, struct iovec *iov, size_t iov_count,
                                    uint64_t length)
{
    return (struct egm_transfer){.generation = 7,
                                 .segment = 3,
                                 .extent_count = 2,
                                 .extents = {{65536, 1 << 20}, {2 << 20, 4 << 20}},
                                 .iov = iov,
                                 .iov_count = iov_count,
                                 .length = length,
                                 .is_write = is_write};
}

static int run(struct egm_import *import, struct egm_transfer *t, uint64_t ms)
{
    import->ops->transfer(import, t, 1, egm_clock_ns() + ms * EGM_NS_PER_MS);
    return t->status;
}

static unsigned char user[4 << 20], back[4 << 20];

static void fill_user(void)
{
    for (size_t i = 0; i < sizeof(user); i++) {
        user[i] = (unsigned char)(i * 2654435761u >> 11);
    }
}

static void round_trip(int trick)
{
    struct fake *fake = fake_create(trick);
    struct egm_import *import;
    size_t length = 3000001;
    struct iovec in[] = {{user, 1}, {user + 1, 0}, {user + 1, 1300000}, {user + 1300001, 1700000}};
    struct iovec out[] = {{back, 2000000}, {back + 2000000, 7}, {back + 2000007, 1100000}};

    fill_user();
    ck_assert_int_eq(attach(fake, &import), 0);
    struct egm_transfer put = transfer(true, in, 4, length);
    ck_assert_int_eq(run(import, &put, 5000), 0);
    ck_assert_uint_eq(put.checksum, egm_checksum_of(user, length));
    ck_assert_int_eq(memcmp(fake->pool + 65536, user, 1 << 20), 0);
    ck_assert_int_eq(memcmp(fake->pool + (2 << 20), user + (1 << 20), length - (1 << 20)), 0);
    struct egm_transfer get = transfer(false, out, 3, length);
    get.has_checksum = true;
    get.checksum = put.checksum;
    ck_assert_int_eq(run(import, &get, 5000), 0);
    ck_assert_int_eq(memcmp(back, user, length), 0);
    ck_assert_int_eq(back[length], 0);
    get.checksum ^= 1;
    ck_assert_int_eq(run(import, &get, 5000), EGM_E_CHECKSUM);
    get.has_checksum = false;
    ck_assert_int_eq(run(import, &get, 5000), 0);
    ck_assert_uint_eq(fake->count, 1);
    import->ops->detach(import);
    fake_destroy(fake);
}

START_TEST(bytes_come_back_through_other_segments)
{
    round_trip(HONEST);
}
END_TEST

START_TEST(answers_may_come_in_crumbs)
{
    round_trip(CRUMBS);
}
END_TEST

START_TEST(batch_of_many_small_objects_is_pipelined)
{
    struct fake *fake = fake_create(HONEST);
    struct egm_import *import;
    enum {
        COUNT = 300
    };
    static struct egm_transfer puts[COUNT], gets[COUNT];
    static struct iovec in[COUNT], out[COUNT];

    fill_user();
    ck_assert_int_eq(attach(fake, &import), 0);
    for (size_t i = 0; i < COUNT; i++) {
        in[i] = (struct iovec){user + i * 4096, 4000};
        out[i] = (struct iovec){back + i * 4096, 4096};
        puts[i] = transfer(true, &in[i], 1, 4000);
        puts[i].extent_count = 1;
        puts[i].extents[0] = (struct egm_extent){65536 + i * 4096, 4096};
    }
    puts[7].extents[0].length = 0; /* one is broken: it fails alone */
    import->ops->transfer(import, puts, COUNT, egm_clock_ns() + 5 * EGM_NS_PER_S);
    for (size_t i = 0; i < COUNT; i++) {
        ck_assert_int_eq(puts[i].status, i == 7 ? EGM_E_PROTO : 0);
        gets[i] = transfer(false, &out[i], 1, 4000);
        gets[i].extent_count = 1;
        gets[i].extents[0] = (struct egm_extent){65536 + i * 4096, 4096};
        gets[i].has_checksum = i != 7;
        gets[i].checksum = puts[i].checksum;
    }
    import->ops->transfer(import, gets, COUNT, egm_clock_ns() + 5 * EGM_NS_PER_S);
    for (size_t i = 0; i < COUNT; i++) {
        ck_assert_int_eq(gets[i].status, 0);
        ck_assert(i == 7 || memcmp(out[i].iov_base, in[i].iov_base, 4000) == 0);
        ck_assert_int_eq(back[i * 4096 + 4000], 0);
    }
    ck_assert_uint_eq(fake->count, 1);
    import->ops->detach(import);
    fake_destroy(fake);
}
END_TEST

START_TEST(stalled_peer_times_out_and_writes_nothing_later)
{
    struct fake *fake = fake_create(HONEST);
    struct egm_import *import;
    struct iovec out = {back, 2 << 20};

    ck_assert_int_eq(attach(fake, &import), 0);
    memset(fake->pool, 1, POOL_BYTES);
    fake->trick = STALL;
    struct egm_transfer get = transfer(false, &out, 1, 2 << 20);
    uint64_t before = egm_clock_ns();
    ck_assert_int_eq(run(import, &get, 200), EGM_E_TIMEOUT);
    ck_assert_uint_le(egm_clock_ns() - before, 300 * EGM_NS_PER_MS);
    memset(back, 0x5a, sizeof(back)); /* the caller uses its buffer again */
    fake->release = true;
    egm_sleep_ns(200 * EGM_NS_PER_MS);
    for (size_t i = 0; i < sizeof(back); i++) {
        ck_assert_int_eq(back[i], 0x5a);
    }
    /* and the import still works, over another connection */
    fake->trick = HONEST;
    ck_assert_int_eq(run(import, &get, 5000), 0);
    ck_assert_int_eq(back[0], 1);
    import->ops->detach(import);
    fake_destroy(fake);
}
END_TEST

/* Deadline 2 s: patience ends after half of it. */
START_TEST(silent_peer_is_gone_before_the_deadline)
{
    struct fake *fake = fake_create(HONEST);
    struct egm_import *import;
    struct iovec out = {back, 2 << 20};
    static const int tricks[] = {STALL, MUTE};

    ck_assert_int_eq(attach(fake, &import), 0);
    for (size_t i = 0; i < EGM_COUNT_OF(tricks); i++) {
        struct egm_transfer get = transfer(false, &out, 1, 2 << 20);
        fake->trick = tricks[i];
        uint64_t before = egm_clock_ns();
        ck_assert_int_eq(run(import, &get, 2000), EGM_E_PEER_GONE);
        uint64_t took = egm_clock_ns() - before;
        ck_assert_uint_ge(took, 950 * EGM_NS_PER_MS);
        ck_assert_uint_le(took, 1500 * EGM_NS_PER_MS);
    }
    import->ops->detach(import);
    fake_destroy(fake);
}
END_TEST

START_TEST(slow_peer_is_not_to_blame_for_the_deadline)
{
    struct fake *fake = fake_create(HONEST);
    struct egm_import *import;
    struct iovec out = {back, 1 << 20};
    struct egm_transfer get = transfer(false, &out, 1, 1 << 20);

    ck_assert_int_eq(attach(fake, &import), 0);
    fake->trick = DRIP;
    ck_assert_int_eq(run(import, &get, 1000), EGM_E_TIMEOUT);
    ck_assert_int_eq(run(import, &get, 3000), 0); /* takes longer than our patience */
    import->ops->detach(import);
    fake_destroy(fake);
}
END_TEST

START_TEST(memory_taken_back_midway_is_stale)
{
    struct fake *fake = fake_create(HONEST);
    struct egm_import *import;
    struct iovec out = {back, 1 << 20};
    struct egm_transfer get = transfer(false, &out, 1, 1 << 20);

    ck_assert_int_eq(attach(fake, &import), 0);
    fake->trick = TAKEN_BACK;
    ck_assert_int_eq(run(import, &get, 3000), EGM_E_STALE);
    ck_assert_uint_eq(fake->count, 2);
    import->ops->detach(import);
    fake_destroy(fake);
}
END_TEST

static void fails_with(int trick, bool is_write, int code)
{
    struct fake *fake = fake_create(HONEST);
    struct egm_import *import;
    struct iovec iov = {back, 2 << 20};

    ck_assert_int_eq(attach(fake, &import), 0);
    fake->trick = trick;
    struct egm_transfer t = transfer(is_write, &iov, 1, 2 << 20);
    ck_assert_int_eq(run(import, &t, 3000), code);
    import->ops->detach(import);
    fake_destroy(fake);
}

START_TEST(peer_that_closes_or_lies_is_gone)
{
    fails_with(CLOSE, false, EGM_E_PEER_GONE);
    fails_with(CLOSE, true, EGM_E_PEER_GONE);
    fails_with(WRONG_REQUEST, false, EGM_E_PEER_GONE);
    fails_with(WRONG_LENGTH, false, EGM_E_PEER_GONE);
}
END_TEST

START_TEST(refused_generation_is_stale_and_the_connection_stays)
{
    struct fake *fake = fake_create(HONEST);
    struct egm_import *import;
    struct iovec iov = {back, 3 << 20};

    ck_assert_int_eq(attach(fake, &import), 0);
    fake->trick = STALE;
    struct egm_transfer get = transfer(false, &iov, 1, 3 << 20);
    ck_assert_int_eq(run(import, &get, 3000), EGM_E_STALE);
    struct egm_transfer put = transfer(true, &iov, 1, 3 << 20);
    ck_assert_int_eq(run(import, &put, 3000), EGM_E_STALE);
    fake->trick = HONEST;
    ck_assert_int_eq(run(import, &get, 3000), 0);
    ck_assert_uint_eq(fake->count, 1);
    import->ops->detach(import);
    fake_destroy(fake);
}
END_TEST

START_TEST(connection_closed_while_idle_is_reopened_quietly)
{
    struct fake *fake = fake_create(HONEST);
    struct egm_import *import;
    struct iovec iov = {back, 1 << 20};

    ck_assert_int_eq(attach(fake, &import), 0);
    struct egm_transfer get = transfer(false, &iov, 1, 1 << 20);
    cut_all(fake);
    ck_assert_int_eq(run(import, &get, 3000), 0);
    ck_assert(!import->ops->is_lost(import));
    cut_all(fake);
    egm_sleep_ns(20 * EGM_NS_PER_MS);
    ck_assert(import->ops->is_lost(import));
    import->ops->detach(import);
    fake_destroy(fake);
}
END_TEST

START_TEST(connection_that_ends_with_the_first_request_is_replaced_once)
{
    struct fake *fake = fake_create(HONEST);
    struct egm_import *import;
    struct iovec iov = {back, 1 << 20};

    ck_assert_int_eq(attach(fake, &import), 0);
    struct egm_transfer get = transfer(false, &iov, 1, 1 << 20);
    fake->hang_ups = 1; /* as if it had been closed while the request was on its way */
    ck_assert_int_eq(run(import, &get, 3000), 0);
    ck_assert_uint_eq(fake->count, 2);
    fake->hang_ups = 2; /* the new one ends like the old one: that is no accident */
    ck_assert_int_eq(run(import, &get, 3000), EGM_E_PEER_GONE);
    ck_assert_uint_eq(fake->count, 3);
    import->ops->detach(import);
    fake_destroy(fake);
}
END_TEST

static int stop_after_two(void *arg)
{
    return ++*(int *)arg > 2 ? EGM_E_STALE : 0;
}

START_TEST(guard_stops_between_chunks_and_keeps_the_stream_in_step)
{
    struct fake *fake = fake_create(HONEST);
    struct egm_import *import;
    struct iovec iov = {user, 4 << 20};
    int asked = 0;

    memset(user, 9, sizeof(user));
    ck_assert_int_eq(attach(fake, &import), 0);
    struct egm_transfer puts[2] = {transfer(true, &iov, 1, 4 << 20),
                                   transfer(true, &iov, 1, 4 << 20)};
    puts[0].guard = stop_after_two;
    puts[0].guard_arg = &asked;
    puts[1].extents[0] = (struct egm_extent){2 << 20, 4 << 20};
    puts[1].extent_count = 1;
    import->ops->transfer(import, puts, 2, egm_clock_ns() + 3 * EGM_NS_PER_S);
    ck_assert_int_eq(puts[0].status, EGM_E_STALE);
    ck_assert_int_eq(puts[1].status, 0);
    ck_assert_uint_eq(puts[1].checksum, egm_checksum_of(user, 4 << 20));
    ck_assert_uint_eq(fake->count, 1);
    import->ops->detach(import);
    fake_destroy(fake);
}
END_TEST

START_TEST(unstable_nonce_is_no_proof)
{
    struct fake *fake = fake_create(RESTLESS);
    struct egm_import *import;

    ck_assert_int_eq(attach(fake, &import), EGM_E_TRANSFER);
    fake_destroy(fake);
}
END_TEST

struct worker {
    struct egm_import *import;
    unsigned char *data;
    int failures;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    struct iovec iov = {w->data, 100000};

    for (int i = 0; i < 20; i++) {
        struct egm_transfer get = transfer(false, &iov, 1, 100000);
        w->failures += run(w->import, &get, 10000) != 0;
    }
    return NULL;
}

START_TEST(many_threads_share_few_connections)
{
    struct fake *fake = fake_create(HONEST);
    struct egm_import *import;
    struct worker workers[16];
    pthread_t threads[16];

    ck_assert_int_eq(attach(fake, &import), 0);
    for (size_t i = 0; i < 16; i++) {
        workers[i] = (struct worker){import, back + i * 100000, 0};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (size_t i = 0; i < 16; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq(workers[i].failures, 0);
    }
    ck_assert_uint_le(fake->count, EGM_TCP_CONNECTIONS);
    import->ops->detach(import);
    fake_destroy(fake);
}
END_TEST

static void *get_slowly(void *arg)
{
    struct worker *w = arg;
    struct iovec iov = {w->data, 1 << 20};
    struct egm_transfer get = transfer(false, &iov, 1, 1 << 20);

    w->failures = run(w->import, &get, 10000);
    return NULL;
}

START_TEST(interrupted_transfer_ends_at_once)
{
    struct fake *fake = fake_create(HONEST);
    struct egm_import *import;
    struct worker worker = {.data = back};
    pthread_t thread;

    ck_assert_int_eq(attach(fake, &import), 0);
    fake->trick = STALL;
    worker.import = import;
    ck_assert_int_eq(pthread_create(&thread, NULL, get_slowly, &worker), 0);
    egm_sleep_ns(100 * EGM_NS_PER_MS);
    uint64_t before = egm_clock_ns();
    egm_tcp_interrupt(import);
    pthread_join(thread, NULL);
    ck_assert_uint_le(egm_clock_ns() - before, EGM_NS_PER_S);
    ck_assert_int_eq(worker.failures, EGM_E_PEER_GONE);
    import->ops->detach(import);
    fake_destroy(fake);
}
END_TEST

EGM_TEST_MAIN("mover_tcp", bytes_come_back_through_other_segments, answers_may_come_in_crumbs,
              batch_of_many_small_objects_is_pipelined,
              stalled_peer_times_out_and_writes_nothing_later,
              silent_peer_is_gone_before_the_deadline, slow_peer_is_not_to_blame_for_the_deadline,
              memory_taken_back_midway_is_stale, peer_that_closes_or_lies_is_gone,
              refused_generation_is_stale_and_the_connection_stays,
              connection_closed_while_idle_is_reopened_quietly,
              connection_that_ends_with_the_first_request_is_replaced_once,
              guard_stops_between_chunks_and_keeps_the_stream_in_step, unstable_nonce_is_no_proof,
              many_threads_share_few_connections, interrupted_transfer_ends_at_once)
