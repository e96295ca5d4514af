"""KVBM's block manager over NanoKV: blocks with a life cycle, whose states lie in the headers of a segment.

`BlockManager` is the entrance; docs/blocks.md explains the life cycle.

errors           the states of a block, and the errors that only blocks raise
events           events: a block was registered in a pool, or its registration has ended
manager          the pool of blocks in a segment, their handles, registration and matching: `BlockManager`
hashes           hashes of token blocks, chained as Dynamo's, and the NanoKV keys of registered blocks
layout           where the layers of blocks lie in memory: KVBM's layouts, as arithmetic over regions of memory
leases           what this process holds of a pool: blocks that it fills, and registered blocks that it uses
metrics          KVBM's metrics of block pools, by its names, through prometheus_client
segment_table    the state of every block of a pool, as the headers of its segment show it to any process
serialized       layouts as bytes, for workers that read and write each other's blocks
tensor_parallel  which bytes of a block go where, between workers of different tensor parallelism
views            blocks and layers as sequences and as DLPack tensors, without a copy
"""

from nanokv.blocks.errors import (
    BlockError,
    BlockFull,
    BlockNotFull,
    BlockState,
    InvalidState,
    LayoutRefused,
    NoSuchAction,
    PoolInUse,
)
from nanokv.blocks.events import (
    EventBatch,
    EventPublisher,
    EventType,
    KvEvent,
    PowerOfTwo,
    PublishHandle,
    every_block,
)
from nanokv.blocks.hashes import SequenceHash, TokenBlock, salt_hash_of, token_blocks
from nanokv.blocks.layout import (
    FullyContiguous,
    LayerSeparate,
    Layout,
    LayoutConfig,
    MemoryDescriptor,
    MemoryRegion,
    align_up,
)
from nanokv.blocks.manager import BlockManager, CompleteBlock, ImmutableBlock, MutableBlock, PoolStatus, WeakBlock
from nanokv.blocks.metrics import BlockMetrics
from nanokv.blocks.serialized import RemoteLayout, deserialize, serialize
from nanokv.blocks.tensor_parallel import Copy, Shard, apply, gather_scatter
from nanokv.blocks.views import Block, BlockList, Layer

__all__ = [
    "Block",
    "BlockError",
    "BlockFull",
    "BlockList",
    "BlockManager",
    "BlockMetrics",
    "BlockNotFull",
    "BlockState",
    "CompleteBlock",
    "Copy",
    "EventBatch",
    "EventPublisher",
    "EventType",
    "FullyContiguous",
    "ImmutableBlock",
    "InvalidState",
    "KvEvent",
    "Layer",
    "LayerSeparate",
    "Layout",
    "LayoutConfig",
    "LayoutRefused",
    "MemoryDescriptor",
    "MemoryRegion",
    "MutableBlock",
    "NoSuchAction",
    "PoolInUse",
    "PoolStatus",
    "PowerOfTwo",
    "PublishHandle",
    "RemoteLayout",
    "SequenceHash",
    "Shard",
    "TokenBlock",
    "WeakBlock",
    "align_up",
    "apply",
    "deserialize",
    "every_block",
    "gather_scatter",
    "salt_hash_of",
    "serialize",
    "token_blocks",
]
