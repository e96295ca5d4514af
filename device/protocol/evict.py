"""Eviction by a producer that finds a segment full: one object goes, which the policy chooses (`policy`).

Guarantees
- Only a READY object without pins and without a lease goes, by the compare-and-swap of the STATE word (I8).
- No object goes while free neighbours, joined, would do (`joinable`): the answer is FULL then, with a hint to the
  owner's host, which joins them.
- A producer that finds no extent looks again if one is free by now, or if another producer splits one (`splitting`), at
  most EXTENT_LOOKS times (I9).
- A search gives up after about as many looks as there are headers, or MOST_LOOKS; there are at most TRIES (I9).
- The evicting producer keeps the pages that it needs, without a detour over a free list, where another producer could
  take them in between.

Why the orderings suffice: the words that the search reads may be old; the compare-and-swap of the STATE word decides.
The commit released the lease of an object, so the producer looks at the lease again after it has acquired READY.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, select, word
from nanokv.device.protocol.activity import enter, leave
from nanokv.device.protocol.extent import carve, class_of, hold, pop_free, take
from nanokv.device.protocol.freelist import stamp
from nanokv.device.protocol.header import (
    epoch_of,
    key_of,
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
from nanokv.device.protocol.lifetimes import (
    LOOKS,
    factors,
    lifetime,
    next_place,
    ripeness,
    slots_in_use,
)
from nanokv.device.protocol.policy import goes, note_eviction, spare
from nanokv.device.protocol.remove import remove_slot
from nanokv.device.protocol.retire import count_eviction, retire, take_out
from nanokv.device.protocol.ring import announce
from nanokv.device.protocol.splitting import ended_splits, is_split_since
from nanokv.device.protocol.status import PINNED
from nanokv.device.segment.layout import (
    CLOCK_HAND,
    EVICTED,
    H_ACCESS,
    H_STATE,
    LIFETIMES,
    MAY_EVICT,
    PIN_BITS,
    POSITIVE,
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

MOST_LOOKS = tl.constexpr(4096)  # headers that a search looks at while it finds nothing that may go
TRIES = tl.constexpr(16)  # searches, if others take what was found
EXTENT_LOOKS = tl.constexpr(256)  # looks for an extent that another producer is about to push, which takes microseconds


@triton.jit
def search(world: World, seg: tl.int64, policy: tl.int64, size_class: tl.int64, now: tl.int64) -> Any:
    """Look for an object that may go, with an extent that is large enough, at which the policy stops.

    Returns (slot or -1, epoch, ACCESS word, ripeness, 1 if the policy stopped). If it passes all of LOOKS, the ripest.
    """
    total = slots_in_use(world, seg)
    life = lifetime(seg)
    first_round = load64(seg + CLOCK_HAND, "relaxed") < total
    once, often = factors(seg, first_round)
    best = word(-1)
    best_epoch = word(0)
    best_access = word(0)
    best_ripe = word(-1)
    ripe = word(0)
    most = LOOKS + select(total > MOST_LOOKS, word(MOST_LOOKS), total)
    looked = word(0)
    more = total > 0
    while more:
        slot = (next_place(seg, looked, total) & POSITIVE) % total
        header = header_at(world, seg, slot)
        state = load64(header + H_STATE, "relaxed")  # relaxed, as all of the search: `kill` decides
        access = load64(header + H_ACCESS, "relaxed")
        n_pages = pages_of(header)
        fits = (phase_of(state) == READY) & ((state & PIN_BITS) == 0) & (not is_leased(access, now))
        if fits & (size_class >= 0):
            fits = (n_pages > 0) & (class_of(world, n_pages) >= size_class)
        age = ripeness(access, now, once, often)
        better = fits & (age > best_ripe)
        if fits & goes(policy, access, age, life, first_round):
            ripe = word(1)
            better = fits
        elif fits:
            spare(policy, header, access)
        best = select(better, slot, best)
        best_epoch = select(better, epoch_of(state), best_epoch)
        best_access = select(better, access, best_access)
        best_ripe = select(better, age, best_ripe)
        looked += 1
        more = (ripe == 0) & ((looked < LOOKS) | (best < 0)) & (looked < most)
    return best, best_epoch, best_access, best_ripe, ripe


@triton.jit
def has_lease(header: tl.int64, now: tl.int64) -> Any:
    """True if the object of a header, which was READY, is under a lease at the time `now`."""
    load64(header + H_STATE, "acquire")  # acquire: the lease of the object that is READY (scenario leased)
    return is_leased(load64(header + H_ACCESS, "relaxed"), now)


@triton.jit(noinline=True)
def evict_for(
    table: tl.int64, seg: tl.int64, owner: tl.int64, size_class: tl.int64, slot: tl.int64, now: tl.int64
) -> Any:
    """Evict one object, and keep an extent of `size_class` of its pages for a header slot. `now`: ends leases.

    `size_class` -1: keep none. Nothing of the caller's but the answer need outlive the call: registers are scarce here.

    Returns (first page or -1, 1 if an object went, its size class or -1).
    """
    world = open_world(table)
    policy = load64(seg + MAY_EVICT, "relaxed")
    policy = select(policy == 0, word(LIFETIMES), policy)  # the owner may evict where producers must not
    page = word(-1)
    gone = word(0)
    freed = word(-1)
    tries = word(0)
    more = tries == 0
    while more:
        victim, epoch, access, age, ripe = search(world, seg, policy, size_class, now)
        tries += 1
        more = (victim >= 0) & (tries < TRIES)
        if victim >= 0:
            header = header_at(world, seg, victim)
            seen = word(0)
            if not has_lease(header, now):
                seen = kill(header, READY, epoch)
            if seen == state_word(READY, epoch):
                gone = word(1)
                more = gone == 0
                key_hash, _ = key_of(header, epoch)
                note_eviction(policy, world, seg, key_hash, access, age, ripe)
                n_pages = pages_of(header)
                if n_pages > 0:
                    freed = class_of(world, n_pages)
                if size_class >= 0:
                    page, have = take_out(world, seg, victim)
                    if page >= 0:
                        carve(world, seg, page, have, size_class)
                        # the kept pages go from header to header: the audit must see that too
                        stamp(page_links(world, seg), page, class_pages(world, size_class))
                        hold(world, seg, page, size_class, slot)
                retire(world, seg, owner, victim, epoch, EVICTED)
                count_eviction(world, seg)
    return page, gone, freed


@triton.jit
def may_evict(seg: tl.int64) -> Any:
    """True if a producer that finds this segment full may evict."""
    return load64(seg + MAY_EVICT, "relaxed") != 0


@triton.jit(noinline=True)
def evict_for_slot(table: tl.int64, seg: tl.int64, owner: tl.int64, home: tl.int64, now: tl.int64) -> Any:
    """Evict one object, and take a header slot: (slot or -1, epoch of this use)."""
    slot = word(-1)
    epoch = word(0)
    _, gone, _ = evict_for(table, seg, owner, word(-1), word(-1), now)
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
            more = ((found == EXTENT) | is_split_since(seg, before)) & (looks < EXTENT_LOOKS)
    if page < 0:
        if found == NEIGHBOURS:
            announce(world, seg, WANTED, size_class, word(0))
        elif (found == NOTHING) & may_evict(seg):
            page, _, _ = evict_for(table, seg, owner, size_class, slot, now)
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


@triton.jit
def evict_one(world: World, owner: tl.int64, now: tl.int64) -> Any:
    """Evict one object, for nobody in particular: (1 if one went, its size class or -1)."""
    seg = segment(world, owner)
    phase = enter(world, seg)
    _, gone, freed = evict_for(world.table, seg, owner, word(-1), word(-1), now)
    leave(world, seg, phase)
    return gone, freed
