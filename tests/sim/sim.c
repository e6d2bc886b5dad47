/* SPDX-License-Identifier: Apache-2.0 */
/* A deterministic simulator of masters, providers and requesters (STYLE 6, DESIGN 3).
 *
 * What is real: the cores of src/core and src/wire, frame by frame. What is simulated: time, the
 * network, processes, memory (one 8-byte cell for each 4 KiB), and the shells, which are stubs of
 * src/master, src/provider and src/client. What it cannot show: the kernel, memory ordering,
 * CUDA, throughput, and faults of the real shells.
 *
 * One queue of events, ordered by (time, sequence): equal times go in the order in which they
 * were posted. Every process has a clock of its own (boot offset, rate within 0.04 %, jumps);
 * events of a paused process wait for it. After each event the masters are checked whole, and
 * what was told to whom is checked by sim_oracle.c. A seed is one life: chaos, then healing, in
 * which every call must end, everything must be reclaimable and the system must serve again.
 *
 *   sim --seed N            one seed, twice, comparing the hash of both runs (--trace prints it)
 *   sim --lives N --from M  seeds M .. M+N-1
 *   sim --seconds S         as many as fit
 *   sim --file F            the seeds listed in a file
 *   sim --mutant K          with a deliberate defect: exit 0 when it is found */
#include "sim.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/parse.h"

#include "mutants.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHAOS (12 * SECOND)
#define HEAL (45 * SECOND)

struct world w;
struct totals totals;
int egm_sim_mutant;

static const char *const fault_names[FAULT_COUNT] = {
    "break",       "partition",     "stall",        "kill_requester", "kill_provider",
    "kill_master", "second_master", "clock_jump",   "no_memory",      "stray_end",
    "drain",       "slow",          "zombie_store", "late_store",     "late_session"};

/* ---- randomness, log, clocks ---- */
uint64_t rnd(uint64_t below)
{
    w.random += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = w.random;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    return below ? z % below : 0;
}

bool chance(uint32_t percent)
{
    return rnd(100) < percent;
}

void mix(uint64_t value)
{
    w.hash = (w.hash ^ value) * UINT64_C(0x100000001b3);
    w.hash ^= w.hash >> 29;
}

void fail(const char *fmt, ...)
{
    if (w.failure[0]) {
        return; /* the first one tells */
    }
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(w.failure, sizeof w.failure, fmt, ap);
    va_end(ap);
}

void trace(const char *fmt, ...)
{
    if (!w.is_traced) {
        return;
    }
    va_list ap;
    va_start(ap, fmt);
    printf("%12.6f  ", (double)w.now / 1e9);
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
}

uint64_t local_ns(int proc)
{
    const struct process *p = &w.procs[proc];
    int64_t drift = (int64_t)(w.now / 1000000) * p->rate_ppm;
    return p->clock_base + (uint64_t)((int64_t)w.now + drift);
}

int proc_of(enum process_kind kind, int index)
{
    return index + (kind == MASTER ? 0 : kind == PROVIDER ? MASTERS : MASTERS + PROVIDERS);
}

/* ---- the queue ---- */
static bool is_before(const struct event *a, const struct event *b)
{
    return a->time < b->time || (a->time == b->time && a->sequence < b->sequence);
}

