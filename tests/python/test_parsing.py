# SPDX-License-Identifier: Apache-2.0
"""Lists of keys, addresses and sizes: what is accepted, what is refused, how fast, no leaks."""

import gc
import os
import sys
import time
import tracemalloc

import pytest

numpy = pytest.importorskip("numpy")


def test_empty_lists_give_empty_lists(store):
    assert store.batch_is_exist([]) == []
    assert store.batch_remove([]) == []
    assert store.batch_put_from([], [], []) == []
    assert store.batch_get_into([], [], []) == []
    assert store.batch_put_from_multi_buffers([], [], []) == []
    assert store.batch_get_into_multi_buffers([], [], []) == []
    assert store.batch_get_replica_desc([]) == {}


@pytest.mark.parametrize(
    "pointers,sizes", [([1], [1, 1]), ([1, 1], [1]), ([], []), ([1, 1, 1], [1, 1, 1])]
)
def test_lists_of_different_lengths_fail_every_key(store, pointers, sizes):
    assert store.batch_put_from(["a", "b"], pointers, sizes) == [-600, -600]
    assert store.batch_get_into(["a", "b"], pointers, sizes) == [-600, -600]
    nested = [[p] for p in pointers], [[s] for s in sizes]
    assert store.batch_put_from_multi_buffers(["a", "b"], *nested) == [-600, -600]
    assert store.batch_get_into_multi_buffers(["a", "b"], *nested) == [-600, -600]


@pytest.mark.parametrize("bad", [-1, 2**64, "1", None, 1.5, b"1"])
def test_numbers_that_are_no_addresses_are_type_errors(store, bad):
    with pytest.raises(TypeError):
        store.batch_get_into(["a"], [bad], [1])
    with pytest.raises(TypeError):
        store.batch_get_into(["a"], [1], [bad])
    with pytest.raises(TypeError):
        store.batch_put_from_multi_buffers(["a"], [[1, bad]], [[1, 1]])
    with pytest.raises(TypeError):
        store.get_into("a", bad, 1)


@pytest.mark.parametrize("bad", ["abc", b"abc", 5, None, {"a": 1}, {"a"}, iter(["a"])])
def test_things_that_are_no_lists_are_type_errors(store, bad):
    with pytest.raises(TypeError):
        store.batch_is_exist(bad)
    with pytest.raises(TypeError):
        store.batch_get_into_multi_buffers(["a"], [bad], [[1]])
    with pytest.raises(TypeError):
        store.batch_get_into_multi_buffers(["a"], [[1]], bad)


def test_addresses_up_to_the_last_are_read_right(store, memory):
    top = 2**64 - 4096
    assert store.batch_put_from(["a", "b", "c"], [top, 2**63, memory.address], [16, 16, 16]) == [
        -600,
        -600,
        0,
    ]
    # a range that ends past the last address is no memory
    assert store.batch_put_from(["a"], [2**64 - 1], [2]) == [-600]
    assert store.batch_put_from(["d"], [memory.address], [2**64 - 1]) == [-600]


def test_any_sequence_is_accepted(store, memory):
    base = memory.address

    class Sequence:
        def __init__(self, items):
            self.items = items

        def __len__(self):
            return len(self.items)

        def __getitem__(self, index):
            return self.items[index]

    class Index:
        def __init__(self, value):
            self.value = value

        def __index__(self):
            return self.value

    memory.array[:4] = b"abcd"
    assert store.batch_put_from(
        ("a", "b"), (base, base + 1), numpy.array([1, 2], numpy.uint64)
    ) == [0, 0]
    assert store.batch_put_from(Sequence(["c"]), Sequence([Index(base + 1)]), range(3, 4)) == [0]
    assert store.batch_put_from_multi_buffers(
        ["d"], numpy.array([[base, base + 2]], numpy.uint64), ((1, 1),)
    ) == [0]
    assert store.get_batch(["a", "b", "c", "d"]) == [b"a", b"bc", b"bcd", b"ac"]


def test_lists_that_change_while_they_are_read_do_no_harm(store, memory):
    pointers = []

    class Vandal:
        def __index__(self):
            pointers.clear()
            gc.collect()
            return memory.address

    pointers.extend([Vandal(), memory.address, memory.address])
    with pytest.raises(RuntimeError, match="changed size"):
        store.batch_put_from(["a", "b", "c"], pointers, [1, 1, 1])

    inner = []

    class InnerVandal:
        def __index__(self):
            inner.clear()
            return memory.address

    inner.extend([InnerVandal(), memory.address])
    with pytest.raises(RuntimeError, match="changed size"):
        store.batch_put_from_multi_buffers(["a"], [inner], [[1, 1]])


