/* SPDX-License-Identifier: Apache-2.0 */
/* How fast is the master core alone? One scripted provider and one scripted requester drive it
 * with frames, without sockets.
 *
 *   bench_master [objects] [rounds] [small]          defaults 1000000, 15
 *
 * small: tables from malloc instead of the daemon's blocks of huge pages.
 *
 * Times are CPU time of the one thread, so that a busy machine disturbs less. Prints JSON:
 * look-ups per second of EXIST in frames of 8,192 keys over random keys (half of them present),
 * the turns of the loop while one frame of 65,536 keys is served: the longest (at most 300 us) and
 * the median one; bytes of memory per object besides its key (blocks and malloc'd); and what the
 * core takes for a put (PUT_START and PUT_END of 256 keys, records): the mean has the page faults
 * of growth in it, the median over the batches has not. */
#include "core/master.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"

#include "os/pages.h"
#include "wire/keys.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SESSION 77u
#define PROVIDER_PEER 0u
#define REQUESTER_PEER 1u
#define PUT_KEYS 256u
#define KEY_SIZE 150u
#define ROUNDS_MAX 1000u

static struct egm_master *master;
static uint64_t generations[PUT_KEYS];
static uint32_t granted;
static uint64_t answered;
static uint64_t received_ns; /* what the last egm_master_receive took */
static uint64_t put_ns, longest_put_ns;
static uint64_t batch_ns[65536]; /* of the latest batches */
static uint32_t batch_count;
static uint64_t records_sequence; /* of the last RECORDS not yet answered; 0: none */
static struct egm_block_source pages;
static size_t block_bytes;
static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void *arg)
{
    (void)arg;
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *get_block(void *arg, size_t size)
{
    (void)arg;
    void *block = pages.get(pages.arg, size);
    block_bytes += block ? size : 0;
    return block;
}

static void put_block(void *arg, void *block, size_t size)
{
    (void)arg;
    block_bytes -= size;
    pages.put(pages.arg, block, size);
}

static size_t used_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd + block_bytes;
}

/* A key as vLLM makes it: a long shared head, a hash at the end. */
static void make_key(char key[KEY_SIZE + 1], uint64_t number)
{
    uint64_t mixed = number * 0x9e3779b97f4a7c15u;
    int head = snprintf(key, KEY_SIZE + 1,
                        "ab@Meta-Llama-3-8B@store_pp:1@store_format:rank_local@tp_rank:0"
                        "@pcp0@dcp0@pp_rank:0@group:0@");
    for (int at = head; at < (int)KEY_SIZE; at += 16) {
        mixed = mixed * 6364136223846793005u + 1442695040888963407u;
        snprintf(key + at, (size_t)((int)KEY_SIZE + 1 - at), "%016llx", (unsigned long long)mixed);
    }
}

static void on_close(void *arg, uint32_t peer, const char *reason)
{
    (void)arg;
    fprintf(stderr, "the core closed peer %u: %s\n", peer, reason);
    exit(1);
}

static void take_grants(struct egm_cursor *cursor)
{
    struct egm_items_reply head;
    egm_take_items_reply(cursor, &head);
    granted = 0;
    for (uint32_t i = 0; i < head.count; i++) {
        struct egm_entry entry;
        egm_take_entry(cursor, &entry);
        for (uint32_t k = 0; k < entry.replica_count; k++) {
            struct egm_replica replica;
            struct egm_extent extent;
            egm_take_replica(cursor, &replica);
            for (uint32_t e = 0; e < replica.extent_count; e++) {
                egm_take_extent(cursor, &extent);
            }
        }
        if (entry.status == 0) {
            generations[granted++] = entry.generation;
        }
    }
}

static void on_send(void *arg, uint32_t peer, const void *data, size_t size)
{
    (void)arg;
    (void)peer;
    struct egm_frame frame;
    if (egm_frame_parse(data, &frame) < 0) {
        abort();
    }
    struct egm_cursor cursor =
        egm_cursor_of((const uint8_t *)data + EGM_FRAME_HEADER, size - EGM_FRAME_HEADER);
    answered++;
    if (frame.type == EGM_MSG_PUT_START_REPLY) {
        take_grants(&cursor);
    }
    if (frame.type == EGM_MSG_RECORDS) {
        records_sequence = frame.request;
    }
}

/* Hands the frame in `buf` to the core, as the daemon does, and empties buf. */
static void deliver(uint32_t peer, struct egm_buf *buf, size_t begin)
{
    struct egm_frame frame;
    egm_frame_end(buf, begin);
    if (buf->failed || egm_frame_parse(buf->data, &frame) < 0) {
        abort();
    }
    uint8_t *payload = egm_alloc(frame.length + 1);
    memcpy(payload, buf->data + EGM_FRAME_HEADER, frame.length);
    egm_buf_clear(buf);
    uint64_t start = clock_ns();
    egm_master_receive(master, start, peer, &frame, payload);
    received_ns = clock_ns() - start;
}

