"""Free runs: free blocks side by side, in chunks that are no buddies of each other.

A handle grows into its neighbours, and a request of 33 blocks may fit between two sequences where no free chunk of 64
is. The chunks of a run are joined, so their orders rise and then fall: a walk over a run asks for each order at most
twice. Looks need no lock: `take_run` finds out whether they are still true.
"""

from collections.abc import Iterator

from nanokv.sequences.free_lists import FreeLists

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
