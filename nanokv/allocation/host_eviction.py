"""Eviction by the host down to a share of its segment, least recently used objects first."""

import time

import numpy as np

from nanokv.allocation.base import Allocation
from nanokv.device.machines.base import Machine
from nanokv.device.protocol.status import Status
from nanokv.device.segment.last_access import is_leased, time_of
from nanokv.device.segment.layout import READY, STATE_MASK
from nanokv.statistics import held_pages


def evict_until_below(machine: Machine, allocation: Allocation, rank: int, usage_ratio: float) -> int:
    """Evict until at most `usage_ratio` (0 to 1) of the pages is in use. Returns the number of objects evicted.

    Objects that are pinned, leased or unfinished stay.
    """
    headers = machine.headers(rank, 0, machine.geometry.hdr_count)
    ready = np.flatnonzero((headers["state"] & STATE_MASK.value) == READY.value)
    ready = ready[~is_leased(headers["last_access"][ready], time.time_ns())]
    order = ready[time_of(headers["last_access"][ready]).argsort(kind="stable")]
    pages = held_pages(machine.geometry, allocation.alloc, headers["n_pages"])
    aim = usage_ratio * machine.geometry.n_pages
    used = int(pages.sum())
    gone = 0
    for slot in order.tolist():
        if used <= aim:
            break
        if allocation.evict_slot(rank, slot, int(headers["epoch"][slot])) == Status.OK:
            used -= int(pages[slot])
            gone += 1
    return gone
