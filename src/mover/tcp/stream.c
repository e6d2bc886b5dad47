/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/limits.h"

#include "egmstore/errors.h"
#include "mover/checksum.h"
#include "mover/tcp/tcp.h"
#include "os/clock.h"
#include "os/net.h"
#include "wire/status.h"

#include <string.h>

/* Replies have one size each: header and head record (messages.def). */
#define READ_REPLY_BYTES (EGM_FRAME_HEADER + 12u)
#define WRITE_REPLY_BYTES (EGM_FRAME_HEADER + 4u)
/* A request with 16 extents: header 24, head 29, extents 256. */
#define REQUEST_BYTES 320u
/* Pieces of one send or receive. */
#define PIECES 64u

#define PATIENCE_LEAST_NS (250 * EGM_NS_PER_MS)
#define PATIENCE_MOST_NS (5 * EGM_NS_PER_S)
/* Patience ends after so many silent slices in a row. Slices are counted, not time: a process that
 * was stopped itself has lost at most one of them. */
#define SLICES 4u

/* A place in the caller's pieces. */
struct place {
    const struct iovec *iov;
    size_t count;
    size_t index;
    size_t offset; /* in iov[index] */
    uint64_t at;   /* in the object */
};

struct chunk {
    size_t index; /* of the transfer */
    uint64_t skip;
    uint64_t length;
    uint64_t request;
};

struct stream {
    struct egm_tcp_connection *connection;
    struct egm_transfer *transfers;
    size_t count;
    uint64_t deadline_ns;
    uint64_t patience_ns;

    /* what is to be asked next */
    size_t next_index;
    uint64_t next_skip;

    /* asked and not answered: a ring */
    struct chunk ring[EGM_TCP_DEPTH];
    unsigned first;
    unsigned used;
    uint64_t used_bytes;

    /* the one transfer whose bytes are under way: of the sender for writes, of the receiver for
     * reads */
    struct place user;
    size_t user_index; /* SIZE_MAX: none */
    struct egm_checksum checksum;

    /* writes: frames and pieces not yet handed to the kernel */
    struct iovec pending[PIECES + 1];
    size_t pending_count;
    uint64_t pending_bytes;
    uint8_t requests[EGM_TCP_DEPTH][REQUEST_BYTES];

    /* reads: the next answer's head, when it came with the last bytes of the one before */
    uint8_t head[READ_REPLY_BYTES];
    bool has_head;
};

static void place_seek(struct place *place, uint64_t at)
{
    if (at < place->at) {
        place->index = 0;
        place->offset = 0;
        place->at = 0;
    }
    while (place->index < place->count &&
           at - place->at >= place->iov[place->index].iov_len - place->offset) {
        place->at += place->iov[place->index].iov_len - place->offset;
        place->index++;
        place->offset = 0;
    }
    place->offset += at - place->at;
    place->at = at;
}

/* Cuts the next at most `max` bytes into at most `piece_max` pieces and moves on. Returns the
 * bytes. */
static uint64_t place_take(struct place *place, uint64_t max, struct iovec *pieces,
                           size_t piece_max, size_t *ret_count)
{
    uint64_t taken = 0;
    size_t count = 0;

    while (taken < max && count < piece_max && place->index < place->count) {
        const struct iovec *piece = &place->iov[place->index];
        uint64_t size = egm_min_u64(piece->iov_len - place->offset, max - taken);
        if (size > 0) {
            pieces[count++] = (struct iovec){.iov_base = (char *)piece->iov_base + place->offset,
                                             .iov_len = size};
        }
        taken += size;
        place->offset += size;
        if (place->offset == piece->iov_len) {
            place->index++;
            place->offset = 0;
        }
    }
    place->at += taken;
    *ret_count = count;
    return taken;
}

/* Brings the place and the checksum to a transfer's byte `skip`. */
static void user_at(struct stream *s, size_t index, uint64_t skip)
{
    const struct egm_transfer *t = &s->transfers[index];

    if (s->user_index != index || skip == 0) {
        s->user = (struct place){.iov = t->iov, .count = t->iov_count};
        s->user_index = index;
        egm_checksum_init(&s->checksum, t->length);
    }
    place_seek(&s->user, skip);
}

/* ---- bytes ---- */