struct event *post(uint64_t time, enum event_kind kind, int proc)
{
    if (w.heap_count == w.heap_room) {
        w.heap_room = w.heap_room ? w.heap_room * 2 : 1024;
        w.heap = realloc(w.heap, w.heap_room * sizeof *w.heap);
    }
    struct event e = {.time = time < w.now ? w.now : time,
                      .sequence = ++w.sequence,
                      .kind = (uint8_t)kind,
                      .proc = proc};
    uint32_t at = w.heap_count++;
    while (at > 0 && is_before(&e, &w.heap[(at - 1) / 2])) {
        w.heap[at] = w.heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    w.heap[at] = e;
    return &w.heap[at]; /* the caller fills in the rest, before it posts again */
}

static struct event pop(void)
{
    struct event top = w.heap[0];
    struct event last = w.heap[--w.heap_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = at * 2 + 1;
        if (child >= w.heap_count) {
            break;
        }
        if (child + 1 < w.heap_count && is_before(&w.heap[child + 1], &w.heap[child])) {
            child++;
        }
        if (!is_before(&w.heap[child], &last)) {
            break;
        }
        w.heap[at] = w.heap[child];
        at = child;
    }
    w.heap[at] = last;
    return top;
}

/* ---- memory refusal ---- */
void memory_begin(void)
{
    if (w.no_memory_percent && w.is_chaos && chance(w.no_memory_percent)) {
        egm_alloc_fail_after((int64_t)rnd(6));
        w.is_memory_armed = true;
    }
}

void memory_end(void)
{
    if (w.is_memory_armed) {
        totals.faults[FAULT_NO_MEMORY] += !egm_alloc_fail_is_armed();
        egm_alloc_fail_after(-1);
        w.is_memory_armed = false;
    }
}

/* ---- processes ---- */
int pick_master(int proc)
{
    int alive[MASTERS];
    int count = 0;
    for (int i = 0; i < MASTERS; i++) {
        if (w.procs[proc_of(MASTER, i)].is_alive) {
            alive[count++] = proc_of(MASTER, i);
        }
    }
    if (count == 0) {
        return -1;
    }
    if (chance(25)) {
        w.procs[proc].choice = (int)rnd(2);
    }
    return alive[w.procs[proc].choice % count];
}

void process_start(int proc)
{
    struct process *p = &w.procs[proc];
    p->is_alive = true;
    p->life++;
    p->paused_until = 0;
    trace("start proc=%d life=%u", proc, p->life);
    if (p->kind == MASTER) {
        master_start(proc);
    } else if (p->kind == PROVIDER) {
        provider_start(proc);
    } else {
        requester_start(proc);
    }
}

static void make_zombies(int proc)
{
    uint64_t gone = w.now + (chance(50) ? rnd(50 * MS) : rnd(15 * SECOND));
    for (int i = 0; i < WRITERS; i++) {
        struct writer *writer = &w.writers[i];
        if (writer->is_active && !writer->is_tcp && writer->proc == proc &&
            writer->life == w.procs[proc].life) {
            writer->is_zombie = true;
            for (int n = 0; n < 4; n++) {
                struct event *e = post(w.now + rnd(gone - w.now + 1), EV_ZOMBIE, -1);
                e->a = (uint64_t)i;
                e->b = writer->generation;
            }
        }
    }
    struct event *e = post(gone, EV_GONE, -1);
    e->a = (uint64_t)proc;
    e->b = w.procs[proc].life;
}

void process_kill(int proc)
{
    struct process *p = &w.procs[proc];
    trace("kill proc=%d", proc);
    net_process_died(proc);
    if (p->kind == MASTER) {
        master_stop(proc);
    } else if (p->kind == PROVIDER) {
        provider_stop(proc);
    } else {
        make_zombies(proc);
        requester_stop(proc);
    }
    p->is_alive = false;
}

static void process_gone(int proc, uint32_t life)
{
    for (int i = 0; i < WRITERS; i++) {
        struct writer *writer = &w.writers[i];
        if (writer->is_zombie && writer->proc == proc && writer->life == life) {
            writer->is_active = false;
            writer->is_zombie = false;
        }
    }
    for (uint32_t i = 0; i < w.mapping_count; i++) {
        if (w.mappings[i].proc == proc && w.mappings[i].life == life) {
            w.mappings[i].is_mapped = false;
        }
    }
}

static void zombie_store(int id, uint64_t generation)
{
    struct writer *writer = &w.writers[id];
    if (!writer->is_active || !writer->is_zombie || writer->generation != generation) {
        return;
    }
    uint32_t slots = 0;
    for (uint32_t i = 0; i < writer->extent_count; i++) {
        slots += (uint32_t)(writer->extents[i].length / EGM_SLOT);
    }
    uint32_t at = (uint32_t)rnd(slots);
    writer->mem->cells[extent_slot(writer->extents, writer->extent_count, at)] =
        writer->write_id << 16 | at;
    totals.faults[FAULT_ZOMBIE_STORE]++;
}

/* ---- faults ---- */
static int random_alive(enum process_kind kind, int count)
{
    int proc = proc_of(kind, (int)rnd((uint64_t)count));
    return w.procs[proc].is_alive ? proc : -1;
}

static void kill_and_restart(enum fault fault, enum process_kind kind, int count, uint64_t most)
{
    int proc = random_alive(kind, count);
    if (proc >= 0) {
        totals.faults[fault]++;
        process_kill(proc);
        struct event *e = post(w.now + rnd(most), EV_START, -1);
        e->a = (uint64_t)proc;
    }
}

static void break_some(void)
{
    for (int tries = 0; tries < 50 && w.conn_count > 0; tries++) {
        uint32_t conn = w.conn_count - 1 - (uint32_t)rnd(w.conn_count < 40 ? w.conn_count : 40);
        const struct conn *c = &w.conns[conn];
        if (c->kind != UNIX && !c->is_broken && c->is_open[0] && c->is_open[1]) {
            totals.faults[FAULT_BREAK]++;
            trace("break conn=%u procs=%d-%d", conn, c->proc[0], c->proc[1]);
            net_break((int)conn);
            return;
        }
    }
}

static void partition(void)
{
    int a = (int)rnd(PROCESSES);
    uint64_t until = w.now + rnd(chance(30) ? 8 * SECOND : 500 * MS);
    totals.faults[FAULT_PARTITION]++;
    trace("partition proc=%d", a);
    for (int b = 0; b < PROCESSES; b++) {
        if (chance(60)) {
            w.blocked_until[a][b] = until;
            if (chance(70)) { /* else one way only */
                w.blocked_until[b][a] = until;
            }
        }
    }
    for (uint32_t i = 0; i < w.conn_count && until > w.now + SECOND; i++) {
        if ((w.conns[i].proc[0] == a || w.conns[i].proc[1] == a) && chance(50)) {
            net_break((int)i);
        }
    }
}

static void stall(void)
{
    int proc = (int)rnd(PROCESSES);
    /* Never longer once it has begun: events that were put off would be overtaken by younger
     * ones. */
    if (!w.procs[proc].is_alive || w.procs[proc].paused_until > w.now) {
        return;
    }
    totals.faults[FAULT_STALL]++;
    w.procs[proc].paused_until = w.now + rnd(chance(30) ? 9 * SECOND : 600 * MS);
    trace("stall proc=%d until=%.3f", proc, (double)w.procs[proc].paused_until / 1e9);
    if (w.procs[proc].kind == REQUESTER) {
        requester_was_paused(proc);
    }
}

bool has_jumped_since(uint64_t instance, uint64_t since)
{
    for (uint32_t i = 0; i < w.jump_count; i++) {
        if (w.jumps[i].instance == instance && w.jumps[i].at >= since) {
            return true;
        }
    }
    return false;
}

static void jump(void)
{
    int proc = chance(50) ? random_alive(MASTER, MASTERS) : random_alive(REQUESTER, REQUESTERS);
    if (proc >= 0) {
        totals.faults[FAULT_JUMP]++;
        trace("clock jump proc=%d", proc);
        if (w.procs[proc].kind == MASTER) {
            if (w.jump_count < JUMPS) {
                w.jumps[w.jump_count].instance = master_instance(proc);
                w.jumps[w.jump_count++].at = w.now;
            }
            requester_forget_leases(
                master_instance(proc)); /* its time ran ahead: what it promised ends earlier */
        } else {
            requester_was_paused(proc);
        }
        w.procs[proc].clock_base += rnd(4 * SECOND);
    }
}

static void second_master(void)
{
    for (int i = 0; i < MASTERS; i++) {
        int proc = proc_of(MASTER, i);
        if (!w.procs[proc].is_alive) {
            totals.faults[FAULT_SECOND_MASTER]++;
            process_start(proc);
            return;
        }
    }
    process_kill(proc_of(MASTER, (int)rnd(MASTERS)));
}

static void one_fault(void)
{
    uint32_t sum = 0;
    for (int i = 0; i < FAULT_COUNT; i++) {
        sum += w.fault_weight[i];
    }
    uint64_t at = rnd(sum ? sum : 1);
    int fault = 0;
    while (fault < FAULT_COUNT - 1 && at >= w.fault_weight[fault]) {
        at -= w.fault_weight[fault++];
    }
    int proc;
    switch ((enum fault)fault) {
    case FAULT_BREAK:
        break_some();
        break;
    case FAULT_PARTITION:
        partition();
        break;
    case FAULT_STALL:
        stall();
        break;
    case FAULT_KILL_REQUESTER:
        kill_and_restart(FAULT_KILL_REQUESTER, REQUESTER, REQUESTERS, 2 * SECOND);
        break;
    case FAULT_KILL_PROVIDER:
        kill_and_restart(FAULT_KILL_PROVIDER, PROVIDER, PROVIDERS, 3 * SECOND);
        break;
    case FAULT_KILL_MASTER:
        kill_and_restart(FAULT_KILL_MASTER, MASTER, MASTERS, SECOND);
        break;
    case FAULT_SECOND_MASTER:
        second_master();
        break;
    case FAULT_JUMP:
        jump();
        break;
    case FAULT_STRAY_END:
        proc = random_alive(REQUESTER, REQUESTERS);
        if (proc >= 0) {
            requester_stray_end(proc);
        }
        break;
    case FAULT_DRAIN:
        proc = random_alive(PROVIDER, PROVIDERS);
        if (proc >= 0) {
            totals.faults[FAULT_DRAIN]++;
            provider_drain(proc);
        }
        break;
    case FAULT_SLOW:
        totals.faults[FAULT_SLOW]++;
        w.slow_until = w.now + rnd(2 * SECOND);
        break;
    default:
        break;
    }
}

/* ---- phases ---- */
static void start_all(void)
{
    static const uint32_t weights[FAULT_COUNT] = {30, 12, 25, 8, 5, 6, 6, 5, 0, 25, 3, 4};
    for (int i = 0; i < FAULT_COUNT; i++) { /* swarm: each seed has some of the kinds */
        w.fault_weight[i] = chance(60) ? weights[i] : 0;
    }
    w.fault_weight[FAULT_BREAK] += 1;
    w.stuck_copies = chance(40) ? 1 + rnd(15) : 0;
    w.late_frames = chance(40) ? 1 + rnd(12) : 0;
    w.late_sessions = 0;
    if (chance(40) ||
        EGM_MUTANT(
            33)) { /* what they list is wrong only while a write lasts that they do not know */
        w.late_sessions = 20 + rnd(80);
        w.stuck_copies = 5 + rnd(20);
    }
    /* Two masters for long, everybody wanders; the one mutant that needs it always has it. */
    bool has_two = w.late_sessions && (chance(50) || EGM_MUTANT(33));
    if (has_two) {
        w.fault_weight[FAULT_SECOND_MASTER] = 0;
        w.fault_weight[FAULT_KILL_MASTER] = 0;
        w.fault_weight[FAULT_BREAK] = 60;
    }
    w.no_memory_percent = chance(25) ? 1 + (uint32_t)rnd(3) : 0;
    for (int proc = 0; proc < PROCESSES; proc++) {
        struct process *p = &w.procs[proc];
        p->kind = proc < MASTERS ? MASTER : proc < MASTERS + PROVIDERS ? PROVIDER : REQUESTER;
        p->index = proc - proc_of(p->kind, 0);
        p->clock_base = SECOND + rnd(1000 * SECOND);
        p->rate_ppm = (int64_t)rnd(801) - 400;
        p->choice = 0;
    }
    process_start(proc_of(MASTER, 0));
    if (has_two) {
        process_start(proc_of(MASTER, 1));
    }
    for (int i = 0; i < PROVIDERS; i++) {
        process_start(proc_of(PROVIDER, i));
    }
    for (int i = 0; i < REQUESTERS; i++) {
        process_start(proc_of(REQUESTER, i));
    }
    (void)post(300 * MS, EV_FAULT, -1);
}

static void heal(void)
{
    trace("healing");
    w.is_chaos = false;
    w.slow_until = 0;
    memset(w.blocked_until, 0, sizeof w.blocked_until);
    bool has_master = false;
    for (int i = 0; i < MASTERS; i++) {
        int proc = proc_of(MASTER, i);
        if (w.procs[proc].is_alive && has_master) {
            process_kill(proc);
        }
        has_master = has_master || w.procs[proc].is_alive;
    }
    if (!has_master) {
        process_start(proc_of(MASTER, 0));
    }
    for (int proc = 0; proc < PROCESSES; proc++) {
        if (proc >= MASTERS && !w.procs[proc].is_alive) {
            process_start(proc);
        }
    }
}

static int the_master(void)
{
    for (int i = 0; i < MASTERS; i++) {
        if (w.procs[proc_of(MASTER, i)].is_alive) {
            return proc_of(MASTER, i);
        }
    }
    return -1;
}

static void world_event(const struct event *e)
{
    int proc = (int)e->a;
    if (e->kind == EV_FAULT && w.is_chaos) {
        one_fault();
        (void)post(w.now + rnd(500 * MS), EV_FAULT, -1);
    } else if (e->kind == EV_START && !w.procs[proc].is_alive) {
        /* One master is enough, unless a second one was asked for. */
        if (w.procs[proc].kind != MASTER || the_master() < 0) {
            process_start(proc);
        }
    } else if (e->kind == EV_ZOMBIE) {
        zombie_store(proc, e->b);
    } else if (e->kind == EV_GONE) {
        process_gone(proc, (uint32_t)e->b);
    }
}

static void trace_event(const struct event *e)
{
    static const char *const names[EV_KIND_COUNT] = {
        "accept",  "frame", "closed", "tick",     "xfer",   "poll", "verified", "release",
        "next_op", "copy",  "timer",  "deadline", "zombie", "gone", "fault",    "start"};
    struct egm_frame frame;
    if (!w.is_traced || e->kind == EV_TICK) {
        return;
    }
    if (e->kind == EV_FRAME && egm_frame_parse(e->data, &frame) == 0) {
        trace("%d <- %d conn=%d %s request=%llu length=%u", e->proc,
              w.conns[e->conn].proc[1 - e->side], e->conn, egm_message_name(frame.type),
              (unsigned long long)frame.request, frame.length);
    } else {
        trace("%d %s conn=%d", e->proc, names[e->kind], e->conn);
    }
}

static void dispatch(struct event *e)
{
    if (e->proc < 0) {
        world_event(e);
        return;
    }
    struct process *p = &w.procs[e->proc];
    if (!p->is_alive || e->life != p->life) {
        return;
    }
    if (e->kind == EV_FRAME || e->kind == EV_CLOSED || e->kind == EV_ACCEPT) {
        struct conn *c = &w.conns[e->conn];
        if (!c->is_open[e->side]) {
            return;
        }
        if (e->kind == EV_FRAME && c->is_broken && e->time > c->cut[1 - e->side]) {
            return;
        }
        c->is_open[e->side] = e->kind != EV_CLOSED;
    }
    mix(e->kind + (uint64_t)e->proc * 100);
    trace_event(e);
    if (p->kind == MASTER) {
        master_event(e);
    } else if (p->kind == PROVIDER) {
        provider_event(e);
    } else {
        requester_event(e);
    }
}

/* Runs until `end` or the first failure. */
static void run_until(uint64_t end)
{
    while (!w.failure[0] && w.heap_count > 0 && w.heap[0].time <= end) {
        struct event e = pop();
        if (e.proc >= 0 && w.procs[e.proc].paused_until > e.time && w.procs[e.proc].is_alive) {
            struct event *again =
                post(w.procs[e.proc].paused_until, (enum event_kind)e.kind, e.proc);
            e.time = again->time;
            e.sequence = again->sequence;
            *again = e;
            continue;
        }
        w.now = e.time;
        w.steps++;
        mix(e.time);
        dispatch(&e);
        if (w.steps % 256 == 0) {
            master_peek();
        }
        free(e.data);
    }
    w.now = w.failure[0] ? w.now : end;
}

static void final_calls(enum final_call what, uint64_t within, const char *name)
{
    for (int i = 0; i < REQUESTERS; i++) {
        requester_final(proc_of(REQUESTER, i), what);
        if (what == FINAL_REMOVE_ALL) {
            break;
        }
    }
    run_until(w.now + within);
    for (int i = 0; i < REQUESTERS && !w.failure[0]; i++) {
        int proc = proc_of(REQUESTER, i);
        if (!requester_is_idle(proc) || !requester_final_is_ok(proc)) {
            fail("healed, but %s of requester %d does not succeed", name, i);
        }
        if (what == FINAL_REMOVE_ALL) {
            break;
        }
    }
}

static void live(void)
{
    w.is_chaos = true;
    start_all();
    run_until(CHAOS);
    if (!w.failure[0]) {
        heal();
        run_until(CHAOS + 3 * SECOND);
        w.is_draining = true;
        run_until(CHAOS + HEAL);
    }
    for (int i = 0; i < REQUESTERS && !w.failure[0]; i++) {
        if (!requester_is_idle(proc_of(REQUESTER, i))) {
            fail("liveness: a call of requester %d has not ended long after healing", i);
        }
    }
    if (!w.failure[0]) {
        final_calls(FINAL_REMOVE_ALL, 12 * SECOND, "remove_all");
    }
    if (!w.failure[0]) {
        const char *wrong = master_reclaimed(the_master());
        if (wrong) {
            fail("not reclaimable: %s", wrong);
        }
    }
    if (!w.failure[0]) {
        final_calls(FINAL_PUT, 12 * SECOND, "put");
    }
    if (!w.failure[0]) {
        final_calls(FINAL_GET, 12 * SECOND, "get");
    }
}

static void clean_up(void)
{
    for (int proc = PROCESSES - 1; proc >= 0; proc--) {
        if (w.procs[proc].is_alive) {
            process_kill(proc);
        }
    }
    for (uint32_t i = 0; i < w.heap_count; i++) {
        free(w.heap[i].data);
    }
    while (w.mems) {
        struct mem *mem = w.mems;
        w.mems = mem->next;
        free(mem);
    }
    free(w.heap);
    free(w.conns);
    free(w.mappings);
}

/* One seed; returns whether it held. ret_hash: of the whole run. */
static bool run_seed(uint64_t seed, bool is_traced, uint64_t *ret_hash)
{
    w = (struct world){.seed = seed,
                       .random = seed * 0x2545f4914f6cdd1du + 1,
                       .hash = seed,
                       .is_traced = is_traced};
    oracle_reset();
    live();
    bool is_ok = !w.failure[0];
    uint64_t steps = w.steps;
    uint64_t hash = w.hash;
    char failure[sizeof w.failure];
    memcpy(failure, w.failure, sizeof failure);
    uint64_t at = w.now;
    clean_up();
    totals.seeds++;
    totals.steps += steps;
    *ret_hash = hash;
    if (!is_ok) {
        printf("FAILED seed=%llu at=%.6f step=%llu: %s\n  replay: sim --seed %llu%s --trace\n",
               (unsigned long long)seed, (double)at / 1e9, (unsigned long long)steps, failure,
               (unsigned long long)seed, egm_sim_mutant ? " --mutant ..." : "");
    }
    return is_ok;
}

static void report(double seconds)
{
    static const char *const kinds[] = {"put", "upsert", "get", "exist", "remove", "remove_all"};
    printf("%llu seeds, %llu steps in %.1f s (%.1f seeds/s)\n", (unsigned long long)totals.seeds,
           (unsigned long long)totals.steps, seconds,
           (double)totals.seeds / (seconds > 0 ? seconds : 1));
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        printf("  %-10s %8llu calls, %8llu whole\n", kinds[i], (unsigned long long)totals.calls[i],
               (unsigned long long)totals.ok[i]);
    }
    printf("  delivered objects=%llu grants=%llu evictions=%llu looks_with_quarantine=%llu "
           "parked_transfers=%llu\n",
           (unsigned long long)totals.hits, (unsigned long long)totals.grants,
           (unsigned long long)totals.evictions, (unsigned long long)totals.quarantines,
           (unsigned long long)totals.parked);
    printf("  answers judged: present=%llu absent=%llu no_space=%llu no_segment=%llu "
           "too_large=%llu\n",
           (unsigned long long)totals.presence[1], (unsigned long long)totals.presence[0],
           (unsigned long long)totals.no_space, (unsigned long long)totals.closed,
           (unsigned long long)totals.too_large);
    printf("  faults:");
    for (int i = 0; i < FAULT_COUNT; i++) {
        printf(" %s=%llu", fault_names[i], (unsigned long long)totals.faults[i]);
    }
    printf("\n");
}

