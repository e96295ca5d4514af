"""Statistics of one rank: the contents of its segment, and the bytes that it has moved."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from time import perf_counter_ns
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.base import Machine
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import DEAD, PINS_SHIFT, READY, RESERVED, STATE_MASK, WRITING
from nanokv.errors import WaitTimeout
from nanokv.host_poller.free_pages import FreePages, covered, run_lengths


class Stats(TypedDict):
    """What `NanoKVCache.stats` returns: one rank's segment, its calls, and the work of its poller."""

    rank: int
    alloc: str  #: "device" or "host"
    # the segment now: see HeapSnapshot
    heap_total: int
    heap_used: int
    usage: float  #: used by total
    used_pages: int
    free_pages: int
    quarantined_pages: int
    largest_free_extent: int
    internal_fragmentation: float
    external_fragmentation: float
    ready: int
    unfinished: int
    quarantined: int
    pinned: int
    bytes_stored: int
    ring_depth: int
    ring_missed: int
    evicted: int
    refused: int
    lost: int
    corrupt: int
    cas_failures: int
    # this cache's calls
    evictions: int  #: objects that they evicted, from any segment
    timeouts: int  #: waits, of `wait` and other calls with a timeout, that ended without what they waited for
    put_us_per_page: float  #: mean of whole calls of `put`, every 16th of which is timed; 0.0 if none was
    get_us_per_page: float  #: the same for `get`
    puts: int
    put_errors: int
    bytes_tx: int  #: bytes that it put
    gets: int
    misses: int
    bytes_rx: int  #: bytes that it got
    # copies of objects (docs/replicas.md)
    replicas: int  #: that this cache made, promotions too
    replicas_refused: int  #: that it could not make
    promotions: int  #: copies that it made because of its reads
    # the poller
    orphans: int  #: objects that the dead were writing in segments whose rank has ended, and that it gave up
    evicted_ahead: int  #: objects that it evicted to stay between the water marks; `evictions` counts them too
    indexed: int  #: objects in its index
    hints: int  #: hints that it took from the ring
    corrupt_hints: int
    removed: int  #: hints of removals; `evicted` counts evictions
    poller_failures: int  #: rounds that ended with an error
    # the sweeper: see host_poller.sweeper.SweepCounts
    sweeper_sweeps: int
    sweeper_found: int
    sweeper_given_up: int
    sweeper_orphaned: int
    sweeper_released: int
    sweeper_leaked_pages: int
    sweeper_leaked_slots: int
    sweeper_pins_dropped: int
    sweeper_joined: int
    sweeper_joined_ahead: int
    sweeper_expired: int


@dataclass(frozen=True)
class HeapSnapshot:
    """A segment at one moment, according to its headers, control words and links of pages.

    Producers are at work meanwhile: a page on its way from one place to another counts as neither used nor free.
    In v2 no extent is larger than one of the largest size class. So `external_fragmentation` compares with one of these
    if more than that is free: 0.0 means that joining would make no larger object fit.
    """

    heap_total: int  #: payload bytes
    heap_used: int  #: bytes of the extents that headers hold
    used_pages: int  #: of the same, in pages; those in quarantine too
    free_pages: int  #: in free extents, or never used; v1: those that no header holds
    quarantined_pages: int
    largest_free_extent: int  #: bytes of the largest extent (v1: run of pages) that a put finds without any joining
    internal_fragmentation: float  #: the share of READY objects' extents that their bytes do not fill; 0.0 without any
    external_fragmentation: float  #: the share of all free pages that the largest free extent lacks; 0.0 without any
    ready: int  #: READY objects
    unfinished: int  #: RESERVED or WRITING
    quarantined: int  #: DEAD, but still holding pages
    pinned: int
    bytes_stored: int  #: payload bytes of READY objects
    ring_depth: int
    ring_missed: int
    evicted: int
    refused: int
    lost: int
    corrupt: int
    cas_failures: int  #: compare-and-swaps on free lists and bump pointers that lost to another rank or thread

    def as_dict(self) -> dict[str, Any]:
        """The fields, and `usage`: used by total."""
        return asdict(self) | {"usage": self.heap_used / self.heap_total}

    @staticmethod
    def of(
        geometry: Geometry,
        control: Any,
        headers: npt.NDArray[Any],
        activity: npt.NDArray[Any],
        links: npt.NDArray[Any],
        alloc: str,
    ) -> "HeapSnapshot":
        """From a segment's HeapCtl, OBJ_HEADER and ACTIVITY records and page links. `alloc`: "device" or "host"."""
        return HeapSnapshot(
            heap_total=geometry.n_pages * geometry.page_bytes,
            ring_depth=int(control["ann_head"]) - int(control["ann_tail"]),
            ring_missed=int(control["missed"]),
            cas_failures=int(activity["retries"].sum()),
            **{name: int(control[name]) for name in ("evicted", "refused", "lost", "corrupt")},
            **_held_part(geometry, headers, alloc),
            **_free_part(geometry, control, headers, links, alloc),
        )


