"""One CTA, one object: put, get and remove as a whole, with checked arguments."""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.library.arguments import descriptor_of, is_memory, is_segment, is_table, is_time, key_of
from nanokv.device.library.launch import check_launch
from nanokv.device.memory.triton import word
from nanokv.device.protocol.get import get as protocol_get
from nanokv.device.protocol.put import put as protocol_put
from nanokv.device.protocol.remove import remove as protocol_remove
from nanokv.device.protocol.status import INVALID
from nanokv.device.segment.world_table import open_world


@triton.jit
def put(
    world: tl.int64,
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
    """A whole put of `nbytes` from the address `src`: begin, describe, copy, finish.

    Returns (status, 1 if the owner's poller sleeps and must be woken).
    """
    check_launch()
    status = word(INVALID)
    sleeps = word(0)
    if is_segment(world, owner) & is_memory(src, nbytes) & is_time(now):
        status, sleeps = protocol_put(
            open_world(world),
            owner,
            key_of(key_hash, key_check),
            src,
            nbytes,
            now,
            descriptor_of(kind, d0, d1, d2, d3, d4, d5, d6),
        )
    return status, sleeps


@triton.jit
def get(world: tl.int64, key_hash: tl.int64, key_check: tl.int64, dst: tl.int64, room: tl.int64, now: tl.int64) -> Any:
    """A whole get of an object of exactly `room` bytes to `dst`. Returns the status."""
    check_launch()
    status = word(INVALID)
    if is_table(world) & is_memory(dst, room) & is_time(now):
        status = protocol_get(open_world(world), key_of(key_hash, key_check), dst, room, now)
    return status


@triton.jit
def remove(world: tl.int64, key_hash: tl.int64, key_check: tl.int64) -> Any:
    """Remove a READY object. Returns (status, owner)."""
    check_launch()
    status = word(INVALID)
    owner = word(0)
    if is_table(world):
        status, owner = protocol_remove(open_world(world), key_of(key_hash, key_check))
    return status, owner
