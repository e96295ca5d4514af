"""The count of splits under way: while a producer splits a free extent, another one may find nothing by accident.

A producer that takes an extent of 128 pages to keep one of them holds the other 127 until it has pushed them: nobody
else finds them. The word `splitting` of HeapCtl (SPLITTING bits) counts the splits under way, and those that have
ended. A producer that finds nothing looks at it twice, and looks for an extent again if a split was under way.

Source: the sequence count of a seqlock, for many writers that nobody waits for.

Guarantees
- No split hid an extent from a producer that found nothing after `ended_splits` and before an `is_split_since` that is
  False.
- A producer that dies in a split stays counted until the owner's sweeper forgets the split: a split is forgotten if the
  word did not change from one sweep to the next. Until then a producer that finds nothing looks LOOKS times (I9).

Why the orderings suffice: as in `joining`. A producer counts its split, with acquire, before it takes the extent, and
counts it out, with release, after it has pushed the pieces. The second look is a read-modify-write that releases. If
it came before a split was counted, then the looks at the lists came before the extent was taken. A split that had ended
before the first look has its pieces acquired by it; every other one changes the word.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, load64
from nanokv.device.segment.layout import ONE_SPLIT_ENDED, SPLITS_ENDED_SHIFT, SPLITTING, SPLITTING_MASK
from nanokv.device.segment.world_table import World, segment


@triton.jit
def begin_split(seg: tl.int64) -> None:
    """Count a split, before the extent is taken."""
    add64(seg + SPLITTING, 1, "acquire")  # acquire: after the looks of those who saw no split (kept)


@triton.jit
def end_split(seg: tl.int64) -> None:
    """Count a split out, after its pieces are pushed."""
    add64(seg + SPLITTING, ONE_SPLIT_ENDED - 1, "release")  # release: the pieces are pushed (scenario split-full)


@triton.jit
def ended_splits(seg: tl.int64) -> Any:
    """The first look at the SPLITTING word."""
    return load64(seg + SPLITTING, "acquire")  # acquire: the pieces of splits that ended (scenario split-full)


@triton.jit
def is_split_since(seg: tl.int64, before: tl.int64) -> Any:
    """The second look: True if a split is under way, or has been since the first look, which answered `before`."""
    now = add64(seg + SPLITTING, 0, "release")  # release: after the looks at the lists (scenario split-full)
    return (now != before) | ((now & SPLITTING_MASK) != 0)


@triton.jit
def forget_splits(world: World, owner: tl.int64, seen: tl.int64) -> Any:
    """Count all splits under way as ended if the word is still `seen`; 1 if so."""
    ended = ((seen >> SPLITS_ENDED_SHIFT) + 1) << SPLITS_ENDED_SHIFT
    return cas64(segment(world, owner) + SPLITTING, seen, ended, "relaxed") == seen
