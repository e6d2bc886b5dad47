/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator: what its files share. The model is told in sim.c and docs/testing.md.
 *
 * All state hangs off one `struct world w`, zeroed for each seed. Files: sim.c (queue, clocks,
 * faults, phases, main), sim_net.c (connections), sim_master.c, sim_provider.c, sim_requester.c
 * (the production cores with stub shells), sim_oracle.c (what was told to whom, and the checks),
 * sim_watch.c (what masters decide, against their own state). */
#ifndef EGM_SIM_H
#define EGM_SIM_H

#include "base/buf.h"
#include "base/limits.h"
#include "base/mutant.h"

#include "wire/messages.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MASTERS 2
#define PROVIDERS 3
#define REQUESTERS 4
#define PROCESSES (MASTERS + PROVIDERS + REQUESTERS)
#define KEYS 12
#define BATCH 4
#define GRANULES 24
#define SLOTS (GRANULES * 16)
#define SEGMENT_BYTES (GRANULES * EGM_GRANULE)
#define MOST_CELLS 400
#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

/* ---- memory: one cell of 8 bytes stands for each 4 KiB of the pool ---- */
struct mem {
    uint64_t epoch, provider;
    uint64_t cells[SLOTS];
    _Atomic uint64_t floor;
    _Atomic uint64_t granule_fence[GRANULES];
    _Atomic uint64_t slot_fence[SLOTS];
    struct mem *next;
};

/* ---- events ---- */
enum event_kind {
    EV_ACCEPT,
    EV_FRAME,
    EV_CLOSED,
    EV_TICK,     /* master, provider, requester: their periodic work */
    EV_XFER,     /* provider: one step of a data port transfer; a: transfer */
    EV_POLL,     /* provider: is this importer's lock free? a: importer */
    EV_VERIFIED, /* provider: a: index of the verify */
    EV_RELEASE,  /* provider: drained long enough? */
    EV_NEXT_OP,  /* requester */
    EV_COPY,     /* requester: one step of a copy; a: call id */
    EV_TIMER,    /* requester: WAIT is over; a: call id */
    EV_DEADLINE, /* requester; a: call id */
    EV_ZOMBIE,   /* world: a dead or paused writer stores once more; a: writer */
    EV_GONE,     /* world: a dead process's mappings are gone; a: process, b: life */
    EV_FAULT,
    EV_START, /* world: a process starts again; a: process */
    EV_KIND_COUNT
};

struct event {
    uint64_t time, sequence;
    uint8_t kind;
    int proc; /* -1: the world itself */
    uint32_t life;
    int conn, side;
    uint64_t a, b;
    uint8_t *data;
    size_t size;
};

enum process_kind {
    MASTER,
    PROVIDER,
    REQUESTER
};

struct process {
    enum process_kind kind;
    int index;
    bool is_alive;
    uint32_t life;
    uint64_t paused_until;
    uint64_t clock_base; /* boot offset and forward jumps */
    int64_t rate_ppm;
    int choice; /* which master it turns to */
};

enum conn_kind {
    CONTROL,
    UNIX,
    DATA
};

struct conn {
    enum conn_kind kind;
    int proc[2];
    uint32_t life[2];
    bool is_open[2];
    bool is_broken;
    bool is_hung_up;  /* by the side that will hear of it by an event */
    uint64_t last[2]; /* when the last frame sent from this side arrives */
    uint64_t cut[2];  /* broken: nothing sent from this side arrives later */
    int tag[2];
};

/* ---- faults; each must have fired in a run (the test's budget) ---- */
enum fault {
    FAULT_BREAK,
    FAULT_PARTITION,
    FAULT_STALL,
    FAULT_KILL_REQUESTER,
    FAULT_KILL_PROVIDER,
    FAULT_KILL_MASTER,
    FAULT_SECOND_MASTER,
    FAULT_JUMP,
    FAULT_NO_MEMORY,
    FAULT_STRAY_END,
    FAULT_DRAIN,
    FAULT_SLOW,
    FAULT_ZOMBIE_STORE,
    FAULT_LATE_STORE,
    FAULT_LATE_SESSION,
    FAULT_COUNT
};

