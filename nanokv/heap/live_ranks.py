"""Which ranks of a world of processes are there: its file answers, by locks that the kernel keeps (`locks`)."""

import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from nanokv.errors import HeapUnavailable, PeerLost
from nanokv.heap.world_entry import leave
from nanokv.heap.world_file import WorldFile

_POLL_FIRST, _POLL_LAST = 0.0005, 0.01  #: seconds between two looks at the others

#: Seconds for which `peer_closed` trusts what it found: each put asks, and asking the kernel takes 1.5 µs.
LIVENESS_SECONDS = 0.005


class LiveRanks:
    """The ranks of a world as one of them sees them; it holds the lock of that rank.

    Args:
        file: the world's file, with the lock of `rank`.
        records: the WorldRank of each rank, mapped.
        controls: the HeapCtl of each rank, an array of one in host memory: its magic says that the rank has come, its
            `closed` that it left.

    Attributes:
        leave: gives the rank back, once: by `close`, when this object goes, or when the process ends.
    """

    def __init__(self, file: WorldFile, rank: int, records: Any, controls: list[Any]) -> None:
        self.file = file
        self.rank = rank
        self._records = records
        self._controls = controls
        self._held_at = [-LIVENESS_SECONDS] * len(controls)
        self.leave = weakref.finalize(self, leave, file, rank, controls[rank]["closed"])

    def check_open(self) -> None:
        """Raise HeapUnavailable once left."""
        if not self.leave.alive:
            raise HeapUnavailable(f"rank {self.rank} has left world {self.file.name!r}")

    def is_alive(self, rank: int) -> bool:
        """False if it is certain that no process is this rank now."""
        return self.leave.alive if rank == self.rank else self.file.locks.held(rank)

    def has_come(self, rank: int) -> bool:
        """True if the rank has written its control block, and lives."""
        return rank == self.rank or bool(self._controls[rank]["magic"][0] and self.file.locks.held(rank))

    def peer_closed(self, rank: int) -> bool:
        """True if the rank has closed or ended; an end is seen LIVENESS_SECONDS later at the most."""
        if rank == self.rank:
            return not self.leave.alive
        if self._controls[rank]["closed"][0]:
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
        counts = self._records["barrier"]
        aim = int(counts[self.rank]) + 1
        counts[self.rank] = aim
        gone: list[int] = []

        def missing() -> list[int]:
            late: list[int] = np.flatnonzero(counts < aim).tolist()
            gone[:] = [r for r in late if self.peer_closed(r) and int(counts[r]) < aim]
            return [] if gone else late

        late = _wait_for_none(missing, time.monotonic() + timeout)
        if gone or late:
            counts[self.rank] = aim - 1
            why = (
                f"{gone} of world {self.file.name!r} have ended" if gone else f"{late} did not come within {timeout} s"
            )
            raise PeerLost(f"barrier: ranks {why}")

    def wait_for(self, missing: Callable[[], list[int]], deadline: float, timeout: float) -> None:
        """Wait until `missing` names no rank; PeerLost names those that it still does at `deadline`."""
        left = _wait_for_none(missing, deadline)
        if left:
            raise PeerLost(f"ranks {left} of world {self.file.name!r} did not come within {timeout} s")


def _wait_for_none(missing: Callable[[], list[int]], deadline: float) -> list[int]:
    """Look until no rank is missing or the time is up; returns the ranks that still are."""
    pause = _POLL_FIRST
    while True:
        left = missing()
        remaining = deadline - time.monotonic()
        if not left or remaining <= 0:
            return left
        time.sleep(min(pause, remaining))
        pause = min(2 * pause, _POLL_LAST)
