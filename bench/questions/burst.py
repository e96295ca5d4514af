"""Calls in bursts, as an engine makes them at the end of a step, with the owner's poller in this process or elsewhere.

In the same process the poller wants the interpreter's lock while the calls are made. Between two bursts it has taken
all hints and pauses; the first calls of the next burst find it there.
"""

import time
from collections.abc import Iterator
from functools import partial
from time import perf_counter_ns

import torch

from nanokv import NanoKVCache
from nanokv.bench.suite.checked import check_object, check_same, random_bytes
from nanokv.bench.suite.distribution import latency
from nanokv.bench.suite.figure import Case, Figure
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.settings import KIB
from nanokv.bench.suite.timing import Samples
from nanokv.bench.suite.worlds import OWNER, MeasuredWorld
from nanokv.types import KeyDigest

SIZE = KIB
CALLS = 200  #: of a burst
PAUSE = 0.005  #: seconds between two bursts: the poller sees rounds without hints, but does not go to sleep
WARM = 5  #: bursts
HEAP_BYTES, PAGE_BYTES = 16 << 20, 4096
POLLERS = {"local": "same process", "shm": "other process"}  #: heap -> where the owner's poller runs
OPERATIONS = ("put", "get")


def bursts(world: MeasuredWorld, count: int) -> dict[str, Samples]:
    """`count` bursts of puts, each followed by one of gets of the same objects. Removals are not timed.

    Raises:
        Mismatch: a read returned other bytes than were put.
    """
    cache = world.cache
    source, target = random_bytes(SIZE), torch.zeros(SIZE, dtype=torch.uint8)
    cache.put("checked", source, preferred_segment=OWNER)
    check_object(cache, world.owner, "checked", source)
    samples = {name: Samples(max(count, WARM) * CALLS) for name in OPERATIONS}
    for number in range(-WARM, count):
        if number == 0:
            for each in samples.values():
                each.clear()
        _burst(cache, samples, source, target, number)
    check_same("what the last get wrote", target, source)
    return samples


def _burst(
    cache: NanoKVCache, samples: dict[str, Samples], source: torch.Tensor, target: torch.Tensor, number: int
) -> None:
    keys: list[KeyDigest] = [cache.digest(f"burst {number}, call {call}") for call in range(CALLS)]
    time.sleep(PAUSE)
    put, add = cache.put, samples["put"].add
    for key in keys:
        start = perf_counter_ns()
        put(key, source, preferred_segment=OWNER)
        end = perf_counter_ns()
        add(end - start)
    target.zero_()
    time.sleep(PAUSE)
    get, add = cache.get, samples["get"].add
    for key in keys:
        start = perf_counter_ns()
        get(key, dst=target)
        end = perf_counter_ns()
        add(end - start)
    cache.remove_many(keys)


def measure(run: Run) -> Iterator[Figure]:
    """Both places of the poller, in turns; each repetition in a world of its own."""
    count = -(-run.settings.rounds // CALLS)

    def once(heap: str) -> dict[str, Samples]:
        with run.worlds.open(heap, "device", HEAP_BYTES, page_bytes=PAGE_BYTES) as world:
            return bursts(world, count)

    heaps = [heap for heap in POLLERS if heap in run.settings.heaps]
    found = run.in_turns({heap: partial(once, heap) for heap in heaps})
    for heap, repetitions in found.items():
        for operation in OPERATIONS:
            case: Case = {"operation": operation, "size": SIZE, "poller": POLLERS[heap]}
            yield latency("burst", case, [one[operation] for one in repetitions])


QUESTION = Question(
    "burst",
    "What does the owner's poller add to calls that come in bursts?",
    measure,
    f"Bursts of {CALLS} puts and of as many gets of {SIZE} bytes, {PAUSE * 1e3:g} ms apart; each call is timed by "
    "itself, its key is a digest. In the same process the poller takes the interpreter's lock from the calls now and "
    "then. Removals and the pauses are not timed.",
    beside=("poller", "other process"),
)