/* ---- the truth about who may store where ---- */
struct writer {
    bool is_active, is_zombie, is_tcp;
    struct mem *mem;
    uint32_t extent_count;
    struct egm_extent extents[EGM_MAX_EXTENTS];
    uint64_t generation, write_id;
    int proc;
    uint32_t life;
};
#define WRITERS 256
#define JUMPS 256

/* A mapping that an importer was given; its lock is free when is_mapped is false. */
struct mapping {
    bool is_mapped;
    int proc, conn;
    uint32_t life;
};

struct world {
    uint64_t seed, random, now, sequence, hash, steps;
    struct event *heap;
    uint32_t heap_count, heap_room;
    struct process procs[PROCESSES];
    struct conn *conns;
    uint32_t conn_count, conn_room;
    uint64_t blocked_until[PROCESSES][PROCESSES];
    uint64_t slow_until, late_frames, late_sessions, stuck_copies;
    bool is_chaos, is_draining; /* draining: no new calls */
    bool is_traced;
    uint32_t fault_weight[FAULT_COUNT];
    uint64_t next_epoch, next_write;
    struct mem *mems;
    struct writer writers[WRITERS];
    struct mapping *mappings;
    uint32_t mapping_count, mapping_room;
    struct {
        uint64_t instance, at;
    } jumps[JUMPS]; /* of masters' clocks; more than fit into a life's chaos */
    uint32_t jump_count;
    int asking_conn; /* the frame that a master is working on; -1: none */
    uint64_t asking_request;
    uint32_t no_memory_percent;
    bool is_memory_armed;
    char failure[512];
};
extern struct world w;

/* Counters over all seeds of a run. */
struct totals {
    uint64_t faults[FAULT_COUNT];
    uint64_t no_space, closed, too_large, presence[2]; /* answers that were judged */
    uint64_t seeds, steps, calls[8], ok[8], hits, grants, evictions, quarantines, parked;
};
extern struct totals totals;

/* ---- sim.c ---- */
uint64_t rnd(uint64_t below);
bool chance(uint32_t percent);
uint64_t local_ns(int proc);
/* The true time at which the process's clock will show `local`. */
uint64_t true_time(int proc, uint64_t local);
struct event *post(uint64_t time, enum event_kind kind, int proc);
void mix(uint64_t value);
__attribute__((format(printf, 1, 2))) void fail(const char *fmt, ...);
__attribute__((format(printf, 1, 2))) void trace(const char *fmt, ...);
int proc_of(enum process_kind kind, int index);
void process_kill(int proc);
void process_start(int proc);
/* Did the clock of that master jump at this true time or later? */
bool has_jumped_since(uint64_t instance, uint64_t since);
/* The master that the process turns to now, or -1. */
int pick_master(int proc);
/* From here to sim_memory_end, the n-th allocation may be refused. */
void memory_begin(void);
void memory_end(void);

/* ---- sim_net.c ---- */
int net_connect(int proc, int target, enum conn_kind kind); /* -1: refused */
void net_send(int conn, int proc, const void *data, size_t size);
/* What this side sends from now on takes at least so long. */
void net_hold(int conn, int proc, uint64_t ns);
void net_close(int conn, int proc);
void net_hang_up(int conn, int proc);
void net_break(int conn);
void net_process_died(int proc);
int net_side(int conn, int proc);

/* ---- the actors ---- */
void master_start(int proc);
void master_stop(int proc);
void master_event(const struct event *e);
uint64_t master_instance(int proc);
const struct egm_master *master_core(int proc); /* NULL: stopped */
int master_of_core(const struct egm_master *core);
bool master_query(int proc, int key, uint64_t *ret_offset, uint64_t *ret_provider);
const char *master_reclaimed(int proc); /* NULL: everything is free, else what is not */
void master_peek(void);

void provider_start(int proc);
void provider_stop(int proc);
void provider_event(const struct event *e);
void provider_drain(int proc);
/* Does this provider, of this epoch, take that master instance for the holder of a lease that
 * runs? */
