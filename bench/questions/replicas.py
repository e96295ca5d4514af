"""`python -m bench.replicas`: what a put with copies costs, a copy made later, and a removal.

Ranks of one process, native machine, without their pollers; the median of all calls, in microseconds.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

import nanokv

RANKS, CALLS = 4, 2000
SIZES = (4096, 65536, 1 << 20)


def median_us(calls: int, call: Callable[[str], object]) -> float:
    """The median time of `call("0")`, `call("1")`, ..., in microseconds."""
    times = []
    for key in map(str, range(calls)):
        began = time.perf_counter_ns()
        call(key)
        times.append(time.perf_counter_ns() - began)
    return statistics.median(times) / 1e3


def row(nbytes: int, calls: int) -> str:
    """A line of the table, for objects of `nbytes`."""
    most = max(min(calls, (256 << 20) // nbytes), 8)
    caches = nanokv.local_world(RANKS, (most + 16) * nbytes, page_bytes=nbytes, max_objects=2 * most + 64)
    for each in caches:
        each._poller.stop()  # in a world of processes it takes no time of the producer's interpreter
    cache, value = caches[0], torch.zeros(nbytes, dtype=torch.uint8)
    cells = []
    for copies in (RANKS - 1, *range(RANKS)):  # the first round is thrown away: it touches the memory
        with_copies = partial(cache.put, tensor=value, preferred_segment=0, replicas=copies)
        put = median_us(most, with_copies)
        cells.append(f"{put:.1f}")
        if copies == 0:
            later = median_us(most, partial(cache.replicate, rank=1))
        removal = median_us(most, cache.remove)
        cells.append(f"{removal:.1f}")
    del cells[:2]
    for each in caches:
        each.close()
    return f"| {nbytes // 1024} KiB | {' | '.join(cells[::2])} | {later:.1f} | {cells[1]} | {cells[-1]} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.replicas", description="What copies of objects cost.")
    parser.add_argument("--calls", type=int, default=CALLS)
    calls = parser.parse_args().calls
    if calls < 1:
        parser.error("--calls must be at least 1")
    print("| object | put | with 1 copy | 2 copies | 3 copies | `replicate` | remove (1 copy) | remove (3 copies) |")
    print("|---|---|---|---|---|---|---|---|")
    for nbytes in SIZES:
        print(row(nbytes, calls), flush=True)


if __name__ == "__main__":
    main()
