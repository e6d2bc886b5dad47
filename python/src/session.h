/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An open store, shared by the threads that are in calls on it and by the object that opened it.
 *
 * close() may come from any thread while others are in calls, and the library's handle is dead once
 * egm_store_close has been called. So a session counts the calls that are inside:
 *
 *      open --enter--> calls+1 --leave--> calls-1
 *        |
 *      close: no enter succeeds any more; the handle is closed by close itself if calls == 0,
 *             else by the last leave. Exactly one of them does it.
 *
 * A second count, `references`, keeps the struct itself: one for the opener, one per call inside.
 *
 * fork: threads that were inside a call do not exist in the child, and the lock may have been held
 * by one. The session therefore remembers its process; in any other process enter refuses without
 * touching the lock, and close hands the handle to the library (which then only closes file
 * descriptors) without waiting for anybody.
 *
 * The GIL plays no role here; the lock is held for a few instructions, or while waiting on `left`.
 */
#ifndef EGMPY_SESSION_H
#define EGMPY_SESSION_H

#include "egmstore/store.h"

#include <stdint.h>

struct egmpy_session;

/* Takes the store. NULL: no memory, the store remains the caller's. */
struct egmpy_session *egmpy_session_create(struct egm_store *store);

/* Begins a call. NULL after close and in a forked child; else leave must follow. @threadsafe */
struct egm_store *egmpy_session_enter(struct egmpy_session *session);
void egmpy_session_leave(struct egmpy_session *session);

/* Ends the session and drops the opener's reference: the pointer is dead for the opener afterwards.
 * Waits up to `wait_ms` for calls inside to leave; later ones still leave safely and the last of
 * them closes the store. Call once.
 * @blocking */
void egmpy_session_close(struct egmpy_session *session, uint32_t wait_ms);

#endif