def test_errors_inside_index_pass_through(store):
    class Broken:
        def __index__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.batch_put_from(["a"], [Broken()], [1])


def test_too_many_keys_are_refused_not_tried(closed):
    with pytest.raises(RuntimeError, match="at most"):
        closed.batch_is_exist(["a"] * ((1 << 22) + 1))


# sanitizers slow the extension down several times
timing = pytest.mark.skipif("ASAN_OPTIONS" in os.environ, reason="timing of a sanitized build")


def best(call, rounds=5):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def big_get(keys, per_key):
    address = 0x7F0000000000
    names = [f"vllm-model-0123456789abcdef@{i:064x}" for i in range(keys)]
    pointers = [[address + (i * per_key + j) * 8192 for j in range(per_key)] for i in range(keys)]
    sizes = [[8192] * per_key for _ in range(keys)]
    return names, pointers, sizes


@timing
def test_largest_known_get_is_parsed_within_40_ns_per_integer(closed):
    """A 128k prompt: 8,192 keys x 80 segments, 1,310,720 integers. A closed store only parses."""
    arguments = big_get(8192, 80)
    seconds = best(lambda: closed.batch_get_into_multi_buffers(*arguments))
    per_integer = seconds / (2 * 8192 * 80) * 1e9
    print(f"parse: {per_integer:.1f} ns per integer, {seconds * 1e3:.1f} ms per call")
    assert per_integer <= 40


def test_parsing_cost_is_linear(closed):
    small = big_get(1024, 80)
    large = big_get(8192, 80)
    ratio = best(lambda: closed.batch_get_into_multi_buffers(*large)) / best(
        lambda: closed.batch_get_into_multi_buffers(*small)
    )
    assert ratio < 8 * 4


@timing
def test_lookup_of_65536_keys_is_cheap(closed):
    names = big_get(65536, 0)[0]
    seconds = best(lambda: closed.batch_is_exist(names))
    print(f"keys: {seconds / 65536 * 1e9:.1f} ns per key")
    assert seconds / 65536 <= 250e-9


def test_references_return_to_where_they_were(store, memory):
    from mooncake.store import ReplicateConfig

    key = "".join(["a ", "key of its own"])
    keys = [key, key]
    address = memory.address + 7
    size = 12345
    value = bytearray(b"value")
    config = ReplicateConfig()
    group = "".join(["gr", "oup"])
    config.group_ids = [group, group]
    things = [key, keys, address, size, value, config, group, None, b"", store]

    def calls():
        store.batch_put_from(keys, [address, address], [size, size], config)
        store.batch_put_from_multi_buffers(keys, [[address], [address]], [[size], [size]], config)
        store.batch_get_into_multi_buffers(keys, [[address], [address, address]], [[size], [size]])
        store.batch_get_into(keys, [address], [size])
        store.put(key, value)
        store.put_parts(key, value, value)
        store.put_batch(keys, [value, value], config)
        store.get(key), store.get_batch(keys), store.get_buffer(key), store.get_size(key)
        store.get_replica_desc(key), store.batch_get_replica_desc(keys)
        store.batch_is_exist(keys), store.is_exist(key), store.batch_remove(keys), store.remove(key)
        for bad in ([None], [[address, "x"]], [-1], "x"):
            with pytest.raises(TypeError):
                store.batch_put_from_multi_buffers([key], bad, [[size, size]])
        with pytest.raises(TypeError):
            store.put_batch(keys, [value, "text"])
        str(config)

    calls()
    before = [sys.getrefcount(thing) for thing in things]
    for _ in range(200):
        calls()
    after = [sys.getrefcount(thing) for thing in things]
    # None is shared with the test machinery, so only a steady drift counts
    assert all(abs(b - a) < 50 for a, b in zip(before, after)), list(zip(before, after))


def test_memory_does_not_grow_with_calls(store, memory):
    from mooncake.store import MooncakeDistributedStore, ReplicateConfig

    keys = [f"key {i}" for i in range(300)]
    values = [b"x" * 100] * 300

    def calls():
        store.put_batch(keys, values)
        store.get_batch(keys)
        store.batch_get_buffer(keys)
        store.batch_get_into(keys, [memory.address] * 300, [100] * 300)
        config = ReplicateConfig()
        config.preferred_segments = keys[:10]
        config.group_ids = keys
        store.put_batch(keys, values, config)
        MooncakeDistributedStore().get("x")

    for _ in range(3):
        calls()
    gc.collect()
    tracemalloc.start()
    calls()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(50):
        calls()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 10_000
