"""Where the free lists of a segment stand, and which one is asked when.

Of each kind (header slots, and extents of each size class) there are `shards` lists, side by side: one word lets one
compare-and-swap through after the other, so producers that allocate at once must mostly meet at different words. A key
says which list is asked first, its `home`; a node goes back to the list that its own number says. So both are spread
evenly, and nothing depends on it: a node may be in any list of its kind.

Guarantees
- Whoever asks the home list, and then what `next_filled` names until there is nothing, asks each list at most once:
  it ends, also if a corrupt list never yields its first node (I9).
- A node that is in a list from the beginning of that search to its end is found. One that is pushed meanwhile, to a
  list that was passed by, may be missed: FULL is then explained by an operation that overlaps.

Why the orderings suffice: the look is relaxed, since `freelist.pop` asks the list itself. What was done before a list
became empty is not acquired by seeing that it is: `reclaim.joining` takes care of the one who needs that.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import look_rows, select, table64
from nanokv.device.segment.layout import FREE_HEAD, FREE_HEAD_STRIDE, HDR_FREE, LOW32, MAX_SHARDS, WORD_BYTES
from nanokv.device.segment.world_table import W_SHARDS

RUN = tl.constexpr(16)  # pages, or header slots, that one change of a bump pointer takes, if there are so many lists


@triton.jit
def shard_of(world: tl.int64, number: tl.int64) -> Any:
    """Which of the lists of a kind a number says."""
    return number & (table64(world + W_SHARDS) - 1)


@triton.jit
def slot_list(world: tl.int64, seg: tl.int64, number: tl.int64) -> Any:
    """The address of a free list of header slots: the one that `number` says."""
    return seg + HDR_FREE + shard_of(world, number) * WORD_BYTES


@triton.jit
def extent_list(world: tl.int64, seg: tl.int64, size_class: tl.int64, number: tl.int64) -> Any:
    """The address of a free list of a size class: the one that `number` says."""
    return seg + FREE_HEAD + size_class * FREE_HEAD_STRIDE + shard_of(world, number) * WORD_BYTES


@triton.jit
def next_filled(
    world: tl.int64, rows: tl.int64, count: tl.int64, home: tl.int64, last: tl.int64, most: tl.constexpr
) -> Any:
    """The next list that is not empty, of `count` (at most `most`) rows of lists at the address `rows`, or -1.

    Lists are numbered from 0: row by row, in each from `home` on and round. `last`: the one that was asked before.
    """
    return look_rows(rows, count, table64(world + W_SHARDS), shard_of(world, home), last, LOW32, most, MAX_SHARDS)


@triton.jit
def run_length(world: tl.int64, size: tl.int64) -> Any:
    """How many nodes of `size` pages (or 1, for slots) one change of a bump pointer takes, if there are so many."""
    shards = table64(world + W_SHARDS)
    run = select(shards < RUN, shards, RUN) // size
    return select(run > 1, run, 1)
