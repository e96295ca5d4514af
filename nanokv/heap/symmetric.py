"""The heap of processes whose segments a library of symmetric memory makes: everything but where memory comes from.

The library (a `Source`) gives each rank memory, and the addresses at which this process sees every rank's. Who is
there, who has died, barriers and waking go by a small file in host memory, as for `shm` (`roster`, `membership`): it
has a card for each rank, the HeapCtl of its segment. So a dead peer is known at once, and no call of the library,
which could only hang then, is made before all ranks are there.

    come: card written, lock held | all there: `met` | allocate | exchange | every segment is looked at | open

A segment dies with its process. So a rank cannot come back: the world ends, and a new one begins under its name once
the last rank has left or ended.
"""

import contextlib
import os
import time
import weakref
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from nanokv.device.segment.geometry import PAYLOAD_ALIGN, Geometry
from nanokv.device.segment.layout import HEAP_CTL, PRODUCER_INC_MASK
from nanokv.errors import HeapUnavailable, PeerLost
from nanokv.heap.futex import DEVICE_POLL, Doorbell
from nanokv.heap.live_ranks import Roster, wait_for_none
from nanokv.heap.mapped_tensor import tensor_at
from nanokv.heap.segment_in_tensor import control_of, finish_work, initialise, mark_closed, on
from nanokv.heap.world_entry import check_arguments, enter, leave
from nanokv.heap.world_file import HEADER, RANK, WorldFile
from nanokv.heap.world_file_layout import CARDS, directory

_POLL = 0.005  #: seconds between two looks whether the world before this one is gone


class Place(NamedTuple):
    """Who asks a source for memory."""

    rank: int
    world_size: int
    folder: Path  #: a directory that all ranks may make for their meeting; removed with the world
    timeout: float  #: seconds left for attaching


class Memory(NamedTuple):
    """What a source gives: one block for each rank, as this process sees them."""

    mine: torch.Tensor  #: this rank's: uint8, one dimension
    bases: list[int]  #: the address of every rank's block; 0 where this process cannot reach it
    heap_offset: int  #: where `mine` begins in the library's own heap
    owner: object  #: keeps the blocks of the others mapped


class Source(Protocol):
    """A library of symmetric memory. Its calls from `begin` on are collective: every rank makes them, in this order.

    Each raises HeapUnavailable if the library refuses, and says what the library said.
    """

    kind: str

    def check(self) -> None:
        """Find the library and the device, before anybody is told that this rank comes."""
        ...

    def begin(self, place: Place) -> None:
        """Bring the ranks together."""
        ...

    def allocate(self, nbytes: int) -> None:
        """Make this rank's block of at least `nbytes`."""
        ...

    def exchange(self) -> Memory:
        """Learn where the blocks of the others are."""
        ...

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        ...


