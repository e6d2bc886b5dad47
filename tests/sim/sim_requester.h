/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated requester process, and what its three files offer one another: sim_requester.c
 * (life, links, attachments, events), sim_call.c (calls and their steps), sim_copy.c (copies and
 * read leases). */
#ifndef EGM_SIM_REQUESTER_H
#define EGM_SIM_REQUESTER_H

#include "core/requester.h"
#include "sim_data.h"

#define DEADLINE (8 * SECOND)

enum link_state {
    LINK_NONE,
    LINK_HELLO,
    LINK_IDLE,
    LINK_BUSY
};
enum request_kind {
    ASK_SESSION = 1,
    ASK_PING,
    ASK_LAYOUT,
    ASK_CALL
};

struct link {
    int conn;
    enum link_state state;
    enum request_kind asked;
    uint64_t instance, request, sent, next_request;
};

struct attachment {
    int conn; /* -1: none */
    bool is_up, is_map, is_leaving;
    uint64_t provider, epoch, asked_at;
    struct mem *mem;
    int mapping;
};

struct read_lease {
    bool is_active;
    struct mem *mem;
    uint32_t extent_count;
    struct egm_extent extents[EGM_MAX_EXTENTS];
    uint64_t instance;
};

struct call {
    bool is_running, is_data, is_copying, is_waiting_timer, was_paused;
    bool is_promise_void; /* a master's clock jumped since this was asked */
    int kind;
    uint64_t id, began, began_local, deadline, sent_true;
    int key_count, keys[BATCH];
    struct egm_key names[BATCH];
    struct egm_op op;
    struct egm_op_item items[BATCH];
    uint64_t write_ids[BATCH];
    int results[BATCH];
    uint8_t flags;
    struct egm_retry retry;
    struct egm_layout_snapshot *view;
    uint64_t answered_by;
    /* the copy */
    uint32_t list_count, at, cell;
    uint32_t list_item[BATCH * 4], list_place[BATCH * 4];
    bool is_chunk_open;
    int writer[BATCH * 4];
    int copy_status;
    bool is_remote; /* a data request is out */
    uint64_t remote_request;
    uint64_t cells[MOST_CELLS];
    struct read_lease leases[BATCH * 4];
};

struct requester {
    struct egm_requester core;
    bool is_live, prefers_map, wants_layout, has_told;
    struct link main, ping;
    struct egm_layout_snapshot *layout;
    struct attachment at[PROVIDERS];
    struct call call;
    uint64_t next_call, next_data, pinged_at;
    enum final_call final;
    bool is_final_ok;
};
extern struct requester req_all[REQUESTERS];

void req_send_buf(int conn, int proc, struct egm_buf *buf);
void req_link_drop(struct link *link, int proc);
void req_link_ask(struct link *link, int proc, enum request_kind what, struct egm_buf *buf);
bool req_link_is_ready(struct requester *r, int proc, struct link *link);
void req_attach_all(struct requester *r, int proc);
struct attachment *req_attachment_of(struct requester *r, const struct egm_place *place);
void req_detach(struct requester *r, int proc, struct attachment *a);
void req_attach_reply(struct requester *r, int proc, struct attachment *a, const uint8_t *payload,
                      uint32_t size);
void req_unmap(struct attachment *a);
bool req_is_pinned(const struct requester *r);
void req_later(int proc, enum event_kind kind, uint64_t call, uint64_t ns);
void req_copy_begin(struct requester *r, int proc);
void req_copy_step(struct requester *r, int proc);
void req_place_done(struct requester *r, int proc, int status);
void req_remote_answer(struct requester *r, int proc, const uint8_t *payload, size_t size);
void req_note_leases(struct requester *r, int proc);
void req_drop_leases(struct call *c);
void req_drive(struct requester *r, int proc);
void req_call_failed(struct requester *r, int proc, int code);
void req_finish_simple(struct requester *r, int proc, int code);
void req_data_answer(struct requester *r, int proc, const uint8_t *payload, uint32_t size);
void req_simple_answer(struct requester *r, int proc, const uint8_t *payload, uint32_t size);
void req_leave_window(struct requester *r);
void req_next_call(struct requester *r, int proc);

#endif
