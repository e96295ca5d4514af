"""What the heaps of processes share: ranks that meet by a file (`world_file`), whose locks tell which ranks live."""

import ctypes
import time
import weakref
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nanokv.device.machines.records import Bell
from nanokv.device.segment.host_records import SECOND
from nanokv.device.segment.layout import HEAP_CTL, PRODUCER_INC_MASK
from nanokv.errors import HeapUnavailable, PeerLost, SegmentCorrupt
from nanokv.heap.backing import Backing
from nanokv.heap.base import Liveness
from nanokv.heap.futex import DEVICE_POLL, Doorbell, WorldBell
from nanokv.heap.world_entry import leave
from nanokv.heap.world_file import WorldFile, guest_lock
from nanokv.heap.world_spec import WorldSpec

_POLL_FIRST, _POLL_LAST = 0.0005, 0.01  #: seconds between two looks at the others

#: Seconds for which `peer_closed` trusts what it found: each put asks, and asking the kernel takes 1.5 µs, and
#: 12 where that code is not in the processor's caches.
LIVENESS_SECONDS = 0.02
MOST_ATTACHED = 1 << 31  #: times that a rank or a guest can have attached: more is a corrupt word


class ProcessHeap:
    """One rank of a world of processes. A subclass attaches, and makes a `Heap` of it: it knows where segments lie.

    Args:
        spec: the world. rank: this one.
        file: the world's file, with the lock of `rank`. The part of each rank begins with its HeapCtl: the magic tells
            that the rank has come, `closed` that it left.
    """

    kind: str
    incarnation: int
    recovered = False
    device = torch.device("cpu")
    bases: list[int]
    backing: Backing | None = None

    def __init__(self, spec: WorldSpec, rank: int, file: WorldFile) -> None:
        self.name = spec.name
        self.rank = rank
        self.geometry = spec.geometry
        self.world_size = spec.geometry.world_size
        self.elastic = spec.elastic
        self._spec = spec
        self._file = file
        self._map = file.map()
        self._controls = [part[: HEAP_CTL.size].view(HEAP_CTL.dtype) for part in self._map.parts]
        self._refusals = int(self._map.header["refusals"][0])
        self._world_bell = WorldBell(self._map.header["waiting"])
        self._closed = [ctl["closed"].data for ctl in self._controls]  # read in a quarter of an array's time
        self._bells = [Doorbell(part, self._world_bell) for part in self._map.parts]
        self._segments: list[torch.Tensor] = []
        self._incarnations: Sequence[int] | npt.NDArray[np.uint64] = [1] * self.world_size
        self._trusted_until = [0.0] * self.world_size
        # gives the rank back, once: by `close`, when this object goes, or when the process ends
        self._leave = weakref.finalize(self, leave, file, rank, self._controls[rank]["closed"])
        self.leaves_its_world = False  #: `close` lets the world stay, as the death of this process would
        self.found_world = False  #: there may be objects in it that others have left

    def segment(self, rank: int) -> torch.Tensor:
        self._check_open()
        return self._segments[rank]

    def alive(self, rank: int, incarnation: int) -> bool:
        if not 0 <= rank < self.geometry.producers:
            return False
        if (int(self._incarnations[rank]) ^ incarnation) & PRODUCER_INC_MASK.value:
            return False
        if rank == self.rank:
            return self._leave.alive
        byte = rank if rank < self.world_size else guest_lock(rank - self.world_size)
        return self._file.locks.held(byte)

    def peer_closed(self, rank: int) -> bool:
        """Answer as `Heap.peer_closed`; the end of a process is seen LIVENESS_SECONDS later at the most."""
        now = monotonic()
        if now < self._trusted_until[rank] and not self._closed[rank][0]:
            return False
        if rank == self.rank:
            return bool(self._closed[rank][0]) or not self._leave.alive
        if self._closed[rank][0] or not self._file.locks.held(rank):
            return True
        self._trusted_until[rank] = now + LIVENESS_SECONDS
        return False

    def liveness(self) -> Liveness:
        closed = [ctl["closed"].ctypes.data for ctl in self._controls]
        mine = [rank == self.rank for rank in range(self.world_size)]
        locks = self._file.locks
        trust = int(LIVENESS_SECONDS * SECOND)
        return Liveness(closed, mine, ctypes.addressof(locks.word), trust, (self._controls, locks))

    def barrier(self, timeout: float) -> None:
        self._check_open()
        counts = self._map.ranks["barrier"]
        aim = int(counts[self.rank]) + 1
        counts[self.rank] = aim
        gone: list[int] = []

        def missing() -> list[int]:
            late: list[int] = np.flatnonzero(counts < aim).tolist()
            ended = [r for r in late if self.peer_closed(r) and int(counts[r]) < aim]
            if self.elastic:  # a barrier of those that are there
                return [r for r in late if r not in ended]
            gone[:] = ended
            return [] if gone else late

        late = _wait_for_none(missing, time.monotonic() + timeout)
        if gone or late:
            counts[self.rank] = aim - 1
            why = f"{gone} of world {self.name!r} have ended" if gone else f"{late} did not come within {timeout} s"
            raise PeerLost(f"barrier: ranks {why}")

    def wait_for_hint(self, timeout: float, seen: int) -> None:
        self._bells[self.rank].wait(timeout, seen)

    def wait_for_any_hint(self, timeout: float, still: Callable[[], bool]) -> None:
        if self.device.type != "cpu":  # no kernel rings
            timeout = min(timeout, DEVICE_POLL)
        self._world_bell.wait(self._bells, timeout, still)

    def world_bell(self) -> Bell | None:
        return self._world_bell.for_native_code

    def wake(self, rank: int) -> None:
        self._bells[rank].ring()

    def close(self) -> None:
        """Leave the world. The file goes with the last rank, unless it is to stay. Idempotent."""
        if self.leaves_its_world and self._leave.detach() is not None:
            self._file.locks.close()
        self._leave()

    def _check_open(self) -> None:
        if not self._leave.alive:
            raise HeapUnavailable(f"rank {self.rank} has left world {self.name!r}")

    def _has_come(self, rank: int) -> bool:
        """True if the rank has written its control block, and lives."""
        return rank == self.rank or bool(self._controls[rank]["magic"][0] and self._file.locks.held(rank))

    def _wait_for(self, missing: Callable[[], list[int]], deadline: float) -> None:
        """Wait until `missing` names no rank.

        Raises:
            PeerLost: it still names ranks at `deadline`.
            HeapUnavailable: a rank came whose options differ from those of this one.
        """

        def checked() -> list[int]:
            header = self._map.header[0]
            if int(header["refusals"]) != self._refusals:
                raise HeapUnavailable(header["refusal"].tobytes().rstrip(b"\0").decode(errors="replace"))
            return missing()

        left = _wait_for_none(checked, deadline)
        if left:
            raise PeerLost(f"ranks {left} of world {self.name!r} did not come within {self._spec.timeout} s")


def begin_incarnation(who: str, records: Sequence[Any]) -> int:
    """Begin a new incarnation of a rank or a guest. The last one has ended: none of its operations is in flight.

    Args:
        records: its ACTIVITY in each segment.

    Raises:
        SegmentCorrupt: it has attached more often than can be.
    """
    counts = [int(record["incarnation"]) for record in records]
    if max(counts) > MOST_ATTACHED:
        raise SegmentCorrupt(
            f"{who} attached {max(counts)} times, says the activity of rank {counts.index(max(counts))}"
        )
    incarnation = 1 + max(counts)
    for record in records:
        record["in_flight0"] = record["in_flight1"] = 0
        record["incarnation"] = incarnation
    return incarnation


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
