"""Keeps a segment between its water marks, so that producers find room without evicting (v2; off by default).

When more than `water_hi` percent of the pages are in use, the owner's poller evicts by the segment's policy, as
producers do, until `water_lo` percent are. It evicts a few objects a round, so that no hint waits for long.
"""

import math

from nanokv.device.machines.base import Machine
from nanokv.device.segment.clock import now_ns

EVICTIONS_A_ROUND = 256


def evict_pages(machine: Machine, rank: int, surplus: float, most: int) -> tuple[int, float]:
    """Evict by the policy until `surplus` pages are free, or `most` objects are gone, or none may go.

    Returns:
        How many objects went, and what is left of the surplus; 0 if none may go.
    """
    gone = 0
    while surplus > 0 and gone < most:
        asked = min(most - gone, EVICTIONS_A_ROUND)
        went, freed = machine.evict_pages(rank, math.ceil(surplus), asked, now_ns())
        gone += went
        surplus -= freed
        if went < asked and surplus > 0:
            return gone, 0
    return gone, surplus


class WaterMarks:
    """The water marks of one rank's segment. Only the owner's poller thread uses it."""

    def __init__(self, machine: Machine, rank: int) -> None:
        self._machine = machine
        self._rank = rank
        self._surplus = 0.0

    def look(self, used: int) -> None:
        """Find out how many pages are too many. `used`: pages of all extents that headers hold."""
        geometry, control = self._machine.geometry, self._machine.control(self._rank)[0]
        low, high = (int(control[name]) * geometry.n_pages / 100 for name in ("water_lo", "water_hi"))
        self._surplus = used - low if control["may_evict"] and used > high else 0

    @property
    def exceeded(self) -> bool:
        """Whether pages are still too many, as far as the last look shows."""
        return self._surplus > 0

    def evict(self) -> int:
        """Evict some of what is too much. Returns the number of objects."""
        gone, self._surplus = evict_pages(self._machine, self._rank, self._surplus, EVICTIONS_A_ROUND)
        return gone
