"""Timing of single calls. What the samples say: `distribution`."""

from array import array
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

Summary = dict[str, float]  #: of the GPU benchmarks: "n", and "p50", "p99", "p99_9" and "max" in microseconds

PERCENTILES = {"p50": 500, "p99": 990, "p99_9": 999, "max": 1000}  #: of a Summary: name -> per mille
EMPTY_CALLS = 10_000


class Samples:
    """Durations of at most `capacity` calls of one kind, each timed by itself, in memory that was touched before."""

    def __init__(self, capacity: int) -> None:
        self._ns = array("q", bytes(8 * capacity))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def time(self, function: Callable[..., Any], /, *args: Any, **keywords: Any) -> None:
        """Call `function` and note how long it took, with the cost of this call: see `overhead`.

        Raises:
            IndexError: there were more calls than the capacity.
        """
        start = perf_counter_ns()
        function(*args, **keywords)
        end = perf_counter_ns()
        self._ns[self._count] = end - start
        self._count += 1

    def add(self, ns: int) -> None:
        """Note a duration that the caller has measured. Raises IndexError like `time`."""
        self._ns[self._count] = ns
        self._count += 1

    def clear(self) -> None:
        """Forget all, after warming up."""
        self._count = 0

    def keep(self, count: int) -> None:
        """Forget all but the first `count`."""
        self._count = min(self._count, count)

    @property
    def ns(self) -> npt.NDArray[np.int64]:
        """A copy of all durations in nanoseconds, in the order of the calls."""
        return np.array(self._ns[: self._count], np.int64)


def summarise(ns: Iterable[int]) -> Summary:
    """Percentiles of durations in nanoseconds, as microseconds. Each is one of the samples, never between two."""
    samples = sorted(ns)
    count = len(samples)
    ranks = {name: -(-count * per_mille // 1000) for name, per_mille in PERCENTILES.items()}
    return {"n": float(count)} | {name: samples[rank - 1] / 1e3 for name, rank in ranks.items()}


def overhead() -> dict[str, Samples]:
    """The cost of timing an empty function, where the call is written out, and by `Samples.time`.

    It is subtracted nowhere.
    """
    written, by_time = Samples(EMPTY_CALLS), Samples(EMPTY_CALLS)
    for _ in range(EMPTY_CALLS):
        start = perf_counter_ns()
        _nothing(None, keyword=None)
        end = perf_counter_ns()
        written.add(end - start)
        by_time.time(_nothing, None, keyword=None)
    return {"written out": written, "by Samples.time": by_time}


def _nothing(_: None, keyword: None) -> None:
    pass
