"""Protocol functions as a host calls them: with words, by owner, and with the answer whether it must wake a poller.

A host on a CPU that leaves a hint wakes the owner's poller if that sleeps. It looks after it has left the hint, so that
one of the two sees the other (`nanokv.heap.futex`). The pollers of segments on GPUs never sleep on the ring.

Guarantees, sources and orderings are those of the functions called.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import word
from nanokv.device.protocol.activity import enter, leave
from nanokv.device.protocol.directory import find
from nanokv.device.protocol.evict import evict_pages, evict_slot
from nanokv.device.protocol.get import get_described, lookup, read, verify
from nanokv.device.protocol.header import descriptor_of
from nanokv.device.protocol.host_alloc import install
from nanokv.device.protocol.put import abort, begin_described, commit, finish, put, seal_payload
from nanokv.device.protocol.put_copied import put_copied
from nanokv.device.protocol.remove import remove_slot, remove_whole
from nanokv.device.protocol.replicate import begin_replica, end_replica, find_copies, replicate
from nanokv.device.protocol.ring import asleep
from nanokv.device.protocol.status import OK
from nanokv.device.protocol.structs import Begun, Descriptor, Found, Key
from nanokv.device.segment.layout import REMOVED
from nanokv.device.segment.world_table import World, segment


# --- a put in steps ----------------------------------------------------------------------------
@triton.jit
def host_enter(world: World, owner: tl.int64) -> Any:
    """`enter`."""
    return enter(world, segment(world, owner))


@triton.jit
def host_leave(world: World, owner: tl.int64, phase: tl.int64) -> None:
    """`leave`."""
    leave(world, segment(world, owner), phase)


@triton.jit
def host_begin(
    world: World,
    owner: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
    nbytes: tl.int64,
    flags: tl.int64,
    now: tl.int64,
    kind: tl.int64,
    d0: tl.int64,
    d1: tl.int64,
    d2: tl.int64,
    d3: tl.int64,
    d4: tl.int64,
    d5: tl.int64,
    d6: tl.int64,
) -> Any:
    """`begin_described`: (status, slot, epoch, payload offset, phase)."""
    descriptor = Descriptor(kind, d0, d1, d2, d3, d4, d5, d6)
    status, begun = begin_described(world, owner, Key(key_hash, key_check), nbytes, flags, now, descriptor)
    return status, begun.slot, begun.epoch, begun.payload, begun.phase


@triton.jit
def host_seal(
    world: World,
    owner: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
    slot: tl.int64,
    epoch: tl.int64,
    payload: tl.int64,
    nbytes: tl.int64,
    kind: tl.int64,
    d0: tl.int64,
    d1: tl.int64,
    d2: tl.int64,
    d3: tl.int64,
    d4: tl.int64,
    d5: tl.int64,
    d6: tl.int64,
) -> None:
    """`seal_payload`."""
    begun = Begun(slot, epoch, payload, word(0))
    seal_payload(world, owner, Key(key_hash, key_check), begun, nbytes, Descriptor(kind, d0, d1, d2, d3, d4, d5, d6))


@triton.jit
def host_finish(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64, phase: tl.int64) -> Any:
    """`finish`: (status, 1 if the owner's poller sleeps)."""
    status = finish(world, owner, Begun(slot, epoch, word(0), phase))
    return status, asleep(segment(world, owner))


@triton.jit
def host_commit(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """`commit`: (status, 1 if the owner's poller sleeps)."""
    status = commit(world, owner, slot, epoch)
    return status, asleep(segment(world, owner))


@triton.jit
def host_abort(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """`abort`: (status, 1 if the owner's poller sleeps)."""
    status = abort(world, owner, slot, epoch)
    return status, asleep(segment(world, owner))


@triton.jit
def host_install(
    world: World,
    owner: tl.int64,
    slot: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
    payload: tl.int64,
    nbytes: tl.int64,
    flags: tl.int64,
    now: tl.int64,
    kind: tl.int64,
    d0: tl.int64,
    d1: tl.int64,
    d2: tl.int64,
    d3: tl.int64,
    d4: tl.int64,
    d5: tl.int64,
    d6: tl.int64,
) -> Any:
    """`install`, for v1: the epoch."""
    descriptor = Descriptor(kind, d0, d1, d2, d3, d4, d5, d6)
    return install(world, owner, slot, Key(key_hash, key_check), payload, nbytes, flags, now, descriptor)


# --- whole puts and gets -----------------------------------------------------------------------
@triton.jit
def host_put(
    world: World,
    owner: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
    src: tl.int64,
    nbytes: tl.int64,
    now: tl.int64,
    kind: tl.int64,
    d0: tl.int64,
    d1: tl.int64,
    d2: tl.int64,
    d3: tl.int64,
    d4: tl.int64,
    d5: tl.int64,
    d6: tl.int64,
) -> Any:
    """`put`: (status, 1 if the owner's poller sleeps)."""
    return put(world, owner, Key(key_hash, key_check), src, nbytes, now, Descriptor(kind, d0, d1, d2, d3, d4, d5, d6))


@triton.jit
def host_put_copied(
    world: World,
    owner: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
    src: tl.int64,
    nbytes: tl.int64,
    now: tl.int64,
    kind: tl.int64,
    d0: tl.int64,
    d1: tl.int64,
    d2: tl.int64,
    d3: tl.int64,
    d4: tl.int64,
    d5: tl.int64,
    d6: tl.int64,
    copies: tl.int64,
    count: tl.int64,
) -> Any:
    """`put_copied`: (status, 1 if the owner's poller sleeps)."""
    descriptor = Descriptor(kind, d0, d1, d2, d3, d4, d5, d6)
    return put_copied(world, owner, Key(key_hash, key_check), src, nbytes, now, descriptor, copies, count)


@triton.jit
def host_get(
    world: World,
    key_hash: tl.int64,
    key_check: tl.int64,
    dst: tl.int64,
    room: tl.int64,
    now: tl.int64,
    kind: tl.int64,
    d0: tl.int64,
    d1: tl.int64,
    d2: tl.int64,
    d3: tl.int64,
    d4: tl.int64,
    d5: tl.int64,
    d6: tl.int64,
) -> Any:
    """`get_described`: the status."""
    return get_described(world, Key(key_hash, key_check), dst, room, now, Descriptor(kind, d0, d1, d2, d3, d4, d5, d6))


# --- a get in steps ----------------------------------------------------------------------------
@triton.jit
def host_find(world: World, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """`find`: (status, entry)."""
    return find(world, Key(key_hash, key_check))


@triton.jit
def host_lookup(world: World, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """`lookup`, and the descriptor: (status, owner, slot, epoch, payload, bytes, kind, seven dimensions)."""
    status, found = lookup(world, Key(key_hash, key_check))
    has = descriptor_of(world, segment(world, found.owner), found.slot)
    place = (status, found.owner, found.slot, found.epoch, found.payload, found.nbytes)
    return place + (has.kind, has.d0, has.d1, has.d2, has.d3, has.d4, has.d5, has.d6)


@triton.jit
def host_read(
    world: World,
    owner: tl.int64,
    slot: tl.int64,
    epoch: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
    payload: tl.int64,
    nbytes: tl.int64,
    dst: tl.int64,
    now: tl.int64,
) -> Any:
    """`read`: the status."""
    return read(world, Found(owner, slot, epoch, payload, nbytes), Key(key_hash, key_check), dst, now)


@triton.jit
def host_verify(
    world: World,
    owner: tl.int64,
    slot: tl.int64,
    epoch: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
    copy: tl.int64,
    nbytes: tl.int64,
) -> Any:
    """`verify`: the status."""
    return verify(world, Found(owner, slot, epoch, word(0), nbytes), Key(key_hash, key_check), copy)


# --- removal and eviction ----------------------------------------------------------------------
@triton.jit
def host_remove(world: World, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """`remove`: (status, owner, 1 if the owner's poller sleeps, 1 if copies may have gone too, in other segments)."""
    status, owner, copies = remove_whole(world, Key(key_hash, key_check))
    sleeps = word(0)
    if status == OK:
        sleeps = asleep(segment(world, owner))
    return status, owner, sleeps, copies


@triton.jit
def host_remove_slot(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """`remove_slot`: (status, 1 if the owner's poller sleeps)."""
    status = remove_slot(world, owner, slot, epoch, REMOVED)
    return status, asleep(segment(world, owner))


@triton.jit
def host_evict_slot(world: World, owner: tl.int64, slot: tl.int64, epoch: tl.int64, now: tl.int64) -> Any:
    """`evict_slot`: (status, 1 if the owner's poller sleeps)."""
    status = evict_slot(world, owner, slot, epoch, now)
    return status, asleep(segment(world, owner))


@triton.jit
def host_evict_pages(world: World, owner: tl.int64, pages: tl.int64, most: tl.int64, now: tl.int64) -> Any:
    """`evict_pages`: (objects that went, their pages, 1 if the owner's poller sleeps)."""
    gone, freed = evict_pages(world, owner, pages, most, now)
    return gone, freed, asleep(segment(world, owner))


# --- copies ------------------------------------------------------------------------------------
@triton.jit
def host_replicate(world: World, target: tl.int64, key_hash: tl.int64, key_check: tl.int64, now: tl.int64) -> Any:
    """`replicate`: (status, 1 if the target's poller sleeps)."""
    return replicate(world, target, Key(key_hash, key_check), now)


@triton.jit
def host_begin_replica(world: World, target: tl.int64, key_hash: tl.int64, key_check: tl.int64, now: tl.int64) -> Any:
    """`begin_replica`: (status, the words of Begun, those of Found)."""
    status, begun, found = begin_replica(world, target, Key(key_hash, key_check), now)
    copy = (status, begun.slot, begun.epoch, begun.payload, begun.phase)
    return copy + (found.owner, found.slot, found.epoch, found.payload, found.nbytes)


@triton.jit
def host_end_replica(
    world: World,
    target: tl.int64,
    slot: tl.int64,
    epoch: tl.int64,
    phase: tl.int64,
    owner: tl.int64,
    of_slot: tl.int64,
    of_epoch: tl.int64,
    copied: tl.int64,
) -> Any:
    """`end_replica`: (status, 1 if the target's poller sleeps)."""
    begun = Begun(slot, epoch, word(0), phase)
    return end_replica(world, target, begun, Found(owner, of_slot, of_epoch, word(0), word(0)), copied)


@triton.jit
def host_find_copies(world: World, key_hash: tl.int64, key_check: tl.int64, out: tl.int64) -> Any:
    """`find_copies`: how many."""
    return find_copies(world, Key(key_hash, key_check), out)
