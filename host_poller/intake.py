"""Takes hints from the announce ring into the index, and tells what has changed: listeners by events, one for each
object, and outboxes by rows that native code writes.

`take` looks once, with arrays of numpy, wherever the segment lies. `stay` looks again and again, in native code without
the interpreter's lock, where the machine has that (`device/machines/ring_rounds.py`).
"""

import threading
from collections.abc import Callable

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.machines.outbox import Outbox
from nanokv.device.machines.records import Hints, Position
from nanokv.device.segment.host_records import NO_HOLE
from nanokv.device.segment.layout import EVICTED, POSITIVE, REMOVED, STORED, WANTED, unpack
from nanokv.host_poller.events import Event, EventKind, Listeners
from nanokv.host_poller.index import HeaderIndex, IndexChange, changes_of

BATCH = 4096  #: hints taken from the ring at once
HOLE_PATIENCE = 0.1  #: seconds to come back to a ring slot whose producer took the ticket and has not filled it
GONE = {REMOVED.value: EventKind.REMOVED, EVICTED.value: EventKind.EVICTED}  #: of hints
_SAID = {how: kind for kind, how in GONE.items()}


class Intake:
    """The consumer of one rank's ring. Only the owner's poller thread uses it.

    Args:
        listeners: hear of each change of the index.
    """

    def __init__(self, machine: Machine, rank: int, index: HeaderIndex, listeners: Listeners[Event]) -> None:
        self._machine = machine
        self._rank = rank
        self._index = index
        self._listeners = listeners
        tail = int(machine.control(rank)[0]["ann_tail"]) & POSITIVE.value  # it may be corrupt
        self._at = Position(tail, tail)
        self._rounds = machine.ring_rounds(rank, *index.arrays, index.turn.asked, HOLE_PATIENCE)
        self._outboxes: tuple[Outbox, ...] = ()
        self._changing = threading.Lock()  # of `_outboxes`
        self.made = 0  #: events, for listeners
        self.drained = 0
        self.removed = 0
        self.corrupt = 0
        self.wanted = -1  #: the largest size class that a producer did not get, until the poller has seen to it

    @property
    def head(self) -> int:
        """The ticket before which the last look ended."""
        return self._at.head

    @property
    def waits(self) -> bool:
        """Whether a ticket was taken, and its ring slot is still empty."""
        return bool(self._at.hole != NO_HOLE.value)

    @property
    def is_native(self) -> bool:
        """Whether the machine has native rounds: `stay`."""
        return self._rounds is not None

    def take(self, now: float) -> int:
        """Take at most BATCH hints. Returns how many. `now`: seconds."""
        drained = self._machine.drain(self._rank, self._at.tail, BATCH)
        if len(drained.hints):
            self._ingest(drained)
        if drained.head != self._at.tail:
            self._at = self._at.advanced(drained.head, drained.hole, int(now * 1e9), int(HOLE_PATIENCE * 1e9))
            self._machine.set_control(self._rank, "ann_tail", self._at.tail)
        return len(drained.hints)

    def stay(self, seconds: float) -> bool:
        """Take hints in native rounds, at most for `seconds`. False if none came for a while.

        It ends earlier if the host has something to do: somebody wants the index's `turn`, a listener waits, a producer
        was refused.
        """
        assert self._rounds is not None
        with self._index.turn.for_long():
            outboxes = self._outboxes  # they stay, also where one is dropped meanwhile: native code writes to them
            addresses = np.array([each.address for each in outboxes], np.int64)
            done = self._rounds.run(self._at, seconds, listens=bool(self._listeners), outboxes=addresses)
        self._at = done.position
        self.drained += done.taken
        self.removed += done.removed
        self.corrupt += done.corrupt
        self.wanted = max(self.wanted, done.wanted)
        for change in changes_of(done.changes):
            self._tell_listeners(change)
        return not done.idle

    def _ingest(self, drained: Hints) -> None:
        hints = drained.hints
        self.drained += len(hints)
        kinds, slots, epochs = (unpack("RING", name, hints) for name in ("kind", "header", "epoch"))
        wanted = (kinds == WANTED.value) & (slots < len(self._machine.geometry.class_pages))
        known = (slots < self._machine.geometry.hdr_count) & (kinds >= STORED.value) & (kinds <= EVICTED.value)
        self.corrupt += int(np.count_nonzero(~known & ~wanted))
        for kind, how in GONE.items():  # before a slot's next object comes: else that tells that the last one is gone
            these = known & (kinds == kind)
            self.tell(self._index.removed(slots[these], epochs[these], how))
        self.removed += int(np.count_nonzero(known & (kinds == REMOVED.value)))
        good = known & drained.good
        self.tell(self._index.stored(slots[good], drained.records[good]))
        if wanted.any():
            self.wanted = max(self.wanted, int(slots[wanted].max()))

    def tell(self, change: IndexChange) -> None:
        """Tell of a change, all who want that."""
        for outbox in self._outboxes:
            outbox.tell(_SAID[change.how], change.gone, change.gone_records)
            outbox.tell(STORED.value, change.came, change.came_records)
        self._tell_listeners(change)

    def _tell_listeners(self, change: IndexChange) -> None:
        if self._listeners and (len(change.gone) or len(change.came)):
            events = self._index.events(change)
            self.made += len(events)
            self._listeners.tell(events)

    def tell_to(self, outbox: Outbox) -> Callable[[], None]:
        """Write all that happens from now on to an outbox; returns the function that ends that. From any thread."""
        with self._changing:
            self._outboxes = (*self._outboxes, outbox)
        with self._index.turn:  # native rounds that began without it end
            return lambda: self._tell_no_more(outbox)

    def _tell_no_more(self, outbox: Outbox) -> None:
        with self._changing:
            self._outboxes = tuple(each for each in self._outboxes if each is not outbox)
