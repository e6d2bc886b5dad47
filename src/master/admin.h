/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admin HTTP: an own thread (libmicrohttpd's) that asks the loop.
 *
 * A request becomes a job on a list; the loop is woken, carries the job out and says so; the HTTP
 * thread waits for that, at most JOB_WAIT_MS. The core is never touched from here. A job that was
 * not begun in time is taken back and the request is answered with 503, so a busy loop costs a
 * scraper its sample and nothing else.
 */
#ifndef EGM_MASTER_ADMIN_H
#define EGM_MASTER_ADMIN_H

#include "base/buf.h"
#include "base/detail.h"
#include "base/list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct egm_admin;

enum egm_page {
    EGM_PAGE_METRICS,
    EGM_PAGE_SUMMARY,
    EGM_PAGE_HEALTH,
    EGM_PAGE_ROLE,
    EGM_PAGE_HA_STATUS,
    EGM_PAGE_LEADER,
    EGM_PAGE_ALL_SEGMENTS,
    EGM_PAGE_SEGMENTS_DETAIL,
    EGM_PAGE_ALL_KEYS, /* a piece of it, from `cursor` on */
    EGM_PAGE_QUERY_KEY,
    EGM_PAGE_QUERY_SEGMENT,
    EGM_PAGE_BATCH_QUERY,
    EGM_PAGE_COUNT
};

/* On the HTTP thread's stack; the loop touches it only while it is posted. */
struct egm_admin_job {
    struct egm_link link;
    enum egm_page page;
    const char *value; /* of the page's one parameter; NULL: not given */
    size_t value_size;
    uint32_t cursor; /* ALL_KEYS: where to go on */
    bool is_end;     /* ALL_KEYS: nothing follows */
    struct egm_buf *out;
    int status;       /* HTTP */
    const char *type; /* content type; static */
    enum {
        EGM_JOB_QUEUED,
        EGM_JOB_RUNNING,
        EGM_JOB_DONE
    } state;
};

/* Serves on listen_fd (taken on success). wake(arg) is called on the HTTP thread after a job was
 * posted. */
EGM_MUST_CHECK int egm_admin_create(int listen_fd, void (*wake)(void *arg), void *arg,
                                    struct egm_admin **ret_admin, struct egm_detail *reterr);

/* The loop: takes the oldest posted job, or NULL; then egm_admin_finish for it. */
struct egm_admin_job *egm_admin_take(struct egm_admin *admin);
void egm_admin_finish(struct egm_admin *admin, struct egm_admin_job *job);

/* Fails posted jobs and ends the thread. NULL is allowed. @blocking for at most the time of one
 * answer */
void egm_admin_destroy(struct egm_admin *admin);

#endif
