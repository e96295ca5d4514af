"""Threads that really run at the same time, each on a processor of its own; and how to tell if they did not."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns, thread_time_ns
from typing import NamedTuple

ENOUGH = 0.9  #: the share of a processor that each thread must have, or the run does not count
TRIES = 20  #: runs at most for each run that must count


class Together(NamedTuple):
    """One run of threads."""

    slowest_ns: int  #: of the threads, each by its own clock
    share: float  #: of a processor that each thread had, on average, from 0 to 1


def run_together(threads: int, work: Callable[[int], object]) -> Together:
    """Call `work(0)`, `work(1)`, ... in threads that begin together, each bound to a processor.

    Raises:
        Exception: what the first thread that failed raised.
    """
    start = threading.Barrier(threads)
    processors = sorted(os.sched_getaffinity(0))
    began, ended, busy = ([0] * threads for _ in range(3))
    failures: list[Exception] = []

    def one(me: int) -> None:
        os.sched_setaffinity(0, {processors[me % len(processors)]})  # only of this thread
        start.wait()
        began[me], busy[me] = perf_counter_ns(), -thread_time_ns()
        try:
            work(me)
        except Exception as error:
            failures.append(error)
        ended[me], busy[me] = perf_counter_ns(), busy[me] + thread_time_ns()

    workers = [threading.Thread(target=one, args=(me,)) for me in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    slowest = max(end - begin for begin, end in zip(began, ended, strict=True))
    return Together(slowest, sum(busy) / (threads * (max(ended) - min(began))))


@dataclass
class ParallelRuns:
    """Values of runs, of which only those count in which every thread had a processor.

    On a busy machine threads take turns: what they share is then never contended, and looks fast.

    Attributes:
        wanted: how many runs must count.
    """

    wanted: int
    runs: list[tuple[float, float]] = field(default_factory=list)  #: (value, share of a processor)

    @property
    def over(self) -> bool:
        """Whether enough runs count, or too many did not."""
        return len(self._good) >= self.wanted or len(self.runs) >= TRIES * self.wanted

    @property
    def _good(self) -> list[float]:
        return [value for value, share in self.runs if share >= ENOUGH]

    @property
    def values(self) -> list[float]:
        """The values that count; if there are none, all."""
        return self._good or [value for value, _ in self.runs]

    @property
    def note(self) -> str:
        """What a reader of the values must know; "" if all is well."""
        if len(self._good) == len(self.runs):
            return ""
        if not self._good:
            return f"not sound: in none of {len(self.runs)} runs each thread had a processor of its own"
        return f"{len(self._good)} of {len(self.runs)} runs count: each thread had a processor of its own"
