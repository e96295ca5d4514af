"""Protocol functions as a host calls them: by owner, and with the answer whether it must wake the owner's poller.

A host on a CPU that leaves a hint wakes the owner's poller if that sleeps. It looks after it has left the hint, so that
one of the two sees the other (`nanokv.heap.futex`). The pollers of segments on GPUs never sleep on the ring.

Guarantees, sources and orderings are those of the functions called.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import word
from nanokv.device.protocol.activity import enter, leave
from nanokv.device.protocol.evict import evict_pages, evict_slot
from nanokv.device.protocol.put import abort, commit, finish
from nanokv.device.protocol.remove import remove_slot, remove_whole
from nanokv.device.protocol.ring import asleep
from nanokv.device.protocol.status import OK
from nanokv.device.segment.layout import REMOVED
from nanokv.device.segment.world_table import World, segment


@triton.jit
def enter_segment(world: World, owner: tl.int64) -> Any:
    """`enter`."""
    return enter(world, segment(world, owner))


@triton.jit
def leave_segment(world: World, owner: tl.int64, phase: tl.int64) -> None:
    """`leave`."""
    leave(world, segment(world, owner), phase)


@triton.jit
def finish_hinted(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64, phase: tl.int64) -> Any:
    """`finish`: (status, 1 if the owner's poller sleeps)."""
    status = finish(world, owner, slot, epoch, phase)
    return status, asleep(segment(world, owner))


@triton.jit
def commit_hinted(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """`commit`: (status, 1 if the owner's poller sleeps)."""
    status = commit(world, owner, slot, epoch)
    return status, asleep(segment(world, owner))


@triton.jit
def abort_hinted(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """`abort`: (status, 1 if the owner's poller sleeps)."""
    status = abort(world, owner, slot, epoch)
    return status, asleep(segment(world, owner))


@triton.jit
def remove_hinted(world: World, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """`remove`: (status, owner, 1 if the owner's poller sleeps, 1 if copies may have gone too, in other segments)."""
    status, owner, copies = remove_whole(world, key_hash, key_check)
    sleeps = word(0)
    if status == OK:
        sleeps = asleep(segment(world, owner))
    return status, owner, sleeps, copies


@triton.jit
def remove_slot_hinted(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """`remove_slot`: (status, 1 if the owner's poller sleeps)."""
    status = remove_slot(world, owner, slot, epoch, REMOVED)
    return status, asleep(segment(world, owner))


@triton.jit
def evict_slot_hinted(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64, now: tl.int64) -> Any:
    """`evict_slot`: (status, 1 if the owner's poller sleeps)."""
    status = evict_slot(world, owner, slot, epoch, now)
    return status, asleep(segment(world, owner))


@triton.jit
def evict_pages_hinted(world: World, owner: tl.int64, pages: tl.int64, most: tl.int64, now: tl.int64) -> Any:
    """`evict_pages`: (objects that went, their pages, 1 if the owner's poller sleeps)."""
    gone, freed = evict_pages(world, owner, pages, most, now)
    return gone, freed, asleep(segment(world, owner))
