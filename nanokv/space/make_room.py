"""What a host does after FULL in v2: it joins free extents, and evicts the objects in one run of pages if it may.

A producer on the device evicts one object for one. A host also makes room for an extent that is larger than each object
in its way.
"""

import time

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.last_access import idle, stays
from nanokv.device.segment.layout import READY
from nanokv.space.coalesce import join_free_extents
from nanokv.space.free_pages import pages_in

_JOIN_PATIENCE = 0.1  #: seconds to wait for another host that has detached the free extents, and may have lost its core
_FREE, _STUCK = np.iinfo(np.int64).min, np.iinfo(np.int64).max  #: costs of free pages, and of those that stay


def make_room(machine: Machine, owner: int, nbytes: int) -> bool:
    """Make room for an object of `nbytes` in a segment. Returns True if a put is worth another try."""
    geometry = machine.geometry
    waited, slow = _wait_for_joiner(machine, owner)
    largest = join_free_extents(machine, owner, over=slow)
    if largest < 0:  # another host began first
        _wait_for_joiner(machine, owner)
    if waited or largest < 0 or largest * geometry.page_bytes >= nbytes:
        return True
    size = min(n for n in geometry.class_pages if n * geometry.page_bytes >= nbytes)
    if not machine.control(owner)[0]["may_evict"] or not _evict_run(machine, owner, size):
        return False
    join_free_extents(machine, owner)
    return True


def _wait_for_joiner(machine: Machine, owner: int) -> tuple[bool, int]:
    """Wait while another host joins free extents: then FULL may be an accident.

    Returns (whether one did, its mark if it was too slow).
    """
    deadline = time.monotonic() + _JOIN_PATIENCE
    waited = False
    while (mark := machine.joining(owner)) and time.monotonic() < deadline:
        time.sleep(0.0001)
        waited = True
    return waited, mark


def _evict_run(machine: Machine, owner: int, size: int) -> bool:
    """Evict the objects in one run of `size` pages: the run whose newest object is the oldest.

    Its pages are free then, but in pieces: join them. False if every run has an object in it that is pinned, leased or
    unfinished.
    """
    geometry = machine.geometry
    headers = machine.headers(owner, 0, geometry.hdr_count)
    held = geometry.extent_pages(headers["n_pages"])
    first = (headers["payload_base"].astype(np.int64) - geometry.offsets["heap_base"]) // geometry.page_bytes
    ready = (headers["state"] == READY.value) & (held > 0) & (first >= 0) & (first + held <= geometry.n_pages)
    now = now_ns()
    victims = np.flatnonzero(ready & ~stays(headers["last_access"], now))
    if not victims.size:  # free pages alone were too small after the join
        return False
    newest = np.full(geometry.n_pages, _STUCK, np.int64)
    marks = machine.page_marks(owner)
    free = np.flatnonzero(marks)
    sizes = np.array(geometry.class_pages, np.int64)[marks[free] - 1]
    inside = free + sizes <= geometry.n_pages  # not so where links are corrupt
    newest[pages_in(free[inside], sizes[inside])] = _FREE
    ages = idle(headers["last_access"][victims], now)
    newest[pages_in(first[victims], held[victims])] = -ages.repeat(held[victims])
    runs = np.lib.stride_tricks.sliding_window_view(newest, size).max(axis=1)
    start = int(runs.argmin())
    if runs[start] == _STUCK:
        return False
    for slot in victims[(first[victims] < start + size) & (first[victims] + held[victims] > start)].tolist():
        machine.evict_slot(owner, slot, int(headers["epoch"][slot]), now)
    return True
