"""The heap of several virtual ranks in one process: threads on a CPU, or kernels on one GPU or several.

All ranks die with the process, so a rank is alive until it closes, and never comes back; but in an elastic world ranks
join and leave. Then the memory of all segments is there from the start, and the system gives it as it is used.

Guests are other processes of this host that map the segments (`guest`). For them the segments lie in a file, as those
of a world of processes do, but for its name.
"""

import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nanokv.device.machines.records import Bell
from nanokv.device.segment.layout import ABSENT, ACTIVITY, ACTIVITY_BASE, CLOSED, HEAP_CTL, PRODUCER_INC_MASK, WORD
from nanokv.errors import HeapUnavailable, InvalidArgument, PeerLost
from nanokv.heap.backing import Backing
from nanokv.heap.base import Liveness
from nanokv.heap.futex import DEVICE_POLL, Doorbell, WorldBell
from nanokv.heap.gpu_driver import FineGrainedMemory, is_amd
from nanokv.heap.gpu_peer_access import check_pairs, enable_access
from nanokv.heap.locks import LockFile
from nanokv.heap.mapped_tensor import tensor_at
from nanokv.heap.mapping import anonymous, area_of, give_back, shareable, shared
from nanokv.heap.mapping import prefault as map_ahead
from nanokv.heap.segment_in_tensor import control_of, finish_work, initialise, mark_closed, on_device, store
from nanokv.heap.world_file import guest_lock
from nanokv.heap.world_file_layout import HEADER, RANK, WORLD_MAGIC, WORLD_VERSION, segments_base
from nanokv.heap.world_spec import WorldSpec

Device = str | torch.device


