"""The time of an object's last use, and its terms: who may evict it.

The word `last_access` of a header (ACCESS bits) holds the time of the last read or write, and how often the object was
used again, for the eviction policy (`lifetimes`). While the object is WRITING, its producer may give it terms there:

    a lease     instead of the time: until then the object waits for its first reader
    a priority  LOW or HIGH: it lives less long, or longer, than others (`lifetimes.ripeness`). KEPT: nobody evicts it.

Source: the leases of Gray and Cheriton (1989), for one reader instead of many.

Guarantees
- A lease ends when its object is read, or when its time is over. Until then no producer and no host evicts the object;
  a removal by key is not an eviction.
- No producer and no host evicts a KEPT object. A use leaves the priority alone.
- A reader that is late, and whose object is gone, does not end the lease of the next object in the slot. A change of
  terms that is late does not change those of the next object either.
- A change of the terms of a READY object may come too late for an eviction that has begun.

Why the orderings suffice: the commit releases the lease. A reader changes the word by compare-and-swap, and a new
object of the slot changes it too. A reader that finds a lease validates the epoch afterwards: only a lease that was
there before, its own object's, is replaced. All else is best effort: an old time only makes an eviction less exact.
All ranks of a world use one clock (`segment/clock.py`).
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import cas64, load64, select, store64, word
from nanokv.device.protocol.header import still_ready
from nanokv.device.protocol.lifetimes import lifetime, used_again
from nanokv.device.segment.layout import ACCESS_TIME, H_ACCESS, KEPT, LEASED, PRIORITY, TERMS_PRIORITY_SHIFT
from nanokv.device.segment.world_table import World, header_at, segment


@triton.jit
def lease(world: World, owner: tl.int64, slot: tl.int64, terms: tl.int64) -> None:
    """Give an object that the caller is writing its terms. The commit releases them.

    Args:
        terms: TERMS bits: the time in ns until which it is leased, and its priority.
    """
    header = header_at(world, segment(world, owner), slot)
    access = load64(header + H_ACCESS, "relaxed")  # the caller's own store
    until = terms & ACCESS_TIME
    access = select(until != 0, until | LEASED, access)
    store64(header + H_ACCESS, access | ((terms >> TERMS_PRIORITY_SHIFT) & PRIORITY), "relaxed")


@triton.jit
def is_leased(access: tl.int64, now: tl.int64) -> Any:
    """True if an ACCESS word is a lease that goes on at the time `now`."""
    return ((access & LEASED) == LEASED) & ((access & ACCESS_TIME) > now)


@triton.jit
def stays(access: tl.int64, now: tl.int64) -> Any:
    """True if nobody may evict an object with this ACCESS word at the time `now`."""
    return is_leased(access, now) | ((access & PRIORITY) == KEPT)


@triton.jit
def touch(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64, now: tl.int64) -> None:
    """Note that an object was read. Best effort for the time; a lease ends."""
    seg = segment(world, owner)
    header = header_at(world, seg, slot)
    seen = load64(header + H_ACCESS, "relaxed")  # relaxed: if it is old, the CAS fails
    used = used_again(seen, now, lifetime(seg))
    mine = word(1)
    if (seen & LEASED) == LEASED:
        if not still_ready(header, epoch):
            mine = word(0)
    if mine == 1:
        cas64(header + H_ACCESS, seen, used, "relaxed")  # relaxed: the word hands nothing over


@triton.jit
def renew(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64, without: tl.int64, terms: tl.int64) -> Any:
    """Change the terms of a READY object: 1; 0 if it is gone, or is being read at this moment.

    Args:
        without: the bits of its ACCESS word that go; those in `terms` come.
    """
    header = header_at(world, segment(world, owner), slot)
    seen = load64(header + H_ACCESS, "relaxed")  # relaxed: if it is old, the CAS fails
    changed = (seen & ~without) | terms
    renewed = word(0)
    if still_ready(header, epoch):
        # relaxed: the word hands nothing over
        if cas64(header + H_ACCESS, seen, changed, "relaxed") == seen:
            renewed = word(1)
            if not still_ready(header, epoch):  # the slot has another object, put at the same time
                cas64(header + H_ACCESS, changed, seen, "relaxed")
                renewed = word(0)
    return renewed
