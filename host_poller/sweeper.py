"""The sweep over the headers: it finds what the ring missed, and takes back what the dead left.

Headers are the truth. A pass looks at every slot ever used, slice by slice (`header_pass`), and
- reconciles the index with the headers that are READY;
- removes objects whose time is over, and counts what identities with a quota hold (`labels`, `quotas`);
- gives up objects that are unfinished for longer than `write_timeout`, or whose producer is dead: they become DEAD, so
  that a late commit is answered LOST, and go into quarantine (`quarantine`).

Between passes and after them the sweeper does the rest, whose cost does not grow with the number of objects. It
- starts the audit if a rank died (`audit`);
- releases the objects that nobody can write to any more;
- takes away the pins of dead readers (`dead_pins`);
- finds out whether too many pages are in use (`water_marks`);
- joins free extents if a producer was refused (`coalesce`), or before one is (`join_ahead`);
- forgets splits of free extents that do not end: their producer is dead or stopped (`device/protocol/splitting.py`).

In v1 the master does all of this except the index, labels and quotas.
"""

from dataclasses import dataclass

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.protocol.status import NEIGHBOURS
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.geometry import producer_of
from nanokv.device.segment.layout import (
    EPOCH_SHIFT,
    RING_EPOCH_SHIFT,
    RING_HEADER_SHIFT,
    STORED,
    names_producer,
    unpack,
)
from nanokv.heap.base import Heap
from nanokv.host_poller.audit import Audit
from nanokv.host_poller.coalesce import join_free_extents
from nanokv.host_poller.dead_pins import drop_dead_pins
from nanokv.host_poller.grace import Grace
from nanokv.host_poller.header_pass import SLICE, HeaderPass, Life, Slice, Totals
from nanokv.host_poller.index import Change, HeaderIndex, Records, Slots
from nanokv.host_poller.join_ahead import JoinAhead
from nanokv.host_poller.labels import Labels
from nanokv.host_poller.members import deaths
from nanokv.host_poller.quarantine import Quarantine
from nanokv.host_poller.quotas import Quotas
from nanokv.host_poller.removal import ByMachine, Removal
from nanokv.host_poller.water_marks import WaterMarks


@dataclass
class SweepCounts:
    """What the sweeper of one rank has done so far."""

    sweeps: int = 0
    found: int = 0  #: READY objects that the ring had missed
    given_up: int = 0  #: unfinished objects: their producer took too long, or had died
    orphaned: int = 0  #: of these: the producer had died
    released: int = 0
    leaked_pages: int = 0
    leaked_slots: int = 0
    pins_dropped: int = 0
    joined: int = 0  #: times that free extents were joined
    joined_ahead: int = 0  #: of these: before a producer was refused
    expired: int = 0  #: objects removed because their time was over


