"""From the return of put to the owner's listener: how fast the owner's host learns of a new object."""

import time
from collections.abc import Iterator
from functools import partial
from time import perf_counter_ns

import numpy as np
import torch

from nanokv.bench.suite.distribution import Durations, latency
from nanokv.bench.suite.figure import Figure
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.worlds import OWNER, SYSTEMS, MeasuredWorld

HEAP_BYTES = 16 << 20
PAGE_BYTES = 4096
BUSY_PUTS = HEAP_BYTES // PAGE_BYTES // 2  #: at most; nothing is removed
ASLEEP_AFTER = 0.03  #: seconds; the poller goes to sleep after about 10 ms without hints


def latencies(world: MeasuredWorld, puts: int, pause: float) -> Durations:
    """Nanoseconds from put's return to the listener's call, for each of `puts` objects; 0 if the listener was first.

    All processes of a host share one clock.
    """
    tensor = torch.zeros(256)
    returned: dict[int, int] = {}
    world.owner.listen()
    for i in range(puts):
        time.sleep(pause)
        key = world.cache.digest(f"{puts} {pause} {i}")
        world.cache.put(key, tensor, preferred_segment=OWNER)
        returned[key.key_hash] = perf_counter_ns()
    seen = dict(world.owner.stored(puts))
    return np.array([max(seen[key_hash] - when, 0) for key_hash, when in returned.items()])


def repetition(run: Run, heap: str, alloc: str) -> dict[str, Durations]:
    """Measure by what the poller does before each put: it sleeps, or puts come as fast as they can."""
    busy_puts = min(run.settings.rounds, BUSY_PUTS)
    with run.worlds.open(heap, alloc, HEAP_BYTES, page_bytes=PAGE_BYTES) as world:
        return {
            "asleep": latencies(world, run.settings.idle_puts, ASLEEP_AFTER),
            "busy": latencies(world, busy_puts, 0.0),
        }


def measure(run: Run) -> Iterator[Figure]:
    """Every heap; v2 and v1 take turns."""
    for heap in run.settings.heaps:
        ways = {(heap, SYSTEMS[alloc]): partial(repetition, run, heap, alloc) for alloc in run.settings.allocs}
        for (_, system), found in run.in_turns(ways).items():
            for poller in ("asleep", "busy"):
                case = {"heap": heap, "poller": poller, "system": system}
                yield latency("announce", case, [one[poller] for one in found])


QUESTION = Question(
    "announce",
    "How soon does the owner's listener hear of a put?",
    measure,
    "From the return of put to the call of a listener of the rank whose segment got the object; in heap shm "
    "that is another process, with the same clock. The poller sleeps before each put, or puts come as fast as "
    "they can and it takes them in batches. 0 means that the listener was called before put returned, as "
    "happens where v1 waits for its master's answer.",
)