static void hello(struct egm_buf *buf, uint32_t peer, enum egm_role role)
{
    egm_ignore(egm_master_connected(master, clock_ns(), peer), "first peers of a fresh core");
    size_t begin = egm_frame_begin(buf, EGM_MSG_HELLO, 1);
    egm_put_hello(buf, &(struct egm_hello){.version_min = 1,
                                           .version_max = 1,
                                           .role = (uint8_t)role,
                                           .process = peer,
                                           .cluster = egm_bytes_of("egmstore", 8)});
    deliver(peer, buf, begin);
}

static void join(struct egm_buf *buf, uint64_t size)
{
    hello(buf, PROVIDER_PEER, EGM_ROLE_PROVIDER);
    hello(buf, REQUESTER_PEER, EGM_ROLE_REQUESTER);
    size_t begin = egm_frame_begin(buf, EGM_MSG_MOUNT, 1);
    egm_put_mount(buf, &(struct egm_mount){.provider = 5,
                                           .epoch = 6,
                                           .name = egm_bytes_of("bench:1", 7),
                                           .segment_count = 1});
    egm_put_segment(buf, &(struct egm_segment){.size = size});
    deliver(PROVIDER_PEER, buf, begin);
    begin = egm_frame_begin(buf, EGM_MSG_LEASE_REPLY, 0);
    egm_put_lease_reply(buf, &(struct egm_lease_reply){.term = 1});
    deliver(PROVIDER_PEER, buf, begin);
    begin = egm_frame_begin(buf, EGM_MSG_SESSION, 1);
    egm_put_session(buf, &(struct egm_session){.session = SESSION, .name = egm_bytes_of("r", 1)});
    deliver(REQUESTER_PEER, buf, begin);
    begin = egm_frame_begin(buf, EGM_MSG_SLOT_CHANGE, 1);
    egm_put_slot_change(
        buf,
        &(struct egm_slot_change){
            .provider = 5, .epoch = 6, .session = SESSION, .kind = EGM_IMPORT_MAP, .state = 1});
    deliver(PROVIDER_PEER, buf, begin);
}

static void count_put(void)
{
    put_ns += received_ns;
    longest_put_ns = egm_max_u64(longest_put_ns, received_ns);
}

