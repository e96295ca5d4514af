"""The heap of several processes on one host: one file in shared memory, which every rank maps whole.

A rank's life: it takes the lock of its byte (`locks`), makes or takes over its segment, waits for the others, and gives
the lock back when it leaves, or when the kernel does it for the dead. The last one out removes the file
(`world_file`). A rank that crashed may come back: its segment is as it left it, and its incarnation is one more.
"""

import os
import tempfile
import time

import numpy as np
import numpy.typing as npt
import torch

from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import HEAP_CTL, PRODUCER_INC_MASK
from nanokv.device.segment.views import SegmentView
from nanokv.errors import PeerLost, SegmentCorrupt
from nanokv.heap.futex import Doorbell
from nanokv.heap.live_ranks import Roster, wait_for_none
from nanokv.heap.locks import LockFile
from nanokv.heap.mapping import PREFAULT_SECONDS, as_tensor, prefault
from nanokv.heap.shm_tools import ShmWorldInfo, inspect, list_worlds, remove_world
from nanokv.heap.world_entry import Stale, check_arguments, enter, leave
from nanokv.heap.world_file import HEADER, RANK, WorldFile, directory

__all__ = ["ShmHeap", "ShmWorldInfo", "inspect", "list_worlds", "remove_world", "why_not"]

MOST_ATTACHED = 1 << 31  #: times that a rank can have attached: more is a corrupt word


