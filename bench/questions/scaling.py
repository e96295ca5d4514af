"""Several producers put into the segments of several owners at once, each of them a process of its own.

In a lap every producer puts the same number of objects, one owner after the other. All begin at one moment, which they
are told in advance. The removal of a lap's objects is not timed, and begins when all producers have ended.
"""

import os
import time
from collections.abc import Iterator
from functools import partial
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from nanokv import NanoKVCache
from nanokv.bench.suite.checked import random_bytes
from nanokv.bench.suite.crew import Crew, together
from nanokv.bench.suite.distribution import Durations, latency
from nanokv.bench.suite.environment import torch_threads
from nanokv.bench.suite.figure import Case, Figure, quantity
from nanokv.bench.suite.other_process import Peer
from nanokv.bench.suite.owner import digest
from nanokv.bench.suite.question import Question, Run, needs_processes
from nanokv.bench.suite.ring import Mismatch
from nanokv.bench.suite.settings import KIB, Settings

SIZES = (KIB, 64 * KIB)
SMALL = ((1, 1), (2, 1), (1, 2), (2, 2))  #: producers and owners, measured on every machine
LARGE = ((4, 1), (2, 4), (4, 4), (8, 4), (8, 8), (16, 16))  #: where each process has a core
MOST = 10_000  #: objects that a producer puts in one lap
NOTICE_NS = 10_000_000  #: from telling the producers to the beginning of a lap
HERE = "nanokv.bench.questions.scaling"


class Lap(NamedTuple):
    """What one lap, or several, took."""

    wall_ns: int  #: from the first producer's beginning to the last one's end
    puts: list[Durations]  #: by producer


def key_of(producer: int, lap: int, i: int) -> str:
    """The key of an object. It goes to owner i modulo their number."""
    return f"producer {producer}, lap {lap}, object {i}"


def produce(cache: NanoKVCache, lap: int, size: int, objects: int, owners: int, begin_at: int) -> dict[str, Any]:
    """Put the objects of one lap from the time `begin_at` on. Runs in the producer; ranks 0 to `owners` - 1 are owners.

    Returns:
        "began" and "ended" on the clock that all processes of a host share, and "ns" of each put.
    """
    me = cache.rank - owners
    source, put = random_bytes(size, seed=me), cache.put
    keys = [cache.digest(key_of(me, lap, i)) for i in range(objects)]
    targets = [i % owners for i in range(objects)]
    ns = [0] * objects
    with torch_threads(1):
        time.sleep(max(begin_at - perf_counter_ns() - 1_000_000, 0) / 1e9)
        while perf_counter_ns() < begin_at:
            pass
        began = perf_counter_ns()
        for i in range(objects):
            start = perf_counter_ns()
            put(keys[i], source, preferred_segment=targets[i])
            ns[i] = perf_counter_ns() - start
        ended = perf_counter_ns()
    return {"began": began, "ended": ended, "ns": ns}


def clear(cache: NanoKVCache, lap: int, objects: int, owners: int) -> int:
    """Remove the objects of one lap of this producer. Returns how many there were."""
    return sum(cache.remove_many([key_of(cache.rank - owners, lap, i) for i in range(objects)]))


def run_lap(peers: list[Peer], lap: int, size: int, objects: int, owners: int) -> Lap:
    """One lap of all producers, whose objects are checked and removed.

    Raises:
        Mismatch: an owner reads other bytes than a producer put, or objects are missing.
    """
    producers = peers[owners:]
    about = {"lap": lap, "objects": objects, "owners": owners}
    begin_at = perf_counter_ns() + NOTICE_NS
    answers = together(producers, f"{HERE}:produce", [about | {"size": size, "begin_at": begin_at}] * len(producers))
    for producer in range(len(producers)):
        wanted, last = digest(random_bytes(size, seed=producer)), objects - 1
        if peers[last % owners].digest(key_of(producer, lap, last)) != wanted:
            raise Mismatch(f"an owner reads other bytes than producer {producer} put, at {size} bytes")
    removed = together(producers, f"{HERE}:clear", [about] * len(producers))
    if removed != [objects] * len(producers):
        raise Mismatch(f"of {objects} objects each, the producers found {removed}")
    wall = max(one["ended"] for one in answers) - min(one["began"] for one in answers)
    return Lap(wall, [np.array(one["ns"], np.int64) for one in answers])


def repetition(crew: Crew, settings: Settings, producers: int, owners: int, size: int) -> Lap:
    """Laps in a world of its own, after one that does not count; all of them as one."""
    objects = max(min(settings.ring_bytes // size // producers, settings.rounds, MOST), owners)
    room = (-(-objects // owners) * producers + 64) * size
    with crew.world(producers + owners, room, page_bytes=size) as peers:
        laps = [run_lap(peers, lap, size, objects, owners) for lap in range(-1, -(-settings.rounds // objects))][1:]
    puts = [np.concatenate([lap.puts[producer] for lap in laps]) for producer in range(producers)]
    return Lap(sum(lap.wall_ns for lap in laps), puts)


def measure(run: Run) -> Iterator[Figure]:
    """All numbers of producers and owners, in turns, for each size."""
    settings = run.settings
    with Crew() as crew:
        for size in SIZES:
            ways = {shape: partial(repetition, crew, settings, *shape, size) for shape in shapes(settings)}
            for shape, repetitions in run.in_turns(ways).items():
                yield from _figures(*shape, size, repetitions)


def _figures(producers: int, owners: int, size: int, repetitions: list[Lap]) -> Iterator[Figure]:
    case: Case = {"producers": producers, "owners": owners, "size": size}
    note = crowded(producers + owners)
    rates = [sum(map(len, one.puts)) / one.wall_ns * 1e3 for one in repetitions]
    yield quantity("scaling", case | {"what": "all puts"}, "M/s", "higher", rates, note)
    for producer in range(producers):
        what: Case = {"what": f"put of producer {producer}"}
        yield latency("scaling", case | what, [one.puts[producer] for one in repetitions], note)


def shapes(settings: Settings) -> tuple[tuple[int, int], ...]:
    """Numbers of producers and owners: those of the run, or small ones and those that this machine has cores for."""
    cores = len(os.sched_getaffinity(0))
    return settings.topologies or (*SMALL, *(shape for shape in LARGE if sum(shape) <= cores))


def crowded(processes: int) -> str:
    """A note if processes must share cores."""
    cores = len(os.sched_getaffinity(0))
    return f"{processes} processes on {cores} cores: they wait for each other" if processes > cores else ""


QUESTION = Question(
    "scaling",
    "How many puts a second do several producers bring into the segments of several owners?",
    measure,
    "Each producer and each owner is a process; objects go to the owners in turn. Every put is timed by itself. The "
    "rate is that of all producers, from the first one's beginning to the last one's end; it includes the look at the "
    "clock. A producer has one thread of torch. Removals are not timed.",
    why_not=needs_processes,
)
