"""The free list: a pop and a push in compiled code, by one thread and by two that share the list."""

import os
import statistics
import threading
from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns
from typing import Any

import numpy as np
import triton
import triton.language as tl

from nanokv.bench.suite.settings import Settings
from nanokv.device.machines.native_code import native_function
from nanokv.device.memory.triton import word
from nanokv.device.protocol.freelist import pop, push
from nanokv.device.segment.layout import LOW32, WORD_BYTES
from nanokv.device.segment.record import LINE

NODES = 1024
COUNT = tl.constexpr(LINE)  # from the head to the word that counts lost compare-and-swaps
ENOUGH = 0.9  #: the share of a processor that each thread must have, or the run does not count
TRIES = 20  #: runs at most for each run that must count


@triton.jit  # type: ignore[untyped-decorator]
def push_all(head: tl.int64, links: tl.int64, count: tl.int64) -> Any:
    """Push the nodes 0 to `count` - 1."""
    node = word(0)
    while node < count:
        push(head, links, node, head + COUNT)
        node += 1
    return node


@triton.jit  # type: ignore[untyped-decorator]
def pop_and_push(head: tl.int64, links: tl.int64, count: tl.int64, pairs: tl.int64) -> Any:
    """Pop a node and push it back, `pairs` times. Returns how often the list looked empty."""
    done = word(0)
    empty = word(0)
    while done < pairs:
        node = pop(head, links, count, head + COUNT)
        if node >= 0:
            push(head, links, node, head + COUNT)
        else:
            empty += 1
        done += 1
    return empty


class FreeList:
    """A list whose head has a cache line to itself, as in a segment; lost compare-and-swaps are counted in the next."""

    def __init__(self) -> None:
        self._head = np.zeros(2 * LINE // WORD_BYTES.value, np.int64)
        self._links = np.zeros(NODES, np.int64)
        self._turn = native_function(pop_and_push, 4)
        native_function(push_all, 3)(*self._addresses, NODES)

    @property
    def _addresses(self) -> tuple[int, int]:
        return self._head.ctypes.data, self._links.ctypes.data

    def turn(self, pairs: int) -> int:
        """Pop and push `pairs` times; returns how often the list looked empty."""
        return int(self._turn(*self._addresses, NODES, pairs))

    def nodes(self) -> list[int]:
        """The nodes on the list, at rest."""
        found: list[int] = []
        node = int(self._head[0]) & LOW32.value
        while node and len(found) <= NODES:
            found.append(node - 1)
            node = int(self._links[node - 1]) & LOW32.value
        return found


def time_threads(threads: int, pairs: int) -> tuple[float, float]:
    """Let `threads` threads share a list, `pairs` times each.

    Returns:
        The slowest thread's nanoseconds for one pop and push, and the mean share of a processor that each thread had,
        from 0 to 1. Well below 1 the threads took turns on one processor, and did not meet at the list.

    Raises:
        RuntimeError: a node was lost or doubled, or a pop found the list empty.
    """
    shared = FreeList()
    start = threading.Barrier(threads)
    processors = sorted(os.sched_getaffinity(0))
    began, ended, busy, empty = ([0] * threads for _ in range(4))

    def work(me: int) -> None:
        os.sched_setaffinity(0, {processors[me % len(processors)]})  # only of this thread
        start.wait()
        began[me], busy[me] = perf_counter_ns(), -thread_time_ns()
        empty[me] = shared.turn(pairs)
        ended[me], busy[me] = perf_counter_ns(), busy[me] + thread_time_ns()

    workers = [threading.Thread(target=work, args=(me,)) for me in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    nodes = shared.nodes()
    if any(empty) or sorted(nodes) != list(range(NODES)):
        raise RuntimeError(f"the free list holds {len(set(nodes))} of {NODES} nodes; empty pops: {empty}")
    slowest = max(end - begin for begin, end in zip(began, ended, strict=True))
    return slowest / pairs, sum(busy) / (threads * (max(ended) - min(began)))


def time_runs(threads: int, settings: Settings) -> dict[str, Any]:
    """Repeat until enough runs count, in which every thread had a processor; their median is the figure.

    On a busy machine threads take turns: the list is then never contended, and looks fast. The number of tries is
    bounded; if no run counts, the median is that of all runs, and `runs_counted` is 0.
    """
    runs: list[tuple[float, float]] = []
    good: list[float] = []
    while len(good) < settings.repeats and len(runs) < TRIES * settings.repeats:
        runs.append(time_threads(threads, settings.pairs))
        good = [ns for ns, share in runs if share >= ENOUGH]
    counted = good or [ns for ns, _ in runs]
    return {
        "threads": threads,
        "ns_per_pair": statistics.median(counted),
        "least": min(counted),
        "most": max(counted),
        "runs": len(runs),
        "runs_counted": len(good),
        "runs_wanted": settings.repeats,
    }


def run(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure one thread, then two."""
    FreeList().turn(1)  # compiled before it is timed
    rows = []
    for threads in (1, 2):
        say(f"freelist: {threads} threads")
        rows.append(time_runs(threads, settings))
    return {"pairs_per_thread": settings.pairs, "nodes": NODES, "rows": rows}
