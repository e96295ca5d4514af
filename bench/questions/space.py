"""What size classes cost, in bytes and in time: 1, 2, 4, ... 128 pages beside those that are the default."""

import random
import statistics
from collections.abc import Iterator
from typing import NamedTuple

import torch

import nanokv
from nanokv.bench.suite.distribution import latency
from nanokv.bench.suite.environment import torch_threads
from nanokv.bench.suite.figure import Figure, quantity
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.settings import Settings
from nanokv.bench.suite.timing import Samples

MIXES: dict[str, tuple[float, ...]] = {"0.5 to 12 pages": (0.5, 1, 3, 5, 7, 12), "1 page": (1,), "12 pages": (12,)}
POWERS = (1, 2, 4, 8, 16, 32, 64, 128)
CLASSES: dict[str, tuple[int, ...] | None] = {"powers of two": POWERS, "default": None}
TURN = 1000  #: puts between two looks at what the heap holds
PUTS = 4000  #: in one repetition, at most
PAGE = 4096  #: bytes per page of the heaps: the time of copies does not hide that of the protocol


class Look(NamedTuple):
    """What a heap holds at one moment."""

    stored: float  #: bytes of objects, % of all
    lost: float  #: inside extents, % of their bytes
    largest: float  #: free extent, pages


class Puts(NamedTuple):
    """One repetition."""

    samples: Samples
    looks: list[Look]
    evictions: float  #: per put


class Heap:
    """A heap of one rank, that is put into."""

    def __init__(self, classes: tuple[int, ...] | None, pages: int, sizes: tuple[float, ...], puts: int) -> None:
        (self.cache,) = nanokv.local_world(1, heap_bytes=pages * PAGE, page_bytes=PAGE, size_classes=classes)
        self._random = random.Random(5)
        self._objects = [torch.zeros(int(size * PAGE), dtype=torch.uint8) for size in sizes]
        self._count = 0
        self._puts = puts
        self._pages = pages

    def _put(self) -> None:
        self._count += 1
        self.cache.put(f"key {self._count}", self._random.choice(self._objects))

    def fill(self) -> Look:
        """Put until an object is evicted. Returns what the heap holds then, and puts on until all is as it stays."""
        while not self.cache.stats()["evicted"]:
            self._put()
        look = self._look()
        for _ in range(self._pages + TURN):
            self._put()
        return look

    def repetition(self) -> Puts:
        """Put on, timed, with a look after each turn."""
        samples, looks, before = Samples(self._puts), [], self.cache.stats()["evicted"]
        for number in range(self._puts):
            self._count += 1
            samples.time(self.cache.put, f"key {self._count}", self._random.choice(self._objects))
            if (number + 1) % TURN == 0 or number + 1 == self._puts:
                looks.append(self._look())
        return Puts(samples, looks, (self.cache.stats()["evicted"] - before) / self._puts)

    def _look(self) -> Look:
        stats = self.cache.stats()
        stored = stats["bytes_stored"] / stats["heap_total"]
        return Look(100 * stored, 100 * stats["internal_fragmentation"], stats["largest_free_extent"] // PAGE)


def of_mix(run: Run, mix: str) -> Iterator[Figure]:
    """Fill a heap of each table of classes, then put on in turns."""
    puts = max(min(run.settings.rounds, PUTS), 1)
    heaps = {name: Heap(classes, run.settings.pages, MIXES[mix], puts) for name, classes in CLASSES.items()}
    try:
        full = {name: heap.fill() for name, heap in heaps.items()}
        ways = {(mix, name): heap.repetition for name, heap in heaps.items()}
        for (_, name), found in run.in_turns(ways).items():
            yield from _figures(mix, name, full[name], found)
    finally:
        for heap in heaps.values():
            heap.cache.close()


def _figures(mix: str, classes: str, full: Look, found: list[Puts]) -> Iterator[Figure]:
    case = {"objects": mix, "classes": classes}
    yield latency("space", case | {"operation": "put that evicts"}, [one.samples for one in found])
    yield quantity("space", case | {"what": "lost, just full"}, "%", "lower", [full.lost])
    yield quantity("space", case | {"what": "stored, just full"}, "%", "higher", [full.stored])
    means = [Look(*map(statistics.fmean, zip(*one.looks, strict=True))) for one in found]
    yield quantity("space", case | {"what": "lost, evicting"}, "%", "lower", [look.lost for look in means])
    yield quantity("space", case | {"what": "stored, evicting"}, "%", "higher", [look.stored for look in means])
    largest = [max(look.largest for look in one.looks) for one in found]
    yield quantity("space", case | {"what": "largest free extent, evicting"}, "pages", "neither", largest)
    yield quantity("space", case | {"what": "evictions per put"}, "x", "lower", [one.evictions for one in found])


def measure(run: Run) -> Iterator[Figure]:
    """Every mix of objects."""
    with torch_threads(1):
        for mix in MIXES:
            yield from of_mix(run, mix)


def why_not(settings: Settings) -> str | None:
    """Why these settings have no answer."""
    return None if settings.pages >= 2 * max(POWERS) else f"--pages must be at least {2 * max(POWERS)}"


QUESTION = Question(
    "space",
    "What do size classes cost, in bytes and in time?",
    measure,
    "Objects of several sizes, equally often, are put into a heap until it is full, and on and on while others "
    "are evicted: with the classes 1, 2, 4, ... 128 pages, and with the default ones. Both heaps take turns. "
    "`lost` is what objects do not fill of their extents; after each thousand puts the bench looks at what the "
    "heap holds.",
    beside=("classes", "powers of two"),
    why_not=why_not,
)
