"""How fast the owner's poller makes index entries of announcements, and how far its index is behind when it is busy.

The rate: the thread of a poller is stopped, so that hints pile up in the ring; then the rounds of its intake are made
until the ring is empty: native ones, as where segments lie in host memory, or those with numpy, as for a segment on a
GPU. The sweep is left out: it would find these objects before their hints are taken, since the thread was stopped for
so long. The lag: one process puts as fast as it can, the other one's poller takes the hints, and now and then a
thread beside it asks how many objects the index has. The oldest put that has returned and is not among them has waited
since then. (A listener would be told later, after an event was made of each object.)
"""

import threading
import time
from collections.abc import Iterator
from functools import partial
from time import perf_counter_ns

import numpy as np
import torch

from nanokv import NanoKVCache, local_world
from nanokv.bench.suite.distribution import Durations, latency
from nanokv.bench.suite.figure import Case, Figure, quantity
from nanokv.bench.suite.other_process import Peer
from nanokv.bench.suite.question import Question, Run, needs_processes
from nanokv.bench.suite.worlds import OWNER
from nanokv.device.segment.layout import OBJ_HEADER
from nanokv.types import KeyDigest

SIZE = 64  #: bytes of an object, and of a page
RING = 100_000  #: objects whose announcements wait in the ring, at most
STREAM = 4000  #: puts of one stream, while the index is looked at
MOST_STREAMS = 100  #: a stream takes a millisecond: the thread that looks may miss it
LOOK_SECONDS = 0.0003  #: between two looks at the index
PATIENCE = 30.0  #: seconds for a stream to end
STORED, REMOVED = "stored", "removed"
NATIVE, NUMPY = "native", "numpy"  #: rounds
HERE = "nanokv.bench.questions.ingest"
Look = tuple[int, int]  #: when, in ns, and how many objects the index had


# --- the rate -----------------------------------------------------------------------------------
def rates(rounds: str, objects: int) -> dict[str, float]:
    """Millions a second, of announcements of new objects and of removed ones.

    Raises:
        RuntimeError: the index has not the rows of the objects that were put, or an announcement was missed.
    """
    (cache,) = local_world(1, (objects + 64) * SIZE, page_bytes=SIZE, evict=False)
    with cache:
        cache.flush()
        cache.engine.poller.stop()
        keys, value = [cache.digest(str(i)) for i in range(objects)], torch.zeros(SIZE, dtype=torch.uint8)
        _drain(cache, rounds)
        for key in keys:
            cache.put(key, value)
        stored = _drain(cache, rounds)
        _expect(cache, keys, objects)
        cache.remove_many(keys)
        removed = _drain(cache, rounds)
        _expect(cache, [], 2 * objects)
    return {STORED: objects / stored * 1e3, REMOVED: objects / removed * 1e3}


def _drain(cache: NanoKVCache, rounds: str) -> int:
    """Make rounds until one finds no hint; the nanoseconds that it took."""
    intake, before, native = cache.engine.poller.intake, -1, rounds == NATIVE
    start = perf_counter_ns()
    while intake.drained != before:
        before = intake.drained
        if native:
            intake.stay(0.0)  # one round, of some thousand hints
        else:
            intake.take(time.monotonic())
    return perf_counter_ns() - start


def _expect(cache: NanoKVCache, keys: list[KeyDigest], hints: int) -> None:
    """Refuse an index that has not exactly the rows of these keys' headers."""
    index, found = cache.engine.poller.index, cache.stats()["hints"]
    slots, rows = index.rows()
    offset = cache.engine.machine.geometry.offsets["hdr_base"]
    headers = cache.engine.machine.look(cache.rank, offset, OBJ_HEADER.dtype, cache.engine.machine.geometry.hdr_count)
    if (len(rows), found) != (len(keys), hints) or set(index.digests()) != set(keys):
        raise RuntimeError(f"the index has {len(rows)} objects after {found} hints, not {len(keys)}")
    if (rows != headers[slots]).any():
        raise RuntimeError(f"rows of the index are not the headers of slots {slots[rows != headers[slots]].tolist()}")


