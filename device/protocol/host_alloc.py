"""v1: the steps of the master and its producers on headers; the master's host allocates pages and slots.

Guarantees: a header that the master installs goes through the same states as one of v2 (`header`), so readers, pins and
the poller need not know which rank allocated.

Why the orderings suffice: only the master writes RESERVED headers, one at a time, and each change of a STATE word is
the compare-and-swap of `header`. The read-modify-write in `state_of` reads the newest word.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, copy_bytes, load64, store64, word
from nanokv.device.protocol.header import describe, flags_epoch, kill, next_epoch, publish, reserve
from nanokv.device.protocol.retire import count_eviction
from nanokv.device.protocol.ring import announce, asleep
from nanokv.device.protocol.structs import Descriptor, Key
from nanokv.device.segment.layout import ACCESS_TIME, EVICTED, H_FLAGS, H_PAGES, H_STATE, LOW32, STORED
from nanokv.device.segment.world_table import World, header_at, segment


@triton.jit
def install(
    world: World,
    owner: tl.int64,
    slot: tl.int64,
    key: Key,
    payload: tl.int64,
    nbytes: tl.int64,
    flags: tl.int64,
    now: tl.int64,
    descriptor: Descriptor,
) -> Any:
    """Write header and descriptor for a slot and an extent that the master chose, and publish WRITING: the epoch.

    `flags`: FLAG_*; from bit 32 on the PRODUCER bits of the rank that asked the master, or 0 for the caller itself.
    """
    seg = segment(world, owner)
    describe(world, seg, slot, descriptor)
    header = header_at(world, seg, slot)
    epoch = next_epoch(load64(header + H_STATE, "relaxed"))
    reserve(world, seg, slot, epoch, key, flags & LOW32)
    if (flags >> 32) != 0:
        store64(header + H_FLAGS, flags | flags_epoch(epoch), "relaxed")
    size = world.page_bytes
    publish(world, seg, slot, epoch, (nbytes + size - 1) // size, payload, nbytes, now & ACCESS_TIME)
    return epoch


@triton.jit
def state_of(world: World, owner: tl.int64, slot: tl.int64) -> Any:
    """The newest STATE word of a header slot, read by a read-modify-write."""
    # acq_rel: the newest word, in order with all else that the host does; only the host waits for it (kept)
    return add64(header_at(world, segment(world, owner), slot) + H_STATE, 0, "acq_rel")


@triton.jit
def kill_slot(world: World, owner: tl.int64, slot: tl.int64, state: tl.int64, epoch: tl.int64) -> Any:
    """(state, 0, epoch) -> (DEAD, 0, epoch). Returns the previous STATE word."""
    return kill(header_at(world, segment(world, owner), slot), state, epoch)


@triton.jit
def announce_slot(world: World, owner: tl.int64, kind: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """Leave a hint about a header slot. REMOVED or EVICTED also takes the pages out of the header: the master has them.

    Returns 1 if the owner's poller sleeps.
    """
    seg = segment(world, owner)
    if kind != STORED:
        store64(header_at(world, seg, slot) + H_PAGES, word(0), "relaxed")
    announce(world, seg, kind, slot, epoch)
    if kind == EVICTED:
        count_eviction(world, seg)
    return asleep(seg)


@triton.jit
def store_payload(world: World, owner: tl.int64, payload: tl.int64, src: tl.int64, nbytes: tl.int64) -> None:
    """Copy `nbytes` from the address `src` to the offset `payload` of a segment."""
    copy_bytes(segment(world, owner) + payload, src, nbytes)
