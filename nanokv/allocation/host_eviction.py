"""Eviction by the host down to a share of its segment."""

import numpy as np

from nanokv.allocation.base import Allocation
from nanokv.device.machines.base import Machine
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.last_access import idle, stays
from nanokv.device.segment.layout import READY, STATE_MASK
from nanokv.space.water_marks import evict_pages
from nanokv.statistics import held_pages


def evict_until_below(machine: Machine, allocation: Allocation, rank: int, usage_ratio: float) -> int:
    """Evict until at most `usage_ratio` (0 to 1) of the pages is in use. Returns the number of objects evicted.

    Objects that are pinned, kept, leased or unfinished stay. v2 evicts by the policy of the segment, as producers do;
    v1 evicts those that were not used for longest, as their priorities count it.
    """
    headers = machine.headers(rank, 0, machine.geometry.hdr_count)
    pages = held_pages(machine.geometry, allocation.alloc, headers["n_pages"])
    surplus = int(pages.sum()) - usage_ratio * machine.geometry.n_pages
    if allocation.alloc == "device":
        return evict_pages(machine, rank, surplus, machine.geometry.hdr_count)[0]
    ready = np.flatnonzero((headers["state"] & STATE_MASK.value) == READY.value)
    now, words = now_ns(), headers["last_access"]
    ready = ready[~stays(words[ready], now)]
    gone = 0
    for slot in ready[(-idle(words[ready], now)).argsort(kind="stable")].tolist():
        if surplus <= 0:
            break
        if allocation.evict_slot(rank, slot, int(headers["epoch"][slot])) == Status.OK:
            surplus -= int(pages[slot])
            gone += 1
    return gone
