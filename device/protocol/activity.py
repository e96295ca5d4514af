"""Who is at work in a segment: what the host needs to wait for a grace period.

Source: the two counters of sleepable RCU (McKenney 2006), one pair a rank. An operation that takes or gives pages or
slots, or writes payload, counts itself in one of two words, chosen by `grace_phase`; the host flips the phase and
waits for the words of the old phase to fall to 0.

Guarantees: when the host has seen, after some moment, both words of a rank at 0 once (flipping in between), every
operation that the rank was running at that moment has ended. A rank that ended for good needs no words: its provider
says so.

Why the orderings suffice: `enter`, `leave` and the host's look are read-modify-writes of one word. `enter` acquires, so
that nothing of the operation comes before it: if the look does not see the operation, the look came first, and the
operation sees all that the host did before it. `leave` releases: if the look sees the operation gone, the host sees
all that it did. A count of operations in flight is kept rather than counts of begun
and ended ones: with several threads a rank those two do not tell *which* operations ended, and they overflow into
each other.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, load64, table64
from nanokv.device.segment.layout import GRACE_PHASE
from nanokv.device.segment.world_table import W_RANK, activity_at, segment


@triton.jit
def enter(world: tl.int64, seg: tl.int64) -> Any:
    """Count an operation in; returns the phase to give to `leave`."""
    phase = load64(seg + GRACE_PHASE, "relaxed") & 1
    add64(activity_at(seg, table64(world + W_RANK), phase), 1, "acquire")
    return phase


@triton.jit
def leave(world: tl.int64, seg: tl.int64, phase: tl.int64) -> None:
    """Count an operation out."""
    add64(activity_at(seg, table64(world + W_RANK), phase), -1, "release")


@triton.jit
def in_flight(world: tl.int64, owner: tl.int64, rank: tl.int64, phase: tl.int64) -> Any:
    """How many operations of a rank run in a segment, for the host's wait."""
    return add64(activity_at(segment(world, owner), rank, phase), 0, "acq_rel")
