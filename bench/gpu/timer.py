"""Times work on a device, and replays it from a graph."""

import time
from array import array
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from nanokv.bench.suite.timing import Summary, summarise

HEAD_START = 200_000  #: cycles, about 100 µs, that the GPU waits first, so that it never waits for the host later
Work = Callable[[], object]


class Timer:
    """Collects durations of work by name, in ns.

    `time`: on a GPU the time between two events around the work, which is queued before the first event happens. So no
    launch is in it, but the cost of the events is (`event_overhead`); the resolution is about half a microsecond.
    `time_call`: the host's clock from the call until the device is done.
    On a CPU both are the host's clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pending: list[tuple[str, Any, Any]] = []
        self._ns: defaultdict[str, array[int]] = defaultdict(lambda: array("q"))

    def time(self, name: str, work: Work) -> None:
        """Queue work on the current stream between two events, without waiting."""
        if self._device.type == "cpu":
            self.time_call(name, work)
            return
        make: Any = torch.cuda.Event
        start, end = (make(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(HEAD_START)  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        self._pending.append((name, start, end))

    def time_call(self, name: str, work: Work) -> None:
        """Call `work`, and wait for the device."""
        synchronize(self._device)
        start = time.perf_counter_ns()
        work()
        synchronize(self._device)
        self._ns[name].append(time.perf_counter_ns() - start)

    def clear(self) -> None:
        """Forget all, after warming up."""
        self._settle()
        self._ns.clear()

    def summaries(self) -> dict[str, Summary]:
        """Percentiles by name, in microseconds; waits for pending work."""
        self._settle()
        return {name: summarise(samples) for name, samples in self._ns.items()}

    def _settle(self) -> None:
        synchronize(self._device)
        for name, start, end in self._pending:
            self._ns[name].append(round(start.elapsed_time(end) * 1e6))
        self._pending.clear()


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def event_overhead(device: torch.device, count: int = 50) -> Summary:
    """The time of no work at all, by `Timer.time`. It is subtracted nowhere."""
    timer = Timer(device)
    for _ in range(count):
        timer.time("nothing", lambda: None)
    return timer.summaries()["nothing"]


def graph_of(device: torch.device, *works: Work) -> Work:
    """Capture `works` in one graph, one after the other, and return the function that replays it.

    Each must have run before, so that it is compiled. On a CPU the function calls them.
    """
    if device.type == "cpu":
        return lambda: [work() for work in works]
    synchronize(device)
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for work in works:
            work()
    synchronize(device)
    replay: Work = graph.replay
    return replay
