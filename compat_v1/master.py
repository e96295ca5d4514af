"""The master: it allocates in every segment, and knows where each object is.

One lock serialises the endpoints. An endpoint is a few look-ups in dictionaries and one to three calls of the machine,
some microseconds. A lock per key would have to be held across the index, the owner's allocator and an eviction there,
which touch other keys, and the interpreter runs one thread at a time anyway.

The master writes the header, with the producer in it. The producer itself makes it READY, by its machine or in its
kernel, so the master looks at the header when it is asked for the object. No endpoint raises for FULL, MISS and the
like: they are statuses.
"""

import threading
import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from nanokv.allocation.base import NOWHERE
from nanokv.allocation.routing import Routing
from nanokv.compat_v1 import reclaim
from nanokv.compat_v1.eviction import Policy, evict, goal
from nanokv.compat_v1.headers import State, kill, release, settle
from nanokv.compat_v1.reclaim import Descriptors
from nanokv.compat_v1.table import Table, TableEntry
from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Begun, Descriptor, Found, Place
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.geometry import producer_word
from nanokv.device.segment.layout import DEAD, FLAG_PLAN, PRODUCER_INC_MASK, READY, REMOVED, WRITING
from nanokv.host_poller.dead_pins import Alive, drop_dead_pins
from nanokv.types import KeyDigest

_UNKNOWN: Descriptor = (0,) * 8


class TableCounts(NamedTuple):
    """The master's table in numbers."""

    objects: int
    unfinished: int
    quarantined: int
    used_pages: list[int]  #: of each segment, quarantine included


