/* SPDX-License-Identifier: Apache-2.0 */
/* Providers: joining, leases, loss and return.
 *
 * A provider {id, epoch} brings segments; each becomes a mount, a number that is never used again
 * in this life of the master. Phases:
 *
 *   JOINING --lease granted--> READY --UNMOUNT--> DRAINING --connection closed--> gone
 *                               |  ^                                               ^
 *          connection lost      v  | MOUNT, same epoch and term                    |
 *                              LOST -------- session_ttl without it ---------------+
 *
 * What their mounts go through meanwhile: master_mount.c. */
#include "base/alloc.h"
#include "base/log.h"
#include "base/mutant.h"

#include "core/master_state.h"

#include <errno.h>
#include <string.h>

#define LEASE_EVERY_NS 1000000000u

uint32_t egm_provider_find(const struct egm_master *m, uint64_t id)
{
    for (uint32_t i = 0; i < m->provider_room; i++) {
        if (m->providers[i].id == id) {
            return i;
        }
    }
    return EGM_NONE;
}

struct egm_provider_state *egm_provider_of_peer(struct egm_master *m, uint32_t peer)
{
    uint32_t provider = m->peers[peer].provider;
    return provider == EGM_NONE ? NULL : &m->providers[provider];
}

/* ---- lives that were given up ---- */
static void remember_life(struct egm_master *m, const struct egm_provider_state *p)
{
    uint64_t read_until_ns = egm_max_u64(p->lease_until_ns, p->read_until_ns);
    if (read_until_ns <= m->now_ns) {
        return;
    }
    for (uint32_t i = 0; i < EGM_GONE_LIVES; i++) {
        if (m->gone[i].read_until_ns <= m->now_ns) {
            m->gone[i] = (struct egm_gone_life){.epoch = p->epoch, .read_until_ns = read_until_ns};
            return;
        }
    }
    m->gone_until_ns = egm_max_u64(m->gone_until_ns, read_until_ns);
}

/* Until when read leases may run in memory of that epoch that this master knew before. */
static uint64_t remembered_until(const struct egm_master *m, uint64_t epoch)
{
    uint64_t until_ns = m->gone_until_ns;
    for (uint32_t i = 0; i < EGM_GONE_LIVES; i++) {
        if (m->gone[i].epoch == epoch) {
            until_ns = egm_max_u64(until_ns, m->gone[i].read_until_ns);
        }
    }
    return until_ns;
}

/* ---- joining ---- */
static void retire(struct egm_master *m, uint32_t provider)
{
    struct egm_provider_state *p = &m->providers[provider];
    egm_info("provider is gone name=%s epoch=%016llx", p->name, (unsigned long long)p->epoch);
    remember_life(m, p);
    egm_slots_drop(m, p);
    for (uint32_t i = p->first_mount; i < p->first_mount + p->mount_count; i++) {
        m->mounts[i].provider = EGM_NONE;
    }
    if (p->peer != EGM_NONE) {
        m->peers[p->peer].provider = EGM_NONE;
    }
    egm_records_requeue(m, provider); /* settles whoever waits */
    egm_provider_release(p);
    m->layout++;
    egm_master_sweep(m);
    egm_master_wake(m);
}

void egm_provider_release(struct egm_provider_state *p)
{
    if (!p->id) {
        return;
    }
    egm_records_release(p);
    egm_free(p->name);
    egm_free(p->unix_path);
    egm_free(p->data_address);
    egm_free(p->slots);
    *p = (struct egm_provider_state){.peer = EGM_NONE};
}

/* What MOUNT carries behind its head. Both arrays are owned. */
struct mount_lists {
    struct egm_segment *segments;
    struct egm_slot *slots;
};

static void free_lists(struct mount_lists *lists)
{
    egm_free(lists->segments);
    egm_free(lists->slots);
}

