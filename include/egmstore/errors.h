/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Result codes of libegmstore.
 *
 * Every fallible call returns an int: >= 0 is success (often a count), negative is an error. Two
 * ranges share that int: -1..-4095 is the kernel's own cause (-errno), and -5001 downwards are
 * ours, for what the kernel has no word for. Nothing lies between, so a code tells by itself which
 * table explains it.
 *
 * These numbers are this library's ABI. They do not cross a socket (the wire has its own table) and
 * they are not the numbers of Mooncake's Python API (python/ maps them in one place). New codes are
 * added at the end and old ones keep their number.
 *
 * What a caller may conclude comes from functions, not from comparing codes by hand:
 * egm_err_retryable() says whether the same call may be tried again within its deadline,
 * egm_err_scope() what has to be torn down first.
 */
#ifndef EGMSTORE_ERRORS_H
#define EGMSTORE_ERRORS_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A symbol that the shared library exports; all others stay hidden. */
#define EGM_EXPORT __attribute__((visibility("default")))

/* The result must be looked at. Where it truly does not matter, egm_ignore(x, "why") inside the
 * library. */
#define EGM_MUST_CHECK __attribute__((warn_unused_result))

enum egm_error {
    EGM_E_STALE = -5001,         /* names an old generation, epoch or term: look up again */
    EGM_E_EVICTED = -5002,       /* the object went away while it was being read */
    EGM_E_NO_SPACE = -5003,      /* the pool is full and nothing may be evicted */
    EGM_E_PEER_GONE = -5004,     /* the other process ended or its connection broke */
    EGM_E_PROTO = -5005,         /* the peer sent what the protocol forbids */
    EGM_E_NOT_FOUND = -5006,     /* no such key, segment, option... */
    EGM_E_EXISTS = -5007,        /* already there */
    EGM_E_LEASED = -5008,        /* a lease or hold forbids it now */
    EGM_E_NOT_READY = -5009,     /* put not sealed yet, or the component is still starting */
    EGM_E_NO_SEGMENT = -5010,    /* no provider has mounted a usable segment */
    EGM_E_TOO_LARGE = -5011,     /* larger than any provider, or than the given buffer */
    EGM_E_CHECKSUM = -5012,      /* bytes do not match their checksum */
    EGM_E_TRANSFER = -5013,      /* copying failed */
    EGM_E_NOT_OWNER = -5014,     /* {session, generation} names somebody else's operation */
    EGM_E_CLOSED = -5015,        /* the store is closed, or belongs to the process before fork */
    EGM_E_UNREGISTERED = -5016,  /* the buffer is not (wholly) registered */
    EGM_E_BAD_KEY = -5017,       /* empty or too long key */
    EGM_E_VERSION = -5018,       /* no common protocol version */
    EGM_E_AGAIN = -5019,         /* busy: retry inside the deadline */
    EGM_E_UNSUPPORTED = -5020,   /* not offered by this build, mover or memory kind */
    EGM_E_LIMIT = -5021,         /* a bound of limits.h or of the option's range was exceeded */
    EGM_E_INVALID = -5022,       /* bad argument or malformed text */
    EGM_E_TIMEOUT = -5023,       /* the call's deadline passed */
    EGM_E_INTERNAL = -5024,      /* a bug in this library; please report it */
    EGM_E_NOT_PERMITTED = -5025, /* authentication or permission refused */
};

/* What a failure has made unusable: the smallest thing that must be given up before going on. */
enum egm_error_scope {
    EGM_SCOPE_OP = 0,         /* only this operation */
    EGM_SCOPE_CONNECTION = 1, /* the connection it ran on: close it, never pool it */
    EGM_SCOPE_SEGMENT = 2,    /* the replica's segment: descriptors of it must be fetched anew */
    EGM_SCOPE_NODE = 3,       /* the store handle as a whole */
};

/* An error with its place and its story, for people. Codes decide what programs do; this carries
 * what a person needs. It lies on the caller's stack, is passed as `reterr` (NULL: not wanted), and
 * is written only on failure; filling it allocates nothing. */
struct egm_detail {
    int code;       /* negative once filled */
    char stage[32]; /* short constant name of where it arose: "mount", "options" */
    char text[384]; /* what, which, why, next step; one line; cut with "..." when too long */
};

/* A sentence fragment for people ("no space in the pool"). Never NULL; unknown codes get a generic
 * text. The text is static. @threadsafe */
EGM_EXPORT const char *egm_strerror(int code);

/* The symbol of a code ("EGM_E_STALE", "ENOENT"), for logs. Never NULL; static. @threadsafe */
EGM_EXPORT const char *egm_error_name(int code);

/* True if the same call may succeed when tried again within its deadline, without the caller
 * changing anything. False for every code >= 0. @threadsafe */
EGM_EXPORT bool egm_err_retryable(int code);

/* What the caller has to tear down after `code`. EGM_SCOPE_OP for code >= 0. @threadsafe */
EGM_EXPORT enum egm_error_scope egm_err_scope(int code);

#ifdef __cplusplus
}
#endif

#endif
