/* SPDX-License-Identifier: Apache-2.0 */
/* What a child made by fork() must not inherit.
 *
 * Two things would break proofs of death (DESIGN 6) if a child kept them: the description that
 * carries a slot's lock, and the connections whose end tells a peer that we are gone. The mappings
 * themselves are MADV_DONTFORK.
 *
 * So every fd of an import and of a store is tracked from its birth to its end, and whoever
 * receives fds, maps, or closes a tracked fd does it between egm_child_lock and egm_child_unlock.
 * The atfork handlers take the same lock around fork(), and the child closes what is tracked, at
 * once. A socket between socket() and egm_child_track is the one gap: a child made in it keeps a
 * connection on which nothing was said yet.
 *
 * os/fork.h is the same idea for fds that one thread makes. It cannot enter an fd while its lock is
 * held, which receiving fds needs (recvmsg and the entry must be one step), and it knows no hooks;
 * the two locks are never held together.
 *
 * Hooks run in the child with the lock held by nobody else and no other thread alive: they may set
 * flags, nothing more. @threadsafe */
#ifndef EGM_MOVER_MAP_CHILD_H
#define EGM_MOVER_MAP_CHILD_H

#include "base/list.h"

#include "egmstore/errors.h"

struct egm_child_hook {
    struct egm_link link;
    void (*in_child)(struct egm_child_hook *hook);
};

void egm_child_lock(void);
void egm_child_unlock(void);

/* Remembers fd; 0 or -ENOMEM (the fd stays the caller's). The _locked form is for callers between
 * lock and unlock. */
EGM_MUST_CHECK int egm_child_track(int fd);
EGM_MUST_CHECK int egm_child_track_locked(int fd);

/* Closes a tracked fd. In a child that inherited the caller's struct the number is no longer ours:
 * then nothing happens. */
void egm_child_close(int fd);
void egm_child_close_locked(int fd);

/* The hook is borrowed until it is removed. */
void egm_child_hook_add(struct egm_child_hook *hook);
void egm_child_hook_remove(struct egm_child_hook *hook);

#endif
