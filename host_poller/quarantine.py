"""Quarantine: DEAD objects whose pages may still be written to, until nobody can write to them.

Nothing is freed because time has passed. A life of a slot waits for two things, one after the other:
1. The kernel that writes a plan is counted nowhere, so a plan waits until its producer says that the kernel has ended
   (FLAG_ACK: a commit or an abort that came too late), or is dead.
2. Then every operation that was under way must have ended: a grace period.

Invariants: a life waits for one of the two, never for both. A life that the sweeper gave up waits until it is released.
"""

from collections.abc import Mapping
from typing import Any

from nanokv.device.machines.base import Machine
from nanokv.device.segment.geometry import producer_of
from nanokv.device.segment.layout import FLAG_ACK, FLAG_PLAN, names_producer
from nanokv.heap.base import Heap
from nanokv.host_poller.grace import Grace
from nanokv.host_poller.header_pass import Life


class Quarantine:
    """The quarantine of one rank's segment. Used only by the owner's poller thread."""

    def __init__(self, machine: Machine, heap: Heap, grace: Grace) -> None:
        self._machine = machine
        self._heap = heap
        self._grace = grace
        self._unacknowledged: set[Life] = set()  # plans whose producer lives and may still write
        self._tickets: dict[Life, int] = {}  # the grace period after which a life is released
        self._given_up: set[Life] = set()  # by the sweeper: their slots come back too, with pages or without

    def __bool__(self) -> bool:
        return bool(self._unacknowledged or self._tickets)

    @property
    def given_up_slots(self) -> set[int]:
        """The slots that the sweeper gave up and that are not released yet."""
        return {life.slot for life in self._given_up}

    def give_up(self, life: Life, header: Any) -> None:
        """Take in an object that the sweeper has just made DEAD. `header`: its record, before or after."""
        self._given_up.add(life)
        self._hold(life, header)

    def look(self, holding: Mapping[Life, Any]) -> None:
        """Take in DEAD headers that hold pages, and ask again for the word of each plan's producer.

        Args:
            holding: their records; of all slots ever used.
        """
        waiting = self._unacknowledged & self._given_up
        self._unacknowledged = set()
        for life in sorted((holding.keys() | waiting) - self._tickets.keys()):
            self._hold(life, holding[life] if life in holding else self._header(life.slot))

    def release(self) -> int:
        """Free what nobody can write to any more. Returns how many objects."""
        released = 0
        for life in [life for life, ticket in self._tickets.items() if ticket <= self._grace.completed]:
            del self._tickets[life]
            header = self._header(life.slot)
            ours = life in self._given_up
            # a header that holds no pages and that nobody gave up is on the free list by now: not ours to free
            same = int(header["epoch"]) == life.epoch and (ours or int(header["n_pages"]) > 0)
            if same and self._is_silent(header):  # the look before the grace period saw flags of another epoch
                self._unacknowledged.add(life)
                continue
            self._given_up.discard(life)
            if same:
                released += self._machine.release(self._heap.rank, life.slot, life.epoch)
        return released

    def _header(self, slot: int) -> Any:
        return self._machine.headers(self._heap.rank, slot, 1)[0]

    def _hold(self, life: Life, header: Any) -> None:
        if self._is_silent(header):
            self._unacknowledged.add(life)
        else:
            self._tickets[life] = self._grace.request()

    def _is_silent(self, header: Any) -> bool:
        """Whether a plan's producer lives and has not said its word."""
        flags = int(header["flags"])
        silent = bool(names_producer(header)) and flags & FLAG_PLAN.value and not flags & FLAG_ACK.value
        return bool(silent and self._heap.alive(*producer_of(int(header["producer"]))))
