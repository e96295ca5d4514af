"""The heap of several processes on one host: one file in shared memory, which every rank maps whole.

A rank's life: it takes the lock of its byte (`locks`), makes or takes over its segment, waits for the others, and gives
the lock back when it leaves; the kernel gives back the lock of a dead process. The last rank that leaves removes the
file (`world_file`). A rank that crashed may come back: its segment is as it left it, and its incarnation is one more.

In an elastic world a rank waits for nobody. The segment of a rank that has not come, or has left for good, is ABSENT:
its control region works, because each directory has a part of all keys; its payload has no blocks in the file, and no
producer gets a page of it. A rank that comes reserves the blocks, and opens the segment. A lazy one reserves them as
they are used (`backing`), or shortly before (`ahead`).
"""

import os
import tempfile
import time
import weakref
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.geometry import evicts_by
from nanokv.device.segment.last_access import move_times
from nanokv.device.segment.layout import ABSENT, CLOSED, HEAP_CTL
from nanokv.device.segment.views import SegmentView
from nanokv.errors import HeapUnavailable, InvalidArgument
from nanokv.heap.ahead import Ahead
from nanokv.heap.backing import Backing
from nanokv.heap.locks import LockFile
from nanokv.heap.mapping import PREFAULT_SECONDS, give_back, prefault
from nanokv.heap.process_heap import ProcessHeap, begin_incarnation
from nanokv.heap.shm_tools import ShmWorldInfo, inspect, list_worlds, remove_world
from nanokv.heap.world_entry import enter, leave
from nanokv.heap.world_file import WorldFile, directory, guest_lock
from nanokv.heap.world_spec import WorldSpec

__all__ = ["ShmHeap", "ShmWorldInfo", "attach", "inspect", "list_worlds", "remove_world", "why_not"]


