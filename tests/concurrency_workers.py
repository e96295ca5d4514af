"""What the concurrency tests share: segments in plain memory, threads, payloads that tell whose they are, and the
random work that threads and processes do on a cache.
"""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

import nanokv
from nanokv.device.geometry import Geometry
from nanokv.device.layout import LINE
from nanokv.device.views import SegmentView
from nanokv.errors import DuplicateKey, KeyNotFound, NotReady, ObjectPinned, OutOfMemory

PATIENCE = 30.0  #: seconds that a test waits for what should come at once
PAGE_WORDS = 32
PAGE = PAGE_WORDS * 8

#: what any of these calls may answer while others work on the same key
EXPECTED = (DuplicateKey, KeyNotFound, NotReady, ObjectPinned, OutOfMemory)


# --- plain memory for one structure -----------------------------------------------------------
def aligned_words(count: int) -> Any:
    """Zeroed int64 words [count], the first on a line."""
    raw = np.zeros(count + LINE // 8, np.int64)
    start = -raw.ctypes.data % LINE // 8
    return raw[start : start + count]


def address(array: Any) -> int:
    """Where an array's bytes begin."""
    return int(array.ctypes.data)


class PlainWorld:
    """Segments in plain memory, and the world table of each rank: for calls of single protocol functions."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        size = geometry.segment_bytes
        self.memory = [aligned_words(size // 8) for _ in range(geometry.world_size)]
        self.views = [SegmentView(words.view(np.uint8), geometry) for words in self.memory]
        for rank, view in enumerate(self.views):
            view.ctl[:] = geometry.control_block(rank, 1, "device", may_evict=False, water=(85, 95))
        self.bases = [address(words) for words in self.memory]
        self.tables = [geometry.world_table(rank, 1, self.bases) for rank in range(geometry.world_size)]
        self.worlds = [address(table) for table in self.tables]


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """Run calls at the same time, each in a thread of its own; what they return, or the first error."""
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        gate.wait(PATIENCE)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


# --- payloads ---------------------------------------------------------------------------------
def payload(key: int, version: int, words: int) -> torch.Tensor:
    """int64 [words], each of which says the key and the version."""
    return torch.full((words,), key << 32 | version, dtype=torch.int64)


def check_payload(key: int, tensor: torch.Tensor) -> int:
    """The version, if every word of the tensor is of one version of this key."""
    assert tensor.dtype == torch.int64, f"key {key} came back as {tensor.dtype}"
    values = tensor.unique().tolist()
    assert len(values) == 1, f"key {key} is torn: {[hex(v) for v in values]}"
    assert values[0] >> 32 == key, f"key {key} holds the bytes of key {values[0] >> 32}"
    return int(values[0] & 0xFFFFFFFF)


# --- random work on a cache -------------------------------------------------------------------
class Work:
    """A random sequence of calls on one cache, by one thread. Every answer is checked; `done` counts what succeeded.

    Args:
        who: makes versions different from those of other workers; below 256.
        keys: keys 0 to keys - 1 are used, by all workers.
        max_pages: the largest object.
    """

    def __init__(self, cache: nanokv.NanoKVCache, who: int, *, keys: int, max_pages: int, seed: int) -> None:
        self.cache, self.keys, self.max_pages = cache, keys, max_pages
        self.random = random.Random(seed)
        self.versions = who << 24
        self.done: dict[str, int] = {}
        self.steps: list[Callable[[int], None]] = [
            *[self.put] * 6,
            *[self.get] * 6,
            *[self.get_into] * 2,
            *[self.remove] * 4,
            *[self.pin] * 2,
            self.plan,
            self.abort,
        ]

    def run(self, count: int) -> dict[str, int]:
        """Do `count` steps."""
        for _ in range(count):
            self.step()
        return self.done

    def step(self) -> None:
        """Do one step. What others may cause is no error; everything else is."""
        step = self.random.choice(self.steps)
        try:
            step(self.random.randrange(self.keys))
        except EXPECTED as error:
            name = type(error).__name__
            self.done[name] = self.done.get(name, 0) + 1
        else:
            self.done[step.__name__] = self.done.get(step.__name__, 0) + 1

    def _new(self, key: int) -> torch.Tensor:
        self.versions += 1
        return payload(key, self.versions, self.random.randint(1, self.max_pages * PAGE_WORDS))

    def _owner(self) -> int | None:
        return self.random.choice([None, *range(self.cache.world_size)])

    def put(self, key: int) -> None:
        self.cache.put(name(key), self._new(key), preferred_segment=self._owner())

    def get(self, key: int) -> None:
        check_payload(key, self.cache.get(name(key)))

    def get_into(self, key: int) -> None:
        words = self.cache.get_location(name(key)).bytes_total // 8
        dst = torch.zeros(words, dtype=torch.int64)
        try:
            check_payload(key, self.cache.get(name(key), dst=dst))
        except nanokv.errors.InvalidArgument:  # it was replaced by one of another size
            assert not dst.any(), "nothing is copied when the size is wrong"

    def remove(self, key: int) -> None:
        self.cache.remove(name(key))

    def pin(self, key: int) -> None:
        with self.cache.pin(name(key)) as view:
            version = check_payload(key, view)
            self.get_and_forget()
            assert check_payload(key, view) == version, "a pinned object changed"

    def get_and_forget(self) -> None:
        """Something that takes a moment."""
        key = self.random.randrange(self.keys)
        if self.cache.exists(name(key)):
            self.cache.get_many([name(key)])

    def plan(self, key: int) -> None:
        tensor = self._new(key)
        plan = self.cache.open_for_write(name(key), tensor.nbytes, preferred_segment=self._owner())
        target = self.cache._mover.payload(plan.dst_rank, plan.payload_base, plan.bytes_total)
        target.copy_(tensor.view(torch.uint8))
        self.cache.commit(name(key))

    def abort(self, key: int) -> None:
        self.cache.open_for_write(name(key), PAGE, preferred_segment=self._owner())
        self.cache.abort(name(key))


def name(key: int) -> str:
    """The key as the cache takes it."""
    return f"key-{key}"
