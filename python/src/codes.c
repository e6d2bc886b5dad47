/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our result codes in Mooncake's numbers: the only place where these numbers stand.
 *
 * Callers of Mooncake's API compare against its numbers: vLLM's "store pressure" is -200 of a put,
 * and its encoder-cache connector takes the worker down when a put or get answers a number that it
 * does not expect from that call. So each cause gets the number that upstream has for it in the
 * same kind of call, and a cause that upstream does not know gets one that such callers survive:
 *
 *   put  {-200, -703, -704, -705, -900, -901}
 *   get  {-200, -702, -703, -704, -705, -707, -900, -901}, and -600 for a buffer that is too small
 *
 * What leaves these sets is what no retry mends: -600, the caller's mistakes (last_error() tells
 * them apart), and -1, a bug here. Two things are ours alone:
 *
 *   - Upstream's -800 and -801 are not used by data calls. Its -800 may leave a transfer running,
 *     and the encoder-cache connector takes neither number. Here nothing touches the caller's
 *     memory after the call, so a replica that cannot be copied is as good as none (-702 of a get),
 *     and a put that did not arrive is a call that did not arrive (-900).
 *   - An object larger than any provider, a directory at its limit and a pool without providers
 *     are "no space" for a put, as upstream's allocator sees them.
 */
#include "binding.h"

#include <errno.h>

enum {
    INTERNAL_ERROR = -1,
    SEGMENT_NOT_FOUND = -101,
    NO_AVAILABLE_HANDLE = -200,
    INVALID_VERSION = -300,
    INVALID_PARAMS = -600,
    ILLEGAL_CLIENT = -601,
    INVALID_REPLICA = -702,
    REPLICA_IS_NOT_READY = -703,
    OBJECT_NOT_FOUND = -704,
    OBJECT_ALREADY_EXISTS = -705,
    OBJECT_HAS_LEASE = -706,
    LEASE_EXPIRED = -707,
    TRANSFER_FAIL = -800,
    CHECKSUM_MISMATCH = -801,
    RPC_FAIL = -900,
    RPC_TIMEOUT = -901,
    NOT_SUPPORTED = -1012,
};

struct code_row {
    int ours;
    int theirs[EGMPY_CALL_COUNT]; /* by kind of call */
};

#define ROW(code, put, get, other)                                                     \
    {                                                                                  \
        code,                                                                          \
        {                                                                              \
            [EGMPY_CALL_PUT] = put, [EGMPY_CALL_GET] = get, [EGMPY_CALL_OTHER] = other \
        }                                                                              \
    }
#define SAME(code, number) ROW(code, number, number, number)

static const struct code_row code_rows[] = {
    /* space */
    SAME(EGM_E_NO_SPACE, NO_AVAILABLE_HANDLE),
    ROW(EGM_E_NO_SEGMENT, NO_AVAILABLE_HANDLE, INVALID_REPLICA, SEGMENT_NOT_FOUND),
    ROW(EGM_E_TOO_LARGE, NO_AVAILABLE_HANDLE, INVALID_PARAMS, INVALID_PARAMS),
    ROW(EGM_E_LIMIT, NO_AVAILABLE_HANDLE, INVALID_PARAMS, INVALID_PARAMS),
    /* the object. A put that lost its place is, as upstream's PutEnd says, not found. */
    SAME(EGM_E_NOT_FOUND, OBJECT_NOT_FOUND),
    SAME(EGM_E_EVICTED, OBJECT_NOT_FOUND),
    SAME(EGM_E_EXISTS, OBJECT_ALREADY_EXISTS),
    SAME(EGM_E_NOT_READY, REPLICA_IS_NOT_READY),
    ROW(EGM_E_LEASED, REPLICA_IS_NOT_READY, REPLICA_IS_NOT_READY, OBJECT_HAS_LEASE),
    ROW(EGM_E_STALE, OBJECT_NOT_FOUND, LEASE_EXPIRED, RPC_FAIL),
    ROW(EGM_E_NOT_OWNER, OBJECT_NOT_FOUND, LEASE_EXPIRED, ILLEGAL_CLIENT),
    /* the bytes */
    ROW(EGM_E_TRANSFER, RPC_FAIL, INVALID_REPLICA, TRANSFER_FAIL),
    ROW(EGM_E_CHECKSUM, RPC_FAIL, INVALID_REPLICA, CHECKSUM_MISMATCH),
    /* the peer */
    SAME(EGM_E_PEER_GONE, RPC_FAIL),
    SAME(EGM_E_PROTO, RPC_FAIL),
    SAME(EGM_E_AGAIN, RPC_FAIL),
    SAME(EGM_E_TIMEOUT, RPC_TIMEOUT),
    SAME(-ETIMEDOUT, RPC_TIMEOUT),
    ROW(EGM_E_NOT_PERMITTED, RPC_FAIL, RPC_FAIL, ILLEGAL_CLIENT),
    ROW(EGM_E_VERSION, RPC_FAIL, RPC_FAIL, INVALID_VERSION),
    ROW(EGM_E_UNSUPPORTED, RPC_FAIL, RPC_FAIL, NOT_SUPPORTED),
    /* the caller */
    SAME(EGM_E_INVALID, INVALID_PARAMS),
    SAME(EGM_E_BAD_KEY, INVALID_PARAMS),
    SAME(EGM_E_UNREGISTERED, INVALID_PARAMS),
    SAME(EGM_E_CLOSED, INVALID_PARAMS),
    /* us */
    SAME(EGM_E_INTERNAL, INTERNAL_ERROR),
};

int64_t egmpy_code(enum egmpy_call_kind kind, int64_t code)
{
    if (code >= 0) {
        return code;
    }
    for (size_t i = 0; i < sizeof(code_rows) / sizeof(code_rows[0]); i++) {
        if (code_rows[i].ours == code) {
            return code_rows[i].theirs[kind];
        }
    }
    /* Another errno. Of a data call: out of memory, files or sockets, so that nobody was reached.
     */
    bool is_errno = code >= -4095;
    return is_errno && kind != EGMPY_CALL_OTHER ? RPC_FAIL : INTERNAL_ERROR;
}
