/* SPDX-License-Identifier: Apache-2.0 */
#include "mover/copy.h"

#include "base/assert.h"
#include "base/checked.h"

#include "mover/copy_kernel.h"

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

/* Spans of OUT past the cache: the buffer on the stack and the next source bytes stay in the
 * first-level cache together. Measured: 4 KiB beats the whole leaf by a twentieth. */
#define BOUNCE_BYTES 4096u

_Static_assert((EGM_CHECKSUM_LEAF_BYTES & (EGM_CHECKSUM_LEAF_BYTES - 1u)) == 0,
               "unit is a power of two");
_Static_assert(EGM_CHECKSUM_LEAF_BYTES % BOUNCE_BYTES == 0, "a span lies in one leaf");

const struct egm_copy_kernel egm_copy_plain = {.name = "plain"};

struct span {
    unsigned char *dst;
    const unsigned char *src;
    size_t size;
    const void *ahead; /* where the source goes on behind this span */
    size_t ahead_size; /* 0 at the end */
};

static void skip_empty(struct egm_copy_cursor *cursor)
{
    while (cursor->piece != cursor->end && cursor->offset == cursor->piece->iov_len) {
        cursor->piece++;
        cursor->offset = 0;
    }
}

static struct egm_copy_cursor cursor_at_start(struct egm_copy_list list)
{
    struct egm_copy_cursor cursor = {.piece = list.pieces, .end = list.pieces, .offset = 0};
    if (list.count > 0) {
        cursor.end = list.pieces + list.count;
    }
    skip_empty(&cursor);
    return cursor;
}

static size_t room(const struct egm_copy_cursor *cursor)
{
    return cursor->piece->iov_len - cursor->offset;
}

static unsigned char *address(const struct egm_copy_cursor *cursor)
{
    return (unsigned char *)cursor->piece->iov_base + cursor->offset;
}

static void advance(struct egm_copy_cursor *cursor, size_t size)
{
    cursor->offset += size;
    skip_empty(cursor);
}

/* Moves on by `size` bytes, over as many pieces as that takes. */
static void skip(struct egm_copy_cursor *cursor, size_t size)
{
    while (size > 0) {
        size_t here = (size_t)egm_min_u64(size, room(cursor));
        advance(cursor, here);
        size -= here;
    }
}

int egm_copy_list_bytes(struct egm_copy_list list, size_t *ret_bytes)
{
    size_t sum = 0;

    for (size_t i = 0; i < list.count; i++) {
        int r = egm_add_size(&sum, sum, list.pieces[i].iov_len);
        if (r < 0) {
            return r;
        }
    }
    *ret_bytes = sum;
    return 0;
}

static void set_kernel(struct egm_copy *c, const struct egm_copy_kernel *kernel)
{
    bool is_bounced = kernel->stream && c->direction_ == EGM_COPY_OUT && c->checksum_;

    c->kernel_ = kernel;
    c->unit_bytes_ = is_bounced ? BOUNCE_BYTES : EGM_CHECKSUM_LEAF_BYTES;
}

int egm_copy_init(struct egm_copy *c, enum egm_copy_direction direction, struct egm_copy_list dst,
                  struct egm_copy_list src, struct egm_checksum *checksum)
{
    size_t dst_bytes, src_bytes;

    int r = egm_copy_list_bytes(dst, &dst_bytes);
    if (r < 0) {
        return r;
    }
    r = egm_copy_list_bytes(src, &src_bytes);
    if (r < 0) {
        return r;
    }
    if (dst_bytes != src_bytes) {
        return EGM_E_INVALID;
    }
    *c = (struct egm_copy){
        .dst_ = cursor_at_start(dst),
        .src_ = cursor_at_start(src),
        .checksum_ = checksum,
        .left_bytes_ = src_bytes,
        .direction_ = direction,
    };
    set_kernel(c, egm_copy_policy(direction, src_bytes, src_bytes));
    return 0;
}

void egm_copy_join_batch(struct egm_copy *c, uint64_t batch_bytes)
{
    EGM_ASSERT(c->done_bytes_ == 0);
    set_kernel(c, egm_copy_policy(c->direction_, c->left_bytes_, batch_bytes));
}