static int take_lists(struct egm_cursor *cursor, const struct egm_mount *head,
                      struct mount_lists *ret_lists)
{
    if (!egm_cursor_expect(cursor, head->segment_count, 16, EGM_MAX_SEGMENTS) ||
        head->segment_count == 0) {
        return EGM_E_PROTO;
    }
    struct mount_lists lists = {.segments =
                                    egm_calloc(head->segment_count, sizeof *lists.segments)};
    for (uint32_t i = 0; i < head->segment_count && lists.segments; i++) {
        egm_take_segment(cursor, &lists.segments[i]);
        if (lists.segments[i].size < 2 * EGM_GRANULE ||
            lists.segments[i].size > EGM_MAX_SEGMENT_BYTES) {
            cursor->failed = EGM_E_PROTO;
        }
    }
    if (egm_cursor_expect(cursor, head->slot_count, 18,
                          (uint64_t)EGM_MAX_SLOTS * head->segment_count)) {
        lists.slots = egm_calloc(head->slot_count + 1, sizeof *lists.slots);
        for (uint32_t i = 0; i < head->slot_count && lists.slots; i++) {
            egm_take_slot(cursor, &lists.slots[i]);
        }
    }
    int r = cursor->failed                    ? EGM_E_PROTO
            : !lists.segments || !lists.slots ? -ENOMEM
                                              : egm_cursor_end(cursor);
    if (r < 0) {
        free_lists(&lists);
        return r;
    }
    *ret_lists = lists;
    return 0;
}

static int new_provider(struct egm_master *m, const struct egm_mount *head, uint32_t *ret_provider)
{
    uint32_t slot = 0;
    while (slot < m->provider_room && m->providers[slot].id) {
        slot++;
    }
    if (slot == m->provider_room) {
        uint32_t room = m->provider_room ? m->provider_room * 2 : 8;
        struct egm_provider_state *grown = egm_alloc(room * sizeof *grown);
        if (!grown || room > 2 * EGM_MAX_SEGMENTS) {
            egm_free(grown);
            return grown ? EGM_E_LIMIT : -ENOMEM;
        }
        for (uint32_t i = 0; i < room; i++) {
            grown[i] = i < m->provider_room ? m->providers[i]
                                            : (struct egm_provider_state){.peer = EGM_NONE};
            if (i < m->provider_room &&
                grown[i].id) { /* list heads point to themselves or are pointed to */
                struct egm_link moved;
                egm_list_init(&moved);
                while (!egm_list_is_empty(&m->providers[i].batches)) {
                    egm_list_push_back(&moved, egm_list_pop_front(&m->providers[i].batches));
                }
                egm_list_init(&grown[i].batches);
                while (!egm_list_is_empty(&moved)) {
                    egm_list_push_back(&grown[i].batches, egm_list_pop_front(&moved));
                }
            }
        }
        egm_free(m->providers);
        m->providers = grown;
        m->provider_room = room;
    }
    struct egm_provider_state *p = &m->providers[slot];
    *p = (struct egm_provider_state){
        .id = head->provider,
        .epoch = head->epoch,
        .host = head->host,
        .peer = EGM_NONE,
        .resync_at = EGM_NONE,
        .name = egm_strndup((const char *)head->name.data, head->name.size),
        .unix_path = egm_strndup((const char *)head->unix_path.data, head->unix_path.size),
        .data_address =
            egm_strndup((const char *)head->data_address.data, head->data_address.size)};
    egm_list_init(&p->batches);
    egm_buf_init(&p->quiet, EGM_MAX_FRAME / 2);
    if (!p->name || !p->unix_path || !p->data_address) {
        egm_provider_release(p);
        return -ENOMEM;
    }
    *ret_provider = slot;
    return 0;
}

static int add_mounts(struct egm_master *m, uint32_t provider, const struct egm_segment *segments,
                      uint32_t count)
{
    struct egm_mount_state *grown =
        egm_realloc(m->mounts, (m->mount_count + count) * sizeof *grown);
    if (!grown) {
        return -ENOMEM;
    }
    m->mounts = grown;
    for (uint32_t i = 0; i < count; i++) {
        struct egm_mount_state *mount = &m->mounts[m->mount_count + i];
        *mount = (struct egm_mount_state){.provider = provider,
                                          .segment = segments[i].segment,
                                          .numa_node = segments[i].numa_node,
                                          .size = egm_align_down(segments[i].size, EGM_GRANULE)};
        int r = egm_eviction_init(&mount->eviction,
                                  (uint32_t)egm_min_u64(segments[i].size / EGM_GRANULE, 1u << 20));
        if (r < 0) {
            while (i-- > 0) {
                egm_eviction_release(&m->mounts[m->mount_count + i].eviction);
            }
            return r;
        }
    }
    m->providers[provider].first_mount = m->mount_count;
    m->providers[provider].mount_count = count;
    m->mount_count += count;
    return 0;
}

