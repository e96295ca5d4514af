"""The segments of a world of another process of this host, as a guest maps them.

The owner's process has let it in (`LocalWorld.admit`), and has given it the descriptor of the memory. A guest is a
producer and a reader like a rank: it has a number, an incarnation, and a record of what it has in flight in each
segment. It owns no segment and has no poller, and no key has its home with it.

Guarantees
- While a guest is there, the owner takes nothing back that it may touch: it counts itself in flight as ranks do
  (`device/protocol/activity.py`).
- When it has ended, however that happens, the pollers of the owner take what it left: it is a dead producer.

Why that suffices: the owner lets go of a guest when the connection over which it came has ended at the other end. The
kernel closes the descriptors of a process when none of its threads runs any more, and a guest that lives ends its
connection last. No child of a fork has the mapping.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from nanokv.device.machines.records import Bell
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import HEAP_CTL, WORD
from nanokv.heap.backing import Backing
from nanokv.heap.base import Liveness
from nanokv.heap.futex import Doorbell, WorldBell
from nanokv.heap.local import BELL_BYTES
from nanokv.heap.mapping import keep_from_children, populate, shared

_BLOCK = 512  #: bytes, of stat(2)
_CHUNK = 4 << 20  #: bytes, found at a time
_REST = 0.5  #: seconds between two looks for pages


class Admission(NamedTuple):
    """What a guest is told when it is let in."""

    number: int  #: behind the ranks
    incarnation: int


class GuestHeap:
    """A world that is mapped; a `Heap` whose rank is the guest's number.

    Args:
        memory: the descriptor of `LocalWorld.memory`; it may be closed afterwards.
        geometry: of the world.

    Raises:
        HeapUnavailable: the memory cannot be mapped.
    """

    kind = "guest"
    recovered = elastic = False
    device = torch.device("cpu")
    backing: Backing | None = None

    @torch.inference_mode(False)
    def __init__(self, name: str, memory: int, geometry: Geometry, admission: Admission) -> None:
        self.name, self.geometry, self.world_size = name, geometry, geometry.world_size
        self.rank, self.incarnation = admission
        size = geometry.segment_bytes
        word = shared(memory, 0, BELL_BYTES, "the bell")
        self._raw = [
            shared(memory, BELL_BYTES + rank * size, size, f"segment {rank}") for rank in range(self.world_size)
        ]
        for each in (word, *self._raw):
            keep_from_children(each)
        bell = WorldBell(word[:4].view(np.uint32))
        self._bells = [Doorbell(raw, bell) for raw in self._raw]
        self._segments = [torch.from_numpy(raw) for raw in self._raw]
        self.bases = [segment.data_ptr() for segment in self._segments]
        at = HEAP_CTL.offsets["closed"]
        self._closed = [raw[at : at + 4].view(np.uint32).data for raw in self._raw]
        at = HEAP_CTL.offsets["bump_ptr"]
        self._bumps = [raw[at : at + WORD].view(np.uint64).data for raw in self._raw]
        # Each process finds each page for itself, when it first uses it, which takes longer than a small put. So a
        # thread finds those that there are: what producers have used, or all if the owner has faulted them in.
        payload = geometry.offsets["heap_limit"] - geometry.offsets["heap_base"]
        self._is_whole = os.fstat(memory).st_blocks * _BLOCK >= self.world_size * payload
        self._found = [0] * self.world_size  # bytes of each segment
        threading.Thread(target=_find_pages, args=(weakref.ref(self),), name="nanokv-guest-pages", daemon=True).start()

    def find_some_pages(self) -> float:
        """Find some of the pages that there are. Returns seconds until there may be more; below 0: never."""
        end = self.geometry.offsets["heap_limit"]
        for rank, base in enumerate(self.bases):
            if self._closed[rank][0]:  # its memory may have been given back
                continue
            there = end if self._is_whole else min(int(self._bumps[rank][0]), end)
            size = min(_CHUNK, there - self._found[rank])
            if size > 0:
                self._found[rank] += size if populate(base + self._found[rank], size) else end
                return 0.0
        return _REST if min(self._found) < end else -1.0

    def segment(self, rank: int) -> torch.Tensor:
        return self._segments[rank]

    def host_view(self, rank: int) -> npt.NDArray[np.uint8] | None:
        return self._raw[rank]

    def alive(self, rank: int, incarnation: int) -> bool:
        return True  # only the owner knows who has ended

    def peer_closed(self, rank: int) -> bool:
        return bool(self._closed[rank][0])

    def liveness(self) -> Liveness:
        closed = [base + HEAP_CTL.offsets["closed"] for base in self.bases]
        return Liveness(closed, [True] * self.world_size, 0, 0, (self._raw,))

    def barrier(self, timeout: float) -> None:
        raise AssertionError("a guest is no rank, which all others would wait for")

    def wait_for_hint(self, timeout: float, seen: int) -> None:
        raise AssertionError("a guest has no segment, to which hints would come")

    def wait_for_any_hint(self, timeout: float, still: Callable[[], bool]) -> None:
        raise AssertionError("a guest hears of objects by events, as all nodes do")

    def world_bell(self) -> Bell | None:
        return None

    def wake(self, rank: int) -> None:
        self._bells[rank].ring()

    def close(self) -> None:
        """Let go of the memory: it stays mapped while something of it is in use."""


def _find_pages(heap: "weakref.ref[GuestHeap]") -> None:
    """Find pages as long as there may be more, and the heap is there."""
    rest = 0.0
    while rest >= 0.0:
        time.sleep(rest)
        there = heap()
        rest = -1.0 if there is None else there.find_some_pages()
        del there