uint64_t egm_tcp_patience_ns(uint64_t deadline_ns)
{
    uint64_t now = egm_clock_ns();
    uint64_t half_ns = deadline_ns > now ? (deadline_ns - now) / 2 : 0;

    return egm_min_u64(egm_max_u64(half_ns, PATIENCE_LEAST_NS), PATIENCE_MOST_NS);
}

static uint64_t bytes_of(const struct iovec *iov, size_t count)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < count; i++) {
        bytes += iov[i].iov_len;
    }
    return bytes;
}

/* Sends or receives all of it; iov is consumed. EGM_E_TRANSFER when patience ends. */
static int move(struct stream *s, bool is_send, struct iovec *iov, size_t count)
{
    uint64_t left = bytes_of(iov, count);
    unsigned silent = 0;

    for (;;) {
        uint64_t until_ns = egm_min_u64(s->deadline_ns, egm_clock_ns() + s->patience_ns / SLICES);
        int r = is_send ? egm_net_sendv(s->connection->fd, iov, count, until_ns)
                        : egm_net_recvv(s->connection->fd, iov, count, until_ns);
        if (r != EGM_E_TIMEOUT || until_ns == s->deadline_ns) {
            return r;
        }
        uint64_t still = bytes_of(iov, count);
        silent = still < left ? 0 : silent + 1;
        left = still;
        if (silent == SLICES) {
            return EGM_E_TRANSFER;
        }
    }
}

static int receive_head(struct stream *s, uint8_t *head, size_t size)
{
    struct iovec iov = {.iov_base = head, .iov_len = size};

    return move(s, /*is_send=*/false, &iov, 1);
}

/* ---- asking ---- */

/* Finds the next chunk to ask for; false at the end. A transfer that its guard stops gets its
 * status here. */
static bool next_chunk(struct stream *s, struct chunk *ret_chunk)
{
    for (; s->next_index < s->count; s->next_index++, s->next_skip = 0) {
        struct egm_transfer *t = &s->transfers[s->next_index];
        if (t->status != EGM_TCP_PENDING || s->next_skip == t->length) {
            continue;
        }
        int r = t->guard ? t->guard(t->guard_arg) : 0;
        if (r < 0) {
            t->status = r;
            continue;
        }
        *ret_chunk = (struct chunk){.index = s->next_index,
                                    .skip = s->next_skip,
                                    .length = egm_min_u64(t->length - s->next_skip, EGM_COPY_CHUNK),
                                    .request = s->connection->next_request++};
        s->next_skip += ret_chunk->length;
        return true;
    }
    return false;
}

static void encode(struct egm_buf *buf, const struct egm_transfer *t, const struct chunk *chunk)
{
    size_t begin = egm_frame_begin(buf, t->is_write ? EGM_MSG_WRITE : EGM_MSG_READ, chunk->request);

    if (t->is_write) {
        struct egm_write head = {.generation = t->generation,
                                 .segment = t->segment,
                                 .skip = chunk->skip,
                                 .length = chunk->length,
                                 .extent_count = (uint8_t)t->extent_count};
        egm_put_write(buf, &head);
    } else {
        struct egm_read head = {.generation = t->generation,
                                .segment = t->segment,
                                .skip = chunk->skip,
                                .length = chunk->length,
                                .extent_count = (uint8_t)t->extent_count};
        egm_put_read(buf, &head);
    }
    for (uint32_t i = 0; i < t->extent_count; i++) {
        egm_put_extent(buf, &t->extents[i]);
    }
    egm_frame_end(buf, begin);
}

static bool has_room(const struct stream *s)
{
    return s->used < EGM_TCP_DEPTH && (s->used == 0 || s->used_bytes < EGM_TCP_IN_FLIGHT);
}

static unsigned push(struct stream *s, const struct chunk *chunk)
{
    unsigned slot = (s->first + s->used) % EGM_TCP_DEPTH;

    s->ring[slot] = *chunk;
    s->used++;
    s->used_bytes += chunk->length;
    return slot;
}

static struct chunk pop(struct stream *s)
{
    struct chunk chunk = s->ring[s->first];

    s->first = (s->first + 1) % EGM_TCP_DEPTH;
    s->used--;
    s->used_bytes -= chunk.length;
    return chunk;
}

