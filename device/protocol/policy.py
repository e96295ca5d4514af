"""The eviction policies of a segment: which of the objects that the hand meets goes.

    LIFETIMES   one that was not used for longer than objects of its kind live (`lifetimes`): the default
    CLOCK       the first that was not used since the hand came by; the hand takes the use away from the others
    FIFO        the first: they stand in the order of their puts, nearly

An object of HIGH priority lives longer by LIFETIMES; the others pass it, if they find another one in LOOKS looks.

The search (`search`) is the same for all, and so is who may go at all. To add a policy: a number in
`segment.layout`, a name in `geometry.POLICIES`, and a branch in `goes`; in `spare` if it changes what stays, and in
`note_eviction` if it learns.

Source: Corbato (1968) for CLOCK.

Guarantees: a policy chooses among objects that may go, and nothing else depends on its choice.

Why the orderings suffice: as in `lifetimes`.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import cas64
from nanokv.device.protocol.lifetimes import is_ripe, learn, use_of
from nanokv.device.segment.layout import ACCESS_TIME, CLOCK, FIFO, H_ACCESS, HIGH, LIFETIMES, PRIORITY
from nanokv.device.segment.world_table import World


@triton.jit
def goes(policy: tl.int64, access: tl.int64, ripe: tl.int64, life: tl.int64, first_round: tl.int1) -> Any:
    """True if the hand stops at an object that may go. The other arguments are those of `lifetimes.is_ripe`."""
    first = ((policy == FIFO) | ((policy == CLOCK) & (use_of(access) == 0))) & ((access & PRIORITY) != HIGH)
    return first | ((policy == LIFETIMES) & is_ripe(access, ripe, life, first_round))


@triton.jit
def spare(policy: tl.int64, header: tl.int64, access: tl.int64) -> None:
    """The hand passes an object that may go."""
    if (policy == CLOCK) & (use_of(access) > 0):
        cas64(header + H_ACCESS, access, access & (ACCESS_TIME | PRIORITY), "relaxed")  # relaxed: best effort


@triton.jit
def note_eviction(
    policy: tl.int64, world: World, seg: tl.int64, key_hash: tl.int64, access: tl.int64, ripe: tl.int64, found: tl.int64
) -> None:
    """An object goes: see `lifetimes.learn`."""
    if policy == LIFETIMES:
        learn(world, seg, key_hash, access, ripe, found)
