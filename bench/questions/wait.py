"""From the return of put to the return of another rank's wait."""

import time
from collections.abc import Iterator
from functools import partial
from time import perf_counter_ns

import numpy as np
import torch

from nanokv.bench.suite.distribution import Durations, latency
from nanokv.bench.suite.figure import Figure
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.turns import in_turns
from nanokv.bench.suite.worlds import OWNER, SYSTEMS, MeasuredWorld

HEAP_BYTES = 16 << 20
PAGE_BYTES = 4096
APART = 0.005  #: seconds between two puts: the waiting rank sleeps
SEGMENTS = {"the waiting rank's": OWNER, "the producer's": 1 - OWNER}


def latencies(world: MeasuredWorld, puts: int, segment: int) -> Durations:
    """Nanoseconds from put's return to the return of the wait of the owner's rank; 0 if the wait was first.

    All processes of a host share one clock.
    """
    tensor = torch.zeros(256)
    keys = [f"wait {segment} {i}" for i in range(puts)]
    returned: list[int] = []
    world.owner.await_each(keys)
    for key in keys:
        time.sleep(APART)
        world.cache.put(key, tensor, preferred_segment=segment)
        returned.append(perf_counter_ns())
    woken = world.owner.woken(puts)
    return np.array([max(seen - when, 0) for seen, when in zip(woken, returned, strict=True)])


def repetition(run: Run, heap: str, alloc: str) -> dict[str, Durations]:
    """By the segment into which the objects go."""
    puts = 2 * run.settings.idle_puts
    with run.worlds.open(heap, alloc, HEAP_BYTES, page_bytes=PAGE_BYTES) as world:
        return {name: latencies(world, puts, segment) for name, segment in SEGMENTS.items()}


def measure(run: Run) -> Iterator[Figure]:
    """Every heap; v2 and v1 take turns."""
    for heap in run.settings.heaps:
        ways = {(heap, SYSTEMS[alloc]): partial(repetition, run, heap, alloc) for alloc in run.settings.allocs}
        for (_, system), found in in_turns(ways, run.settings.repeats, say=run.say).items():
            for segment in SEGMENTS:
                case = {"heap": heap, "segment": segment, "system": system}
                yield latency("wait", case, [one[segment] for one in found])


QUESTION = Question(
    name="wait",
    asks="How soon after a put does another rank's wait return?",
    measure=measure,
    how=(
        "From the return of put to the return of wait in the other rank, which in heap shm is another process. "
        "Puts are 5 ms apart, so the waiting rank sleeps before each: most of the time goes into waking its "
        "processor, and an idle one takes longer the longer it has slept. In the waiting rank's own segment its "
        "poller wakes too, and both want the interpreter's lock. 0: the wait returned before put did."
    ),
)
