# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, overload

from typing_extensions import Buffer

egmstore_version: str

class ObjectDataType(IntEnum):
    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9

class SoftPinAction(IntEnum):
    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2

class ReplicaStatus(IntEnum):
    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5

class TaskType(IntEnum):
    REPLICA_COPY = 0
    REPLICA_MOVE = 1

class TaskStatus(IntEnum):
    PENDING = 0
    PROCESSING = 1
    FAILED = 2
    SUCCESS = 3

UNKNOWN: ObjectDataType
KVCACHE: ObjectDataType
TENSOR: ObjectDataType
WEIGHT: ObjectDataType
SAMPLE: ObjectDataType
ACTIVATION: ObjectDataType
GRADIENT: ObjectDataType
OPTIMIZER_STATE: ObjectDataType
METADATA: ObjectDataType
GENERAL: ObjectDataType
UNDEFINED: ReplicaStatus
INITIALIZED: ReplicaStatus
COMPLETE: ReplicaStatus
REMOVED: ReplicaStatus
REPLICA_COPY: TaskType
REPLICA_MOVE: TaskType
PENDING: TaskStatus
PROCESSING: TaskStatus
FAILED: TaskStatus
SUCCESS: TaskStatus

class ReplicateConfig:
    replica_num: int
    nof_replica_num: int
    dfs_replica_num: int
    soft_pin_action: SoftPinAction
    soft_pin_ttl_ms: int | None
    with_soft_pin: bool
    with_hard_pin: bool
    preferred_segments: list[str]
    preferred_nof_segments: list[str]
    preferred_segment: str
    prefer_alloc_in_same_node: bool
    data_type: ObjectDataType
    group_ids: list[str] | None
    def __init__(self) -> None: ...

class Descriptor:
    @property
    def size(self) -> int: ...
    @property
    def buffer_address(self) -> int: ...
    @property
    def transport_endpoint(self) -> str: ...

class MemoryDescriptor:
    @property
    def buffer_descriptor(self) -> Descriptor: ...

class DiskDescriptor:
    @property
    def file_path(self) -> str: ...
    @property
    def object_size(self) -> int: ...

class ReplicaDescriptor:
    @property
    def status(self) -> ReplicaStatus: ...
    def is_memory_replica(self) -> bool: ...
    def is_disk_replica(self) -> bool: ...
    def is_local_disk_replica(self) -> bool: ...
    def get_memory_descriptor(self) -> MemoryDescriptor: ...
    def get_disk_descriptor(self) -> Any: ...

class BufferHandle(Buffer):
    def ptr(self) -> int: ...
    def size(self) -> int: ...
    def __len__(self) -> int: ...

_Key = str | bytes

class MooncakeDistributedStore:
    def __init__(self) -> None: ...
    @overload
    def setup(
        self,
        local_hostname: str,
        metadata_server: str,
        global_segment_size: int,
        local_buffer_size: int,
        protocol: str,
        rdma_devices: str,
        master_server_addr: str,
        engine: Any = None,
        enable_ssd_offload: bool = False,
        ssd_offload_path: str = "",
        tenant_id: str = "default",
        enable_client_http_server: bool = False,
        client_http_port: int = 9300,
    ) -> int: ...
    @overload
    def setup(self, config: dict[str, Any]) -> int: ...
    def close(self) -> int: ...
    def health_check(self) -> int: ...
    def get_hostname(self) -> str: ...
    def last_error(self) -> str: ...
    def register_buffer(self, buffer_ptr: int, size: int) -> int: ...
    def unregister_buffer(self, buffer_ptr: int) -> int: ...
    def put(self, key: _Key, value: Buffer, config: ReplicateConfig | None = None) -> int: ...
    def put_parts(
        self, key: _Key, *parts: Buffer, config: ReplicateConfig | None = None
    ) -> int: ...
    def put_batch(
        self, keys: Sequence[_Key], values: Sequence[Buffer], config: ReplicateConfig | None = None
    ) -> int: ...
    def put_from(
        self, key: _Key, buffer_ptr: int, size: int, config: ReplicateConfig | None = None
    ) -> int: ...
    def batch_put_from(
        self,
        keys: Sequence[_Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]: ...
    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[_Key],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        config: ReplicateConfig | None = None,
    ) -> list[int]: ...
    def upsert(self, key: _Key, value: Buffer, config: ReplicateConfig | None = None) -> int: ...
    def upsert_parts(
        self, key: _Key, *parts: Buffer, config: ReplicateConfig | None = None
    ) -> int: ...
    def upsert_batch(
        self, keys: Sequence[_Key], values: Sequence[Buffer], config: ReplicateConfig | None = None
    ) -> int: ...
    def upsert_from(
        self, key: _Key, buffer_ptr: int, size: int, config: ReplicateConfig | None = None
    ) -> int: ...
    def batch_upsert_from(
        self,
        keys: Sequence[_Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]: ...
    def get(self, key: _Key) -> bytes: ...
    def get_batch(self, keys: Sequence[_Key]) -> list[bytes]: ...
    def get_buffer(self, key: _Key) -> BufferHandle | None: ...
    def batch_get_buffer(self, keys: Sequence[_Key]) -> list[BufferHandle | None]: ...
    def get_into(self, key: _Key, buffer_ptr: int, size: int) -> int: ...
    def batch_get_into(
        self, keys: Sequence[_Key], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]: ...
    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[_Key],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]: ...
    def is_exist(self, key: _Key) -> int: ...
    def batch_is_exist(self, keys: Sequence[_Key]) -> list[int]: ...
    def get_size(self, key: _Key) -> int: ...
    def remove(self, key: _Key, force: bool = False) -> int: ...
    def batch_remove(self, keys: Sequence[_Key], force: bool = False) -> list[int]: ...
    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int: ...
    def remove_all(self, force: bool = False) -> int: ...
    def get_replica_desc(self, key: _Key) -> list[ReplicaDescriptor]: ...
    def batch_get_replica_desc(
        self, keys: Sequence[_Key]
    ) -> dict[_Key, list[ReplicaDescriptor]]: ...
