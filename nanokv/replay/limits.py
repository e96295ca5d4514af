"""What a trace allows: LRU's hit rate at every capacity, and the best hit rate of any policy."""

import heapq

import numba
import numpy as np
import numpy.typing as npt

from nanokv.replay.trace import Trace

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
def _needed(
    blocks: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], different: int
) -> npt.NDArray[np.int64]:  # pragma: no cover
    """Per use of a block the smallest capacity at which it is a hit; 0: none."""
    count = len(blocks)
    tree = np.zeros(count + 1, np.int64)  # 1 where a block was used last
    last = np.full(different, -1, np.int64)
    needed = np.zeros(count, np.int64)
    present = 0
    start = 0
    for end in ends:
        most = 0
        for i in range(start, end):
            place = last[blocks[i]]
            if place < 0:
                break
            before = 0
            at = place
            while at > 0:
                before += tree[at]
                at -= at & -at
            most = max(most, present - before)
            needed[i] = most
        for i in range(start, end):
            place = last[blocks[i]]
            if place < 0:
                present += 1
            else:
                at = place + 1
                while at <= count:
                    tree[at] -= 1
                    at += at & -at
            last[blocks[i]] = i
            at = i + 1
            while at <= count:
                tree[at] += 1
                at += at & -at
        start = end
    return needed


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
