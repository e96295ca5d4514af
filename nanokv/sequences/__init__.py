"""CortexStream's KV cache: sequences in contiguous blocks of one arena, seen through views without a copy.

    KVCache             sequences: K and V views, tokens, growth, host memory, retention, resizing
    KVBlockAllocator    contiguous blocks, by a buddy system
    KVHandle            the blocks of one caller

docs/sequences.md explains them.

allocator   CortexStream's block allocator
extents     where the sequences of a cache lie
sequence    what a cache knows of one sequence, and the table of all of them
"""

from nanokv.sequences.allocator import KVBlockAllocator, KVHandle
from nanokv.sequences.cache import KVCache

__all__ = ["KVBlockAllocator", "KVCache", "KVHandle"]
