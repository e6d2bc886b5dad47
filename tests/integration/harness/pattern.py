# SPDX-License-Identifier: Apache-2.0
"""Payloads whose every byte is known, and what to say about bytes that came back.

P(tag, n) is the first n bytes of SHAKE-256(tag).  Above 64 MiB hashing would dominate a test, so the stream is
then made of 64 MiB blocks: block i is the base block rotated by i * 1,000,003 bytes, with the absolute offset
stamped into each 64 KiB page.  A shifted, swapped or repeated block therefore still differs.
"""
import hashlib
import struct
import threading
from collections import OrderedDict

MiB = 1 << 20
BLOCK = 64 * MiB
_CACHE_BYTES = 256 * MiB
_cache = OrderedDict()
_cache_bytes = 0
_lock = threading.Lock()


def _shake(tag, n):
    if isinstance(tag, str):
        tag = tag.encode("utf-8", "surrogatepass")
    return hashlib.shake_256(tag).digest(n)


def P(tag, n):
    """First n bytes of the pattern of `tag` (n <= 64 MiB: pure SHAKE-256). Cached."""
    global _cache_bytes
    if n > BLOCK:
        return b"".join(P_blocks(tag, n))
    with _lock:
        hit = _cache.get((tag, n))
        if hit is not None:
            _cache.move_to_end((tag, n))
            return hit
    data = _shake(tag, n)
    with _lock:
        if (tag, n) not in _cache:
            _cache[(tag, n)] = data
            _cache_bytes += n
        while _cache_bytes > _CACHE_BYTES:
            _, old = _cache.popitem(last=False)
            _cache_bytes -= len(old)
    return data


def P_blocks(tag, n):
    """Yield the pattern of a huge value in blocks of at most 64 MiB."""
    base = P(tag, BLOCK)
    for index in range((n + BLOCK - 1) // BLOCK):
        turn = (index * 1_000_003) % BLOCK
        block = bytearray(base[turn:] + base[:turn])
        for page in range(0, BLOCK, 65536):
            block[page:page + 8] = struct.pack("<Q", index * BLOCK + page)
        yield bytes(block[:min(BLOCK, n - index * BLOCK)])


def verdict(data, expect):
    """'ok', 'empty' or one line that says how `data` differs from `expect`."""
    if data is None or len(data) == 0:
        return "empty"
    if len(data) != len(expect):
        return f"WRONG length {len(data)} instead of {len(expect)}"
    if bytes(data) == expect:
        return "ok"
    return f"WRONG bytes: {describe_difference(bytes(data), expect)}"


def describe_difference(data, expect):
    lo, hi = 0, min(len(data), len(expect))
    while lo < hi:
        mid = (lo + hi) // 2
        if data[lo:mid + 1] == expect[lo:mid + 1]:
            lo = mid + 1
        else:
            hi = mid
    return f"first difference at {lo} of {len(expect)}: {data[lo:lo + 8].hex()} instead of {expect[lo:lo + 8].hex()}"


class Config(dict):
    """A ReplicateConfig by value: attribute -> value. The worker builds the real object from it."""