class Master:
    """Allocates and looks up for a whole world. Any thread may call.

    Args:
        machine: of the master's rank.
        alive: (rank, incarnation) -> False if it has certainly ended and writes no more.
        routing: of this world.
        may_evict: whether objects of a full segment are evicted.
        water: (low, high) percent of used pages, for eviction.
        policy: "fifo" (by opening) or "last_access" (by the header's word).
        write_timeout: seconds after which an unfinished object is given up.
        clock: seconds, on the clock of `tick`.
    """

    def __init__(
        self,
        machine: Machine,
        alive: Alive,
        routing: Routing,
        *,
        may_evict: bool,
        water: tuple[int, int] = (85, 95),
        policy: Policy = "last_access",
        write_timeout: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._machine = machine
        self._geometry = machine.geometry
        self._alive = alive
        self._routing = routing
        self._may_evict = may_evict
        self._water = water
        self._policy: Policy = policy
        self._write_timeout = write_timeout
        self._clock = clock
        self._lock = threading.Lock()
        self._table = Table(machine.geometry)
        self._evicted = 0

    def recover(self, descriptors: Descriptors) -> None:
        """Take over the objects that are in the segments already.

        Args:
            descriptors: rank -> the OBJ_DESC records of its segment.

        Raises:
            SegmentCorrupt: the headers contradict each other.
        """
        with self._lock:
            self._table = reclaim.recover(self._machine, self._alive, descriptors, self._clock())

    # --- the endpoints ---
    def open_for_write(
        self,
        key: KeyDigest,
        nbytes: int,
        preferred: int | None,
        what: Descriptor,
        *,
        plan: bool,
        producer: tuple[int, int],
    ) -> Begun:
        """Claim a key and allocate: OK, DUPLICATE, FULL, NO_HEADER or TOO_LARGE.

        Args:
            preferred: the owner; None: see `Routing.owner_of`.
            producer: rank and incarnation of the producer.
        """
        with self._lock:
            known = self._table.index.get(key)
            if known is not None and settle(self._machine, self._table, known) != DEAD.value:
                return _refused(Status.DUPLICATE)
            owner = self._routing.owner_of(key, preferred)
            n_pages = -(-nbytes // self._geometry.page_bytes)
            before = self._evicted
            got = self._allocate(owner, n_pages)
            gone = self._evicted - before
            if isinstance(got, Status):
                self._count(owner, "refused", 1)
                return _refused(got)._replace(evicted=gone)
            entry = self._install(key, owner, *got, n_pages, nbytes, what, plan, producer)
            return Begun(Status.OK, entry.place, -1, gone)

    def commit(self, key: KeyDigest, place: Place) -> int:
        """The producer has finished: make the object READY if it is not yet. OK, or LOST if it was given up."""
        with self._lock:
            entry = self._own(key, place)
            phase = DEAD.value if entry is None else settle(self._machine, self._table, entry)
            if entry is not None and phase == WRITING.value:
                self._machine.commit(place)
                phase = settle(self._machine, self._table, entry)
            if phase == READY.value:
                return Status.OK
            self._acknowledge(place)
            return Status.LOST

    def abort(self, key: KeyDigest, place: Place) -> int:
        """The producer gives up, and writes no more: OK, or LOST if the object was given up before, or is READY."""
        with self._lock:
            entry = self._own(key, place)
            done = entry is not None and not entry.ready and reclaim.give_up(self._machine, self._table, entry)
            self._acknowledge(place)
            return Status.OK if done else Status.LOST

    def get_location(self, key: KeyDigest) -> Found:
        """Where an object lies: OK, NOT_READY (the place is that of the object being written) or MISS."""
        with self._lock:
            status, entry = self._find(key)
            if entry is None or status == Status.MISS:
                return Found(status, NOWHERE, _UNKNOWN)
            return Found(status, entry.place, entry.descriptor)

    def exists(self, key: KeyDigest) -> int:
        """OK, NOT_READY or MISS."""
        with self._lock:
            return self._find(key)[0]

    def remove(self, key: KeyDigest) -> int:
        """Remove a READY object: OK, MISS, NOT_READY or PINNED."""
        with self._lock:
            status, entry = self._find(key)
            if entry is None or status != Status.OK:
                return status
            return self._remove(entry)

    def remove_slot(self, owner: int, slot: int, epoch: int, kind: int = REMOVED.value) -> int:
        """Remove the READY object in a header slot: OK, MISS or PINNED. `kind`: REMOVED or EVICTED."""
        with self._lock:
            entry = self._table.at(owner, slot, epoch)
            if entry is None or settle(self._machine, self._table, entry) != READY.value:
                return Status.MISS
            return self._remove(entry, kind)

    def evict(self, owner: int, limit: int) -> int:
        """Evict until at most `limit` pages of a segment are in use, or nothing can be evicted. Returns how many."""
        with self._lock:
            return self._evict(owner, limit)

    def tick(self, now: float) -> None:
        """Give up stuck objects, empty the quarantine, drop the pins of dead readers. `now`: of the clock."""
        alive = cache(self._alive)
        with self._lock:
            reclaim.give_up_stuck(self._machine, self._table, alive, now - self._write_timeout)
            reclaim.empty_quarantine(self._machine, self._table, alive)
        for owner in range(self._machine.geometry.world_size):
            drop_dead_pins(self._machine, owner, alive)

    def counts(self) -> TableCounts:
        """Count objects and pages now."""
        with self._lock:
            table = self._table
            used = [space.pages.used for space in table.spaces]
            return TableCounts(len(table.index), len(table.unfinished), len(table.quarantine), used)

    # --- under the lock ---
    def _find(self, key: KeyDigest) -> tuple[Status, TableEntry | None]:
        entry = self._table.index.get(key)
        if entry is None:
            return Status.MISS, None
        phase = settle(self._machine, self._table, entry)
        if phase == READY.value:
            return Status.OK, entry
        return (Status.MISS if phase == DEAD.value else Status.NOT_READY), entry

    def _own(self, key: KeyDigest, place: Place) -> TableEntry | None:
        entry = self._table.at(place.owner, place.slot, place.epoch)
        return entry if entry is not None and entry.key == key else None

    def _acknowledge(self, place: Place) -> None:
        """The producer writes no more: free its object if it is in quarantine."""
        entry = self._table.held(place.owner, place.slot, place.epoch)
        if entry is not None:
            release(self._machine, self._table, entry)

    def _remove(self, entry: TableEntry, kind: int = REMOVED.value) -> Status:
        if kill(self._machine, entry, READY.value) != State(READY.value, 0, entry.place.epoch):
            return Status.PINNED
        release(self._machine, self._table, entry, kind)
        return Status.OK

    def _evict(self, owner: int, limit: int) -> int:
        pages = self._table.spaces[owner].pages
        gone = 0
        if pages.used > limit:
            for _ in evict(self._machine, self._table, owner, self._policy):
                gone += 1
                self._evicted += 1
                if pages.used <= limit:
                    break
        return gone

    def _allocate(self, owner: int, n_pages: int) -> tuple[int, int] | Status:
        """A header slot and the first of `n_pages` pages, or why there are none. Evicts if the master may."""
        space = self._table.spaces[owner]
        if n_pages > space.pages.count:
            return Status.TOO_LARGE
        if not self._may_evict:
            got = space.take(n_pages)
        else:
            self._evict(owner, goal(space.pages.count, n_pages, space.pages.used, self._water))
            got = space.take(n_pages) or self._take_evicting(owner, n_pages)
        return got or (Status.FULL if space.slots.free else Status.NO_HEADER)

    def _take_evicting(self, owner: int, n_pages: int) -> tuple[int, int] | None:
        """Free pages lie scattered, or every slot is in use: evict one object after the other until it fits."""
        got = None
        for _ in evict(self._machine, self._table, owner, self._policy):
            self._evicted += 1
            got = self._table.spaces[owner].take(n_pages)
            if got:
                break
        return got

    def _install(
        self,
        key: KeyDigest,
        owner: int,
        slot: int,
        page: int,
        n_pages: int,
        nbytes: int,
        what: Descriptor,
        plan: bool,
        producer: tuple[int, int],
    ) -> TableEntry:
        rank, incarnation = producer
        payload = self._geometry.offsets["heap_base"] + page * self._geometry.page_bytes
        flags = (FLAG_PLAN.value if plan else 0) | producer_word(rank, incarnation) << 32
        signed = int(np.uint64(flags).view(np.int64))  # words are signed; an incarnation may reach the top bit
        place = Place(owner, slot, 0, payload, nbytes)
        epoch = self._machine.install(key, place, signed, what, now_ns())
        who = (rank, incarnation & PRODUCER_INC_MASK.value)
        entry = TableEntry(key, place._replace(epoch=epoch), page, n_pages, what, who, self._clock())
        self._table.add(entry)
        return entry

    def _count(self, owner: int, field: str, more: int) -> None:
        """Add to a counter in the owner's HeapCtl; in v1 only the master writes it."""
        if more:
            have = int(self._machine.control(owner)[0][field])
            self._machine.set_control(owner, field, have + more)


def _refused(status: Status) -> Begun:
    return Begun(status, NOWHERE, -1)
