"""Which ranks live, the events when one comes or goes, and how many have ended."""

from nanokv.device.machines.base import Machine
from nanokv.heap.base import Heap
from nanokv.host_poller.events import Event, EventKind


def deaths(machine: Machine, heap: Heap) -> int:
    """How many incarnations of ranks and guests have ended so far, also those that nobody saw alive."""
    incarnations = machine.activity(heap.rank)["incarnation"].tolist()
    return sum(inc - heap.alive(rank, inc) for rank, inc in enumerate(incarnations) if inc)


class Members:
    """The ranks as they were at the last look. Used only by the poller's thread."""

    def __init__(self, machine: Machine, heap: Heap) -> None:
        self._machine = machine
        self._heap = heap
        self._living = self._look()

    def events(self) -> list[Event]:
        """What has changed since the last look. A rank that went and came back in between causes both events."""
        before, self._living = self._living, self._look()
        told = []
        for rank, (old, new) in enumerate(zip(before, self._living, strict=True)):
            if old and old != new:
                told.append(Event(EventKind.RANK_LEFT, None, None, rank))
            if new and old != new:
                told.append(Event(EventKind.RANK_JOINED, None, None, rank))
        return told

    def _look(self) -> list[int]:
        """The incarnation of each rank that lives; 0 for the others."""
        ranks = self._machine.activity(self._heap.rank)[: self._heap.world_size]
        incarnations = ranks["incarnation"].tolist()
        return [0 if self._heap.peer_closed(rank) else incarnation for rank, incarnation in enumerate(incarnations)]
