"""Histories of real threads and processes on the native machine, and whether they are linearizable for every key.

Three ways to record: compiled loops of device functions (operations of less than a microsecond, which truly overlap),
threads that call the API, in both modes, and processes that call the API on a world of shared memory. Few keys, so
that nearly every operation meets another one. There is memory for all objects and nothing is evicted: FULL and misses
of keys that are there would be wrong.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np

from nanokv.cache import NanoKVCache
from nanokv.check.key_model import ABSENT, CONTENDED, DUPLICATE, FULL, MISS, NOT_READY, OK, contended, step
from nanokv.check.linearizability import Operation, check
from nanokv.check.ranks import RankOptions, RankProcess, Served
from nanokv.check.recorder import NAMES, ROW_WORDS, TORN_VALUE, compiled_record, yielding_record
from nanokv.check.report import CheckFailure, Row
from nanokv.check.work import check_payload, name, payload
from nanokv.device.status import Status
from nanokv.errors import DuplicateKey, KeyNotFound, NotReady, ObjectPinned, OutOfMemory
from nanokv.heap.world_file import directory
from nanokv.worlds import local_world

THREADS = 3
RANKS = 2
KEYS = 2
PAGE_BYTES = 256
PAGES = 64
ROOM_WORDS = 24
MOST = 400_000  #: configurations a key
PART = 2000  #: operations of each caller between two moments at which nothing is under way

History = dict[int, list[Operation]]  #: by key
_ANSWERS = {
    Status.OK: OK,
    Status.MISS: MISS,
    Status.TORN: CONTENDED,  # the caller would look again; it says nothing
    Status.DUPLICATE: DUPLICATE,
    Status.NOT_READY: NOT_READY,
}
_ERRORS = {KeyNotFound: MISS, DuplicateKey: DUPLICATE, NotReady: NOT_READY, OutOfMemory: FULL, ObjectPinned: CONTENDED}


def run_histories(
    operations: int, seed: int, *, heaps: Sequence[str] = ("local", "shm"), allocs: Sequence[str] = ("device", "host")
) -> list[Row]:
    """Record about `operations` operations in each way, and check them.

    Args:
        seed: of what is called; who meets whom is the machine's.
    """
    rows = []
    if "local" in heaps:
        if "device" in allocs:
            rows.append(_checked("compiled threads", partial(record_compiled, operations, seed, compiled_record())))
            rows.append(_checked("compiled, giving way", partial(record_compiled, operations, seed, yielding_record())))
        for alloc in allocs:
            rows.append(_checked(f"threads, {alloc}", partial(record_threads, operations, seed, alloc)))
    if "shm" in heaps and "device" in allocs:
        rows.append(_checked("processes", partial(record_processes, operations, seed)))
    return rows


def _checked(what: str, record: Callable[[], list[History]]) -> Row:
    row = Row("histories", what, unit="operations")
    explored = 0
    with row.timed():
        most = 0
        for history in record():
            for key, operations in history.items():
                row.tried += len(operations)
                most = max(most, _overlap(operations))
                explored += check_key(key, operations)
        row.note = f"{KEYS} keys, up to {most} operations at once, {explored} configurations"
    return row


def check_key(key: int, operations: list[Operation]) -> int:
    """Check the history of one key; returns how many configurations were explored.

    Raises:
        CheckFailure: it is not linearizable, or it could not be decided.
    """
    initial = ABSENT
    verdict = check(contended(operations), step, initial, MOST)
    if verdict.holds is None:
        raise CheckFailure(f"key {key}: undecided after {verdict.explored} configurations")
    if not verdict.holds:
        stuck = "\n    ".join(map(str, verdict.stuck))
        raise CheckFailure(f"key {key}: not linearizable; none of these can come next:\n    {stuck}")
    return verdict.explored


def _overlap(operations: list[Operation]) -> int:
    """The most operations that were under way at once."""
    edges = sorted([(op.called, 1) for op in operations] + [(op.returned, -1) for op in operations])
    return int(np.cumsum([change for _, change in edges]).max(initial=0))


# --- compiled threads -------------------------------------------------------------------------
def record_compiled(operations: int, seed: int, function: Any) -> list[History]:
    """Device functions in compiled loops, in parts; each part begins with no object."""
    caches = local_world(RANKS, PAGES * PAGE_BYTES, page_bytes=PAGE_BYTES, evict=False)
    parts = []
    try:
        for part in range(max(operations // (THREADS * PART), 1)):
            parts.append(_compiled_part(caches, function, seed + part))
            for cache in caches:
                cache.clear()
    finally:
        for cache in caches:
            cache.close()
    return parts


def _compiled_part(caches: list[NanoKVCache], function: Any, seed: int) -> History:
    clock = np.zeros(16, np.int64)
    rows = np.zeros((THREADS, PART, ROW_WORDS), np.int64)
    buffers = np.zeros((THREADS, ROOM_WORDS), np.int64)

    def run(who: int) -> None:
        table = caches[who % RANKS]._parts.table
        at = rows[who].ctypes.data
        function(
            table.ctypes.data,
            clock.ctypes.data,
            seed * THREADS + who + 1,
            PART,
            KEYS,
            buffers[who].ctypes.data,
            ROOM_WORDS,
            at,
            THREADS,
        )

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(run, range(THREADS)))
    history: History = defaultdict(list)
    for who in range(THREADS):
        for called, returned, what, key, status, value in rows[who].tolist():
            history[key].append(_operation(called, returned, NAMES[what], value, Status(status), f"thread {who}"))
    return history


def _operation(called: int, returned: int, what: str, value: int, status: Status, who: str) -> Operation:
    if value == TORN_VALUE and status == Status.OK:
        raise CheckFailure(f"{who}: a get at {called}..{returned} returned torn bytes")
    if status not in _ANSWERS:
        raise CheckFailure(f"{who}: {what} at {called}..{returned} was answered {status.name}")
    return Operation(called, returned, what, value if what in ("put", "get") else 0, _ANSWERS[status], who)


# --- the API ----------------------------------------------------------------------------------
class Caller:
    """Calls the API and notes what it does. Values are (who, number), so that no two are alike."""

    def __init__(self, cache: NanoKVCache, who: int, seed: int) -> None:
        self._cache = cache
        self._who = who
        self._random = random.Random(seed * 1000 + who)
        self._count = 0

    def run(self, count: int) -> list[tuple[int, Operation]]:
        """Do `count` random operations: (key, operation)."""
        calls = (self._put, self._get, self._remove, self._exists)
        return [self._noted(self._random.randint(1, KEYS), self._random.choice(calls)) for _ in range(count)]

    def _noted(self, key: int, call: Callable[[int, int], int]) -> tuple[int, Operation]:
        self._count += 1
        mine = self._who << 20 | self._count
        what = call.__name__.strip("_")
        called = time.monotonic_ns()
        try:
            value, answer = call(key, mine), OK
        except tuple(_ERRORS) as error:
            value, answer = mine, _ERRORS[type(error)]
        if what == "exists":
            value, answer = 0, OK if value else MISS
        return key, Operation(called, time.monotonic_ns(), what, value, answer, f"caller {self._who}")

    def _put(self, key: int, mine: int) -> int:
        words = self._random.randint(1, ROOM_WORDS)
        self._cache.put(name(key), payload(key, mine, words), preferred_segment=mine % self._cache.world_size)
        return mine

    def _get(self, key: int, mine: int) -> int:
        return check_payload(key, self._cache.get(name(key)))

    def _remove(self, key: int, mine: int) -> int:
        self._cache.remove(name(key))
        return 0

    def _exists(self, key: int, mine: int) -> int:
        return int(self._cache.exists(name(key)))


def _by_key(noted: list[list[tuple[int, Operation]]]) -> History:
    history: History = defaultdict(list)
    for each in noted:
        for key, operation in each:
            history[key].append(operation)
    return history


def record_threads(operations: int, seed: int, alloc: str) -> list[History]:
    """Threads that call the API."""
    caches = local_world(RANKS, PAGES * PAGE_BYTES, page_bytes=PAGE_BYTES, evict=False, alloc=alloc)
    try:
        callers = [Caller(caches[who % RANKS], who + 1, seed) for who in range(THREADS)]
        with ThreadPoolExecutor(THREADS) as pool:
            return [_by_key(list(pool.map(lambda caller: caller.run(operations // THREADS), callers)))]
    finally:
        for cache in caches:
            cache.close()


class Recording(Served):
    """A rank that records."""

    def record(self, count: int, seed: int) -> list[tuple[int, Operation]]:
        """Do `count` random operations."""
        return Caller(self.cache, self.options.rank + 1, seed).run(count)


def record_processes(operations: int, seed: int) -> list[History]:
    """Processes that call the API on a world of shared memory. The clock is the system's, the same for all."""
    world = f"histories-{uuid4().hex[:12]}"
    options = RankOptions(world, 0, THREADS, PAGES * PAGE_BYTES, PAGE_BYTES, False, seed, KEYS, False, str(directory()))
    ranks = [RankProcess(options._replace(rank=rank), Recording) for rank in range(THREADS)]
    try:
        for rank in ranks:
            rank.answer("attached")
        for rank in ranks:
            rank.send("record", operations // THREADS, seed)
        noted = [rank.answer("record") for rank in ranks]
        for rank in ranks:
            rank.ask("close")
    finally:
        for rank in ranks:
            rank.end()
    return [_by_key(noted)]
