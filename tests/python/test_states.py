# SPDX-License-Identifier: Apache-2.0
"""What calls answer before setup, after close, and in a forked child."""

import gc
import os
import weakref

import pytest

from conftest import SETUP

CODES = {
    "register_buffer": (4096, 10),
    "unregister_buffer": (4096,),
    "put": ("k", b"v"),
    "put_parts": ("k", b"v", b"w"),
    "put_batch": (["k"], [b"v"]),
    "put_from": ("k", 4096, 10),
    "upsert": ("k", b"v"),
    "upsert_parts": ("k", b"v"),
    "upsert_batch": (["k"], [b"v"]),
    "upsert_from": ("k", 4096, 10),
    "get_into": ("k", 4096, 10),
    "is_exist": ("k",),
    "get_size": ("k",),
    "remove": ("k",),
    "remove_by_regex": ("k",),
    "remove_all": (),
}
LISTS = {
    "batch_put_from": (["a", "b"], [4096, 4096], [1, 1]),
    "batch_upsert_from": (["a", "b"], [4096, 4096], [1, 1]),
    "batch_get_into": (["a", "b"], [4096, 4096], [1, 1]),
    "batch_put_from_multi_buffers": (["a", "b"], [[4096], [4096]], [[1], [1]]),
    "batch_get_into_multi_buffers": (["a", "b"], [[4096], [4096]], [[1], [1]]),
    "batch_is_exist": (["a", "b"],),
    "batch_remove": (["a", "b"],),
}
OTHERS = {
    "get": (("k",), b""),
    "get_batch": ((["a", "b"],), [b""]),
    "get_buffer": (("k",), None),
    "batch_get_buffer": ((["a", "b"],), [None, None]),
    "get_replica_desc": (("k",), []),
    "batch_get_replica_desc": ((["a", "b"],), {}),
    "get_hostname": ((), ""),
    "health_check": ((), 1),
}


def check_closed(store):
    for name, args in CODES.items():
        assert getattr(store, name)(*args) == -600, name
    for name, args in LISTS.items():
        assert getattr(store, name)(*args) == [-600, -600], name
    for name, (args, answer) in OTHERS.items():
        assert getattr(store, name)(*args) == answer, name
    assert store.remove_all(force=True) == -600
    assert "setup" in store.last_error()


def test_calls_before_setup_answer_per_key_codes(closed):
    check_closed(closed)


def test_calls_after_close_answer_as_before_setup(store):
    assert store.put("k", b"v") == 0
    assert store.close() == 0
    check_closed(store)


def test_close_is_idempotent_and_allowed_before_setup(closed, fake):
    assert closed.close() == 0
    assert closed.setup(*SETUP) == 0
    assert [closed.close(), closed.close()] == [0, 0]
    assert fake.open_stores() == 0


def test_store_opens_again_after_close(store):
    assert store.put("k", b"v") == 0
    store.close()
    assert store.setup(*SETUP) == 0
    assert store.get("k") == b""


def test_second_setup_is_refused_and_leaves_the_store_open(store):
    assert store.setup(*SETUP) == -600
    assert "close() it first" in store.last_error()
    assert store.put("k", b"v") == 0


def test_dropping_the_last_reference_closes_the_store(fake):
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    store.setup(*SETUP)
    seen = weakref.ref(store)
    del store
    gc.collect()
    assert seen() is None
    assert fake.open_stores() == 0


def test_store_in_a_reference_cycle_is_collected(fake):
    from mooncake.store import MooncakeDistributedStore

    class Holder(MooncakeDistributedStore):
        pass

    store = Holder()
    store.setup(*SETUP)
    store.me = store
    del store
    gc.collect()
    assert fake.open_stores() == 0


def test_subclass_may_take_arguments_and_base_may_not():
    from mooncake.store import MooncakeDistributedStore

    class Named(MooncakeDistributedStore):
        def __init__(self, name):
            super().__init__()
            self.name = name

    assert Named("n").name == "n"
    with pytest.raises(TypeError):
        MooncakeDistributedStore("n")


def test_forked_child_finds_the_store_dead_and_the_parent_goes_on(store):
    assert store.put("k", b"v") == 0
    child = os.fork()
    if child == 0:
        alive = (
            store.put("k2", b"v") != -600
            or store.get("k") != b""
            or "fork" not in store.last_error()
        )
        alive = alive or store.close() != 0
        os._exit(1 if alive else 0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert store.get("k") == b"v"


def test_buffer_handle_outlives_the_store(store):
    store.put("k", b"value")
    handle = store.get_buffer("k")
    store.close()
    view = memoryview(handle)
    del handle
    assert bytes(view) == b"value"
    assert (view.ndim, view.itemsize, view.format, view.readonly) == (1, 1, "B", False)


def test_names_not_offered_yet_say_so(closed):
    for name in (
        "setup_dummy",
        "put_tensor",
        "batch_get_session_start",
        "create_copy_task",
        "mount_segment",
    ):
        assert hasattr(closed, name)
        with pytest.raises(NotImplementedError, match=name):
            getattr(closed, name)("any", thing=1)
