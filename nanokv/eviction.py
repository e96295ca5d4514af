"""Removing objects from this rank's segment on the host's initiative: the least recently used, or all."""

import numpy as np

from nanokv.device.layout import READY, STATE_MASK
from nanokv.device.machine import Machine
from nanokv.device.status import Status
from nanokv.path import Path
from nanokv.statistics import extent_pages, snapshot


def evict_until_below(machine: Machine, path: Path, rank: int, usage_ratio: float) -> int:
    """Evict, least recently used first, until at most `usage_ratio` of the pages is in use; returns how many went.

    Objects that are pinned or unfinished stay.
    """
    headers = machine.headers(rank, 0, machine.geometry.hdr_count)
    ready = np.flatnonzero((headers["state"] & STATE_MASK.value) == READY.value)
    order = ready[headers["last_access"][ready].argsort(kind="stable")]
    pages = extent_pages(machine.geometry, path.alloc == "device", headers["n_pages"])
    aim = usage_ratio * machine.geometry.n_pages
    used = snapshot(machine, rank).used_pages
    gone = 0
    for slot in order.tolist():
        if used <= aim:
            break
        if path.remove_slot(rank, slot, int(headers["epoch"][slot])) == Status.OK:
            used -= int(pages[slot])
            gone += 1
    return gone
