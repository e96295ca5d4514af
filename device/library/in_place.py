"""Reading in place: look up, validate, pin; with checked arguments."""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.library.arguments import is_copy, is_object, is_pin_line, is_table, is_time, key_of
from nanokv.device.library.launch import check_launch
from nanokv.device.memory.triton import word
from nanokv.device.protocol.get import lookup as protocol_lookup
from nanokv.device.protocol.get import validate as protocol_validate
from nanokv.device.protocol.get import verify as protocol_verify
from nanokv.device.protocol.host_calls import host_lookup
from nanokv.device.protocol.lease import touch as protocol_touch
from nanokv.device.protocol.pins import pin as protocol_pin
from nanokv.device.protocol.pins import unpin as protocol_unpin
from nanokv.device.protocol.status import INVALID, OK
from nanokv.device.protocol.structs import Found
from nanokv.device.segment.world_table import open_world


@triton.jit
def lookup(world: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """Find a READY object. Returns (status, owner, slot, epoch, payload offset, bytes)."""
    check_launch()
    status = word(INVALID)
    found = Found(word(0), word(0), word(0), word(0), word(0))
    if is_table(world):
        status, found = protocol_lookup(open_world(world), key_of(key_hash, key_check))
    return status, found.owner, found.slot, found.epoch, found.payload, found.nbytes


@triton.jit
def lookup_described(world: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """`lookup`, and the descriptor. Returns (status, owner, slot, epoch, payload, bytes, kind, seven dimensions)."""
    check_launch()
    zero = word(0)
    status, owner, slot, epoch, payload, nbytes = word(INVALID), zero, zero, zero, zero, zero
    kind, d0, d1, d2, d3, d4, d5, d6 = zero, zero, zero, zero, zero, zero, zero, zero
    if is_table(world):
        status, owner, slot, epoch, payload, nbytes, kind, d0, d1, d2, d3, d4, d5, d6 = host_lookup(
            open_world(world), key_hash, key_check
        )
    return status, owner, slot, epoch, payload, nbytes, kind, d0, d1, d2, d3, d4, d5, d6


@triton.jit
def validate(world: tl.int64, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """After a copy: OK if the object was there all the while, else TORN."""
    check_launch()
    status = word(INVALID)
    if is_object(world, owner, slot):
        status = protocol_validate(open_world(world), owner, slot, epoch)
    return status


@triton.jit
def verify(
    world: tl.int64,
    owner: tl.int64,
    slot: tl.int64,
    epoch: tl.int64,
    key_hash: tl.int64,
    key_check: tl.int64,
    copy: tl.int64,
    nbytes: tl.int64,
) -> Any:
    """After a copy to the address `copy` (or in place, for a pinned object): OK, TORN or CORRUPT."""
    check_launch()
    status = word(INVALID)
    if is_object(world, owner, slot) & is_copy(world, copy, nbytes):
        status = protocol_verify(
            open_world(world),
            Found(word(owner), word(slot), word(epoch), word(0), word(nbytes)),
            key_of(key_hash, key_check),
            copy,
        )
    return status


@triton.jit
def touch(world: tl.int64, owner: tl.int64, slot: tl.int64, epoch: tl.int64, now: tl.int64) -> Any:
    """Note that an object was read. Returns OK or INVALID."""
    check_launch()
    status = word(INVALID)
    if is_object(world, owner, slot) & is_time(now):
        protocol_touch(open_world(world), owner, slot, epoch, now)
        status = word(OK)
    return status


@triton.jit
def pin(world: tl.int64, owner: tl.int64, slot: tl.int64, epoch: tl.int64) -> Any:
    """Hold a READY object in place. Returns (status, line of the ledger)."""
    check_launch()
    status = word(INVALID)
    line = word(-1)
    if is_object(world, owner, slot):
        status, line = protocol_pin(open_world(world), owner, slot, epoch)
    return status, line


@triton.jit
def unpin(world: tl.int64, owner: tl.int64, slot: tl.int64, epoch: tl.int64, line: tl.int64) -> Any:
    """Give a pin back: OK, or MISS if this line of the ledger does not hold it."""
    check_launch()
    status = word(INVALID)
    if is_object(world, owner, slot) & is_pin_line(world, line):
        status = protocol_unpin(open_world(world), owner, slot, epoch, line)
    return status