class Sweeper:
    """The sweeper of one rank's segment. Nothing here waits. `step` is a whole pass, then `tend`.

    Args:
        write_timeout: seconds after which an unfinished object is given up.
        reclaims: False in v1, where the master does it.
        removal: of objects whose time is over, or whose identity holds too much.
    """

    def __init__(
        self,
        machine: Machine,
        heap: Heap,
        index: HeaderIndex,
        write_timeout: float,
        reclaims: bool,
        removal: Removal | None = None,
    ) -> None:
        self.index = index
        self.counts = SweepCounts()
        self._machine = machine
        self._heap = heap
        self._rank = heap.rank
        self._write_timeout = write_timeout
        self._reclaims = reclaims
        self.water = WaterMarks(machine, heap.rank)
        removal = removal or ByMachine(machine)
        self.labels = Labels(machine, heap.rank, removal)
        self.quotas = Quotas(machine, heap.rank, removal, by_extents=reclaims)
        self._grace = Grace(machine, heap)
        self._quarantine = Quarantine(machine, heap, self._grace)
        self._audit = Audit(machine, heap.rank, self._grace)
        self._join_ahead = JoinAhead(machine, heap.rank)
        self.pass_slots = 0  #: that the last pass looks at
        self._pass: HeaderPass | None = None
        self._totals: Totals | None = None  # of a pass that has ended, until `tend` takes them
        self._unfinished: dict[Life, float] = {}  # since when each was seen
        self._deaths = 0
        self._audit_due = False
        self._refused = 0
        self._splitting = 0
        if heap.recovered and reclaims:
            self._audit.start()

    @property
    def pending(self) -> bool:
        """True while something waits: an unfinished object, quarantine, an audit."""
        return bool(self._unfinished or self._quarantine or self._audit.running)

    @property
    def evicting(self) -> bool:
        """Whether objects wait to be evicted: too many pages are in use, or an identity holds too much."""
        return self.water.exceeded or self.quotas.exceeded

    def step(self, now: float) -> list[Change]:
        """Look at every header once, from now on, and tend. `now`: seconds on any clock that does not go back."""
        self.begin_pass()
        changes = []
        while self.passing:
            changes += self.look(now)
        self.tend()
        return changes

    # the headers
    @property
    def passing(self) -> bool:
        """Whether a pass is under way."""
        return self._pass is not None

    def begin_pass(self) -> None:
        """Begin a pass. One that is under way is given up: what it has seen may be older than the caller allows."""
        self._pass = HeaderPass(self._machine.geometry, self._used_slots())
        self.pass_slots = self._pass.slots
        self.labels.begin_pass()
        self.quotas.begin_pass()

    def look(self, now: float) -> list[Change]:
        """Look at the next slice of the pass under way. `now`: as for `step`."""
        this = self._pass
        assert this is not None, "no pass was begun"
        headers = self._machine.headers(self._rank, this.at, min(SLICE, this.slots - this.at))
        part = Slice.of(this.at, headers, self.index.lives(this.at, len(headers)))
        changes = self._reconcile(part)
        if self._reclaims:
            self._give_up_stuck(part, this.unfinished, now)
        self.counts.expired += self.labels.look(part, now_ns())
        self.quotas.look(part)
        this.add(part)
        if this.ended:
            self._pass, self._totals, self._unfinished = None, this.totals(), this.unfinished
            self.labels.end_pass()
            self.quotas.end_pass()
            self.counts.sweeps += 1
        return changes

    def tend(self) -> None:
        """Do what does not grow with the number of objects; and what waits for the end of a pass, if one has ended."""
        if self._heap.kind == "shm":  # only a file can outlive a start of the machine
            self._machine.set_control(self._rank, "swept_at", now_ns())
        if not self._reclaims:
            return
        totals, self._totals = self._totals, None
        self._audit_after_deaths()
        if totals:
            self._quarantine.look(totals.holding)
        self._grace.poll()
        self.counts.released += self._quarantine.release()
        self._audit_step()
        self.counts.pins_dropped += drop_dead_pins(self._machine, self._rank, self._heap.alive)
        self._join_if_refused()
        if totals:
            self.water.look(totals.held_pages)
            if self._join_ahead.pays(totals):
                self.counts.joined_ahead += self._join()
        self._forget_splits()

    def _used_slots(self) -> int:
        """How many slots were ever used. v1's master hands out slots without `hdr_head`."""
        count = self._machine.geometry.hdr_count
        if self._reclaims:
            count = min(int(self._machine.control(self._rank)[0]["hdr_head"]), count)
        return count

    # the index
    def _reconcile(self, part: Slice) -> list[Change]:
        changes = []
        if len(part.gone):
            epochs = part.indexed[part.gone] >> EPOCH_SHIFT.value
            changes.append(self.index.removed(part.first + part.gone, epochs))
        if len(part.missed):
            epochs = part.headers["epoch"][part.missed].astype(np.int64)
            changes.append(self.index.stored(*self._whole(part.first + part.missed, epochs)))
            self.counts.found += len(changes[-1].came)
        return changes

    def _whole(self, slots: Slots, epochs: Slots) -> tuple[Slots, Records]:
        """Copy headers again; those that are not whole, or not READY in their epoch any more, are left out."""
        hints = STORED.value | slots << RING_HEADER_SHIFT.value | epochs << RING_EPOCH_SHIFT.value
        records, good = self._machine.snapshots(self._rank, hints)
        return slots[good], records[good]

    # unfinished objects
    def _give_up_stuck(self, part: Slice, seen: dict[Life, float], now: float) -> None:
        """Give up what is stuck; add the rest that is unfinished to `seen`."""
        for at in part.unfinished.tolist():
            header, life = part.headers[at], part.life(at)
            since = self._unfinished.get(life, now)
            # another epoch's producer may be long dead: this one's is seen at a later sweep
            orphan = bool(names_producer(header)) and not self._heap.alive(*producer_of(int(header["producer"])))
            stuck = orphan or now - since > self._write_timeout
            if stuck and self._machine.give_up(self._rank, life.slot, life.epoch):
                self.counts.given_up += 1
                self.counts.orphaned += orphan
                self._quarantine.give_up(life, header)
            else:
                seen[life] = since

    # the dead
    def somebody_died(self) -> bool:
        """True if a rank ended since the last step, also one that no step saw alive. Deaths are counted once a step."""
        if not self._audit_due:
            before, self._deaths = self._deaths, deaths(self._machine, self._heap)
            self._audit_due = self._deaths > before
        return self._audit_due

    def _audit_after_deaths(self) -> None:
        if self.somebody_died():
            self._audit.start()
            self._audit_due = False

    def _audit_step(self) -> None:
        # the audit itself sees DEAD headers with pages; a torn look may have put others into quarantine
        pages, slots = self._audit.step(self._quarantine.given_up_slots)
        self.counts.leaked_pages += pages
        self.counts.leaked_slots += slots

    def join_for(self, size_class: int) -> None:
        """Join free extents for a producer that was refused one of this class, unless that has been done meanwhile.

        Nothing is evicted: the producer may have its room by now, and then its own object would go.
        """
        self._join_ahead.note_wanted(size_class)
        if self._machine.outlook(self._rank, size_class) == NEIGHBOURS.value:
            self._join()

    def _join(self, over: int = 0) -> bool:
        """Join free extents; False if another host does."""
        joined = join_free_extents(self._machine, self._rank, over) >= 0
        self.counts.joined += joined
        return joined

    def _join_if_refused(self) -> None:
        control = self._machine.control(self._rank)[0]
        refused, joiner = int(control["refused"]), int(unpack("JOINING", "producer", control["joining"]))
        abandoned = joiner and not self._heap.alive(*producer_of(joiner))  # the next host that joins clears the mark
        over = int(control["joining"].view(np.int64)) if abandoned else 0
        if (refused != self._refused or abandoned) and self._join(over):
            self._refused = refused

    def _forget_splits(self) -> None:
        """Forget the splits under way if none has begun or ended since the last sweep: they hold producers up."""
        splitting = int(self._machine.control(self._rank)[0]["splitting"].view(np.int64))
        if splitting == self._splitting and unpack("SPLITTING", "under_way", splitting):
            self._machine.forget_splits(self._rank, splitting)
        self._splitting = splitting
