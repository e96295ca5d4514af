"""Mooncake Store's Python interface over NanoKV: what programs import from `mooncake.store`.

`nanokv mooncake-shim DIR` makes a folder for the path in which `import mooncake.store` finds this package. What differs
from the real one, and what is refused, is in docs/mooncake.md.

    store               `MooncakeDistributedStore`: all calls, over
    client              one client: how it joins and leaves, what it stores and reads, and
    tensors             its tensors: whole, in shards, in layouts, in files
    arguments           checks what calls are given
    objects             values under keys, in the segments of a world
    place               the world of a store, and who is in it
    replicas            where replicas lie, and tasks that copy or move them
    tensor_bytes        a tensor as the bytes of a value
    parallelism         how a tensor is laid out over ranks, and the keys of its shards
    memory              memory of a caller
    local_buffer, buffer_pool       memory that is leased for calls that take addresses
    codes, config, mooncake_config  answers, how an object is stored, how a client is set up
    async_store         all calls as coroutines
    shim                makes the folder
"""

from nanokv.integrations.mooncake.buffer_pool import BufferLease, BufferLeaseView, BufferPool, RegisteredBufferPool
from nanokv.integrations.mooncake.config import ObjectDataType, ReplicateConfig, SoftPinAction
from nanokv.integrations.mooncake.memory import BufferHandle
from nanokv.integrations.mooncake.parallelism import ParallelAxis, ReadTarget, TensorParallelism
from nanokv.integrations.mooncake.replicas import (
    Descriptor,
    DiskDescriptor,
    MemoryDescriptor,
    QueryTaskResponse,
    ReplicaDescriptor,
    ReplicaStatus,
    TaskStatus,
    TaskType,
)
from nanokv.integrations.mooncake.store import MooncakeDistributedStore
from nanokv.integrations.mooncake.tensor_bytes import _deserialize_tensor, _serialize_tensor, _tensor_metadata_size

RegisteredBufferLease, RegisteredBufferLeaseView = BufferLease, BufferLeaseView

__all__ = [
    "_deserialize_tensor",
    "_serialize_tensor",
    "_tensor_metadata_size",
    "BufferHandle",
    "BufferLease",
    "BufferLeaseView",
    "BufferPool",
    "Descriptor",
    "DiskDescriptor",
    "MemoryDescriptor",
    "MooncakeDistributedStore",
    "ObjectDataType",
    "ParallelAxis",
    "QueryTaskResponse",
    "ReadTarget",
    "RegisteredBufferLease",
    "RegisteredBufferLeaseView",
    "RegisteredBufferPool",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
]
