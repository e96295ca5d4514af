"""Segments in plain memory, for tests that call single protocol functions, and threads that start together."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from nanokv.check.machine.slow import slow_function
from nanokv.device.machines.native_code import native_function
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.record import LINE
from nanokv.device.segment.views import SegmentView

PATIENCE = 30.0  #: seconds that a test waits for an event that should come at once
PAGE_WORDS = 32
PAGE = PAGE_WORDS * 8


def aligned_words(count: int) -> Any:
    """Zeroed int64 words [count], the first on a line."""
    raw = np.zeros(count + LINE // 8, np.int64)
    start = -raw.ctypes.data % LINE // 8
    return raw[start : start + count]


def address(array: Any) -> int:
    """The address of an array's first byte."""
    return int(array.ctypes.data)


class PlainWorld:
    """Segments in plain memory, and the world table of each rank: for calls of single protocol functions."""

    def __init__(self, geometry: Geometry, *, may_evict: bool = False) -> None:
        self.geometry = geometry
        size = geometry.segment_bytes
        self.memory = [aligned_words(size // 8) for _ in range(geometry.world_size)]
        self.views = [SegmentView(words.view(np.uint8), geometry) for words in self.memory]
        for rank, view in enumerate(self.views):
            view.ctl[:] = geometry.control_block(rank, 1, "device", may_evict=may_evict, water=(85, 95))
            view.activity["incarnation"] = 1
        self.bases = [address(words) for words in self.memory]
        self.tables = [geometry.world_table(rank, 1, self.bases) for rank in range(geometry.world_size)]
        self.worlds = [address(table) for table in self.tables]


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """Run calls at the same time, each in a thread of its own; their results, or the first error."""
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        gate.wait(PATIENCE)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


# --- compiled functions -----------------------------------------------------------------------
@cache
def native(function: Any) -> Any:
    """A device function, compiled as in production."""
    return native_function(function)


def yielding(function: Any) -> Any:
    """A device function, compiled so that other threads run between each load and what follows from it.

    Threads that merely run in parallel seldom meet in a window of some nanoseconds; here they always do.
    """
    return slow_function(function, "give way")
