#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stores objects straight from a buffer and reads them back into another, through Mooncake's Python API.

    python put_get.py [master]      master: "host:port", default 127.0.0.1:50051

This process lends 64 MiB itself, so a master is all it needs.
"""
import ctypes
import sys

from mooncake.store import MooncakeDistributedStore

PIECE = 1_000_000
COUNT = 4


def main():
    master = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", master)
    if code != 0:
        sys.exit(f"no store at {master}: code {code}")

    memory = ctypes.create_string_buffer(COUNT * PIECE * 2)
    source = ctypes.addressof(memory)
    target = source + COUNT * PIECE
    for i in range(COUNT):
        ctypes.memset(source + i * PIECE, 65 + i, PIECE)
    # the data calls touch registered memory only
    assert store.register_buffer(source, len(memory)) == 0

    # each value is made of two pieces, which need not be neighbours
    keys = [f"example/{i}" for i in range(COUNT)]
    half = PIECE // 2
    codes = store.batch_put_from_multi_buffers(
        keys,
        [[source + i * PIECE, source + i * PIECE + half] for i in range(COUNT)],
        [[half, PIECE - half]] * COUNT)
    assert codes == [0] * COUNT, codes
    assert store.batch_is_exist(keys + ["example/absent"]) == [1] * COUNT + [0]

    # and may be read back in one
    sizes = store.batch_get_into_multi_buffers(
        keys, [[target + i * PIECE] for i in range(COUNT)], [[PIECE]] * COUNT)
    assert sizes == [PIECE] * COUNT, sizes
    assert memory.raw[:COUNT * PIECE] == memory.raw[COUNT * PIECE:COUNT * PIECE * 2]
    print(f"{COUNT} objects of {PIECE} bytes, as stored")
    store.close()


if __name__ == "__main__":
    main()
