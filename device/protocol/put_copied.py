"""A put with copies: the object, and copies of it in other segments, in one call.

The producer claims the key with the primary, as any put. While that is WRITING it begins each copy as a replicator
(`replicate`). It stores the bytes everywhere, commits the primary, and then the copies.

Guarantees
- Those of `put` and of `replicate`. The status is the primary's: a copy without room is left out.
- No copy is READY before its primary. If the primary's commit is LOST, the copies are given up.

Why the orderings suffice: `replicate` says why each copy passes the turnstile while its primary is WRITING; what stores
and commits is `put`'s. The table of copies is private to the producer.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import checksum_bytes, copy_bytes, load64, store64, word
from nanokv.device.protocol.checksum import seal, wanted
from nanokv.device.protocol.header import describe
from nanokv.device.protocol.put import begin_described, finish
from nanokv.device.protocol.replicate import begin_copy, end_copy
from nanokv.device.protocol.ring import asleep
from nanokv.device.protocol.status import OK
from nanokv.device.protocol.structs import Begun, Descriptor, Key
from nanokv.device.segment.host_records import (
    C_EPOCH,
    C_PAYLOAD,
    C_PHASE,
    C_RANK,
    C_SLEEPS,
    C_SLOT,
    C_STATUS,
    COPY_BYTES,
)
from nanokv.device.segment.world_table import World, segment


@triton.jit
def begin_copies(
    world: World, key: Key, nbytes: tl.int64, now: tl.int64, descriptor: Descriptor, copies: tl.int64, count: tl.int64
) -> None:
    """Begin and describe the copies that the table at the address `copies` names, while their primary is WRITING."""
    i = word(0)
    while i < count:
        at = copies + i * COPY_BYTES
        target = load64(at + C_RANK, "relaxed")
        status, begun = begin_copy(world, target, key, nbytes, now)
        if status == OK:
            describe(world, segment(world, target), begun.slot, descriptor)
        store64(at + C_STATUS, status, "relaxed")
        store64(at + C_SLOT, begun.slot, "relaxed")
        store64(at + C_EPOCH, begun.epoch, "relaxed")
        store64(at + C_PAYLOAD, begun.payload, "relaxed")
        store64(at + C_PHASE, begun.phase, "relaxed")
        i += 1


@triton.jit
def seal_copies(
    world: World,
    key: Key,
    nbytes: tl.int64,
    payload_sum: tl.int64,
    descriptor: Descriptor,
    copies: tl.int64,
    count: tl.int64,
) -> None:
    """Give the copies that were begun a checksum."""
    i = word(0)
    while i < count:
        at = copies + i * COPY_BYTES
        if load64(at + C_STATUS, "relaxed") == OK:
            seg = segment(world, load64(at + C_RANK, "relaxed"))
            slot = load64(at + C_SLOT, "relaxed")
            seal(world, seg, slot, key, nbytes, payload_sum, descriptor)
        i += 1


@triton.jit
def end_copies_put(world: World, copies: tl.int64, count: tl.int64, put: tl.int64) -> None:
    """End the copies that were begun: committed if their primary's put is OK, else given up."""
    i = word(0)
    while i < count:
        at = copies + i * COPY_BYTES
        if load64(at + C_STATUS, "relaxed") == OK:
            target = load64(at + C_RANK, "relaxed")
            begun = Begun(
                load64(at + C_SLOT, "relaxed"),
                load64(at + C_EPOCH, "relaxed"),
                load64(at + C_PAYLOAD, "relaxed"),
                load64(at + C_PHASE, "relaxed"),
            )
            status = end_copy(world, target, begun, put)
            store64(at + C_STATUS, status, "relaxed")
            store64(at + C_SLEEPS, asleep(segment(world, target)), "relaxed")
        i += 1


@triton.jit
def put_copied(
    world: World,
    owner: tl.int64,
    key: Key,
    src: tl.int64,
    nbytes: tl.int64,
    now: tl.int64,
    descriptor: Descriptor,
    copies: tl.int64,
    count: tl.int64,
) -> Any:
    """`put`, and `count` copies in the segments that a private table of COPY at the address `copies` names.

    Returns (status, 1 if the owner's poller sleeps) as `put`. The table's words `status` and `sleeps` say what became
    of each copy; they are not touched if the put is refused. A copy that finds no room is left out.
    """
    status, begun = begin_described(world, owner, key, nbytes, word(0), now, descriptor)
    seg = segment(world, owner)
    if status == OK:
        begin_copies(world, key, nbytes, now, descriptor, copies, count)
        if wanted(world):
            total = checksum_bytes(src, nbytes, 0)
            seal(world, seg, begun.slot, key, nbytes, total, descriptor)
            seal_copies(world, key, nbytes, total, descriptor, copies, count)
        copy_bytes(seg + begun.payload, src, nbytes)
        i = word(0)
        while i < count:
            at = copies + i * COPY_BYTES
            if load64(at + C_STATUS, "relaxed") == OK:
                to = segment(world, load64(at + C_RANK, "relaxed")) + load64(at + C_PAYLOAD, "relaxed")
                copy_bytes(to, src, nbytes)
            i += 1
        status = finish(world, owner, begun)
        end_copies_put(world, copies, count, status)
    return status, asleep(seg)
