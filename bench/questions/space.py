"""`python -m bench.space`: what size classes and splitting objects cost, in bytes and in time.

Three tables. Objects of 0.5, 1, 3, 5, 7 and 12 pages, equally often, are put into a heap until it is full, and then on
and on, while others are evicted: with the size classes of before (1, 2, 4, ... 128 pages) and with those of now. Both
heaps take turns, a thousand puts each, so that another load of the machine meets both. Then puts of one page each, with
the same classes, and of twelve. Then the alternative: a payload that lies in k pieces is copied out, beside one that
lies in one.
"""

import argparse
import random
import statistics
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

import nanokv
from nanokv.bench.suite.environment import torch_threads
from nanokv.bench.suite.timing import Samples

SIZES = (0.5, 1, 3, 5, 7, 12)  #: pages
POWERS = (1, 2, 4, 8, 16, 32, 64, 128)
TABLES: dict[str, tuple[int, ...] | None] = {"powers of two": POWERS, "default": None}
TURN = 1000  #: puts in one turn
PAGE = 4096  #: bytes per page of the heaps: the time of copies does not hide that of the protocol
COPY_PAGES = (1 << 16, 1 << 18)  #: bytes
COPY_SIZES = (3, 5, 7, 12)  #: pages
ARENA_BYTES = 1 << 30
REPEATS = 101
MOST_SHOWN = 3


class Space(NamedTuple):
    """What a heap holds at one moment: shares of all its bytes, and its largest free extent."""

    stored: float
    internal: float
    external: float
    largest: float  #: pages


