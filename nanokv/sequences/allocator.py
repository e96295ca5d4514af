"""CortexStream's block allocator: contiguous blocks, given out by a buddy system with a lock per order.

Guarantees:
- Two live handles share no block: their blocks came out of the free lists, which hold each block once.
- A refused request has changed nothing, and was refused for want of blocks: `allocate` looks again if another thread
  had free blocks in its hands while it looked, up to LOOKS times.
- A handle is freed once: whoever removes it from the table of live handles, in one operation of a dict, frees its
  blocks.
- After all frees one request of all blocks is served: buddies are joined as they are freed.
"""

import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TextIO

from nanokv.arguments import integer
from nanokv.errors import InvalidArgument


# --- the free blocks of an arena as buddies: a list per order, and a lock per list ------------
# A chunk of order k has 2**k blocks and begins at a multiple of 2**k. Its buddy is the other half of the chunk of order
# k + 1 that both are in.
#
# Guarantees, and why they hold:
# - A block is in one chunk of one list, or in the hands of one caller. A chunk leaves a list under the list's lock, and
#   only who has removed it splits it, joins it or gives it away.
# - No two buddies are both in a list. `put` looks for the buddy and inserts the chunk in one critical section of their
#   list, so of two threads that free two buddies the later one finds the earlier one's.
# - No thread holds two locks, so none waits for another one that waits.
# - A refusal is true. Chunks that a caller has in its hands are in no list, so a look past them could find nothing
#   while enough is free. `Moves` tells whether a caller had chunks in its hands during a look.
#
# The steps of a call, list operations, are bounded by O(log n) for n blocks: see each function.
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


# --- free runs: free blocks side by side, in chunks that are no buddies of each other ---------
# A handle grows into its neighbours, and a request of 33 blocks may fit between two sequences where no free chunk of 64
# is. The chunks of a run are joined, so their orders rise and then fall: a walk over a run asks for each order at most
# twice. Looks need no lock: `take_run` finds out whether they are still true.
TRIES = 4  #: chunks of each of two orders around which `find_run` looks


def find_run(lists: FreeLists, blocks: int) -> int | None:
    """The start of a free run of so many blocks that is in several chunks; None if none was found.

    A run of n blocks, 2**(k-1) < n <= 2**k, that has no chunk of order k has one of order k - 1 or k - 2. The search
    looks around TRIES chunks of each, which are O(log n) steps. It may miss a run if more chunks of these orders are
    free.
    """
    order = (blocks - 1).bit_length()
    for near in range(order - 1, max(order - 3, -1), -1):
        for chunk in lists.some(near, TRIES):
            end = chunk
            for right, start in _chunks_after(lists, chunk):
                end = start + (1 << right)
                if end - chunk >= blocks:
                    return chunk
            for start in _chunks_before(lists, chunk):
                if end - start >= blocks:
                    return start
    return None


def take_run(lists: FreeLists, start: int, end: int) -> bool:
    """Take the blocks from `start` to `end` if a free chunk begins at `start` and all are free, else none.

    O(log n) steps. The caller has begun a move. The free chunk that contains the first block behind a handle always
    begins there.
    """
    taken = start
    for order, chunk in _chunks_after(lists, start):
        if not lists.take(order, chunk):
            break  # another thread was faster
        taken = chunk + (1 << order)
        if taken >= end:
            break
    enough = taken >= end
    lists.put_run(end if enough else start, taken)
    return enough


def free_runs(lists: FreeLists) -> list[tuple[int, int]]:
    """All free runs as (start, blocks), ascending. Exact while no other thread allocates or frees."""
    runs: list[tuple[int, int]] = []
    for start, blocks in lists.snapshot():
        if runs and sum(runs[-1]) == start:
            runs[-1] = runs[-1][0], runs[-1][1] + blocks
        else:
            runs.append((start, blocks))
    return runs


