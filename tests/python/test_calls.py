# SPDX-License-Identifier: Apache-2.0
"""Data calls: arguments, results, codes."""

import array
import gc
import threading
import time

import pytest

from conftest import SETUP

numpy = pytest.importorskip("numpy")


def test_put_get_round_trip_for_every_kind_of_buffer(store):
    values = [
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"memoryview"),
        array.array("i", [1, 2, 3]),
        numpy.arange(12, dtype=numpy.float32).reshape(3, 4),
        b"x" * (3 << 20),
    ]
    for i, value in enumerate(values):
        assert store.put(f"k{i}", value) == 0
        assert store.get(f"k{i}") == bytes(value)


def test_put_of_an_existing_key_keeps_the_value_and_upsert_replaces_it(store):
    assert [store.put("k", b"1"), store.put("k", b"2")] == [0, 0]
    assert store.get("k") == b"1"
    assert store.upsert("k", b"33") == 0
    assert store.get("k") == b"33"


def test_values_without_a_byte_are_refused_and_not_stored(store, memory):
    assert store.put("k", b"") == -600
    assert store.put_parts("k", b"", b"") == -600
    assert store.put_parts("k") == -600
    assert store.put_from("k", memory.address, 0) == -600
    assert store.upsert("k", b"") == -600
    assert store.batch_put_from(["k"], [memory.address], [0]) == [-600]
    assert store.batch_put_from_multi_buffers(["k"], [[]], [[]]) == [-600]
    assert store.put_batch(["k"], [b""]) == -600
    assert store.is_exist("k") == 0


@pytest.mark.parametrize(
    "value", ["text", None, 5, [b"x"], numpy.arange(10)[::2], memoryview(b"abcdef")[::2]]
)
def test_values_that_are_no_contiguous_buffer_are_type_errors(store, value):
    with pytest.raises(TypeError):
        store.put("k", value)
    with pytest.raises(TypeError):
        store.put_batch(["k"], [value])
    assert store.is_exist("k") == 0


@pytest.mark.parametrize("key", [None, 5, ["k"], "\ud800"])
def test_keys_that_are_no_text_are_type_errors(store, key):
    with pytest.raises(TypeError):
        store.put(key, b"v")
    with pytest.raises(TypeError):
        store.batch_is_exist([key])


def test_unknown_keywords_are_type_errors(store):
    with pytest.raises(TypeError):
        store.put("k", b"v", speed=1)
    with pytest.raises(TypeError):
        store.put_parts("k", b"v", speed=1)
    with pytest.raises(TypeError):
        store.put("k", b"v", config={"replica_num": 1})


def test_keys_may_hold_any_text(store):
    for key in ("ключ", "键\0键", "a" * 4096, " ", "\U0001f600"):
        assert store.put(key, b"v") == 0
        assert store.is_exist(key) == 1
    assert store.get(" ".encode()) == b"v"


def test_empty_and_overlong_keys_are_refused(store):
    assert store.put("", b"v") == -600
    assert store.put("a" * 4097, b"v") == -600
    assert store.is_exist("") == -600


def test_parts_are_joined(store):
    assert store.put_parts("k", b"ab", bytearray(b"cd"), memoryview(b"ef"), b"") == 0
    assert store.get("k") == b"abcdef"
    assert store.upsert_parts("k", b"x", b"y") == 0
    assert store.get("k") == b"xy"


@pytest.mark.parametrize("part", [numpy.zeros((2, 2), numpy.uint8), numpy.zeros(4, numpy.float32)])
def test_parts_with_a_shape_are_runtime_errors(store, part):
    with pytest.raises(RuntimeError):
        store.put_parts("k", b"x", part)


def test_put_batch_reports_the_first_failure_and_stores_the_rest(store):
    assert store.put_batch(["a", "b"], [b"1", b"2"]) == 0
    assert store.get_batch(["a", "b", "c"]) == [b"1", b"2", b""]
    assert store.put_batch(["d", "", "e"], [b"1", b"2", b"3"]) == -600
    assert store.batch_is_exist(["d", "e"]) == [1, 1]
    assert store.put_batch(["f"], [b"1", b"2"]) == -600
    assert store.put_batch([], []) == 0
    assert store.upsert_batch(["a"], [b"9"]) == 0
    assert store.get("a") == b"9"


def test_get_batch_answers_one_empty_value_for_no_keys(store):
    assert store.get_batch([]) == [b""]
    assert store.batch_get_buffer([]) == []


def test_get_batch_crosses_windows(store):
    keys = [f"k{i}" for i in range(1000)]
    values = [bytes([i % 251]) * (i + 1) for i in range(1000)]
    assert store.put_batch(keys, values) == 0
    assert store.get_batch(keys) == values
    handles = store.batch_get_buffer([*keys, "missing"])
    assert [bytes(handle) for handle in handles[:-1]] == values
    assert handles[-1] is None


def test_get_follows_a_value_that_grew_meanwhile(store, fake):
    store.put("k", b"value")
    fake.grow_once()
    assert store.get("k") == b"value"
    fake.grow_once()
    assert bytes(store.get_buffer("k")) == b"value"


