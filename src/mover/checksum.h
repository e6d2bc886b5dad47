/* SPDX-License-Identifier: Apache-2.0 */
/* The checksum of an object: a two-level XXH3-64 over its byte stream.
 *
 *   leaf[i]  = XXH3-64(bytes [i * 16 KiB, min((i + 1) * 16 KiB, length)))
 *   checksum = XXH3-64(leaf[0], leaf[1], ... as little-endian u64, seed = length)
 *
 * Leaves are cut by the offset in the object, never by how the bytes lie in memory, so the value
 * does not depend on the segments that the writer or the reader uses. The length is in the seed:
 * objects that differ only in their length differ. The empty object has no leaf and still has a
 * value. The leaf size is part of the stored format: changing it makes every stored checksum
 * wrong.
 *
 * Bytes come in order, in pieces of any size; memory is constant, because the level above the
 * leaves is streamed as well. A leaf that arrives whole is hashed in one call, which is faster
 * than the streaming form.
 *
 * The hash is the header-only XXH3, compiled once per vector width (checksum_*.c, each its own
 * object with its own compiler flags) and chosen by what the CPU can do; every variant gives the
 * same value, which the unit test checks against fixed numbers. The checksum finds torn or
 * misplaced bytes; it is not a MAC and proves nothing against somebody hostile.
 *
 * Threading: one struct egm_checksum belongs to one thread at a time. The choice of variant is
 * thread-safe. */
#ifndef EGM_MOVER_CHECKSUM_H
#define EGM_MOVER_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#define EGM_CHECKSUM_LEAF_BYTES 16384u

/* Room for one XXH3 state of any release so far (576 bytes in 0.8.1); each variant asserts that
 * its own fits. */
#define EGM_CHECKSUM_STATE_BYTES 640u
#define EGM_CHECKSUM_STATE_ALIGN 64u

struct egm_checksum_variant;

/* A checksum being computed. May lie at any address (the states align themselves inside), hence
 * must not be moved or copied between init and final. Nothing to release. */
struct egm_checksum {
    const struct egm_checksum_variant *variant_;
    uint64_t object_bytes_; /* whole length, the seed */
    uint64_t left_bytes_;   /* not yet fed */
    size_t leaf_fill_; /* bytes of the current leaf in its state; 0: that state is not started */
    uint64_t *leaves_; /* where the next leaf's hash goes; NULL: into the level above */
    unsigned char states_[2u * EGM_CHECKSUM_STATE_BYTES + EGM_CHECKSUM_STATE_ALIGN];
};

/* Starts the checksum of an object of `object_bytes` bytes. */
void egm_checksum_init(struct egm_checksum *c, uint64_t object_bytes);

/* The same with a given variant: for tests and benchmarks. */
void egm_checksum_init_with(struct egm_checksum *c, const struct egm_checksum_variant *variant,
                            uint64_t object_bytes);

/* Feeds the next `size` bytes. All calls together must feed exactly object_bytes; more is our bug
 * and stops the process. */
void egm_checksum_update(struct egm_checksum *c, const void *data, size_t size);

/* Returns the checksum; every byte must have been fed. The state is used up: init again before the
 * next object. */
uint64_t egm_checksum_final(struct egm_checksum *c);

/* Starts the leaf hashes of `size` bytes of an object, from a leaf's beginning on; they end with a
 * leaf or with the object. The hashes are written to leaves[0], leaves[1], ... (borrowed) as the
 * bytes are fed by egm_checksum_update, and there is no final. So several threads may each hash a
 * part of one object. */
void egm_checksum_init_leaves(struct egm_checksum *c, uint64_t *leaves, uint64_t size);

/* The checksum of an object of `object_bytes` bytes from all its leaves' hashes. */
uint64_t egm_checksum_of_leaves(const uint64_t *leaves, uint64_t object_bytes);

/* How many leaves an object has. */
uint64_t egm_checksum_leaf_count(uint64_t object_bytes);

/* The checksum of an object that lies in one piece. */
uint64_t egm_checksum_of(const void *data, size_t size);

/* The variants that this CPU can run, best first; NULL at and past the end. Index 0 is the one in
 * use. */
const struct egm_checksum_variant *egm_checksum_variant_at(size_t index);

/* "avx512", "avx2", "sse2", "neon" or "scalar". */
const char *egm_checksum_variant_name(const struct egm_checksum_variant *variant);

#endif