class ShmHeap:
    """One rank of a world of processes; a `Heap`. Made by `attach`."""

    kind = "shm"

    def __init__(self, file: WorldFile, geometry: Geometry, rank: int) -> None:
        self.name = file.name
        self.rank = rank
        self.world_size = geometry.world_size
        self.geometry = geometry
        self.incarnation = 0
        self.recovered = False
        self.device = torch.device("cpu")
        self._file = file
        self._area = file.map()
        whole = np.frombuffer(self._area, np.uint8)
        self._header = whole[: HEADER.size].view(HEADER.dtype)
        self._ranks = whole[HEADER.size : HEADER.size + self.world_size * RANK.size].view(RANK.dtype)
        first, size = int(self._header["segments_base"][0]), geometry.segment_bytes
        self._raw = [whole[at : at + size] for at in range(first, first + self.world_size * size, size)]
        self._views = [SegmentView(raw, geometry) for raw in self._raw]
        self._tensors = [as_tensor(raw) for raw in self._raw]
        self._bells = [Doorbell(raw) for raw in self._raw]
        self.bases = [int(raw.ctypes.data) for raw in self._raw]
        self._incarnations = self._views[rank].activity["incarnation"]
        self._roster = Roster(file, rank, self._ranks, [view.ctl["closed"] for view in self._views])
        self._leave = self._roster.leave

    @classmethod
    def attach(
        cls,
        name: str,
        geometry: Geometry,
        rank: int,
        *,
        mode: str,
        may_evict: bool,
        water: tuple[int, int],
        timeout: float,
        on_stale: Stale = "error",
    ) -> "ShmHeap":
        """Join the world `name`, or make it, and wait until every rank is there.

        Args:
            geometry: of every segment; its `world_size` ranks have to come.
            mode: "device" or "host". may_evict, water: see `Geometry.control_block`; of this rank's segment.
            timeout: seconds to wait for the other ranks.
            on_stale: what to do if the name is that of a world whose ranks are all dead: "error", "recover" it with
                what it holds, or "replace" it by an empty one. A world that never was complete is replaced always.

        Raises:
            InvalidArgument: the name, the rank, the mode or `on_stale`.
            HeapUnavailable: no room; the rank is taken; a stale name; a world of another size, geometry or mode.
            SegmentCorrupt: what lies under the name is no world of this build, or is damaged.
            PeerLost: ranks that did not come in time, named.
        """
        check_arguments(geometry, rank, mode, on_stale)
        deadline = time.monotonic() + timeout
        file = enter(name, geometry, rank, mode, on_stale, deadline)
        fresh = file.control(file.header(), rank) is None
        try:
            heap = cls(file, geometry, rank)
            before = heap._ranks["met"].tolist()
            heap._take_segment(mode, may_evict, water)
            file.unlock_world()
            heap._prefault(deadline)
            heap._meet(before, deadline, timeout)
        except BaseException:
            if fresh:
                leave(file, rank, None)
            else:
                file.locks.close()  # the world holds data: it stays, as a crash would leave it
            raise
        return heap

    # --- attaching, under the world lock ---
    def _take_segment(self, mode: str, may_evict: bool, water: tuple[int, int]) -> None:
        """Initialise this rank's segment, or take over what its last incarnation left."""
        mine = self._views[self.rank]
        self.recovered = bool(mine.ctl["magic"][0])
        self._join_activity()
        if self.recovered:
            mine.ctl["water_lo"], mine.ctl["water_hi"] = water
            mine.ctl["may_evict"] = int(may_evict)
            mine.ctl["ann_asleep"] = 0
            mine.ctl["epoch"] += 1
            mine.ctl["closed"] = 0
        else:
            world_id = int(self._header["world_id"][0])
            ctl = self.geometry.control_block(self.rank, world_id, mode, may_evict=may_evict, water=water)
            magic, ctl["magic"], ctl["epoch"] = int(ctl["magic"][0]), 0, 1
            mine.raw[: HEAP_CTL.size] = ctl.view(np.uint8)
            mine.ctl["magic"] = magic
        self._join_barrier()
        self._ranks[self.rank]["pid"] = os.getpid()

    def _join_activity(self) -> None:
        """Begin a new incarnation in every segment. The last one has ended: nothing of it is in flight."""
        records = [view.activity[self.rank] for view in self._views]
        said = [int(record["incarnation"]) for record in records]
        if max(said) > MOST_ATTACHED:
            raise SegmentCorrupt(
                f"world {self.name!r}: rank {self.rank} attached {max(said)} times, says the activity of rank "
                f"{said.index(max(said))}; `nanokv rm` removes the world"
            )
        self.incarnation = 1 + max(said)
        for record in records:
            record["in_flight0"] = record["in_flight1"] = 0
            record["incarnation"] = self.incarnation

    def _join_barrier(self) -> None:
        """Count as come to no barrier that the living have not all come to: this incarnation has not."""
        counts = self._ranks["barrier"]
        living = [r for r in range(self.world_size) if r != self.rank and self._file.locks.held(r)]
        if living:
            counts[self.rank] = min(int(counts[r]) for r in (self.rank, *living))
        else:
            counts[:] = 0

    # --- waiting for the others ---
    def _prefault(self, deadline: float) -> None:
        """Fault in this process' mapping: every control region, this rank's payload, then the others'."""
        at, first = self.geometry.offsets, int(self._header["segments_base"][0])
        order = [self.rank, *(r for r in range(self.world_size) if r != self.rank)]
        starts = [first + r * self.geometry.segment_bytes for r in order]
        control = [(start, at["heap_base"]) for start in starts]
        payload = [(start + at["heap_base"], at["heap_limit"] - at["heap_base"]) for start in starts]
        prefault(self._area, control + payload, min(PREFAULT_SECONDS, deadline - time.monotonic()))

    def _meet(self, before: list[int], deadline: float, timeout: float) -> None:
        """Wait until every rank is there. One that has met us and may be gone again has changed `met` from `before`."""
        met = self._ranks["met"]

        def missing() -> list[int]:
            return [r for r in range(self.world_size) if not self._is_there(r) and int(met[r]) == before[r]]

        left = wait_for_none(missing, deadline)
        if left:
            raise PeerLost(f"ranks {left} of world {self.name!r} did not come within {timeout} s")
        # the lock also orders: what each wrote before it gave the lock back is seen from here on
        self._file.lock_world(time.monotonic() + timeout)
        met[self.rank] += 1
        self._file.unlock_world()

    def _is_there(self, rank: int) -> bool:
        return rank == self.rank or bool(self._views[rank].ctl["magic"][0] and self._file.locks.held(rank))

    # --- the Heap ---
    def segment(self, rank: int) -> torch.Tensor:
        self._roster.check_open()
        return self._tensors[rank]

    def host_view(self, rank: int) -> npt.NDArray[np.uint8]:
        self._roster.check_open()
        return self._raw[rank]

    def alive(self, rank: int, incarnation: int) -> bool:
        if not 0 <= rank < self.world_size:
            return False
        if (int(self._incarnations[rank]) ^ incarnation) & PRODUCER_INC_MASK.value:
            return False
        return self._roster.lives(rank)

    def peer_closed(self, rank: int) -> bool:
        return self._roster.peer_closed(rank)

    def barrier(self, timeout: float) -> None:
        self._roster.barrier(timeout)

    def wait_for_hint(self, timeout: float, seen: int) -> None:
        self._bells[self.rank].wait(timeout, seen)

    def wake(self, rank: int) -> None:
        self._bells[rank].ring()

    def close(self) -> None:
        """Leave the world. The file goes with the last rank; the memory, when nobody views it any more."""
        self._leave()


def why_not() -> str | None:
    """None if worlds of processes work here, else why not."""
    try:
        with tempfile.TemporaryFile(dir=directory()) as probe:
            locks = LockFile(os.dup(probe.fileno()))
            try:
                return None if locks.try_lock(0) else "a fresh file is locked already"
            finally:
                locks.close()
    except (OSError, AttributeError) as error:
        return f"{directory()}: {error}"
