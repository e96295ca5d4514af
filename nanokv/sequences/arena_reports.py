"""What a cache tells of its arena as a whole: its blocks, its bytes, CortexStream's reports."""

from typing import TextIO

import torch

from nanokv.arguments import integer
from nanokv.sequences.arena import ArenaShape
from nanokv.sequences.cache_stats import cache_stats
from nanokv.sequences.extents import Extents
from nanokv.sequences.sequence import SequenceTable


class ArenaReports:
    """The part of `KVCache` that changes nothing. A report is exact while no other thread is at work."""

    _shape: ArenaShape
    _table: SequenceTable
    _extents: Extents

    def k_block(self, layer: int, block: int) -> torch.Tensor:
        """K of a block of the arena, whosever it is: [heads, block_size, head_dim], without a copy."""
        return self._block(self._extents.arena.k, layer, block)

    def v_block(self, layer: int, block: int) -> torch.Tensor:
        """V, as `k_block`."""
        return self._block(self._extents.arena.v, layer, block)

    def get_total_allocated(self) -> int:
        """Bytes of the blocks of all sequences: K and V, all layers."""
        return self._extents.arena.allocator.used_blocks() * self._shape.block_bytes

    def get_total_free(self) -> int:
        """Bytes of the free blocks."""
        return self._extents.arena.allocator.free_blocks() * self._shape.block_bytes

    def get_num_allocated_sequences(self) -> int:
        """Sequences, those in host memory too."""
        return len(self._table)

    def is_full(self) -> bool:
        """Whether no block is free."""
        return self._extents.arena.allocator.free_blocks() == 0

    def get_fragmentation(self) -> float:
        """As `KVBlockAllocator.fragmentation`."""
        return self._extents.arena.allocator.fragmentation()

    def dump_cache_stats(self, stream: TextIO) -> None:
        """Write CortexStream's report."""
        stream.write(cache_stats(self._extents.arena, self._table.listed()))

    def dump_block_map(self, stream: TextIO) -> None:
        """As `KVBlockAllocator.dump_block_map`."""
        self._extents.arena.allocator.dump_block_map(stream)

    def _block(self, of: torch.Tensor, layer: int, block: int) -> torch.Tensor:
        blocks = self._extents.arena.blocks(of)
        layer, block = integer("layer", layer, 0, blocks.shape[0] - 1), integer("block", block, 0, blocks.shape[1] - 1)
        return blocks[layer, block]
