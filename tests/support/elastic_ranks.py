"""Ranks of an elastic world in processes of their own, which can be made to die at a chosen step."""

import os
import signal
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn
from unittest import mock
from zlib import crc32

import torch

from nanokv.cache.cache import NanoKVCache
from nanokv.check.machine.rank_process import RankCommands
from nanokv.errors import NanoKVError
from nanokv.heap.shm import ShmHeap
from nanokv.leaving import empty
from nanokv.leaving.empty import move_object
from nanokv.types import Left

PAGE = 4096
PAGES = 1024
RANKS = 4


def value(key: str) -> torch.Tensor:
    """What belongs under a key: up to three pages."""
    seed = crc32(key.encode())
    return torch.arange(seed % 3000, dtype=torch.int32) + seed % 1000


def join(name: str, rank: int, **options: Any) -> NanoKVCache:
    """A rank of an elastic world of at most RANKS."""
    given: dict[str, Any] = {"page_bytes": PAGE, "world_size": RANKS, "elastic": True, "evict": False} | options
    return NanoKVCache(PAGES * PAGE, name=name, rank=rank, **given)


def die(*_: object, **__: object) -> NoReturn:
    """As a process does that is killed at this step."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("the process lives")


def _die_with_unused_links(heap: ShmHeap, rank: int) -> None:
    heap._views[rank].page_links[:] = 0
    die()


def _die_half_open(heap: ShmHeap) -> None:
    """Between `closed` and `bump_ptr`, as `_take_segment` writes them."""
    control = heap._views[heap.rank].ctl
    control["closed"], control["bump_ptr"] = 1, heap.geometry.offsets["heap_limit"]
    die()


def _die_after(count: int, do: Callable[..., int]) -> Callable[..., int]:
    calls = 0

    def limited(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        return do(*arguments) if calls <= count else die()

    return limited


#: where a rank dies: what is replaced, and by what
DEATHS: dict[str, tuple[object, str, Callable[..., object]]] = {
    "join, with the lock": (ShmHeap, "_take_segment", die),
    "join, with memory": (ShmHeap, "_join_activity", die),
    "join, half open": (ShmHeap, "_join_barrier", _die_half_open),
    "join, open": (ShmHeap, "_prefault", die),
    "leave, marked": (empty.Evacuation, "step", die),
    "leave, some have moved": (empty, "move_object", _die_after(5, move_object)),
    "leave, pages in hand": (ShmHeap, "make_absent", die),
    "leave, links cleared": (ShmHeap, "make_absent", _die_with_unused_links),
}


class ElasticRank(RankCommands):
    """Commands for a rank."""

    raises = (NanoKVError,)
    cache: NanoKVCache

    def __init__(self, rank: int, name: str, dies_at: str | None = None, **options: Any) -> None:
        self.rank, self.name, self.dies_at, self.options = rank, name, dies_at, options

    def attach(self) -> int:
        """Returns the incarnation."""
        torch.set_num_threads(1)
        if self.dies_at:
            mock.patch.object(*DEATHS[self.dies_at]).start()
        self.cache = join(self.name, self.rank, **self.options)
        return self.cache.engine.heap.incarnation

    def put(self, keys: list[str], segment: int | None = None) -> None:
        for key in keys:
            self.cache.put(key, value(key), preferred_segment=segment)

    def plan(self, key: str, segment: int) -> None:
        self.cache.open_for_write(key, 3 * PAGE, preferred_segment=segment)

    def unreadable(self, keys: list[str]) -> list[str]:
        """The keys without an object, or with other bytes."""
        return [key for key in keys if not torch.equal(self.cache.get(key, torch.empty(0)), value(key))]

    def churn(self, lives: int = 20) -> tuple[int, int]:
        """Put, get and remove until told: (objects that were not found, objects with wrong bytes). Nothing stays."""
        missing = wrong = number = 0
        kept: deque[str] = deque()
        while kept or not self.told():
            if not self.told():
                key = f"{self.rank} {self.cache.engine.heap.incarnation} {number}"
                self.cache.put(key, value(key))
                kept.append(key)
                number += 1
            if len(kept) > lives or self.told():
                old = kept.popleft()
                found = self.cache.get(old, None)
                wrong += found is not None and not torch.equal(found, value(old))
                removed = self.cache.remove_many([old]) == [True]
                missing += found is None or not removed
            self.progress.value = number
        return missing, wrong

    def remove(self, keys: list[str]) -> None:
        for key in keys:
            self.cache.remove(key)

    def members(self) -> list[int]:
        return self.cache.members()

    def leave(self, keys: Any = "move", timeout: float = 60.0) -> Left:
        return self.cache.leave(keys, timeout=timeout)

    def adopt(self, rank: int, keys: Any = "move", timeout: float = 60.0) -> Left:
        return self.cache.adopt(rank, keys, timeout=timeout)

    def free_pages(self) -> int:
        return self.cache.stats()["free_pages"]

    def close(self) -> None:
        self.cache.close()