def _chunks_after(lists: FreeLists, start: int) -> Iterator[tuple[int, int]]:
    """The free chunks side by side from block `start` on, as (order, start)."""
    for order in _rise_and_fall(lists):
        if lists.has(order, start):
            yield order, start
            start += 1 << order


def _chunks_before(lists: FreeLists, end: int) -> Iterator[int]:
    """The starts of the free chunks side by side down from block `end`."""
    for order in _rise_and_fall(lists):
        if lists.has(order, end - (1 << order)):
            end -= 1 << order
            yield end


def _rise_and_fall(lists: FreeLists) -> Iterator[int]:
    yield from range(lists.top + 1)
    yield from range(lists.top, -1, -1)


# --- CortexStream's picture of the blocks -----------------------------------------------------
WIDTH = 64  #: blocks a line


def block_map(total: int, used: Iterable[tuple[int, int]], fragmentation: float) -> str:
    """The map of `total` blocks, of which the runs `used`, (start, blocks) each, are taken."""
    marks = bytearray(b"." * total)
    for start, blocks in used:
        marks[start : start + blocks] = b"X" * blocks
    taken = marks.count(b"X")
    lines = [marks[at : at + WIDTH].decode() for at in range(0, total, WIDTH)]
    return "\n".join(
        [
            "KVBlockAllocator State:",
            f"  Total blocks: {total}",
            f"  Used: {taken} Free: {total - taken}",
            f"  Fragmentation: {fragmentation:.2f}",
            "  Block map (. = free, X = used):",
            *(f"    {line}" for line in lines),
            "",
        ]
    )


# --- the allocator ----------------------------------------------------------------------------
LOOKS = 256  #: after so many looks that other threads disturbed, a request is refused
EAGER_LOOKS = 16  #: so many of them follow each other at once
PAUSE = 1e-4  #: seconds between the later ones


@dataclass(frozen=True, slots=True, eq=False)
class KVHandle:
    """Contiguous blocks that belong to one caller. False as a condition if the request was refused.

    Attributes:
        start_block_index: the first block; -1 in a handle of a refused request.
        num_blocks: how many blocks; 0 in a handle of a refused request.
    """

    start_block_index: int
    num_blocks: int

    def is_valid(self) -> bool:
        """Whether the request was served."""
        return self.num_blocks > 0

    def __bool__(self) -> bool:
        return self.is_valid()

    @property
    def block_indices(self) -> range:
        """The blocks, ascending."""
        return range(self.start_block_index, self.end)

    @property
    def end(self) -> int:
        """The first block behind."""
        return self.start_block_index + self.num_blocks


REFUSED = KVHandle(-1, 0)


