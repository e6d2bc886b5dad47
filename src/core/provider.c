/* SPDX-License-Identifier: Apache-2.0 */
/* The connection to the master, the lease, and the slots; the model is told in provider.h. */
#include "core/provider.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/mutant.h"

#include "core/provider_state.h"
#include "wire/status.h"

#include <errno.h>
#include <string.h>

/* A lease beyond this would keep a new master out for longer than anybody can mean. */
#define MAX_LEASE_MS 600000u

#define NS_PER_MS UINT64_C(1000000)

/* ---- life ---- */

static bool is_segment_valid(const struct egm_pcore_segment *s)
{
    return s->size >= 2 * EGM_GRANULE && s->size % EGM_GRANULE == 0 &&
           s->size <= EGM_MAX_SEGMENT_BYTES && s->floor && s->granule_fence && s->slot_fence;
}

static int copy_names(struct egm_pcore *core, const struct egm_pcore_options *options)
{
    core->name = egm_strndup(options->name, EGM_MAX_NAME);
    core->unix_path = egm_strndup(options->unix_path, EGM_MAX_OPTION_TEXT - 1);
    core->data_address = egm_strndup(options->data_address, EGM_MAX_HOST);
    core->slots = egm_calloc(EGM_MAX_SLOTS, sizeof(*core->slots));
    if (!core->name || !core->unix_path || !core->data_address || !core->slots) {
        return -ENOMEM;
    }
    return egm_index_init(&core->index, 0, /*pieces=*/NULL);
}

int egm_pcore_create(const struct egm_pcore_options *options, struct egm_pcore **ret_core)
{
    if (options->segment_count == 0 || options->segment_count > EGM_PCORE_MAX_SEGMENTS ||
        options->provider == 0 || options->epoch == 0) {
        return EGM_E_INVALID;
    }
    for (uint32_t i = 0; i < options->segment_count; i++) {
        if (!is_segment_valid(&options->segments[i])) {
            return EGM_E_INVALID;
        }
    }
    struct egm_pcore *core = egm_calloc(1, sizeof(*core));
    if (!core) {
        return -ENOMEM;
    }
    core->provider = options->provider;
    core->epoch = options->epoch;
    core->host = options->host;
    core->segment_count = options->segment_count;
    memcpy(core->segments, options->segments, options->segment_count * sizeof(core->segments[0]));
    core->first_free = EGM_NO_LIVE;
    core->reply_head = 1;
    core->next_request = 1;
    egm_buf_init(&core->out, EGM_PCORE_OUT_MAX);
    int r = copy_names(core, options);
    if (r < 0) {
        egm_pcore_destroy(core);
        return r;
    }
    *ret_core = core;
    return 0;
}

void egm_pcore_destroy(struct egm_pcore *core)
{
    if (!core) {
        return;
    }
    egm_live_release(core);
    egm_buf_release(&core->out);
    egm_free(core->floors);
    egm_free(core->slots);
    egm_free(core->name);
    egm_free(core->unix_path);
    egm_free(core->data_address);
    egm_free(core);
}

struct egm_buf *egm_pcore_out(struct egm_pcore *core)
{
    return &core->out;
}

struct egm_pcore_status egm_pcore_status(const struct egm_pcore *core)
{
    struct egm_pcore_status status = core->status;

    status.term = core->term;
    status.live_count = core->live_count;
    status.slot_count = 0;
    for (uint32_t i = 0; i < core->slot_top; i++) {
        status.slot_count += core->slots[i].state != EGM_SLOT_FREE;
    }
    return status;
}

/* ---- mount and unmount ---- */

/* A slot whose importer may reach memory, or soon will. */
static bool is_slot_held(const struct egm_slot_entry *slot)
{
    return slot->state == EGM_SLOT_ASSIGNING || slot->state == EGM_SLOT_HELD;
}

static void put_slots(struct egm_pcore *core)
{
    for (uint32_t i = 0; i < core->slot_top; i++) {
        struct egm_slot_entry *slot = &core->slots[i];
        /* What was under way on an older connection is answered by this MOUNT. */
        slot->request = 0;
        slot->left = 0;
        for (uint32_t s = 0; s < core->segment_count && is_slot_held(slot); s++) {
            struct egm_slot record = {.segment = core->segments[s].segment,
                                      .slot = i,
                                      .session = slot->session,
                                      .kind = slot->kind,
                                      .state = 1};
            egm_put_slot(&core->out, &record);
        }
    }
}