class LocalWorld:
    """The segments of a world in one process, and the objects that its ranks share.

    Args:
        spec: has `world_size` ranks, all made here. Its name, timeout and `on_stale` have no effect.
        ranks: those that are there from the start, if the world is elastic. None: all.
        device: "cpu", or a CUDA (ROCm) device; or several of them, which the ranks take in turn.

    Attributes:
        devices: where each rank's segment lies.
        shared: objects that the ranks share, by name.
        file: in which the segments lie, if guests may map them.

    Raises:
        InvalidArgument: a device that cannot hold segments, or CPU and GPUs in one world.
        HeapUnavailable: a device is not there, has not enough memory, or cannot reach another one's.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        spec: WorldSpec,
        *,
        device: Device | Sequence[Device] = "cpu",
        ranks: Collection[int] | None = None,
    ) -> None:
        self.spec = spec
        world_size = spec.geometry.world_size
        there = [ranks is None or rank in ranks for rank in range(world_size)]
        self.devices = _devices_of_ranks(device, world_size)
        self.shared: dict[str, Any] = {}
        if spec.geometry.guests and self.devices[0].type != "cpu":
            raise InvalidArgument(f"guests map segments in host memory, not on {self.devices[0]}")
        self.closed = [not here for here in there]
        self.incarnations = [int(here) for here in there]
        self.changed = threading.Condition()  #: guards `closed` and `arrived`
        self.leaving: set[int] = set()  #: ranks that peers see as closed
        self.adopted: set[int] = set()  #: ranks for which another one acts
        self.arrived = [0] * world_size
        world_id = secrets.randbits(63) | 1
        self.file = _SharedFile(spec, world_id, there) if spec.geometry.guests else None
        self.bell = WorldBell(np.zeros(1, np.uint32) if self.file is None else self.file.waiting)
        self.raw: list[npt.NDArray[np.uint8] | None] = []
        self.tensors: list[torch.Tensor] = []
        try:
            for rank in range(world_size):
                self._allocate(rank)
                block = (spec.control_block if there[rank] else spec.absent_block)(rank, world_id)
                initialise(self.tensors[rank], block, self.incarnations)
            enable_access(self.devices)
        except BaseException:
            if self.file is not None:
                self.file.close()
            raise
        self._heaps = [LocalHeap(self, rank) for rank in range(world_size)]

    def heap(self, rank: int) -> "LocalHeap":
        """The heap of a rank; the same object each time.

        Raises:
            InvalidArgument: no such rank.
            HeapUnavailable: it was closed.
        """
        self.spec.check_rank(rank)
        self._heaps[rank].check_open()
        return self._heaps[rank]

    @torch.inference_mode(False)
    def join(self, rank: int) -> "LocalHeap":
        """The heap of a rank that was not there, or has left; for the first time, or again.

        Raises:
            InvalidArgument: no such rank, or no elastic world.
            HeapUnavailable: the rank is there; or it has closed without leaving; or the world has ended.
        """
        self.spec.check_rank(rank)
        if not self.spec.elastic:
            raise InvalidArgument("only an elastic world can be joined: local_world(..., elastic=True)")
        with self.changed:
            if not self.closed[rank]:
                raise HeapUnavailable(f"rank {rank} is there already")
            if not self.tensors:
                raise HeapUnavailable("all ranks of the world have closed: it has ended")
            if int(control_of(self.tensors[rank])[0]["closed"]) != ABSENT:
                raise HeapUnavailable(
                    f"rank {rank} has closed without leaving: it cannot come back before its segment is adopted"
                )
            self.incarnations[rank] += 1
            self.arrived[rank] = max(n for n, closed in zip(self.arrived, self.closed, strict=True) if not closed)
            at = ACTIVITY_BASE.value + rank * ACTIVITY.size + ACTIVITY.offsets["incarnation"]
            for tensor in self.tensors:
                store(tensor, at, ACTIVITY.dtype["incarnation"], self.incarnations[rank])
            if self.file is not None:
                self.file.locks.try_lock(rank)
            epoch = int(control_of(self.tensors[rank])[0]["epoch"]) + 1
            first = self.spec.geometry.offsets["heap_base"]
            for name, value in (("epoch", epoch), ("bump_ptr", first), ("closed", 0)):
                store(self.tensors[rank], HEAP_CTL.offsets[name], HEAP_CTL.dtype[name], value)
            finish_work(self.devices[rank])
            self._heaps[rank] = LocalHeap(self, rank)
            self.closed[rank] = False
            self.changed.notify_all()
        return self._heaps[rank]

    @torch.inference_mode(False)
    def make_absent(self, rank: int) -> None:
        """See `ElasticHeap.make_absent`. Memory of a GPU stays: it belongs to one tensor."""
        at, tensor, raw = self.spec.geometry.offsets, self.tensors[rank], self.raw[rank]
        tensor[at["links_base"] :][: self.spec.geometry.n_pages * WORD].zero_()
        store(tensor, HEAP_CTL.offsets["closed"], HEAP_CTL.dtype["closed"], ABSENT)
        finish_work(self.devices[rank])
        if raw is not None:
            area, first = area_of(raw)
            give_back(area, first + at["heap_base"], self.spec.geometry.segment_bytes - at["heap_base"])

    def _allocate(self, rank: int) -> None:
        what, device, nbytes = f"segment {rank}", self.devices[rank], self.spec.geometry.segment_bytes
        if device.type == "cpu":
            raw = anonymous(nbytes, what) if self.file is None else self.file.segment(rank)
            self.raw.append(raw)
            self.tensors.append(torch.from_numpy(raw))
            return
        several = any(other != device for other in self.devices)
        try:
            if several and is_amd():
                self.tensors.append(_fine_grained(nbytes, device))
            else:
                self.tensors.append(torch.zeros(nbytes, dtype=torch.uint8, device=device))
        except RuntimeError as error:  # no such device, or torch.OutOfMemoryError
            raise HeapUnavailable(f"{what} needs {nbytes} bytes on {device}: {error}") from None
        self.raw.append(None)

    def wake(self, rank: int) -> None:
        """Wake the poller of a rank."""
        heap = self._heaps[rank]
        bell = heap.bell
        if bell is not None:
            bell.ring()
        else:
            heap.event.set()

    def bells(self) -> list[Doorbell]:
        """The bells of all segments; none where segments are not in host memory, or gone."""
        return [heap.bell for heap in self._heaps if heap.bell is not None]

    def leave(self, heap: "LocalHeap") -> None:
        """Close a rank. After the last one the segments go, as soon as nothing views them."""
        rank = heap.rank
        with self.changed:
            if heap.closed:
                return
            heap.closed = self.closed[rank] = True
            self.leaving.discard(rank)
            if int(control_of(self.tensors[rank])[0]["closed"]) != ABSENT:
                mark_closed(self.tensors[rank])
            if self.file is not None:
                self.file.locks.unlock(rank)
            if all(self.closed):
                self.raw, self.tensors = [], []
                if self.file is not None:
                    self.file.close()
                for each in self._heaps:
                    each.bell = None
                self.shared.clear()
            self.changed.notify_all()


class _SharedFile:
    """The file in which segments lie that guests may map: as that of a world of processes, and without a name."""

    def __init__(self, spec: WorldSpec, world_id: int, there: list[bool]) -> None:
        geometry, ranks = spec.geometry, spec.geometry.world_size
        self._first, self._size = segments_base(ranks), geometry.segment_bytes
        nbytes = self._first + ranks * self._size
        made = shareable(nbytes, f"world {spec.name}")
        self.locks = LockFile(made)
        weakref.finalize(self, self.locks.close)
        try:
            mapped = self.locks.opened_again()  # a mapping keeps the locks of the open that it was made from
            try:
                self._whole = shared(mapped, nbytes, f"world {spec.name}")
            finally:
                os.close(mapped)
        except BaseException:
            self.locks.close()
            raise
        header = self._whole[: HEADER.size].view(HEADER.dtype)
        words = self._whole[HEADER.size :][: ranks * RANK.size].view(RANK.dtype)
        row = header[0]
        row["version"], row["world_size"], row["world_id"] = WORLD_VERSION, ranks, world_id
        row["segments_base"], row["segment_bytes"] = self._first, self._size
        row["magic"] = WORLD_MAGIC
        words["backed"] = geometry.offsets["heap_limit"]
        self.waiting: npt.NDArray[np.uint32] = header["waiting"]
        for rank in (rank for rank, here in enumerate(there) if here):
            self.locks.try_lock(rank)

    def segment(self, rank: int) -> npt.NDArray[np.uint8]:
        """A rank's segment."""
        return self._whole[self._first + rank * self._size :][: self._size]

    def opened_again(self) -> int:
        """Another descriptor of the file, which shares no lock with this one. It is the caller's.

        Raises:
            HeapUnavailable: the world has ended, or the file cannot be opened.
        """
        try:
            return self.locks.opened_again()
        except OSError as error:
            raise HeapUnavailable(f"the memory of the world cannot be given to a guest: {error.strerror}") from None

    def close(self) -> None:
        """Close the file, which stays mapped where it is."""
        self.locks.close()


