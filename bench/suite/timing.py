"""Timing of single calls, and summaries of many of them."""

from array import array
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any

Summary = dict[str, float]  #: "n", and "p50", "p99", "p99_9" and "max" in microseconds

PERCENTILES = {"p50": 500, "p99": 990, "p99_9": 999, "max": 1000}  #: name -> per mille


class Samples:
    """Durations of calls of one kind, each timed by itself."""

    def __init__(self) -> None:
        self._ns = array("q")

    def time(self, function: Callable[..., Any], /, *args: Any, **keywords: Any) -> None:
        """Call `function`, and note its duration, which includes the cost of this call: see `overhead`."""
        start = perf_counter_ns()
        function(*args, **keywords)
        self._ns.append(perf_counter_ns() - start)

    def clear(self) -> None:
        """Forget all, after warming up."""
        del self._ns[:]

    def summary(self) -> Summary:
        """Percentiles, in microseconds."""
        return summarise(self._ns)


def summarise(ns: Iterable[int]) -> Summary:
    """Percentiles of durations in nanoseconds, as microseconds. Each is one of the samples, never between two."""
    samples = sorted(ns)
    count = len(samples)
    ranks = {name: -(-count * per_mille // 1000) for name, per_mille in PERCENTILES.items()}
    return {"n": float(count)} | {name: samples[rank - 1] / 1e3 for name, rank in ranks.items()}


def overhead(count: int = 10_000) -> Summary:
    """The cost of timing: an empty function, timed like everything else. It is subtracted nowhere."""
    samples = Samples()
    for _ in range(count):
        samples.time(_nothing, None, keyword=None)
    return samples.summary()


def _nothing(_: None, keyword: None) -> None:
    pass