static void send_unmount(struct egm_pcore *core)
{
    struct egm_unmount message = {
        .provider = core->provider, .epoch = core->epoch, .mode = core->unmount_mode};

    core->unmount_request = core->next_request++;
    size_t begin = egm_frame_begin(&core->out, EGM_MSG_UNMOUNT, core->unmount_request);
    egm_put_unmount(&core->out, &message);
    egm_frame_end(&core->out, begin);
}

void egm_pcore_connected(struct egm_pcore *core, uint64_t instance)
{
    uint32_t slot_count = 0;

    egm_pcore_disconnected(core);
    core->is_connected = true;
    core->connection++;
    core->instance = instance;
    for (uint32_t i = 0; i < core->slot_top; i++) {
        slot_count += is_slot_held(&core->slots[i]) ? core->segment_count : 0;
    }
    struct egm_mount mount = {.provider = core->provider,
                              .epoch = core->epoch,
                              .term = core->term,
                              .host = core->host,
                              .name = egm_bytes_of(core->name, strlen(core->name)),
                              .unix_path = egm_bytes_of(core->unix_path, strlen(core->unix_path)),
                              .data_address =
                                  egm_bytes_of(core->data_address, strlen(core->data_address)),
                              .segment_count = core->segment_count,
                              .slot_count = slot_count};
    core->mount_request = core->next_request++;
    size_t begin = egm_frame_begin(&core->out, EGM_MSG_MOUNT, core->mount_request);
    egm_put_mount(&core->out, &mount);
    for (uint32_t i = 0; i < core->segment_count; i++) {
        struct egm_segment segment = {.segment = core->segments[i].segment,
                                      .size = core->segments[i].size,
                                      .numa_node = core->segments[i].numa_node};
        egm_put_segment(&core->out, &segment);
    }
    put_slots(core);
    egm_frame_end(&core->out, begin);
    if (core->is_draining) {
        send_unmount(core);
    }
}

void egm_pcore_disconnected(struct egm_pcore *core)
{
    core->is_connected = false;
    core->status.is_mounted = false;
    core->mount_request = 0;
    core->unmount_request = 0;
    core->last_sequence = 0;
    core->is_lease_waiting = false;
    core->is_holder_here = false;
    /* Answers to the old connection; their ids must not be found again. */
    core->reply_head += core->deferred_count;
    core->deferred_count = 0;
    egm_buf_clear(&core->out);
}

void egm_pcore_unmount(struct egm_pcore *core, uint8_t mode)
{
    core->is_draining = true;
    core->unmount_mode = mode;
    if (core->is_connected) {
        send_unmount(core);
    }
}

void egm_pcore_retire(struct egm_pcore *core)
{
    egm_pcore_floor(core, UINT64_MAX);
}

static int mount_reply(struct egm_pcore *core, const struct egm_frame *frame,
                       struct egm_cursor cursor)
{
    struct egm_mount_reply reply;

    egm_take_mount_reply(&cursor, &reply);
    if (egm_cursor_end(&cursor) < 0 || core->mount_request == 0 ||
        frame->request != core->mount_request) {
        return EGM_E_PROTO;
    }
    core->mount_request = 0;
    core->status.mount_status = egm_status_from_wire(reply.status);
    core->status.is_mounted = core->status.mount_status == 0;
    size_t n = egm_min_u64(reply.reason.size, sizeof(core->status.mount_reason) - 1);
    for (size_t i = 0; i < n; i++) {
        uint8_t c = reply.reason.data[i];
        core->status.mount_reason[i] = c >= 0x20 && c < 0x7f ? (char)c : '?';
    }
    core->status.mount_reason[n] = '\0';
    for (uint32_t i = 0; i < core->slot_top && core->status.is_mounted; i++) {
        struct egm_slot_entry *slot = &core->slots[i];
        if (slot->request != 0) {
            continue; /* changed after MOUNT was sent; its own reply comes */
        }
        if (slot->state == EGM_SLOT_ASSIGNING) {
            slot->state = EGM_SLOT_HELD;
        } else if (slot->state == EGM_SLOT_FREEING) {
            *slot = (struct egm_slot_entry){.state = EGM_SLOT_FREE};
        }
    }
    return 0;
}

static int unmount_reply(struct egm_pcore *core, const struct egm_frame *frame,
                         struct egm_cursor cursor)
{
    struct egm_result reply;

    egm_take_result(&cursor, &reply);
    if (egm_cursor_end(&cursor) < 0 || core->unmount_request == 0 ||
        frame->request > core->unmount_request) {
        return EGM_E_PROTO;
    }
    /* Whatever the status: a master that does not know us places nothing here either. */
    core->status.is_unmounted = true;
    return 0;
}

/* ---- lease ---- */

