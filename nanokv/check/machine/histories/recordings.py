"""Ways to record histories. Each yields parts; between two parts no operation is under way and no object is there.

Compiled loops of device functions (operations of less than a microsecond, which truly overlap), in threads or in
processes of which one is killed; threads that call the API, in both modes; and processes that call the API on a world
of shared memory.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch

from nanokv.cache.cache import NanoKVCache
from nanokv.cache.virtual_world import local_world
from nanokv.check.machine.histories.key_model import DUPLICATE, FULL, MISS, NOT_READY, OK, PINNED, TORN
from nanokv.check.machine.histories.linearizability import NEVER, Operation
from nanokv.check.machine.histories.recorder import NAMES, ROW_WORDS, TORN_VALUE, lingering_record
from nanokv.check.machine.payloads import check_payload, name, payload
from nanokv.check.machine.rank_process import RankProcess, wait_until
from nanokv.check.machine.ranks import CacheRank, RankOptions
from nanokv.check.report import CheckFailure
from nanokv.config import Alloc
from nanokv.device.protocol.status import Status
from nanokv.errors import DuplicateKey, KeyNotFound, NotReady, ObjectPinned, OutOfMemory
from nanokv.heap.shm import list_worlds, remove_world
from nanokv.heap.world_file import directory

CALLERS = 3
RANKS = 2  #: of the world that threads share
KEYS = 2
KEYS_OF_KILLED = 4  #: more keys: one that a dead producer has begun to put may stay NOT_READY
PAGE_BYTES = 256
PAGES = 64
ROOM_WORDS = 24
PART = 2000  #: compiled operations of each caller in a part
KILLED_PART = 60  #: the same where each load lingers and one is killed

History = dict[int, list[Operation]]  #: by key
_ANSWERS = {
    Status.OK: OK,
    Status.MISS: MISS,
    Status.TORN: TORN,
    Status.DUPLICATE: DUPLICATE,
    Status.NOT_READY: NOT_READY,
    Status.FULL: FULL,
    Status.PINNED: PINNED,
}
_ERRORS = {KeyNotFound: MISS, DuplicateKey: DUPLICATE, NotReady: NOT_READY, OutOfMemory: FULL, ObjectPinned: PINNED}


# --- compiled loops ---------------------------------------------------------------------------
class Sheet:
    """The clock and the rows of all callers that `recorder.record` writes, in memory that they share."""

    CLOCK_WORDS = 2

    def __init__(self, words: np.ndarray[Any, Any], rounds: int) -> None:
        self.words, self.rounds = words, rounds

    @classmethod
    def size(cls, rounds: int) -> int:
        """The number of its words."""
        return cls.CLOCK_WORDS + CALLERS * rounds * ROW_WORDS

    def rows(self, caller: int) -> np.ndarray[Any, Any]:
        """The rows of one caller: int64 [rounds, ROW_WORDS]."""
        rows: np.ndarray[Any, Any] = self.words[self.CLOCK_WORDS :].reshape(CALLERS, self.rounds, ROW_WORDS)[caller]
        return rows

    def called(self, caller: int) -> int:
        """The number of operations that a caller has begun."""
        return int(np.count_nonzero(self.rows(caller)[:, 0]))

    def fill(self, function: Any, cache: NanoKVCache, caller: int, seed: int, keys: int) -> None:
        """Call `recorder.record`, compiled, as one of the callers."""
        buffer = np.zeros(ROOM_WORDS, np.int64)
        function(
            cache.world_table,
            self.words.ctypes.data,
            caller + 1,
            seed * CALLERS + caller + 1,
            self.rounds,
            keys,
            buffer.ctypes.data,
            ROOM_WORDS,
            self.rows(caller).ctypes.data,
            CALLERS,
        )

    def history(self) -> History:
        """The history that was recorded."""
        history: History = defaultdict(list)
        for caller in range(CALLERS):
            for called, returned, call, key, status, value in self.rows(caller).tolist():
                if called:
                    history[key].append(_operation(called, returned, NAMES[call], value, status, f"caller {caller}"))
        return history


def _operation(called: int, returned: int, call: str, value: int, status: int, caller: str) -> Operation:
    keeps = call == "put" or (call == "get" and returned)
    if not returned:
        return Operation(called, NEVER, call, value if keeps else 0, "", caller)
    if call == "get" and value == TORN_VALUE and status == Status.OK:
        raise CheckFailure(f"{caller}: a get at {called}..{returned} returned torn bytes")
    if status not in _ANSWERS:
        raise CheckFailure(f"{caller}: {call} at {called}..{returned} was answered {Status(status).name}")
    return Operation(called, returned, call, value if keeps else 0, _ANSWERS[Status(status)], caller)


def record_compiled(operations: int, seed: int, function: Any) -> Iterator[History]:
    """Device functions in compiled loops, in threads."""
    caches = local_world(RANKS, PAGES * PAGE_BYTES, page_bytes=PAGE_BYTES, evict=False)
    try:
        for part in range(max(operations // (CALLERS * PART), 1)):
            sheet = Sheet(np.zeros(Sheet.size(PART), np.int64), PART)
            with ThreadPoolExecutor(CALLERS) as pool:
                calls = [
                    pool.submit(sheet.fill, function, caches[caller % RANKS], caller, seed + part, KEYS)
                    for caller in range(CALLERS)
                ]
            for call in calls:
                call.result()
            yield sheet.history()
            for cache in caches:
                cache.clear()
    finally:
        for cache in caches:
            cache.close()


# --- the API ----------------------------------------------------------------------------------
class Caller:
    """Calls the API and notes every call. Values are (caller, number), so that no two are alike."""

    def __init__(self, cache: NanoKVCache, caller: int, seed: int) -> None:
        self._cache = cache
        self._caller = caller
        self._random = random.Random(seed * 1000 + caller)
        self._count = 0

    def run(self, count: int) -> list[tuple[int, Operation]]:
        """Do `count` random operations: (key, operation)."""
        calls = (self._put, self._get, self._remove, self._exists)
        return [self._noted(self._random.randint(1, KEYS), self._random.choice(calls)) for _ in range(count)]

    def _noted(self, key: int, call: Callable[[int, int], int]) -> tuple[int, Operation]:
        self._count += 1
        mine = self._caller << 20 | self._count
        operation = call.__name__.strip("_")
        called = time.monotonic_ns()
        try:
            value, answer = call(key, mine), OK
        except tuple(_ERRORS) as error:
            value, answer = mine, _ERRORS[type(error)]
        if operation == "exists":
            value, answer = 0, OK if value else MISS
        return key, Operation(called, time.monotonic_ns(), operation, value, answer, f"caller {self._caller}")

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


def _by_key(noted: Iterable[list[tuple[int, Operation]]]) -> History:
    history: History = defaultdict(list)
    for each in noted:
        for key, operation in each:
            history[key].append(operation)
    return history


def record_threads(operations: int, seed: int, alloc: Alloc) -> Iterator[History]:
    """Threads that call the API."""
    caches = local_world(RANKS, PAGES * PAGE_BYTES, page_bytes=PAGE_BYTES, evict=False, alloc=alloc)
    try:
        callers = [Caller(caches[caller % RANKS], caller + 1, seed) for caller in range(CALLERS)]
        with ThreadPoolExecutor(CALLERS) as pool:
            yield _by_key(pool.map(lambda caller: caller.run(operations // CALLERS), callers))
    finally:
        for cache in caches:
            cache.close()


# --- processes --------------------------------------------------------------------------------
class RecordingRank(CacheRank):
    """A rank that records."""

    def record(self, count: int, seed: int) -> list[tuple[int, Operation]]:
        """Do `count` random operations of the API."""
        return Caller(self.cache, self.rank + 1, seed).run(count)

    def record_compiled(self, path: str, rounds: int, seed: int) -> None:
        """Fill this rank's part of the sheet in a file, lingering after each load."""
        sheet = Sheet(shared_words(path, rounds), rounds)
        sheet.fill(lingering_record(), self.cache, self.rank, seed, self.options.keys)


