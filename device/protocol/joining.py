"""The mark of a host that joins free extents: while it stands, FULL may be an accident.

A host that joins (`nanokv/space/coalesce.py`) detaches the free lists and pushes larger extents back. In between, a
producer may find nothing. The word `joining` of HeapCtl (JOINING bits) names the last host that began, and counts.

Source: the sequence count of a seqlock, for a writer that readers do not wait for.

Guarantees
- While a host holds the detached free lists, the mark says so.
- One host joins at a time: two at once would tear the runs of free pages between them. A host that replaces the mark of
  another, of a dead or a slow one, names it.
- The count changes whenever a host begins: two looks that see one word and no host had no host between them.

Why the orderings suffice: a host sets the mark before it detaches the lists, and removes it, with release, after it has
pushed everything. A producer that found the lists empty looks at the mark by a read-modify-write that releases. If that
came before the mark was set, then the host set it, with acquire, after the producer's looks at the lists, and they were
empty without the host. If it came after the mark was removed, the producer acquires that everything was pushed.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, load64, select, word
from nanokv.device.segment.layout import JOINER_MASK, JOINING, JOINS_SHIFT
from nanokv.device.segment.world_table import World, segment


@triton.jit
def begin_join(world: World, owner: tl.int64, over: tl.int64) -> Any:
    """Mark that this rank begins to join free extents. `over`: the mark that it may replace.

    Returns the mark, for `end_join`, or 0 if another host joins.
    """
    seg = segment(world, owner)
    old = load64(seg + JOINING, "relaxed")  # relaxed: a guess, which the CAS compares
    mark = word(0)
    if ((old & JOINER_MASK) == 0) | (old == over):
        mark = (((old >> JOINS_SHIFT) + 1) << JOINS_SHIFT) | world.producer
        got = cas64(seg + JOINING, old, mark, "acquire")  # acquire: after the looks of those who saw no mark (kept)
        mark = select(got == old, mark, word(0))
    return mark


@triton.jit
def end_join(world: World, owner: tl.int64, mark: tl.int64) -> None:
    """Remove the mark, unless another host has replaced it."""
    seg = segment(world, owner)
    # release: everything is pushed (scenario join-full)
    cas64(seg + JOINING, mark, (mark >> JOINS_SHIFT) << JOINS_SHIFT, "release")


@triton.jit
def joiner(seg: tl.int64) -> Any:
    """The JOINING word: which host joins, if any, and how many have begun."""
    # release: after the looks at the lists (scenario shards-full); acquire: all pushes (scenario join-full)
    return add64(seg + JOINING, 0, "acq_rel")


@triton.jit
def joiner_of(world: World, owner: tl.int64) -> Any:
    """`joiner`, of the segment of `owner`."""
    return joiner(segment(world, owner))
