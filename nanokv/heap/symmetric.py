"""The heap of processes whose segments a library of symmetric memory makes: everything but where memory comes from.

The library (a `MemorySource`) gives each rank a block of memory, and the addresses at which this process sees all
blocks. Liveness, barriers and waking use a small file in host memory, as for `shm` (`process_heap`, `world_entry`). It
has one card per rank: the HeapCtl of its segment. So a dead peer is known at once, and no call of the library, which
could only hang then, is made before all ranks are there.

    come: card written, lock held | all there: `met` | allocate | exchange | every segment is looked at | open

A segment dies with its process, so a rank cannot come back. The world ends, and a new one begins under its name once
the last rank has left or ended.
"""

import contextlib
import os
import time
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nanokv.device.segment.geometry import PAYLOAD_ALIGN
from nanokv.errors import HeapUnavailable, PeerLost
from nanokv.heap.futex import DEVICE_POLL, Doorbell
from nanokv.heap.mapped_tensor import tensor_at
from nanokv.heap.memory_source import Blocks, MemorySource
from nanokv.heap.process_group import MeetingPoint
from nanokv.heap.process_heap import ProcessHeap
from nanokv.heap.segment_in_tensor import control_of, finish_work, initialise, mark_closed, on_device
from nanokv.heap.world_entry import enter, leave
from nanokv.heap.world_file import WorldFile
from nanokv.heap.world_file_layout import CARDS, directory
from nanokv.heap.world_spec import WorldSpec

_POLL = 0.005  #: seconds between two looks for the end of the world before this one


