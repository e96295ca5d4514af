"""`python -m bench.crowd`: put and get in a segment with a million objects, beside one with a thousand.

Two processes: one puts and gets, the segment, its poller and its sweeper are the other's. The thousand are measured
before and after the million; ratios are to the mean of the two.
"""

import argparse
import random

import torch
from rich.console import Console
from rich.table import Table

from nanokv import NanoKVCache
from nanokv.bench.suite.timing import Samples, Summary
from nanokv.bench.suite.worlds import OWNER, Worlds

PAGE = 256  #: bytes of a page, and of an object
FEW = 1000
SPARE = 4096  #: pages for the puts that are timed


def measure(cache: NanoKVCache, objects: int, calls: int) -> dict[str, Summary]:
    """Percentiles of gets of keys at random and of puts of new ones, which are removed at once, untimed."""
    value, into = torch.zeros(PAGE, dtype=torch.uint8), torch.empty(PAGE, dtype=torch.uint8)
    keys = [cache.digest(f"{number}") for number in range(objects)]
    for key in keys:
        cache.put(key, value, preferred_segment=OWNER)
    draw, gets, puts = random.Random(1), Samples(), Samples()
    for number in range(calls):
        gets.time(cache.get, keys[draw.randrange(objects)], dst=into)
        new = cache.digest(f"new {number}")
        puts.time(cache.put, new, value, preferred_segment=OWNER)
        cache.remove(new)
    return {"put": puts.summary(), "get": gets.summary()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.crowd", description="What a million objects cost a call.")
    parser.add_argument("--objects", type=int, default=1_000_000, help="in the large segment (default 1000000)")
    parser.add_argument("--calls", type=int, default=100_000, help="of each kind, in each segment (default 100000)")
    given = parser.parse_args()
    if given.objects <= FEW or given.calls < 1:
        parser.error(f"--objects must be above {FEW}, --calls at least 1")
    found: list[tuple[int, dict[str, Summary]]] = []
    with Worlds() as worlds:
        for objects in (FEW, given.objects, FEW):
            with worlds.open("shm", "device", (objects + SPARE) * PAGE, page_bytes=PAGE) as world:
                found.append((objects, measure(world.cache, objects, given.calls)))
    table = Table("call", "objects", "p50 us", "p99 us", "p99, times that of few")
    for name in ("put", "get"):
        base = (found[0][1][name]["p99"] + found[2][1][name]["p99"]) / 2
        for objects, us in found:
            one = us[name]
            table.add_row(name, f"{objects:,}", f"{one['p50']:.1f}", f"{one['p99']:.1f}", f"{one['p99'] / base:.2f}")
    console = Console()
    (console if console.is_terminal else Console(width=100)).print(table)


if __name__ == "__main__":
    main()