def test_answers_are_not_to_be_seen_half_made(store, fake):
    """A list with gaps in gc.get_objects() ends the process of whoever looks into it."""
    store.put_batch(["a", "b"], [b"1", b"2"])
    fake.delay_ms(60)
    keys = ["a", "never", "b"]
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(store.get_batch(keys))),
        threading.Thread(target=lambda: found.append(len(store.batch_get_buffer(keys)))),
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for thing in gc.get_objects():
            if type(thing) in (list, tuple):
                thing[:3]
        time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert [b"1", b"", b"2"] in found and 3 in found


def test_staging_calls_need_a_local_buffer(closed, fake):
    import ctypes

    args = list(SETUP)
    args[3] = 0
    assert closed.setup(*args) == 0
    assert closed.put("k", b"v") == -600
    assert closed.put_parts("k", b"v") == -600
    assert closed.put_batch(["k"], [b"v"]) == -600
    assert closed.upsert("k", b"v") == -600
    assert "local_buffer_size" in closed.last_error()
    memory = ctypes.create_string_buffer(b"value", 5)
    address = ctypes.addressof(memory)
    assert closed.register_buffer(address, 5) == 0
    assert closed.put_from("k", address, 5) == 0
    assert closed.get("k") == b""
    assert closed.get_batch(["k"]) == [b""]
    assert closed.get_buffer("k") is None
    assert closed.get_into("k", address, 5) == 5
    closed.close()


def test_memory_calls_round_trip(store, memory):
    memory.array[:6] = b"abcdef"
    base = memory.address
    assert store.put_from("a", base, 6) == 0
    assert store.get_into("a", base + 100, 50) == 6
    assert memory.array[100:106] == b"abcdef"
    assert store.batch_put_from(["b", "c"], [base, base + 2], [2, 4]) == [0, 0]
    assert store.batch_get_into(["b", "c", "x"], [base + 200] * 3, [10, 4, 4]) == [2, 4, -704]
    keys = ["d", "e"]
    assert store.batch_put_from_multi_buffers(
        keys, [[base, base + 4], [base + 2]], [[2, 2], [1]]
    ) == [0, 0]
    assert store.get_batch(keys) == [b"abef", b"c"]
    got = store.batch_get_into_multi_buffers(
        keys, [[base + 300, base + 310], [base + 320]], [[1, 9], [1]]
    )
    assert got == [4, 1]
    assert bytes(memory.array[300:301] + memory.array[310:313]) == b"abef"
    assert all(type(code) is int for code in got)
    assert store.upsert_from("a", base, 1) == 0
    assert store.batch_upsert_from(["a"], [base], [3]) == [0]
    assert store.get("a") == b"abc"


def test_unregistered_memory_and_short_buffers_are_refused(store, memory):
    store.put("k", b"value")
    assert store.put_from("n", memory.address - 1, 10) == -600
    assert store.get_into("k", memory.address, 4) == -600
    assert store.get_into("k", memory.address, 0) == -600
    assert store.get_into("k", 0, 5) == -600
    assert store.get_into("k", 2**64 - 8, 100) == -600
    assert store.register_buffer(0, 10) == -600
    assert store.register_buffer(memory.address, 0) == -600
    assert store.unregister_buffer(memory.address) == 0
    assert store.unregister_buffer(memory.address) == -600
    assert store.get_into("k", memory.address, 5) == -600


def test_one_bad_key_does_not_spoil_the_others(store, memory):
    base = memory.address
    keys = ["a", "b", "c", "d"]
    pointers = [[base], [0], [base, base], [base]]
    sizes = [[1], [1], [1], [0]]
    assert store.batch_put_from_multi_buffers(keys, pointers, sizes) == [0, -600, -600, -600]
    assert store.batch_is_exist(keys) == [1, 0, 0, 0]
    assert "3 of 4" in store.last_error()


def test_duplicate_keys_in_a_batch_are_all_answered(store, memory):
    base = memory.address
    assert store.batch_put_from(["a", "a"], [base, base], [1, 1]) == [0, 0]
    assert store.batch_is_exist(["a", "a", "a"]) == [1, 1, 1]


