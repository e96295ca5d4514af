"""From the return of put to the return of another rank's wait; beside it a wake-up alone, without a cache."""

import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from time import perf_counter_ns

import numpy as np
import torch

from nanokv import NanoKVCache
from nanokv.bench.suite.distribution import Durations, latency
from nanokv.bench.suite.figure import Figure
from nanokv.bench.suite.owner import PATIENCE
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.worlds import OWNER, SYSTEMS, MeasuredWorld
from nanokv.heap import futex
from nanokv.heap.futex import WorldBell

HEAP_BYTES = 16 << 20
PAGE_BYTES = 4096
APART = 0.005  #: seconds between two puts: the waiting rank sleeps
SEGMENTS = {"the waiting rank's": OWNER, "the producer's": 1 - OWNER}
BARE = "a wake-up alone"
HERE = "nanokv.bench.questions.wait"


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


class BareWaits:
    """Sleeps on a word in a file, time after time, in a thread, and notes when it wakes."""

    def __init__(self, path: str, count: int) -> None:
        self.woken: list[int] = []
        self._words = np.memmap(path, np.uint32, "r+")
        self._thread = threading.Thread(target=self._run, args=(count,), name="bench-bare-wait")
        self._thread.start()

    def _run(self, count: int) -> None:
        bell, turn = WorldBell(self._words[:1]), self._words[1:]
        for number in range(count):
            bell.wait([], PATIENCE, lambda number=number: turn[0] <= number)  # type: ignore[misc]
            self.woken.append(perf_counter_ns())

    def end(self) -> list[int]:
        """When each sleep ended, in ns."""
        self._thread.join()
        return self.woken


_waits: list[BareWaits] = []  #: of the other process


def sleep_each(cache: NanoKVCache | None, path: str, count: int) -> None:
    """Begin to sleep. Runs in the other process."""
    _waits.append(BareWaits(path, count))


def slept(cache: NanoKVCache | None) -> list[int]:
    """When each sleep ended."""
    return _waits.pop().end()


def bare_latencies(run: Run) -> dict[str, Durations]:
    """Nanoseconds from the end of a wake-up's system call to the end of another process' sleep; 0 if that was first."""
    count, peer = 2 * run.settings.idle_puts, run.worlds.peer()
    returned: list[int] = []
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(8))
        file.flush()
        words = np.memmap(file.name, np.uint32, "r+")
        bell = WorldBell(words[:1])
        peer.call(f"{HERE}:sleep_each", path=file.name, count=count)
        for number in range(count):
            time.sleep(APART)
            words[1] = number + 1
            bell.ring()
            returned.append(perf_counter_ns())
        woken = peer.call(f"{HERE}:slept")
    return {"none": np.array([max(seen - when, 0) for seen, when in zip(woken, returned, strict=True)])}


def repetition(run: Run, heap: str, alloc: str) -> dict[str, Durations]:
    """Measure by the segment into which the objects go."""
    puts = 2 * run.settings.idle_puts
    with run.worlds.open(heap, alloc, HEAP_BYTES, page_bytes=PAGE_BYTES) as world:
        return {name: latencies(world, puts, segment) for name, segment in SEGMENTS.items()}


def measure(run: Run) -> Iterator[Figure]:
    """Every heap; v2 and v1 take turns, and in two processes the wake-up alone."""
    for heap in run.settings.heaps:
        ways = {(heap, SYSTEMS[alloc]): partial(repetition, run, heap, alloc) for alloc in run.settings.allocs}
        if heap == "shm" and futex.supported():
            ways[heap, BARE] = partial(bare_latencies, run)
        for (_, system), found in run.in_turns(ways).items():
            for segment in found[0]:
                case = {"heap": heap, "segment": segment, "system": system}
                yield latency("wait", case, [one[segment] for one in found])


QUESTION = Question(
    "wait",
    "How soon after a put does another rank's wait return?",
    measure,
    "From the return of put to the return of wait in the other rank, which in heap shm is another process. "
    "Puts are 5 ms apart, so the waiting rank sleeps before each: most of the time goes into waking its "
    "processor, and an idle one takes longer the longer it has slept. In the waiting rank's own segment its "
    "poller wakes too. 0: the wait returned before put did. A wake-up alone: one process sleeps on a word in a "
    "file that they share, the other one wakes it; from the return of that system call. It is the system's part, "
    "and the rest is NanoKV's.",
)
