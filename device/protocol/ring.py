"""The announce ring: producers tell the owner's host that an object became READY or went away.

A ring slot is one 64-bit word that describes itself (RING: kind, header slot, epoch).

Source: the tickets of Vyukov's bounded queue. There a producer that dies between taking a ticket and filling its slot
stops the consumer; here it does not.

Guarantees
- The consumer takes a hint at most once, and whole: one CAS fills an empty word, one exchange takes it.
- No producer ever waits. A producer that finds its ring slot taken counts a missed hint; the sweep over the headers
  finds the object all the same. The headers are the truth, the ring only hints at them.
- A ring slot that is reserved and never filled does not stop the consumer: `drain` passes over empty slots and reports
  the first; the host decides how long it comes back to that one. `drain` takes a word that turns up even later on the
  next lap.
- Order is not promised. The consumer compares the word with the header.

Why the orderings suffice: the CAS releases the producer's writes to the header, and the exchange acquires them.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, load64, select, store64, word, xchg64
from nanokv.device.segment.layout import (
    ANN_ASLEEP,
    ANN_HEAD,
    COUNT_MISSED,
    LOW32,
    RING_EPOCH_SHIFT,
    RING_HEADER_SHIFT,
    RING_KIND_MASK,
    WORD_BYTES,
)
from nanokv.device.segment.world_table import World, segment


@triton.jit
def ring_slot(world: World, seg: tl.int64, ticket: tl.int64) -> Any:
    """The address of the ring slot of a ticket."""
    return seg + world.ann_base + (ticket & (world.ann_capacity - 1)) * WORD_BYTES


@triton.jit
def announce(world: World, seg: tl.int64, kind: tl.int64, slot: tl.int64, epoch: tl.int64) -> None:
    """Leave a hint about a header slot for the owner's host."""
    ticket = add64(seg + ANN_HEAD, 1, "relaxed")  # relaxed: a ticket hands nothing over
    said = word(kind) | (slot << RING_HEADER_SHIFT) | (epoch << RING_EPOCH_SHIFT)
    # release: the header that the hint is about (scenario ring)
    got = cas64(ring_slot(world, seg, ticket), 0, said, "release")
    if got != 0:
        add64(seg + COUNT_MISSED, 1, "relaxed")


@triton.jit
def announce_run(
    world: World, seg: tl.int64, hints: tl.int64, stride: tl.int64, count: tl.int64, given: tl.int64
) -> None:
    """Leave the hints that stand in `count` private words, `stride` bytes apart; words whose kind is 0 are none.

    `given`: how many hints there are, at least one. Their tickets are taken by one addition, and each is used: a ticket
    without a hint would be a hole.
    """
    ticket = add64(seg + ANN_HEAD, given, "relaxed")  # relaxed: a ticket hands nothing over
    missed = word(0)
    i = word(0)
    while i < count:
        said = load64(hints + i * stride, "relaxed")
        if (said & RING_KIND_MASK) != 0:
            # release: the header that the hint is about (scenario ring-run)
            got = cas64(ring_slot(world, seg, ticket), 0, said, "release")
            missed += select(got != 0, word(1), word(0))
            ticket += 1
        i += 1
    if missed > 0:
        add64(seg + COUNT_MISSED, missed, "relaxed")


@triton.jit
def asleep(seg: tl.int64) -> Any:
    """1 if the owner's poller sleeps and must be woken. Only for segments in host memory."""
    return load64(seg + ANN_ASLEEP, "relaxed") & LOW32


@triton.jit
def drain(world: World, owner: tl.int64, tail: tl.int64, out: tl.int64, room: tl.int64) -> Any:
    """Take hints from ticket `tail` on, at most `room`, into the words at `out` (private memory).

    Returns (taken, head, hole): how many; the ticket before which the look ended; the first ticket whose ring slot was
    empty, or `head`.
    """
    seg = segment(world, owner)
    head = load64(seg + ANN_HEAD, "relaxed")  # relaxed: later tickets are for the next call
    head = select(head < 0, word(0), head)
    capacity = world.ann_capacity
    oldest = select(head > capacity, head, capacity) - capacity
    ticket = select(tail < oldest, oldest, tail)
    ticket = select(ticket > head, head, ticket)  # only after `ann_head` was corrupt: begin where it is now
    taken = word(0)
    hole = word(-1)
    while (ticket < head) & (taken < room):
        at = ring_slot(world, seg, ticket)
        said = load64(at, "relaxed")
        if said != 0:
            said = xchg64(at, 0, "acquire")  # acquire: the header that the hint is about (scenario ring)
        if said != 0:
            store64(out + taken * WORD_BYTES, said, "relaxed")
            taken += 1
        else:
            hole = select(hole < 0, ticket, hole)
        ticket += 1
    return taken, ticket, select(hole < 0, ticket, hole)
