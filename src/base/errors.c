/* SPDX-License-Identifier: Apache-2.0 */
#include "egmstore/errors.h"

#include "base/checked.h"

#include <errno.h>
#include <string.h>

/*
 * One row per own code. The rows stand in the order of their numbers without a gap, which find_row
 * checks, so that a new code cannot be forgotten here without a test noticing.
 */
struct error_row {
    int code;
    bool is_retryable;
    enum egm_error_scope scope;
    const char *name;
    const char *text;
};

#define ROW(code, retryable, scope, text)   \
    {                                       \
        code, retryable, scope, #code, text \
    }

static const struct error_row rows[] = {
    ROW(EGM_E_STALE, true, EGM_SCOPE_SEGMENT, "names an old generation, epoch or term"),
    ROW(EGM_E_EVICTED, true, EGM_SCOPE_OP, "object was removed or evicted meanwhile"),
    ROW(EGM_E_NO_SPACE, false, EGM_SCOPE_OP, "no space in the pool"),
    ROW(EGM_E_PEER_GONE, true, EGM_SCOPE_CONNECTION, "the other process is gone"),
    ROW(EGM_E_PROTO, false, EGM_SCOPE_CONNECTION, "peer broke the protocol"),
    ROW(EGM_E_NOT_FOUND, false, EGM_SCOPE_OP, "not found"),
    ROW(EGM_E_EXISTS, false, EGM_SCOPE_OP, "already exists"),
    ROW(EGM_E_LEASED, false, EGM_SCOPE_OP, "a lease or hold forbids it now"),
    ROW(EGM_E_NOT_READY, false, EGM_SCOPE_OP, "not ready yet"),
    ROW(EGM_E_NO_SEGMENT, false, EGM_SCOPE_OP, "no usable segment is mounted"),
    ROW(EGM_E_TOO_LARGE, false, EGM_SCOPE_OP, "too large"),
    ROW(EGM_E_CHECKSUM, true, EGM_SCOPE_OP, "checksum mismatch"),
    ROW(EGM_E_TRANSFER, true, EGM_SCOPE_SEGMENT, "data transfer failed"),
    ROW(EGM_E_NOT_OWNER, false, EGM_SCOPE_OP, "operation belongs to another session"),
    ROW(EGM_E_CLOSED, false, EGM_SCOPE_NODE, "closed, or inherited over fork"),
    ROW(EGM_E_UNREGISTERED, false, EGM_SCOPE_OP, "buffer is not registered"),
    ROW(EGM_E_BAD_KEY, false, EGM_SCOPE_OP, "empty or too long key"),
    ROW(EGM_E_VERSION, false, EGM_SCOPE_NODE, "no common protocol version"),
    ROW(EGM_E_AGAIN, true, EGM_SCOPE_OP, "busy, try again"),
    ROW(EGM_E_UNSUPPORTED, false, EGM_SCOPE_OP, "not supported here"),
    ROW(EGM_E_LIMIT, false, EGM_SCOPE_OP, "beyond a limit"),
    ROW(EGM_E_INVALID, false, EGM_SCOPE_OP, "invalid argument"),
    ROW(EGM_E_TIMEOUT, false, EGM_SCOPE_CONNECTION, "deadline passed"),
    ROW(EGM_E_INTERNAL, false, EGM_SCOPE_NODE, "internal error, please report it"),
    ROW(EGM_E_NOT_PERMITTED, false, EGM_SCOPE_NODE, "not permitted"),
};

static const struct error_row *find_row(int code)
{
    const struct error_row *row;

    if (code > EGM_E_STALE || code <= EGM_E_STALE - (int)EGM_COUNT_OF(rows)) {
        return NULL;
    }
    row = &rows[EGM_E_STALE - code];
    EGM_ASSERT(row->code == code);
    return row;
}

static bool is_errno(int code)
{
    return code < 0 && code >= -4095;
}

const char *egm_strerror(int code)
{
    const struct error_row *row = find_row(code);
    const char *text;

    if (row) {
        return row->text;
    }
    if (code >= 0) {
        return "success";
    }
    text = is_errno(code) ? strerrordesc_np(-code) : NULL;
    return text ? text : "unknown error";
}

const char *egm_error_name(int code)
{
    const struct error_row *row = find_row(code);
    const char *name;

    if (row) {
        return row->name;
    }
    if (code >= 0) {
        return "OK";
    }
    name = is_errno(code) ? strerrorname_np(-code) : NULL;
    return name ? name : "UNKNOWN";
}

bool egm_err_retryable(int code)
{
    const struct error_row *row = find_row(code);

    if (row) {
        return row->is_retryable;
    }
    /* what a restarting peer or a busy kernel answers; the rest of errno needs somebody to act */
    switch (code) {
    case -EAGAIN:
    case -EINTR:
    case -ECONNREFUSED:
    case -ECONNRESET:
    case -ECONNABORTED:
    case -EPIPE:
        return true;
    default:
        return false;
    }
}

enum egm_error_scope egm_err_scope(int code)
{
    const struct error_row *row = find_row(code);

    if (row) {
        return row->scope;
    }
    switch (code) {
    case -ECONNREFUSED:
    case -ECONNRESET:
    case -ECONNABORTED:
    case -EPIPE:
    case -EBADF:
    case -ENOTCONN:
    case -ETIMEDOUT:
        return EGM_SCOPE_CONNECTION;
    default:
        return EGM_SCOPE_OP;
    }
}