void egm_copy_split(struct egm_copy *c, size_t max_bytes, struct egm_checksum *checksum,
                    struct egm_copy *ret_part)
{
    size_t size = (size_t)egm_min_u64(max_bytes, c->left_bytes_);

    EGM_ASSERT(!c->checksum_ && c->done_bytes_ % EGM_CHECKSUM_LEAF_BYTES == 0);
    *ret_part = *c;
    ret_part->checksum_ = checksum;
    ret_part->left_bytes_ = size;
    set_kernel(ret_part, c->kernel_);
    skip(&c->dst_, size);
    skip(&c->src_, size);
    c->done_bytes_ += size;
    c->left_bytes_ -= size;
}

void egm_copy_force_kernel(struct egm_copy *c, const struct egm_copy_kernel *kernel)
{
    EGM_ASSERT(c->done_bytes_ == 0);
    set_kernel(c, kernel);
}

/* The longest span that starts here, of at most max_bytes; moves both cursors behind it. */
static struct span take_span(struct egm_copy *c, size_t max_bytes)
{
    struct span span = {.dst = address(&c->dst_), .src = address(&c->src_)};
    size_t size = c->unit_bytes_ - (c->done_bytes_ & (c->unit_bytes_ - 1));

    size = (size_t)egm_min_u64(size, max_bytes);
    size = (size_t)egm_min_u64(size, egm_min_u64(room(&c->dst_), room(&c->src_)));
    span.size = size;
    advance(&c->dst_, size);
    advance(&c->src_, size);
    c->done_bytes_ += size;
    c->left_bytes_ -= size;
    if (c->left_bytes_ > 0) {
        span.ahead = address(&c->src_);
        span.ahead_size = room(&c->src_);
    }
    return span;
}

static void store(const struct egm_copy *c, const struct span *span, const void *from)
{
    if (c->kernel_->stream && span->size >= EGM_COPY_STREAM_LEAST) {
        c->kernel_->stream(span->dst, from, span->size, span->ahead, span->ahead_size);
    } else {
        memcpy(span->dst, from, span->size);
    }
}

static void move_in(struct egm_copy *c, const struct span *span)
{
    if (c->checksum_) {
        egm_checksum_update(c->checksum_, span->src, span->size);
    }
    store(c, span, span->src);
}

static void move_out(struct egm_copy *c, const struct span *span)
{
    _Alignas(64) unsigned char bounce[BOUNCE_BYTES];

    if (!c->checksum_) {
        store(c, span, span->src);
        return;
    }
    bool is_streamed = c->kernel_->stream && span->size >= EGM_COPY_STREAM_LEAST;
    unsigned char *first = is_streamed ? bounce : span->dst;

    memcpy(first, span->src, span->size);
    /* The compiler may assume that nobody else writes the source and read that again for the hash;
     * this forbids it. */
    atomic_signal_fence(memory_order_seq_cst);
    egm_checksum_update(c->checksum_, first, span->size);
    if (is_streamed) {
        store(c, span, bounce);
    }
}

size_t egm_copy_step(struct egm_copy *c, size_t max_bytes)
{
    size_t want = (size_t)egm_min_u64(max_bytes, c->left_bytes_);
    size_t done = 0;

    while (done < want) {
        struct span span = take_span(c, want - done);
        if (c->direction_ == EGM_COPY_IN) {
            move_in(c, &span);
        } else {
            move_out(c, &span);
        }
        done += span.size;
    }
    if (c->kernel_->settle) {
        c->kernel_->settle();
    }
    return done;
}

size_t egm_copy_left(const struct egm_copy *c)
{
    return c->left_bytes_;
}

int egm_copy_all(enum egm_copy_direction direction, struct egm_copy_list dst,
                 struct egm_copy_list src, struct egm_checksum *checksum)
{
    struct egm_copy c;

    int r = egm_copy_init(&c, direction, dst, src, checksum);
    if (r < 0) {
        return r;
    }
    (void)egm_copy_step(&c, SIZE_MAX);
    return 0;
}