bool provider_is_leased_to(uint64_t provider, uint64_t epoch, uint64_t instance);
bool provider_is_alive(uint64_t provider, uint64_t epoch); /* in this life */
bool provider_has_floor(uint64_t provider, uint64_t epoch, uint64_t floor);
/* Over the same connection since `since`, mounted and leased. */
bool provider_is_connected_to(uint64_t provider, uint64_t epoch, int master, uint64_t since);
struct mem *mem_of(uint64_t epoch);
uint64_t tenant_hash(void);

void requester_start(int proc);
void requester_stop(int proc);
void requester_event(const struct event *e);
bool requester_is_idle(int proc);
void requester_was_paused(int proc);
void requester_stray_end(int proc);
/* Its next call is a check of the healed system. */
enum final_call {
    FINAL_REMOVE_ALL = 1,
    FINAL_PUT,
    FINAL_GET
};
void requester_final(int proc, enum final_call what);
bool requester_final_is_ok(int proc);
/* The call that waits for this answer. */
struct waiting_call {
    int kind;
    bool is_forced;
    int key_count, keys[BATCH];
    uint64_t began;
};
bool requester_waits_for(int proc, uint64_t request, struct waiting_call *ret);
/* Leased reads overlapping these extents? */
bool requester_reads(const struct mem *mem, const struct egm_extent *extents, uint32_t count);
void requester_forget_leases(uint64_t instance);

/* ---- sim_oracle.c ---- */
enum call_kind {
    CALL_PUT,
    CALL_UPSERT,
    CALL_GET,
    CALL_EXIST,
    CALL_REMOVE,
    CALL_REMOVE_ALL
};
void oracle_reset(void);
uint64_t oracle_new_write(int proc, int key, uint64_t size, uint64_t generation, uint64_t instance,
                          bool is_upsert, const struct mem *mem);
void oracle_note_place(uint64_t write_id, const struct egm_extent *extents, uint32_t count);
void oracle_end_sent(uint64_t write_id);
void oracle_acked(uint64_t write_id);
void oracle_removed(int key, uint64_t began, uint64_t instance); /* key -1: all */
void oracle_got(int key, uint64_t began, uint64_t size, uint64_t generation, uint64_t instance,
                const uint64_t *cells, uint32_t count);
void oracle_exists(int key, uint64_t began, uint64_t instance);
/* A master sends this frame to that requester; one of its peers sent it that. */
void oracle_master_sends(int master, int requester, int conn, const struct egm_frame *frame,
                         const uint8_t *payload);
void oracle_granted(int master, uint64_t generation, uint64_t provider, uint64_t epoch,
                    const struct egm_extent *extents, uint32_t count);
void oracle_before_end(int master, const struct egm_frame *frame, const uint8_t *payload);
void oracle_after_end(int master);
/* A generation that somebody is writing now, for stray PUT_ENDs; 0: none. */
uint64_t oracle_any_generation(int proc);
int writer_open(const struct writer *writer);
void writer_close(int id);
bool extents_overlap(const struct egm_extent *a, uint32_t a_count, const struct egm_extent *b,
                     uint32_t b_count);
uint32_t extent_slot(const struct egm_extent *extents, uint32_t count,
                     uint32_t index); /* cell number, or UINT32_MAX */
const char *key_name(int key);

/* ---- sim_watch.c ---- */
/* A master begins to work on this frame; it answers it. */
void watch_asked(const struct egm_frame *frame, const uint8_t *payload);
/* The generation of the key's sealed object, in reach or not; 0: there is none. */
uint64_t watch_sealed(int master, int key);
void watch_exist_reply(int master, const uint8_t *payload, uint32_t size);
void watch_get_reply(int master, const uint8_t *payload, uint32_t size);
/* Somebody begins to count on these places of that generation, by a lease that runs. */
void watch_taken_up(const char *what, const struct mem *mem, uint64_t generation,
                    const struct egm_extent *extents, uint32_t count);

#endif