static void put_batch(struct egm_buf *buf, uint64_t first)
{
    uint64_t before_ns = put_ns;
    static char keys[PUT_KEYS][KEY_SIZE + 1];
    size_t begin = egm_frame_begin(buf, EGM_MSG_PUT_START, 1);
    egm_put_put_start(buf, &(struct egm_put_start){
                               .session = SESSION, .deadline_ms = 1000, .key_count = PUT_KEYS});
    for (uint32_t i = 0; i < PUT_KEYS; i++) {
        egm_put_want(buf, &(struct egm_want){.size = 4096});
    }
    struct egm_key_writer writer = {0};
    for (uint32_t i = 0; i < PUT_KEYS; i++) {
        make_key(keys[i], first + i);
        egm_ignore(egm_put_key(&writer, buf, keys[i], KEY_SIZE), "a well-formed key");
    }
    deliver(REQUESTER_PEER, buf, begin);
    count_put();
    if (granted != PUT_KEYS) {
        fprintf(stderr, "only %u of %u keys were granted\n", granted, PUT_KEYS);
        exit(1);
    }
    begin = egm_frame_begin(buf, EGM_MSG_PUT_END, 2);
    egm_put_put_end(buf, &(struct egm_put_end){.session = SESSION, .count = granted});
    for (uint32_t i = 0; i < granted; i++) {
        egm_put_ended(buf, &(struct egm_ended){.generation = generations[i]});
    }
    deliver(REQUESTER_PEER, buf, begin);
    count_put();
    uint64_t start = clock_ns();
    egm_master_flush(master, start);
    put_ns += clock_ns() - start;
    if (records_sequence) {
        begin = egm_frame_begin(buf, EGM_MSG_RECORDS_REPLY, records_sequence);
        egm_put_records_reply(buf, &(struct egm_records_reply){.sequence = records_sequence});
        records_sequence = 0;
        deliver(PROVIDER_PEER, buf, begin);
        put_ns += received_ns;
    }
    batch_ns[batch_count++ % EGM_COUNT_OF(batch_ns)] = put_ns - before_ns;
    begin = egm_frame_begin(buf, EGM_MSG_LEASE_REPLY, 0);
    egm_put_lease_reply(buf, &(struct egm_lease_reply){.term = 1});
    deliver(PROVIDER_PEER, buf, begin);
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* One EXIST of `count` random keys; returns its seconds, the longest turn and the median one. */
static double exist(struct egm_buf *buf, uint64_t objects, uint32_t count, uint64_t *ret_longest_ns,
                    uint64_t *ret_median_ns)
{
    static uint64_t turns[1024];
    uint32_t turn_count = 0;
    char key[2][KEY_SIZE + 1];
    size_t begin = egm_frame_begin(buf, EGM_MSG_EXIST, 1);
    egm_put_exist(buf, &(struct egm_exist){.session = SESSION, .key_count = count});
    struct egm_key_writer writer = {0};
    for (uint32_t i = 0; i < count; i++) {
        make_key(key[i & 1], next_random(NULL) % (2 * objects));
        egm_ignore(egm_put_key(&writer, buf, key[i & 1], KEY_SIZE), "a well-formed key");
    }
    uint64_t before = answered;
    deliver(REQUESTER_PEER, buf, begin);
    uint64_t sum = received_ns;
    turns[turn_count++] = received_ns;
    while (answered == before) {
        uint64_t start = clock_ns();
        egm_master_run(master, start);
        uint64_t turn = clock_ns() - start;
        turns[turn_count++ % EGM_COUNT_OF(turns)] = turn;
        sum += turn;
    }
    turn_count = (uint32_t)egm_min_u64(turn_count, EGM_COUNT_OF(turns));
    qsort(turns, turn_count, sizeof turns[0], by_number);
    *ret_longest_ns = turns[turn_count - 1];
    *ret_median_ns = turns[turn_count / 2];
    return (double)sum * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_put_ns(void)
{
    uint32_t count = (uint32_t)egm_min_u64(batch_count, EGM_COUNT_OF(batch_ns));
    qsort(batch_ns, count, sizeof batch_ns[0], by_number);
    return (double)batch_ns[count / 2] / PUT_KEYS;
}

/* The core, with the memory that a master gives it. */
static bool start_core(struct egm_pages *helper, bool is_small)
{
    struct egm_master_options options = egm_master_defaults();
    options.instance = 1;
    options.segment_lease_ms = 3600000;
    options.session_ttl_ms = 3600000;
    struct egm_master_io io = {.send = on_send, .close = on_close, .random = next_random};
    pages = egm_pages_source(helper);
    /* a master has its first blocks ready before anybody has found it */
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    if (!is_small) {
        io.blocks = (struct egm_block_source){.get = get_block, .put = put_block};
    }
    return egm_master_create(&options, &io, &master) == 0;
}

struct looked_up {
    double seconds; /* median of a frame of 8,192 keys */
    double worst_us, mean_us, median_us,
        median_turn_us; /* of frames of 65,536 keys: longest turns */
};

static struct looked_up look_up(struct egm_buf *buf, uint64_t objects, uint32_t rounds)
{
    static double times[ROUNDS_MAX];
    static uint64_t longest_turns[ROUNDS_MAX];
    uint64_t longest;
    uint64_t median = 0;
    uint64_t worst = 0;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < rounds; i++) {
        times[i] = exist(buf, objects, 8192, &longest, &median);
    }
    qsort(times, rounds, sizeof times[0], by_value);
    for (uint32_t i = 0; i < rounds; i++) {
        (void)exist(buf, objects, 65536, &longest_turns[i], &median);
        worst = egm_max_u64(worst, longest_turns[i]);
        sum += longest_turns[i];
    }
    qsort(longest_turns, rounds, sizeof longest_turns[0], by_number);
    return (struct looked_up){.seconds = times[rounds / 2],
                              .worst_us = (double)worst / 1000,
                              .mean_us = (double)sum / rounds / 1000,
                              .median_us = (double)longest_turns[rounds / 2] / 1000,
                              .median_turn_us = (double)median / 1000};
}

int main(int argc, char **argv)
{
    uint64_t objects = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
    uint32_t rounds = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 15;
    objects = egm_align_down(egm_max_u64(objects, PUT_KEYS), PUT_KEYS);
    rounds = rounds == 0 || rounds > ROUNDS_MAX ? 15 : rounds;
    struct egm_pages *helper;
    if (egm_pages_create(&helper) < 0 ||
        !start_core(helper, argc > 3 && strcmp(argv[3], "small") == 0)) {
        return 1;
    }
    struct egm_buf buf;
    egm_buf_init(&buf, 64u << 20);
    join(&buf, (objects / 16 + 1024) * 65536 * 2);
    size_t before = used_bytes();
    for (uint64_t first = 0; first < objects; first += PUT_KEYS) {
        put_batch(&buf, first);
    }
    double per_object = (double)(used_bytes() - before) / (double)objects;
    struct looked_up looked = look_up(&buf, objects, rounds);
    printf("{\"objects\": %llu, \"lookups_per_s\": %.0f, \"ns_per_key\": %.0f, "
           "\"longest_turn_us_worst\": %.0f, "
           "\"longest_turn_us_mean\": %.0f, \"longest_turn_us_median\": %.0f, "
           "\"median_turn_us\": %.0f, \"bytes_per_object_without_key\": %.0f, "
           "\"put_ns_mean\": %.0f, \"put_ns_median\": %.0f, \"longest_put_frame_us\": %.0f}\n",
           (unsigned long long)objects, 8192 / looked.seconds, looked.seconds / 8192 * 1e9,
           looked.worst_us, looked.mean_us, looked.median_us, looked.median_turn_us,
           per_object - KEY_SIZE, (double)put_ns / (double)objects, median_put_ns(),
           (double)longest_put_ns / 1000);
    egm_buf_release(&buf);
    egm_master_destroy(master);
    egm_pages_destroy(helper);
    return 0;
}
