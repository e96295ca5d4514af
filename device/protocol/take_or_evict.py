"""A header slot and an extent for a put: taken, or made free by an eviction.

Guarantees
- No object goes while free neighbours, joined, would do (`joinable`): the answer is FULL then, with a hint to the
  owner's host, which joins them.
- A producer that finds no extent looks again if one is free by now, or if another producer splits one (`splitting`), at
  most EXTENT_LOOKS times (I9).
- Where every object is smaller than the extent, neighbours go (`evict_neighbours`). If none can, the answer is FULL,
  with a hint to the owner's host. A producer on a host evicts around free pages too (`nanokv/space/make_room.py`).

Why the orderings suffice: each step is another file's, and none relies on the one before it.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import select, word
from nanokv.device.protocol.evict import evict_for
from nanokv.device.protocol.evict_neighbours import evict_neighbours
from nanokv.device.protocol.extent import pop_free, take
from nanokv.device.protocol.header import take_slot, take_slot_at_home, take_slot_elsewhere
from nanokv.device.protocol.joinable import outlook
from nanokv.device.protocol.ring import announce
from nanokv.device.protocol.search import may_evict
from nanokv.device.protocol.splitting import ended_splits, is_split_since
from nanokv.device.protocol.status import EXTENT, NEIGHBOURS, NOTHING
from nanokv.device.segment.layout import WANTED
from nanokv.device.segment.world_table import World, open_world

EXTENT_LOOKS = tl.constexpr(256)  # looks for an extent that another producer is about to push, which takes microseconds
TOO_SMALL = tl.constexpr(-2)  # in place of a page


@triton.jit(noinline=True)
def evict_for_slot(table: tl.int64, seg: tl.int64, owner: tl.int64, home: tl.int64, now: tl.int64) -> Any:
    """Evict one object, and take a header slot: (slot or -1, epoch of this use)."""
    slot = word(-1)
    epoch = word(0)
    _, gone, _ = evict_for(table, seg, owner, word(-1), word(-1), now, word(0))
    if gone == 1:
        slot, epoch = take_slot(open_world(table), seg, home)
    return slot, epoch


@triton.jit(noinline=True)
def find_slot(table: tl.int64, seg: tl.int64, home: tl.int64) -> Any:
    """`take_slot_elsewhere`, called."""
    slot, epoch = take_slot_elsewhere(open_world(table), seg, home)
    return slot, epoch


@triton.jit
def take_header_elsewhere(world: World, seg: tl.int64, owner: tl.int64, home: tl.int64, now: tl.int64) -> Any:
    """`take_header`, after the list `home` was found empty."""
    slot, epoch = find_slot(world.table, seg, home)
    if slot < 0:
        if may_evict(seg):
            slot, epoch = evict_for_slot(world.table, seg, owner, home, now)
    return slot, epoch


@triton.jit
def take_header(world: World, seg: tl.int64, owner: tl.int64, home: tl.int64, now: tl.int64) -> Any:
    """Take a header slot, evicting an object if all are in use: (slot or -1, epoch of this use)."""
    slot, epoch = take_slot_at_home(world, seg, home)
    if slot < 0:
        slot, epoch = take_header_elsewhere(world, seg, owner, home, now)
    return slot, epoch


@triton.jit(noinline=True)
def find_pages(
    table: tl.int64,
    seg: tl.int64,
    owner: tl.int64,
    size_class: tl.int64,
    home: tl.int64,
    slot: tl.int64,
    now: tl.int64,
) -> Any:
    """`take_pages_elsewhere`, except that it answers TOO_SMALL if no object that may go is large enough."""
    world = open_world(table)
    page = word(-1)
    found = word(EXTENT)
    looks = word(0)
    more = looks == 0
    while more:
        page = take(world, seg, size_class, home, slot)
        looks += 1
        more = page < 0
        if more:
            before = ended_splits(seg)
            found = outlook(world, seg, size_class)
            more = ((found == EXTENT) | is_split_since(seg, before)) & (looks < EXTENT_LOOKS)
    if page < 0:
        if found == NEIGHBOURS:
            announce(world, seg, WANTED, size_class, word(0))
        elif (found == NOTHING) & may_evict(seg):
            page, _, _ = evict_for(table, seg, owner, size_class, slot, now, word(1))
            page = select((page < 0) & (size_class > 0), word(TOO_SMALL), page)
    return page


@triton.jit
def take_pages_elsewhere(
    world: World,
    seg: tl.int64,
    owner: tl.int64,
    size_class: tl.int64,
    home: tl.int64,
    slot: tl.int64,
    now: tl.int64,
) -> Any:
    """`take_pages`, after the list `home` was found empty: from another list, or by eviction."""
    page = find_pages(world.table, seg, owner, size_class, home, slot, now)
    if page == TOO_SMALL:
        page = evict_neighbours(world.table, seg, owner, size_class, slot, now)
        if page < 0:
            page, _, _ = evict_for(world.table, seg, owner, size_class, slot, now, word(0))
    return page


@triton.jit
def take_pages(
    world: World,
    seg: tl.int64,
    owner: tl.int64,
    size_class: tl.int64,
    home: tl.int64,
    slot: tl.int64,
    now: tl.int64,
) -> Any:
    """Take an extent for a header slot: its first page, or -1. Evict objects if there is none and none can be joined.

    An extent that another producer has given back since is not taken: the answer is -1, and the caller may try again.
    """
    page = pop_free(world, seg, size_class, home, slot)
    if page < 0:
        page = take_pages_elsewhere(world, seg, owner, size_class, home, slot, now)
    return page
