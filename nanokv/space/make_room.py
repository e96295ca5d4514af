"""What a host does after FULL in v2: it joins free extents, and evicts the objects in one run of pages if it may.

A producer on the device evicts one object for one. A host also makes room for an extent that is larger than each object
in its way.
"""

import time
from collections.abc import Callable

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.last_access import idle, stays
from nanokv.device.segment.layout import READY
from nanokv.space.coalesce import join_free_extents
from nanokv.space.free_pages import pages_in

_JOIN_PATIENCE = 1.0  #: seconds to wait for another host that has detached the free extents, and may have lost its core
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
    if not _evict_run(machine, owner, nbytes, geometry.n_pages):
        return False
    join_free_extents(machine, owner)
    return True


def put_before(machine: Machine, owner: int, nbytes: int, end: int, put: Callable[[], int]) -> int | None:
    """Put an object of `nbytes` before the page `end` of a segment, from which on none has memory.

    `put` is called while no other free page is in a list, and once more, after FULL, if objects that lie together could
    go. Returns its status, or None: another host joins free extents.
    """
    status: int | None = None

    def put_now() -> None:
        nonlocal status
        status = put()

    _, slow = _wait_for_joiner(machine, owner)
    join_free_extents(machine, owner, over=slow, end=end, before_end=put_now)
    if status == Status.FULL and _evict_run(machine, owner, nbytes, end):
        _, slow = _wait_for_joiner(machine, owner)
        join_free_extents(machine, owner, over=slow, end=end, before_end=put_now)
    return status


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


def _evict_run(machine: Machine, owner: int, nbytes: int, end: int) -> bool:
    """Evict the objects in one run of pages before `end` that holds `nbytes`: where the newest object is the oldest.

    Its pages are free then, but in pieces: join them. False if every run has an object in it that is pinned, leased or
    unfinished, or if nothing may be evicted.
    """
    geometry = machine.geometry
    size = min(n for n in geometry.class_pages if n * geometry.page_bytes >= nbytes)
    if size > end or not machine.control(owner)[0]["may_evict"]:
        return False
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
    runs = np.lib.stride_tricks.sliding_window_view(newest[:end], size).max(axis=1)
    start = int(runs.argmin())
    if runs[start] == _STUCK:
        return False
    for slot in victims[(first[victims] < start + size) & (first[victims] + held[victims] > start)].tolist():
        machine.evict_slot(owner, slot, int(headers["epoch"][slot]), now)
    return True