@pytest.mark.parametrize(
    "ours,put,get,other",
    [
        (-5001, -704, -707, -900),  # STALE
        (-5002, -704, -704, -704),  # EVICTED
        (-5003, -200, -200, -200),  # NO_SPACE
        (-5004, -900, -900, -900),  # PEER_GONE
        (-5005, -900, -900, -900),  # PROTO
        (-5006, -704, -704, -704),  # NOT_FOUND
        (-5007, -705, -705, -705),  # EXISTS
        (-5008, -703, -703, -706),  # LEASED
        (-5009, -703, -703, -703),  # NOT_READY
        (-5010, -200, -702, -101),  # NO_SEGMENT
        (-5011, -200, -600, -600),  # TOO_LARGE
        (-5012, -900, -702, -801),  # CHECKSUM
        (-5013, -900, -702, -800),  # TRANSFER
        (-5014, -704, -707, -601),  # NOT_OWNER
        (-5015, -600, -600, -600),  # CLOSED
        (-5016, -600, -600, -600),  # UNREGISTERED
        (-5017, -600, -600, -600),  # BAD_KEY
        (-5018, -900, -900, -300),  # VERSION
        (-5019, -900, -900, -900),  # AGAIN
        (-5020, -900, -900, -1012),  # UNSUPPORTED
        (-5021, -200, -600, -600),  # LIMIT
        (-5022, -600, -600, -600),  # INVALID
        (-5023, -901, -901, -901),  # TIMEOUT
        (-5024, -1, -1, -1),  # INTERNAL
        (-5025, -900, -900, -601),  # NOT_PERMITTED
        (-110, -901, -901, -901),
        (-12, -900, -900, -1),
        (-5, -900, -900, -1),
        (-4999, -1, -1, -1),
        (-9999, -1, -1, -1),
    ],
)
def test_codes_are_mooncakes(store, memory, fake, ours, put, get, other):
    base = memory.address
    store.put("k", b"v")
    fake.fail(item=ours)
    assert store.put("n", b"v") == store.put_parts("n", b"v") == put
    assert store.upsert("n", b"v") == store.upsert_from("n", base, 1) == put
    assert store.put_from("n", base, 1) == put
    assert store.put_batch(["n"], [b"v"]) == store.upsert_batch(["n"], [b"v"]) == put
    assert store.batch_put_from(["n", "m"], [base] * 2, [1, 1]) == [put] * 2
    assert store.batch_upsert_from(["n"], [base], [1]) == [put]
    assert store.get_into("k", base, 1) == get
    assert store.get("k") == b""
    fake.fail(call=ours)
    assert store.batch_put_from_multi_buffers(["n"], [[base]], [[1]]) == [put]
    assert store.batch_get_into(["k", "k"], [base] * 2, [1, 1]) == [get] * 2
    assert store.batch_get_into_multi_buffers(["k"], [[base]], [[1]]) == [get]
    assert store.batch_is_exist(["k", "k"]) == [other] * 2
    assert store.is_exist("k") == store.get_size("k") == store.remove("k") == other
    assert store.remove_all() == store.remove_by_regex("k") == other
    assert str(ours) in store.last_error()


def test_remove_and_its_relatives(store):
    store.put_batch(["a", "b", "c1", "c2"], [b"1"] * 4)
    store.get("a")
    assert store.remove("a") == -706
    assert store.remove("a", force=True) == 0
    assert store.remove("a") == -704
    assert store.batch_remove(["b", "x"]) == [0, -704]
    assert store.remove_by_regex("c") == 2
    assert store.remove_by_regex("[") == -600
    assert store.remove_by_regex("a\0b") == -600
    store.put_batch(["a", "b"], [b"1"] * 2)
    assert store.remove_all() == 2
    assert store.remove_all(True) == 0


def test_forced_remove_all_raises_instead_of_returning_a_code(store, fake):
    fake.fail(call=-5004)
    assert store.remove_all() == -900
    with pytest.raises(RuntimeError, match="-900"):
        store.remove_all(force=True)


def test_sizes_and_descriptors(store):
    from mooncake.store import DiskDescriptor, ReplicaStatus

    store.put("k", b"value")
    assert [store.get_size("k"), store.get_size("x")] == [5, -704]
    (replica,) = store.get_replica_desc("k")
    assert replica.status is ReplicaStatus.COMPLETE
    assert (
        replica.is_memory_replica(),
        replica.is_disk_replica(),
        replica.is_local_disk_replica(),
    ) == (True, False, False)
    place = replica.get_memory_descriptor().buffer_descriptor
    assert (place.size, place.buffer_address, place.transport_endpoint) == (5, 4096, "fake:1")
    assert repr(place) == "<Descriptor size=5 buffer_address=4096 transport_endpoint=fake:1>"
    with pytest.raises(RuntimeError):
        replica.get_disk_descriptor()
    with pytest.raises(TypeError):
        type(replica)()
    assert not isinstance(replica, DiskDescriptor)
    assert hasattr(DiskDescriptor, "file_path") and hasattr(DiskDescriptor, "object_size")
    described = store.batch_get_replica_desc(["k", "x"])
    assert list(described) == ["k"] and len(described["k"]) == 1
    assert store.get_replica_desc("x") == []


def test_buffer_handle(store):
    store.put("k", b"value")
    handle = store.get_buffer("k")
    import ctypes

    assert ctypes.string_at(handle.ptr(), handle.size()) == b"value"
    assert len(handle) == handle.size() == 5
    assert bytes(numpy.frombuffer(handle, numpy.uint8)) == b"value"
    assert store.get_buffer("x") is None


def test_hostname_and_health(store, fake):
    assert store.get_hostname() == "host:12345"
    assert store.health_check() == 0
    fake.fail(call=-5004)
    assert store.health_check() == 2
