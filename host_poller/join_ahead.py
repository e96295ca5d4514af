"""Decides whether the sweeper joins free extents before a producer is refused a large one.

Joining is not free: while a host joins, a producer that finds no extent is answered FULL instead of evicting. So it
must be worth it. What counts is the size of the largest objects in use. Joining pays if it at least doubles the pages
that are free for objects of that size, and finds room for one more. So nothing is joined in a heap that stays full; and
once extents were joined, producers have to split half of them before they are joined again.
"""

import numpy as np

from nanokv.device.machines.base import Machine
from nanokv.host_poller.free_pages import FreePages
from nanokv.host_poller.header_pass import Totals

LATELY = 16  #: sweeps in which a size counts after a producer wanted it in vain
_GAIN = 2  #: joining must find so many times the pages that are there


class JoinAhead:
    """Decides for one rank's segment, once a sweep. Only the owner's poller thread uses it."""

    def __init__(self, machine: Machine, rank: int) -> None:
        self._machine = machine
        self._rank = rank
        self._wanted = 0
        self._sweeps_left = 0

    def note_wanted(self, size_class: int) -> None:
        """A producer was refused an extent of this class."""
        self._wanted = max(self._wanted, self._machine.geometry.class_pages[size_class])
        self._sweeps_left = LATELY

    def pays(self, totals: Totals) -> bool:
        """Whether joining is worth it now. `totals`: of a pass over the headers that has just ended."""
        geometry = self._machine.geometry
        size = max(int(geometry.extent_pages(np.array(totals.largest))), self._wanted_lately())
        if size <= geometry.class_pages[0]:
            return False
        if geometry.n_pages - totals.held_pages < size:
            return False
        bump_ptr = int(self._machine.control(self._rank)[0]["bump_ptr"])
        free = FreePages.of(geometry, self._machine.page_links(self._rank), bump_ptr)
        return free.joined_to(size) >= _GAIN * free.in_extents_of(size) + size

    def _wanted_lately(self) -> int:
        """Pages of the largest extent that a producer was refused lately, or 0."""
        if self._sweeps_left:
            self._sweeps_left -= 1
        else:
            self._wanted = 0
        return self._wanted
