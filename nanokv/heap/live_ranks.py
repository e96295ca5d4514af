"""Who of a world of processes is there: what every provider whose ranks are processes asks its world's file."""

import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from nanokv.errors import HeapUnavailable, PeerLost
from nanokv.heap.world_entry import leave
from nanokv.heap.world_file import WorldFile

_POLL_FIRST, _POLL_LAST = 0.0005, 0.01  #: seconds between two looks at the others
LIVENESS_SECONDS = (
    0.005  #: how old an answer of `peer_closed` may be: each put asks, and asking the kernel takes 1.5 µs
)


class Roster:
    """The ranks of a world as one of them sees them; it holds the lock of that rank.

    Args:
        file: the world's file, with the lock of `rank`.
        ranks: the WorldRank records, mapped.
        closed: for each rank the word that says that it has closed, an array of one, in host memory.

    Attributes:
        leave: gives the rank back, once: by `close`, when the roster goes, or when the process ends.
    """

    def __init__(self, file: WorldFile, rank: int, ranks: Any, closed: list[Any]) -> None:
        self.file = file
        self.rank = rank
        self.ranks = ranks
        self._closed = closed
        self._held_at = [-LIVENESS_SECONDS] * len(closed)
        self.leave = weakref.finalize(self, leave, file, rank, closed[rank])

    def check_open(self) -> None:
        """Raise HeapUnavailable once left."""
        if not self.leave.alive:
            raise HeapUnavailable(f"rank {self.rank} has left world {self.file.name!r}")

    def lives(self, rank: int) -> bool:
        """False if it is certain that no process is this rank now."""
        return self.leave.alive if rank == self.rank else self.file.locks.held(rank)

    def peer_closed(self, rank: int) -> bool:
        """True if the rank has closed or ended; an end is seen LIVENESS_SECONDS later at the most."""
        if rank == self.rank:
            return not self.leave.alive
        if self._closed[rank][0]:
            return True
        now = time.monotonic()
        if now - self._held_at[rank] > LIVENESS_SECONDS:
            if not self.file.locks.held(rank):
                return True
            self._held_at[rank] = now
        return False

    def barrier(self, timeout: float) -> None:
        """Wait until every rank has come here. Raises as `Heap.barrier` does."""
        self.check_open()
        counts, mine = self.ranks["barrier"], self.ranks["barrier"][self.rank : self.rank + 1]
        aim = int(mine[0]) + 1
        mine[0] = aim
        gone: list[int] = []

        def missing() -> list[int]:
            late: list[int] = np.flatnonzero(counts < aim).tolist()
            gone[:] = [r for r in late if self.peer_closed(r) and int(counts[r]) < aim]
            return [] if gone else late

        late = wait_for_none(missing, time.monotonic() + timeout)
        if gone or late:
            mine[0] = aim - 1
            why = (
                f"{gone} of world {self.file.name!r} have ended" if gone else f"{late} did not come within {timeout} s"
            )
            raise PeerLost(f"barrier: ranks {why}")


def wait_for_none(missing: Callable[[], list[int]], deadline: float) -> list[int]:
    """Look until nobody is missing or the time is up; returns who is."""
    pause = _POLL_FIRST
    while True:
        left = missing()
        remaining = deadline - time.monotonic()
        if not left or remaining <= 0:
            return left
        time.sleep(min(pause, remaining))
        pause = min(2 * pause, _POLL_LAST)
