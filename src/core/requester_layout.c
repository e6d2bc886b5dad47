/* SPDX-License-Identifier: Apache-2.0 */
/* Layout snapshots: one block {struct, providers, mounts, texts}, sized by a first walk over the
 * reply that checks it whole, filled by a second. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"

#include "core/requester.h"
#include "wire/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Smallest records: provider_info 31 bytes with empty texts and its mount count, mount_info 16. */
#define PROVIDER_LEAST 35u
#define MOUNT_BYTES 16u

struct sizes {
    uint32_t mount_count;
    size_t text_bytes;
};

/* A text with a NUL inside would be cut; it comes from a peer, so it is refused. */
static bool is_text(struct egm_bytes bytes)
{
    return bytes.size == 0 || !memchr(bytes.data, 0, bytes.size);
}

static int measure(struct egm_cursor cursor, uint32_t provider_count, struct sizes *ret_sizes)
{
    struct sizes sizes = {0};

    for (uint32_t i = 0; i < provider_count && !cursor.failed; i++) {
        struct egm_provider_info info;
        egm_take_provider_info(&cursor, &info);
        if (cursor.failed || !is_text(info.name) || !is_text(info.unix_path) ||
            !is_text(info.data_address) ||
            !egm_cursor_expect(&cursor, info.mount_count, MOUNT_BYTES, EGM_MAX_SEGMENTS)) {
            return EGM_E_PROTO;
        }
        sizes.text_bytes +=
            (size_t)info.name.size + info.unix_path.size + info.data_address.size + 3;
        sizes.mount_count += info.mount_count;
        egm_ignore((int)egm_take_bytes(&cursor, info.mount_count * MOUNT_BYTES).size, "skipped");
    }
    if (egm_cursor_end(&cursor) < 0) {
        return EGM_E_PROTO;
    }
    *ret_sizes = sizes;
    return 0;
}

static const char *keep_text(char **text, struct egm_bytes bytes)
{
    char *at = *text;

    if (bytes.size > 0) {
        memcpy(at, bytes.data, bytes.size);
    }
    at[bytes.size] = '\0';
    *text += bytes.size + 1;
    return at;
}

static void fill(struct egm_layout_snapshot *layout, struct egm_cursor *cursor, char *text)
{
    uint32_t mount_count = 0;

    for (uint32_t i = 0; i < layout->provider_count; i++) {
        struct egm_provider_info info;
        egm_take_provider_info(cursor, &info);
        layout->providers[i] =
            (struct egm_layout_provider){.provider = info.provider,
                                         .epoch = info.epoch,
                                         .host = info.host,
                                         .state = info.state,
                                         .name = keep_text(&text, info.name),
                                         .unix_path = keep_text(&text, info.unix_path),
                                         .data_address = keep_text(&text, info.data_address)};
        for (uint32_t m = 0; m < info.mount_count; m++) {
            struct egm_mount_info mount;
            egm_take_mount_info(cursor, &mount);
            layout->mounts[mount_count++] = (struct egm_layout_mount){.mount = mount.mount,
                                                                      .segment = mount.segment,
                                                                      .size = mount.size,
                                                                      .provider_index = i};
        }
    }
}

static int by_mount(const void *a, const void *b, void *unused)
{
    (void)unused;
    uint32_t x = ((const struct egm_layout_mount *)a)->mount;
    uint32_t y = ((const struct egm_layout_mount *)b)->mount;

    return (x > y) - (x < y);
}

static bool has_twins(const struct egm_layout_snapshot *layout)
{
    for (uint32_t i = 1; i < layout->mount_count; i++) {
        if (layout->mounts[i - 1].mount == layout->mounts[i].mount) {
            return true;
        }
    }
    return false;
}

int egm_layout_parse(const void *payload, size_t size, uint64_t instance,
                     struct egm_layout_snapshot **ret_layout)
{
    struct egm_cursor cursor = egm_cursor_of(payload, size);
    struct egm_layout_reply reply;
    struct sizes sizes;

    egm_take_layout_reply(&cursor, &reply);
    if (cursor.failed || reply.status > 0 ||
        !egm_cursor_expect(&cursor, reply.provider_count, PROVIDER_LEAST, EGM_MAX_SEGMENTS)) {
        return EGM_E_PROTO;
    }
    if (reply.status != 0) {
        return egm_status_from_wire(reply.status);
    }
    int r = measure(cursor, reply.provider_count, &sizes);
    if (r < 0) {
        return r;
    }
    /* The counts are bounded by the payload's size, so no sum here can wrap. */
    size_t providers_at = sizeof(struct egm_layout_snapshot);
    size_t mounts_at = providers_at + reply.provider_count * sizeof(struct egm_layout_provider);
    size_t text_at = mounts_at + sizes.mount_count * sizeof(struct egm_layout_mount);
    char *block = egm_calloc(1, text_at + sizes.text_bytes);
    if (!block) {
        return -ENOMEM;
    }
    struct egm_layout_snapshot *layout = (struct egm_layout_snapshot *)(void *)block;
    atomic_init(&layout->ref_count, 1);
    layout->instance = instance;
    layout->version = reply.layout;
    layout->provider_count = reply.provider_count;
    layout->mount_count = sizes.mount_count;
    layout->providers = (struct egm_layout_provider *)(void *)(block + providers_at);
    layout->mounts = (struct egm_layout_mount *)(void *)(block + mounts_at);
    fill(layout, &cursor, block + text_at);
    qsort_r(layout->mounts, layout->mount_count, sizeof(*layout->mounts), by_mount, NULL);
    if (has_twins(layout)) {
        egm_layout_unref(layout);
        return EGM_E_PROTO;
    }
    *ret_layout = layout;
    return 0;
}

struct egm_layout_snapshot *egm_layout_ref(struct egm_layout_snapshot *layout)
{
    /* relaxed: the caller has a reference, so the content is visible to it already */
    atomic_fetch_add_explicit(&layout->ref_count, 1, memory_order_relaxed);
    return layout;
}

void egm_layout_unref(struct egm_layout_snapshot *layout)
{
    /* acq_rel: release pairs with the acquire of whoever drops the last one and frees what all have
     * read */
    if (layout && atomic_fetch_sub_explicit(&layout->ref_count, 1, memory_order_acq_rel) == 1) {
        egm_free(layout);
    }
}

const struct egm_layout_mount *egm_layout_find(const struct egm_layout_snapshot *layout,
                                               uint32_t mount)
{
    uint32_t low = 0;
    uint32_t high = layout->mount_count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (layout->mounts[middle].mount < mount) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < layout->mount_count && layout->mounts[low].mount == mount ? &layout->mounts[low]
                                                                           : NULL;
}
