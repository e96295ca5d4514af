"""How an owner's poller takes objects away whose time is over, or whose identity holds too much."""

from typing import Protocol

from nanokv.device.machines.base import Machine
from nanokv.device.segment.clock import now_ns


class Removal(Protocol):
    """Removes and evicts single objects, as an `Allocation` does. Answers with a `Status`; v1's may raise PeerLost."""

    def remove_slot(self, owner: int, slot: int, epoch: int) -> int:
        """Remove the object in a header slot: OK, MISS or PINNED."""
        ...

    def evict_slot(self, owner: int, slot: int, epoch: int) -> int:
        """Evict the READY object in a header slot: OK, MISS or PINNED."""
        ...


class ByMachine:
    """The Removal of a segment in v2."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def remove_slot(self, owner: int, slot: int, epoch: int) -> int:
        return self._machine.remove_slot(owner, slot, epoch)

    def evict_slot(self, owner: int, slot: int, epoch: int) -> int:
        return self._machine.evict_slot(owner, slot, epoch, now_ns())
