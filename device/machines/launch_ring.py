"""Drains a ring whose segment lies in a GPU's memory.

Mostly there is no new hint. To see that, the host copies one word on a stream of its own: it launches no kernel, and
does not wait for the engine's. Otherwise two kernels take the hints and copy the headers that they are about, and one
copy brings both to the host, which waits once.
"""

import numpy as np
import torch

from nanokv.device.kernels.ring import copy_drained_kernel
from nanokv.device.machines.lane import STAGING_BYTES, Lane, Launch, calling
from nanokv.device.machines.records import Drained, Words
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import HEAP_CTL, OBJ_HEADER, WORD

HEADERS_A_CTA = 8  #: headers that one CTA copies, one after the other
ROW = 2 + OBJ_HEADER.size // WORD  #: words per hint: the hint, whether its header is good, and the header


class RingReader:
    """Drains rings for one machine. For one thread at a time, the owner of the ring's tail.

    Args:
        segments: every rank's segment, uint8 [segment_bytes].
        lane: runs the copies and kernels.
    """

    def __init__(self, geometry: Geometry, segments: list[torch.Tensor], lane: Lane) -> None:
        at = HEAP_CTL.offsets["ann_head"]
        self._heads = [segment[at : at + WORD].view(torch.int64) for segment in segments]
        self._capacity = geometry.ann_capacity
        self._lane = lane
        self._rows = lane.zeros(0)

    def load(self) -> None:
        """Compile, load and allocate what `drain` needs, so that it does not when it is in a hurry."""
        self._lane.load(calling("drain"), Launch(copy_drained_kernel))
        self._rows = self._lane.zeros(min(self._capacity * ROW, STAGING_BYTES // WORD))

    def drain(self, owner: int, tail: int, room: int) -> Drained:
        """Take at most `room` hints from the ticket `tail` on, with their headers: see `Machine.drain`."""
        head = int(self._lane.fetch(self._heads[owner])[0])
        if head == tail:
            return _drained(np.zeros(0, np.int64), 0, 0, head, head)
        asked = min(room, self._capacity)
        asked = min(head - tail, asked) if head > tail else asked  # a corrupt head asks for no more than a ring has
        if len(self._rows) < asked * ROW:
            self._rows = self._lane.zeros(asked * ROW)
        rows = self._rows[: asked * ROW]
        hints, good, records = (rows[start * asked :].data_ptr() for start in range(3))
        ctas = -(-asked // HEADERS_A_CTA)
        answers, words = self._lane.run_and_fetch(
            rows,
            (owner, tail, hints, asked, records, good),
            calling("drain"),
            Launch(copy_drained_kernel, ctas),
        )
        taken, upto, hole = answers[:3]
        return _drained(words, asked, taken, upto, hole)


def _drained(words: Words, asked: int, taken: int, head: int, hole: int) -> Drained:
    good, records = words[asked : 2 * asked], words[2 * asked :]
    return Drained(words[:taken], head, hole, records.view(OBJ_HEADER.dtype)[:taken], good[:taken] != 0)
