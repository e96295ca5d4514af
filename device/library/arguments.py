"""Whether a caller's arguments can be right: addresses, ranks, slots, sizes.

A wrong one of these is a wild access, or a lost object. A wrong epoch or key is none: it finds nothing. No check reads
shared memory, only the world table. What cannot be checked: that an address is the caller's, and that a slot is the one
which `begin` or `lookup` returned.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import word
from nanokv.device.protocol.structs import Descriptor, Key
from nanokv.device.segment.layout import FLAG_PLAN
from nanokv.device.segment.world_table import is_inside, is_rank, open_world


@triton.jit
def is_table(address: tl.int64) -> Any:
    """True if a table of words can lie at an address: it is not 0, and a multiple of 8."""
    return (word(address) != 0) & ((word(address) & 7) == 0)


@triton.jit
def is_memory(address: tl.int64, nbytes: tl.int64) -> Any:
    """True if bytes can lie at an address: it is not 0, unless there are none."""
    return (word(nbytes) == 0) | ((word(nbytes) > 0) & (word(address) != 0))


@triton.jit
def is_segment(world: tl.int64, rank: tl.int64) -> Any:
    """True if a rank has a segment."""
    right = is_table(world)
    if right:
        right = is_rank(open_world(world), word(rank))
    return right


@triton.jit
def is_object(world: tl.int64, owner: tl.int64, slot: tl.int64) -> Any:
    """True if a rank has a segment with this header slot."""
    right = is_segment(world, owner) & (word(slot) >= 0)
    if right:
        right = word(slot) < open_world(world).hdr_count
    return right


@triton.jit
def is_place(world: tl.int64, owner: tl.int64, slot: tl.int64, payload: tl.int64, nbytes: tl.int64) -> Any:
    """`is_object`, and the bytes at the offset `payload` lie in the arena."""
    right = is_object(world, owner, slot)
    if right:
        right = is_inside(open_world(world), word(payload), word(nbytes))
    return right


@triton.jit
def is_copy(world: tl.int64, address: tl.int64, nbytes: tl.int64) -> Any:
    """True if `address` can be that of a copy of `nbytes` of an object: a segment has room for so many."""
    right = is_table(world) & is_memory(address, nbytes)
    if right:
        opened = open_world(world)
        right = is_inside(opened, opened.heap_base, word(nbytes))
    return right


@triton.jit
def is_pin_line(world: tl.int64, line: tl.int64) -> Any:
    """True if the pin ledger has this line."""
    right = is_table(world) & (word(line) >= 0)
    if right:
        right = word(line) < open_world(world).pin_slots
    return right


@triton.jit
def is_phase(phase: tl.int64) -> Any:
    """True for the two grace phases that `begin` returns."""
    return (word(phase) & ~1) == 0


@triton.jit
def is_flag(flags: tl.int64) -> Any:
    """True for the flags that a producer may give an object."""
    return (word(flags) & ~FLAG_PLAN) == 0


@triton.jit
def is_time(now: tl.int64) -> Any:
    """True for a time in ns: a negative one would be a lease."""
    return word(now) >= 0


@triton.jit
def key_of(key_hash: tl.int64, key_check: tl.int64) -> Any:
    """A key as the protocol takes it; callers may give plain integers."""
    return Key(word(key_hash), word(key_check))


@triton.jit
def descriptor_of(
    kind: tl.int64,
    d0: tl.int64,
    d1: tl.int64,
    d2: tl.int64,
    d3: tl.int64,
    d4: tl.int64,
    d5: tl.int64,
    d6: tl.int64,
) -> Any:
    """A descriptor as the protocol takes it; callers may give plain integers."""
    return Descriptor(word(kind), word(d0), word(d1), word(d2), word(d3), word(d4), word(d5), word(d6))
