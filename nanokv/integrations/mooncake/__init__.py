"""Mooncake Store's Python interface over NanoKV: what programs import from `mooncake.store`.

`nanokv mooncake-shim DIR` makes a folder for the path in which `import mooncake.store` finds this package. What differs
from the real one, and what is refused, is in docs/mooncake.md.

    config, descriptors, codes, memory, mooncake_config   what is handed in and out
    stored, place, objects                                how values lie in a NanoKV world, and who is in it
    values, single, batches, sessions, removal,
    replicas, client                                      the calls, each file a kind of them
    store, async_store                                    all calls together
    shim                                                  makes the folder
"""

from nanokv.integrations.mooncake.config import ObjectDataType, ReplicateConfig, SoftPinAction
from nanokv.integrations.mooncake.descriptors import (
    Descriptor,
    DiskDescriptor,
    MemoryDescriptor,
    ReplicaDescriptor,
    ReplicaStatus,
)
from nanokv.integrations.mooncake.memory import BufferHandle
from nanokv.integrations.mooncake.replicas import QueryTaskResponse, TaskStatus, TaskType
from nanokv.integrations.mooncake.store import MooncakeDistributedStore

__all__ = [
    "BufferHandle",
    "Descriptor",
    "DiskDescriptor",
    "MemoryDescriptor",
    "MooncakeDistributedStore",
    "ObjectDataType",
    "QueryTaskResponse",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
]
