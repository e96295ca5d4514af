"""Worlds of shared memory, for tests: ranks in this process, and a world left by a dead rank."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nanokv.heap.shm import ShmHeap, list_worlds
from tests.support.heap_ranks import small_world
from tests.support.rank_processes import Start


def attach(name: str, rank: int, n: int, **wishes: Any) -> ShmHeap:
    """A rank in this process; `wishes`: as `small_world` takes them."""
    return ShmHeap.attach(small_world(n, name=name, **wishes), rank)


def pair(name: str) -> list[ShmHeap]:
    """Both ranks of a world of two."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda rank: attach(name, rank, 2), range(2)))


def leave_stale(name: str, start: Start) -> None:
    """A world of one whose rank has crashed with 42 in its last byte."""
    rank = start(0, 1)
    rank.arrive()
    rank.ask("poke", 0, -1, 42)
    rank.kill()
    assert list_worlds() == [name]
