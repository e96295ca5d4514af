"""What a trace allows: LRU's hit rate at every capacity, and the best hit rate of any policy."""

import heapq

import numba
import numpy as np
import numpy.typing as npt

from nanokv.tools.replay.trace import Trace

Numbers = npt.NDArray[np.int64]
_NEVER = np.iinfo(np.int64).max


def lru_rates(trace: Trace) -> npt.NDArray[np.float64]:
    """The block hit rate of LRU: at [c] that of c blocks, for c from 0 to `trace.different`.

    Source: the stack distances of Mattson et al. (1970), counted in a tree of Fenwick (1994). A block is hit if its own
    distance, and those of all blocks before it in its request, are at most the capacity.
    """
    needed = _needed(trace.blocks, trace.ends, trace.different)
    hits = np.bincount(needed[needed > 0], minlength=trace.different + 1)
    rates: npt.NDArray[np.float64] = hits.cumsum() / len(trace.blocks)
    return rates


@numba.njit  # type: ignore[untyped-decorator]
def _needed(blocks: Numbers, ends: Numbers, different: int) -> Numbers:
    """Per use of a block the smallest capacity at which it is a hit; 0: none."""
    tree = np.zeros(len(blocks) + 1, np.int64)  # 1 where a block was used last
    last = np.full(different, -1, np.int64)
    needed = np.zeros(len(blocks), np.int64)
    present = start = 0
    for end in ends:
        most = 0
        for i in range(start, end):  # before any block of the request is used
            if last[blocks[i]] < 0:
                break
            most = max(most, present - _count_before(tree, last[blocks[i]]))
            needed[i] = most
        for i in range(start, end):
            if last[blocks[i]] < 0:
                present += 1
            else:
                _add(tree, last[blocks[i]], -1)
            last[blocks[i]] = i
            _add(tree, i, 1)
        start = end
    return needed


@numba.njit  # type: ignore[untyped-decorator]
def _add(tree: Numbers, place: int, amount: int) -> None:
    at = place + 1
    while at < len(tree):
        tree[at] += amount
        at += at & -at


@numba.njit  # type: ignore[untyped-decorator]
def _count_before(tree: Numbers, place: int) -> int:
    """The sum of the first `place` numbers."""
    found = 0
    while place > 0:
        found += tree[place]
        place -= place & -place
    return found


def best_rate(trace: Trace, capacity: int) -> float:
    """The block hit rate that no policy exceeds: what is needed last goes, the last blocks of a request first.

    Source: Belady's MIN (1966), which need not store what is not used again. A block is never needed later than the
    blocks after it in its chain, so what MIN keeps is closed under prefixes, and its hits are hits of whole prefixes.
    """
    there: dict[int, int] = {}  # block -> the request that uses it next
    queue: list[tuple[int, int, int]] = []  # (-that request, -its place in the chain, block); may be out of date
    hits = 0
    for blocks, following in zip(trace.requests(), _next_uses(trace), strict=True):
        hits += next((place for place, block in enumerate(blocks) if block not in there), len(blocks))
        for place, (block, request) in enumerate(zip(blocks, following, strict=True)):
            if request == _NEVER:
                there.pop(block, None)
                continue
            there[block] = request
            heapq.heappush(queue, (-request, -place, block))
            while len(there) > capacity:
                gone, _, victim = heapq.heappop(queue)
                if there.get(victim) == -gone:
                    del there[victim]
    return hits / len(trace.blocks)


def _next_uses(trace: Trace) -> list[list[int]]:
    """Per request and block the next request that uses the block."""
    following: dict[int, int] = {}
    found: list[list[int]] = []
    requests = list(trace.requests())
    for number in range(len(requests) - 1, -1, -1):
        found.append([following.get(block, _NEVER) for block in requests[number]])
        following.update(dict.fromkeys(requests[number], number))
    return found[::-1]
