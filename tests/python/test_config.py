# SPDX-License-Identifier: Apache-2.0
"""ReplicateConfig, the enums, and what a put makes of them."""

import enum
import pickle

import pytest

import mooncake.store as module
from mooncake.store import ObjectDataType, ReplicateConfig, SoftPinAction, TaskStatus

DEFAULTS = {
    "replica_num": 1,
    "nof_replica_num": 0,
    "dfs_replica_num": 0,
    "soft_pin_action": SoftPinAction.PRESERVE,
    "soft_pin_ttl_ms": None,
    "with_soft_pin": False,
    "with_hard_pin": False,
    "preferred_segments": [],
    "preferred_nof_segments": [],
    "preferred_segment": "",
    "prefer_alloc_in_same_node": False,
    "data_type": ObjectDataType.UNKNOWN,
    "group_ids": None,
}


@pytest.fixture
def config():
    return ReplicateConfig()


def test_defaults_and_class_attributes(config):
    for name, value in DEFAULTS.items():
        assert getattr(config, name) == value, name
        assert hasattr(ReplicateConfig, name)
        assert f"{name}: " in str(config)
    assert str(config).startswith("ReplicateConfig: { replica_num: 1, ")


@pytest.mark.parametrize(
    "name,value",
    [
        ("replica_num", 3),
        ("replica_num", 2**64 - 1),
        ("soft_pin_action", SoftPinAction.DISABLE),
        ("soft_pin_ttl_ms", 5000),
        ("soft_pin_ttl_ms", None),
        ("with_soft_pin", True),
        ("with_hard_pin", True),
        ("preferred_segments", ["a:1", "b:2"]),
        ("preferred_segment", "a:1"),
        ("prefer_alloc_in_same_node", True),
        ("data_type", ObjectDataType.TENSOR),
        ("group_ids", ["g", ""]),
        ("group_ids", None),
    ],
)
def test_attributes_can_be_set(config, name, value):
    setattr(config, name, value)
    assert getattr(config, name) == value


@pytest.mark.parametrize(
    "name,value",
    [
        ("replica_num", -1),
        ("replica_num", "1"),
        ("replica_num", 2**64),
        ("replica_num", 1.0),
        ("soft_pin_ttl_ms", -1),
        ("soft_pin_ttl_ms", 2**64),
        ("soft_pin_action", 3),
        ("soft_pin_action", "ENABLE"),
        ("data_type", 10),
        ("with_hard_pin", None),
        ("with_hard_pin", "yes"),
        ("preferred_segments", "a:1"),
        ("preferred_segments", [1]),
        ("preferred_segment", None),
        ("group_ids", "g"),
        ("group_ids", [None]),
    ],
)
def test_wrong_types_are_type_errors_and_change_nothing(config, name, value):
    before = getattr(config, name)
    with pytest.raises(TypeError):
        setattr(config, name, value)
    assert getattr(config, name) == before


def test_unknown_attributes_and_deletion_are_refused(config):
    with pytest.raises(AttributeError):
        config.colour = "red"
    for name in DEFAULTS:
        with pytest.raises(AttributeError):
            delattr(config, name)
    with pytest.raises(TypeError):
        ReplicateConfig(replica_num=1)


def test_older_soft_pin_name_is_the_same_setting(config):
    config.with_soft_pin = True
    assert config.soft_pin_action is SoftPinAction.ENABLE
    config.soft_pin_action = SoftPinAction.DISABLE
    assert config.with_soft_pin is False


def test_lists_are_copies_both_ways(config):
    names = ["a"]
    config.preferred_segments = names
    names.append("b")
    config.preferred_segments.append("c")
    assert config.preferred_segments == ["a"]


