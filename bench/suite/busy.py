"""Calls beside a thread of the same process that computes in Python, and so wants the interpreter's lock all the time.

A thread that waits for the lock asks for it after the switch interval, 5 ms. A call that gives the lock away may have
to wait for so long; one that keeps it is interrupted now and then. So calls of one kind come in runs that are longer
than the interval, without calls of another kind between them, which would decide when the lock changes hands.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from time import perf_counter_ns

import torch

from nanokv import NanoKVCache
from nanokv.bench.suite.checked import check_object, check_same, random_bytes
from nanokv.bench.suite.ring import PUT_GET
from nanokv.bench.suite.settings import KIB
from nanokv.bench.suite.timing import Samples
from nanokv.bench.suite.twin import places
from nanokv.bench.suite.worlds import OWNER, MeasuredWorld

SIZE = KIB
CALLS = 50_000  #: of each kind, at most
MOST_NS = 1_000_000_000  #: that the calls of one kind take together, at most
RUN = 10_000  #: objects, and puts between two removals
PLACES = 64  #: of the copies
PAGE_BYTES, HEAP_BYTES = 4096, 64 << 20


@contextmanager
def computing() -> Iterator[None]:
    """Let a thread compute in Python during the block."""
    over = threading.Event()

    def compute() -> None:
        number = 1
        while not over.is_set():
            for _ in range(1000):
                number = number * 1103515245 % 2147483647
            began.set()

    began = threading.Event()
    thread = threading.Thread(target=compute, name="bench-computing")
    thread.start()
    began.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Beside:
    """put, get into a tensor, and their copies, beside a thread that computes: at most `calls` of each."""

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._source, self._target = random_bytes(SIZE), torch.zeros(SIZE, dtype=torch.uint8)
        self.operations = {name: Samples(calls) for name in PUT_GET}
        self.copies = {name: Samples(calls) for name in PUT_GET}

    def run(self, world: MeasuredWorld) -> None:
        """Time all four, one after the other.

        Raises:
            Mismatch: a read returned other bytes than were put.
        """
        cache = world.cache
        keys = [f"read {i}" for i in range(RUN)]
        with places(cache, OWNER, PLACES, SIZE) as twins, computing():
            self._time_puts(cache)
            self._time_copies("put", [twin.copy_ for twin in twins], self._source)
            cache.put_many(keys, [self._source] * RUN, preferred_segment=OWNER)
            self._time_gets(cache, keys)
            check_same("what get wrote beside a busy thread", self._target, self._source)
            self._time_copies("get", [self._target.copy_] * PLACES, *twins)
        check_object(cache, world.owner, keys[-1], self._source)

    def _time_puts(self, cache: NanoKVCache) -> None:
        put, source, add = cache.put, self._source, self.operations["put"].add
        deadline = perf_counter_ns() + MOST_NS
        for first in range(0, self._calls, RUN):
            keys = [f"put {i}" for i in range(first, min(first + RUN, self._calls))]
            for key in keys:
                start = perf_counter_ns()
                put(key, source, preferred_segment=OWNER)
                end = perf_counter_ns()
                add(end - start)
                if end > deadline:
                    break
            cache.remove_many(keys)
            if perf_counter_ns() > deadline:
                break

    def _time_gets(self, cache: NanoKVCache, keys: list[str]) -> None:
        get, target, add = cache.get, self._target, self.operations["get"].add
        deadline = perf_counter_ns() + MOST_NS
        for _, key in zip(range(self._calls), cycle(keys), strict=False):
            start = perf_counter_ns()
            get(key, dst=target)
            end = perf_counter_ns()
            add(end - start)
            if end > deadline:
                break

    def _time_copies(
        self, name: str, copies: list[Callable[[torch.Tensor], torch.Tensor]], *sources: torch.Tensor
    ) -> None:
        add = self.copies[name].add
        deadline = perf_counter_ns() + MOST_NS
        for _, copy, source in zip(range(self._calls), cycle(copies), cycle(sources), strict=False):
            start = perf_counter_ns()
            copy(source)
            end = perf_counter_ns()
            add(end - start)
            if end > deadline:
                break