static void answer_lease(struct egm_pcore *core, uint64_t request, int status,
                         uint32_t remaining_ms)
{
    struct egm_lease_reply reply = {
        .status = egm_status_to_wire(status), .term = core->term, .remaining_ms = remaining_ms};
    size_t begin = egm_frame_begin(&core->out, EGM_MSG_LEASE_REPLY, request);

    egm_put_lease_reply(&core->out, &reply);
    egm_frame_end(&core->out, begin);
}

void egm_pcore_accept_lease(struct egm_pcore *core, uint64_t request)
{
    core->is_lease_waiting = false;
    core->is_holder_here = true;
    core->status.is_leased = true;
    answer_lease(core, request, 0, 0);
}

/* A newer term. Its master knows nothing of what the terms before placed here, so all of that is
 * dead; except when the holder itself goes on to a newer term on the connection on which it
 * already holds the lease: then it is the same directory that goes on. */
static void take_term(struct egm_pcore *core, uint32_t term, uint64_t instance)
{
    bool goes_on = core->is_holder_here && instance == core->term_instance;

    core->term = term;
    core->term_instance = instance;
    if (!goes_on && !EGM_MUTANT(26)) {
        /* For map readers everything older is dead from this store on. */
        egm_pcore_floor(core, ((uint64_t)term << EGM_GENERATION_TERM_SHIFT) - 1);
        egm_live_kill_all(core);
    }
}

static int lease(struct egm_pcore *core, uint64_t now_ns, const struct egm_frame *frame,
                 struct egm_cursor cursor)
{
    struct egm_lease message;

    egm_take_lease(&cursor, &message);
    if (egm_cursor_end(&cursor) < 0 || message.instance != core->instance || message.term == 0 ||
        message.term > EGM_TERM_MAX || message.duration_ms > MAX_LEASE_MS) {
        return EGM_E_PROTO;
    }
    bool is_holder = core->term != 0 && message.instance == core->term_instance;
    if (core->term != 0 && !is_holder && now_ns < core->lease_until_ns && !EGM_MUTANT(6)) {
        uint64_t left = egm_div_ceil_u64(core->lease_until_ns - now_ns, NS_PER_MS);
        answer_lease(core, frame->request, EGM_E_NOT_READY, (uint32_t)left);
        return 0;
    }
    bool is_renewal = is_holder && core->is_holder_here;
    if (!is_renewal && (message.term < core->term || (message.term == core->term && !is_holder))) {
        answer_lease(core, frame->request, EGM_E_STALE, 0);
        return 0;
    }
    if (message.term > core->term) {
        take_term(core, message.term, message.instance);
    }
    /* The master counts from before it asked, so ours, from now, ends no earlier. A duration of 0
     * hands the lease back. */
    core->lease_until_ns = now_ns + message.duration_ms * NS_PER_MS;
    if (core->lease_blockers > 0 && !EGM_MUTANT(19)) {
        /* Only the newest is answered: an older one's lease would be the shorter one. */
        core->is_lease_waiting = true;
        core->lease_request = frame->request;
        return 0;
    }
    egm_pcore_accept_lease(core, frame->request);
    return 0;
}

/* ---- slots ---- */

static void send_slot_change(struct egm_pcore *core, uint32_t index, uint8_t state)
{
    struct egm_slot_entry *slot = &core->slots[index];

    slot->request = core->next_request;
    slot->left = core->segment_count == 64 ? UINT64_MAX : (UINT64_C(1) << core->segment_count) - 1;
    for (uint32_t s = 0; s < core->segment_count; s++) {
        struct egm_slot_change change = {.provider = core->provider,
                                         .epoch = core->epoch,
                                         .segment = core->segments[s].segment,
                                         .slot = index,
                                         .session = slot->session,
                                         .kind = slot->kind,
                                         .state = state};
        size_t begin = egm_frame_begin(&core->out, EGM_MSG_SLOT_CHANGE, core->next_request++);
        egm_put_slot_change(&core->out, &change);
        egm_frame_end(&core->out, begin);
    }
}