# --- the lag ------------------------------------------------------------------------------------
class IndexWatch:
    """Looks at the size of a cache's index from a thread, until it has `count` objects more."""

    def __init__(self, cache: NanoKVCache, count: int) -> None:
        cache.flush()
        self._cache, self._count, self._before = cache, count, cache.segment_count()
        self.looks: list[Look] = []
        self._thread = threading.Thread(target=self._run, name="bench-watch")
        self._thread.start()

    def _run(self) -> None:
        deadline = time.monotonic() + PATIENCE
        found = 0
        while found < self._count and time.monotonic() < deadline:
            found = self._cache.segment_count() - self._before
            self.looks.append((perf_counter_ns(), found))
            time.sleep(LOOK_SECONDS)

    def end(self) -> list[Look]:
        """The looks. Raises TimeoutError if the objects did not come."""
        self._thread.join()
        if self.looks[-1][1] < self._count:
            raise TimeoutError(f"the index had {self.looks[-1][1]} of {self._count} objects after {PATIENCE:.0f} s")
        return self.looks


_watches: list[IndexWatch] = []  #: of the owner's process


def watch(cache: NanoKVCache, count: int) -> None:
    """Begin to look at the index of `cache`. Runs in the owner."""
    _watches.append(IndexWatch(cache, count))


def watched(cache: NanoKVCache) -> list[Look]:
    """The looks since `watch`."""
    return _watches.pop().end()


def ages(returned: list[int], looks: list[Look]) -> Durations:
    """Per look how long the oldest put that had returned, and was not in the index, had waited; 0 if there was none.

    Only of looks between the first return and the last one. `returned`: when each put returned, in ns, ascending.
    """
    found = [
        max(when - returned[count], 0)
        for when, count in looks
        if returned[0] <= when <= returned[-1] and count < len(returned)
    ]
    return np.array(found, np.int64)


def lags(cache: NanoKVCache, peer: Peer, count: int) -> Durations:
    """The ages in `count` streams of puts, after one that does not count; in more, if no look fell into these."""
    value, found, stream = torch.zeros(SIZE, dtype=torch.uint8), list[Durations](), -1
    while stream < count or (not any(map(len, found)) and stream < MOST_STREAMS):
        keys = [cache.digest(f"stream {stream}, {i}") for i in range(STREAM)]
        peer.call(f"{HERE}:watch", count=STREAM)
        returned = _put_all(cache, keys, value)
        looks = [(when, many) for when, many in peer.call(f"{HERE}:watched")]
        cache.remove_many(keys)
        if stream >= 0:
            found.append(ages(returned, looks))
        stream += 1
    return np.concatenate(found)


def _put_all(cache: NanoKVCache, keys: list[KeyDigest], value: torch.Tensor) -> list[int]:
    put, returned = cache.put, [0] * len(keys)
    for i, key in enumerate(keys):
        put(key, value, preferred_segment=OWNER)
        returned[i] = perf_counter_ns()
    return returned


# --- the question -------------------------------------------------------------------------------
def measure(run: Run) -> Iterator[Figure]:
    """The rates, and the lag where two processes can meet; in turns."""
    settings = run.settings
    objects = min(settings.objects, RING)

    def lag() -> Durations:
        with run.worlds.open("shm", "device", 8 * STREAM * SIZE, page_bytes=SIZE) as world:
            assert isinstance(world.owner, Peer)
            return lags(world.cache, world.owner, -(-settings.rounds // STREAM))

    ways = {rounds: partial(rates, rounds, objects) for rounds in (NATIVE, NUMPY)}
    for rounds, found in run.in_turns(ways, warm_up=1).items():
        for what in (STORED, REMOVED):
            case: Case = {"what": "announcements", "rounds": rounds, "of objects": what, "count": objects}
            yield quantity("ingest", case, "M/s", "higher", [one[what] for one in found])
    if needs_processes(settings) is None:
        repetitions = run.in_turns({"lag": lag})["lag"]
        yield latency(
            "ingest", {"what": "lag of the index, poller busy", "of objects": STORED, "count": STREAM}, repetitions
        )


QUESTION = Question(
    "ingest",
    "How many announcements does a poller turn into index entries in a second, and how old are those that wait?",
    measure,
    f"The rate: up to {RING} announcements wait in the ring of a poller whose thread is stopped; then the rounds of "
    "its intake are made until one finds none, and that is timed: native ones, which a poller makes where segments lie "
    "in host memory, and those of numpy, for segments on GPUs. The sweep is not in it (`sweep`). The lag: while a "
    "process puts one object after the other into another one's segment, the index there is looked at about every "
    "0.3 ms; a sample is how long the oldest put that has returned and is not in the index has waited then, 0 if there "
    "is none.",
)
