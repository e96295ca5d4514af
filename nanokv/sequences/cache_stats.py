"""CortexStream's report on a cache."""

from collections.abc import Iterable

from nanokv.sequences.arena import Arena
from nanokv.sequences.sequence import Sequence

MB = 1 << 20  #: CortexStream's: it calls 67,108,864 floats 256 MB


def cache_stats(arena: Arena, sequences: Iterable[Sequence]) -> str:
    """The report as text. Each sequence is looked at under its lock, one after the other."""
    shape, allocator = arena.shape, arena.allocator
    used = allocator.used_blocks()
    lines = [line for sequence in sequences if (line := _line(sequence, shape.block_size))]
    return "\n".join(
        [
            "=== KVCache Statistics ===",
            "Configuration:",
            f"  Layers: {shape.num_layers}, Heads: {shape.num_heads}, HeadDim: {shape.head_dim}",
            f"  BlockSize: {shape.block_size}, TotalBlocks: {allocator.total_blocks()}",
            "",
            "Allocation State:",
            f"  Allocated sequences: {len(lines)}",
            f"  Total allocated: {used * shape.block_bytes / MB:.2f} MB",
            f"  Total free: {(allocator.total_blocks() - used) * shape.block_bytes / MB:.2f} MB",
            f"  Fragmentation: {allocator.fragmentation():.2f}",
            "",
            "Sequences:",
            *lines,
            "",
        ]
    )


def _line(sequence: Sequence, block_size: int) -> str:
    with sequence.lock:
        if not sequence.live:
            return ""
        handle = sequence.handle
        where = f"blocks [{handle.start_block_index}, +{handle.num_blocks}]" if handle else "in host memory"
        return f"  {sequence.request_id}: {sequence.tokens}/{sequence.blocks * block_size} tokens, {where}"
