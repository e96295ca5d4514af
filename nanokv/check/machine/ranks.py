"""Ranks with a cache on a world of shared memory, for kill rounds, histories and tests: see `rank_process`."""

from typing import NamedTuple

from nanokv.cache.cache import NanoKVCache
from nanokv.check.machine.rank_process import PATIENCE, RankCommands
from nanokv.fsck import check_cache


class RankOptions(NamedTuple):
    """The options of the ranks of a world, the same for all except `seed`."""

    world: str
    world_size: int
    heap_bytes: int
    page_bytes: int
    evict: bool
    seed: int
    keys: int  #: how many its work uses
    pins: bool  #: whether its work pins


def attach(rank: int, options: RankOptions) -> NanoKVCache:
    """Take a rank in this process."""
    return NanoKVCache(
        options.heap_bytes,
        page_bytes=options.page_bytes,
        name=options.world,
        rank=rank,
        world_size=options.world_size,
        evict=options.evict,
        attach_timeout=PATIENCE,
    )


class CacheRank(RankCommands):
    """A rank with a cache, and the commands that every one takes. A subclass adds its own."""

    def __init__(self, rank: int, options: RankOptions) -> None:
        self.rank = rank
        self.options = options

    def attach(self) -> tuple[int, bool]:
        """Open the cache; (incarnation, recovered) of its heap."""
        self.cache = attach(self.rank, self.options)
        heap = self.cache.engine.heap
        self.who = (self.rank + 8 * heap.incarnation) % 256  #: no two living ranks have the same
        return heap.incarnation, heap.recovered

    def check(self) -> str:
        """fsck through this cache, its index included; "" if there is no finding."""
        self.cache.flush()
        report = check_cache([self.cache])
        return "" if report.clean else str(report)

    def clear(self) -> int:
        """Remove the objects in this rank's segment; returns how many."""
        return self.cache.clear()

    def close(self) -> None:
        """Leave the world."""
        self.cache.close()
