"""Ranks of every heap provider behind one interface, for the conformance suite: each answers the same commands.

Ranks of `local` live in this process. All others have a process of their own.
"""

import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from nanokv.cache.cache import NanoKVCache
from nanokv.check.machine.rank_process import RankCommands
from nanokv.config import make_options
from nanokv.device.segment.geometry import Geometry
from nanokv.errors import NanoKVError
from nanokv.heap import Heap, WorldSpec, open_heap
from nanokv.heap.local import LocalWorld
from nanokv.heap.segment_in_tensor import control_of
from tests.support import heap_standins as standins

PAGE = 4096


def plan(n: int, pages: int = 16) -> Geometry:
    """A small geometry."""
    return Geometry.plan(pages * PAGE, PAGE, n, max_objects=8, ring_slots=16, pin_slots=8)


def small_world(n: int, **wishes: Any) -> WorldSpec:
    """A small world of `n` ranks; `wishes` are fields that differ."""
    usual: dict[str, Any] = {"geometry": plan(n), "mode": "device", "may_evict": True, "water": (80, 90)}
    return WorldSpec(**(usual | wishes))


class Provider(NamedTuple):
    """A kind of provider, and the options with which a rank opens it."""

    kind: str
    options: Callable[[int], dict[str, Any]] = lambda rank: {}


def _torch(rank: int, **changes: Any) -> dict[str, Any]:
    return {"device": "cpu", "library": standins.TorchSymmetricMemory(**({"gpu": rank} | changes))}


def _iris(context: type[standins.OldContext], **changes: Any) -> dict[str, Any]:
    return {"library": standins.IrisModule(context, **changes)}


