"""Grace periods: when has every operation ended that was under way in this segment?

Source: sleepable RCU (McKenney 2006), two flips of a phase; `device/protocol/activity.py` is the other half.

Guarantees: when a period has ended, each rank was seen after its beginning with no operation of either phase in flight,
or is known to have ended for good. Nothing here waits: `poll` looks once, and the sweeper calls it again.
"""

from nanokv.device.machines.base import Machine
from nanokv.heap.base import Heap


class Grace:
    """The grace periods of one rank's segment. Used only by the owner's poller thread."""

    def __init__(self, machine: Machine, heap: Heap) -> None:
        self._machine = machine
        self._heap = heap
        self._rank = heap.rank
        self.completed = 0
        self._wanted = 0
        self._running = False
        self._flipped = False
        self._pending: list[tuple[int, int]] = []

    @property
    def flipped(self) -> bool:
        """Whether the period under way, or the last one, has changed the phase."""
        return self._flipped

    def request(self) -> int:
        """Ask for a period that begins now or later. It has ended once `completed` has reached the ticket returned."""
        ticket = self.completed + (2 if self._running else 1)
        self._wanted = max(self._wanted, ticket)
        return ticket

    def poll(self) -> None:
        """Look whether the period under way has ended; begin one if none is under way and one was asked for."""
        if not self._running:
            if self._wanted <= self.completed:
                return
            self._running, self._flipped = True, False
            self._expect_all()
        if self._drained() and not self._flipped:
            self._machine.set_control(self._rank, "grace_phase", 1 - self._phase())
            self._flipped = True
            self._expect_all()
        if self._flipped and self._drained():
            self.completed += 1
            self._running = False

    def _phase(self) -> int:
        return int(self._machine.control(self._rank)[0]["grace_phase"]) & 1

    def _expect_all(self) -> None:
        """Wait for every rank that ever attached."""
        incarnations = self._machine.activity(self._rank)["incarnation"].tolist()
        self._pending = [(rank, inc) for rank, inc in enumerate(incarnations) if inc]

    def _drained(self) -> bool:
        """Strike out the ranks that have nothing in flight in the phase that is not current."""
        old = 1 - self._phase()
        self._pending = [
            (rank, inc)
            for rank, inc in self._pending
            if self._machine.in_flight(self._rank, rank, old) != 0 and self._heap.alive(rank, inc)
        ]
        return not self._pending
