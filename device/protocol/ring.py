"""The announce ring: producers tell the owner's host that an object became READY or went away.

A slot is one 64-bit word that describes itself (RING: kind, header slot, epoch). Source: the tickets of Vyukov's
bounded queue, without its weakness: there a producer that dies between taking a ticket and filling its slot
stops the consumer.

Guarantees
- A hint is taken at most once, whole: a word is filled by one CAS from empty and taken by one exchange.
- No producer ever waits. A slot that is still taken makes the producer count a missed hint; the sweep over the headers
  finds the object all the same. Headers are the truth, the ring is only a hint.
- A slot that was reserved and never filled does not stop the consumer: `drain` takes what is there, passes over empty
  slots, and reports the first of them; the host decides how long to come back to it. A word that turns up later still
  is taken on the next lap.
- Order is not promised. A consumer compares the word with the header.

Why the orderings suffice: the CAS releases what the producer wrote to the header, the exchange acquires it.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, load64, select, store64, table64, word, xchg64
from nanokv.device.segment.layout import (
    ANN_ASLEEP,
    ANN_HEAD,
    COUNT_MISSED,
    LOW32,
    RING_EPOCH_SHIFT,
    RING_HEADER_SHIFT,
    WORD_BYTES,
)
from nanokv.device.segment.world_table import W_ANN_BASE, W_ANN_CAPACITY, segment


@triton.jit
def ring_slot(world: tl.int64, seg: tl.int64, ticket: tl.int64) -> Any:
    """The address of the slot of a ticket."""
    return seg + table64(world + W_ANN_BASE) + (ticket & (table64(world + W_ANN_CAPACITY) - 1)) * WORD_BYTES


@triton.jit
def announce(world: tl.int64, seg: tl.int64, kind: tl.int64, slot: tl.int64, epoch: tl.int64) -> None:
    """Leave a hint about a header slot for the owner's host."""
    ticket = add64(seg + ANN_HEAD, 1, "relaxed")
    said = word(kind) | (slot << RING_HEADER_SHIFT) | (epoch << RING_EPOCH_SHIFT)
    got = cas64(ring_slot(world, seg, ticket), 0, said, "release")
    if got != 0:
        add64(seg + COUNT_MISSED, 1, "relaxed")


@triton.jit
def asleep(seg: tl.int64) -> Any:
    """1 if the owner's poller sleeps and must be woken. Only for segments in host memory."""
    return load64(seg + ANN_ASLEEP, "relaxed") & LOW32


@triton.jit
def drain(world: tl.int64, owner: tl.int64, tail: tl.int64, out: tl.int64, room: tl.int64) -> Any:
    """Take hints from ticket `tail` on, at most `room`, into the words at `out` (private memory).

    Returns (taken, head, hole): `head` is the ticket up to which was looked, `hole` the first ticket whose slot was
    empty, or `head`.
    """
    seg = segment(world, owner)
    head = load64(seg + ANN_HEAD, "relaxed")
    head = select(head < 0, word(0), head)
    capacity = table64(world + W_ANN_CAPACITY)
    oldest = select(head > capacity, head, capacity) - capacity
    ticket = select(tail < oldest, oldest, tail)
    ticket = select(ticket > head, head, ticket)  # `ann_head` has been corrupt: begin where it is now
    taken = word(0)
    hole = word(-1)
    while (ticket < head) & (taken < room):
        at = ring_slot(world, seg, ticket)
        said = load64(at, "relaxed")
        if said != 0:
            said = xchg64(at, 0, "acquire")
        if said != 0:
            store64(out + taken * WORD_BYTES, said, "relaxed")
            taken += 1
        else:
            hole = select(hole < 0, ticket, hole)
        ticket += 1
    return taken, ticket, select(hole < 0, ticket, hole)