def _group(rank: int) -> Any:
    """The default group of this process, made by the caller; its file is in a folder that the test removes."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(f"{os.environ['NANOKV_SHM_DIR']}/store", 2)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    return dist.group.WORLD


PROVIDERS = {
    "local": Provider("local"),
    "shm": Provider("shm"),
    "torch_symm": Provider("torch_symm", _torch),
    "torch_symm, behind an offset": Provider("torch_symm", lambda rank: _torch(rank, offset=512)),
    "torch_symm, one GPU": Provider("torch_symm", lambda rank: _torch(rank, gpu=0) | {"allow_overlapping": True}),
    "iris of 2025": Provider("iris", lambda rank: _iris(standins.OldContext, taken=1024)),
    "iris of 2026": Provider("iris", lambda rank: _iris(standins.NewContext, taken=1024)),
    "iris of 2026, with a map": Provider("iris", lambda rank: _iris(standins.MapContext)),
    "torch_symm, a group of the caller": Provider("torch_symm", lambda rank: _torch(rank) | {"group": _group(rank)}),
    # calls that must be refused
    "torch_symm, a group the other way round": Provider(
        "torch_symm", lambda rank: _torch(rank) | {"group": _group(1 - rank)}
    ),
    "torch_symm, overlapping": Provider("torch_symm", lambda rank: _torch(rank, gpu=0)),
    "torch_symm, no memory": Provider("torch_symm", lambda rank: _torch(rank, capacity=1000 if rank else 1 << 30)),
    "torch_symm, out of reach": Provider("torch_symm", lambda rank: _torch(rank, told=lambda at: [at[0], 0])),
    "torch_symm, wrong addresses": Provider("torch_symm", lambda rank: _torch(rank, told=lambda at: [at[rank]] * 2)),
    "torch_symm, unaligned": Provider(
        "torch_symm", lambda rank: _torch(rank, told=lambda at: [p + 64 * (r != rank) for r, p in enumerate(at)])
    ),
    "torch_symm, no GPU": Provider("torch_symm", lambda rank: _torch(rank) | {"device": None}),
    "torch_symm, other offsets": Provider("torch_symm", lambda rank: _torch(rank, offset=PAGE * rank)),
    "torch_symm, itself, on a CPU": Provider("torch_symm", lambda rank: {"device": "cpu"}),
    "torch_symm on the GPU": Provider("torch_symm", lambda rank: {"device": "cuda:0", "allow_overlapping": True}),
    "iris, no memory": Provider("iris", lambda rank: _iris(standins.NewContext, limit=1000)),
    "iris, itself": Provider("iris", lambda rank: {}),
    "iris, uint64 over gloo": Provider("iris", lambda rank: _iris(standins.Uint64Context)),
    "iris, a strict one": Provider("iris", lambda rank: _iris(standins.StrictContext)),
    "iris, another one": Provider("iris", lambda rank: _iris(standins.OtherContext)),
    "torch_symm of NVSHMEM": Provider("torch_symm", lambda rank: _torch(rank, backend="NVSHMEM")),
    "iris, other heaps": Provider("iris", lambda rank: _iris(standins.OldContext, taken=2048 * rank)),
}


class HeapRank(RankCommands):
    """Commands for a heap, or for a cache on it. `wishes`: as `small_world` takes them."""

    raises = (NanoKVError,)
    heap: Heap
    cache: NanoKVCache

    def __init__(self, rank: int, n: int, provider: str = "shm", **wishes: Any) -> None:
        self.rank, self.n, self.wishes = rank, n, wishes
        self.provider = PROVIDERS[provider]

    def attach(self) -> tuple[int, bool]:
        """Returns (incarnation, recovered)."""
        torch.set_num_threads(1)
        spec = small_world(self.n, **self.wishes)
        self.heap = open_heap(self.provider.kind, spec, self.rank, **self.provider.options(self.rank))
        return self.heap.incarnation, self.heap.recovered

    def facts(self) -> dict[str, Any]:
        heap = self.heap
        names = ("kind", "name", "rank", "world_size", "incarnation", "recovered", "geometry")
        segments = [heap.segment(rank) for rank in range(heap.world_size)]
        views = [heap.host_view(rank) for rank in range(heap.world_size)]
        return {name: getattr(heap, name) for name in names} | {
            "device": str(heap.device),
            "bases": heap.bases,
            "addresses": [segment.data_ptr() for segment in segments],
            "shapes": [(str(segment.dtype), tuple(segment.shape)) for segment in segments],
            "devices": [str(segment.device) for segment in segments],
            "views": [None if view is None else (view.ctypes.data, view.nbytes) for view in views],
        }

    def control(self, owner: int) -> tuple[str | None, Any]:
        ctl = control_of(self.heap.segment(owner))
        return self.heap.geometry.mismatch(ctl), ctl[0]

    def rest_is_zero(self, owner: int) -> bool:
        """Whether every byte from the links on is 0."""
        return not bool(self.heap.segment(owner)[self.heap.geometry.offsets["links_base"] :].any())

    def peek(self, owner: int, at: int) -> int:
        return int(self.heap.segment(owner)[at])

    def peek_address(self, owner: int, at: int) -> int:
        """`peek` through the table of bases; only in host memory."""
        return ctypes.c_uint8.from_address(self.heap.bases[owner] + at).value

    def poke(self, owner: int, at: int, value: int) -> None:
        self.heap.segment(owner)[at] = value

    def alive(self, rank: int, incarnation: int) -> bool:
        return self.heap.alive(rank, incarnation)

    def peer_closed(self, rank: int) -> bool:
        return self.heap.peer_closed(rank)

    def barrier(self, timeout: float) -> None:
        self.heap.barrier(timeout)

    def wait_for_hint(self, timeout: float, seen: int) -> None:
        self.heap.wait_for_hint(timeout, seen)

    def wait_for_any_hint(self, timeout: float, still: bool) -> None:
        self.heap.wait_for_any_hint(timeout, lambda: still)

    def wake(self, rank: int) -> None:
        self.heap.wake(rank)

    def close(self) -> None:
        self.heap.close()

    def fork(self, fifo: str) -> int:
        """Fork a child that lives until `fifo` is opened, even without its parent; returns its pid once it runs.

        A parent that is killed before its child has run leaves the lock with the child until then.
        """
        here, there = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(there, b"!")
            Path(fifo).read_bytes()
            os._exit(0)
        os.read(here, 1)
        os.close(here)
        os.close(there)
        return child

    def has_group(self) -> bool:
        return dist.is_initialized()

    def close_and_count(self) -> int:
        """Close, without help of the garbage collector; how many blocks of a stand-in's memory are left."""
        gc.disable()
        try:
            self.heap.close()
            return len(standins.Pool.living)
        finally:
            gc.enable()

    def destroy_groups(self) -> None:
        """As a program does whose other groups end."""
        dist.distributed_c10d._unregister_all_process_groups()  # type: ignore[attr-defined]

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    # a cache on the heap
    def open_cache(self, **options: Any) -> None:
        self.cache = NanoKVCache.on_heap(self.heap, 0, make_options(options))

    def put(self, key: str, values: list[int], segment: int | None) -> None:
        data = torch.tensor(values, dtype=torch.int32, device=self.cache.device)
        self.cache.put(key, data, preferred_segment=segment)

    def open_for_write(self, key: str, nbytes: int, segment: int) -> None:
        self.cache.open_for_write(key, nbytes, preferred_segment=segment)

    def get(self, key: str) -> list[int]:
        found: list[int] = self.cache.get(key).tolist()
        return found

    def owner_of(self, key: str) -> int:
        return self.cache.get_location(key).owner_rank

    def remove(self, key: str) -> None:
        self.cache.remove(key)

    def close_cache(self) -> None:
        self.cache.close()


class Here:
    """A virtual rank in this process, with the calls of a rank in a process of its own."""

    def __init__(self, heap: Heap) -> None:
        self._rank = HeapRank(heap.rank, heap.world_size)
        self._rank.heap = heap

    def ask(self, command: str, *arguments: Any, **options: Any) -> Any:
        return getattr(self._rank, command)(*arguments, **options)


def here(n: int, device: Any = "cpu", **wishes: Any) -> list[Here]:
    """All ranks of a local world."""
    world = LocalWorld(small_world(n, **wishes), device=device)
    return [Here(world.heap(rank)) for rank in range(n)]
