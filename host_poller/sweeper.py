"""The sweep over the headers: it finds what the ring missed, and takes back what the dead left.

Headers are the truth. A pass looks at every slot ever used, slice by slice (`header_pass`), and
- reconciles the index with the headers that are READY;
- removes objects whose time is over, and counts what identities with a quota hold (`labels`, `Quotas`);
- gives up objects that are unfinished for longer than `write_timeout`, or whose producer is dead: they become DEAD, so
  that a late commit is answered LOST, and go into quarantine (`quarantine`).

Between passes and after them the sweeper does the rest, whose cost does not grow with the number of objects. It
- starts the audit if a rank died (`audit`);
- releases the objects that nobody can write to any more;
- takes away the pins of dead readers (`dead_pins`);
- finds out whether too many pages are in use (`nanokv/space/water_marks.py`);
- joins free extents if a producer was refused (`nanokv/space/coalesce.py`), or before one is (`JoinAhead`);
- forgets splits of free extents that do not end: their producer is dead or stopped (`device/protocol/splitting.py`).

In v1 the master does all of this except the index, labels and quotas.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.base import Machine
from nanokv.device.protocol.status import NEIGHBOURS, Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.geometry import producer_of
from nanokv.device.segment.last_access import idle, stays
from nanokv.device.segment.layout import (
    EPOCH_SHIFT,
    LAYOUT_TAG_SHIFT,
    READY,
    RING_EPOCH_SHIFT,
    RING_HEADER_SHIFT,
    STATE_MASK,
    STORED,
    key_checks,
    names_producer,
    unpack,
)
from nanokv.heap.base import Heap
from nanokv.host_poller.audit import Audit
from nanokv.host_poller.dead_pins import drop_dead_pins
from nanokv.host_poller.grace import Grace
from nanokv.host_poller.header_pass import SLICE, HeaderPass, Life, Slice, Totals
from nanokv.host_poller.index import HeaderIndex, IndexChange, Records, Slots
from nanokv.host_poller.labels import Labels
from nanokv.host_poller.members import deaths
from nanokv.host_poller.quarantine import Quarantine
from nanokv.host_poller.removal import ByMachine, Removal
from nanokv.space.coalesce import join_free_extents
from nanokv.space.free_pages import FreePages
from nanokv.space.water_marks import WaterMarks

# --- keeps the objects of an identity below its quota in one segment (`device/protocol/quotas.py`) ---
# A pass over the headers counts the pages of each identity that has a quota. Of one that holds more, those objects go
# that were not used for longest, as their priorities count it, a few a round, so that no hint waits for long. What is
# pinned, leased or kept counts, and stays.
MOST = 64  #: objects evicted a round


class _Held(NamedTuple):
    """The READY objects of one identity in a slice: parallel arrays."""

    slots: npt.NDArray[np.int64]
    epochs: npt.NDArray[np.int64]
    pages: npt.NDArray[np.int64]
    access: npt.NDArray[np.uint64]


class Quotas:
    """The quotas of one rank's segment.

    Args:
        by_extents: whether objects hold whole extents (v2), or their pages (v1).
    """

    def __init__(self, machine: Machine, rank: int, removal: Removal, *, by_extents: bool) -> None:
        self._machine = machine
        self._rank = rank
        self._removal = removal
        self._by_extents = by_extents
        self._limits: dict[int, int] = {}  # pages by tag
        self._held: dict[int, list[_Held]] = {}
        self._to_go: list[Life] = []

    def begin_pass(self) -> None:
        """A pass over all headers begins."""
        self._limits, self._held = {}, {}
        if not self._machine.control(self._rank)[0]["quotas"]:
            return
        rows = self._machine.quotas(self._rank)
        rows = rows[rows != 0]
        tags, pages = (unpack("QUOTA", name, rows).tolist() for name in ("tag", "pages"))
        self._limits = dict(zip(tags, pages, strict=True))
        self._held = {tag: [] for tag in self._limits}

    def look(self, part: Slice) -> None:
        """Take in a slice of the headers."""
        if not self._limits:
            return
        tags = key_checks(part.headers) >> np.uint64(LAYOUT_TAG_SHIFT.value)
        ready = (part.headers["state"] & STATE_MASK.value) == READY.value
        for tag, held in self._held.items():
            these = np.flatnonzero(ready & (tags == tag))
            if len(these):
                some = part.headers[these]
                held.append(
                    _Held(
                        part.first + these,
                        some["epoch"].astype(np.int64),
                        self._pages(some["n_pages"]),
                        some["last_access"].astype(np.uint64),
                    )
                )

    def end_pass(self) -> None:
        """The pass has looked at all headers: choose what goes."""
        now = now_ns()
        self._to_go = []
        for tag, held in self._held.items():
            if held:
                self._choose(_Held(*map(np.concatenate, zip(*held, strict=True))), self._limits[tag], now)
        self._held = {}

    @property
    def exceeded(self) -> bool:
        """Whether something that the last pass has chosen is still there."""
        return bool(self._to_go)

    def evict(self) -> int:
        """Evict a few of what the last pass has chosen. Returns their number."""
        some, self._to_go = self._to_go[:MOST], self._to_go[MOST:]
        return sum(self._removal.evict_slot(self._rank, *life) == Status.OK for life in some)

    def _pages(self, n_pages: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        return self._machine.geometry.extent_pages(n_pages) if self._by_extents else n_pages.astype(np.int64)

    def _choose(self, held: _Held, limit: int, now: int) -> None:
        surplus = int(held.pages.sum()) - limit
        if surplus <= 0:
            return
        order = np.argsort(-idle(held.access, now), kind="stable")
        order = order[~stays(held.access[order], now) & (held.pages[order] > 0)]
        before = np.cumsum(held.pages[order]) - held.pages[order]
        chosen = order[before < surplus]
        self._to_go += map(Life, held.slots[chosen].tolist(), held.epochs[chosen].tolist())


# --- decides whether the sweeper joins free extents before a producer is refused a large one ---
# Joining is not free: while a host joins, a producer that finds no extent is answered FULL instead of evicting. So it
# must be worth it. What counts is the size of the largest objects in use. Joining pays if it at least doubles the
# pages that are free for objects of that size, and finds room for one more. So nothing is joined in a heap that stays
# full; and once extents were joined, producers have to split half of them before they are joined again.
LATELY = 16  #: sweeps in which a size counts after a producer wanted it in vain
_GAIN = 2  #: joining must find so many times the pages that are there


class JoinAhead:
    """Decides for one rank's segment, once a sweep. Only the owner's poller thread uses it."""

    def __init__(self, machine: Machine, rank: int) -> None:
        self._machine = machine
        self._rank = rank
        self._wanted = 0
        self._sweeps_left = 0

    def note_wanted(self, size_class: int) -> None:
        """A producer was refused an extent of this class."""
        self._wanted = max(self._wanted, self._machine.geometry.class_pages[size_class])
        self._sweeps_left = LATELY

    def pays(self, totals: Totals) -> bool:
        """Whether joining is worth it now. `totals`: of a pass over the headers that has just ended."""
        geometry = self._machine.geometry
        size = max(int(geometry.extent_pages(np.array(totals.largest))), self._wanted_lately())
        if size <= geometry.class_pages[0]:
            return False
        if geometry.n_pages - totals.held_pages < size:
            return False
        bump_ptr = int(self._machine.control(self._rank)[0]["bump_ptr"])
        free = FreePages.of(geometry, self._machine.page_links(self._rank), bump_ptr)
        return free.joined_to(size) >= _GAIN * free.in_extents_of(size) + size

    def _wanted_lately(self) -> int:
        """Pages of the largest extent that a producer was refused lately, or 0."""
        if self._sweeps_left:
            self._sweeps_left -= 1
        else:
            self._wanted = 0
        return self._wanted


# --- the sweeper ------------------------------------------------------------------------------
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

    def step(self, now: float) -> list[IndexChange]:
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

    def look(self, now: float) -> list[IndexChange]:
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
    def _reconcile(self, part: Slice) -> list[IndexChange]:
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
        if self._heap.backing is not None:  # pages that have memory may be joined
            geometry = self._machine.geometry
            self._heap.backing.is_ready(self._rank, geometry.class_pages[size_class] * geometry.page_bytes)
        if self._machine.outlook(self._rank, size_class) == NEIGHBOURS.value:
            self._join()

    def _join(self, over: int = 0) -> bool:
        """Join free extents; False if another host does."""
        backing = self._heap.backing
        end = None if backing is None else backing.end_of(self._rank)
        joined = join_free_extents(self._machine, self._rank, over, end=end) >= 0
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