class ShmHeap(ProcessHeap):
    """One rank of a world whose segments lie in its file. Made by `attach`."""

    kind = "shm"

    def __init__(self, spec: WorldSpec, rank: int, file: WorldFile, lazy: bool = False) -> None:
        super().__init__(spec, rank, file)
        self._lazy = lazy
        self.backing = Backing(file, self._map, spec.geometry) if spec.elastic else None
        self._ahead: weakref.finalize[[], Any] | None = None
        with torch.inference_mode(False):
            self._segments = [torch.from_numpy(part) for part in self._map.parts]
        self._views = [SegmentView(part, spec.geometry) for part in self._map.parts]
        self._incarnations = self._views[rank].activity["incarnation"]
        self.bases = [segment.data_ptr() for segment in self._segments]

    @classmethod
    def attach(cls, spec: WorldSpec, rank: int, *, lazy: bool = False) -> "ShmHeap":
        """Join the world `spec.name`, or make it, and wait until every rank is there (if it is not elastic).

        Args:
            lazy: this rank's payload, in an elastic world, takes memory only as it is used. If the folder of worlds is
                full by then, puts are answered as in a full segment; without it, the rank could not have joined.

        Raises:
            InvalidArgument: the name or the rank; or `lazy` in a world that is not elastic.
            HeapUnavailable: no room; the rank is taken; a stale name; a world of another size, geometry or mode.
            SegmentCorrupt: the file of that name is no world of this build, or is damaged.
            PeerLost: ranks that did not come in time, named.
        """
        spec.check_rank(rank)
        if lazy not in (True, False) or (lazy and not spec.elastic):
            raise InvalidArgument(f"lazy must be False, or True with elastic=True, not {lazy!r}")
        deadline = time.monotonic() + spec.timeout
        file = enter(spec, rank, deadline)
        fresh = file.control(file.header(), rank) is None or (spec.elastic and file.holds_nothing(file.header()))
        try:
            heap = cls(spec, rank, file, lazy)
            heap.found_world = not fresh
            before = heap._map.ranks["met"].tolist()
            heap._take_segment()
            file.unlock_world()
            heap._prefault(deadline)
            if lazy:
                heap._begin_ahead()
            if not spec.elastic:
                heap._meet(before, deadline)
        except BaseException:
            if fresh:
                leave(file, rank, None)
            else:
                file.locks.close()  # the world holds data: it stays, as a crash would leave it
            raise
        return heap

    # --- attaching, under the world lock ---
    def _take_segment(self) -> None:
        """Initialise this rank's segment, or take over what its last incarnation left."""
        spec, mine = self._spec, self._views[self.rank]
        absent = self._is_absent(self.rank)
        self.recovered = bool(mine.ctl["magic"][0]) and not absent
        if absent and not self._lazy:
            self._file.reserve_payload(self.geometry, self.rank)
        if absent and self.backing is not None:
            self.backing.begin(self.rank, whole=not self._lazy)
        self._join_activity()
        if self.recovered:
            self._renew_times(self.rank)
            self._forget_dead_guests()
        if self.recovered or absent:
            mine.ctl["water_lo"], mine.ctl["water_hi"] = spec.water
            mine.ctl["may_evict"] = evicts_by(spec.may_evict, spec.policy)
            mine.ctl["ann_asleep"] = 0
            mine.ctl["epoch"] += 1
            if absent:
                mine.ctl["closed"] = CLOSED  # if this process dies in between, the next one's audit finds the pages
                mine.ctl["bump_ptr"] = self.geometry.offsets["heap_base"]
            mine.ctl["closed"] = 0
        else:
            ctl = spec.control_block(self.rank, int(self._map.header["world_id"][0]))
            magic, ctl["magic"], ctl["epoch"] = int(ctl["magic"][0]), 0, 1
            mine.raw[: HEAP_CTL.size] = ctl.view(np.uint8)
            mine.ctl["magic"] = magic
        self._join_barrier()
        self._map.ranks[self.rank]["pid"] = os.getpid()

    def _renew_times(self, rank: int) -> None:
        """Move the times in a dead rank's segment if the machine has started anew since, or the namespace is another.

        A folder of worlds may lie on a disk (NANOKV_SHM_DIR). The time in which nobody was there does not count.
        """
        view, now = self._views[rank], now_ns()
        swept = int(view.ctl["swept_at"][0])
        if swept > now:
            move_times(view, now - swept)
            view.ctl["swept_at"] = now

    def _forget_dead_guests(self) -> None:
        """No operation of a guest that has ended is in flight. One that lives, or comes now, holds its lock."""
        rows = self._views[self.rank].activity[self.world_size :]
        for guest in np.flatnonzero(rows["in_flight0"] | rows["in_flight1"]).tolist():
            if self._file.locks.try_lock(guest_lock(guest)):
                rows[guest]["in_flight0"] = rows[guest]["in_flight1"] = 0
                self._file.locks.unlock(guest_lock(guest))

    def _join_activity(self) -> None:
        who = f"world {self.name!r}, which `nanokv rm` removes: rank {self.rank}"
        self.incarnation = begin_incarnation(who, [view.activity[self.rank] for view in self._views])

    def _join_barrier(self) -> None:
        """Lower this rank's barrier count to the smallest of the living: a new incarnation has come to no barrier."""
        counts = self._map.ranks["barrier"]
        living = [r for r in range(self.world_size) if r != self.rank and self._file.locks.held(r)]
        if living and self.elastic:
            counts[self.rank] = max(int(counts[r]) for r in living)  # it has no part in a barrier that has begun
        elif living:
            counts[self.rank] = min(int(counts[r]) for r in (self.rank, *living))
        else:
            counts[:] = 0

    # --- waiting for the others ---
    def _prefault(self, deadline: float) -> None:
        """Fault in this process' mapping: every control region, this rank's payload, then the others'."""
        at, first = self.geometry.offsets, int(self._map.header["segments_base"][0])
        order = [self.rank, *(r for r in range(self.world_size) if r != self.rank)]
        starts = [first + r * self.geometry.segment_bytes for r in order]
        control = [(start, at["heap_base"]) for start in starts]
        there = [start for rank, start in zip(order, starts, strict=True) if not self._is_absent(rank)]
        if self._lazy:
            there = []
        payload = [(start + at["heap_base"], at["heap_limit"] - at["heap_base"]) for start in there]
        prefault(self._map.area, control + payload, min(PREFAULT_SECONDS, deadline - time.monotonic()))

    def _begin_ahead(self) -> None:
        at, backing = self.geometry.offsets, self.backing
        assert backing is not None
        reserve = partial(backing.reach, self.rank)
        ahead = Ahead(
            self._map, self.bases[self.rank], self._views[self.rank].ctl, at["heap_base"], at["heap_limit"], reserve
        )
        self._ahead = weakref.finalize(self, ahead.close)

    def _end_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead()

    def file_for_guest(self) -> int:
        """See `HasGuests`."""
        self._check_open()
        return self._file.opened_again()

    def close(self) -> None:
        self._end_ahead()
        super().close()

    def _meet(self, before: list[int], deadline: float) -> None:
        """Wait until every rank is there, or was: a rank that met all others has changed its `met` from `before`."""
        met = self._map.ranks["met"]

        def missing() -> list[int]:
            return [r for r in range(self.world_size) if not self._has_come(r) and int(met[r]) == before[r]]

        self._wait_for(missing, deadline)
        # the lock also orders: this rank sees from here on what each rank wrote before it gave the lock back
        self._file.lock_world(time.monotonic() + self._spec.timeout)
        met[self.rank] += 1
        self._file.unlock_world()

    # --- leaving for good ---
    def _is_absent(self, rank: int) -> bool:
        return int(self._views[rank].ctl["closed"][0]) == ABSENT

    def mark_leaving(self, leaving: bool) -> None:
        self._check_open()
        self._views[self.rank].ctl["closed"] = CLOSED if leaving else 0

    def make_absent(self, rank: int) -> None:
        self._check_open()
        if rank == self.rank:
            self._end_ahead()
        view, at = self._views[rank], self.geometry.offsets
        view.page_links[:] = 0  # never used; dying here is as dying with the pages in hand
        view.ctl["closed"] = ABSENT
        if self.backing is not None:
            self.backing.end(rank)
        first = int(self._map.header["segments_base"][0]) + rank * self.geometry.segment_bytes
        give_back(self._map.area, first + at["heap_base"], self.geometry.segment_bytes - at["heap_base"])

    def begin_adoption(self, rank: int) -> None:
        self._check_open()
        self._file.lock_world(time.monotonic() + self._spec.timeout)
        try:
            if self._is_absent(rank):
                raise HeapUnavailable(f"rank {rank} of world {self.name!r} is absent: there is nothing to adopt")
            if rank == self.rank or not self._file.locks.try_lock(rank):
                raise HeapUnavailable(f"rank {rank} of world {self.name!r} is there, or is being adopted")
            self._views[rank].ctl["closed"] = CLOSED  # its lock is held, but it does not live
            self._renew_times(rank)
            for view in self._views:  # none of its operations is in flight
                view.activity[rank]["in_flight0"] = view.activity[rank]["in_flight1"] = 0
        finally:
            self._file.unlock_world()

    def end_adoption(self, rank: int) -> None:
        self._file.locks.unlock(rank)

    def host_view(self, rank: int) -> npt.NDArray[np.uint8]:
        self._check_open()
        return self._map.parts[rank]


attach = ShmHeap.attach


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
