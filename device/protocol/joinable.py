"""What a producer that found no extent may hope for: that one is free now, or that free neighbours can be joined.

A producer asks this before it evicts: nothing live goes while free neighbours would do.

Source: the marks in the links of pages (`extent`), read from the first page on, as a buddy allocator's map is.

Guarantees
- The answer is not NOTHING if neighbouring free pages would hold the extent from the beginning of the look to its end,
  or if a host that joins free extents is at work. A slow host whose mark another has replaced is not seen: a look
  between its steps may miss its pages.
- A heap without small free extents is answered by one look at the heads of the lists. The search over the pages runs
  only if the small extents and the pages that were never used would be enough.

Why the orderings suffice: the looks are relaxed, and a host that joins may disturb them. The producer reads the word
`joining` before and after: its count changes when a host begins. The first look acquires what a host pushed that ended
before; the second, a read-modify-write, releases the looks, so that a host that begins later does not disturb them.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, select, word
from nanokv.device.protocol.extent import FREE, HELD, ROWS, link_of, pages_marked
from nanokv.device.protocol.joining import joiner
from nanokv.device.protocol.shards import next_filled
from nanokv.device.segment.layout import (
    BUMP_PTR,
    FREE_HEAD,
    JOINER_MASK,
    JOINING,
    LOW32,
    MARK_MASK,
    MARK_SHIFT,
    MAX_SHARDS,
    WORD_BYTES,
)
from nanokv.device.segment.world_table import (
    World,
    class_pages,
    segment,
)

NOTHING = tl.constexpr(0)
NEIGHBOURS = tl.constexpr(1)
EXTENT = tl.constexpr(2)


@triton.jit
def unused_from(world: World, seg: tl.int64) -> Any:
    """The first page that was never used, or the number of pages."""
    count = world.n_pages
    page = (load64(seg + BUMP_PTR, "relaxed") - world.heap_base) // world.page_bytes
    return select((page >= 0) & (page < count), page, count)


@triton.jit
def free_extents(world: World, seg: tl.int64, size_class: tl.int64, enough: tl.int64) -> Any:
    """The pages in the free extents of smaller classes, counted up to `enough`; -1 if a larger extent is free."""
    count = world.n_pages
    rows = seg + FREE_HEAD
    found = word(0)
    place = word(-1)
    more = found == 0
    while more:
        # the only look at the heads: a second one would be compiled a second time
        place = next_filled(world, rows, world.n_classes, word(0), place, ROWS)
        level = place // MAX_SHARDS
        more = (place >= 0) & (level < size_class)
        if more:
            pages = class_pages(world, level)
            node = load64(rows + place * WORD_BYTES, "relaxed") & LOW32
            seen = word(0)
            while (node != 0) & (node <= count) & (found < enough) & (seen < count):
                found += pages
                seen += 1
                node = link_of(world, seg, node - 1) & LOW32
            place = select(found < enough, place, size_class * MAX_SHARDS - 1)  # the larger classes come next
    return select(place < 0, found, word(-1))


@triton.jit
def has_run(world: World, seg: tl.int64, wanted: tl.int64) -> Any:
    """True if `wanted` neighbouring pages are free or were never used."""
    count = unused_from(world, seg)
    run = word(0)
    page = word(0)
    while (page < count) & (run < wanted):
        mark = (link_of(world, seg, page) >> MARK_SHIFT) & MARK_MASK
        free = (mark >= FREE) & (mark < HELD)
        pages = pages_marked(world, mark)
        pages = select(pages > 0, pages, word(1))  # a page in motion stands for itself
        run = select(free, run + pages, word(0))
        page += pages
    return run + world.n_pages - count >= wanted


@triton.jit
def outlook(world: World, seg: tl.int64, size_class: tl.int64) -> Any:
    """What there is for an extent of this class: NOTHING, NEIGHBOURS that a host can or does join, or an EXTENT."""
    wanted = class_pages(world, size_class)
    before = load64(seg + JOINING, "acquire")  # acquire: what hosts pushed (scenario neighbours)
    found = word(NOTHING)
    unused = world.n_pages - unused_from(world, seg)
    free = free_extents(world, seg, size_class, wanted - unused)
    if free < 0:
        found = word(EXTENT)
    elif free + unused >= wanted:
        found = select(has_run(world, seg, wanted), word(NEIGHBOURS), word(NOTHING))
    if found == NOTHING:
        after = joiner(seg)
        found = select((after != before) | ((after & JOINER_MASK) != 0), word(NEIGHBOURS), word(NOTHING))
    return found


@triton.jit
def outlook_of(world: World, owner: tl.int64, size_class: tl.int64) -> Any:
    """`outlook`, of the segment of `owner`."""
    return outlook(world, segment(world, owner), size_class)
