"""The steps of a put by one CTA that computes its payload in place, with checked arguments."""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.library.arguments import (
    descriptor_of,
    is_flag,
    is_object,
    is_phase,
    is_place,
    is_segment,
    is_table,
    is_time,
    key_of,
)
from nanokv.device.library.launch import check_launch
from nanokv.device.memory.triton import word
from nanokv.device.protocol.activity import leave as protocol_leave
from nanokv.device.protocol.checksum import wanted as protocol_wanted
from nanokv.device.protocol.header import describe as protocol_describe
from nanokv.device.protocol.lease import lease as protocol_lease
from nanokv.device.protocol.put import abort as protocol_abort
from nanokv.device.protocol.put import begin as protocol_begin
from nanokv.device.protocol.put import finish as protocol_finish
from nanokv.device.protocol.put import seal_payload as protocol_seal_payload
from nanokv.device.protocol.status import INVALID, OK
from nanokv.device.protocol.structs import Begun
from nanokv.device.segment.world_table import open_world, segment


@triton.jit
def begin(
    world: tl.int64,
    owner: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
    nbytes: tl.int64,
    flags: tl.int64,
    now: tl.int64,
) -> Any:
    """Begin an object of `nbytes` in the segment of `owner`. Returns (status, slot, epoch, payload offset, phase)."""
    check_launch()
    status = word(INVALID)
    begun = Begun(word(-1), word(0), word(0), word(0))
    if is_segment(world, owner) & (word(nbytes) >= 0) & is_flag(flags) & is_time(now):
        status, begun = protocol_begin(open_world(world), owner, key_of(key_hash, key_check), nbytes, flags, now)
    return status, begun.slot, begun.epoch, begun.payload, begun.phase


@triton.jit
def describe(
    world: tl.int64,
    owner: tl.int64,
    slot: tl.int64,
    kind: tl.int64,
    d0: tl.int64,
    d1: tl.int64,
    d2: tl.int64,
    d3: tl.int64,
    d4: tl.int64,
    d5: tl.int64,
    d6: tl.int64,
) -> Any:
    """Write the descriptor of an object that is WRITING. Returns OK or INVALID."""
    check_launch()
    status = word(INVALID)
    if is_object(world, owner, slot):
        opened = open_world(world)
        protocol_describe(
            opened,
            segment(opened, owner),
            slot,
            descriptor_of(kind, d0, d1, d2, d3, d4, d5, d6),
        )
        status = word(OK)
    return status


@triton.jit
def lease(world: tl.int64, owner: tl.int64, slot: tl.int64, terms: tl.int64) -> Any:
    """Give an object that is WRITING its terms: a lease until a time in ns, or 0; plus a priority. OK or INVALID."""
    check_launch()
    status = word(INVALID)
    if is_object(world, owner, slot) & is_time(terms):
        protocol_lease(open_world(world), owner, slot, terms)
        status = word(OK)
    return status


@triton.jit
def wanted(world: tl.int64) -> Any:
    """True if objects of this world have checksums; False if there is no world."""
    check_launch()
    right = is_table(world)
    if right:
        right = protocol_wanted(open_world(world))
    return right


@triton.jit
def seal_payload(
    world: tl.int64,
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
) -> Any:
    """Give an object that is WRITING a checksum over the bytes in its pages, before `finish`. Returns OK or INVALID."""
    check_launch()
    status = word(INVALID)
    if is_place(world, owner, slot, payload, nbytes):
        protocol_seal_payload(
            open_world(world),
            owner,
            key_of(key_hash, key_check),
            Begun(word(slot), word(epoch), word(payload), word(0)),
            nbytes,
            descriptor_of(kind, d0, d1, d2, d3, d4, d5, d6),
        )
        status = word(OK)
    return status


@triton.jit
def finish(world: tl.int64, owner: tl.int64, slot: tl.int64, epoch: tl.int64, phase: tl.int64) -> Any:
    """Commit an object that `begin` began, and count the operation out. Returns the status."""
    check_launch()
    status = word(INVALID)
    if is_object(world, owner, slot) & is_phase(phase):
        status = protocol_finish(open_world(world), owner, Begun(word(slot), word(epoch), word(0), word(phase)))
    return status


@triton.jit
def abort(world: tl.int64, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """Give up an object that is WRITING, and free it, after the last store to its pages. Returns the status."""
    check_launch()
    status = word(INVALID)
    if is_object(world, owner, slot):
        status = protocol_abort(open_world(world), owner, slot, epoch)
    return status


@triton.jit
def leave(world: tl.int64, owner: tl.int64, phase: tl.int64) -> Any:
    """Count an operation out that ends with `abort`. Returns OK or INVALID."""
    check_launch()
    status = word(INVALID)
    if is_segment(world, owner) & is_phase(phase):
        opened = open_world(world)
        protocol_leave(opened, segment(opened, owner), phase)
        status = word(OK)
    return status
