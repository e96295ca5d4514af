"""A put into a full segment, which evicts, beside a put into one with room; and a refusal."""

from collections.abc import Iterator
from functools import partial
from itertools import count

import torch

from nanokv import Hold, NanoKVCache
from nanokv.bench.suite.distribution import latency
from nanokv.bench.suite.figure import Figure
from nanokv.bench.suite.question import Question, Run, needs_processes
from nanokv.bench.suite.settings import KIB
from nanokv.bench.suite.timing import Samples
from nanokv.bench.suite.worlds import OWNER
from nanokv.errors import OutOfMemory

SIZE = 64 * KIB  #: bytes of an object, and of a page
TURNS = 4  #: of puts with room and puts that evict, in one repetition
PUTS = 4000  #: of each kind in one repetition, at most
REFUSALS = 200
KINDS = ("with room", "full: evicts", "full of kept objects: refused")


class Segment:
    """The segment of another process, of `pages` objects, that is put into."""

    def __init__(self, cache: NanoKVCache, pages: int) -> None:
        self._cache = cache
        self._pages = pages
        self._tensor = torch.zeros(SIZE, dtype=torch.uint8)
        self._numbers = count()

    def put(self, samples: Samples | None = None) -> None:
        """Put a new object, timed if there are samples."""
        key = f"k{next(self._numbers)}"
        if samples is None:
            self._cache.put(key, self._tensor, preferred_segment=OWNER)
        else:
            samples.time(self._cache.put, key, self._tensor, preferred_segment=OWNER)

    def fill(self) -> None:
        """Put until every page was written."""
        for _ in range(self._pages):
            self.put()

    def clear(self) -> None:
        """Remove all that may still be there."""
        end = next(self._numbers)
        self._cache.remove_many([f"k{number}" for number in range(max(end - 2 * self._pages, 0), end)])

    def keep(self) -> None:
        """Fill with objects that may not be evicted."""
        try:
            for number in range(2 * self._pages):
                self._cache.put(f"kept {number}", self._tensor, preferred_segment=OWNER, hold=Hold(priority="kept"))
        except OutOfMemory:
            return
        raise RuntimeError("the segment took more kept objects than it has pages for")

    def refuse(self) -> None:
        """A put that must be refused.

        Raises:
            RuntimeError: it was not.
        """
        try:
            self.put()
        except OutOfMemory:
            return
        raise RuntimeError("a put into a segment of kept objects was not refused")


def repetition(run: Run, pages: int) -> dict[str, Samples]:
    """Samples by kind, from a world of its own."""
    each = max(min(run.settings.rounds_of(SIZE), PUTS) // TURNS, 1)
    samples = dict(zip(KINDS, (Samples(TURNS * each), Samples(TURNS * each), Samples(REFUSALS)), strict=True))
    room, full, refused = samples.values()
    with run.worlds.open("shm", "device", pages * SIZE, page_bytes=SIZE, evict=True) as world:
        segment = Segment(world.cache, pages)
        for _ in range(TURNS):
            segment.fill()
            for _ in range(each):
                segment.put(full)
            segment.clear()
            for _ in range(each):
                segment.put(room)
        if not world.cache.stats()["evictions"]:
            raise RuntimeError("no put has evicted")
        segment.clear()
        segment.keep()
        for _ in range(REFUSALS):
            refused.time(segment.refuse)
    return samples


def measure(run: Run) -> Iterator[Figure]:
    """All kinds, in one world after the other."""
    pages = run.settings.pages
    (found,) = run.in_turns({f"{pages} pages": partial(repetition, run, pages)}).values()
    for kind in KINDS:
        yield latency("full", {"size": SIZE, "segment": kind}, [one[kind] for one in found])


QUESTION = Question(
    "full",
    "What does a full segment cost a put?",
    measure,
    "One process puts objects of 64 KiB into the segment of another, whose poller runs. Turns of puts into the "
    "full segment, where each evicts, and of puts with room. The refusals are those of a segment in which "
    "nothing may go: every object is kept; there, the time includes the raising and catching of OutOfMemory. "
    "Each repetition is a world of its own.",
    beside=("segment", KINDS[0]),
    why_not=needs_processes,
)