static int ask_reads(struct stream *s)
{
    struct egm_buf *buf = &s->connection->buf;
    struct chunk chunk;

    egm_buf_clear(buf);
    while (has_room(s) && next_chunk(s, &chunk)) {
        encode(buf, &s->transfers[chunk.index], &chunk);
        push(s, &chunk);
    }
    if (buf->failed) {
        return buf->failed;
    }
    struct iovec iov = {.iov_base = buf->data, .iov_len = buf->len};
    return move(s, /*is_send=*/true, &iov, 1);
}

static int flush(struct stream *s)
{
    size_t count = s->pending_count;

    s->pending_count = 0;
    s->pending_bytes = 0;
    return move(s, /*is_send=*/true, s->pending, count);
}

/* Hashes the chunk's bytes and sends them, or leaves them pending for a fuller send. */
static int send_bytes(struct stream *s, const struct chunk *chunk)
{
    uint64_t left = chunk->length;

    user_at(s, chunk->index, chunk->skip);
    while (left > 0) {
        if (s->pending_count >= PIECES || s->pending_bytes >= EGM_TCP_STEP) {
            int r = flush(s);
            if (r < 0) {
                return r;
            }
        }
        struct iovec *pieces = &s->pending[s->pending_count];
        size_t count;
        uint64_t size = place_take(&s->user, egm_min_u64(left, EGM_TCP_STEP - s->pending_bytes),
                                   pieces, PIECES - s->pending_count, &count);
        if (size == 0) {
            return EGM_E_INVALID;
        }
        for (size_t i = 0; i < count; i++) {
            egm_checksum_update(&s->checksum, pieces[i].iov_base, pieces[i].iov_len);
        }
        s->pending_count += count;
        s->pending_bytes += size;
        left -= size;
    }
    struct egm_transfer *t = &s->transfers[chunk->index];
    if (chunk->skip + chunk->length == t->length) {
        t->checksum = egm_checksum_final(&s->checksum);
        s->user_index = SIZE_MAX;
    }
    return 0;
}

static int ask_writes(struct stream *s)
{
    struct egm_buf *buf = &s->connection->buf;
    struct chunk chunk;

    while (has_room(s) && next_chunk(s, &chunk)) {
        unsigned slot = push(s, &chunk);
        egm_buf_clear(buf);
        encode(buf, &s->transfers[chunk.index], &chunk);
        if (buf->failed) {
            return buf->failed;
        }
        EGM_ASSERT(buf->len <= REQUEST_BYTES);
        memcpy(s->requests[slot], buf->data, buf->len);
        if (s->pending_count >= PIECES) {
            int r = flush(s);
            if (r < 0) {
                return r;
            }
        }
        s->pending[s->pending_count++] =
            (struct iovec){.iov_base = s->requests[slot], .iov_len = buf->len};
        int r = send_bytes(s, &chunk);
        if (r < 0) {
            return r;
        }
    }
    return flush(s);
}

/* ---- answers ---- */

static int parse_head(const uint8_t *bytes, uint16_t type, uint32_t length, uint64_t request)
{
    struct egm_frame frame;

    if (egm_frame_parse(bytes, &frame) < 0 || frame.type != type || frame.request != request ||
        frame.length != length) {
        return EGM_E_PROTO;
    }
    return 0;
}

static void fail_transfer(struct egm_transfer *t, int code)
{
    if (t->status == EGM_TCP_PENDING) {
        t->status = code;
    }
}

/* Receives the chunk's bytes, and with the last of them the head of the next answer, if one is
 * due. */
static int receive_bytes(struct stream *s, const struct chunk *chunk)
{
    struct iovec pieces[PIECES + 1];
    struct iovec hashed[PIECES];
    uint64_t left = chunk->length;

    user_at(s, chunk->index, chunk->skip);
    while (left > 0) {
        size_t count;
        uint64_t size =
            place_take(&s->user, egm_min_u64(left, EGM_TCP_STEP), pieces, PIECES, &count);
        if (size == 0) {
            return EGM_E_INVALID;
        }
        memcpy(hashed, pieces, count * sizeof(*pieces));
        left -= size;
        size_t receive_count = count;
        if (left == 0 && s->used > 0) {
            pieces[receive_count++] =
                (struct iovec){.iov_base = s->head, .iov_len = sizeof(s->head)};
            s->has_head = true;
        }
        int r = move(s, /*is_send=*/false, pieces, receive_count);
        if (r < 0) {
            return r;
        }
        const struct egm_transfer *t = &s->transfers[chunk->index];
        for (size_t i = 0; t->status == EGM_TCP_PENDING && t->has_checksum && i < count; i++) {
            egm_checksum_update(&s->checksum, hashed[i].iov_base, hashed[i].iov_len);
        }
    }
    return 0;
}

