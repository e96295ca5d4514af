"""Copies the headers that drained hints are about, by many CTAs."""

import triton
import triton.language as tl

from nanokv.device.kernels.frame import answered, arg, world_of
from nanokv.device.protocol.reclaim import snapshots
from nanokv.device.segment.layout import HEADER_BYTES, WORD_BYTES


@triton.jit
def copy_drained_kernel(frame: tl.int64) -> None:
    """(owner, tail, hints, room, records, good), after `ring.drain` on the same frame: `snapshots` of its hints.

    Each CTA takes a run of them.
    """
    count = answered(frame, 0)
    ctas = tl.num_programs(0).to(tl.int64)
    me = tl.program_id(0).to(tl.int64)
    first = me * count // ctas
    n = (me + 1) * count // ctas - first
    at = first * WORD_BYTES
    hints, records, good = arg(frame, 3), arg(frame, 5), arg(frame, 6)
    snapshots(world_of(frame), arg(frame, 1), hints + at, n, records + first * HEADER_BYTES, good + at)
