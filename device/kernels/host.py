"""Control kernels of the owner's host: the poller and the sweeper (and v1's master). One CTA, one device function each.

Arrays that go in or out lie in device memory of the launching rank; a kernel gets their addresses.
"""

import triton
import triton.language as tl

from nanokv.device.kernels.frame import answer, answered, arg
from nanokv.device.kernels.objects import describe_from
from nanokv.device.memory.triton import word
from nanokv.device.protocol.activity import in_flight
from nanokv.device.protocol.extent import N_CLASSES
from nanokv.device.protocol.pins import recount
from nanokv.device.protocol.reclaim import (
    adopt_slot,
    announce_slot,
    clear_intent,
    detach_class,
    detach_rest,
    drop_pin,
    give_up,
    install,
    joining,
    kill_slot,
    push_extents,
    release,
    snapshots,
    state_of,
    walk_pages,
    walk_slots,
)
from nanokv.device.protocol.ring import drain
from nanokv.device.segment.layout import HEADER_BYTES, WORD_BYTES
from nanokv.device.segment.world_table import segment


@triton.jit
def drain_ring_kernel(frame: tl.int64) -> None:
    """(owner, tail, hints, room, ...) -> (taken, head, hole)."""
    world = arg(frame, 0)
    taken, head, hole = drain(world, segment(world, arg(frame, 1)), arg(frame, 2), arg(frame, 3), arg(frame, 4))
    answer(frame, 0, taken)
    answer(frame, 1, head)
    answer(frame, 2, hole)


@triton.jit
def copy_snapshots_kernel(frame: tl.int64) -> None:
    """(owner, hints, count, records, good), by any number of CTAs."""
    some_snapshots(frame, arg(frame, 2), arg(frame, 3), arg(frame, 4), arg(frame, 5))


@triton.jit
def copy_drained_kernel(frame: tl.int64) -> None:
    """(owner, tail, hints, room, records, good) after `drain_ring_kernel` on the same frame: of what that took."""
    some_snapshots(frame, arg(frame, 3), answered(frame, 0), arg(frame, 5), arg(frame, 6))


@triton.jit
def some_snapshots(frame: tl.int64, hints: tl.int64, count: tl.int64, records: tl.int64, good: tl.int64) -> None:
    """This CTA's run of snapshots."""
    ctas = tl.num_programs(0).to(tl.int64)
    me = tl.program_id(0).to(tl.int64)
    first = me * count // ctas
    n = (me + 1) * count // ctas - first
    at = first * WORD_BYTES
    snapshots(arg(frame, 0), arg(frame, 1), hints + at, n, records + first * HEADER_BYTES, good + at)


@triton.jit
def read_in_flight_kernel(frame: tl.int64) -> None:
    """(owner, rank, phase) -> count."""
    seg = segment(arg(frame, 0), arg(frame, 1))
    answer(frame, 0, in_flight(seg, arg(frame, 2), arg(frame, 3)))


@triton.jit
def give_up_slot_kernel(frame: tl.int64) -> None:
    """(owner, header, epoch, producer) -> 1 if it was given up."""
    answer(frame, 0, give_up(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3), arg(frame, 4)))


@triton.jit
def release_slot_kernel(frame: tl.int64) -> None:
    """(owner, header, epoch) -> 1 if it was freed."""
    answer(frame, 0, release(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3)))


@triton.jit
def adopt_slot_kernel(frame: tl.int64) -> None:
    """(owner, header)."""
    adopt_slot(arg(frame, 0), arg(frame, 1), arg(frame, 2))


@triton.jit
def count_joining_kernel(frame: tl.int64) -> None:
    """(owner, change) -> who was there."""
    answer(frame, 0, joining(arg(frame, 0), segment(arg(frame, 0), arg(frame, 1)), arg(frame, 2)))


@triton.jit
def detach_class_kernel(frame: tl.int64) -> None:
    """(owner, size class, firsts)."""
    detach_class(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3))


@triton.jit
def detach_rest_kernel(frame: tl.int64) -> None:
    """(owner) -> first page or -1."""
    answer(frame, 0, detach_rest(arg(frame, 0), arg(frame, 1)))


@triton.jit
def push_extents_kernel(frame: tl.int64) -> None:
    """(owner, pages, classes, count)."""
    push_extents(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3), arg(frame, 4))


@triton.jit
def walk_pages_kernel(frame: tl.int64) -> None:
    """(owner, count, marks): the free lists of all size classes."""
    for size_class in range(0, N_CLASSES):
        walk_pages(arg(frame, 0), arg(frame, 1), word(size_class), arg(frame, 2), arg(frame, 3))


@triton.jit
def walk_slots_kernel(frame: tl.int64) -> None:
    """(owner, count, marks)."""
    walk_slots(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3))


@triton.jit
def drop_pin_kernel(frame: tl.int64) -> None:
    """(owner, line, word, epoch) -> 1 if it was dropped."""
    answer(frame, 0, drop_pin(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3), arg(frame, 4)))


@triton.jit
def clear_intent_kernel(frame: tl.int64) -> None:
    """(owner, line, word)."""
    clear_intent(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3))


@triton.jit
def recount_pins_kernel(frame: tl.int64) -> None:
    """(owner, slot, dead) -> 1 if the pins are as many as the HELD lines now."""
    seg = segment(arg(frame, 0), arg(frame, 1))
    answer(frame, 0, recount(arg(frame, 0), seg, arg(frame, 2), arg(frame, 3)))


# --- v1 ---------------------------------------------------------------------------------------
@triton.jit
def install_header_kernel(frame: tl.int64) -> None:
    """(owner, header, key_hash, key_check, payload, bytes, flags, now, descriptor[8]) -> epoch."""
    world = arg(frame, 0)
    owner = arg(frame, 1)
    slot = arg(frame, 2)
    describe_from(frame, 9, world, segment(world, owner), slot)
    epoch = install(
        world, owner, slot, arg(frame, 3), arg(frame, 4), arg(frame, 5), arg(frame, 6), arg(frame, 7), arg(frame, 8)
    )
    answer(frame, 0, epoch)


@triton.jit
def read_state_kernel(frame: tl.int64) -> None:
    """(owner, header) -> STATE word."""
    answer(frame, 0, state_of(arg(frame, 0), arg(frame, 1), arg(frame, 2)))


@triton.jit
def kill_slot_kernel(frame: tl.int64) -> None:
    """(owner, header, state, epoch) -> the STATE word that was there."""
    answer(frame, 0, kill_slot(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3), arg(frame, 4)))


@triton.jit
def announce_slot_kernel(frame: tl.int64) -> None:
    """(owner, kind, header, epoch)."""
    announce_slot(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3), arg(frame, 4))