/* The same life came back: is what it brings what is known? */
static bool is_same_life(const struct egm_provider_state *p, const struct egm_mount *head)
{
    /* p->term: the LEASE that raised it may have arrived although its answer has not. */
    return (p->epoch == head->epoch || EGM_MUTANT(21)) && p->leased_term &&
           (p->leased_term == head->term || p->term == head->term || EGM_MUTANT(21)) &&
           p->mount_count == head->segment_count && p->phase != EGM_PHASE_DRAINING;
}

/* The request id is the time of asking: the answer brings it back, so that a late answer counts
 * from its own question (I4). The term of a provider that is ready follows the master's, and is
 * told before anything of it is granted there: then its records never raise the provider's term
 * above what it is leased under. */
static void send_lease(struct egm_master *m, struct egm_provider_state *p)
{
    p->lease_asked_ns = m->now_ns;
    p->lease_next_ns = m->now_ns + LEASE_EVERY_NS;
    p->term = p->phase == EGM_PHASE_READY ? m->term : p->term;
    egm_buf_clear(&m->scratch);
    size_t begin = egm_frame_begin(&m->scratch, EGM_MSG_LEASE, m->now_ns);
    egm_put_lease(&m->scratch,
                  &(struct egm_lease){.instance = m->options.instance,
                                      .term = p->term,
                                      .duration_ms = (uint32_t)m->options.segment_lease_ms});
    egm_master_reply(m, p->peer, &m->scratch, begin);
}

/* Above every term that any provider has accepted (I13); those that are ready are told at once. */
static void raise_term(struct egm_master *m, uint32_t term)
{
    m->term = term;
    for (uint32_t i = 0; i < m->provider_room; i++) {
        struct egm_provider_state *p = &m->providers[i];
        if (p->id && p->peer != EGM_NONE && p->phase == EGM_PHASE_READY) {
            send_lease(m, p);
        }
    }
}

static int join(struct egm_master *m, uint32_t peer, const struct egm_mount *head,
                const struct mount_lists *lists)
{
    uint32_t provider = egm_provider_find(m, head->provider);
    if (provider != EGM_NONE && m->providers[provider].peer != EGM_NONE) {
        uint32_t old = m->providers[provider].peer;
        m->peers[old].provider = EGM_NONE;
        m->providers[provider].peer = EGM_NONE;
        /* Should that one be the living, it mounts again. */
        egm_master_violation(m, old, "its provider connected anew");
    }
    if (provider != EGM_NONE && !is_same_life(&m->providers[provider], head)) {
        retire(m, provider); /* a MOUNT that was long on its way can do that to the living */
        provider = EGM_NONE;
    }
    bool is_back = provider != EGM_NONE;
    int r = is_back ? 0 : new_provider(m, head, &provider);
    if (r == 0 && !is_back) {
        r = add_mounts(m, provider, lists->segments, head->segment_count);
        if (r < 0) {
            egm_provider_release(&m->providers[provider]);
        }
    }
    if (r < 0) {
        return r;
    }
    struct egm_provider_state *p = &m->providers[provider];
    p->peer = peer;
    m->peers[peer].provider = provider;
    if (head->term >= m->term && !is_back) {
        raise_term(m, head->term + (EGM_MUTANT(17) && head->term ? 0 : 1));
    }
    p->term = is_back ? p->term : m->term;
    p->phase = EGM_PHASE_JOINING;
    p->lease_next_ns = m->now_ns;
    p->read_until_ns =
        is_back ? egm_max_u64(p->lease_until_ns, p->read_until_ns) : remembered_until(m, p->epoch);
    p->lease_until_ns = 0;
    r = egm_slots_set(m, p, lists->slots, head->slot_count);
    if (r < 0) {
        egm_master_violation(m, peer, "no memory for its importers: it must mount again");
        return r;
    }
    if (is_back) {
        egm_records_requeue(m, provider);
        p->resync_at = 0;
    }
    egm_info("provider %s name=%s segments=%u slots=%u", is_back ? "is back" : "joins", p->name,
             p->mount_count, p->slot_count);
    return 0;
}