static int answer_read(struct stream *s)
{
    struct chunk chunk = pop(s);
    struct egm_transfer *t = &s->transfers[chunk.index];

    if (!s->has_head) {
        int r = receive_head(s, s->head, sizeof(s->head));
        if (r < 0) {
            return r;
        }
    }
    s->has_head = false;
    s->connection->has_answered = true;
    struct egm_cursor cursor =
        egm_cursor_of(s->head + EGM_FRAME_HEADER, sizeof(s->head) - EGM_FRAME_HEADER);
    struct egm_read_reply reply;
    egm_take_read_reply(&cursor, &reply);
    int r =
        parse_head(s->head, EGM_MSG_READ_REPLY, READ_REPLY_BYTES - EGM_FRAME_HEADER, chunk.request);
    if (r < 0 || reply.length != (reply.status == 0 ? chunk.length : 0) || reply.status > 0) {
        return EGM_E_PROTO;
    }
    if (reply.status != 0) {
        fail_transfer(t, egm_status_from_wire(reply.status));
        /* The next answer's head comes by itself: this one had no bytes to bring it along. */
        return 0;
    }
    r = receive_bytes(s, &chunk);
    if (r == 0 && t->status == EGM_TCP_PENDING && chunk.skip + chunk.length == t->length) {
        t->status =
            t->has_checksum && egm_checksum_final(&s->checksum) != t->checksum ? EGM_E_CHECKSUM : 0;
        s->user_index = SIZE_MAX;
    }
    return r;
}

static int answer_write(struct stream *s)
{
    struct chunk chunk = pop(s);
    struct egm_transfer *t = &s->transfers[chunk.index];
    uint8_t head[WRITE_REPLY_BYTES];
    int r = receive_head(s, head, sizeof(head));

    if (r < 0) {
        return r;
    }
    s->connection->has_answered = true;
    struct egm_cursor cursor =
        egm_cursor_of(head + EGM_FRAME_HEADER, sizeof(head) - EGM_FRAME_HEADER);
    struct egm_result result;
    egm_take_result(&cursor, &result);
    r = parse_head(head, EGM_MSG_WRITE_REPLY, WRITE_REPLY_BYTES - EGM_FRAME_HEADER, chunk.request);
    if (r < 0 || result.status > 0) {
        return EGM_E_PROTO;
    }
    if (result.status != 0) {
        fail_transfer(t, egm_status_from_wire(result.status));
    } else if (chunk.skip + chunk.length == t->length) {
        fail_transfer(t, 0);
    }
    return 0;
}

int egm_tcp_run(struct egm_tcp_connection *connection, struct egm_transfer *transfers, size_t count,
                uint64_t deadline_ns)
{
    struct stream s;
    bool is_write = count > 0 && transfers[0].is_write;

    /* Not all of it: the tables are large and filled before they are read. */
    s.connection = connection;
    s.transfers = transfers;
    s.count = count;
    s.deadline_ns = deadline_ns;
    s.patience_ns = egm_tcp_patience_ns(deadline_ns);
    s.next_index = 0;
    s.next_skip = 0;
    s.first = 0;
    s.used = 0;
    s.used_bytes = 0;
    s.user_index = SIZE_MAX;
    s.pending_count = 0;
    s.pending_bytes = 0;
    s.has_head = false;
    for (;;) {
        /* Ask again only when half of the window is free, so that requests travel in company. */
        if (s.used <= EGM_TCP_DEPTH / 2) {
            int r = is_write ? ask_writes(&s) : ask_reads(&s);
            if (r < 0) {
                return r;
            }
        }
        if (s.used == 0) {
            return 0;
        }
        int r = is_write ? answer_write(&s) : answer_read(&s);
        if (r < 0) {
            return r;
        }
    }
}
