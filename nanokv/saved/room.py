"""Whether a segment has room for an object, so that nothing has to be evicted for it.

A put evicts where it finds no room. A load asks before each put instead: it counts what it takes, and looks again where
it cannot be sure any more, and every REFRESH objects, because others put too. An estimate: if another producer takes
the room between the look and the put, one of the two evicts, as puts do.
"""

from math import inf

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Words
from nanokv.device.segment.layout import DEAD, STATE_MASK
from nanokv.heap.backing import Backing
from nanokv.space.coalesce import join_free_extents
from nanokv.space.free_pages import FreePages, most_lost
from nanokv.statistics import held_pages, runs_between

REFRESH = 256  #: objects after which it looks again: a look copies the headers and the links of all pages


class Room:
    """The room in one segment.

    Args:
        backing: of the segments' memory, where that comes as it is used.

    Attributes:
        slots: header slots that are free, about.
        pages: pages that may be taken, about: more would pass the high water mark.
    """

    def __init__(self, machine: Machine, alloc: str, owner: int, backing: Backing | None) -> None:
        self._machine = machine
        self._geometry = machine.geometry
        self._alloc = alloc
        self._owner = owner
        self._backing = backing
        self._too_many: float = inf  # pages of the smallest object that found no room
        self._look()

    def is_too_large(self, nbytes: int) -> bool:
        """Whether no object of this world has so many bytes."""
        if self._alloc == "device":
            return nbytes > self._geometry.max_object_bytes
        return self._geometry.pages_of(nbytes) > self._geometry.n_pages

    def pages_of(self, nbytes: int) -> int:
        """The pages that an object takes; it is not too large."""
        return int(held_pages(self._geometry, self._alloc, np.array([self._geometry.pages_of(nbytes)]))[0])

    def take(self, nbytes: int) -> bool:
        """Whether there is room for an object; then it counts as taken."""
        pages = self.pages_of(nbytes)
        if pages >= self._too_many:
            return False
        if not self._fits(pages) or self._since == REFRESH:
            self._look()
            if not self._fits(pages) and not self._join(pages):
                self._too_many = pages if self.slots else 0
                return False
        self._taken[pages] = self._taken.get(pages, 0) + 1
        self._since += 1
        self.slots -= 1
        self.pages -= pages
        return True

    def _fits(self, pages: int) -> bool:
        if self.slots <= 0 or pages > self.pages:
            return False
        if not pages:
            return True
        # what was taken since the look may have come out of the extents, or runs, that would hold this one
        lost = sum(self._lost(size, pages) * count for size, count in self._taken.items())
        return self._in_extents_of(pages) - lost >= pages

    def _lost(self, size: int, pages: int) -> int:
        """How many pages of extents of `pages` are lost at most where an extent of `size` is taken."""
        if self._free is None:
            return -(-size // pages) * pages
        return most_lost(self._geometry.class_pages, size, pages)

    def _in_extents_of(self, pages: int) -> int:
        if self._free is not None:
            return self._free.in_extents_of(pages)
        return int((self._runs // pages * pages).sum())

    def _join(self, pages: int) -> bool:
        """Join free extents if that makes room. (v1's are joined always.)"""
        if self._free is None or self.slots <= 0 or pages > self.pages or self._free.joined_to(pages) < pages:
            return False
        end = None if self._backing is None else self._backing.end_of(self._owner)
        join_free_extents(self._machine, self._owner, end=end)
        self._look()
        return self._fits(pages)

    def _look(self) -> None:
        machine, geometry = self._machine, self._geometry
        control, headers = machine.control(self._owner)[0], machine.headers(self._owner, 0, geometry.hdr_count)
        in_use = (headers["n_pages"] > 0) | (headers["epoch"] > 0) & (headers["state"] & STATE_MASK.value != DEAD.value)
        used = int(held_pages(geometry, self._alloc, headers["n_pages"]).sum())
        high = int(control["water_hi"]) if control["may_evict"] else 100
        self._free: FreePages | None = None
        self._runs: Words = np.zeros(0, np.int64)
        if self._alloc == "device":
            self._free = FreePages.of(geometry, machine.page_links(self._owner), int(control["bump_ptr"]))
            total = self._free.total
        else:
            self._runs = runs_between(geometry, headers)
            total = int(self._runs.sum())
        self.slots = geometry.hdr_count - int(np.count_nonzero(in_use))
        self.pages = min(total, geometry.n_pages * high // 100 - used)
        self._taken: dict[int, int] = {}
        self._since = 0
