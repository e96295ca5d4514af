"""Unfinished objects in segments that nobody sweeps: their rank has ended, and the dead were writing there.

The sweeper of a segment gives up what the dead left there; if it is dead too, the keys of those objects would be taken
until a process comes back as that rank. So the pollers of the ranks that live do it, at first and after each death.

Guarantees
- A key is free again soon after its producer has died, in whichever segment that was writing.
- Nothing else changes. The header is DEAD and keeps its pages, the entry stays: as if the sweeper had died right after
  `give_up`. Whoever sweeps the segment next takes both back: a rank that comes back, or one that adopts the segment.

Why the orderings suffice: `give_up` is one compare-and-swap on the word that a commit changes too. Of several pollers,
and a sweeper that has come back, one succeeds; nobody else frees anything.
"""

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.segment.geometry import producer_of
from nanokv.device.segment.layout import RESERVED, STATE_MASK, WRITING, names_producer
from nanokv.heap.base import Heap
from nanokv.host_poller.header_pass import SLICE
from nanokv.host_poller.index import Slots
from nanokv.host_poller.members import deaths


class Orphans:
    """Gives up what dead producers left unfinished. Used only by the poller's thread."""

    def __init__(self, machine: Machine, heap: Heap) -> None:
        self._machine, self._heap = machine, heap
        self._deaths = -1  # at the last look; a look at first, too

    def look(self) -> int:
        """`give_up` if a rank has ended since the last look."""
        before, self._deaths = self._deaths, deaths(self._machine, self._heap)
        return self.give_up() if self._deaths > before else 0

    def give_up(self) -> int:
        """Look at all segments whose rank has ended. Returns how many objects were given up."""
        gone = (rank for rank in range(self._heap.world_size) if self._heap.peer_closed(rank))
        return sum(self._give_up_in(rank) for rank in gone if rank != self._heap.rank and self._is_mapped(rank))

    def _is_mapped(self, rank: int) -> bool:
        """Whether the segment can be read though its rank has ended: host memory stays, that of a GPU may not."""
        return self._heap.host_view(rank) is not None

    def _give_up_in(self, rank: int) -> int:
        count = min(int(self._machine.control(rank)[0]["hdr_head"]), self._machine.geometry.hdr_count)
        return sum(self._give_up_some(rank, first, min(SLICE, count - first)) for first in range(0, count, SLICE))

    def _give_up_some(self, rank: int, first: int, count: int) -> int:
        headers, given_up = self._machine.headers(rank, first, count), 0
        for at in _unfinished(headers).tolist():
            producer = producer_of(int(headers["producer"][at]))
            if names_producer(headers[at]) and not self._heap.alive(*producer):
                given_up += self._machine.give_up(rank, first + at, int(headers["epoch"][at]))
        return given_up


def _unfinished(headers: "np.ndarray[tuple[int], np.dtype[np.void]]") -> Slots:
    """Where objects are being written. headers: OBJ_HEADER records."""
    state = headers["state"] & STATE_MASK.value
    return np.flatnonzero((state == WRITING.value) | ((state == RESERVED.value) & (headers["epoch"] > 0)))
