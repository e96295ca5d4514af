"""One capacity: the real cache, beside simulated policies and the best that is possible.

Producers are processes of their own, and put all into the segment of the rank that reads. Each takes the next request
that nobody has taken, gets the request's blocks one after the other, and puts those that are not there. All bytes that
are read are compared with those that were put.
"""

import fcntl
import multiprocessing
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from nanokv.cache.cache import NanoKVCache
from nanokv.config import Policy
from nanokv.errors import HeapUnavailable, OutOfMemory, PeerLost, SegmentCorrupt
from nanokv.heap.shm_tools import remove_world
from nanokv.tools.replay.limits import best_rate
from nanokv.tools.replay.policies import POLICIES, hit_rate
from nanokv.tools.replay.trace import Trace

# --- numbers that several processes take -------------------------------------------------------
# Each number is taken once, and any of the processes may be killed at any moment.
# A lock in shared memory stays taken when its holder is killed. The kernel's lock on a file ends with its holder, and
# the owner of the numbers takes no lock at all: it reads a word, and sets another that ends the taking.


class Tickets:
    """The numbers 0 to count - 1. It goes to other processes as an argument of theirs.

    Args:
        lock: a file that nothing else uses.
    """

    def __init__(self, count: int, lock: Path) -> None:
        lock.touch()
        self._count, self._lock = count, lock
        self._next, self._ended = _PROCESSES.RawValue("q", 0), _PROCESSES.RawValue("b", 0)

    @property
    def taken(self) -> int:
        """How many are taken."""
        return int(self._next.value)

    def end(self) -> None:
        """No process takes another one."""
        self._ended.value = 1

    def take(self) -> Iterator[int]:
        """All numbers that this process gets, until none is left.

        A process that is killed loses at most the number that it was about to take, and stops nobody.
        """
        with self._lock.open() as file:
            while (number := self._take(file.fileno())) < self._count and not self._ended.value:
                yield number

    def _take(self, file: int) -> int:
        fcntl.flock(file, fcntl.LOCK_EX)
        number = self.taken
        self._next.value = min(number + 1, self._count)
        fcntl.flock(file, fcntl.LOCK_UN)
        return number


# --- the producers ----------------------------------------------------------------------------
OWNER = 0  #: the rank that all blocks are put to
PAGE_BYTES = 64  #: of a block: its first word names it
_LOOK_SECONDS = 0.1  #: how often progress is told
_PROCESSES = multiprocessing.get_context("spawn")

Nanoseconds = npt.NDArray[np.int64]


class ReplayWorld(NamedTuple):
    """What all ranks of a replay give alike."""

    name: str
    capacity: int
    producers: int
    policy: Policy | None

    def attach(self, rank: int) -> NanoKVCache:
        """Take a rank of it in this process."""
        return NanoKVCache(
            self.capacity * PAGE_BYTES,
            page_bytes=PAGE_BYTES,
            name=self.name,
            rank=rank,
            world_size=1 + self.producers,
            alloc="device",  # also where NANOKV_ALLOC names v1: its water marks would be measured
            heap="shm",
            policy=self.policy,
        )


class ReplayResult(NamedTuple):
    """What became of a trace, in one producer or in all."""

    hits: int  #: blocks that were there, and all before them in their requests
    refused: int  #: puts for which there was no room
    put_ns: Nanoseconds
    get_ns: Nanoseconds  #: of blocks that were there
    evicted: int  #: in the owner's segment, counted by the owner


def replay(
    trace: Trace, capacity: int, producers: int, progress: Callable[[int], None], policy: Policy | None = None
) -> ReplayResult:
    """Replay a trace through a cache that has room for `capacity` blocks.

    Args:
        progress: told, now and then, how many requests are taken.
        policy: of the cache; None: its default.

    Raises:
        HeapUnavailable: this machine has no heap "shm".
        SegmentCorrupt: a block had other bytes than were put.
        PeerLost: a producer ended.
    """
    world = ReplayWorld(f"replay-{secrets.token_hex(4)}", capacity, producers, policy)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _replay(trace, world, Tickets(len(trace.ends), Path(folder, "lock")), progress)
    except BrokenProcessPool:
        raise PeerLost("a process that replays the trace has ended") from None
    finally:
        with suppress(HeapUnavailable):  # producers that were killed have left its memory behind
            remove_world(world.name, force=True)


def _replay(trace: Trace, world: ReplayWorld, tickets: Tickets, progress: Callable[[int], None]) -> ReplayResult:
    with ProcessPoolExecutor(world.producers, _PROCESSES, _begin, (tickets,)) as pool:
        parts = [pool.submit(_produce, trace, world, 1 + number) for number in range(world.producers)]
        try:
            with closing(world.attach(OWNER)) as cache:
                while wait(parts, _LOOK_SECONDS).not_done and not any(map(_failed, parts)):
                    progress(tickets.taken)
                found = [part.result() for part in parts]
                progress(len(trace.ends))
                return _together(found, cache.stats()["evicted"])
        finally:
            tickets.end()  # the others end soon if one has failed