int egm_pcore_slot_take(struct egm_pcore *core, uint64_t session, uint8_t kind, uint32_t *ret_slot)
{
    if (session == 0 || (kind != EGM_IMPORT_MAP && kind != EGM_IMPORT_TCP)) {
        return EGM_E_PROTO;
    }
    if (core->is_draining) {
        return EGM_E_CLOSED;
    }
    if (!core->is_connected || !core->status.is_mounted) {
        return EGM_E_NOT_READY;
    }
    uint32_t found = EGM_MAX_SLOTS;
    for (uint32_t index = 0; index < core->slot_top; index++) {
        struct egm_slot_entry *slot = &core->slots[index];
        if (kind == EGM_IMPORT_TCP && slot->kind == kind && slot->session == session &&
            is_slot_held(slot)) {
            slot->refs++;
            *ret_slot = index;
            return 0;
        }
        if (slot->state == EGM_SLOT_FREE && found == EGM_MAX_SLOTS) {
            found = index;
        }
    }
    if (found == EGM_MAX_SLOTS && core->slot_top < EGM_MAX_SLOTS) {
        found = core->slot_top++;
    }
    if (found == EGM_MAX_SLOTS) {
        return EGM_E_LIMIT;
    }
    core->slots[found] = (struct egm_slot_entry){
        .state = EGM_SLOT_ASSIGNING, .kind = kind, .refs = 1, .session = session};
    send_slot_change(core, found, 1);
    *ret_slot = found;
    return 0;
}

enum egm_slot_state egm_pcore_slot_state(const struct egm_pcore *core, uint32_t slot,
                                         int *ret_status)
{
    EGM_ASSERT(slot < EGM_MAX_SLOTS);
    if (ret_status && core->slots[slot].state == EGM_SLOT_REFUSED) {
        *ret_status = core->slots[slot].status;
    }
    return (enum egm_slot_state)core->slots[slot].state;
}

void egm_pcore_slot_free(struct egm_pcore *core, uint32_t index)
{
    EGM_ASSERT(index < EGM_MAX_SLOTS);
    struct egm_slot_entry *slot = &core->slots[index];
    EGM_ASSERT(slot->refs > 0);
    if (--slot->refs > 0) {
        return;
    }
    if (slot->state == EGM_SLOT_REFUSED && core->segment_count == 1) {
        *slot = (struct egm_slot_entry){.state = EGM_SLOT_FREE};
        return;
    }
    /* Refused for some of several segments: the others know it as held. */
    EGM_ASSERT(is_slot_held(slot) || slot->state == EGM_SLOT_REFUSED);
    slot->state = EGM_SLOT_FREEING;
    slot->request = 0;
    slot->left = 0;
    if (core->is_connected) {
        send_slot_change(core, index, 0);
    }
    /* Else the next MOUNT, which does not list it, tells. */
}

static int slot_change_reply(struct egm_pcore *core, const struct egm_frame *frame,
                             struct egm_cursor cursor)
{
    struct egm_result reply;

    egm_take_result(&cursor, &reply);
    if (egm_cursor_end(&cursor) < 0 || frame->request >= core->next_request) {
        return EGM_E_PROTO;
    }
    for (uint32_t i = 0; i < core->slot_top; i++) {
        struct egm_slot_entry *slot = &core->slots[i];
        if (slot->request == 0 || frame->request < slot->request ||
            frame->request - slot->request >= core->segment_count) {
            continue;
        }
        uint64_t bit = UINT64_C(1) << (frame->request - slot->request);
        int status = egm_status_from_wire(reply.status);
        slot->left &= ~bit;
        if (status != 0 && slot->status == 0) {
            slot->status = status;
        }
        if (slot->left != 0) {
            return 0;
        }
        slot->request = 0;
        if (slot->state == EGM_SLOT_FREEING) {
            *slot = (struct egm_slot_entry){.state = EGM_SLOT_FREE};
        } else if (slot->state == EGM_SLOT_ASSIGNING) {
            slot->state = slot->status == 0 ? EGM_SLOT_HELD : EGM_SLOT_REFUSED;
        }
        return 0;
    }
    /* The reply to a change that another one has overtaken. */
    return 0;
}

/* ---- dispatch ---- */

int egm_pcore_receive(struct egm_pcore *core, uint64_t now_ns, const struct egm_frame *frame,
                      const uint8_t *payload, struct egm_pcore_verify *ret_verify)
{
    struct egm_cursor cursor = egm_cursor_of(payload, frame->length);

    if (!core->is_connected) {
        return EGM_E_PROTO;
    }
    switch (frame->type) {
    case EGM_MSG_MOUNT_REPLY:
        return mount_reply(core, frame, cursor);
    case EGM_MSG_UNMOUNT_REPLY:
        return unmount_reply(core, frame, cursor);
    case EGM_MSG_LEASE:
        return lease(core, now_ns, frame, cursor);
    case EGM_MSG_SLOT_CHANGE_REPLY:
        return slot_change_reply(core, frame, cursor);
    case EGM_MSG_RECORDS:
        return egm_pcore_records(core, frame, cursor);
    case EGM_MSG_VERIFY:
        return egm_pcore_verify_message(core, frame, cursor, ret_verify);
    default:
        return EGM_E_PROTO;
    }
}
