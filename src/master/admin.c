/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP thread. Its side of the model is in admin.h.
 *
 * Lock: `lock` guards the list, the jobs' state while they are posted, and is_closed. A job's other
 * fields change hands with its state: the HTTP thread's while it is in no list or DONE, the loop's
 * while RUNNING.
 *
 * Strangers. The thread serves CONNECTIONS_MAX connections of MEMORY_PER_CONNECTION each and drops
 * those that say nothing for IDLE_S; it answers one at a time, which bounds what the loop is asked
 * at once to one job. */
#include "master/admin.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"

#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 256u
#define MEMORY_PER_CONNECTION (32u << 10)
#define IDLE_S 10u
#define JOB_WAIT_MS 2000
#define PAGE_MAX (64u << 20)
#define STREAM_BLOCK (64u << 10)
#define TEXT_TYPE "text/plain; charset=utf-8"

struct egm_admin {
    struct MHD_Daemon *http;
    void (*wake)(void *arg);
    void *wake_arg;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct egm_link jobs; /* lock */
    bool is_closed;       /* lock */
};

/* ---- jobs ---- */

struct egm_admin_job *egm_admin_take(struct egm_admin *admin)
{
    struct egm_admin_job *job = NULL;

    pthread_mutex_lock(&admin->lock);
    struct egm_link *link = egm_list_pop_front(&admin->jobs);
    if (link) {
        job = egm_container_of(link, struct egm_admin_job, link);
        job->state = EGM_JOB_RUNNING;
    }
    pthread_mutex_unlock(&admin->lock);
    return job;
}

void egm_admin_finish(struct egm_admin *admin, struct egm_admin_job *job)
{
    pthread_mutex_lock(&admin->lock);
    job->state = EGM_JOB_DONE;
    pthread_cond_broadcast(&admin->changed);
    pthread_mutex_unlock(&admin->lock);
}

/* Has the loop do the job. False: it did not begin it in time, or is going. */
static bool do_job(struct egm_admin *admin, struct egm_admin_job *job)
{
    struct timespec until;
    int r = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += JOB_WAIT_MS / 1000;
    job->state = EGM_JOB_QUEUED;
    egm_list_init(&job->link);
    pthread_mutex_lock(&admin->lock);
    if (!admin->is_closed) {
        egm_list_push_back(&admin->jobs, &job->link);
        admin->wake(admin->wake_arg);
    }
    while (job->state != EGM_JOB_DONE &&
           !(job->state == EGM_JOB_QUEUED && (r != 0 || admin->is_closed))) {
        r = pthread_cond_timedwait(&admin->changed, &admin->lock, &until);
    }
    egm_list_remove(&job->link);
    bool is_done = job->state == EGM_JOB_DONE;
    pthread_mutex_unlock(&admin->lock);
    return is_done;
}

/* ---- answers ---- */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type,
                              const char *header, const char *header_value, struct egm_buf *text)
{
    /* the bytes move into the response and go with it */
    struct MHD_Response *response = MHD_create_response_from_buffer_with_free_callback(
        text->len, text->data ? (void *)text->data : (void *)(uintptr_t) "",
        text->data ? egm_free : NULL);

    if (!response) {
        egm_buf_release(text);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (header) {
        MHD_add_response_header(response, header, header_value);
    }
    enum MHD_Result r = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return r;
}

static enum MHD_Result answer_text(struct MHD_Connection *connection, unsigned status,
                                   const char *header, const char *value, const char *text)
{
    struct egm_buf buf;

    egm_buf_init(&buf, 1024);
    egm_buf_printf(&buf, "%s\n", text);
    return answer(connection, status, TEXT_TYPE, header, value, &buf);
}

static enum MHD_Result answer_busy(struct MHD_Connection *connection)
{
    return answer_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE, MHD_HTTP_HEADER_RETRY_AFTER, "1",
                       "the master is busy or going, try again");
}

/* ---- all keys, as a stream ---- */

struct key_stream {
    struct egm_admin *admin;
    uint32_t cursor;
    bool is_end;
    struct egm_buf block;
    size_t at; /* bytes of the block that are gone */
};

static void free_stream(void *arg)
{
    struct key_stream *stream = arg;

    egm_buf_release(&stream->block);
    egm_free(stream);
}