static bool all_faults_fired(void)
{
    for (int i = 0; i < FAULT_COUNT; i++) {
        if (totals.faults[i] == 0) {
            printf("FAILED: the fault \"%s\" never fired: the run proves less than it should\n",
                   fault_names[i]);
            return false;
        }
    }
    return totals.hits > 0 && totals.evictions > 0 && totals.quarantines > 0;
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t number(const char *text)
{
    uint64_t value;
    if (egm_parse_u64(text, 0, UINT64_MAX, &value) < 0) {
        fprintf(stderr, "sim: \"%s\" is no number\n", text);
        exit(2);
    }
    return value;
}

static bool run_file(const char *path)
{
    char line[256];
    bool is_ok = true;
    FILE *file = fopen(path, "re");
    if (!file) {
        fprintf(stderr, "sim: cannot read %s\n", path);
        return false;
    }
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, " \t\r\n#")] = '\0';
        uint64_t hash;
        is_ok = (line[0] == '\0' || run_seed(number(line), false, &hash)) && is_ok;
    }
    fclose(file);
    return is_ok;
}

struct settings {
    uint64_t seed, lives, from, seconds;
    bool has_seed, is_traced;
    const char *file;
};

static struct settings parse(int argc, char **argv)
{
    static const struct option options[] = {{"seed", 1, NULL, 's'},  {"lives", 1, NULL, 'l'},
                                            {"from", 1, NULL, 'f'},  {"seconds", 1, NULL, 't'},
                                            {"file", 1, NULL, 'F'},  {"mutant", 1, NULL, 'm'},
                                            {"trace", 0, NULL, 'v'}, {NULL, 0, NULL, 0}};
    struct settings s = {.from = 1};
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 's':
            s.seed = number(optarg);
            s.has_seed = true;
            break;
        case 'l':
            s.lives = number(optarg);
            break;
        case 'f':
            s.from = number(optarg);
            break;
        case 't':
            s.seconds = number(optarg);
            break;
        case 'F':
            s.file = optarg;
            break;
        case 'm':
            egm_sim_mutant = (int)number(optarg);
            break;
        case 'v':
            s.is_traced = true;
            break;
        default:
            exit(2);
        }
    }
    return s;
}

