"""Statistics of one rank: the contents of its segment, and the bytes that it has moved."""

import threading
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
from nanokv.device.segment.host_records import TIMED
from nanokv.device.segment.layout import DEAD, PINS_SHIFT, READY, RESERVED, STATE_MASK, WRITING
from nanokv.errors import WaitTimeout
from nanokv.space.free_pages import FreePages, covered, run_lengths


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
    put_us_per_page: float  #: mean of whole calls of `put`, every 256th of which is timed; 0.0 if none was
    get_us_per_page: float  #: the same for `get`
    puts: int
    put_errors: int  #: puts that raised, and those of keys that existed (`exist_ok`)
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


_COUNTED_NATIVELY = (
    *("puts", "put_errors", "bytes_tx", "put_ns", "put_pages"),
    *("gets", "misses", "bytes_rx", "get_ns", "get_pages"),
)
_COUNTED = (*_COUNTED_NATIVELY, "timeouts")
_MISSES = (int(Status.MISS), int(Status.NOT_READY))
_TIMED: int = TIMED.value


class Traffic:
    """Counts the calls of one cache object, exactly, from any thread."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry, self._lock = geometry, threading.Lock()
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._native: Any = None

    def counted_natively(self, calls: Any) -> None:
        """Native calls count in a CALLS record, with the interpreter's lock, beside what is counted here."""
        self._native = calls

    def put_starts(self) -> int:
        """The clock in ns if this put is to be timed, else 0."""
        return perf_counter_ns() if self._counts["puts"] % _TIMED == 1 else 0

    def get_starts(self) -> int:
        """The clock in ns if this get is to be timed, else 0."""
        return perf_counter_ns() if self._counts["gets"] % _TIMED == 1 else 0

    def put(self, status: int, nbytes: int, started: int = 0) -> None:
        """Count a put. `started`: of `put_starts`."""
        if status:
            self._add(put_errors=1)
        else:
            self._add(puts=1, bytes_tx=nbytes, **self._time("put", nbytes, started))

    def put_all(self, objects: int, nbytes: int) -> None:
        """Count puts without an error."""
        self._add(puts=objects, bytes_tx=nbytes)

    def get_all(self, objects: int, nbytes: int) -> None:
        """Count gets that found an object."""
        self._add(gets=objects, bytes_rx=nbytes)

    def planned(self, nbytes: int) -> None:
        """Count an object that a kernel wrote."""
        self._add(puts=1, bytes_tx=nbytes)

    def get(self, status: int, nbytes: int, started: int = 0) -> None:
        """Count a get. `started`: of `get_starts`."""
        if not status:
            self._add(gets=1, bytes_rx=nbytes, **self._time("get", nbytes, started))
        elif status in _MISSES:
            self._add(misses=1)

    def timed_out(self) -> None:
        """Count a WaitTimeout."""
        self._add(timeouts=1)

    def _time(self, operation: str, nbytes: int, started: int) -> dict[str, int]:
        """The time of a call that began at `started`, if that is not 0. An empty object counts as a page."""
        if not started:
            return {}
        pages = max(self._geometry.pages_of(nbytes), 1)
        return {f"{operation}_ns": perf_counter_ns() - started, f"{operation}_pages": pages}

    def _add(self, **more: int) -> None:
        with self._lock:
            for name, count in more.items():
                self._counts[name] += count

    @contextmanager
    def counting_put_errors(self) -> Iterator[None]:
        """Count a put that is refused by an error."""
        try:
            yield
        except BaseException:
            self._add(put_errors=1)
            raise

    @contextmanager
    def counting_timeouts(self) -> Iterator[None]:
        """Count a WaitTimeout that ends the block."""
        try:
            yield
        except WaitTimeout:
            self.timed_out()
            raise

    def as_dict(self) -> dict[str, int | float]:
        """The counters, and the mean time of the timed calls per page in microseconds (0.0: none was timed)."""
        with self._lock:
            counts = dict(self._counts)
        if self._native is not None:
            counts |= {name: counts[name] + int(self._native[name]) for name in _COUNTED_NATIVELY}
        times = {
            f"{name}_us_per_page": counts[f"{name}_ns"] / max(counts[f"{name}_pages"], 1) / 1000
            for name in ("put", "get")
        }
        shown = ("puts", "put_errors", "bytes_tx", "gets", "misses", "bytes_rx", "timeouts")
        return {name: counts[name] for name in shown} | times
