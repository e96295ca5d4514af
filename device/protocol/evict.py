"""Eviction: one object goes, which the policy chooses (`search`), or one that a host names.

Guarantees
- Only a READY object without pins and without a lease goes, by the compare-and-swap of the STATE word (I8).
- There are at most TRIES searches (I9).
- The evicting producer keeps the pages that it needs, without a detour over a free list, where another producer could
  take them in between.

Why the orderings suffice: the words that the search reads may be old; the compare-and-swap of the STATE word decides,
and acquires the extent that the header names.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import select, word
from nanokv.device.protocol.activity import enter, leave
from nanokv.device.protocol.extent import carve, class_of, hold
from nanokv.device.protocol.freelist import stamp
from nanokv.device.protocol.header import key_of, kill, pages_of, state_word
from nanokv.device.protocol.policy import note_eviction
from nanokv.device.protocol.remove import remove_slot
from nanokv.device.protocol.retire import count_eviction, retire, take_out
from nanokv.device.protocol.search import must_stay, policy_of, search
from nanokv.device.protocol.status import PINNED
from nanokv.device.segment.layout import EVICTED, READY
from nanokv.device.segment.world_table import World, class_pages, header_at, open_world, page_links, segment

TRIES = tl.constexpr(16)  # searches, if others take what was found


@triton.jit(noinline=True)
def evict_for(
    table: tl.int64,
    seg: tl.int64,
    owner: tl.int64,
    size_class: tl.int64,
    slot: tl.int64,
    now: tl.int64,
    fair: tl.int64,
) -> Any:
    """Evict one object, and keep an extent of `size_class` of its pages for a header slot. `now`: ends leases.

    `size_class` -1: keep none. Nothing of the caller's but the answer need outlive the call: registers are scarce here.

    Returns (first page or -1, 1 if an object went, its size class or -1).
    """
    world = open_world(table)
    policy = policy_of(seg)
    page = word(-1)
    gone = word(0)
    freed = word(-1)
    tries = word(0)
    more = tries == 0
    while more:
        victim, epoch, access, age, ripe, crowd = search(world, seg, policy, size_class, now)
        victim = select((fair != 0) & (ripe == 0) & (crowd != 0), word(-1), victim)
        tries += 1
        more = (victim >= 0) & (tries < TRIES)
        if victim >= 0:
            header = header_at(world, seg, victim)
            seen = word(0)
            if not must_stay(header, now):
                seen = kill(header, READY, epoch)
            if seen == state_word(READY, epoch):
                gone = word(1)
                more = gone == 0
                note_eviction(policy, world, seg, key_of(header, epoch).hash, access, age, ripe)
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
def evict_slot(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64, now: tl.int64) -> Any:
    """Evict the READY object in a header slot: OK, MISS if it has gone away, or PINNED if a pin or a lease holds it."""
    status = word(PINNED)
    if not must_stay(header_at(world, segment(world, owner), slot), now):
        status = remove_slot(world, owner, slot, epoch, EVICTED)
    return status


@triton.jit
def evict_pages(world: World, owner: tl.int64, pages: tl.int64, most: tl.int64, now: tl.int64) -> Any:
    """Evict objects, for nobody in particular, until `pages` are free, or `most` are gone, or none may go.

    Each is an operation of its own, so that no grace period waits for all of them.

    Returns (how many went, their pages).
    """
    seg = segment(world, owner)
    count = word(0)
    freed = word(0)
    more = (pages > 0) & (most > 0)
    while more:
        phase = enter(world, seg)
        _, gone, size_class = evict_for(world.table, seg, owner, word(-1), word(-1), now, word(0))
        leave(world, seg, phase)
        count += gone
        if size_class >= 0:
            freed += class_pages(world, size_class)
        more = (gone != 0) & (freed < pages) & (count < most)
    return count, freed