def held_pages(geometry: Geometry, alloc: str, n_pages: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The pages that objects of `n_pages` pages hold: in v2 a whole extent of a size class, in v1 exactly those."""
    return geometry.extent_pages(n_pages) if alloc == "device" else n_pages.astype(np.int64)


def _held_part(geometry: Geometry, headers: npt.NDArray[Any], alloc: str) -> dict[str, Any]:
    """The fields of a HeapSnapshot about objects and the pages that they hold."""
    state = headers["state"] & STATE_MASK.value
    ready = state == READY.value
    unfinished = (state == WRITING.value) | ((state == RESERVED.value) & (headers["epoch"] > 0))
    quarantined = (state == DEAD.value) & (headers["n_pages"] > 0)
    held = held_pages(geometry, alloc, headers["n_pages"])
    stored = int(headers["bytes_total"][ready].sum())
    return {
        "heap_used": int(held.sum()) * geometry.page_bytes,
        "used_pages": int(held.sum()),
        "quarantined_pages": int(held[quarantined].sum()),
        "internal_fragmentation": _lacking(stored, int(held[ready].sum()) * geometry.page_bytes),
        "ready": int(np.count_nonzero(ready)),
        "unfinished": int(np.count_nonzero(unfinished)),
        "quarantined": int(np.count_nonzero(quarantined)),
        "pinned": int(np.count_nonzero(ready & (headers["state"] >> PINS_SHIFT.value > 0))),
        "bytes_stored": stored,
    }


def _free_part(
    geometry: Geometry, control: Any, headers: npt.NDArray[Any], links: npt.NDArray[Any], alloc: str
) -> dict[str, Any]:
    """The fields of a HeapSnapshot about free pages."""
    if alloc == "device":
        extents = FreePages.of(geometry, links, int(control["bump_ptr"]))
        free, largest, most = extents.total, extents.largest, max(geometry.class_pages)
    else:
        runs = runs_between(geometry, headers)
        free, largest, most = int(runs.sum()), int(runs.max(initial=0)), geometry.n_pages
    return {
        "free_pages": free,
        "largest_free_extent": largest * geometry.page_bytes,
        "external_fragmentation": _lacking(largest, min(free, most)),
    }


def runs_between(geometry: Geometry, headers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The pages of each run that no header holds: in v1 the segment says nothing else of free pages."""
    sizes = headers["n_pages"].astype(np.int64)
    firsts = (headers["payload_base"].astype(np.int64) - geometry.offsets["heap_base"]) // geometry.page_bytes
    holding = (sizes > 0) & (firsts >= 0) & (firsts + sizes <= geometry.n_pages)
    return run_lengths(~covered(geometry.n_pages, firsts[holding], sizes[holding]))


def _lacking(part: int, whole: int) -> float:
    """The share of `whole` that `part` is not; 0.0 if `whole` is nothing."""
    return 1 - part / whole if whole else 0.0


def snapshot(machine: Machine, rank: int, alloc: str) -> HeapSnapshot:
    """Look at a rank's segment now. `alloc`: "device" or "host"."""
    geometry, control = machine.geometry, machine.control(rank)[0]
    used = min(int(control["hdr_head"]), geometry.hdr_count) if alloc == "device" else geometry.hdr_count
    headers, activity = machine.headers(rank, 0, used), machine.activity(rank)
    return HeapSnapshot.of(geometry, control, headers, activity, machine.page_links(rank), alloc)


_MISSES = (int(Status.MISS), int(Status.NOT_READY))
#: One of so many calls is timed, and not the first. It takes up to 2 us longer, in code that is rarely run: were it one
#: of a hundred or more, it would be the p99 of all.
TIMED = 256


class Traffic:
    """Counts the calls of one cache object. Inexact under threads: counting takes no lock."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self._put_time = PageTime()
        self._get_time = PageTime()
        self.puts = self.put_errors = self.bytes_tx = 0
        self.gets = self.misses = self.bytes_rx = 0
        self.timeouts = 0

    def put_starts(self) -> int:
        """The clock in ns if this put is to be timed, else 0."""
        return perf_counter_ns() if self.puts % TIMED == 1 else 0

    def get_starts(self) -> int:
        """The clock in ns if this get is to be timed, else 0."""
        return perf_counter_ns() if self.gets % TIMED == 1 else 0

    def put(self, status: int, nbytes: int, started: int = 0) -> None:
        """Count a put. `started`: of `put_starts`."""
        if status:
            self.put_errors += 1
        else:
            self.puts += 1
            self.bytes_tx += nbytes
            if started:
                self._put_time.add(started, self._geometry.pages_of(nbytes))

    def put_all(self, objects: int, nbytes: int) -> None:
        """Count puts without an error."""
        self.puts += objects
        self.bytes_tx += nbytes

    def get_all(self, objects: int, nbytes: int) -> None:
        """Count gets that found an object."""
        self.gets += objects
        self.bytes_rx += nbytes

    def planned(self, nbytes: int) -> None:
        """Count an object that a kernel wrote."""
        self.puts += 1
        self.bytes_tx += nbytes

    def get(self, status: int, nbytes: int, started: int = 0) -> None:
        """Count a get. `started`: of `get_starts`."""
        if status:
            self.misses += status in _MISSES
        else:
            self.gets += 1
            self.bytes_rx += nbytes
            if started:
                self._get_time.add(started, self._geometry.pages_of(nbytes))

    @contextmanager
    def counting_timeouts(self) -> Iterator[None]:
        """Count a WaitTimeout that ends the block."""
        try:
            yield
        except WaitTimeout:
            self.timeouts += 1
            raise

    def as_dict(self) -> dict[str, int | float]:
        """The counters."""
        names = ("puts", "put_errors", "bytes_tx", "gets", "misses", "bytes_rx", "timeouts")
        times = {"put_us_per_page": self._put_time.mean, "get_us_per_page": self._get_time.mean}
        return {name: getattr(self, name) for name in names} | times


class PageTime:
    """The mean time of a call per page."""

    def __init__(self) -> None:
        self._ns = self._pages = 0

    def add(self, started: int, pages: int) -> None:
        """Count a call that began at `started` (`perf_counter_ns`) and ends now. An empty object counts as a page."""
        self._ns += perf_counter_ns() - started
        self._pages += max(pages, 1)

    @property
    def mean(self) -> float:
        """In microseconds; 0.0 before the first call."""
        return self._ns / self._pages / 1000 if self._pages else 0.0
