# SPDX-License-Identifier: Apache-2.0
"""Calls from several threads: the GIL is free while waiting, close() may come at any time."""

import subprocess
import sys
import textwrap
import threading
import time

import pytest

from conftest import SETUP


def run_beside(call):
    """Runs `call` in a thread: how many 1 ms turns this thread got meanwhile, and the result."""
    result = []
    thread = threading.Thread(target=lambda: result.append(call()))
    thread.start()
    turns = 0
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    thread.join()
    return turns, result[0]


CALLS = {
    "put": lambda s, m: s.put("k", b"v"),
    "put_parts": lambda s, m: s.put_parts("k", b"v"),
    "put_batch": lambda s, m: s.put_batch(["k"], [b"v"]),
    "get": lambda s, m: s.get("k"),
    "get_batch": lambda s, m: s.get_batch(["k"]),
    "get_buffer": lambda s, m: s.get_buffer("k"),
    "put_from": lambda s, m: s.put_from("k", m.address, 1),
    "get_into": lambda s, m: s.get_into("k", m.address, 1),
    "batch_put_from_multi_buffers": lambda s, m: s.batch_put_from_multi_buffers(
        ["k"], [[m.address]], [[1]]
    ),
    "batch_get_into_multi_buffers": lambda s, m: s.batch_get_into_multi_buffers(
        ["k"], [[m.address]], [[1]]
    ),
    "batch_is_exist": lambda s, m: s.batch_is_exist(["k"]),
    "remove": lambda s, m: s.remove("k"),
    "remove_all": lambda s, m: s.remove_all(),
    "remove_by_regex": lambda s, m: s.remove_by_regex("k"),
    "get_size": lambda s, m: s.get_size("k"),
    "get_replica_desc": lambda s, m: s.get_replica_desc("k"),
    "health_check": lambda s, m: s.health_check(),
    "close": lambda s, m: s.close(),
}


@pytest.mark.parametrize("name", list(CALLS))
def test_other_threads_run_while_a_call_waits(store, memory, fake, name):
    fake.delay_ms(100)
    turns, _ = run_beside(lambda: CALLS[name](store, memory))
    assert turns >= 20


def test_other_threads_run_while_setup_waits(closed, fake):
    fake.delay_ms(100)
    turns, code = run_beside(lambda: closed.setup(*SETUP))
    assert turns >= 20 and code == 0


def test_close_waits_for_calls_inside_and_later_calls_fail_at_once(store, fake):
    store.put("k", b"v")
    fake.delay_ms(300)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(store.is_exist("k"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    assert fake.inside() == 4
    left_open = []
    closer = threading.Thread(target=lambda: left_open.append((store.close(), fake.open_stores())))
    closer.start()
    time.sleep(0.05)
    start = time.perf_counter()
    assert store.is_exist("k") == -600
    assert time.perf_counter() - start < 0.05
    for thread in [*threads, closer]:
        thread.join()
    assert results == [1, 1, 1, 1]
    assert left_open == [(0, 0)]  # nothing is left when close() returns


def test_setup_that_close_overtakes_leaves_nothing_open(closed, fake):
    fake.delay_ms(200)
    results = []
    thread = threading.Thread(target=lambda: results.append(closed.setup(*SETUP)))
    thread.start()
    time.sleep(0.05)
    assert closed.setup(*SETUP) == -600  # one at a time
    assert closed.close() == 0
    thread.join()
    assert results == [-600]
    assert fake.open_stores() == 0


def test_many_threads_open_close_and_call_at_random(fake):
    """The fake aborts the process if its store is closed while a call is inside."""
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    stop = time.monotonic() + 2
    allowed = {0, 1, -600, -704}
    wrong = []

    def call():
        while time.monotonic() < stop:
            codes = {store.put("k", b"v"), store.is_exist("k"), *store.batch_is_exist(["k", "x"])}
            if not codes <= allowed or store.get("k") not in (b"", b"v"):
                wrong.append(codes)

    def cycle():
        while time.monotonic() < stop:
            store.setup(*SETUP)
            store.close()

    threads = [threading.Thread(target=call) for _ in range(6)] + [
        threading.Thread(target=cycle) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    assert not wrong
    assert fake.open_stores() == 0


def test_caller_may_change_lists_and_config_while_a_put_runs(store, memory, fake):
    from mooncake.store import ReplicateConfig

    config = ReplicateConfig()
    keys = [f"key number {i}" for i in range(8)]
    wanted = list(keys)
    config.group_ids = [f"group number {i}" for i in range(8)]
    fake.delay_ms(100)
    result = []
    pointers = [memory.address] * 8
    thread = threading.Thread(
        target=lambda: result.append(store.batch_put_from(keys, pointers, [1] * 8, config))
    )
    thread.start()
    time.sleep(0.03)
    config.group_ids = None
    keys.clear()
    pointers.clear()
    thread.join()
    assert result == [[0] * 8]
    assert store.batch_is_exist(wanted) == [1] * 8
    assert fake.seen.groups.startswith(b"group number 0,group number 1")


EXIT_SCRIPT = """
    import ctypes, os, sys, threading, time
    sys.path.insert(0, os.environ["EGMSTORE_PYTHON_DIR"])
    fake = ctypes.CDLL(os.environ["EGMSTORE_FAKE_LIB"], mode=ctypes.RTLD_GLOBAL)
    from mooncake.store import MooncakeDistributedStore
    store = MooncakeDistributedStore()
    assert store.setup("h", "", 0, 1 << 20, "tcp", "", "") == 0
    if {with_thread}:
        fake.fake_set_delay_ms(200)
        calls = lambda: [store.is_exist("k") for _ in range(100)]
        threading.Thread(target=calls, daemon=True).start()
        time.sleep(0.05)
"""


@pytest.mark.parametrize("with_thread", [False, True])
def test_interpreter_exits_cleanly_with_an_open_store(with_thread):
    script = textwrap.dedent(EXIT_SCRIPT.format(with_thread=with_thread))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_module_can_be_loaded_twice_with_its_own_state():
    import importlib.util

    import mooncake.store as first

    spec = importlib.util.spec_from_file_location("mooncake.store", first.__file__)
    second = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(second)
    assert second.ReplicateConfig is not first.ReplicateConfig
    with pytest.raises(TypeError):
        store = first.MooncakeDistributedStore()
        store.put("k", b"v", second.ReplicateConfig())