static bool run_twice(const struct settings *s)
{
    uint64_t first, second;
    bool is_ok = run_seed(s->seed, s->is_traced, &first);
    is_ok = run_seed(s->seed, false, &second) && is_ok;
    printf("hash %016llx\n", (unsigned long long)first);
    if (first != second) {
        printf("FAILED: two runs of one seed differ: %016llx %016llx\n", (unsigned long long)first,
               (unsigned long long)second);
        return false;
    }
    return is_ok;
}

/* Seeds in a row until the count, the time, or the first failure is reached. */
static bool run_many(const struct settings *s, double began)
{
    uint64_t hash;
    for (uint64_t n = 0; s->lives == 0 || n < s->lives; n++) {
        if (s->seconds && seconds_now() - began > (double)s->seconds) {
            break;
        }
        if (!run_seed(s->from + n, false, &hash)) {
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    struct settings s = parse(argc, argv);
    double began = seconds_now();
    egm_log_set_level(EGM_LOG_ERROR);
    bool is_ok = true;
    if (s.file) {
        is_ok = run_file(s.file);
    }
    if (s.has_seed) {
        is_ok = run_twice(&s) && is_ok;
    } else if (s.lives || s.seconds) {
        is_ok = is_ok && run_many(&s, began);
        report(seconds_now() - began);
        if (is_ok && s.seconds >= 10 && !egm_sim_mutant) {
            is_ok = all_faults_fired();
        }
    }
    if (egm_sim_mutant) {
        printf("mutant %d %s after %.1f s and %llu seeds\n", egm_sim_mutant,
               is_ok ? "NOT FOUND" : "found", seconds_now() - began,
               (unsigned long long)totals.seeds);
        return is_ok ? 1 : 0;
    }
    return is_ok ? 0 : 1;
}
