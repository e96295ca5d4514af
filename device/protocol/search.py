"""The search for an object that may go: READY, without pins, and not held by its terms (`lease`). A policy chooses.

Guarantees
- A search gives up after about as many looks as there are headers, or MOST_LOOKS (I9).

Why the orderings suffice: the words that the search reads may be old; the compare-and-swap of the STATE word decides
(`evict`). The commit released the terms of an object, so `must_stay` looks at them after it has acquired READY.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, select, word
from nanokv.device.protocol.header import epoch_of, pages_of, phase_of
from nanokv.device.protocol.lease import stays
from nanokv.device.protocol.lifetimes import LOOKS, factors, lifetime, next_place, ripeness, slots_in_use
from nanokv.device.protocol.policy import goes, spare
from nanokv.device.segment.layout import (
    CLOCK_HAND,
    H_ACCESS,
    H_STATE,
    LIFETIMES,
    LOW32,
    MAY_EVICT,
    PIN_BITS,
    POSITIVE,
    READY,
)
from nanokv.device.segment.world_table import World, class_pages, header_at

MOST_LOOKS = tl.constexpr(4096)  # headers that a search looks at while it finds nothing that may go


@triton.jit
def may_evict(seg: tl.int64) -> Any:
    """True if a producer that finds this segment full may evict."""
    return load64(seg + MAY_EVICT, "relaxed") != 0


@triton.jit
def policy_of(seg: tl.int64) -> Any:
    """The number of the segment's policy. The owner may evict also where producers must not."""
    policy = load64(seg + MAY_EVICT, "relaxed")
    return select(policy == 0, word(LIFETIMES), policy)


@triton.jit
def sizes_of(world: World, size_class: tl.int64) -> Any:
    """The least and the largest number of pages of objects whose extents are of this class or larger; -1: of any."""
    least = word(1)
    if size_class > 0:
        least = class_pages(world, size_class - 1) + 1
    least = select(size_class < 0, word(0), least)
    return least, select(size_class < 0, word(LOW32), class_pages(world, world.n_classes - 1))


@triton.jit
def search(world: World, seg: tl.int64, policy: tl.int64, size_class: tl.int64, now: tl.int64) -> Any:
    """Look for an object that may go, with an extent that is large enough, at which the policy stops.

    Returns (slot or -1, epoch, ACCESS word, ripeness, 1 if the policy stopped, 1 if it would have stopped at an object
    that is too small). If it passes all of LOOKS, the ripest.
    """
    total = slots_in_use(world, seg)
    least, largest = sizes_of(world, size_class)
    life = lifetime(seg)
    first_round = load64(seg + CLOCK_HAND, "relaxed") < total
    once, often = factors(seg, first_round)
    best = word(-1)
    best_epoch = word(0)
    best_access = word(0)
    best_ripe = word(-1)
    ripe = word(0)
    crowd = word(0)
    most = LOOKS + select(total > MOST_LOOKS, word(MOST_LOOKS), total)
    looked = word(0)
    more = total > 0
    while more:
        slot = (next_place(seg, looked, total) & POSITIVE) % total
        header = header_at(world, seg, slot)
        state = load64(header + H_STATE, "relaxed")  # relaxed, as all of the search: `kill` decides
        access = load64(header + H_ACCESS, "relaxed")
        n_pages = pages_of(header)
        fits = (phase_of(state) == READY) & ((state & PIN_BITS) == 0) & (not stays(access, now))
        small = fits & (n_pages > 0) & (n_pages < least)
        fits = fits & (n_pages >= least) & (n_pages <= largest)
        age = ripeness(access, now, once, often)
        better = fits & (age > best_ripe)
        stops = goes(policy, access, age, life, first_round)
        if fits & stops:
            ripe = word(1)
            better = fits
        elif fits:
            spare(policy, header, access)
        crowd = select(small & stops, word(1), crowd)
        best = select(better, slot, best)
        best_epoch = select(better, epoch_of(state), best_epoch)
        best_access = select(better, access, best_access)
        best_ripe = select(better, age, best_ripe)
        looked += 1
        more = (ripe == 0) & ((looked < LOOKS) | ((best < 0) & (crowd == 0))) & (looked < most)
    return best, best_epoch, best_access, best_ripe, ripe, crowd


@triton.jit
def must_stay(header: tl.int64, now: tl.int64) -> Any:
    """True if the terms of a header's object, which was READY, keep it from being evicted at the time `now`."""
    load64(header + H_STATE, "acquire")  # acquire: the terms of the object that is READY (scenario leased)
    return stays(load64(header + H_ACCESS, "relaxed"), now)
