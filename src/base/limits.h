/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every bound of the system, with its reason. Going beyond one is an error that names it, never
 * silent growth.
 *
 * Those marked (wire) or (shm) are part of a format that two processes share: changing one needs a
 * new protocol or layout version. The others may be changed freely within their reason. Sizes are
 * bytes.
 */
#ifndef EGM_BASE_LIMITS_H
#define EGM_BASE_LIMITS_H

#include <stdint.h>

/* ---- Pool layout ---- */

/* (shm) Unit of allocation. Large enough that the fence table stays below 0.02 % of the pool and
 * that a copy is not dominated by its start; a multiple of every page size we meet (4, 16, 64 KiB).
 */
#define EGM_GRANULE UINT64_C(65536)

/* (shm) Unit inside a granule that is cut for small objects: one x86 page, and the smallest KV
 * piece seen (4 KiB). */
#define EGM_SLOT UINT64_C(4096)

/* (shm) Slots of a cut granule. */
#define EGM_SLOTS_PER_GRANULE (EGM_GRANULE / EGM_SLOT)

/* (wire) Pieces of one replica. 16 pieces of at least a granule place a 4.3 MiB object in a pool
 * fragmented by all sizes that vLLM produces, without evicting a quarter of it (DESIGN 5). */
#define EGM_MAX_EXTENTS 16

/* (wire) Providers that one put may name to be tried first; it is a wish, so that more are cut off.
 */
#define EGM_MAX_PREFERRED 8

/* (wire) Copies of one object. Mooncake's replica_num is 1..3 in practice; 8 is one per GPU of a
 * node. */
#define EGM_MAX_REPLICAS 8

/* (wire, shm) Bytes covered by one leaf of the checksum: fits L1 with its destination, and range
 * reads verify leaves. */
#define EGM_LEAF UINT64_C(16384)

/* (wire) Segments of one master. 4,096 nodes, or 1,024 nodes of four NUMA nodes each; tables by
 * segment stay small. */
#define EGM_MAX_SEGMENTS 4096

/* (shm) Importers of one segment at a time. One OFD lock byte and one small record each; far above
 * the engine processes that one host can run. */
#define EGM_MAX_SLOTS 4096

/* (wire) Bytes of one segment: 16 TiB, above the memory of any NUMA node; offsets then fit 44 bits.
 */
#define EGM_MAX_SEGMENT_BYTES (UINT64_C(1) << 44)

/* (wire) Bytes of one object: one segment at most; the sum over a window of 1,024 keys cannot wrap
 * 64 bits. */
#define EGM_MAX_OBJECT_BYTES EGM_MAX_SEGMENT_BYTES

/* ---- Names ---- */

/* (wire) Bytes of a key; 1 is the least. vLLM's are about 200, other engines put paths into them: a
 * path's bound. */
#define EGM_MAX_KEY 4096

/* (wire) Bytes of a tenant, group or segment name: shown in tables, used as a label of metrics. */
#define EGM_MAX_NAME 255

/* (wire) Bytes of a host name or address, NUL excluded: DNS allows 253. */
#define EGM_MAX_HOST 255

/* Bytes of a regular expression of remove_by_regex: compiled on the master's thread. */
#define EGM_MAX_REGEX 4096

/* Bytes of one option's text: a path of PATH_MAX, or a list of addresses. */
#define EGM_MAX_OPTION_TEXT 65536

/* ---- Messages ---- */

/* (wire) Payload of one frame: a window of 1,024 keys of the longest kind with 16 extents each
 * takes below 6 MiB; the rest is room for index records and lists. Larger announcements close the
 * connection before anything is allocated. */
#define EGM_MAX_FRAME (UINT64_C(64) << 20)

/* (wire) Keys of one window: the master yields to its loop after as many, which keeps a turn within
 * 300 us. */
#define EGM_WINDOW_KEYS 1024

/* (wire) Records of one RECORDS frame: what a provider takes in one go, some MiB. */
#define EGM_MAX_RECORDS 65536u

/* Keys of one batch call: a 1 M-token context in blocks of one token. Bounds what a call allocates
 * up front. */
#define EGM_MAX_BATCH_KEYS (1u << 20)

/* Buffers of one object in a multi-buffer call. 80 layers x 2 (K, V) is common; token-major layouts
 * take layers x block size, 80 x 128 = 10,240. Costs 16 bytes each while the call runs. */
#define EGM_MAX_BUFFERS_PER_KEY 65536

/* (wire) Read ops that one PING_REPLY renews: far above the calls that a process runs at a time.
 * One that is not named ends when it would have, and its reader asks again. */
#define EGM_MAX_RENEWALS 4096

/* (wire) Bytes that one window of a get leases: large enough to hide the round trip at 100 GB/s,
 * small enough that a lease ends soon and eviction is not blocked by one reader. */
#define EGM_WINDOW_GET_BYTES (UINT64_C(256) << 20)

/* (wire) Bytes that one window of a put holds un-ended (or one object, if that is larger): they are
 * capacity that nobody can read yet, and are quarantined if the writer hangs. */
#define EGM_WINDOW_PUT_BYTES (UINT64_C(64) << 20)

/* ---- Processes ---- */

/* Connections of one requester process to the master. Requests run on the caller's thread over an
 * idle one; more parallel callers wait within their deadline, because the master is one thread
 * anyhow. */
#define EGM_MAX_CONNECTIONS_PER_CLIENT 16

/* Sessions at one master: 4,096 nodes x 8 engines, halved; each costs a few hundred bytes and a
 * heartbeat a second. */
#define EGM_MAX_SESSIONS 16384

/* Tenants of one master: looked up by a walk when a session opens. */
#define EGM_MAX_TENANTS 4096

/* Memory regions that one requester registers: vLLM registers one per layer and kind, some
 * hundreds. */
#define EGM_MAX_REGIONS 65536

/* Bytes copied between two looks at the lease: a writer that lost it stops within 1 MiB (~0.1 ms).
 */
#define EGM_COPY_CHUNK UINT64_C(1048576)

/* Objects in one master's directory: below the 2^31 positions of the hash index, at ~200 bytes each
 * 200 GiB. */
#define EGM_MAX_OBJECTS (UINT64_C(1) << 30)

#endif