class Heap:
    """A heap of one rank, that is put into."""

    def __init__(self, classes: tuple[int, ...] | None, pages: int, sizes: tuple[float, ...]) -> None:
        (self.cache,) = nanokv.local_world(1, heap_bytes=pages * PAGE, page_bytes=PAGE, size_classes=classes)
        self._random = random.Random(5)
        self._objects = [torch.zeros(int(size * PAGE), dtype=torch.uint8) for size in sizes]
        self._count = 0
        self.samples = Samples()
        self.looks: list[Space] = []

    def put(self) -> None:
        """Put an object of a random size, timed."""
        self._count += 1
        self.samples.time(self.cache.put, f"key {self._count}", self._random.choice(self._objects))

    def fill(self) -> None:
        """Put until an object is evicted."""
        while not self.cache.stats()["evicted"]:
            self.put()

    def turn(self) -> None:
        """A thousand puts, and a look at what the heap holds."""
        for _ in range(TURN):
            self.put()
        self.look()

    def look(self) -> Space:
        """What the heap holds now."""
        stats = self.cache.stats()
        shares = stats["internal_fragmentation"], stats["external_fragmentation"]
        found = Space(stats["bytes_stored"] / stats["heap_total"], *shares, stats["largest_free_extent"] // PAGE)
        self.looks.append(found)
        return found


def churn(pages: int, turns: int, sizes: tuple[float, ...]) -> None:
    """Fill a heap of each table, then put on in turns, and print both."""
    heaps = {name: Heap(classes, pages, sizes) for name, classes in TABLES.items()}
    for name, heap in heaps.items():
        heap.fill()
        full = heap.look()
        print(f"  {name:14} just full: internal fragmentation {full.internal:.1%}, stored {full.stored:.1%}")
        for _ in range(pages // TURN + 1):
            heap.turn()
        heap.samples.clear()
        heap.looks.clear()
    before = {name: heap.cache.stats() for name, heap in heaps.items()}
    for _ in range(turns):
        for heap in heaps.values():
            heap.turn()
    for name, heap in heaps.items():
        now, then, time_us = heap.cache.stats(), before[name], heap.samples.summary()
        mean = Space(*(statistics.fmean(values) for values in zip(*heap.looks, strict=True)))
        print(
            f"  {name:14} evicting:  internal fragmentation {mean.internal:.1%}, stored {mean.stored:.1%}, "
            f"largest free extent {max(look.largest for look in heap.looks):.0f} pages at most; "
            f"evictions per put {(now['evicted'] - then['evicted']) / (turns * TURN):.3f}, "
            f"refused at first {now['refused'] - then['refused']}, "
            f"joins {now['sweeper_joined'] - then['sweeper_joined']}; "
            f"put p50 {time_us['p50']:.1f} us, p99 {time_us['p99']:.0f} us"
        )
    old, new = (heap.samples.summary() for heap in heaps.values())
    print(f"  put, default / powers of two: p50 {new['p50'] / old['p50']:.2f}, p99 {new['p99'] / old['p99']:.2f}")
    for heap in heaps.values():
        heap.cache.close()


def pieces_of(pages: int) -> list[int]:
    """The extents that would hold `pages` without a rest, if there were powers of two only."""
    return [1 << bit for bit in reversed(range(pages.bit_length())) if pages >> bit & 1]


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy by torch, piece after piece."""
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def move_all(targets: list[npt.NDArray[np.uint8]], sources: list[npt.NDArray[np.uint8]]) -> None:
    """Copy by memcpy, piece after piece."""
    for target, source in zip(targets, sources, strict=True):
        np.copyto(target, source)


def scattered(page_bytes: int, pieces: list[int], arena: torch.Tensor) -> tuple[float, float]:
    """How much longer a payload in `pieces` (pages each) takes to be copied out than one in one piece: memcpy, torch.

    Each repetition reads other places of the arena, so that the bytes are as cold as in a cache; the ways take turns.
    """
    pages, dice, times = sum(pieces), random.Random(7), {name: Samples() for name in ("m1", "mk", "t1", "tk")}
    target = torch.empty(pages * page_bytes, dtype=torch.uint8)
    ends = list(accumulate(n * page_bytes for n in pieces))
    targets = [target[begin:end] for begin, end in pairwise([0, *ends])]
    for _ in range(REPEATS):
        for way, name in ((move_all, "m"), (copy_all, "t")):
            for cut, to in (("1", [target]), ("k", targets)):
                places = [dice.randrange(len(arena) // page_bytes - pages) * page_bytes for _ in to]
                of = [arena[at : at + len(part)] for at, part in zip(places, to, strict=True)]
                if way is move_all:
                    times[name + cut].time(move_all, [part.numpy() for part in to], [part.numpy() for part in of])
                else:
                    times[name + cut].time(copy_all, to, of)
    median = {name: samples.summary()["p50"] for name, samples in times.items()}
    return median["mk"] / median["m1"], median["tk"] / median["t1"]


def copies() -> None:
    """Print what scattered payloads cost."""
    arena = torch.zeros(ARENA_BYTES, dtype=torch.uint8)
    for page_bytes in COPY_PAGES:
        print(f"  pages of {page_bytes >> 10} KiB")
        for pages in COPY_SIZES:
            for pieces in dict.fromkeys((tuple(pieces_of(pages)), (1,) * pages)):
                memcpy, torch_copy = scattered(page_bytes, list(pieces), arena)
                cut = "+".join(map(str, pieces)) if len(pieces) <= MOST_SHOWN else f"{pages} x 1"
                print(f"    {pages:2} pages as {cut:9}: memcpy {memcpy:.2f}, torch copy {torch_copy:.2f}")


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.space", description="What size classes cost.")
    parser.add_argument("--pages", type=int, default=8192, help="of each heap")
    parser.add_argument("--turns", type=int, default=20, help="of a thousand puts for each heap")
    given = parser.parse_args()
    if given.pages < 2 * max(POWERS) or given.turns < 1:
        parser.error(f"--pages must be at least {2 * max(POWERS)}, --turns at least 1")
    with torch_threads(1):
        for sizes in (SIZES, (1,), (12,)):
            print(f"objects of {', '.join(map(str, sizes))} pages, in a heap of {given.pages} pages of {PAGE} bytes")
            churn(given.pages, given.turns, sizes)
        print("a payload in several pieces, copied out: time / time of one piece (medians)")
        copies()


if __name__ == "__main__":
    main()
