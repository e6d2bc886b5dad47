/* SPDX-License-Identifier: Apache-2.0 */
/* Fds that a child after fork must not keep.
 *
 * O_CLOEXEC covers exec; a child that does not exec (Python's multiprocessing) would keep sockets
 * open after its parent died, so that no peer sees an end, and would keep pool memory. Fds entered
 * here are closed in every child, by a pthread_atfork handler. In the child the numbers are free
 * afterwards: code there must not close them again.
 *
 * egm_fork_lock/unlock bracket the short life of an fd that is too short-lived to be entered (a
 * description that is made, passed on and closed): no fork of this process happens in between. Not
 * recursive; nothing in between may block. @threadsafe */
#ifndef EGM_OS_FORK_H
#define EGM_OS_FORK_H

/* Enters an open fd; an fd above 65,535 is not taken and simply stays open in children. */
void egm_fork_enter(int fd);

/* Removes it and closes it, in one step that no fork can divide. fd < 0: nothing. */
void egm_fork_close(int fd);

void egm_fork_lock(void);
void egm_fork_unlock(void);

#endif