class KVBlockAllocator:
    """Hands out runs of the blocks 0 to `total_blocks`. All methods may be called by any thread at any time.

    Raises:
        InvalidArgument: `total_blocks` is no integer of at least 1.
    """

    def __init__(self, total_blocks: int) -> None:
        self._total = integer("total_blocks", total_blocks, 1)
        self.lists = FreeLists(self._total)
        self._live: dict[KVHandle, None] = {}

    def allocate(self, blocks_needed: int) -> KVHandle:
        """Contiguous blocks, exactly so many, or a handle that is false: no such run is free. It never waits for room.

        O(log n) list operations for n blocks. The smallest free chunk that is large enough serves the request, and what
        the request does not need of it is free at once. Without such a chunk, a run of smaller ones may serve it.

        Raises:
            InvalidArgument: `blocks_needed` is no integer of at least 1.
        """
        blocks = integer("blocks_needed", blocks_needed, 1)
        if blocks > self._total:
            return REFUSED
        for look in range(LOOKS):
            mark = self.lists.moves.quiet()
            start = self._find(blocks)
            if start is not None:
                return self._made(start, blocks)
            if not self.lists.moves.since(mark):
                break
            time.sleep(0 if look < EAGER_LOOKS else PAUSE)  # let the thread go on that has blocks in its hands
        return REFUSED

    allocate_nowait = allocate  #: the name that the specification plans for an allocation that does not wait

    def allocate_at(self, start: int, blocks_needed: int) -> KVHandle:
        """The blocks from `start` on, if all are free and the one before is not; else a handle that is false.

        Raises:
            InvalidArgument: an argument is no block or no number of blocks of this allocator.
        """
        start = integer("start", start, 0, self._total - 1)
        blocks = integer("blocks_needed", blocks_needed, 1)
        return self._made(start, blocks) if self._take(start, start + blocks) else REFUSED

    def free(self, handle: KVHandle) -> None:
        """Give all blocks of a handle back. O(log n) list operations.

        Raises:
            InvalidArgument: the handle was freed, was replaced by `extend` or `shrink`, is false, or is another
                allocator's. Nothing was freed.
        """
        self._claim(handle)
        self._give_back(handle.start_block_index, handle.end)

    def extend(self, handle: KVHandle, more: int) -> KVHandle:
        """A handle with the next `more` blocks too, which replaces this one; false if one is taken, and this one stays.

        Raises:
            InvalidArgument: as `free`, or `more` is no integer of at least 1.
        """
        more = integer("more", more, 1)
        self._claim(handle)
        if not self._take(handle.end, handle.end + more):
            self._live[handle] = None
            return REFUSED
        return self._made(handle.start_block_index, handle.num_blocks + more)

    def shrink(self, handle: KVHandle, blocks: int) -> KVHandle:
        """A handle of the first `blocks` blocks, which replaces this one; the others are free.

        Raises:
            InvalidArgument: as `free`, or `blocks` is not 1 to the blocks of the handle.
        """
        blocks = integer("blocks", blocks, 1, max(handle.num_blocks, 1))
        self._claim(handle)
        self._give_back(handle.start_block_index + blocks, handle.end)
        return self._made(handle.start_block_index, blocks)

    def total_blocks(self) -> int:
        """Blocks of the arena."""
        return self._total

    def used_blocks(self) -> int:
        """Blocks of live handles. Looks at each handle."""
        return sum(handle.num_blocks for handle in list(self._live))

    def free_blocks(self) -> int:
        """Blocks of no live handle."""
        return self._total - self.used_blocks()

    def fragmentation(self) -> float:
        """1 - blocks of the longest free run / free blocks. 0.0: all free blocks are one run, or none is free.

        Looks at each free chunk. Exact while no other thread allocates or frees.
        """
        runs = [blocks for _, blocks in free_runs(self.lists)]
        return 1.0 - max(runs) / sum(runs) if runs else 0.0

    def dump_block_map(self, stream: TextIO) -> None:
        """Write which blocks are free, a character per block."""
        used = [(handle.start_block_index, handle.num_blocks) for handle in list(self._live)]
        stream.write(block_map(self._total, used, self.fragmentation()))

    def _find(self, blocks: int) -> int | None:
        """Take so many blocks out of the lists; the first one, or None."""
        for order in range((blocks - 1).bit_length(), self.lists.top + 1):
            found = self.lists.pop(order)
            if found is not None:
                start, token = found
                self.lists.put_run(start + blocks, start + (1 << order))
                self.lists.moves.end(token)
                return start
        run = find_run(self.lists, blocks)
        return run if run is not None and self._take(run, run + blocks) else None

    def _take(self, start: int, end: int) -> bool:
        token = self.lists.moves.begin()
        taken = take_run(self.lists, start, end)
        self.lists.moves.end(token)
        return taken

    def _give_back(self, start: int, end: int) -> None:
        token = self.lists.moves.begin()
        self.lists.put_run(start, end)
        self.lists.moves.end(token)

    def _made(self, start: int, blocks: int) -> KVHandle:
        handle = KVHandle(start, blocks)
        self._live[handle] = None
        return handle

    def _claim(self, handle: KVHandle) -> None:
        """From here on the handle is this caller's alone."""
        try:
            del self._live[handle]
        except (KeyError, TypeError):
            raise InvalidArgument(f"{handle!r} is no live handle of this allocator") from None
