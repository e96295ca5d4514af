"""Waiting for an object without Python between the wake-up and the look.

Guarantees
- No wake-up is lost: the waiter sets the bell's word, then `ann_asleep` of every segment, and looks once more before it
  sleeps. A producer announces before it loads `ann_asleep` (`nanokv.heap.futex`).
- A wait ends at its time, and a stream of hints about other objects takes no core: after each the waiter rests.

Why the orderings suffice: `set_flag` is a full fence, and so is a producer's read-modify-write on the ring.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import select, word
from nanokv.device.native.clock import monotonic_ns, nap
from nanokv.device.native.futex import relax, set_flag, sleep_while_set
from nanokv.device.protocol.directory import find
from nanokv.device.protocol.status import OK
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.layout import ANN_ASLEEP
from nanokv.device.segment.world_table import World, segment

FRUITLESS = tl.constexpr(100_000)  #: ns of rest after a hint about another object


@triton.jit
def ask_for_a_ring(world: World, bell: tl.int64) -> None:
    """Let the next producer, in any segment, clear the bell's word and wake who sleeps on it."""
    set_flag(bell)
    rank = word(0)
    while rank < world.world_size:
        set_flag(segment(world, rank) + ANN_ASLEEP)
        rank += 1


@triton.jit
def sleep_for_hint(world: World, key: Key, bell: tl.int64, number: tl.int64, end: tl.int64) -> Any:
    """Sleep until a hint is left in any segment, unless the object is READY. Returns its status then."""
    ask_for_a_ring(world, bell)
    status, _ = find(world, key)
    left = end - monotonic_ns()
    if (status != OK) & (left > 0):
        sleep_while_set(number, bell, left)
        status, _ = find(world, key)
        left = end - monotonic_ns()
        if (status != OK) & (left > 0):
            nap(select(left < FRUITLESS, left, word(FRUITLESS)))
            status, _ = find(world, key)
    return status


@triton.jit
def await_ready(world: World, key: Key, bell: tl.int64, number: tl.int64, spin: tl.int64, time: tl.int64) -> Any:
    """Wait until an object is READY: its status, which is another one after `time` ns.

    Args:
        bell: the address of the world's `waiting` word.
        number: of the system call futex.
        spin: ns of looking before the first sleep.
        time: ns, less than a second.
    """
    status, _ = find(world, key)
    now = monotonic_ns()
    sleeps, end = now + spin, now + time
    while (status != OK) & (now < end):
        if now < sleeps:
            relax()
            status, _ = find(world, key)
        else:
            status = sleep_for_hint(world, key, bell, number, end)
        now = monotonic_ns()
    return status
