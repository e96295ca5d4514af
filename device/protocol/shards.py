"""The free lists of a segment: where they stand, and in which order a producer asks them.

Each kind (header slots, and extents of each size class) has `shards` lists in a row of words: one word lets only one
compare-and-swap through at a time, so producers that allocate at once should mostly meet at different words. The list
that a producer asks first is its `home` (`home_for`); the number of a node determines the list that it goes back to.
Both spread evenly, and correctness depends on neither: a node may be in any list of its kind.

Many lists, for the CTAs of a GPU, stand side by side, and the key determines the home. Few lists, for the processors of
a host, lie apart in their row, each on a pair of cache lines of its own, and the processor determines the home. The
bits of a number that tell its list (`shard_mask`) are then such that neighbours, whose links share a pair of lines,
belong to one list. So two processors share no line while each finds what it needs at home.

Source: free lists per CPU, asked in turn once the own one is empty (Linux, kernel/bpf/percpu_freelist.c); on a GPU the
hash of the key stands for the CPU.

Guarantees
- A producer that asks its home list, and then each list that `next_filled` returns until it returns -1, asks each list
  at most once: the search ends even if a corrupt list never yields its first node (I9).
- The search finds a node that is in a list from its beginning to its end. It may miss a node that is pushed meanwhile
  to a list that it has passed: only what is given back while it looks.

Why the orderings suffice: the look is relaxed, since `freelist.pop` asks the list itself. A producer that sees an empty
list acquires nothing of what was done before it became empty; one that needs that asks `joining.joiner`.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import look_rows, near, word
from nanokv.device.segment.layout import FREE_HEAD, FREE_HEAD_STRIDE, HDR_FREE, LOW32, MAX_SHARDS, WORD_BYTES
from nanokv.device.segment.world_table import World


@triton.jit
def shard_of(world: World, number: tl.int64) -> Any:
    """The list of a kind that belongs to a number (of a node, or a home): its word in the row of lists."""
    return number & world.shard_mask


@triton.jit
def shard_at(world: World, i: tl.int64) -> Any:
    """The word of the list `i`, 0 to `shards` - 1, in the row of lists."""
    return i * (world.shard_mask & -world.shard_mask)


@triton.jit
def home_for(world: World, key_hash: tl.int64) -> Any:
    """The list that a producer asks first, when it puts this key: a number for `slot_list` and `extent_list`."""
    return near(key_hash, shard_at(world, word(1)))


@triton.jit
def slot_list(world: World, seg: tl.int64, number: tl.int64) -> Any:
    """The address of the free list of header slots that belongs to `number`."""
    return seg + HDR_FREE + shard_of(world, number) * WORD_BYTES


@triton.jit
def extent_list(world: World, seg: tl.int64, size_class: tl.int64, number: tl.int64) -> Any:
    """The address of the free list of a size class that belongs to `number`."""
    return seg + FREE_HEAD + size_class * FREE_HEAD_STRIDE + shard_of(world, number) * WORD_BYTES


@triton.jit
def next_filled(
    world: World, rows: tl.int64, count: tl.int64, home: tl.int64, last: tl.int64, most: tl.constexpr
) -> Any:
    """The next list that is not empty, in `count` rows of lists at the address `rows`, or -1.

    Lists are numbered row by row, in each row from `home` on and around. `last`: the list that was asked before.
    `most`: rows that are looked at at once.
    """
    start = shard_of(world, home)
    return look_rows(rows, count, world.shard_mask, start, last, LOW32, most, MAX_SHARDS)
