"""Mooncake Store's Python interface over NanoKV: what programs import from `mooncake.store`.

`nanokv mooncake-shim DIR` makes a folder for the path in which `import mooncake.store` finds this package. What differs
from the real one, and what is refused, is in docs/mooncake.md.

    config, descriptors, codes, memory, mooncake_config   what is handed in and out
    stored, place, objects, small_reads, listing, leases  how values lie in a NanoKV world, and who is in it
    local_buffer, buffer_lease, buffer_pool               memory that is leased for calls that take addresses
    values, single, batches, sessions, removal,
    replicas, client                                      the calls, each file a kind of them
    tensor_*, parallelism*, safetensor, tensors           calls about tensors: whole, in shards, and in files
    store, async_store                                    all calls together
    shim                                                  makes the folder
"""

from nanokv.integrations.mooncake.buffer_lease import BufferLease, BufferLeaseView
from nanokv.integrations.mooncake.buffer_pool import BufferPool, RegisteredBufferPool
from nanokv.integrations.mooncake.config import ObjectDataType, ReplicateConfig, SoftPinAction
from nanokv.integrations.mooncake.descriptors import (
    Descriptor,
    DiskDescriptor,
    MemoryDescriptor,
    ReplicaDescriptor,
    ReplicaStatus,
)
from nanokv.integrations.mooncake.memory import BufferHandle
from nanokv.integrations.mooncake.parallelism import ParallelAxis, ReadTarget, TensorParallelism
from nanokv.integrations.mooncake.replicas import QueryTaskResponse, TaskStatus, TaskType
from nanokv.integrations.mooncake.store import MooncakeDistributedStore
from nanokv.integrations.mooncake.tensors import _deserialize_tensor, _serialize_tensor, _tensor_metadata_size

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
