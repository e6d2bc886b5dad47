/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop thread.
 *
 *   wake (anyone)  -+
 *   tick, 50 ms    -+-> work of that source -> settle -> [stopping? tear down] -> poll
 *   fds            -+
 *
 * settle is where consequences are drawn: waiting peers whose slot was decided are answered, the
 * provider's state is brought up to date, waiters are woken, and bytes for the master are sent. It
 * is cheap when there is nothing to do and may be called after anything.
 *
 * Tearing down takes several turns: peers and data threads end at once, the control connection's
 * worker may need until its deadline, and the loop ends when its last handle has closed.
 */
#include "base/assert.h"

#include "os/clock.h"
#include "os/thread.h"
#include "provider/shell.h"

#include <errno.h>

#define TICK_MS 50

/* How long a drain waits for the master to say that the objects are hidden before importers are
 * told to let go all the same: they have to be told well within the drain's bound, whatever the
 * master does. The second is for one that is not there. */
#define UNMOUNT_WAIT_NS (2 * EGM_NS_PER_S)
#define UNMOUNT_ABSENT_NS EGM_NS_PER_S

/* Lock held. */
static void update_state(struct egm_provider *p)
{
    struct egm_pcore_status status = egm_pcore_status(p->core);

    if (p->state == EGM_PROVIDER_JOINING && status.is_mounted && status.is_leased) {
        p->state = EGM_PROVIDER_READY;
    }
    if (p->drain_since_ns != 0 && !p->is_detaching) {
        uint64_t patience_ns = p->is_connected ? UNMOUNT_WAIT_NS : UNMOUNT_ABSENT_NS;
        p->is_detaching = status.is_unmounted || egm_clock_ns() - p->drain_since_ns > patience_ns;
    }
}

void egm_shell_settle(struct egm_provider *p)
{
    egm_peers_settle(p);
    pthread_mutex_lock(&p->lock);
    update_state(p);
    bool is_detaching = p->is_detaching;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    if (is_detaching) {
        egm_peers_detach(p);
        egm_data_detach(p);
    }
    egm_control_flush(p);
}

static void tear_down(struct egm_provider *p)
{
    if (!p->is_torn_down) {
        p->is_torn_down = true;
        egm_listener_stop(&p->unix_listener);
        egm_listener_stop(&p->tcp_listener);
        egm_peers_stop(p);
        egm_data_reap(p, /*all=*/true);
    }
    if (egm_control_stop(p) && !uv_is_closing((uv_handle_t *)&p->tick)) {
        uv_close((uv_handle_t *)&p->tick, NULL);
        uv_close((uv_handle_t *)&p->wake, NULL);
    }
}

static void turn(struct egm_provider *p)
{
    pthread_mutex_lock(&p->lock);
    bool is_stopping = p->is_stopping;
    pthread_mutex_unlock(&p->lock);
    if (is_stopping) {
        tear_down(p);
        return;
    }
    egm_data_reap(p, /*all=*/false);
    egm_shell_settle(p);
}

static void on_wake(uv_async_t *async)
{
    turn(async->data);
}

static void on_tick(uv_timer_t *timer)
{
    struct egm_provider *p = timer->data;
    uint64_t now_ns = egm_clock_ns();

    if (!p->is_torn_down) {
        egm_peers_tick(p, now_ns);
        egm_control_tick(p, now_ns);
    }
    turn(p);
}

static void *run(void *arg)
{
    struct egm_provider *p = arg;

    egm_ignore(uv_run(&p->loop, UV_RUN_DEFAULT), "returns when every handle is closed");
    return NULL;
}

int egm_shell_loop_start(struct egm_provider *p, struct egm_detail *reterr)
{
    int r = uv_loop_init(&p->loop);

    if (r < 0) {
        return egm_fail(reterr, r, "loop", "cannot start the event loop: %s", uv_strerror(r));
    }
    r = uv_async_init(&p->loop, &p->wake, on_wake);
    if (r < 0) {
        EGM_ASSERT(uv_loop_close(&p->loop) == 0);
        return egm_fail(reterr, r, "loop", "cannot start the event loop: %s", uv_strerror(r));
    }
    EGM_ASSERT(uv_timer_init(&p->loop, &p->tick) == 0);
    p->wake.data = p;
    p->tick.data = p;
    EGM_ASSERT(uv_timer_start(&p->tick, on_tick, 0, TICK_MS) == 0);
    egm_control_init(p);
    egm_listener_start(p, &p->unix_listener);
    egm_listener_start(p, &p->tcp_listener);
    r = egm_thread_start(&p->thread, "egm-provider", run, p);
    if (r < 0) {
        p->is_stopping = true;
        tear_down(p);
        egm_ignore(uv_run(&p->loop, UV_RUN_DEFAULT), "closes the handles");
        EGM_ASSERT(uv_loop_close(&p->loop) == 0);
        return egm_fail(reterr, r, "loop", "cannot start a thread: %s", egm_strerror(r));
    }
    p->is_running = true;
    return 0;
}

void egm_shell_loop_stop(struct egm_provider *p)
{
    if (!p->is_running) {
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->is_stopping = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    egm_ignore(uv_async_send(&p->wake), "the tick would notice as well");
    pthread_join(p->thread, NULL);
    EGM_ASSERT(uv_loop_close(&p->loop) == 0);
    egm_buf_release(&p->control.in);
    p->is_running = false;
}