static ssize_t read_stream(void *arg, uint64_t position, char *data, size_t size)
{
    struct key_stream *stream = arg;

    (void)position;
    while (stream->at == stream->block.len) {
        if (stream->is_end) {
            return MHD_CONTENT_READER_END_OF_STREAM;
        }
        egm_buf_clear(&stream->block);
        stream->at = 0;
        struct egm_admin_job job = {
            .page = EGM_PAGE_ALL_KEYS, .cursor = stream->cursor, .out = &stream->block};
        if (!do_job(stream->admin, &job) || stream->block.failed) {
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
        stream->cursor = job.cursor;
        stream->is_end = job.is_end;
    }
    size_t n = egm_min_u64(size, stream->block.len - stream->at);
    memcpy(data, stream->block.data + stream->at, n);
    stream->at += n;
    return (ssize_t)n;
}

static enum MHD_Result answer_keys(struct egm_admin *admin, struct MHD_Connection *connection)
{
    struct key_stream *stream = egm_calloc(1, sizeof(*stream));

    if (!stream) {
        return answer_busy(connection);
    }
    stream->admin = admin;
    egm_buf_init(&stream->block, 4 * STREAM_BLOCK);
    struct MHD_Response *response = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, stream, free_stream);
    if (!response) {
        free_stream(stream);
        return answer_busy(connection);
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, TEXT_TYPE);
    enum MHD_Result r = MHD_queue_response(connection, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    return r;
}

/* ---- routes ---- */

static const struct route {
    const char *path;
    enum egm_page page;
    const char *parameter; /* required */
} routes[] = {
    {"/metrics", EGM_PAGE_METRICS, NULL},
    {"/metrics/summary", EGM_PAGE_SUMMARY, NULL},
    {"/health", EGM_PAGE_HEALTH, NULL},
    {"/role", EGM_PAGE_ROLE, NULL},
    {"/ha_status", EGM_PAGE_HA_STATUS, NULL},
    {"/leader", EGM_PAGE_LEADER, NULL},
    {"/get_all_segments", EGM_PAGE_ALL_SEGMENTS, NULL},
    {"/get_segments_detail", EGM_PAGE_SEGMENTS_DETAIL, NULL},
    {"/get_all_keys", EGM_PAGE_ALL_KEYS, NULL},
    {"/query_key", EGM_PAGE_QUERY_KEY, "key"},
    {"/query_segment", EGM_PAGE_QUERY_SEGMENT, "segment"},
    {"/batch_query_keys", EGM_PAGE_BATCH_QUERY, "keys"},
};

static enum MHD_Result answer_route(struct egm_admin *admin, struct MHD_Connection *connection,
                                    const struct route *route)
{
    struct egm_buf out;
    struct egm_admin_job job = {
        .page = route->page, .out = &out, .status = MHD_HTTP_OK, .type = TEXT_TYPE};

    if (route->parameter && MHD_lookup_connection_value_n(
                                connection, MHD_GET_ARGUMENT_KIND, route->parameter,
                                strlen(route->parameter), &job.value, &job.value_size) == MHD_NO) {
        job.value = NULL;
    }
    if (route->parameter && (!job.value || job.value_size == 0)) {
        return answer_text(connection, MHD_HTTP_BAD_REQUEST, NULL, NULL,
                           "the query parameter is missing");
    }
    if (route->page == EGM_PAGE_ALL_KEYS) {
        return answer_keys(admin, connection);
    }
    egm_buf_init(&out, PAGE_MAX);
    if (!do_job(admin, &job) || out.failed) {
        egm_buf_release(&out);
        return answer_busy(connection);
    }
    return answer(connection, (unsigned)job.status, job.type, NULL, NULL, &out);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *data_size, void **state)
{
    struct egm_admin *admin = arg;

    (void)version;
    (void)data;
    (void)data_size;
    (void)state;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
        return answer_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, MHD_HTTP_HEADER_ALLOW,
                           "GET, HEAD", "this port changes nothing: only GET is served");
    }
    for (size_t i = 0; i < EGM_COUNT_OF(routes); i++) {
        if (strcmp(path, routes[i].path) == 0) {
            return answer_route(admin, connection, &routes[i]);
        }
    }
    return answer_text(connection, MHD_HTTP_NOT_FOUND, NULL, NULL, "no such page");
}

/* ---- life ---- */

/* The thread that the library starts takes no signals. */
static struct MHD_Daemon *start_http(int listen_fd, struct egm_admin *admin)
{
    sigset_t all;
    sigset_t before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    struct MHD_Daemon *http = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC, 0, NULL, NULL, on_request, admin,
        MHD_OPTION_LISTEN_SOCKET, listen_fd, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)MEMORY_PER_CONNECTION, MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return http;
}

int egm_admin_create(int listen_fd, void (*wake)(void *arg), void *arg,
                     struct egm_admin **ret_admin, struct egm_detail *reterr)
{
    struct egm_admin *admin = egm_calloc(1, sizeof(*admin));
    pthread_condattr_t attr;

    if (!admin) {
        return egm_fail(reterr, -ENOMEM, "http", "out of memory for the admin port");
    }
    admin->wake = wake;
    admin->wake_arg = arg;
    egm_list_init(&admin->jobs);
    pthread_mutex_init(&admin->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&admin->changed, &attr);
    pthread_condattr_destroy(&attr);
    admin->http = start_http(listen_fd, admin);
    if (!admin->http) {
        egm_admin_destroy(admin);
        return egm_fail(reterr, EGM_E_INTERNAL, "http",
                        "cannot start the thread of the admin port");
    }
    *ret_admin = admin;
    return 0;
}

void egm_admin_destroy(struct egm_admin *admin)
{
    if (!admin) {
        return;
    }
    pthread_mutex_lock(&admin->lock);
    admin->is_closed = true;
    pthread_cond_broadcast(&admin->changed);
    pthread_mutex_unlock(&admin->lock);
    if (admin->http) {
        MHD_stop_daemon(admin->http); /* closes the listening socket and joins */
    }
    pthread_cond_destroy(&admin->changed);
    pthread_mutex_destroy(&admin->lock);
    egm_free(admin);
}
