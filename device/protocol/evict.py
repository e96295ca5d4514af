"""Eviction by a producer that finds a segment full: the oldest of a few objects goes.

Source: Redis' approximated LRU. A hand goes around the headers; of the next EVICT_SAMPLE objects the producer takes the
least recently used. The search never changes `last_access`, so it stays true for the host's own eviction.

Guarantees
- Only a READY object without pins and without a lease goes, by the compare-and-swap of the STATE word (I8).
- No object goes while free neighbours, joined, would do (`joinable`): the answer is FULL then, with a hint to the
  owner's host, which joins them.
- A producer that finds no extent looks again if one is free by now, or if another producer splits one (`splitting`), at
  most LOOKS times (I9).
- The search gives up after about as many looks as there are headers (I9).
- The evicting producer keeps the pages that it needs, without a detour over a free list, where another producer could
  take them in between.

Why the orderings suffice: the words that the search reads may be old; the compare-and-swap of the STATE word decides.
The commit released the lease of an object, so the producer looks at the lease again after it has acquired READY.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, load64, select, word
from nanokv.device.protocol.extent import carve, class_of, hold, pop_free, take
from nanokv.device.protocol.freelist import stamp
from nanokv.device.protocol.header import (
    epoch_of,
    kill,
    pages_of,
    phase_of,
    state_word,
    take_slot,
    take_slot_at_home,
    take_slot_elsewhere,
)
from nanokv.device.protocol.joinable import EXTENT, NEIGHBOURS, NOTHING, outlook
from nanokv.device.protocol.lease import is_leased
from nanokv.device.protocol.remove import remove_slot
from nanokv.device.protocol.retire import count_eviction, retire, take_out
from nanokv.device.protocol.ring import announce
from nanokv.device.protocol.splitting import ended_splits, is_split_since
from nanokv.device.protocol.status import PINNED
from nanokv.device.segment.layout import (
    ACCESS_TIME,
    CLOCK_HAND,
    EVICTED,
    H_ACCESS,
    H_STATE,
    HDR_HEAD,
    MAY_EVICT,
    PIN_BITS,
    READY,
    WANTED,
)
from nanokv.device.segment.world_table import (
    World,
    class_pages,
    header_at,
    open_world,
    page_links,
    segment,
)

EVICT_SAMPLE = tl.constexpr(16)  # the oldest of a few is nearly the oldest of all
LOOKS = tl.constexpr(256)  # looks for an extent that another producer is about to push, which takes microseconds


@triton.jit
def oldest(world: World, seg: tl.int64, start: tl.int64, count: tl.int64, size_class: tl.int64, now: tl.int64) -> Any:
    """The least recently used evictable object with a large enough extent, among `count` headers from `start` on.

    Returns (slot or -1, epoch).
    """
    best = word(-1)
    best_epoch = word(0)
    best_access = word(0)
    total = load64(seg + HDR_HEAD, "relaxed")
    total = select(total > world.hdr_count, world.hdr_count, total)
    i = word(0)
    while (i < count) & (i < total):
        slot = (start + i) % total
        header = header_at(world, seg, slot)
        state = load64(header + H_STATE, "relaxed")  # relaxed, as all of the search: `kill` decides
        access = load64(header + H_ACCESS, "relaxed")
        n_pages = pages_of(header)
        fits = (phase_of(state) == READY) & ((state & PIN_BITS) == 0) & (not is_leased(access, now))
        access = access & ACCESS_TIME
        if fits & (size_class >= 0):
            fits = (n_pages > 0) & (class_of(world, n_pages) >= size_class)
        better = fits & ((best < 0) | (access < best_access))
        best = select(better, slot, best)
        best_epoch = select(better, epoch_of(state), best_epoch)
        best_access = select(better, access, best_access)
        i += 1
    return best, best_epoch


@triton.jit
def has_lease(header: tl.int64, now: tl.int64) -> Any:
    """True if the object of a header, which was READY, is under a lease at the time `now`."""
    load64(header + H_STATE, "acquire")  # acquire: the lease of the object that is READY (scenario leased)
    return is_leased(load64(header + H_ACCESS, "relaxed"), now)


@triton.jit(noinline=True)
def evict_for(table: tl.int64, seg: tl.int64, owner: tl.int64, size_class: tl.int64, now: tl.int64) -> Any:
    """Evict one object, and keep an extent of `size_class` of its pages (-1: keep none). `now`: ends leases.

    Returns (first page or -1, 1 if an object went).
    """
    world = open_world(table)
    page = word(-1)
    gone = word(0)
    used = load64(seg + HDR_HEAD, "relaxed")
    used = select(used > world.hdr_count, world.hdr_count, used)
    looked = word(0)
    while (gone == 0) & (looked < used):
        hand = add64(seg + CLOCK_HAND, EVICT_SAMPLE, "relaxed") & 0x7FFFFFFF  # relaxed: it only spreads the searches
        victim, epoch = oldest(world, seg, hand, EVICT_SAMPLE, size_class, now)
        if victim >= 0:
            header = header_at(world, seg, victim)
            seen = word(0)
            if not has_lease(header, now):
                seen = kill(header, READY, epoch)
            if seen == state_word(READY, epoch):
                gone = word(1)
                if size_class >= 0:
                    page, have = take_out(world, seg, victim)
                    if page >= 0:
                        carve(world, seg, page, have, size_class)
                        # the kept pages go from header to header: the audit must see that too
                        stamp(page_links(world, seg), page, class_pages(world, size_class))
                retire(world, seg, owner, victim, epoch, EVICTED)
                count_eviction(world, seg)
        looked += EVICT_SAMPLE
    return page, gone


@triton.jit
def may_evict(seg: tl.int64) -> Any:
    """True if a producer that finds this segment full may evict."""
    return load64(seg + MAY_EVICT, "relaxed") == 1


@triton.jit(noinline=True)
def find_slot(table: tl.int64, seg: tl.int64, owner: tl.int64, home: tl.int64, now: tl.int64) -> Any:
    """`take_header`, after the list `home` was found empty: from another list, or by eviction."""
    world = open_world(table)
    slot, epoch = take_slot_elsewhere(world, seg, home)
    if slot < 0:
        if may_evict(seg):
            page, gone = evict_for(table, seg, owner, word(-1), now)
            if gone == 1:
                slot, epoch = take_slot(world, seg, home)
    return slot, epoch


@triton.jit
def take_header(world: World, seg: tl.int64, owner: tl.int64, home: tl.int64, now: tl.int64) -> Any:
    """Take a header slot, evicting an object if all are in use: (slot or -1, epoch of this use)."""
    slot, epoch = take_slot_at_home(world, seg, home)
    if slot < 0:
        slot, epoch = find_slot(world.table, seg, owner, home, now)
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
    """`take_pages`, after the list `home` was found empty: from another list, or by eviction."""
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
            more = ((found == EXTENT) | is_split_since(seg, before)) & (looks < LOOKS)
    if page < 0:
        if found == NEIGHBOURS:
            announce(world, seg, WANTED, size_class, word(0))
        elif (found == NOTHING) & may_evict(seg):
            page, gone = evict_for(table, seg, owner, size_class, now)
            if page >= 0:
                hold(world, seg, page, size_class, slot)
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
    """Take an extent for a header slot: its first page, or -1. Evict an object if there is none and none can be joined.

    An extent that another producer has given back since is not taken: the answer is -1, and the caller may try again.
    """
    page = pop_free(world, seg, size_class, home, slot)
    if page < 0:
        page = find_pages(world.table, seg, owner, size_class, home, slot, now)
    return page


@triton.jit
def evict_slot(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64, now: tl.int64) -> Any:
    """Evict the READY object in a header slot: OK, MISS if it has gone away, or PINNED if a pin or a lease holds it."""
    status = word(PINNED)
    if not has_lease(header_at(world, segment(world, owner), slot), now):
        status = remove_slot(world, owner, slot, epoch, EVICTED)
    return status
