"""`python -m bench.full`: a put into a full segment, which evicts, beside a put into one with room; and a refusal.

Two processes: one puts, the segment and its poller are the other's. Rounds of both kinds of puts take turns, in one
world. The refusals are those of a segment in which nothing may go: every object is kept.
"""

import argparse
from itertools import count

import torch
from rich.console import Console
from rich.table import Table

from nanokv import Hold, NanoKVCache
from nanokv.bench.suite.timing import Samples, Summary
from nanokv.bench.suite.worlds import OWNER, Worlds
from nanokv.errors import OutOfMemory

ROUNDS = 20
PAGES = 8192
REFUSALS = 200
UNITS = {"K": 1 << 10, "M": 1 << 20}


def measure(cache: NanoKVCache, size: int, puts: int) -> dict[str, Summary]:
    """Percentiles of puts with room, of puts that evict, and of refusals."""
    tensor, numbers = torch.zeros(size, dtype=torch.uint8), count()
    room, full, refused = Samples(), Samples(), Samples()

    def put(samples: Samples) -> None:
        samples.time(cache.put, f"k{next(numbers)}", tensor, preferred_segment=OWNER)

    def fill() -> None:
        for _ in range(PAGES):
            cache.put(f"k{next(numbers)}", tensor, preferred_segment=OWNER)

    for _ in range(ROUNDS):
        fill()
        for _ in range(puts // ROUNDS):
            put(full)
        first = next(numbers)
        cache.remove_many([f"k{number}" for number in range(max(first - 2 * PAGES, 0), first)])
        for _ in range(puts // ROUNDS):
            put(room)
    cache.remove_many([f"k{number}" for number in range(next(numbers))])
    try:
        while True:
            cache.put(f"kept {next(numbers)}", tensor, preferred_segment=OWNER, hold=Hold(priority="kept"))
    except OutOfMemory:
        pass
    for _ in range(REFUSALS):
        refused.time(_refused, cache, tensor, f"k{next(numbers)}")
    kinds = {"with room": room, "full: evicts": full, "full of kept objects: refused": refused}
    return {name: samples.summary() for name, samples in kinds.items()}


def _refused(cache: NanoKVCache, tensor: torch.Tensor, key: str) -> None:
    try:
        cache.put(key, tensor, preferred_segment=OWNER)
    except OutOfMemory:
        return
    raise RuntimeError("a put into a segment of kept objects was not refused")


def _bytes(text: str) -> int:
    return int(text.rstrip("KM")) * UNITS.get(text[-1:], 1)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.full", description="What a full segment costs a put.")
    parser.add_argument("--size", type=_bytes, default=64 << 10, help="bytes of an object, with K or M (default 64K)")
    parser.add_argument("--puts", type=int, default=20_000, help="puts of each kind (default 20000)")
    given = parser.parse_args()
    if given.size < 1 or given.puts < ROUNDS:
        parser.error(f"--size must be at least 1, --puts at least {ROUNDS}")
    page = -(-given.size // 64) * 64
    with Worlds() as worlds, worlds.open("shm", "device", PAGES * page, page_bytes=page, evict=True) as world:
        found = measure(world.cache, given.size, given.puts)
    table = Table("put of " + f"{given.size:,} bytes", "p50 us", "p99 us", "max us", "p99, times that with room")
    base = found["with room"]["p99"]
    for name, us in found.items():
        table.add_row(name, *(f"{us[each]:.1f}" for each in ("p50", "p99", "max")), f"{us['p99'] / base:.2f}")
    console = Console()
    (console if console.is_terminal else Console(width=100)).print(table)


if __name__ == "__main__":
    main()