class LocalHeap:
    """One virtual rank; a `Heap`. Made by `LocalWorld.heap`."""

    kind = "local"
    name = "local"
    recovered = False
    backing: Backing | None = None

    def __init__(self, world: LocalWorld, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.geometry = world.spec.geometry
        self.world_size = self.geometry.world_size
        self.elastic = world.spec.elastic
        self.incarnation = world.incarnations[rank]
        self.closed = False
        self.device = world.devices[rank]
        self.bases = [tensor.data_ptr() for tensor in world.tensors]
        raw = world.raw[rank]
        self.bell: Doorbell | None = None if raw is None else Doorbell(raw, world.bell)
        self.event = threading.Event()  #: instead of the bell, where segments are not in host memory, or gone

    def segment(self, rank: int) -> torch.Tensor:
        self.check_open()
        return self.world.tensors[rank]

    def host_view(self, rank: int) -> npt.NDArray[np.uint8] | None:
        self.check_open()
        return self.world.raw[rank]

    def alive(self, rank: int, incarnation: int) -> bool:
        if self.world_size <= rank < self.geometry.producers:
            return self._guest_lives(rank, incarnation)
        if not 0 <= rank < self.world_size:
            return False
        if (incarnation ^ self.world.incarnations[rank]) & PRODUCER_INC_MASK.value:
            return False
        return not self.world.closed[rank]

    def _guest_lives(self, number: int, incarnation: int) -> bool:
        file, segment = self.world.file, self.world.raw[self.rank]
        assert file is not None and segment is not None
        at = ACTIVITY_BASE.value + number * ACTIVITY.size + ACTIVITY.offsets["incarnation"]
        latest = int(segment[at : at + WORD].view(np.uint64)[0])
        if (incarnation ^ latest) & PRODUCER_INC_MASK.value:
            return False
        return file.locks.held(guest_lock(number - self.world_size))

    def file_for_guest(self) -> int:
        """See `HasGuests`."""
        self.check_open()
        assert self.world.file is not None
        return self.world.file.opened_again()

    def peer_closed(self, rank: int) -> bool:
        return self.world.closed[rank] or rank in self.world.leaving

    def liveness(self) -> Liveness:
        closed = [base + HEAP_CTL.offsets["closed"] for base in self.bases]
        return Liveness(closed, [True] * self.world_size, 0, 0, (self.world.raw[:],))

    def barrier(self, timeout: float) -> None:
        self.check_open()
        world = self.world
        deadline = time.monotonic() + timeout
        with world.changed:
            world.arrived[self.rank] += 1
            aim = world.arrived[self.rank]
            world.changed.notify_all()
            while late := [r for r, count in enumerate(world.arrived) if count < aim]:
                gone = [r for r in late if world.closed[r]]
                if self.elastic:  # a barrier of those that are there
                    late, gone = [r for r in late if r not in gone], []
                    if not late:
                        return
                remaining = deadline - time.monotonic()
                if gone or remaining <= 0:
                    world.arrived[self.rank] -= 1
                    why = f"{gone} have closed" if gone else f"{late} did not come within {timeout} s"
                    raise PeerLost(f"barrier: ranks {why}")
                world.changed.wait(remaining)

    def wait_for_hint(self, timeout: float, seen: int) -> None:
        bell = self.bell
        if bell is not None:
            bell.wait(timeout, seen)
        else:
            self.event.wait(min(timeout, DEVICE_POLL))
            self.event.clear()

    def wait_for_any_hint(self, timeout: float, still: Callable[[], bool]) -> None:
        bells = self.world.bells()
        self.world.bell.wait(bells, timeout if bells else min(timeout, DEVICE_POLL), still)

    def world_bell(self) -> Bell | None:
        return self.world.bell.for_native_code if self.world.bells() else None

    def wake(self, rank: int) -> None:
        self.world.wake(rank)

    def mark_leaving(self, leaving: bool) -> None:
        self.check_open()
        (self.world.leaving.add if leaving else self.world.leaving.discard)(self.rank)
        kind = HEAP_CTL.dtype["closed"]
        store(self.world.tensors[self.rank], HEAP_CTL.offsets["closed"], kind, CLOSED if leaving else 0)

    def make_absent(self, rank: int) -> None:
        self.check_open()
        self.world.make_absent(rank)

    def begin_adoption(self, rank: int) -> None:
        self.check_open()
        world = self.world
        with world.changed:
            if int(control_of(world.tensors[rank])[0]["closed"]) == ABSENT:
                raise HeapUnavailable(f"rank {rank} is absent: there is nothing to adopt")
            if not world.closed[rank] or rank in world.adopted:
                raise HeapUnavailable(f"rank {rank} is there, or is being adopted")
            world.adopted.add(rank)

    def end_adoption(self, rank: int) -> None:
        self.world.adopted.discard(rank)

    def close(self) -> None:
        """Leave the world. Idempotent."""
        self.world.leave(self)

    def check_open(self) -> None:
        """Raise HeapUnavailable once closed."""
        if self.closed or self.world.closed[self.rank]:
            raise HeapUnavailable(f"rank {self.rank} has left its world")


def attach(
    spec: WorldSpec, rank: int, *, device: Device | Sequence[Device] = "cpu", prefault: bool = False
) -> LocalHeap:
    """A world of one rank, private to this process. Arguments and errors: see `LocalWorld`.

    Args:
        prefault: fault in the payload now, for about a second at most, instead of when it is first used: for an engine,
            whose step would wait for the kernel. Only host memory.
    """
    if spec.geometry.world_size > 1:
        raise InvalidArgument("heap='local' has all its ranks in one process: make them with nanokv.local_world")
    if prefault not in (True, False):
        raise InvalidArgument(f"prefault must be True or False, not {prefault!r}")
    world = LocalWorld(spec, device=device)
    raw = world.raw[0]
    if prefault and raw is not None:
        (area, start), first = area_of(raw), spec.geometry.offsets["heap_base"]
        map_ahead(area, [(start + first, spec.geometry.segment_bytes - first)])
    return world.heap(rank)


def why_not() -> str | None:
    """None: memory of this process is always there."""
    return None


def _fine_grained(nbytes: int, device: torch.device) -> torch.Tensor:
    """Zeroed memory of an AMD GPU in which atomics of other GPUs work: not that of torch's allocator."""
    with on_device(device):
        memory = FineGrainedMemory(nbytes)
        made = tensor_at(memory.address, nbytes, device, memory)
        made.zero_()
        finish_work(device)
    return made


def _devices_of_ranks(device: Device | Sequence[Device], count: int) -> list[torch.device]:
    if not isinstance(device, str | torch.device | Sequence):
        raise InvalidArgument(f"device must be a device, or a sequence of them, not {device!r}")
    several = [device] if isinstance(device, str | torch.device) else list(device)
    if not several:
        raise InvalidArgument("device must name at least one device, not an empty sequence")
    found = [_checked(each) for each in several]
    if len({each.type for each in found}) > 1:
        raise InvalidArgument(f"device must be CPUs or GPUs, not both: {[str(each) for each in found]}")
    used = [found[rank % len(found)] for rank in range(count)]
    check_pairs("local", used)
    return used


def _checked(device: Device) -> torch.device:
    """The device, with its number, as tensors name it: torch.device("cuda") is not equal to torch.device("cuda:0")."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgument(f"device: {error}") from None
    if found.type not in ("cpu", "cuda"):
        raise InvalidArgument(f"device must be a CPU or a CUDA (ROCm) device, not {found}")
    if found.type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise HeapUnavailable(f"{found} is not there: torch finds no CUDA or ROCm device")
    return found if found.index is not None else torch.device("cuda", torch.cuda.current_device())
