"""A put from another host, on the owner's side: the owner claims, reads the producer's memory, and commits.

Few bytes come in the question itself, and are copied from there (`copy_pulls`).

Guarantees
- No byte moves for a key that is taken, or that finds no room.
- The object is a plan (FLAG_PLAN): no grace period waits for the transfer, and its pages do not come back before
  `end_each`, which is called only when the transfer can write no more. So late bytes reach no other object (I1).
- What the owner's process had begun when it died comes back as any dead producer's objects (I6).

Why the orderings suffice: the transfer is complete before `end_each` commits, which releases.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.fabric.lines import field, look_word, peek, poke, sort
from nanokv.device.fabric.records import (
    ASKER_MASK,
    P_EPOCH,
    P_KEY_CHECK,
    P_KEY_HASH,
    P_NBYTES,
    P_PAYLOAD,
    P_RANK,
    P_SLOT,
    P_SOURCE,
    P_STATUS,
    P_WHAT,
    PULL_BYTES,
    ROW_BYTES,
    ROW_HERE,
    ROW_NBYTES,
    ROW_THERE,
)
from nanokv.device.memory.triton import copy_bytes, select, store64, word
from nanokv.device.native.clock import now_ns
from nanokv.device.protocol.activity import enter, leave
from nanokv.device.protocol.header import load_descriptor
from nanokv.device.protocol.put import abort, begin_described, commit, seal_payload
from nanokv.device.protocol.ring import asleep
from nanokv.device.protocol.status import LOST, OK
from nanokv.device.protocol.structs import Begun, Key
from nanokv.device.segment.layout import FLAG_PLAN
from nanokv.device.segment.world_table import World, segment


@triton.jit
def key_in(pull: tl.int64) -> Any:
    """The key in a PULL."""
    return Key(field(pull, P_KEY_HASH), field(pull, P_KEY_CHECK))


@triton.jit
def begin_each(world: World, pulls: tl.int64, count: tl.int64) -> Any:
    """Claim and allocate for `count` PULLs: how many are OK."""
    good = word(0)
    i = word(0)
    while i < count:
        pull = pulls + i * PULL_BYTES
        owner = field(pull, P_RANK)
        descriptor = load_descriptor(pull + P_WHAT)
        status, begun = begin_described(
            world, owner, key_in(pull), field(pull, P_NBYTES), FLAG_PLAN, now_ns(), descriptor
        )
        if status == OK:
            leave(world, segment(world, owner), begun.phase)
            good += 1
        store64(pull + P_STATUS, status, "relaxed")
        store64(pull + P_SLOT, begun.slot, "relaxed")
        store64(pull + P_EPOCH, begun.epoch, "relaxed")
        store64(pull + P_PAYLOAD, begun.payload, "relaxed")
        i += 1
    return good


@triton.jit
def rows_of_pulls(world: World, pulls: tl.int64, count: tl.int64, looks: tl.int64, rows: tl.int64) -> Any:
    """The rows that bring the bytes of all PULLs that are OK: how many. Neighbours on both sides are one row.

    Args:
        looks: address of room for a word per PULL. rows: of room for a ROW per PULL.
    """
    found = word(0)
    i = word(0)
    while i < count:
        pull = pulls + i * PULL_BYTES
        if (field(pull, P_STATUS) == OK) & (field(pull, P_NBYTES) > 0):
            seg = segment(world, field(pull, P_RANK))
            poke(looks, found, look_word(seg + field(pull, P_PAYLOAD), i))
            found += 1
        i += 1
    sort(looks, found)
    row = word(-1)
    end_here = word(0)
    end_there = word(0)
    k = word(0)
    while k < found:
        pull = pulls + (peek(looks, k) & ASKER_MASK) * PULL_BYTES
        here, there = segment(world, field(pull, P_RANK)) + field(pull, P_PAYLOAD), field(pull, P_SOURCE)
        nbytes = field(pull, P_NBYTES)
        if (k > 0) & (here == end_here) & (there == end_there):
            at = rows + row * ROW_BYTES + ROW_NBYTES
            store64(at, field(at, word(0)) + nbytes, "relaxed")
        else:
            row += 1
            at = rows + row * ROW_BYTES
            store64(at + ROW_HERE, here, "relaxed")
            store64(at + ROW_THERE, there, "relaxed")
            store64(at + ROW_NBYTES, nbytes, "relaxed")
        end_here, end_there = here + nbytes, there + nbytes
        k += 1
    return row + 1


@triton.jit
def copy_pulls(world: World, pulls: tl.int64, count: tl.int64, brought: tl.int64) -> None:
    """Copy the bytes of all PULLs that are OK, whose sources count from the address `brought`."""
    i = word(0)
    while i < count:
        pull = pulls + i * PULL_BYTES
        if field(pull, P_STATUS) == OK:
            to = segment(world, field(pull, P_RANK)) + field(pull, P_PAYLOAD)
            copy_bytes(to, brought + field(pull, P_SOURCE), field(pull, P_NBYTES))
        i += 1


@triton.jit
def seal_pull(world: World, pull: tl.int64) -> None:
    """Give the object of a PULL, whose bytes are there, a checksum."""
    begun = Begun(field(pull, P_SLOT), field(pull, P_EPOCH), field(pull, P_PAYLOAD), word(0))
    descriptor = load_descriptor(pull + P_WHAT)
    seal_payload(world, field(pull, P_RANK), key_in(pull), begun, field(pull, P_NBYTES), descriptor)


@triton.jit
def end_each(world: World, pulls: tl.int64, count: tl.int64, well: tl.int64) -> Any:
    """Commit all PULLs that are OK, if `well`, else give them up. Returns the ranks (as bits) whose pollers sleep.

    A rank above 62 is woken with rank 62 (`ranks` is for a host that wakes them).
    """
    ranks = word(0)
    i = word(0)
    while i < count:
        pull = pulls + i * PULL_BYTES
        if field(pull, P_STATUS) == OK:
            owner, slot, epoch = field(pull, P_RANK), field(pull, P_SLOT), field(pull, P_EPOCH)
            if well != 0:
                if world.checksum != 0:
                    seal_pull(world, pull)
                store64(pull + P_STATUS, commit(world, owner, slot, epoch), "relaxed")
            else:
                phase = enter(world, segment(world, owner))
                abort(world, owner, slot, epoch)
                leave(world, segment(world, owner), phase)
                store64(pull + P_STATUS, word(LOST), "relaxed")
            if asleep(segment(world, owner)) != 0:
                ranks = ranks | (word(1) << select(owner < 62, owner, word(62)))
        i += 1
    return ranks


# --- what somebody asks for ---
RIGHT = tl.constexpr(0)  #: answers of `fault_of_pulls`
BAD_SIZE = tl.constexpr(1)
BAD_RANK = tl.constexpr(2)


@triton.jit
def fault_of_pulls(world: World, pulls: tl.int64, count: tl.int64, most: tl.int64) -> Any:
    """Whether all PULLs have 0 to `most` bytes, and a rank of this world or -1: RIGHT; or what is wrong."""
    fault = word(RIGHT)
    i = word(0)
    while i < count:
        pull = pulls + i * PULL_BYTES
        nbytes, rank = field(pull, P_NBYTES), field(pull, P_RANK)
        if (nbytes < 0) | (nbytes > most):
            fault = word(BAD_SIZE)
        elif (rank < -1) | (rank >= world.world_size):
            fault = word(BAD_RANK)
        i += 1
    return fault
