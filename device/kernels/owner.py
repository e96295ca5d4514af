"""Control kernels of the owner's host: the poller and the sweeper (and v1's master). One CTA, one device function each.

Arrays that go in or out lie in device memory of the launching rank; a kernel gets their addresses.
"""

import triton

from nanokv.device.activity import in_flight
from nanokv.device.kernels.frame import answer, arg
from nanokv.device.kernels.objects import describe_from
from nanokv.device.layout import SIZE_CLASSES
from nanokv.device.memory import Word
from nanokv.device.reclaim import (
    adopt_slot,
    announce_slot,
    clear_intent,
    detach_class,
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
from nanokv.device.ring import drain
from nanokv.device.world import segment


@triton.jit
def _drain_ring_kernel(frame: Word) -> None:
    """(owner, tail, out, room) -> (taken, head, hole)."""
    world = arg(frame, 0)
    taken, head, hole = drain(world, segment(world, arg(frame, 1)), arg(frame, 2), arg(frame, 3), arg(frame, 4))
    answer(frame, 0, taken)
    answer(frame, 1, head)
    answer(frame, 2, hole)


@triton.jit
def _copy_snapshots_kernel(frame: Word) -> None:
    """(owner, hints, count, records, good)."""
    snapshots(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3), arg(frame, 4), arg(frame, 5))


@triton.jit
def _read_in_flight_kernel(frame: Word) -> None:
    """(owner, rank, phase) -> count."""
    seg = segment(arg(frame, 0), arg(frame, 1))
    answer(frame, 0, in_flight(seg, arg(frame, 2), arg(frame, 3)))


@triton.jit
def _give_up_slot_kernel(frame: Word) -> None:
    """(owner, header, epoch) -> 1 if it was given up."""
    answer(frame, 0, give_up(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3)))


@triton.jit
def _release_slot_kernel(frame: Word) -> None:
    """(owner, header, epoch) -> 1 if it was freed."""
    answer(frame, 0, release(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3)))


@triton.jit
def _adopt_slot_kernel(frame: Word) -> None:
    """(owner, header)."""
    adopt_slot(arg(frame, 0), arg(frame, 1), arg(frame, 2))


@triton.jit
def _count_joining_kernel(frame: Word) -> None:
    """(owner, change) -> how many there were."""
    answer(frame, 0, joining(segment(arg(frame, 0), arg(frame, 1)), arg(frame, 2)))


@triton.jit
def _detach_class_kernel(frame: Word) -> None:
    """(owner, size class) -> first page or -1."""
    answer(frame, 0, detach_class(arg(frame, 0), arg(frame, 1), arg(frame, 2)))


@triton.jit
def _push_extents_kernel(frame: Word) -> None:
    """(owner, pages, classes, count)."""
    push_extents(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3), arg(frame, 4))


@triton.jit
def _walk_pages_kernel(frame: Word) -> None:
    """(owner, count, marks): the free lists of all size classes."""
    for size_class in range(0, SIZE_CLASSES):
        walk_pages(arg(frame, 0), arg(frame, 1), size_class, arg(frame, 2), arg(frame, 3))


@triton.jit
def _walk_slots_kernel(frame: Word) -> None:
    """(owner, count, marks)."""
    walk_slots(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3))


@triton.jit
def _drop_pin_kernel(frame: Word) -> None:
    """(owner, line, word, epoch) -> 1 if it was dropped."""
    answer(frame, 0, drop_pin(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3), arg(frame, 4)))


@triton.jit
def _clear_intent_kernel(frame: Word) -> None:
    """(owner, line, word)."""
    clear_intent(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3))


# --- v1 ---------------------------------------------------------------------------------------
@triton.jit
def _install_header_kernel(frame: Word) -> None:
    """(owner, header, key_hash, key_check, payload, bytes, flags, now, descriptor[8]) -> epoch."""
    world = arg(frame, 0)
    owner = arg(frame, 1)
    index = arg(frame, 2)
    describe_from(frame, 9, world, segment(world, owner), index)
    epoch = install(
        world, owner, index, arg(frame, 3), arg(frame, 4), arg(frame, 5), arg(frame, 6), arg(frame, 7), arg(frame, 8)
    )
    answer(frame, 0, epoch)


@triton.jit
def _read_state_kernel(frame: Word) -> None:
    """(owner, header) -> STATE word."""
    answer(frame, 0, state_of(arg(frame, 0), arg(frame, 1), arg(frame, 2)))


@triton.jit
def _kill_slot_kernel(frame: Word) -> None:
    """(owner, header, state, epoch) -> the STATE word that was there."""
    answer(frame, 0, kill_slot(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3), arg(frame, 4)))


@triton.jit
def _announce_slot_kernel(frame: Word) -> None:
    """(owner, kind, header, epoch)."""
    announce_slot(arg(frame, 0), arg(frame, 1), arg(frame, 2), arg(frame, 3), arg(frame, 4))
