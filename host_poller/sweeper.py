"""The sweep over the headers: finds what the ring missed, and takes back what the dead left.

Headers are the truth. One step looks at every slot ever used and
- reconciles the index with the headers that are READY;
- gives up objects that are unfinished and whose producer is dead, or that took longer than `write_timeout`: they become
  DEAD, so that a late commit is answered LOST, and their pages stay in quarantine;
- frees what is in quarantine, or DEAD in nobody's hands, after a grace period. The pages of a plan are different: the
  kernel that writes them is counted nowhere, so they wait until its producer says that it has ended (a commit or an
  abort that came too late), or is dead;
- takes away the pins of dead readers;
- runs the audit when somebody died.

Nothing is freed because time has passed. In v1 the master owns all but the index.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.segment.layout import (
    DEAD,
    FLAG_ACK,
    FLAG_PLAN,
    READY,
    RESERVED,
    RING_EPOCH_SHIFT,
    RING_HEADER_SHIFT,
    STATE_MASK,
    STORED,
    WRITING,
    unpack,
)
from nanokv.heap.base import Heap
from nanokv.host_poller.audit import Audit
from nanokv.host_poller.coalesce import join_free_extents
from nanokv.host_poller.dead_pins import drop_dead_pins
from nanokv.host_poller.grace import Grace
from nanokv.host_poller.index import Change, HeaderIndex, Records, Slots


@dataclass
class SweepCounts:
    """What the sweeper of one rank has done so far."""

    sweeps: int = 0
    found: int = 0  #: READY objects that the ring had missed
    given_up: int = 0
    released: int = 0
    leaked_pages: int = 0
    leaked_slots: int = 0
    pins_dropped: int = 0
    joined: int = 0


@dataclass
class Sweeper:
    """The sweeper of one rank's segment. `step` looks once and never waits."""

    machine: Machine
    heap: Heap
    index: HeaderIndex
    write_timeout: float
    reclaims: bool  #: False in v1, where the master does it
    counts: SweepCounts = field(default_factory=SweepCounts)

    def __post_init__(self) -> None:
        self._rank = self.heap.rank
        self.grace = Grace(self.machine, self.heap)
        self._audit = Audit(self.machine, self._rank, self.grace)
        self._unfinished: dict[tuple[int, int], float] = {}
        self._quarantine: dict[tuple[int, int], int | None] = {}
        self._given_up: set[tuple[int, int]] = set()
        self._deaths = 0
        self._refused = 0
        if self.heap.recovered and self.reclaims:
            self._audit.start()

    @property
    def pending(self) -> bool:
        """True while something waits: an unfinished object, quarantine, an audit."""
        return bool(self._unfinished or self._quarantine or self._audit.running)

    def step(self, now: float) -> list[Change]:
        """Look at every header once. `now`: seconds on any clock that does not go back."""
        self.counts.sweeps += 1
        used = min(int(self.machine.control(self._rank)[0]["hdr_head"]), self.machine.geometry.hdr_count)
        if not self.reclaims:
            used = self.machine.geometry.hdr_count  # v1's master hands out slots itself
        headers = self.machine.headers(self._rank, 0, used)
        changes = self._reconcile(headers)
        if self.reclaims:
            self._give_up_stuck(headers, now)
            self._watch_ranks()
            self._note_dead(headers)
            self.grace.poll()
            self._release()
            self._audit_step()
            self.counts.pins_dropped += drop_dead_pins(self.machine, self._rank, self.heap.alive)
            self._join_if_refused()
        return changes

    # the index
    def _reconcile(self, headers: Records) -> list[Change]:
        state = headers["state"] & STATE_MASK.value
        epochs = headers["epoch"].astype(np.int64)
        indexed = self.index.epochs()[: len(headers)]
        ready = state == READY.value
        gone = np.flatnonzero((indexed >= 0) & ~(ready & (epochs == indexed)))
        missed = np.flatnonzero(ready & (epochs != indexed))
        changes = []
        if len(gone):
            changes.append(self.index.removed(gone, indexed[gone]))
        if len(missed):
            slots, records = self._whole(missed, epochs[missed])
            changes.append(self.index.stored(slots, records))
            self.counts.found += len(changes[-1].came)
        return changes

    def _whole(self, slots: Slots, epochs: Slots) -> tuple[Slots, Records]:
        hints = STORED.value | slots << RING_HEADER_SHIFT.value | epochs << RING_EPOCH_SHIFT.value
        records, good = self.machine.snapshots(self._rank, hints)
        return slots[good], records[good]

    # unfinished objects
    def _give_up_stuck(self, headers: Records, now: float) -> None:
        state = headers["state"] & STATE_MASK.value
        busy = (state == WRITING.value) | ((state == RESERVED.value) & (headers["epoch"] > 0))
        seen = {}
        for slot in np.flatnonzero(busy).tolist():
            key = (slot, int(headers["epoch"][slot]))
            seen[key] = self._unfinished.get(key, now)
            expired = now - seen[key] > self.write_timeout
            producer = int(headers[slot]["producer"])
            due = expired or not self._alive_producer(producer)
            if due and self.machine.give_up(self._rank, *key, producer):
                self.counts.given_up += 1
                self._given_up.add(key)
                self._hold(key, headers[slot])
                del seen[key]
        self._unfinished = seen

    def _alive(self, header: Any) -> bool:
        return self._alive_producer(int(header["producer"]))

    def _alive_producer(self, producer: int) -> bool:
        return self.heap.alive(unpack("PRODUCER", "rank", producer), unpack("PRODUCER", "incarnation", producer))

    # quarantine
    def _hold(self, key: tuple[int, int], header: Any) -> None:
        """Begin to wait: for a grace period, or first for the word of a plan's producer."""
        plan = int(header["flags"]) & FLAG_PLAN.value
        waits = plan and not int(header["flags"]) & FLAG_ACK.value and self._alive(header)
        self._quarantine[key] = None if waits else self.grace.request()

    def _note_dead(self, headers: Records) -> None:
        state = headers["state"] & STATE_MASK.value
        for slot in np.flatnonzero((state == DEAD.value) & (headers["n_pages"] > 0)).tolist():
            key = (slot, int(headers["epoch"][slot]))
            if self._quarantine.get(key) is None:
                self._hold(key, headers[slot])
        for key in [k for k, ticket in self._quarantine.items() if ticket is None and k in self._given_up]:
            self._hold(key, headers[key[0]])

    def _release(self) -> None:
        due = [k for k, ticket in self._quarantine.items() if ticket is not None and ticket <= self.grace.completed]
        for slot, epoch in due:
            del self._quarantine[slot, epoch]
            header = self.machine.headers(self._rank, slot, 1)[0]
            mine = (slot, epoch) in self._given_up
            self._given_up.discard((slot, epoch))
            # a header that holds no pages and that nobody gave up is on the free list by now: not ours to free
            if int(header["epoch"]) == epoch and (mine or int(header["n_pages"]) > 0):
                self.counts.released += self.machine.release(self._rank, slot, epoch)

    # the dead
    def _watch_ranks(self) -> None:
        deaths = self._count_deaths()
        if deaths > self._deaths:
            self._audit.start()
        self._deaths = deaths

    def _count_deaths(self) -> int:
        """How many incarnations of ranks that ever attached have ended; also of those that no sweep saw alive."""
        incarnations = self.machine.activity(self._rank)["incarnation"].tolist()
        return sum(inc - self.heap.alive(rank, inc) for rank, inc in enumerate(incarnations) if inc)

    def somebody_died(self) -> bool:
        """True if a rank ended since the last step."""
        return self._count_deaths() > self._deaths

    def _audit_step(self) -> None:
        # what is DEAD and holds pages the audit sees itself; a look that was torn may have put others into quarantine
        held = {slot for slot, _ in self._given_up}
        pages, slots = self._audit.step(held)
        self.counts.leaked_pages += pages
        self.counts.leaked_slots += slots

    def _join_if_refused(self) -> None:
        control = self.machine.control(self._rank)[0]
        refused, joiner = int(control["refused"]), int(control["joining"])
        left = joiner and not self._alive_producer(joiner)  # by one that died; whoever joins next takes it away
        if refused != self._refused or left:
            self._refused = refused
            join_free_extents(self.machine, self._rank)
            self.counts.joined += 1
