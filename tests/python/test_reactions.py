# SPDX-License-Identifier: Apache-2.0
"""What vLLM's connectors make of our codes (contract/vllm-connector.md 1.3 and 1.4), replayed.

Every code of the library is given by the fake, once for each item and once for the whole call, to the
calls that the connectors make. What must hold: a cause that passes by itself never ends the worker, and
store pressure is seen where upstream would report it.
"""

import pathlib
import re

import pytest

HEADER = pathlib.Path(__file__).parents[2] / "include/egmstore/errors.h"
CODES = {
    name: int(number)
    for name, number in re.findall(r"(EGM_E_\w+) = (-\d+)", HEADER.read_text())
}
KERNELS = {"ENOMEM": -12, "EMFILE": -24, "ECONNREFUSED": -111, "ETIMEDOUT": -110, "unknown": -4000}

# No retry mends these: a caller's mistake, or a bug of ours. Upstream answers -600 and -1 to both.
CALLERS_MISTAKES = {"EGM_E_INVALID", "EGM_E_BAD_KEY", "EGM_E_UNREGISTERED", "EGM_E_CLOSED"}
BUGS = {"EGM_E_INTERNAL"}
PASSING = {n: c for n, c in {**CODES, **KERNELS}.items() if n not in CALLERS_MISTAKES | BUGS}


class Poisoned(Exception):
    """The worker ends."""


class EncoderCache:
    """The encoder-cache connector's view of a store: which results it takes, which end the worker."""

    PUT = {-200, -703, -704, -705, -900, -901, -1700}
    GET = {-200, -703, -704, -705, -900, -901, -600, -702, -707}

    def __init__(self, store, memory):
        self.store = store
        self.memory = memory

    def save(self, key, header, payload):
        base = self.memory.address
        self.memory.array[: len(header)] = header
        self.memory.array[64 : 64 + len(payload)] = payload
        codes = self.store.batch_put_from_multi_buffers(
            [key], [[base, base + 64]], [[len(header), len(payload)]]
        )
        if type(codes) is not list or len(codes) != 1 or type(codes[0]) is not int:
            raise Poisoned(codes)
        if codes[0] < 0 and codes[0] not in self.PUT:
            raise Poisoned(codes)
        return codes[0] >= 0

    def load(self, key, size):
        codes = self.store.batch_get_into([key], [self.memory.address + 4096], [size])
        if type(codes) is not list or len(codes) != 1 or type(codes[0]) is not int:
            raise Poisoned(codes)
        if not 0 <= codes[0] <= size and codes[0] not in self.GET:
            raise Poisoned(codes)
        return codes[0] == size

    def close(self):
        if self.store.unregister_buffer(self.memory.address) != 0 or self.store.close() != 0:
            raise Poisoned("close")


class KeyValue:
    """The KV connector's sender and receiver."""

    def __init__(self, store, memory):
        self.store = store
        self.memory = memory
        self.is_under_pressure = False

    def save(self, keys):
        exist = self.store.batch_is_exist(keys)
        assert len(exist) == len(keys)
        todo = [key for key, code in zip(keys, exist) if code != 1]
        one = [[self.memory.address]] * len(todo)
        results = self.store.batch_put_from_multi_buffers(todo, one, [[8]] * len(todo))
        failed = [code for code in results if code < 0]
        assert len(results) == len(todo)
        if not failed:
            self.is_under_pressure = False
        elif -200 in failed:
            self.is_under_pressure = True
        return not failed

    def load(self, keys):
        one = [[self.memory.address + 4096]] * len(keys)
        codes = self.store.batch_get_into_multi_buffers(keys, one, [[8]] * len(keys))
        return [key for key, code in zip(keys, codes, strict=True) if code < 0]


@pytest.fixture
def encoder(store, memory):
    connector = EncoderCache(store, memory)
    assert connector.save("there", b"head", b"payload")
    return connector


def give(fake, how, code):
    fake.fail(**{how: code})


@pytest.mark.parametrize("how", ["item", "call"])
@pytest.mark.parametrize("name", list(PASSING))
def test_encoder_cache_survives_what_passes_by_itself(encoder, fake, name, how):
    give(fake, how, PASSING[name])
    assert not encoder.save("new", b"head", b"payload")
    assert not encoder.load("there", 11)
    fake.fail()
    assert encoder.save("new", b"head", b"payload")
    assert encoder.load("new", 11)
    encoder.close()


@pytest.mark.parametrize("name", sorted(CALLERS_MISTAKES | BUGS))
def test_encoder_cache_ends_at_mistakes_as_with_upstream(encoder, fake, name):
    give(fake, "item", CODES[name])
    with pytest.raises(Poisoned):
        encoder.save("new", b"head", b"payload")


def test_encoder_cache_sees_a_short_buffer_and_a_smaller_value(encoder):
    assert not encoder.load("there", 10)  # -600, which it takes from a get
    assert not encoder.load("there", 12)  # loaded, and not of the size it expects


def test_encoder_cache_sees_missing_keys_as_missing(encoder):
    assert encoder.store.batch_get_into(["gone"], [encoder.memory.address], [8]) == [-704]
    assert not encoder.load("gone", 8)


@pytest.mark.parametrize("name", list(CODES))
def test_pressure_is_seen_exactly_where_there_is_no_space(store, memory, fake, name):
    connector = KeyValue(store, memory)
    give(fake, "item", CODES[name])
    assert not connector.save(["a", "b"])
    no_space = {"EGM_E_NO_SPACE", "EGM_E_NO_SEGMENT", "EGM_E_TOO_LARGE", "EGM_E_LIMIT"}
    assert connector.is_under_pressure == (name in no_space)
    fake.fail()
    assert connector.save(["a", "b"]) and not connector.is_under_pressure


@pytest.mark.parametrize("name", list({**CODES, **KERNELS}))
def test_failed_loads_name_their_keys(store, memory, fake, name):
    connector = KeyValue(store, memory)
    assert connector.save(["a", "b"])
    give(fake, "call", {**CODES, **KERNELS}[name])
    assert connector.load(["a", "b"]) == ["a", "b"]


def test_second_writer_of_a_key_is_told_success(store, memory):
    one, other = KeyValue(store, memory), KeyValue(store, memory)
    assert one.save(["a"]) and other.save(["a"])
    args = (["a"], [[memory.address]], [[8]])
    assert store.batch_put_from_multi_buffers(*args) == [0]


def test_reset_is_acknowledged_only_when_it_happened(store, fake):
    give(fake, "call", CODES["EGM_E_PEER_GONE"])
    with pytest.raises(RuntimeError):
        store.remove_all(force=True)