void egm_mount_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                       struct egm_cursor cursor)
{
    struct egm_mount head;
    struct mount_lists lists;
    egm_take_mount(&cursor, &head);
    bool is_sane = !cursor.failed && m->peers[peer].provider == EGM_NONE && head.provider &&
                   head.epoch && head.name.size > 0 && head.name.size <= EGM_MAX_NAME &&
                   head.term < (1u << 20) - 1;
    int r = is_sane ? take_lists(&cursor, &head, &lists) : EGM_E_PROTO;
    if (r == EGM_E_PROTO) {
        egm_master_violation(m, peer, "malformed MOUNT");
        return;
    }
    if (r == 0) {
        r = join(m, peer, &head, &lists);
        free_lists(&lists);
    }
    egm_buf_clear(&m->scratch);
    size_t begin = egm_frame_begin(&m->scratch, EGM_MSG_MOUNT_REPLY, frame->request);
    const char *reason = r < 0 ? egm_strerror(r) : "";
    egm_put_mount_reply(&m->scratch,
                        &(struct egm_mount_reply){.status = egm_status_to_wire(r),
                                                  .reason = egm_bytes_of(reason, strlen(reason))});
    egm_master_reply(m, peer, &m->scratch, begin);
    if (r == 0) {
        send_lease(m, &m->providers[m->peers[peer].provider]);
    }
}

/* Who has a slot here may have been given writes by another master, until this moment, or by us
 * before the provider was given up. So it has to tell again which it has before anything is placed
 * here: it is answered that it is not known. */
static void ask_writers(struct egm_master *m, const struct egm_provider_state *p)
{
    for (uint32_t i = 0; i < p->slot_count && !EGM_MUTANT(24); i++) {
        uint32_t session = egm_session_find(m, p->slots[i].session);
        if (session != EGM_NONE && p->slots[i].kind == EGM_IMPORT_MAP) {
            egm_session_ask(m, session);
        }
    }
}

/* The first lease of a joining provider is ours: nobody else grants there any more (I13). */
static void make_ready(struct egm_master *m, struct egm_provider_state *p)
{
    bool is_asked = false;
    p->phase = EGM_PHASE_READY;
    for (uint32_t i = p->first_mount; i < p->first_mount + p->mount_count; i++) {
        if (m->mounts[i].is_placeable_once) {
            continue;
        }
        if (!is_asked) {
            ask_writers(m, p);
            is_asked = true;
        }
        egm_mount_resolve_one(m, i);
    }
    m->layout++;
    egm_info("provider is ready name=%s term=%u", p->name, p->term);
    if (p->term < m->term) {
        send_lease(m, p);
    }
    egm_master_wake(m);
}

void egm_lease_reply_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                             struct egm_cursor cursor)
{
    struct egm_lease_reply reply;
    egm_take_lease_reply(&cursor, &reply);
    struct egm_provider_state *p = egm_provider_of_peer(m, peer);
    if (egm_cursor_end(&cursor) < 0 || !p || frame->request > p->lease_asked_ns) {
        egm_master_violation(m, peer, "unexpected LEASE_REPLY");
        return;
    }
    int status = egm_status_from_wire(reply.status);
    if (status == EGM_E_STALE) {
        p->term = 0; /* what it brings next time is another life, whatever its number */
        p->leased_term = 0;
        egm_master_violation(m, peer, "another master has a newer term there: it must mount anew");
        return;
    }
    if (status < 0) { /* another master's lease still runs */
        uint64_t wait_ms = egm_min_u64(reply.remaining_ms + 5u, 1000);
        p->lease_next_ns = m->now_ns + egm_ms(wait_ms);
        return;
    }
    uint64_t duration_ns = egm_ms(m->options.segment_lease_ms);
    p->lease_until_ns = (EGM_MUTANT(4) ? m->now_ns : frame->request) + duration_ns -
                        egm_max_u64(1000000, duration_ns / 1000); /* I4 */
    p->leased_term = reply.term;
    if (p->phase == EGM_PHASE_JOINING) {
        make_ready(m, p);
    }
}

/* ---- leaving ---- */
void egm_unmount_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                         struct egm_cursor cursor)
{
    struct egm_unmount unmount;
    egm_take_unmount(&cursor, &unmount);
    struct egm_provider_state *p = egm_provider_of_peer(m, peer);
    if (egm_cursor_end(&cursor) < 0) {
        egm_master_violation(m, peer, "malformed UNMOUNT");
        return;
    }
    bool is_known = p && p->id == unmount.provider && p->epoch == unmount.epoch;
    if (is_known && unmount.mode == EGM_UNMOUNT_NOW) {
        retire(m, m->peers[peer].provider);
    } else if (is_known) {
        p->phase = EGM_PHASE_DRAINING; /* its objects are hidden from here on */
        m->layout++;
        egm_info("provider drains name=%s importers=%u", p->name, p->slot_count);
    }
    egm_buf_clear(&m->scratch);
    size_t begin = egm_frame_begin(&m->scratch, EGM_MSG_UNMOUNT_REPLY, frame->request);
    egm_put_result(
        &m->scratch,
        &(struct egm_result){.status = 0}); /* one that is gone already is gone: idempotent */
    egm_master_reply(m, peer, &m->scratch, begin);
}

