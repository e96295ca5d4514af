"""put and get in a segment with a million objects, beside one with a thousand."""

import random
from collections.abc import Iterator
from functools import partial

import torch

from nanokv.bench.suite.distribution import latency
from nanokv.bench.suite.figure import Case, Figure
from nanokv.bench.suite.question import Question, Run, needs_processes
from nanokv.bench.suite.ring import Mismatch
from nanokv.bench.suite.settings import Settings
from nanokv.bench.suite.timing import Samples
from nanokv.bench.suite.worlds import OWNER

PAGE = 256  #: bytes of a page, and of an object
FEW = 1000
SPARE = 4096  #: pages for the puts that are timed


def repetition(run: Run, objects: int) -> dict[str, Samples]:
    """Gets of keys at random, and puts of new ones, which are removed at once, untimed; in a world of its own."""
    rounds = run.settings.rounds
    with run.worlds.open("shm", "device", (objects + SPARE) * PAGE, page_bytes=PAGE) as (cache, _):
        value, into = torch.randint(0, 256, (PAGE,), dtype=torch.uint8), torch.zeros(PAGE, dtype=torch.uint8)
        keys = [cache.digest(f"{number}") for number in range(objects)]
        for key in keys:
            cache.put(key, value, preferred_segment=OWNER)
        draw, gets, puts = random.Random(1), Samples(rounds), Samples(rounds)
        for number in range(rounds):
            gets.time(cache.get, keys[draw.randrange(objects)], dst=into)
            new = cache.digest(f"new {number}")
            puts.time(cache.put, new, value, preferred_segment=OWNER)
            cache.remove(new)
        if not torch.equal(into, value):
            raise Mismatch(f"a get among {objects} objects gave other bytes than were put")
    return {"put": puts, "get": gets}


def measure(run: Run) -> Iterator[Figure]:
    """A thousand objects and a million take turns."""
    counts = (FEW, run.settings.objects)
    ways = {f"{count:,} objects": partial(repetition, run, count) for count in counts}
    found = dict(zip(counts, run.in_turns(ways).values(), strict=True))
    for operation in ("put", "get"):
        for count, repetitions in found.items():
            case: Case = {"operation": operation, "objects": count}
            yield latency("crowd", case, [one[operation] for one in repetitions])


def why_not(settings: Settings) -> str | None:
    """Why these settings have no answer."""
    return needs_processes(settings) or (None if settings.objects > FEW else f"--objects must be above {FEW}")


QUESTION = Question(
    "crowd",
    "What do a million objects in a segment cost a put and a get?",
    measure,
    "One process puts and gets objects of 256 bytes at random in the segment of another, whose poller and "
    "sweeper run. A put is removed at once, untimed. A segment with a thousand objects and one with a million "
    "take turns; each repetition is a world of its own.",
    beside=("objects", FEW),
    why_not=why_not,
)
