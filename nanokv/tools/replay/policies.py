"""The policies that caches are compared with, simulated one use after the other, each in blocks of one size.

Sources: CLOCK, Corbato (1968); SIEVE, Zhang et al. (NSDI 2024); S3-FIFO, Yang et al. (SOSP 2023), with a small queue of
a tenth, a ghost queue of as many blocks as the cache, and a promotion after one use.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict

from nanokv.tools.replay.trace import Trace


class Policy(ABC):
    """A cache of `capacity` blocks, at least one."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    @abstractmethod
    def __contains__(self, block: int) -> bool:
        """True if the block is there. This is no use of it."""

    @abstractmethod
    def use(self, block: int) -> None:
        """Read a block, or put it if it is not there."""


class Fifo(Policy):
    """What was put first goes."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._queue: OrderedDict[int, bool] = OrderedDict()  # the first one goes next; True: used since

    def __contains__(self, block: int) -> bool:
        return block in self._queue

    def use(self, block: int) -> None:
        if block in self._queue:
            self._touch(block)
            return
        if len(self._queue) >= self.capacity:
            self._evict()
        self._queue[block] = False

    def _touch(self, block: int) -> None:
        pass

    def _evict(self) -> None:
        self._queue.popitem(last=False)


class Lru(Fifo):
    """What was not used for longest goes."""

    def _touch(self, block: int) -> None:
        self._queue.move_to_end(block)


class Clock(Fifo):
    """A FIFO in which what was used since it was put, or since it was last spared, is spared once."""

    def _touch(self, block: int) -> None:
        self._queue[block] = True

    def _evict(self) -> None:
        while True:
            block, used = self._queue.popitem(last=False)
            if not used:
                return
            self._queue[block] = False


class Sieve(Policy):
    """A CLOCK in which what is spared stays at its place, and a hand goes from old to new."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._used: dict[int, bool] = {}
        self._newer: dict[int, int | None] = {}
        self._older: dict[int, int | None] = {}
        self._oldest: int | None = None
        self._newest: int | None = None
        self._hand: int | None = None

    def __contains__(self, block: int) -> bool:
        return block in self._used

    def use(self, block: int) -> None:
        if block in self._used:
            self._used[block] = True
            return
        if len(self._used) >= self.capacity:
            self._evict()
        self._used[block] = False
        self._older[block], self._newer[block] = self._newest, None
        if self._newest is None:
            self._oldest = block
        else:
            self._newer[self._newest] = block
        self._newest = block

    def _evict(self) -> None:
        hand = self._oldest if self._hand is None else self._hand
        while hand is None or self._used[hand]:
            if hand is not None:
                self._used[hand] = False
                hand = self._newer[hand]
            hand = self._oldest if hand is None else hand
        older, newer = self._older.pop(hand), self._newer.pop(hand)
        if older is None:
            self._oldest = newer
        else:
            self._newer[older] = newer
        if newer is None:
            self._newest = older
        else:
            self._older[newer] = older
        del self._used[hand]
        self._hand = newer


class S3Fifo(Policy):
    """A small queue for what is new, a main queue for what was used in it, and a memory of what left the small one."""

    MOST = 3  #: uses that are counted

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._room = max(capacity // 10, 1)  # of the small queue
        self._small: OrderedDict[int, int] = OrderedDict()  # block -> uses
        self._main: OrderedDict[int, int] = OrderedDict()
        self._ghosts: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._small or block in self._main

    def use(self, block: int) -> None:
        for queue in (self._small, self._main):
            if block in queue:
                queue[block] = min(queue[block] + 1, self.MOST)
                return
        while len(self._small) + len(self._main) >= self.capacity:
            self._evict()
        known = block in self._ghosts
        if known:
            del self._ghosts[block]
        (self._main if known else self._small)[block] = 0

    def _evict(self) -> None:
        if len(self._small) >= self._room or not self._main:
            block, uses = self._small.popitem(last=False)
            if uses:
                self._main[block] = 0
            else:
                self._ghosts[block] = None
                if len(self._ghosts) > self.capacity:
                    self._ghosts.popitem(last=False)
        else:
            block, uses = self._main.popitem(last=False)
            if uses:
                self._main[block] = uses - 1


POLICIES: dict[str, type[Policy]] = {"FIFO": Fifo, "CLOCK": Clock, "LRU": Lru, "SIEVE": Sieve, "S3-FIFO": S3Fifo}


def hit_rate(trace: Trace, cache: Policy) -> float:
    """The share of blocks that are hit. The cache is used up."""
    hits = 0
    for blocks in trace.requests():
        hits += next((place for place, block in enumerate(blocks) if block not in cache), len(blocks))
        for block in blocks:
            cache.use(block)
    return hits / len(trace.blocks)