def _failed(part: "Future[ReplayResult]") -> bool:
    return part.done() and part.exception() is not None


def _together(parts: list[ReplayResult], evicted: int) -> ReplayResult:
    return ReplayResult(
        sum(part.hits for part in parts),
        sum(part.refused for part in parts),
        np.concatenate([part.put_ns for part in parts]),
        np.concatenate([part.get_ns for part in parts]),
        evicted,
    )


_tickets: Tickets  #: in a producer's process


def _begin(tickets: Tickets) -> None:
    global _tickets
    _tickets = tickets
    torch.set_num_threads(1)


def _produce(trace: Trace, world: ReplayWorld, rank: int) -> ReplayResult:
    with closing(world.attach(rank)) as cache:
        producer = _Producer(cache, len(trace.blocks))
        starts = np.concatenate([[0], trace.ends[:-1]])
        for number in _tickets.take():
            producer.request(trace.blocks[starts[number] : trace.ends[number]].tolist())
        return producer.outcome()


class _Producer:
    """One rank, and its clock."""

    def __init__(self, cache: NanoKVCache, most: int) -> None:
        self._cache = cache
        self._source, self._target = (torch.zeros(PAGE_BYTES // 8, dtype=torch.int64, device="cpu") for _ in range(2))
        self._name, self._found = self._source.numpy(), self._target.numpy()
        self._put_ns, self._get_ns = np.empty(most, np.int64), np.empty(most, np.int64)
        self._puts = self._gets = self._hits = self._refused = 0

    def request(self, blocks: list[int]) -> None:
        """Use all blocks of a request."""
        whole = True
        for block in blocks:
            found = self._get(block)
            whole = whole and found
            self._hits += whole
            if not found:
                self._put(block)

    def _get(self, block: int) -> bool:
        key = b"%d" % block
        start = time.perf_counter_ns()
        found = self._cache.get(key, None, dst=self._target) is not None
        end = time.perf_counter_ns()
        if found:
            self._get_ns[self._gets] = end - start
            self._gets += 1
            if self._found[0] != block:
                raise SegmentCorrupt(f"block {block} has the bytes of block {self._found[0]}")
        return found

    def _put(self, block: int) -> None:
        key = b"%d" % block
        self._name[0] = block
        start = time.perf_counter_ns()
        try:
            self._cache.put(key, self._source, preferred_segment=OWNER, exist_ok=True)
        except OutOfMemory:
            self._refused += 1
            return
        self._put_ns[self._puts] = time.perf_counter_ns() - start
        self._puts += 1

    def outcome(self) -> ReplayResult:
        """What this rank has done."""
        return ReplayResult(self._hits, self._refused, self._put_ns[: self._puts], self._get_ns[: self._gets], 0)


# --- the run ----------------------------------------------------------------------------------
class OperationTimes(NamedTuple):
    """Times of one operation, in microseconds; None if there was none."""

    p50: float | None
    p99: float | None


class CapacityRow(NamedTuple):
    """A capacity in blocks, block hit rates, and how the real cache came to its own."""

    capacity: int
    rate: float
    policies: dict[str, float]  #: by name
    possible: float  #: no policy has more
    evicted: int
    refused: int
    put_us: OperationTimes
    get_us: OperationTimes

    @property
    def best(self) -> str:
        """The name of the best simulated policy."""
        return max(self.policies, key=self.policies.__getitem__)

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON has it."""
        return self._asdict() | {"put_us": self.put_us._asdict(), "get_us": self.get_us._asdict()}


def run(
    trace: Trace, capacity: int, producers: int, progress: Callable[[int], None], policy: Policy | None = None
) -> CapacityRow:
    """Replay a trace. Arguments and errors are those of `producers.replay`."""
    room = min(capacity, trace.different + producers)  # a larger cache is never full
    found: ReplayResult = replay(trace, room, producers, progress, policy)
    return CapacityRow(
        capacity,
        found.hits / len(trace.blocks),
        {name: hit_rate(trace, policy(capacity)) for name, policy in POLICIES.items()},
        best_rate(trace, capacity),
        found.evicted,
        found.refused,
        _times(found.put_ns),
        _times(found.get_ns),
    )


def _times(ns: Nanoseconds) -> OperationTimes:
    return (
        OperationTimes(*(np.percentile(ns, [50, 99]) / 1000).round(1).tolist())
        if len(ns)
        else OperationTimes(None, None)
    )
