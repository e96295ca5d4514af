"""The segments of a world of another process, as a guest maps them.

A guest is a producer and a reader like a rank: it has a number behind those of the ranks, an incarnation, and a record
of what it has in flight in each segment. It owns no segment and has no poller, and no key has its home with it. A
process of the world has given it a descriptor of the world's file (`HasGuests.file_for_guest`): that of a world with a
name, or one without (`local`).

It takes its number as a rank does: by the lock of a byte of the file (`world_file.guest_lock`), which the kernel gives
back when it has ended, however that happens. All ranks of the world see by that lock whether it lives.

Guarantees
- While a guest is there, no owner takes anything back that it may touch: it counts itself in flight as ranks do
  (`device/protocol/activity.py`).
- When it has ended, the pollers take what it left: it is a dead producer.

Why that suffices: the kernel closes the descriptors of a process when none of its threads runs any more, and a guest
that lives closes its file last. A child of a fork has neither the mapping nor the lock.
"""

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from nanokv.device.machines.records import Bell
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.host_records import SECOND
from nanokv.device.segment.layout import HEAP_CTL, WORD
from nanokv.device.segment.views import SegmentView
from nanokv.errors import HeapUnavailable
from nanokv.heap.backing import Backing
from nanokv.heap.base import Liveness
from nanokv.heap.futex import Doorbell, WorldBell
from nanokv.heap.locks import LockFile
from nanokv.heap.mapping import keep_from_children, populate
from nanokv.heap.process_heap import LIVENESS_SECONDS, begin_incarnation
from nanokv.heap.world_file import guest_lock, map_file
from nanokv.heap.world_file_layout import WORLD_MAGIC, WORLD_VERSION, segments_base

_BLOCK = 512  #: bytes, of stat(2)
_CHUNK = 4 << 20  #: bytes, found at a time
_BUMP = HEAP_CTL.offsets["bump_ptr"]
_REST = 0.5  #: seconds between two looks for pages


class _GuestFile:
    """What `Backing` needs of a world's file."""

    def __init__(self, name: str, locks: LockFile, geometry: Geometry) -> None:
        self.what, self.folder = f"member {name}", "the file system of its memory"
        self._locks, self._first, self._size = locks, segments_base(geometry.world_size), geometry.segment_bytes

    def free_bytes(self) -> int:
        """How many bytes its file system has left."""
        return self._locks.free_bytes()

    def reserve(self, geometry: Geometry, rank: int, start: int, end: int) -> bool:
        """Allocate the blocks of a part of a rank's segment. False if there is not enough memory."""
        return self._locks.allocate(self._first + rank * self._size + start, end - start)


