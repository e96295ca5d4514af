"""Eviction of neighbours: where an extent is larger than each object, the objects in a run of pages go together.

The hand of the policy (`lifetimes`) goes on from object to object. Of the first RUNS runs that begin there, the one
goes that costs least: the one whose least ripe object is the ripest. Free extents cannot be taken out of the middle of
their lists, so a run consists of objects only: a host also evicts around free pages (`nanokv/space/make_room.py`).

Guarantees
- Nothing goes before a look at the whole run has found that all of it may go. A reader may still pin an object
  meanwhile, or another producer take it: then the pages of those that are gone are given back, and the run is given up.
- Only a READY object without pins and without a lease goes, by the compare-and-swap of the STATE word (I8).
- A producer looks at LOOKS runs at most, and each has at most as many objects as the extent has pages (I9).

Why the orderings suffice: as in `evict`. The look before the evictions is relaxed; it only keeps useless ones away.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, select, word
from nanokv.device.protocol.extent import (
    class_of,
    give,
    give_pages,
    hold,
    link_of,
    mark,
    pages_marked,
)
from nanokv.device.protocol.freelist import stamp
from nanokv.device.protocol.header import epoch_of, kill, pages_of, phase_of, state_word
from nanokv.device.protocol.lease import stays
from nanokv.device.protocol.lifetimes import LONGEST_AGE, LOOKS, factors, next_place, ripeness, slots_in_use
from nanokv.device.protocol.retire import count_eviction, retire, take_out
from nanokv.device.protocol.ring import announce
from nanokv.device.protocol.search import must_stay
from nanokv.device.segment.layout import (
    CLOCK_HAND,
    EVICTED,
    H_ACCESS,
    H_PAYLOAD,
    H_STATE,
    HELD,
    LOW32,
    MARK_MASK,
    MARK_SHIFT,
    PIN_BITS,
    POSITIVE,
    READY,
    WANTED,
)
from nanokv.device.segment.world_table import World, class_pages, header_at, open_world, page_links

RUNS = tl.constexpr(8)  # runs that a producer chooses from


@triton.jit
def first_page(world: World, seg: tl.int64, slot: tl.int64) -> Any:
    """The first page of the object in a header slot, or -1 if it has none."""
    header = header_at(world, seg, slot)
    payload = load64(header + H_PAYLOAD, "relaxed")
    inside = (payload >= world.heap_base) & (payload < world.heap_limit) & (pages_of(header) > 0)
    return select(inside, (payload - world.heap_base) // world.page_bytes, word(-1))


@triton.jit
def object_at(world: World, seg: tl.int64, page: tl.int64) -> Any:
    """The object whose extent begins at a page: (header slot or -1, pages of the extent). The slot may hold another."""
    link = link_of(world, seg, page)
    kind = (link >> MARK_SHIFT) & MARK_MASK
    slot = (link & LOW32) - 1
    pages = pages_marked(world, kind)
    held = (kind >= HELD) & (pages > 0) & (slot >= 0) & (slot < world.hdr_count)
    return select(held, slot, word(-1)), pages


@triton.jit
def may_go(world: World, seg: tl.int64, slot: tl.int64, page: tl.int64, pages: tl.int64, now: tl.int64) -> Any:
    """The epoch of the object in a header slot if it has this extent and may go, or -1."""
    header = header_at(world, seg, slot)
    state = load64(header + H_STATE, "relaxed")  # relaxed, as all of the look: `kill` decides
    ready = (phase_of(state) == READY) & ((state & PIN_BITS) == 0)
    ready = ready & (not stays(load64(header + H_ACCESS, "relaxed"), now))
    size_class = class_of(world, pages_of(header))
    whole = class_pages(world, select(size_class < 0, word(0), size_class)) == pages
    here = whole & (first_page(world, seg, slot) == page)
    return select(ready & here, epoch_of(state), word(-1))


@triton.jit
def run_ripeness(world: World, seg: tl.int64, first: tl.int64, wanted: tl.int64, now: tl.int64) -> Any:
    """The least ripeness of the objects in `wanted` pages from `first` on; -1 if one must stay, or others are there."""
    once, often = factors(seg, load64(seg + CLOCK_HAND, "relaxed") < slots_in_use(world, seg))
    end = first + wanted
    page = first + 0
    least = word(LONGEST_AGE)
    more = (first >= 0) & (end <= world.n_pages)
    while more:
        slot, pages = object_at(world, seg, page)
        more = slot >= 0
        if more:
            more = may_go(world, seg, slot, page, pages, now) >= 0
        if more:
            ripe = ripeness(load64(header_at(world, seg, slot) + H_ACCESS, "relaxed"), now, once, often)
            least = select(ripe < least, ripe, least)
            page += pages
        more = more & (page < end)
    return select((first >= 0) & (page >= end) & (page <= world.n_pages), least, word(-1))


@triton.jit
def evict_at(world: World, seg: tl.int64, owner: tl.int64, page: tl.int64, now: tl.int64) -> Any:
    """Evict the object whose extent begins at a page: the pages that the caller has now, 0 if it must stay."""
    got = word(0)
    slot, pages = object_at(world, seg, page)
    epoch = word(-1)
    if slot >= 0:
        epoch = may_go(world, seg, slot, page, pages, now)
    if epoch >= 0:
        header = header_at(world, seg, slot)
        seen = word(0)
        if not must_stay(header, now):
            seen = kill(header, READY, epoch)
        if seen == state_word(READY, epoch):
            found, size_class = take_out(world, seg, slot)
            if found == page:
                got = class_pages(world, size_class)
                mark(world, seg, page, word(0), word(0))  # within the run it is no first page, and names no slot
            elif found >= 0:  # corrupt, or another object of this epoch
                give(world, seg, found, size_class)
            retire(world, seg, owner, slot, epoch, EVICTED)
            count_eviction(world, seg)
    return got


@triton.jit
def take_run(
    world: World, seg: tl.int64, owner: tl.int64, first: tl.int64, size_class: tl.int64, slot: tl.int64, now: tl.int64
) -> Any:
    """Evict all objects in a run and keep its pages for a header slot: `first`, or -1 if an object had to stay."""
    wanted = class_pages(world, size_class)
    end = first + 0
    more = wanted > 0
    while more:
        got = evict_at(world, seg, owner, end, now)
        end += got
        more = (got > 0) & (end < first + wanted)
    whole = end >= first + wanted
    kept = select(whole, first + wanted, first)
    if whole:
        stamp(page_links(world, seg), first, wanted)  # the pages change hands: the audit must see that
        hold(world, seg, first, size_class, slot)
    give_pages(world, seg, kept, end)
    return select(whole, first, word(-1))


@triton.jit(noinline=True)
def evict_neighbours(
    table: tl.int64, seg: tl.int64, owner: tl.int64, size_class: tl.int64, slot: tl.int64, now: tl.int64
) -> Any:
    """Evict neighbours, and keep an extent of `size_class` of their pages for a header slot: its first page, or -1.

    After -1 the owner's host has a hint. `now`: ends leases.
    """
    world = open_world(table)
    wanted = class_pages(world, size_class)
    total = slots_in_use(world, seg)
    best = word(-1)
    best_ripe = word(-1)
    looked = word(0)
    runs = word(0)
    more = (wanted > 0) & (total > 0)
    while more:
        first = first_page(world, seg, (next_place(seg, looked, total) & POSITIVE) % total)
        ripe = run_ripeness(world, seg, first, wanted, now)
        best = select(ripe > best_ripe, first, best)
        best_ripe = select(ripe > best_ripe, ripe, best_ripe)
        looked += 1
        runs += select(ripe >= 0, word(1), word(0))
        more = (looked < LOOKS) & (runs < RUNS)
    page = word(-1)
    if best >= 0:
        page = take_run(world, seg, owner, best, size_class, slot, now)
    if page < 0:
        announce(world, seg, WANTED, size_class, word(0))
    return page