def shared_words(path: str | Path, rounds: int) -> np.ndarray[Any, Any]:
    """The words of a sheet in a file, shared between processes."""
    return torch.from_file(str(path), shared=True, size=Sheet.size(rounds), dtype=torch.int64).numpy()


@contextmanager
def _processes(keys: int, seed: int) -> Iterator[list[RankProcess]]:
    world = f"histories-{uuid4().hex[:12]}"
    options = RankOptions(world, CALLERS, PAGES * PAGE_BYTES, PAGE_BYTES, False, seed, keys, False)
    ranks = [RankProcess(RecordingRank, rank, options) for rank in range(CALLERS)]
    try:
        for rank in ranks:
            rank.arrive()
        yield ranks
    finally:
        for rank in ranks:
            rank.end()
        if world in list_worlds():
            remove_world(world, force=True)


def record_processes(operations: int, seed: int) -> Iterator[History]:
    """Processes that call the API on a world of shared memory. The clock is the system's, the same for all."""
    with _processes(KEYS, seed) as ranks:
        for rank in ranks:
            rank.send("record", operations // CALLERS, seed)
        yield _by_key([rank.answer() for rank in ranks])
        for rank in ranks:
            rank.ask("close")


def record_killed(operations: int, seed: int) -> Iterator[History]:
    """Processes in compiled loops, of which one is killed in the middle; the others go on beside its leftovers."""
    lingering_record()  # here, if it has to be compiled: the ranks find it in the cache
    chance = random.Random(seed)
    for part in range(max(operations // (CALLERS * KILLED_PART), 1)):
        yield _record_kill(chance, seed + part)


def _record_kill(chance: random.Random, seed: int) -> History:
    victim, at = chance.randrange(CALLERS), chance.randrange(1, KILLED_PART // 2)
    path = directory() / f"history-{uuid4().hex[:12]}"
    try:
        sheet = Sheet(shared_words(path, KILLED_PART), KILLED_PART)
        with _processes(KEYS_OF_KILLED, seed) as ranks:
            for rank in ranks:
                rank.send("record_compiled", str(path), KILLED_PART, seed)
            wait_until(f"operation {at} of rank {victim}", lambda: sheet.called(victim) >= at)
            time.sleep(chance.random() * 0.002)  # about as long as an operation
            ranks[victim].kill()
            for rank in ranks:
                if rank.rank != victim:
                    rank.answer()
            return sheet.history()
    finally:
        path.unlink(missing_ok=True)
