"""Removing objects from a segment on the host's initiative: the least recently used, or those in the way."""

import numpy as np
import numpy.typing as npt

from nanokv.allocation.base import Allocation
from nanokv.device.machines.base import Machine
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import READY, STATE_MASK
from nanokv.statistics import extent_pages, snapshot

_STUCK = np.iinfo(np.uint64).max  #: pages that eviction cannot free


def evict_until_below(machine: Machine, allocation: Allocation, rank: int, usage_ratio: float) -> int:
    """Evict, least recently used first, until at most `usage_ratio` of the pages is in use; returns how many went.

    Objects that are pinned or unfinished stay.
    """
    headers = machine.headers(rank, 0, machine.geometry.hdr_count)
    ready = np.flatnonzero((headers["state"] & STATE_MASK.value) == READY.value)
    order = ready[headers["last_access"][ready].argsort(kind="stable")]
    pages = extent_pages(machine.geometry, allocation.alloc == "device", headers["n_pages"])
    aim = usage_ratio * machine.geometry.n_pages
    used = snapshot(machine, rank, allocation.alloc).used_pages
    gone = 0
    for slot in order.tolist():
        if used <= aim:
            break
        if allocation.remove_slot(rank, slot, int(headers["epoch"][slot])) == Status.OK:
            used -= int(pages[slot])
            gone += 1
    return gone


def evict_run(machine: Machine, owner: int, size: int) -> bool:
    """Evict what lies in one run of `size` pages: the run whose newest object is the oldest. v2 alone.

    Producers evict one object for one; this is for an extent that is larger than each of them. The pages are free
    then, but in pieces: join them. False if every run has pinned or unfinished objects in it.
    """
    geometry = machine.geometry
    headers = machine.headers(owner, 0, geometry.hdr_count)
    held = extent_pages(geometry, True, headers["n_pages"])
    first = (headers["payload_base"].astype(np.int64) - geometry.offsets["heap_base"]) // geometry.page_bytes
    ready = (headers["state"] == READY.value) & (held > 0) & (first >= 0) & (first + held <= geometry.n_pages)
    victims = np.flatnonzero(ready)
    newest = np.full(geometry.n_pages, _STUCK, np.uint64)
    marks = machine.page_marks(owner)
    free = np.flatnonzero(marks)
    sizes = np.array(geometry.class_pages, np.int64)[marks[free] - 1]
    inside = free + sizes <= geometry.n_pages  # not so where links are corrupt
    newest[_spans(free[inside], sizes[inside])] = 0
    newest[_spans(first[victims], held[victims])] = headers["last_access"][victims].repeat(held[victims])
    runs = np.lib.stride_tricks.sliding_window_view(newest, size).max(axis=1)
    start = int(runs.argmin())
    if runs[start] == _STUCK:
        return False
    inside = (first[victims] < start + size) & (first[victims] + held[victims] > start)
    for slot in victims[inside].tolist():
        machine.remove_slot(owner, slot, int(headers["epoch"][slot]))
    return True


def _spans(first: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The pages of extents, one after the other."""
    before = np.cumsum(sizes) - sizes
    return np.arange(sizes.sum()) + (first - before).repeat(sizes)