def test_everything_reaches_the_put(store, fake, config):
    config.replica_num = 20
    config.with_hard_pin = True
    config.soft_pin_action = SoftPinAction.ENABLE
    config.soft_pin_ttl_ms = 1234
    config.data_type = ObjectDataType.KVCACHE
    config.preferred_segments = ["a:1", "b:2"]
    config.group_ids = ["g1", ""]
    assert store.put_batch(["a", "b"], [b"1", b"2"], config) == 0
    seen = fake.seen
    assert (seen.replica_count, seen.hard_pin, seen.soft_pin, seen.soft_pin_ttl_ms) == (
        8,
        1,
        1,
        1234,
    )
    assert (seen.data_type, seen.preferred, seen.groups, seen.any_memory, seen.upsert) == (
        1,
        b"a:1,b:2",
        b"g1,",
        1,
        0,
    )
    config.preferred_segment = "c:3"
    config.group_ids = None
    assert store.upsert("a", b"1", config=config) == 0
    assert (fake.seen.preferred, fake.seen.upsert) == (b"c:3", 1)


def test_soft_pin_lifetime_zero_pins_nothing(store, fake, config):
    config.soft_pin_action = SoftPinAction.ENABLE
    config.soft_pin_ttl_ms = 0
    assert store.put("k", b"v", config) == 0
    assert (fake.seen.soft_pin, fake.seen.soft_pin_ttl_ms) == (0, 0)


def refused(**changes):
    config = ReplicateConfig()
    for name, value in changes.items():
        setattr(config, name, value)
    return config


@pytest.mark.parametrize(
    "changes",
    [
        {"replica_num": 0},
        {"nof_replica_num": 1},
        {"dfs_replica_num": 1},
        {"soft_pin_ttl_ms": 5},
        {"soft_pin_action": SoftPinAction.DISABLE, "soft_pin_ttl_ms": 5},
        {"group_ids": []},
        {"group_ids": ["a", "b"]},
        {"group_ids": ["a\0b"]},
    ],
)
def test_combinations_that_the_contract_refuses(store, memory, changes):
    config = refused(**changes)
    assert store.put("k", b"v", config) == -600
    assert store.put_from("k", memory.address, 1, config) == -600
    assert store.put_batch(["k"], [b"v"], config) == -600
    assert store.batch_put_from(["k"], [memory.address], [1], config) == [-600]
    assert store.batch_put_from_multi_buffers(["k"], [[memory.address]], [[1]], config) == [-600]
    assert "ReplicateConfig" in store.last_error()
    assert store.is_exist("k") == 0


def test_same_node_is_for_multi_buffer_puts_of_one_replica(store, memory, fake):
    config = refused(prefer_alloc_in_same_node=True)
    arguments = (["k"], [[memory.address]], [[1]])
    assert store.batch_put_from_multi_buffers(*arguments, config) == [0]
    assert fake.seen.same_node == 1
    flat = (["k2"], [memory.address], [1], config)
    assert store.put("k2", b"v", config) == store.put_parts("k2", b"v", config=config) == -600
    assert store.put_from("k2", memory.address, 1, config) == -600
    assert store.put_batch(["k2"], [b"v"], config) == -600
    assert store.batch_put_from(*flat) == store.batch_upsert_from(*flat) == [-600]
    assert store.upsert("k2", b"v", config) == store.upsert_batch(["k2"], [b"v"], config) == -600
    assert store.upsert_from("k2", memory.address, 1, config) == -600
    assert store.is_exist("k2") == 0
    config.replica_num = 2
    assert store.batch_put_from_multi_buffers(*arguments, config) == [-600]
    assert "same_node" in store.last_error()


def test_preferred_names_that_name_nobody_are_passed_over(store, fake, config):
    config.preferred_segments = ["", "a\0b:1", "x" * 300, "a:1", *(f"b:{i}" for i in range(1, 40))]
    assert store.put("k", b"v", config) == 0
    names = fake.seen.preferred.decode().split(",")
    assert names == ["a:1", *(f"b:{i}" for i in range(1, 16))]


def test_enums_are_int_enums_with_the_contracts_numbers():
    assert [member.value for member in ObjectDataType] == list(range(10))
    assert issubclass(ObjectDataType, enum.IntEnum)
    assert ObjectDataType.TENSOR == 2 and module.TENSOR is ObjectDataType.TENSOR
    assert module.COMPLETE is module.ReplicaStatus.COMPLETE
    assert module.REPLICA_MOVE == 1 and module.PENDING is TaskStatus.PENDING
    assert not hasattr(module, "ENABLE")
    assert pickle.loads(pickle.dumps(SoftPinAction.ENABLE)) is SoftPinAction.ENABLE