class GuestHeap:
    """A world that is mapped; a `Heap` whose rank is the guest's number.

    Args:
        name: for messages.
        file: a descriptor of the world's file that shares no lock with others; it belongs to this object from here on.
        geometry: of the world.

    Raises:
        HeapUnavailable: the file cannot be mapped, is of another world or build, or has as many guests as it takes.
        SegmentCorrupt: a word of it cannot be.
    """

    kind = "guest"
    recovered = False
    device = torch.device("cpu")
    backing: Backing | None

    @torch.inference_mode(False)
    def __init__(self, name: str, file: int, geometry: Geometry) -> None:
        self.name, self.geometry, self.world_size = name, geometry, geometry.world_size
        try:
            # locks of an open of its own: those of the given one a child keeps that the giver has forked meanwhile
            self._locks = LockFile(os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC))
            try:
                self._map(file, geometry)
                self.rank = self._take_number()
                records = [each[self.rank] for each in self._activities]
                self.incarnation = begin_incarnation(f"guest {self.rank - self.world_size}", records)
                self._found = [0] * self.world_size  # bytes of each segment
                finder = threading.Thread(target=_find_pages, args=(weakref.ref(self),), name="nanokv-guest-pages")
                finder.daemon = True
                finder.start()
            except BaseException:
                self._locks.close()
                raise
        except OSError as error:
            raise HeapUnavailable(f"the file cannot be mapped: {error.strerror}") from None
        finally:
            os.close(file)

    def _map(self, file: int, geometry: Geometry) -> None:
        size, count = geometry.segment_bytes, self.world_size
        about = os.fstat(file)
        if about.st_size != segments_base(count) + count * size:
            raise HeapUnavailable(f"the file has {about.st_size} bytes, not those of {count} segments of {size}")
        mapped = map_file(file)
        head = mapped.header[0]
        stated = int(head["magic"]), int(head["version"]), int(head["world_size"]), int(head["segment_bytes"])
        if stated != (WORLD_MAGIC, WORLD_VERSION, count, size):
            raise HeapUnavailable("the file is that of no world, of another one, or of another version")
        for rank, part in enumerate(mapped.parts):
            why = geometry.mismatch(part[: HEAP_CTL.size].view(HEAP_CTL.dtype))
            if why:
                raise HeapUnavailable(f"segment {rank}: {why}")
        keep_from_children(mapped.area, about.st_size)
        self._mapped = mapped
        self.elastic = bool(mapped.options().get("elastic"))
        self.backing = Backing(_GuestFile(self.name, self._locks, geometry), mapped, geometry) if self.elastic else None
        bell = WorldBell(mapped.header["waiting"])
        self._bells = [Doorbell(part, bell) for part in mapped.parts]
        self._segments = [torch.from_numpy(part) for part in mapped.parts]
        self._activities = [SegmentView(part, geometry).activity for part in mapped.parts]
        self.bases = [segment.data_ptr() for segment in self._segments]
        controls = [part[: HEAP_CTL.size].view(HEAP_CTL.dtype) for part in mapped.parts]
        self._closed = [control["closed"].data for control in controls]
        self._bumps = [part[_BUMP : _BUMP + WORD].view(np.uint64).data for part in mapped.parts]
        self._trusted_until = [0.0] * count
        # Each process finds each page for itself, when it first uses it, which takes longer than a small put. So a
        # thread finds those that there are: what producers have used, or all if the owners have faulted them in.
        payload = geometry.offsets["heap_limit"] - geometry.offsets["heap_base"]
        self._is_whole = about.st_blocks * _BLOCK >= count * payload

    def _take_number(self) -> int:
        guests = self.geometry.guests
        number = next((guest for guest in range(guests) if self._locks.try_lock(guest_lock(guest))), None)
        if number is None:
            raise HeapUnavailable(f"the world has guests={guests}, and all are there")
        if all(self.peer_closed(rank) for rank in range(self.world_size)):  # who takes it over waits for no more guests
            raise HeapUnavailable("all ranks of the world have ended")
        return self.world_size + number

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
        return self._mapped.parts[rank]

    def alive(self, rank: int, incarnation: int) -> bool:
        return True  # the pollers of the ranks ask, and this is none

    def peer_closed(self, rank: int) -> bool:
        """Answer as `Heap.peer_closed`; the end of a process is seen LIVENESS_SECONDS later at the most."""
        now = time.monotonic()
        if self._closed[rank][0]:
            return True
        if now < self._trusted_until[rank]:
            return False
        if not self._locks.held(rank):
            return True
        self._trusted_until[rank] = now + LIVENESS_SECONDS
        return False

    def liveness(self) -> Liveness:
        closed = [base + HEAP_CTL.offsets["closed"] for base in self.bases]
        nobody, trust = [False] * self.world_size, int(LIVENESS_SECONDS * SECOND)
        word = ctypes.addressof(self._locks.word)
        return Liveness(closed, nobody, word, trust, (self._mapped, self._locks))

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
        """Give the number back. The memory stays mapped while something of it is in use. Idempotent."""
        self._locks.close()


def _find_pages(heap: "weakref.ref[GuestHeap]") -> None:
    """Find pages as long as there may be more, and the heap is there."""
    rest = 0.0
    while rest >= 0.0:
        time.sleep(rest)
        there = heap()
        rest = -1.0 if there is None else there.find_some_pages()
        del there
