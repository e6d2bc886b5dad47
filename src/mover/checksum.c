/* SPDX-License-Identifier: Apache-2.0 */
#include "mover/checksum.h"

#include "base/assert.h"
#include "base/checked.h"

#include "mover/checksum_variant.h"

/* Best first. Fills `list` with the variants that run here and returns their count. */
static size_t list_variants(const struct egm_checksum_variant *list[4])
{
    size_t count = 0;
#if defined(__x86_64__)
    /* These also ask the kernel's XCR0, so a CPU whose wide registers are not saved counts as one
     * without. */
    if (__builtin_cpu_supports("avx512f")) {
        list[count++] = &egm_checksum_avx512;
    }
    if (__builtin_cpu_supports("avx2")) {
        list[count++] = &egm_checksum_avx2;
    }
    list[count++] = &egm_checksum_sse2;
#elif defined(__aarch64__)
    list[count++] = &egm_checksum_neon;
#endif
    list[count++] = &egm_checksum_scalar;
    return count;
}

const struct egm_checksum_variant *egm_checksum_variant_at(size_t index)
{
    const struct egm_checksum_variant *list[4];
    size_t count = list_variants(list);
    return index < count ? list[index] : NULL;
}

const char *egm_checksum_variant_name(const struct egm_checksum_variant *variant)
{
    return variant->name;
}

static void *leaf_state(struct egm_checksum *c)
{
    uintptr_t at = (uintptr_t)c->states_;
    size_t pad = (size_t)(-at & (EGM_CHECKSUM_STATE_ALIGN - 1u));
    return c->states_ + pad;
}

static void *top_state(struct egm_checksum *c)
{
    return (unsigned char *)leaf_state(c) + EGM_CHECKSUM_STATE_BYTES;
}

void egm_checksum_init_with(struct egm_checksum *c, const struct egm_checksum_variant *variant,
                            uint64_t object_bytes)
{
    c->variant_ = variant;
    c->object_bytes_ = object_bytes;
    c->left_bytes_ = object_bytes;
    c->leaf_fill_ = 0;
    c->leaves_ = NULL;
    variant->start(top_state(c), object_bytes);
}

void egm_checksum_init(struct egm_checksum *c, uint64_t object_bytes)
{
    egm_checksum_init_with(c, egm_checksum_variant_at(0), object_bytes);
}

void egm_checksum_init_leaves(struct egm_checksum *c, uint64_t *leaves, uint64_t size)
{
    c->variant_ = egm_checksum_variant_at(0);
    c->object_bytes_ = size;
    c->left_bytes_ = size;
    c->leaf_fill_ = 0;
    c->leaves_ = leaves;
}

static void add_leaf(struct egm_checksum *c, uint64_t leaf)
{
    unsigned char bytes[8];

    if (c->leaves_) {
        *c->leaves_++ = leaf;
        return;
    }
    for (unsigned i = 0; i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)(leaf >> (8u * i));
    }
    c->variant_->feed(top_state(c), bytes, sizeof bytes);
}

/* Takes bytes up to the end of the current leaf, at least one; returns how many. */
static size_t feed_leaf(struct egm_checksum *c, const void *data, size_t size)
{
    size_t rest = (size_t)egm_min_u64(EGM_CHECKSUM_LEAF_BYTES - c->leaf_fill_, c->left_bytes_);
    size_t take = size < rest ? size : rest;

    c->left_bytes_ -= take;
    if (c->leaf_fill_ == 0 && take == rest) {
        add_leaf(c, c->variant_->hash(data, take));
        return take;
    }
    if (c->leaf_fill_ == 0) {
        c->variant_->start(leaf_state(c), 0);
    }
    c->variant_->feed(leaf_state(c), data, take);
    c->leaf_fill_ += take;
    if (take == rest) {
        add_leaf(c, c->variant_->finish(leaf_state(c)));
        c->leaf_fill_ = 0;
    }
    return take;
}

void egm_checksum_update(struct egm_checksum *c, const void *data, size_t size)
{
    const unsigned char *at = data;

    EGM_ASSERT(size <= c->left_bytes_);
    while (size > 0) {
        size_t taken = feed_leaf(c, at, size);
        at += taken;
        size -= taken;
    }
}

uint64_t egm_checksum_final(struct egm_checksum *c)
{
    EGM_ASSERT(c->left_bytes_ == 0 && !c->leaves_);
    return c->variant_->finish(top_state(c));
}

uint64_t egm_checksum_leaf_count(uint64_t object_bytes)
{
    return egm_div_ceil_u64(object_bytes, EGM_CHECKSUM_LEAF_BYTES);
}

uint64_t egm_checksum_of_leaves(const uint64_t *leaves, uint64_t object_bytes)
{
    struct egm_checksum c;

    egm_checksum_init(&c, object_bytes);
    for (uint64_t i = 0; i < egm_checksum_leaf_count(object_bytes); i++) {
        add_leaf(&c, leaves[i]);
    }
    c.left_bytes_ = 0;
    return egm_checksum_final(&c);
}

uint64_t egm_checksum_of(const void *data, size_t size)
{
    struct egm_checksum c;
    egm_checksum_init(&c, size);
    egm_checksum_update(&c, data, size);
    return egm_checksum_final(&c);
}
