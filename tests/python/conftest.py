# SPDX-License-Identifier: Apache-2.0
"""Tests of the binding alone: `mooncake.store` over a fake libegmstore, no master, no network.

Two things come from the build tree and are named by the environment (meson test sets them):
  EGMSTORE_PYTHON_DIR   folder that holds the package `mooncake` with the built extension
  EGMSTORE_FAKE_LIB     the fake library (fake_store.c), with the real one's soname
The fake is loaded first and for all, so that the extension's symbols bind to it and never to the
real library.
"""

import ctypes
import os
import sys

import pytest

try:
    _python_dir = os.environ["EGMSTORE_PYTHON_DIR"]
    _fake_lib = os.environ["EGMSTORE_FAKE_LIB"]
except KeyError as missing:
    pytest.exit(f"{missing} is not set: see tests/python/conftest.py", returncode=2)

sys.path.insert(0, _python_dir)
_library = ctypes.CDLL(_fake_lib, mode=ctypes.RTLD_GLOBAL)


class Seen(ctypes.Structure):
    """struct fake_seen of fake_store.c."""

    _fields_ = [
        ("replica_count", ctypes.c_uint32),
        ("upsert", ctypes.c_int),
        ("hard_pin", ctypes.c_int),
        ("soft_pin", ctypes.c_int),
        ("data_type", ctypes.c_int),
        ("same_node", ctypes.c_int),
        ("any_memory", ctypes.c_int),
        ("soft_pin_ttl_ms", ctypes.c_uint64),
        ("preferred", ctypes.c_char * 256),
        ("groups", ctypes.c_char * 256),
        ("options", ctypes.c_char * 512),
    ]


class Fake:
    """The fake's knobs."""

    def __init__(self, library):
        self.library = library
        self.seen = Seen.in_dll(library, "fake_seen")

    def delay_ms(self, ms):
        self.library.fake_set_delay_ms(ms)

    def fail(self, item=0, call=0):
        self.library.fake_set_failure(item, call)

    def grow_once(self):
        self.library.fake_grow_once()

    def open_stores(self):
        return self.library.fake_open_stores()

    def inside(self):
        return self.library.fake_inside()


@pytest.fixture
def fake():
    knobs = Fake(_library)
    yield knobs
    knobs.delay_ms(0)
    knobs.fail()


SETUP = ("host", "P2PHANDSHAKE", 16 << 20, 16 << 20, "tcp", "", "127.0.0.1:50051")


@pytest.fixture
def closed():
    from mooncake.store import MooncakeDistributedStore

    return MooncakeDistributedStore()


@pytest.fixture
def store(closed, fake):
    assert closed.setup(*SETUP) == 0
    yield closed
    fake.delay_ms(0)
    closed.close()


class Memory:
    """A registered array with the address arithmetic that tests need."""

    def __init__(self, store, size):
        self.array = bytearray(size)
        self._pin = (ctypes.c_char * size).from_buffer(self.array)
        self.address = ctypes.addressof(self._pin)
        assert store.register_buffer(self.address, size) == 0


@pytest.fixture
def memory(store):
    return Memory(store, 1 << 20)