void egm_provider_disconnected(struct egm_master *m, uint32_t provider)
{
    struct egm_provider_state *p = &m->providers[provider];
    p->peer = EGM_NONE;
    if (p->phase == EGM_PHASE_DRAINING) {
        retire(m, provider);
        return;
    }
    egm_warn("provider connection lost, waiting for it name=%s", p->name);
    p->phase = EGM_PHASE_LOST;
    p->lost_at_ns = m->now_ns;
    m->layout++;
    egm_records_requeue(m, provider); /* whoever waits for it goes on: it is not reachable */
    for (uint32_t i = 0; i < p->drop_count; i++) {
        egm_request_settle(m, p->drops[i]);
    }
}

void egm_provider_tick(struct egm_master *m)
{
    for (uint32_t i = 0; i < m->provider_room; i++) {
        struct egm_provider_state *p = &m->providers[i];
        if (!p->id) {
            continue;
        }
        /* No read lease reaches beyond lease_until_ns: until then the same memory must not come
         * back as new (I3 a). */
        if (p->phase == EGM_PHASE_LOST && m->now_ns >= p->lease_until_ns &&
            m->now_ns - p->lost_at_ns > egm_ms(m->options.session_ttl_ms)) {
            retire(m, i);
        } else if (p->peer != EGM_NONE && p->lease_next_ns <= m->now_ns) {
            send_lease(m, p);
        }
        if (p->id) { /* else it was retired just now */
            egm_records_find_lost(m, i);
        }
        for (uint32_t k = p->first_mount; p->id && k < p->first_mount + p->mount_count; k++) {
            if (!m->mounts[k].is_placeable_once) {
                egm_mount_resolve_one(
                    m, k); /* its last writer went, or memory was out when it was due */
            }
        }
    }
}

void egm_master_release_leases(struct egm_master *m)
{
    for (uint32_t i = 0; i < m->provider_room; i++) {
        struct egm_provider_state *p = &m->providers[i];
        if (p->id && p->peer != EGM_NONE && p->leased_term) {
            p->lease_until_ns = 0; /* nothing is granted there any more, whatever is answered */
            egm_buf_clear(&m->scratch);
            size_t begin = egm_frame_begin(&m->scratch, EGM_MSG_LEASE, 0);
            egm_put_lease(&m->scratch,
                          &(struct egm_lease){.instance = m->options.instance, .term = p->term});
            egm_master_reply(m, p->peer, &m->scratch, begin);
        }
    }
}

void egm_layout_message(struct egm_master *m, uint32_t peer, const struct egm_frame *frame,
                        struct egm_cursor cursor)
{
    struct egm_layout ask;
    egm_take_layout(&cursor, &ask);
    if (egm_cursor_end(&cursor) < 0) {
        egm_master_violation(m, peer, "malformed LAYOUT");
        return;
    }
    struct egm_layout_reply reply = {.layout = m->layout};
    for (uint32_t i = 0; i < m->provider_room; i++) {
        reply.provider_count += m->providers[i].id != 0;
    }
    egm_buf_clear(&m->scratch);
    size_t begin = egm_frame_begin(&m->scratch, EGM_MSG_LAYOUT_REPLY, frame->request);
    egm_put_layout_reply(&m->scratch, &reply);
    for (uint32_t i = 0; i < m->provider_room; i++) {
        const struct egm_provider_state *p = &m->providers[i];
        if (!p->id) {
            continue;
        }
        egm_put_provider_info(
            &m->scratch, &(struct egm_provider_info){
                             .provider = p->id,
                             .epoch = p->epoch,
                             .host = p->host,
                             .state = (uint8_t)p->phase,
                             .name = egm_bytes_of(p->name, strlen(p->name)),
                             .unix_path = egm_bytes_of(p->unix_path, strlen(p->unix_path)),
                             .data_address = egm_bytes_of(p->data_address, strlen(p->data_address)),
                             .mount_count = p->mount_count});
        for (uint32_t k = p->first_mount; k < p->first_mount + p->mount_count; k++) {
            egm_put_mount_info(&m->scratch,
                               &(struct egm_mount_info){.mount = k,
                                                        .segment = m->mounts[k].segment,
                                                        .size = m->mounts[k].size});
        }
    }
    egm_master_reply(m, peer, &m->scratch, begin);
}