class SymmetricHeap(ProcessHeap):
    """One rank of a world whose segments lie in memory of a library. Made by `attach`."""

    incarnation = 1

    def __init__(self, source: MemorySource, spec: WorldSpec, rank: int, file: WorldFile) -> None:
        super().__init__(spec, rank, file)
        self.kind = source.kind
        self.bases = []
        self._world_id = int(self._map.header["world_id"][0])
        self._source = source
        self._views: list[npt.NDArray[np.uint8]] = []
        self._let_go = weakref.finalize(self, source.close)

    @classmethod
    def attach(cls, source: MemorySource, spec: WorldSpec, rank: int) -> "SymmetricHeap":
        """Join the world `spec.name`, or make it, with every other rank, all on this host. A collective call.

        Args:
            source: where memory comes from; used only for this heap, and closed with it.
            spec: its timeout does not bound the library's own waits.

        Raises:
            InvalidArgument: the name or the rank; or the library numbers ranks differently.
            HeapUnavailable: the library refuses; the rank is taken, or ended before and cannot come back; a world of
                another size, geometry or mode; segments that are not aligned, not alike, or out of reach.
            PeerLost: ranks that did not come in time, or ended while attaching, named.
        """
        spec.check_rank(rank)
        deadline = time.monotonic() + spec.timeout
        file = _enter(spec, rank, deadline)
        try:
            heap = cls(source, spec, rank, file)
        except BaseException:
            leave(file, rank, None)
            raise
        try:
            ctl = spec.control_block(rank, heap._world_id)
            heap._write_card(ctl)
            file.unlock_world()
            heap._meet(deadline)
            heap._take_memory(ctl, deadline)
        except BaseException:
            heap._let_go()
            heap._leave()
            raise
        return heap

    # --- attaching ---
    def _write_card(self, ctl: npt.NDArray[Any]) -> None:
        """Show this rank to the others, under the world lock: its card, the magic last."""
        card = self._controls[self.rank]
        card["magic"] = 0
        rest = ctl.copy()
        rest["magic"] = 0
        card[:] = rest
        mine = self._map.ranks[self.rank : self.rank + 1]
        mine["barrier"] = mine["heap_offset"] = 0
        mine["pid"] = os.getpid()
        card["magic"] = ctl["magic"]

    def _meet(self, deadline: float) -> None:
        """Wait until every rank is there, and note under the world lock that the world has begun."""
        met = self._map.ranks["met"]

        def missing() -> list[int]:
            away = [r for r in range(self.world_size) if not self._has_come(r)]
            ended = [r for r in away if met[r]]
            if ended:
                raise PeerLost(f"ranks {ended} of world {self.name!r} have ended while it began")
            return away

        while True:
            self._wait_for(missing, deadline)
            self._file.lock_world(deadline)
            if not missing():
                met[self.rank] += 1
                self._file.unlock_world()
                return
            self._file.unlock_world()  # one that was there has ended since; another may come in its place

    @torch.inference_mode(False)
    def _take_memory(self, ctl: npt.NDArray[Any], deadline: float) -> None:
        """Get segments from the library, write this rank's, and check all before any rank uses one."""

        def all_here() -> None:
            self.barrier(round(max(deadline - time.monotonic(), 0.0), 3))

        all_here()  # from here on every rank learns that another one failed by its leaving
        folder = directory() / f"nanokv-{self.kind}.{self._world_id:016x}.d"
        self._source.begin(MeetingPoint(self.rank, self.world_size, folder, deadline - time.monotonic()))
        self._source.allocate(self.geometry.segment_bytes + PAYLOAD_ALIGN)
        all_here()  # a rank that could not allocate has left: PeerLost here, instead of a hang inside the library
        self._place_segments(self._source.exchange())
        mine = self._segments[self.rank]
        with on_device(self.device):
            mine.zero_()
            initialise(mine, ctl, [1] * self.world_size)
            finish_work(self.device)
        all_here()
        self._check_alike()
        self._check_segments()
        all_here()  # no rank uses a world that another one refuses

    def _place_segments(self, blocks: Blocks) -> None:
        """Put each segment at the first aligned address of its block."""
        away = [r for r, base in enumerate(blocks.bases) if base == 0]
        if away:
            raise HeapUnavailable(f"world {self.name!r}: rank {self.rank} cannot reach the memory of ranks {away}")
        skip = -blocks.bases[self.rank] % PAYLOAD_ALIGN
        bases = [base + skip for base in blocks.bases]
        for rank, base in enumerate(bases):
            if base % PAYLOAD_ALIGN:
                raise HeapUnavailable(
                    f"world {self.name!r}: rank {self.rank} sees the segment of rank {rank} at {base:#x}, "
                    f"which is no multiple of {PAYLOAD_ALIGN}"
                )
        self._map.ranks["heap_offset"][self.rank] = blocks.heap_offset + skip
        self.device, self.bases = blocks.mine.device, bases
        size = self.geometry.segment_bytes
        self._segments = [
            blocks.mine[skip : skip + size] if rank == self.rank else tensor_at(base, size, self.device, blocks.owner)
            for rank, base in enumerate(bases)
        ]
        if self.device.type == "cpu":
            self._views = [tensor.numpy() for tensor in self._segments]
            self._bells = [Doorbell(view, self._world_bell) for view in self._views]

    def _check_alike(self) -> None:
        """The segments begin at the same offset of the library's heap: only then do iris' functions find them."""
        offsets = self._map.ranks["heap_offset"].tolist()
        mine = offsets[self.rank]
        for rank, offset in enumerate(offsets):
            if offset != mine:
                raise HeapUnavailable(
                    f"world {self.name!r}: heap_offset is {offset} on rank {rank}, {mine} on rank {self.rank}: "
                    f"all ranks must have allocated the same from {self.kind} before"
                )

    def _check_segments(self) -> None:
        """Read every control block through its segment: a wrong base is found here, before anything is written."""
        for rank, segment in enumerate(self._segments):
            with on_device(self.device):
                ctl = control_of(segment)
            where = f"world {self.name!r}: the segment of rank {rank} at {self.bases[rank]:#x}"
            why = self.geometry.mismatch(ctl)
            if why:
                raise HeapUnavailable(f"{where}: {why}")
            for field, wanted in (("rank", rank), ("world_id", self._world_id)):
                if int(ctl[0][field]) != wanted:
                    raise HeapUnavailable(f"{where}: {field} is {ctl[0][field]}, not {wanted}")

    # --- the Heap ---
    def host_view(self, rank: int) -> npt.NDArray[np.uint8] | None:
        self._check_open()
        return self._views[rank] if self._views else None

    def wait_for_hint(self, timeout: float, seen: int) -> None:
        if self.device.type != "cpu":
            # no kernel rings, and the card's `ann_head` never moves: the poller looks at the ring every DEVICE_POLL
            self._controls[self.rank]["ann_head"] = seen
            timeout = min(timeout, DEVICE_POLL)
        super().wait_for_hint(timeout, seen)

    def world_bell(self) -> None:  # `close` gives back the memory that a waiting thread may look at
        return None

    def close(self) -> None:
        """Leave the world, and let go of the memory; the others keep it mapped until they close. Idempotent."""
        if not self._leave.alive:
            return
        with contextlib.suppress(RuntimeError), on_device(self.device):  # a GPU that has failed takes no stores
            mark_closed(self._segments[self.rank])
            finish_work(self.device)
        self._leave()
        self._segments, self._views = [], []
        self._bells = [Doorbell(part, self._world_bell) for part in self._map.parts]  # else they view memory given back
        self._let_go()


def _enter(spec: WorldSpec, rank: int, deadline: float) -> WorldFile:
    """Open or make a world that has not begun, and take the rank's lock. Returns with the world lock held.

    A world that this rank has closed is about to end: wait for that. A world in which it died is refused.
    """
    while True:
        file = enter(replace(spec, on_stale="replace"), rank, deadline, CARDS)
        if not any(int(file.rank_record(r)["met"]) for r in range(spec.geometry.world_size)):
            return file
        ctl = file.control(file.header(), rank)
        file.locks.close()
        closed = ctl is not None and bool(ctl[0]["closed"])
        if not closed or time.monotonic() >= deadline:
            how = "closed" if closed else "died"
            raise HeapUnavailable(
                f"rank {rank} of world {spec.name!r} has {how}, and its segment is gone: it cannot come back; "
                "all ranks must leave, then the world can begin anew"
            )
        time.sleep(_POLL)
