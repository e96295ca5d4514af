"""KVBM's block manager over NanoKV: blocks with a life cycle, whose states lie in the headers of a segment.

`BlockManager` is the entrance; docs/blocks.md explains the life cycle.
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
from nanokv.blocks.handles import CompleteBlock, ImmutableBlock, MutableBlock, WeakBlock
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
from nanokv.blocks.manager import BlockManager
from nanokv.blocks.metrics import BlockMetrics
from nanokv.blocks.pool import PoolStatus
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
