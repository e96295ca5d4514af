"""Puts at quiet moments, and whether each evicted what it need not have.

All other ranks keep still, no object is pinned or leased, and nothing waits in quarantine. So free pages can only
become more while a probe runs: pages that are free right before the put, and neighbours, are there for it. If they hold
the extent that it needs, then

- no object may go: the number of evictions in that segment must not move;
- the put must not be refused: a host joins free neighbours, and tries again.

One exception is documented (`device/protocol/joinable.py`): a host that joins holds all free pages meanwhile, and a
host that is slow, for longer than another one waits for it, may lose its mark to that one, which then misses the pages
that the slow one holds. Only the sweeper of the owner can be that slow host here. So a suspect is excused if and only
if its put took at least so long, and that sweeper has joined free extents since the probes began (`SoakWorld.probe`).
"""

from collections.abc import Callable
from contextlib import suppress
from random import Random
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np
import torch

from nanokv.cache.cache import NanoKVCache
from nanokv.check.machine.payloads import name
from nanokv.check.machine.random_calls import write_plan
from nanokv.check.machine.soak.objects import HALF_PAGES, bytes_of, make_object
from nanokv.device.segment.layout import READY
from nanokv.errors import KeyNotFound, OutOfMemory
from nanokv.host_poller.index import key_of
from nanokv.space.free_pages import FreePages

HOLE_PAGES = (2, 32)  #: pages whose objects are removed at once, at least and at most: free neighbours, in pieces
HOLES_SHARE = 0.2  #: of the probes begin with such a removal
PIECES_SHARE = 0.8  #: of the probes that can, ask for more pages than any free extent has
KEY_TRIES = 16


class Suspect(NamedTuple):
    """A probe that evicted, or was refused, though joined free pages would have held its object."""

    owner: int
    seconds: float  #: that the put took
    text: str


class ProbeReport(NamedTuple):
    """The probes of one rank."""

    puts: int  #: that were looked at
    with_room: int  #: of these: joined free pages would hold the object
    in_pieces: int  #: of these: but no free extent would
    evicting: int  #: that evicted
    suspects: list[Suspect]

    def plus(self, other: "ProbeReport") -> "ProbeReport":
        """The probes of both."""
        return ProbeReport(
            self.puts + other.puts,
            self.with_room + other.with_room,
            self.in_pieces + other.in_pieces,
            self.evicting + other.evicting,
            self.suspects + other.suspects,
        )


NO_PROBES = ProbeReport(0, 0, 0, 0, [])


class Worker(Protocol):
    """A rank of the soak, as its probes see it."""

    cache: NanoKVCache
    random: Random

    def key(self) -> int: ...
    def new_version(self, size: int | None) -> int: ...
    def do(self, call: Callable[[], None]) -> None: ...
    def compare(self, key: int, found: torch.Tensor, version: int | None) -> None: ...


class Probes:
    """The probes of one rank, one after the other."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.cache = worker.cache
        self.geometry = worker.cache.engine.geometry
        self.report = NO_PROBES

    def run(self, count: int) -> ProbeReport:
        """Do `count` probes, of all sizes, in all segments."""
        for _ in range(count):
            owner = self.worker.random.randrange(self.geometry.world_size)
            if self.worker.random.random() < HOLES_SHARE:
                self._punch_hole(owner)
            self._probe(owner)
        return self.report

    def _punch_hole(self, owner: int) -> None:
        """Remove the objects in some neighbouring pages of a segment."""
        dice, geometry = self.worker.random, self.geometry
        width = dice.randint(*HOLE_PAGES)
        begin = dice.randrange(geometry.n_pages - width)
        headers = self.cache.engine.machine.headers(owner, 0, geometry.hdr_count)
        first = (headers["payload_base"].astype(np.int64) - geometry.offsets["heap_base"]) // geometry.page_bytes
        inside = (headers["state"] == READY.value) & (first >= begin) & (first < begin + width)
        self.cache.remove_many([key_of(header) for header in headers[inside]])

    def free(self, owner: int) -> FreePages:
        """The free pages of a segment now."""
        machine = self.cache.engine.machine
        return FreePages.of(self.geometry, machine.page_links(owner), int(machine.control(owner)[0]["bump_ptr"]))

    def evicted(self, owner: int) -> int:
        """Objects evicted from a segment ever."""
        return int(self.cache.engine.machine.control(owner)[0]["evicted"])

    def _probe(self, owner: int) -> None:
        worker = self.worker
        key, version = self._unused_key(), worker.new_version(self._size(owner))
        nbytes = bytes_of(version, self.geometry.page_bytes)
        extent = self._extent(nbytes)
        free, before = self.free(owner), self.evicted(owner)
        start = perf_counter()
        refused = self._put(key, version, owner)
        seconds, gone = perf_counter() - start, self.evicted(owner) - before
        has_room = int(free.runs.max(initial=0)) >= extent
        suspects = []
        if has_room and (gone or refused):
            what = f"evicted {gone} objects" if gone else "was refused"
            runs, sizes = (np.sort(each)[-4:].tolist() for each in (free.runs, free.sizes))
            text = f"a put of {extent} pages into segment {owner} {what} after {seconds * 1000:.1f} ms, though "
            suspects = [Suspect(owner, seconds, f"{text}runs of {runs} pages were free, in extents of {sizes} pages")]
        in_pieces = has_room and free.largest < extent
        self.report = self.report.plus(ProbeReport(1, int(has_room), int(in_pieces), int(gone > 0), suspects))
        if not refused:
            self._read_back(key, version)

    def _extent(self, nbytes: int) -> int:
        """Pages of the extent that an object needs."""
        return int(self.geometry.extent_pages(np.array(self.geometry.pages_of(nbytes))))

    def _size(self, owner: int) -> int | None:
        """Mostly one that only joined free pages hold, if there is one; else None: any."""
        free = self.free(owner)
        extents = [self._extent(half * self.geometry.page_bytes // 2) for half in HALF_PAGES]
        joined = int(free.runs.max(initial=0))
        sizes = [size for size, extent in enumerate(extents) if free.largest < extent <= joined]
        return self.worker.random.choice(sizes) if sizes and self.worker.random.random() < PIECES_SHARE else None

    def _unused_key(self) -> int:
        """A key without an object; if a few tries do not find one, one that had one until now."""
        for _ in range(KEY_TRIES):
            key = self.worker.key()
            if not self.cache.exists(name(key)):
                return key
        with suppress(KeyNotFound):
            self.cache.remove(name(key))
        return key

    def _read_back(self, key: int, version: int) -> None:
        """The object that was just put is there, in this version."""

        def read_back() -> None:
            self.worker.compare(key, self.cache.get(name(key)), version)

        self.worker.do(read_back)

    def _put(self, key: int, version: int, owner: int) -> bool:
        """Put an object in one of three ways. Returns whether it was refused."""
        way = self.worker.random.randrange(3)
        tensor = make_object(key, version, self.geometry.page_bytes)
        try:
            if way == 0:
                self.cache.put(name(key), tensor, preferred_segment=owner)
            elif way == 1:
                (error,) = self.cache.put_many([name(key)], [tensor], preferred_segment=owner)
                if error is not None:
                    raise error
            else:
                write_plan(self.cache, name(key), tensor, owner)
                self.cache.commit(name(key))
        except OutOfMemory:
            return True
        return False