class SymmetricHeap:
    """One rank of a world of processes, with its segment in memory of a library; a `Heap`. Made by `attach`."""

    incarnation = 1
    recovered = False

    def __init__(self, source: Source, file: WorldFile, geometry: Geometry, rank: int) -> None:
        self.kind = source.kind
        self.name = file.name
        self.rank = rank
        self.world_size = geometry.world_size
        self.geometry = geometry
        self.device = torch.device("cpu")
        self.bases: list[int] = []
        self._source = source
        self._let_go = weakref.finalize(self, source.close)
        self._file = file
        whole = np.frombuffer(file.map(), np.uint8)
        self._header = whole[: HEADER.size].view(HEADER.dtype)
        self._ranks = whole[HEADER.size : HEADER.size + self.world_size * RANK.size].view(RANK.dtype)
        first = int(self._header["segments_base"][0])
        self._cards = [whole[first + r * HEAP_CTL.size :][: HEAP_CTL.size] for r in range(self.world_size)]
        self._controls = [card.view(HEAP_CTL.dtype) for card in self._cards]
        self._roster = Roster(file, rank, self._ranks, [ctl["closed"] for ctl in self._controls])
        self._segments: list[torch.Tensor] = []
        self._views: list[npt.NDArray[np.uint8] | None] = []
        self._bells = [Doorbell(card) for card in self._cards]

    @classmethod
    def attach(
        cls,
        source: Source,
        name: str,
        geometry: Geometry,
        rank: int,
        *,
        mode: str,
        may_evict: bool,
        water: tuple[int, int],
        timeout: float,
    ) -> "SymmetricHeap":
        """Join the world `name`, or make it, with every other rank. A collective call.

        Args:
            source: where memory comes from; used for this heap alone, and closed with it.
            geometry: of every segment; its `world_size` ranks have to come, all on this host.
            mode: "device" or "host". may_evict, water: see `Geometry.control_block`; of this rank's segment.
            timeout: seconds to wait for the other ranks. What the library waits for is not bounded by it.

        Raises:
            InvalidArgument: the name, the rank, the mode; or the library numbers ranks differently.
            HeapUnavailable: the library refuses; the rank is taken, or ended before and cannot come back; a world of
                another size, geometry or mode; segments that are not aligned, not alike, or out of reach.
            PeerLost: ranks that did not come in time, or ended while attaching, named.
        """
        check_arguments(geometry, rank, mode, "replace")
        source.check()
        deadline = time.monotonic() + timeout
        file = _enter(name, geometry, rank, mode, deadline)
        try:
            heap = cls(source, file, geometry, rank)
        except BaseException:
            leave(file, rank, None)
            raise
        try:
            ctl = geometry.control_block(rank, int(heap._header["world_id"][0]), mode, may_evict=may_evict, water=water)
            heap._write_card(ctl)
            file.unlock_world()
            heap._meet(deadline, timeout)
            heap._take_memory(ctl, deadline)
        except BaseException:
            heap._let_go()
            heap._roster.leave()
            raise
        return heap

    # --- attaching ---
    def _write_card(self, ctl: npt.NDArray[Any]) -> None:
        """Say who we are, under the world lock."""
        card = self._controls[self.rank]
        card["magic"] = 0
        rest = ctl.copy()
        rest["magic"] = 0
        self._cards[self.rank][:] = rest.view(np.uint8)
        mine = self._ranks[self.rank : self.rank + 1]
        mine["barrier"] = mine["heap_offset"] = 0
        mine["pid"] = os.getpid()
        card["magic"] = ctl["magic"]

    def _meet(self, deadline: float, timeout: float) -> None:
        """Wait until every rank is there, and say under the world lock that the world has begun."""
        met = self._ranks["met"]

        def missing() -> list[int]:
            away = [r for r in range(self.world_size) if not self._is_there(r)]
            ended = [r for r in away if met[r]]
            if ended:
                raise PeerLost(f"ranks {ended} of world {self.name!r} have ended while it began")
            return away

        while True:
            left = wait_for_none(missing, deadline)
            if left:
                raise PeerLost(f"ranks {left} of world {self.name!r} did not come within {timeout} s")
            self._file.lock_world(deadline)
            if not missing():
                met[self.rank] += 1
                self._file.unlock_world()
                return
            self._file.unlock_world()  # one that was there has ended since; another may come in its place

    def _is_there(self, rank: int) -> bool:
        return rank == self.rank or bool(self._controls[rank]["magic"][0] and self._file.locks.held(rank))

    def _take_memory(self, ctl: npt.NDArray[Any], deadline: float) -> None:
        """Get segments from the library, write our own, and look at all before anybody uses one."""

        def all_here() -> None:
            self._roster.barrier(round(max(deadline - time.monotonic(), 0.0), 3))

        all_here()  # so that what goes wrong from here on is known to everybody as what it is
        folder = directory() / f"nanokv-{self.kind}.{int(self._header['world_id'][0]):016x}.d"
        self._source.begin(Place(self.rank, self.world_size, folder, deadline - time.monotonic()))
        self._source.allocate(self.geometry.segment_bytes + PAYLOAD_ALIGN)
        all_here()  # who could not allocate has left: the others are told so, and do not wait inside the library
        memory = self._source.exchange()
        self._place_segments(memory)
        mine = self._segments[self.rank]
        with on(self.device):
            mine.zero_()
            initialise(mine, ctl, self.world_size)
            finish_work(self.device)
        all_here()
        self._check_alike()
        self._check_segments()
        all_here()  # nobody uses a world that somebody refuses

    def _place_segments(self, memory: Memory) -> None:
        """Put each segment at the first aligned address of its block."""
        away = [r for r, base in enumerate(memory.bases) if base == 0]
        if away:
            raise HeapUnavailable(f"world {self.name!r}: rank {self.rank} cannot reach the memory of ranks {away}")
        skip = -memory.bases[self.rank] % PAYLOAD_ALIGN
        bases = [base + skip for base in memory.bases]
        for rank, base in enumerate(bases):
            if base % PAYLOAD_ALIGN:
                raise HeapUnavailable(
                    f"world {self.name!r}: rank {self.rank} sees the segment of rank {rank} at {base:#x}, "
                    f"which is no multiple of {PAYLOAD_ALIGN}"
                )
        self._ranks["heap_offset"][self.rank] = memory.heap_offset + skip
        self.device, self.bases = memory.mine.device, bases
        size = self.geometry.segment_bytes
        self._segments = [
            memory.mine[skip : skip + size] if rank == self.rank else tensor_at(base, size, self.device, memory.owner)
            for rank, base in enumerate(bases)
        ]
        if self.device.type == "cpu":
            self._views = [tensor.numpy() for tensor in self._segments]
            self._bells = [Doorbell(view) for view in self._views if view is not None]
        else:
            self._views = [None] * self.world_size

    def _check_alike(self) -> None:
        """The segments begin at the same offset of the library's heap: only then do iris' functions find them."""
        for rank, offset in enumerate(self._ranks["heap_offset"].tolist()):
            mine = int(self._ranks["heap_offset"][self.rank])
            if offset != mine:
                raise HeapUnavailable(
                    f"world {self.name!r}: heap_offset is {offset} on rank {rank}, {mine} on rank {self.rank}: "
                    f"all ranks must have allocated the same from {self.kind} before"
                )

    def _check_segments(self) -> None:
        """Read every control block through its segment: a wrong base is found here, before anything is written."""
        world_id = int(self._header["world_id"][0])
        for rank, segment in enumerate(self._segments):
            with on(self.device):
                ctl = control_of(segment)
            where = f"world {self.name!r}: the segment of rank {rank} at {self.bases[rank]:#x}"
            why = self.geometry.mismatch(ctl)
            if why:
                raise HeapUnavailable(f"{where}: {why}")
            for field, wanted in (("rank", rank), ("world_id", world_id)):
                if int(ctl[0][field]) != wanted:
                    raise HeapUnavailable(f"{where}: {field} is {ctl[0][field]}, not {wanted}")

    # --- the Heap ---
    def segment(self, rank: int) -> torch.Tensor:
        self._roster.check_open()
        return self._segments[rank]

    def host_view(self, rank: int) -> npt.NDArray[np.uint8] | None:
        self._roster.check_open()
        return self._views[rank]

    def alive(self, rank: int, incarnation: int) -> bool:
        if not 0 <= rank < self.world_size or incarnation & PRODUCER_INC_MASK.value != self.incarnation:
            return False
        return self._roster.lives(rank)

    def peer_closed(self, rank: int) -> bool:
        return self._roster.peer_closed(rank)

    def barrier(self, timeout: float) -> None:
        self._roster.barrier(timeout)

    def wait_for_hint(self, timeout: float, seen: int) -> None:
        if self.device.type != "cpu":
            # no kernel rings: the card's `ann_head` never moves, and the poller looks at the ring every DEVICE_POLL
            self._controls[self.rank]["ann_head"] = seen
            timeout = min(timeout, DEVICE_POLL)
        self._bells[self.rank].wait(timeout, seen)

    def wake(self, rank: int) -> None:
        self._bells[rank].ring()

    def close(self) -> None:
        """Leave the world, and let go of the memory. Idempotent; what others still read stays mapped for them."""
        if not self._roster.leave.alive:
            return
        with contextlib.suppress(RuntimeError), on(self.device):  # a GPU that has failed takes no stores any more
            mark_closed(self._segments[self.rank])
            finish_work(self.device)
        self._roster.leave()
        self._segments, self._views = [], []
        self._let_go()


def _enter(name: str, geometry: Geometry, rank: int, mode: str, deadline: float) -> WorldFile:
    """Open or make a world that has not begun, and take the rank's lock. Returns with the world lock held.

    A world that this rank has closed is about to end: wait for it. One in which it died is not, so that is refused.
    """
    while True:
        file = enter(name, geometry, rank, mode, "replace", deadline, CARDS)
        if not any(int(file.rank_record(r)["met"]) for r in range(geometry.world_size)):
            return file
        ctl = file.control(file.header(), rank)
        file.locks.close()
        closed = ctl is not None and bool(ctl[0]["closed"])
        if not closed or time.monotonic() >= deadline:
            how = "closed" if closed else "died"
            raise HeapUnavailable(
                f"rank {rank} of world {name!r} has {how}, and its segment is gone: it cannot come back; "
                "all ranks must leave, then the world can begin anew"
            )
        time.sleep(_POLL)
