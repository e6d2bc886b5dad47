/* SPDX-License-Identifier: Apache-2.0 */
/* The map mover against a provider of one page of code: a memfd pool and a fence file, served over
 * a Unix socket by a thread. What the provider does wrong is a field of struct fake. */
#include "mover/checksum.h"
#include "mover/copy_team.h"
#include "mover/map/child.h"
#include "mover/map/map.h"
#include "mover/tcp/frame_io.h"
#include "os/clock.h"
#include "os/net.h"
#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define POOL_BYTES (UINT64_C(4) << 20)
#define PROVIDER UINT64_C(0x1234)
#define EPOCH UINT64_C(0x77)
#define NONCE UINT64_C(0x0123456789abcdef)
#define GENERATION ((UINT64_C(1) << 44) + 5)

struct fake {
    char address[128];
    int listen_fd, pool_fd, fence_fd;
    int peer_fd; /* the importer's connection; valid once the thread has ended */
    unsigned char *pool;
    _Atomic uint64_t *fence;
    size_t fence_bytes, slot_word;
    pthread_t thread;

    int status;         /* answered to ATTACH */
    unsigned announced; /* segments in the answer; fds are always for one */
    bool sends_no_fds;
    bool splits; /* the answer goes byte by byte, fds with the second */
};

static int sealed_file(uint64_t size, unsigned seals)
{
    int fd = memfd_create("test-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)size), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void *map_fd(int fd, size_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    ck_assert_ptr_ne(at, MAP_FAILED);
    return at;
}

static void fake_init(struct fake *fake)
{
    *fake = (struct fake){.announced = 1, .peer_fd = -1};
    egm_ignore(
        snprintf(fake->address, sizeof(fake->address), "unix:/tmp/egm-test-map-%d.sock", getpid()),
        "fits");
    ck_assert_int_eq(egm_net_listen(fake->address, &fake->listen_fd, NULL, 0, NULL), 0);
    fake->pool_fd = sealed_file(POOL_BYTES, F_SEAL_SHRINK | F_SEAL_GROW);
    fake->fence_bytes = egm_fence_bytes(POOL_BYTES, &fake->slot_word);
    fake->fence_fd = sealed_file(fake->fence_bytes, F_SEAL_SHRINK | F_SEAL_GROW);
    fake->pool = map_fd(fake->pool_fd, POOL_BYTES);
    fake->fence = map_fd(fake->fence_fd, fake->fence_bytes);
    const uint64_t header[] = {EGM_FENCE_MAGIC, 1, PROVIDER, EPOCH, 3, POOL_BYTES, 0, NONCE};
    for (size_t i = 0; i < EGM_COUNT_OF(header); i++) {
        fake->fence[i] = header[i];
    }
    for (size_t i = 0; i < EGM_SLOT / 8; i++) {
        memcpy(fake->pool + i * 8, &(uint64_t){NONCE}, 8);
    }
}

static void fake_release(struct fake *fake)
{
    munmap(fake->pool, POOL_BYTES);
    munmap((void *)(uintptr_t)fake->fence, fake->fence_bytes);
    close(fake->pool_fd);
    close(fake->fence_fd);
    close(fake->listen_fd);
    if (fake->peer_fd >= 0) {
        close(fake->peer_fd);
    }
    unlink(fake->address + 5);
}

static void send_reply(struct fake *fake, int fd, struct egm_buf *buf, uint64_t deadline_ns)
{
    const int fds[] = {fake->pool_fd, fake->fence_fd};

    if (fake->sends_no_fds) {
        egm_ignore(egm_net_send(fd, buf->data, buf->len, deadline_ns), "the test notices");
    } else if (!fake->splits) {
        egm_ignore(egm_net_send_fds(fd, buf->data, buf->len, fds, 2, deadline_ns),
                   "the test notices");
    } else {
        for (size_t i = 0; i < buf->len; i++) {
            size_t count = i == 1 || i == buf->len - 1 ? 1 : 0;
            egm_ignore(
                egm_net_send_fds(fd, buf->data + i, 1, &fds[i == 1 ? 0 : 1], count, deadline_ns),
                "as above");
        }
    }
}

static void *serve(void *arg)
{
    struct fake *fake = arg;
    uint64_t deadline_ns = egm_clock_ns() + 5 * EGM_NS_PER_S;
    struct egm_frame frame;
    struct egm_buf buf;
    int fd;

    egm_buf_init(&buf, 65536);
    while (egm_net_accept(fake->listen_fd, &fd) == -EAGAIN) {
        egm_sleep_ns(EGM_NS_PER_MS);
    }
    fake->peer_fd = fd;
    if (egm_frame_recv(fd, &frame, &buf, deadline_ns) == 0) {
        egm_buf_clear(&buf);
        size_t begin = egm_frame_begin(&buf, EGM_MSG_HELLO_REPLY, frame.request);
        egm_put_hello_reply(&buf, &(struct egm_hello_reply){.version = 1, .instance = 1});
        egm_frame_end(&buf, begin);
        egm_ignore(egm_frame_send(fd, &buf, deadline_ns), "the test notices");
    }
    if (egm_frame_recv(fd, &frame, &buf, deadline_ns) == 0) {
        egm_buf_clear(&buf);
        size_t begin = egm_frame_begin(&buf, EGM_MSG_ATTACH_REPLY, frame.request);
        egm_put_attach_reply(
            &buf, &(struct egm_attach_reply){.status = fake->status, .count = fake->announced});
        for (unsigned i = 0; i < fake->announced; i++) {
            egm_put_attached(&buf, &(struct egm_attached){.segment = 3,
                                                          .size = POOL_BYTES,
                                                          .fence_size = fake->fence_bytes});
        }
        egm_frame_end(&buf, begin);
        send_reply(fake, fd, &buf, deadline_ns);
    }
    egm_buf_release(&buf);
    return NULL;
}

static int attach(struct fake *fake, struct egm_import **ret_import)
{
    struct egm_detail detail = {0};
    struct egm_import_options options = {.provider = PROVIDER,
                                         .epoch = EPOCH,
                                         .session = 1,
                                         .process = 1,
                                         .cluster = "c",
                                         .address = fake->address,
                                         .deadline_ns = egm_clock_ns() + 3 * EGM_NS_PER_S};

    ck_assert_int_eq(pthread_create(&fake->thread, NULL, serve, fake), 0);
    int r = egm_mover_map.attach(&options, ret_import, &detail);
    pthread_join(fake->thread, NULL);
    if (r < 0) {
        ck_assert_int_eq(detail.code, r);
        ck_assert_uint_gt(strlen(detail.text), 10);
    }
    return r;
}

static void must_refuse(struct fake *fake, int code)
{
    struct egm_import *import = NULL;

    ck_assert_int_eq(attach(fake, &import), code);
    ck_assert_ptr_null(import);
    fake_release(fake);
}

static struct egm_transfer transfer(bool is_write, struct iovec *iov, size_t iov_count,
                                    uint64_t length)
{
    return (struct egm_transfer){.generation = GENERATION,
                                 .segment = 3,
                                 .extent_count = 2,
                                 .extents = {{65536, 65536}, {262144, 131072}},
                                 .iov = iov,
                                 .iov_count = iov_count,
                                 .length = length,
                                 .is_write = is_write,
                                 .has_checksum = true};
}

static int run(struct egm_import *import, struct egm_transfer *t)
{
    import->ops->transfer(import, t, 1, egm_clock_ns() + 5 * EGM_NS_PER_S);
    return t->status;
}

static unsigned char user[400000], back[400000];

static void fill_user(void)
{
    for (size_t i = 0; i < sizeof(user); i++) {
        user[i] = (unsigned char)(i * 2654435761u >> 11);
    }
}

START_TEST(bytes_come_back_through_other_segments)
{
    struct fake fake;
    struct egm_import *import;
    struct iovec in[] = {{user, 100}, {user + 100, 0}, {user + 100, 99900}};
    struct iovec out[] = {
        {back, 1}, {back + 1, 77777}, {back + 77778, 100000}}; /* more room than needed */

    fake_init(&fake);
    fill_user();
    ck_assert_int_eq(attach(&fake, &import), 0);
    ck_assert(!import->ops->is_lost(import));
    struct egm_transfer put = transfer(true, in, 3, 100000);
    ck_assert_int_eq(run(import, &put), 0);
    ck_assert_int_eq(memcmp(fake.pool + 65536, user, 65536), 0);
    ck_assert_int_eq(memcmp(fake.pool + 262144, user + 65536, 100000 - 65536), 0);
    struct egm_transfer get = transfer(false, out, 3, 100000);
    get.checksum = put.checksum;
    ck_assert_int_eq(run(import, &get), 0);
    ck_assert_int_eq(memcmp(back, user, 100000), 0);
    ck_assert_int_eq(back[100000], 0); /* not one byte more */
    get.checksum ^= 1;
    ck_assert_int_eq(run(import, &get), EGM_E_CHECKSUM);
    import->ops->detach(import);
    fake_release(&fake);
}
END_TEST

START_TEST(raised_fence_makes_reads_and_writes_stale)
{
    struct fake fake;
    struct egm_import *import;
    struct iovec iov = {user, 100000};
    size_t granules = EGM_FENCE_HEADER_BYTES / 8;

    fake_init(&fake);
    ck_assert_int_eq(attach(&fake, &import), 0);
    struct egm_transfer put = transfer(true, &iov, 1, 100000);
    struct egm_transfer get = transfer(false, &iov, 1, 100000);
    get.has_checksum = false;
    fake.fence[granules + 4] = GENERATION - 1; /* the one before is dead: we are not */
    ck_assert_int_eq(run(import, &put), 0);
    ck_assert_int_eq(run(import, &get), 0);
    fake.fence[granules + 4] = GENERATION; /* of the second extent */
    memset(fake.pool + 65536, 0x3c, 65536);
    fill_user();
    ck_assert_int_eq(run(import, &put), EGM_E_STALE);
    ck_assert_int_eq(fake.pool[65536 + 1], 0x3c); /* not even begun */
    ck_assert_int_eq(run(import, &get), EGM_E_STALE);
    fake.fence[granules + 4] = 0;
    fake.fence[EGM_FENCE_W_FLOOR] = GENERATION;
    ck_assert_int_eq(run(import, &get), EGM_E_STALE);
    fake.fence[EGM_FENCE_W_FLOOR] = 0;
    fake.fence[EGM_FENCE_W_EPOCH] = EPOCH + 1;
    ck_assert_int_eq(run(import, &get), EGM_E_STALE);
    import->ops->detach(import);
    fake_release(&fake);
}
END_TEST

START_TEST(small_extents_have_fences_of_their_own)
{
    struct fake fake;
    struct egm_import *import;
    struct iovec iov = {user, 4096};

    fake_init(&fake);
    ck_assert_int_eq(attach(&fake, &import), 0);
    struct egm_transfer get = transfer(false, &iov, 1, 4096);
    get.has_checksum = false;
    get.extent_count = 1;
    get.extents[0] = (struct egm_extent){65536 + 3 * 4096, 4096};
    fake.fence[fake.slot_word + 16 + 2] = GENERATION; /* the neighbour */
    ck_assert_int_eq(run(import, &get), 0);
    fake.fence[fake.slot_word + 16 + 3] = GENERATION;
    ck_assert_int_eq(run(import, &get), EGM_E_STALE);
    import->ops->detach(import);
    fake_release(&fake);
}
END_TEST

static int count_asks(void *arg)
{
    atomic_fetch_add((_Atomic unsigned *)arg, 1);
    return 0;
}

static int stop_after_one(void *arg)
{
    return ++*(int *)arg > 1 ? EGM_E_STALE : 0;
}

START_TEST(guard_stops_a_write_within_a_chunk)
{
    struct fake fake;
    struct egm_import *import;
    unsigned char *big = egm_alloc(2 << 20);
    struct iovec iov = {big, 2 << 20};
    int asked = 0;

    fake_init(&fake);
    memset(big, 7, 2 << 20);
    ck_assert_int_eq(attach(&fake, &import), 0);
    struct egm_transfer put = {.generation = GENERATION,
                               .segment = 3,
                               .extent_count = 1,
                               .extents = {{65536, 2 << 20}},
                               .iov = &iov,
                               .iov_count = 1,
                               .length = 2 << 20,
                               .is_write = true,
                               .guard = stop_after_one,
                               .guard_arg = &asked};
    ck_assert_int_eq(run(import, &put), EGM_E_STALE);
    ck_assert_int_eq(fake.pool[65536 + EGM_COPY_CHUNK - 1], 7);
    ck_assert_int_eq(fake.pool[65536 + EGM_COPY_CHUNK], 0);
    import->ops->detach(import);
    fake_release(&fake);
    egm_free(big);
}
END_TEST

/* A get of one extent at `offset`, checked, whose guard counts. */
static struct egm_transfer whole_get(const struct fake *fake, uint64_t offset,
                                     const struct iovec *iov, void *asked)
{
    return (struct egm_transfer){.generation = GENERATION,
                                 .segment = 3,
                                 .extent_count = 1,
                                 .extents = {{offset, iov->iov_len}},
                                 .iov = iov,
                                 .iov_count = 1,
                                 .length = iov->iov_len,
                                 .has_checksum = true,
                                 .checksum = egm_checksum_of(fake->pool + offset, iov->iov_len),
                                 .guard = count_asks,
                                 .guard_arg = asked};
}

/* Above EGM_COPY_TEAM_LEAST_BYTES, so that helpers take part where there are CPUs for them. */
START_TEST(large_batch_is_whole_and_each_thread_sees_the_fence)
{
    enum {
        COUNT = 6,
        SIZE = 2 << 20
    };
    static _Atomic unsigned asked;
    struct fake fake;
    struct egm_import *import;
    struct egm_transfer batch[COUNT];
    struct iovec iov[COUNT];
    unsigned char *big = egm_calloc(COUNT, SIZE);
    char folder[] = "/tmp/egm-test-map-XXXXXX";
    char path[128];

    fake_init(&fake);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    setenv("EGMSTORE_RUNTIME_DIR", folder, 1);
    setenv("EGMSTORE_COPY_THREADS", "2", 1);
    ck_assert_int_eq(egm_copy_team_configure(), 0);
    for (size_t i = 65536; i < POOL_BYTES; i += 8) {
        memcpy(fake.pool + i, &(uint64_t){i * 0x9e3779b97f4a7c15u}, 8);
    }
    ck_assert_int_eq(attach(&fake, &import), 0);
    for (size_t i = 0; i < COUNT; i++) {
        iov[i] = (struct iovec){big + i * SIZE, SIZE};
        batch[i] = whole_get(&fake, 65536 * (i + 1), &iov[i], &asked);
    }
    fake.fence[EGM_FENCE_HEADER_BYTES / 8 + 2] = GENERATION; /* of the second object */
    batch[4].checksum ^= 1;
    for (int round = 0; round < 10; round++) {
        import->ops->transfer(import, batch, COUNT, egm_clock_ns() + 20 * EGM_NS_PER_S);
        for (size_t i = 0; i < COUNT; i++) {
            int wanted = i == 1 ? EGM_E_STALE : i == 4 ? EGM_E_CHECKSUM : 0;
            ck_assert_int_eq(batch[i].status, wanted);
            ck_assert_int_eq(memcmp(big + i * SIZE, fake.pool + 65536 * (i + 1), SIZE), 0);
        }
    }
    ck_assert_uint_eq(asked, 10 * COUNT * (SIZE / EGM_COPY_CHUNK));
    unsigned char kept = fake.pool[65536];
    fake.fence[EGM_FENCE_W_FLOOR] = GENERATION;
    memset(big, 0x3c, COUNT * (size_t)SIZE);
    for (size_t i = 0; i < COUNT; i++) {
        batch[i].is_write = true;
    }
    import->ops->transfer(import, batch, COUNT, egm_clock_ns() + 20 * EGM_NS_PER_S);
    for (size_t i = 0; i < COUNT; i++) {
        ck_assert_int_eq(batch[i].status, EGM_E_STALE);
    }
    ck_assert_int_eq(fake.pool[65536], kept); /* not even begun */
    import->ops->detach(import);
    fake_release(&fake);
    egm_free(big);
    egm_ignore(snprintf(path, sizeof(path), "%s/copy-threads", folder), "fits");
    unlink(path);
    rmdir(folder);
}
END_TEST

START_TEST(extents_outside_the_pool_are_refused)
{
    struct fake fake;
    struct egm_import *import;
    struct iovec iov = {user, 4096};
    const struct egm_extent bad[] = {{0, 65536},
                                     {4096, 4096},
                                     {POOL_BYTES, 4096},
                                     {POOL_BYTES - 4096, 8192},
                                     {UINT64_MAX - 4095, 8192},
                                     {65536 + 4096, 65536},
                                     {65536, 0},
                                     {65536, 100}};

    fake_init(&fake);
    ck_assert_int_eq(attach(&fake, &import), 0);
    for (size_t i = 0; i < EGM_COUNT_OF(bad); i++) {
        struct egm_transfer put = transfer(true, &iov, 1, 4096);
        put.extent_count = 1;
        put.extents[0] = bad[i];
        ck_assert_int_eq(run(import, &put), EGM_E_PROTO);
    }
    struct egm_transfer put = transfer(true, &iov, 1, 4096);
    put.segment = 4;
    ck_assert_int_eq(run(import, &put), EGM_E_STALE);
    import->ops->detach(import);
    fake_release(&fake);
}
END_TEST

START_TEST(files_may_come_apart)
{
    struct fake fake;
    struct egm_import *import;

    fake_init(&fake);
    fake.splits = true;
    ck_assert_int_eq(attach(&fake, &import), 0);
    import->ops->detach(import);
    fake_release(&fake);
}
END_TEST

START_TEST(truncated_pool_is_not_mapped)
{
    struct fake fake;

    fake_init(&fake);
    close(fake.pool_fd);
    fake.pool_fd = sealed_file(POOL_BYTES - 4096, F_SEAL_SHRINK);
    must_refuse(&fake, EGM_E_PROTO);
}
END_TEST

START_TEST(pool_that_could_be_cut_later_is_not_mapped)
{
    struct fake fake;

    fake_init(&fake);
    close(fake.pool_fd);
    fake.pool_fd = sealed_file(POOL_BYTES, F_SEAL_GROW);
    must_refuse(&fake, EGM_E_PROTO);
}
END_TEST

START_TEST(short_fence_is_not_mapped)
{
    struct fake fake;

    fake_init(&fake);
    close(fake.fence_fd);
    fake.fence_fd = sealed_file(fake.fence_bytes - 4096, 0);
    must_refuse(&fake, EGM_E_PROTO);
}
END_TEST

START_TEST(foreign_fence_headers_are_refused)
{
    for (int word = EGM_FENCE_W_MAGIC; word <= EGM_FENCE_W_SIZE; word++) {
        struct fake fake;
        fake_init(&fake);
        fake.fence[word]++;
        must_refuse(&fake, EGM_E_PROTO);
    }
}
END_TEST

START_TEST(pool_without_the_nonce_is_refused)
{
    struct fake fake;

    fake_init(&fake);
    fake.pool[4095] ^= 1;
    must_refuse(&fake, EGM_E_TRANSFER);
}
END_TEST

START_TEST(refusals_and_missing_files_leave_nothing_behind)
{
    struct fake fake;

    fake_init(&fake);
    fake.status = -8;
    fake.announced = 0;
    must_refuse(&fake, EGM_E_LEASED);
    fake_init(&fake);
    fake.sends_no_fds = true;
    must_refuse(&fake, EGM_E_PROTO);
    fake_init(&fake);
    fake.announced = 2;
    must_refuse(&fake, EGM_E_PROTO);
}
END_TEST

START_TEST(closed_connection_or_detach_means_lost)
{
    struct fake fake;
    struct egm_import *import;
    struct egm_buf buf;

    fake_init(&fake);
    ck_assert_int_eq(attach(&fake, &import), 0);
    egm_buf_init(&buf, 256);
    size_t begin = egm_frame_begin(&buf, EGM_MSG_DETACH, 0);
    egm_put_detach(&buf, &(struct egm_detach){.provider = PROVIDER, .epoch = EPOCH});
    egm_frame_end(&buf, begin);
    ck_assert_int_eq(egm_frame_send(fake.peer_fd, &buf, 0), 0);
    ck_assert(import->ops->is_lost(import));
    egm_buf_release(&buf);
    import->ops->detach(import);
    /* the provider sees it */
    char byte;
    ck_assert_int_eq(egm_net_recv(fake.peer_fd, &byte, 1, egm_clock_ns() + EGM_NS_PER_S),
                     EGM_E_PEER_GONE);
    fake_release(&fake);
}
END_TEST

static bool is_mapped_here(const void *at)
{
    return msync((void *)(uintptr_t)at, 1, MS_ASYNC) == 0;
}

START_TEST(child_inherits_neither_mapping_nor_connection)
{
    struct fake fake;
    struct egm_import *import;
    int status;

    fake_init(&fake);
    ck_assert_int_eq(attach(&fake, &import), 0);
    struct egm_map_import *map = egm_container_of(import, struct egm_map_import, base);
    pid_t child = fork();
    if (child == 0) {
        bool is_clean = !is_mapped_here(map->segments[0].pool) &&
                        !is_mapped_here((const void *)map->segments[0].fence) &&
                        fcntl(map->fd, F_GETFD) < 0;
        _exit(is_clean ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert(!import->ops->is_lost(import));
    import->ops->detach(import);
    fake_release(&fake);
}
END_TEST

static unsigned blocks_populated(const struct egm_import *import)
{
    const struct egm_map_import *map = egm_container_of(import, struct egm_map_import, base);
    unsigned count = 0;

    for (uint64_t i = 0; i < egm_div_ceil_u64(map->segments[0].block_count, 64); i++) {
        count += (unsigned)__builtin_popcountll(map->segments[0].populated[i]);
    }
    return count;
}

START_TEST(pages_are_populated_no_further_than_the_copy_gets)
{
    struct fake fake;
    struct egm_import *import;
    unsigned char *big = egm_calloc(1, 2 << 20);
    struct iovec iov = {big, 2 << 20};
    int asked = 0;

    fake_init(&fake);
    ck_assert_int_eq(attach(&fake, &import), 0);
    unsigned before = blocks_populated(import);
    struct egm_transfer put = {.generation = GENERATION,
                               .segment = 3,
                               .extent_count = 2,
                               .extents = {{65536, 1 << 20}, {2 << 20, 1 << 20}},
                               .iov = &iov,
                               .iov_count = 1,
                               .length = 2 << 20,
                               .is_write = true,
                               .guard_arg = &asked};
    import->ops->transfer(import, &put, 1, /*deadline_ns=*/1);
    ck_assert_int_eq(put.status, EGM_E_TIMEOUT);
    ck_assert_uint_eq(blocks_populated(import), before);
    put.guard = stop_after_one;
    ck_assert_int_eq(run(import, &put), EGM_E_STALE);
    ck_assert_uint_eq(blocks_populated(import), before + 1);
    put.guard = NULL;
    ck_assert_int_eq(run(import, &put), 0);
    ck_assert_uint_eq(blocks_populated(import), before + 2);
    import->ops->detach(import);
    fake_release(&fake);
    egm_free(big);
}
END_TEST

START_TEST(background_population_ends)
{
    struct fake fake;
    struct egm_import *import;
    size_t total = 0;

    fake_init(&fake);
    ck_assert_int_eq(attach(&fake, &import), 0);
    for (size_t n; (n = egm_map_populate_more(import, 1)) > 0;) {
        total += n;
    }
    ck_assert_uint_eq(total, POOL_BYTES);
    import->ops->detach(import);
    fake_release(&fake);
}
END_TEST

EGM_TEST_MAIN("mover_map", bytes_come_back_through_other_segments,
              raised_fence_makes_reads_and_writes_stale, small_extents_have_fences_of_their_own,
              guard_stops_a_write_within_a_chunk,
              large_batch_is_whole_and_each_thread_sees_the_fence,
              extents_outside_the_pool_are_refused, files_may_come_apart,
              truncated_pool_is_not_mapped, pool_that_could_be_cut_later_is_not_mapped,
              short_fence_is_not_mapped, foreign_fence_headers_are_refused,
              pool_without_the_nonce_is_refused, refusals_and_missing_files_leave_nothing_behind,
              closed_connection_or_detach_means_lost, child_inherits_neither_mapping_nor_connection,
              pages_are_populated_no_further_than_the_copy_gets, background_population_ends)
