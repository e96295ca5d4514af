"""The free blocks of an arena as buddies: a list per order, and a lock per list.

A chunk of order k has 2**k blocks and begins at a multiple of 2**k. Its buddy is the other half of the chunk of order
k + 1 that both are in.

Guarantees, and why they hold:
- A block is in one chunk of one list, or in the hands of one caller. A chunk leaves a list under the list's lock, and
  only who has removed it splits it, joins it or gives it away.
- No two buddies are both in a list. `put` looks for the buddy and inserts the chunk in one critical section of their
  list, so of two threads that free two buddies the later one finds the earlier one's.
- No thread holds two locks, so none waits for another one that waits.
- A refusal is true. Chunks that a caller has in its hands are in no list, so a look past them could find nothing while
  enough is free. `Moves` tells whether a caller had chunks in its hands during a look.

The steps of a call, list operations, are bounded by O(log n) for n blocks: see each function.
"""

import itertools
import threading
from collections.abc import Iterator


class Moves:
    """Which callers have free chunks in their hands, and whether any has had since a moment before.

    Without a lock: each method is one or two operations of a dict, an attribute or a counter, which Python does
    atomically. A token is written once, so `_last` never has an earlier value again.
    """

    def __init__(self) -> None:
        self._tokens = itertools.count(1)
        self._open: dict[int, None] = {}
        self._last = 0

    def begin(self) -> int:
        """A caller is about to take or give chunks. To be called before the first one changes its list."""
        token = next(self._tokens)
        self._open[token] = None
        self._last = token  # before the caller touches a list: a look that misses the chunk sees this
        return token

    def end(self, token: int) -> None:
        """All chunks of the caller are in lists again, or belong to a handle."""
        del self._open[token]

    def quiet(self) -> int | None:
        """A mark to compare `since` with; None while a caller has chunks in its hands."""
        last = self._last  # read first: a move that begins after it changes it
        return None if self._open else last

    def since(self, mark: int | None) -> bool:
        """Whether chunks were, or may have been, in a caller's hands since `quiet` gave this mark."""
        return mark is None or self._last != mark


class FreeLists:
    """The free chunks of blocks 0 to `total_blocks`, which begin as the largest chunks that fit."""

    def __init__(self, total_blocks: int) -> None:
        self.top = (total_blocks - 1).bit_length()  #: the largest order
        self.moves = Moves()
        # a dict is an ordered set of starts: membership, removal and "the latest" take one step each
        self._free: list[dict[int, None]] = [{} for _ in range(self.top + 1)]
        self._locks = [threading.Lock() for _ in range(self.top + 1)]
        self.put_run(0, total_blocks)

    def pop(self, order: int) -> tuple[int, int] | None:
        """Take the chunk of this order that was freed last: its start, and the token of the move that has begun.

        One step. The caller ends the move when it has given back what it does not keep.
        """
        with self._locks[order]:
            if not self._free[order]:
                return None
            token = self.moves.begin()
            return self._free[order].popitem()[0], token

    def take(self, order: int, start: int) -> bool:
        """Take this chunk if it is in its list. One step. The caller has begun a move."""
        with self._locks[order]:
            if start not in self._free[order]:
                return False
            del self._free[order][start]
            return True

    def has(self, order: int, start: int) -> bool:
        """Whether this chunk is in its list just now. One step."""
        return start in self._free[order]

    def some(self, order: int, count: int) -> list[int]:
        """The starts of the `count` oldest chunks of this order, or fewer."""
        with self._locks[order]:
            return list(itertools.islice(self._free[order], count))

    def put(self, order: int, start: int) -> None:
        """Free a chunk and join it with its buddy as often as that is free. A step, and one per join."""
        while True:
            buddy = start ^ 1 << order
            with self._locks[order]:
                if buddy not in self._free[order]:
                    self._free[order][start] = None
                    return
                del self._free[order][buddy]
            start, order = min(start, buddy), order + 1

    def put_run(self, start: int, end: int) -> None:
        """Free the blocks from `start` to `end` as the largest chunks that fit.

        At most 2 log n chunks, whose orders rise and then fall. Each join uses up a chunk of the run or one of the at
        most 2 log n free chunks that border on it, so O(log n) steps.
        """
        for order, begin in chunks_of(start, end):
            self.put(order, begin)

    def snapshot(self) -> list[tuple[int, int]]:
        """All free chunks as (start, blocks), ascending. Chunks that move meanwhile may be missing or there twice."""
        found: list[tuple[int, int]] = []
        for order, lock in enumerate(self._locks):
            with lock:
                found += ((start, 1 << order) for start in self._free[order])
        return sorted(found)


def chunks_of(start: int, end: int) -> Iterator[tuple[int, int]]:
    """The largest chunks that the blocks from `start` to `end` consist of, as (order, start), ascending by start."""
    while start < end:
        fits = (end - start).bit_length() - 1
        order = min(fits, (start & -start).bit_length() - 1) if start else fits
        yield order, start
        start += 1 << order
