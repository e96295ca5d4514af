"""The operations in flight in a segment, which the owner's host counts to wait for a grace period.

An operation that takes or gives pages or slots, or writes payload, counts itself in one of two words of its rank,
chosen by `grace_phase`; the host flips the phase and waits until the words of the old phase fall to 0. The words count
operations in flight. Counts of begun and of ended operations would not do: with several threads per rank they do not
tell *which* operations ended, and in one word they overflow into each other.

Source: the two counters of sleepable RCU (McKenney 2006), one pair per rank.

Guarantees: when the host has seen, after some moment, both words of a rank at 0 once (flipping in between), every
operation that the rank was running at that moment has ended. A rank that has ended for good needs no words: its
provider says so.

Why the orderings suffice: `enter`, `leave` and the host's look are read-modify-writes of one word. `enter` acquires, so
that nothing of the operation comes before it: if the look does not see the operation, the look came first, and the
operation sees everything that the host did before. `leave` releases: if the look sees that the operation is gone, the
host sees everything that it did.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, load64
from nanokv.device.segment.layout import GRACE_PHASE
from nanokv.device.segment.world_table import World, activity_at, segment


@triton.jit
def enter(world: World, seg: tl.int64) -> Any:
    """Count an operation in; returns the phase, for `leave`."""
    phase = load64(seg + GRACE_PHASE, "relaxed") & 1  # relaxed: an old phase will do, the host waits for both
    # acquire: nothing of the operation comes before it (kept)
    add64(activity_at(seg, world.rank, phase), 1, "acquire")
    return phase


@triton.jit
def leave(world: World, seg: tl.int64, phase: tl.int64) -> None:
    """Count an operation out."""
    # release: the host that sees it gone sees everything that it did (scenario polled)
    add64(activity_at(seg, world.rank, phase), -1, "release")


@triton.jit
def in_flight(world: World, owner: tl.int64, rank: tl.int64, phase: tl.int64) -> Any:
    """How many operations of a rank are in flight in a segment, for the host's wait."""
    # acquire: all that the operations did that are gone (scenario polled); release: the host's looks before it (kept)
    return add64(activity_at(segment(world, owner), rank, phase), 0, "acq_rel")
