"""What a producer that found no extent may hope for: that one is free now, or that free neighbours can be joined.

A producer asks this before it evicts: nothing live goes while free neighbours would do.

Source: the marks in the links of pages (`extent`), read as a buddy allocator's map is.

Guarantees
- The answer is not NOTHING if neighbouring free pages would hold the extent from the beginning of the look to its end,
  or if a host that joins free extents is at work. A slow host whose mark another has replaced is not seen: a look
  between its steps may miss its pages. Producers that take or give back extents meanwhile may lead the look out of the
  list that it follows: then it may miss what lies behind.
- A heap without small free extents is answered by one look at the heads of the lists. If there are few, the producer
  follows the lists, and looks at the neighbours behind each free extent: a full heap has few. If there are more than
  one per sixteen pages, it looks at all pages, one after the other.

Why the orderings suffice: the looks are relaxed, and a host that joins may disturb them. The producer reads the word
`joining` before and after: its count changes when a host begins. The first look acquires what a host pushed that ended
before; the second, a read-modify-write, releases the looks, so that a host that begins later does not disturb them.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, select, word
from nanokv.device.protocol.extent import ROWS, link_of, pages_marked
from nanokv.device.protocol.joining import joiner
from nanokv.device.protocol.shards import next_filled
from nanokv.device.protocol.status import EXTENT, NEIGHBOURS, NOTHING
from nanokv.device.segment.layout import (
    BUMP_PTR,
    FREE,
    FREE_HEAD,
    HELD,
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

FEW = tl.constexpr(4)  # up to one free extent per 16 pages is looked at by itself, which takes a jump each


@triton.jit
def unused_from(world: World, seg: tl.int64) -> Any:
    """The first page that was never used, or the number of pages."""
    count = world.n_pages
    page = (load64(seg + BUMP_PTR, "relaxed") - world.heap_base) // world.page_bytes
    return select((page >= 0) & (page < count), page, count)


@triton.jit
def free_from(world: World, seg: tl.int64, first: tl.int64, unused: tl.int64, wanted: tl.int64) -> Any:
    """The pages of the free neighbours from a page on, counted up to `wanted`. From `unused` on all pages are free."""
    run = word(0)
    page = first + 0
    more = page < unused
    while more:
        value = (link_of(world, seg, page) >> MARK_SHIFT) & MARK_MASK
        pages = select(value < HELD, pages_marked(world, value), word(0))
        run += pages
        page += pages
        more = (pages > 0) & (page < unused) & (run < wanted)
    return run + select(page == unused, world.n_pages - unused, word(0))


@triton.jit
def listed_run(world: World, seg: tl.int64, size_class: tl.int64, unused: tl.int64, wanted: tl.int64) -> Any:
    """The longest run of free neighbours that begins with a free extent of a smaller class: (pages, extents looked at).

    Counted up to `wanted`, and up to `few` extents. Pages -1: a larger extent is free.
    """
    few = (world.n_pages >> FEW) + 1
    rows = seg + FREE_HEAD
    longest = word(0)
    looked = word(0)
    place = word(-1)
    more = looked == 0
    while more:
        # the only look at the heads: a second one would be compiled a second time
        place = next_filled(world, rows, world.n_classes, word(0), place, ROWS)
        level = place // MAX_SHARDS
        more = (place >= 0) & (level < size_class)
        if more:
            node = load64(rows + place * WORD_BYTES, "relaxed") & LOW32
            while (node != 0) & (node <= world.n_pages) & (longest < wanted) & (looked < few):
                run = free_from(world, seg, node - 1, unused, wanted)
                longest = select(run > longest, run, longest)
                looked += 1
                node = link_of(world, seg, node - 1) & LOW32
            # the larger classes come next
            place = select((longest < wanted) & (looked < few), place, size_class * MAX_SHARDS - 1)
    return select(place < 0, longest, word(-1)), looked


@triton.jit
def has_run(world: World, seg: tl.int64, unused: tl.int64, wanted: tl.int64) -> Any:
    """True if `wanted` neighbouring pages are free; it looks at all pages below `unused`."""
    run = word(0)
    page = word(0)
    while (page < unused) & (run < wanted):
        mark = (link_of(world, seg, page) >> MARK_SHIFT) & MARK_MASK
        free = (mark >= FREE) & (mark < HELD)
        pages = pages_marked(world, mark)
        pages = select(pages > 0, pages, word(1))  # a page in motion stands for itself
        run = select(free, run + pages, word(0))
        page += pages
    return run + world.n_pages - unused >= wanted


@triton.jit
def outlook(world: World, seg: tl.int64, size_class: tl.int64) -> Any:
    """What there is for an extent of this class: NOTHING, NEIGHBOURS that a host can or does join, or an EXTENT."""
    wanted = class_pages(world, size_class)
    before = load64(seg + JOINING, "acquire")  # acquire: what hosts pushed (scenario neighbours)
    found = word(NOTHING)
    unused = unused_from(world, seg)
    run, looked = listed_run(world, seg, size_class, unused, wanted)
    if run < 0:
        found = word(EXTENT)
    elif (run >= wanted) | (world.n_pages - unused >= wanted):
        found = word(NEIGHBOURS)
    elif looked > world.n_pages >> FEW:
        found = select(has_run(world, seg, unused, wanted), word(NEIGHBOURS), word(NOTHING))
    if found == NOTHING:
        after = joiner(seg)
        found = select((after != before) | ((after & JOINER_MASK) != 0), word(NEIGHBOURS), word(NOTHING))
    return found


@triton.jit
def outlook_of(world: World, owner: tl.int64, size_class: tl.int64) -> Any:
    """`outlook`, of the segment of `owner`."""
    return outlook(world, segment(world, owner), size_class)
