"""Takes the objects out of a segment, those that were used last first.

The rank that does it owns the segment, or holds the lock of the rank that did, so that nobody else does it.
"""

import time
from collections.abc import Iterator
from typing import Literal

import numpy as np

from nanokv.allocation.base import Allocation
from nanokv.device.machines.base import Machine
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.last_access import time_of
from nanokv.device.segment.layout import DEAD, READY, STATE_MASK, unpack
from nanokv.heap.base import Heap
from nanokv.host_poller.index import key_of
from nanokv.membership.destinations import Destinations
from nanokv.membership.move import move_object, place_of
from nanokv.saved.own_segment import OwnSegment
from nanokv.transfer.single import SingleTransfer
from nanokv.types import KeyDigest, Left

Fate = Literal["move", "drop"]
_NO_HOME = (Status.CORRUPT, Status.FULL, Status.NO_HEADER, Status.NO_ENTRY, Status.TOO_LARGE)  #: it is dropped


class Emptying:
    """The objects of the segment `owner`, which are to be moved or dropped.

    Attributes:
        done: what has become of them so far.
    """

    def __init__(
        self,
        heap: Heap,
        machine: Machine,
        allocation: Allocation,
        single: SingleTransfer,
        owner: int,
        keys: Fate,
    ) -> None:
        self.done = Left(0, 0, 0)
        self._heap = heap
        self._machine = machine
        self._allocation = allocation
        self._single = single
        self._owner = owner
        self._keys = keys

    def step(self, deadline: float) -> None:
        """Move or drop every object that is READY now, until `deadline` at most (of `time.monotonic`)."""
        source = OwnSegment(self._heap, self._machine, self._owner)
        slots, headers = source.ready()
        destinations = Destinations(self._heap, self._machine, self._allocation, self._owner)
        for at in time_of(headers["last_access"]).argsort(kind="stable")[::-1].tolist():
            if time.monotonic() >= deadline:
                return
            slot, header = int(slots[at]), headers[at]
            if unpack("STATE", "pins", int(header["state"])):
                continue
            to = None
            if self._keys == "move":
                to = destinations.choose(KeyDigest(*key_of(header)), int(header["bytes_total"]))
            self._end(source, slot, header, to)

    def _end(self, source: OwnSegment, slot: int, header: np.void, to: int | None) -> None:
        """Move an object to a rank, or drop it, and count it."""
        place = place_of(self._owner, slot, header)
        if to is not None:
            now = now_ns()
            status = move_object(self._machine, self._single, place, header, source.descriptor(slot), to, now)
            if status == Status.OK:
                moved, dropped, nbytes = self.done
                self.done = Left(moved + 1, dropped, nbytes + place.nbytes)
                return
            if status not in _NO_HOME:
                return  # it has gone, or the next step tries again
        if self._allocation.remove_slot(self._owner, slot, place.epoch) == Status.OK:
            self.done = self.done._replace(dropped=self.done.dropped + 1)

    def is_empty(self) -> bool:
        """True if no header is in use, and none holds pages."""
        return not any(self._left())

    def what_is_left(self) -> str:
        """What keeps the segment from being empty, for messages."""
        names = ("pinned", "READY", "unfinished or in quarantine")
        return ", ".join(f"{n} objects are {name}" for n, name in zip(self._left(), names, strict=True) if n)

    def _left(self) -> Iterator[int]:
        headers = self._machine.headers(self._owner, 0, self._machine.geometry.hdr_count)
        state = headers["state"] & STATE_MASK.value
        pinned = unpack("STATE", "pins", headers["state"]) > 0
        used = (headers["epoch"] > 0) & (state != DEAD.value)
        ready = used & (state == READY.value) & ~pinned
        yield int(np.count_nonzero(pinned))
        yield int(np.count_nonzero(ready))
        yield int(np.count_nonzero((used | (headers["n_pages"] > 0)) & ~pinned & ~ready))
