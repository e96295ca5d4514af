"""put, get and plans as a Python caller needs them: few words per call, for each word takes as long as an atomic.

The descriptor is a table whose address the caller passes, the time is taken inside, and the answer is one word.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, word
from nanokv.device.native.ahead import foresee_key, foresee_put
from nanokv.device.native.clock import now_ns
from nanokv.device.protocol.activity import leave
from nanokv.device.protocol.get import get_described
from nanokv.device.protocol.header import load_descriptor, raw_bytes
from nanokv.device.protocol.put import begin_described, put
from nanokv.device.protocol.status import INVALID, OK
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.host_records import (
    SLEEPS,
    WHAT_BYTES,
    WHAT_FORMAT,
)
from nanokv.device.segment.layout import FLAG_PLAN
from nanokv.device.segment.world_table import World, segment


@triton.jit
def put_now(world: World, owner: tl.int64, key: Key, src: tl.int64, what: tl.int64) -> Any:
    """`put` of the bytes at `src`, of the size, dtype and shape at `what` (a WHAT record): the status, and SLEEPS."""
    nbytes = load64(what + WHAT_BYTES, "relaxed")
    foresee_key(world, key, True)
    foresee_put(world, owner, key.hash, nbytes)
    status, sleeps = put(world, owner, key, src, nbytes, now_ns(), load_descriptor(what + WHAT_FORMAT))
    return status + sleeps * SLEEPS


@triton.jit
def is_in_segment(world: World, address: tl.int64, nbytes: tl.int64) -> Any:
    """Whether some of these bytes of the caller lie in a segment of the world: to write there would change objects."""
    inside = nbytes != nbytes
    rank = word(0)
    while rank < world.world_size:
        base = segment(world, rank)
        inside = inside | ((address < base + world.heap_limit) & (address + nbytes > base))
        rank += 1
    return inside & (nbytes > 0)


@triton.jit
def get_now(world: World, key: Key, dst: tl.int64, what: tl.int64) -> Any:
    """`get_described` to `dst`, of the size, dtype and shape at `what` (a WHAT record); INVALID within a segment."""
    nbytes = load64(what + WHAT_BYTES, "relaxed")
    status = word(INVALID)
    if not is_in_segment(world, dst, nbytes):
        status = get_described(world, key, dst, nbytes, now_ns(), load_descriptor(what + WHAT_FORMAT))
    return status


@triton.jit
def plan_now(world: World, owner: tl.int64, key: Key, nbytes: tl.int64) -> Any:
    """`begin_described` of raw bytes that a kernel will write, and `leave`: no activity word counts that kernel.

    Returns (status, header slot, epoch, payload offset).
    """
    status, begun = begin_described(world, owner, key, nbytes, FLAG_PLAN, now_ns(), raw_bytes())
    if status == OK:
        leave(world, segment(world, owner), begun.phase)
    return status, begun.slot, begun.epoch, begun.payload
