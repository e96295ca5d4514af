"""The audit: pages and header slots that are in no place.

Between two atomics an extent is in no list and in no header. A producer that dies there leaks it. The audit looks at
every place four times, with a grace period between two looks. A page or slot that was in no place in all four, and did
not change hands meanwhile (its stamp did not change; for a slot, its epoch), belongs to no living rank, and is given
back.

Why four. A node that a living rank holds is in no place only while it passes from one place to another, and each
passage ends within a grace period, so no two looks see the same one. A passage out of a header changes the stamp, and
so does one out of pages never used (`extent.give`, `bump`, `evict.evict_for`). So with one stamp there are three at
most: the rest of the passage in which the node got that stamp, one out of a list into a header, and one out of the
header up to the next stamp. Three looks may see a node in all of them, a fourth cannot.

A stamp has 26 bits: an audit is deceived only by a page that changes hands 67,108,864 times, or a multiple of that,
between its first look and its last, and is in no place in all four. An audit takes three grace periods, so about two
seconds if no process is stopped. To change hands takes a put or a removal, so a microsecond at least: two million times
in two seconds. If a process is stopped for a minute in the middle of an operation, the grace periods wait for it; then
all that the others do in that minute would have to go through this one page, exactly so often.

A look runs beside the producers, and can be wrong the other way round: a header that is being filled may name the pages
of its last object, and a walk may follow a node into another list. Then a page seems to be in a place that is in none.
So a death is followed by several audits, a grace period apart: the first look of each acquires everything that ended
before it, and an operation that disturbed one of them has ended before the next.
"""

from typing import NamedTuple

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Words
from nanokv.device.segment.layout import DEAD, READY, RESERVED, STATE_MASK
from nanokv.host_poller.grace import Grace
from nanokv.space.coalesce import carve_runs

LOOKS = 4
AUDITS = 3  #: after each death


class Nowhere(NamedTuple):
    """Numbers of nodes in no place: int64 [pages], int64 [slots]."""

    pages: Words
    slots: Words


class Progress(NamedTuple):
    """How far an audit is."""

    looks: int  #: taken so far; 0 also before it begins and after it has ended
    flipped: bool  #: whether the grace period before the next look has changed the phase
    nowhere: Nowhere  #: in all of these looks


class Audit:
    """The audit of one rank's segment. Only the owner's poller thread uses it."""

    def __init__(self, machine: Machine, rank: int, grace: Grace) -> None:
        self._machine = machine
        self._rank = rank
        self._grace = grace
        self._audits = 0
        self._looks = 0
        self._ticket = 0
        self._stamps = np.zeros(0, np.int64)
        self._epochs = np.zeros(0, np.int64)
        self._nowhere = Nowhere(np.zeros(0, np.int64), np.zeros(0, np.int64))

    @property
    def running(self) -> bool:
        """True from `start` until the last look."""
        return self._audits > 0 or self._looks > 0

    @property
    def progress(self) -> Progress:
        """How far the audit is."""
        return Progress(self._looks, self._grace.flipped, self._nowhere)

    def start(self) -> None:
        """Begin after a grace period, or begin once more when the audit under way has ended."""
        self._audits = AUDITS
        if not self._looks:
            self._ticket = self._grace.request()

    def step(self, held: set[int]) -> tuple[int, int]:
        """Take the next look if its time has come.

        Args:
            held: slots in quarantine.

        Returns:
            How many pages and slots were given back.
        """
        if not self.running or self._grace.completed < self._ticket:
            return 0, 0
        if not self._looks:
            self._audits -= 1
            self._stamps = self._machine.page_stamps(self._rank)
            headers = self._machine.headers(self._rank, 0, self._machine.geometry.hdr_count)
            self._epochs = headers["epoch"].astype(np.int64)
        look = self._look(held)
        self._nowhere = Nowhere(*map(np.intersect1d, self._nowhere, look)) if self._looks else look
        self._looks += 1
        if self._looks < LOOKS and (len(self._nowhere.pages) or len(self._nowhere.slots)):
            self._ticket = self._grace.request()
            return 0, 0
        self._looks = 0
        self._ticket = self._grace.request() if self._audits else 0
        return self._give_back(self._nowhere)

    def _look(self, held: set[int]) -> Nowhere:
        geometry = self._machine.geometry
        control = self._machine.control(self._rank)[0]
        base = geometry.offsets["heap_base"]
        bumped = max((int(control["bump_ptr"]) - base) // geometry.page_bytes, 0)
        marks = self._machine.page_marks(self._rank)
        free_slots = self._machine.slot_marks(self._rank)
        headers = self._machine.headers(self._rank, 0, min(int(control["hdr_head"]), geometry.hdr_count))
        placed = np.zeros(geometry.n_pages + 1, np.int64)
        sizes = np.array(geometry.class_pages, np.int64)
        first = np.flatnonzero(marks)
        _cover(placed, first, sizes[marks[first] - 1])
        holding = headers[headers["n_pages"] > 0]
        pages = (holding["payload_base"].astype(np.int64) - base) // geometry.page_bytes
        classes = np.searchsorted(sizes[sizes > 0], holding["n_pages"])
        sane = (pages >= 0) & (pages < geometry.n_pages) & (classes < np.count_nonzero(sizes))
        if ((holding["state"] & STATE_MASK.value == READY.value) & ~sane).any():
            bumped = 0  # an object is corrupt: the pages that are in no place may be its own
        _cover(placed, pages[sane], sizes[classes[sane]])
        nowhere = np.cumsum(placed[:-1]) == 0
        state = headers["state"] & STATE_MASK.value
        idle = (state == DEAD.value) | ((state == RESERVED.value) & (headers["epoch"] == 0))
        loose = idle & (headers["n_pages"] == 0) & (free_slots[: len(headers)] == 0)
        loose[[slot for slot in held if slot < len(headers)]] = False
        return Nowhere(np.flatnonzero(nowhere[:bumped]), np.flatnonzero(loose))

    def _give_back(self, nowhere: Nowhere) -> tuple[int, int]:
        pages, slots = nowhere
        pages = pages[self._machine.page_stamps(self._rank)[pages] == self._stamps[pages]]
        headers = self._machine.headers(self._rank, 0, self._machine.geometry.hdr_count)
        slots = slots[headers["epoch"][slots] == self._epochs[slots]]
        if len(pages):
            firsts, classes = carve_runs(self._machine.geometry, pages)
            self._machine.push_extents(self._rank, firsts, classes)
        for slot in slots.tolist():
            self._machine.adopt_slot(self._rank, slot)
        return len(pages), len(slots)


def _cover(placed: Words, first: Words, sizes: Words) -> None:
    """Count extents into the differences `placed`; their running sum is the number of places that each page is in."""
    np.add.at(placed, first, 1)
    np.add.at(placed, np.minimum(first + sizes, len(placed) - 1), -1)
