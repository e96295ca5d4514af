"""Control kernels of objects: one CTA, one call of the device function of the same name; see `frame` for the words."""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.kernels.frame import answer, arg
from nanokv.device.protocol.activity import enter, leave
from nanokv.device.protocol.directory import find
from nanokv.device.protocol.get import lookup_described, touch, validate
from nanokv.device.protocol.header import describe
from nanokv.device.protocol.pins import pin, unpin
from nanokv.device.protocol.put import abort, begin, commit, finish
from nanokv.device.protocol.remove import remove, remove_slot
from nanokv.device.protocol.status import OK
from nanokv.device.segment.world_table import segment


@triton.jit
def describe_from(frame: tl.int64, first: tl.int64, world: tl.int64, seg: tl.int64, slot: tl.int64) -> None:
    """Write the descriptor that stands in the eight arguments from `first` on."""
    describe(
        world,
        seg,
        slot,
        arg(frame, first),
        arg(frame, first + 1),
        arg(frame, first + 2),
        arg(frame, first + 3),
        arg(frame, first + 4),
        arg(frame, first + 5),
        arg(frame, first + 6),
        arg(frame, first + 7),
    )


@triton.jit
def begin_object_kernel(frame: tl.int64) -> None:
    """(owner, key_hash, key_check, bytes, flags, now, descriptor[8]) -> (status, header, epoch, payload, phase)."""
    world = arg(frame, 0)
    owner = arg(frame, 1)
    status, slot, epoch, payload, phase = begin(
        world, owner, arg(frame, 2), arg(frame, 3), arg(frame, 4), arg(frame, 5), arg(frame, 6)
    )
    if status == OK:
        describe_from(frame, 7, world, segment(world, owner), slot)
    answer(frame, 0, status)
    answer(frame, 1, slot)
    answer(frame, 2, epoch)
    answer(frame, 3, payload)
    answer(frame, 4, phase)


@triton.jit
def finish_object_kernel(frame: tl.int64) -> None:
    """(owner, header, epoch, phase) -> status."""
    answer(frame, 0, finish(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3), arg(frame, 4)))


@triton.jit
def commit_object_kernel(frame: tl.int64) -> None:
    """(owner, header, epoch) -> status."""
    answer(frame, 0, commit(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3)))


@triton.jit
def abort_object_kernel(frame: tl.int64) -> None:
    """(owner, header, epoch) -> status."""
    answer(frame, 0, abort(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3)))


@triton.jit
def enter_segment_kernel(frame: tl.int64) -> None:
    """(owner) -> phase."""
    world = arg(frame, 0)
    answer(frame, 0, enter(world, segment(world, arg(frame, 1))))


@triton.jit
def leave_segment_kernel(frame: tl.int64) -> None:
    """(owner, phase)."""
    world = arg(frame, 0)
    leave(world, segment(world, arg(frame, 1)), arg(frame, 2))


@triton.jit
def find_key_kernel(frame: tl.int64) -> None:
    """(key_hash, key_check) -> (status, entry)."""
    status, entry = find(arg(frame, 0), arg(frame, 1), arg(frame, 2))
    answer(frame, 0, status)
    answer(frame, 1, entry)


@triton.jit
def lookup_into(frame: tl.int64) -> Any:
    """Look up the key in arguments 1 and 2 and answer with all that is known; returns (status, bytes)."""
    status, owner, slot, epoch, payload, nbytes, kind, d0, d1, d2, d3, d4, d5, d6 = lookup_described(
        arg(frame, 0), arg(frame, 1), arg(frame, 2)
    )
    answer(frame, 0, status)
    answer(frame, 1, owner)
    answer(frame, 2, slot)
    answer(frame, 3, epoch)
    answer(frame, 4, payload)
    answer(frame, 5, nbytes)
    answer(frame, 6, kind)
    answer(frame, 7, d0)
    answer(frame, 8, d1)
    answer(frame, 9, d2)
    answer(frame, 10, d3)
    answer(frame, 11, d4)
    answer(frame, 12, d5)
    answer(frame, 13, d6)
    return status, nbytes


@triton.jit
def lookup_object_kernel(frame: tl.int64) -> None:
    """(key_hash, key_check) -> (status, owner, header, epoch, payload, bytes, descriptor[8])."""
    lookup_into(frame)


@triton.jit
def validate_object_kernel(frame: tl.int64) -> None:
    """(owner, header, epoch) -> status."""
    answer(frame, 0, validate(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3)))


@triton.jit
def touch_object_kernel(frame: tl.int64) -> None:
    """(owner, header, now)."""
    touch(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3))


@triton.jit
def remove_object_kernel(frame: tl.int64) -> None:
    """(key_hash, key_check) -> (status, owner)."""
    status, owner = remove(arg(frame, 0), arg(frame, 1), arg(frame, 2))
    answer(frame, 0, status)
    answer(frame, 1, owner)


@triton.jit
def remove_slot_kernel(frame: tl.int64) -> None:
    """(owner, header, epoch) -> status."""
    answer(frame, 0, remove_slot(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3)))


@triton.jit
def pin_object_kernel(frame: tl.int64) -> None:
    """(owner, header, epoch) -> (status, line)."""
    world = arg(frame, 0)
    status, line = pin(world, segment(world, arg(frame, 1)), arg(frame, 2), arg(frame, 3))
    answer(frame, 0, status)
    answer(frame, 1, line)


@triton.jit
def unpin_object_kernel(frame: tl.int64) -> None:
    """(owner, header, epoch, line) -> status."""
    world = arg(frame, 0)
    answer(frame, 0, unpin(world, segment(world, arg(frame, 1)), arg(frame, 2), arg(frame, 3), arg(frame, 4)))
