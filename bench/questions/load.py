"""put and get when requests come at times of their own, and not when the last one has returned: open loop."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter_ns

import numpy as np
import torch

from nanokv import NanoKVCache
from nanokv.bench.suite.distribution import latency
from nanokv.bench.suite.figure import Case, Figure, quantity
from nanokv.bench.suite.question import Question, Run, needs_processes
from nanokv.bench.suite.ring import Mismatch
from nanokv.bench.suite.settings import KIB
from nanokv.bench.suite.timing import Samples
from nanokv.bench.suite.worlds import OWNER

SIZE = KIB  #: bytes of an object, and of a page
LOADS = (10, 30, 50, 70, 90)  #: % of the capacity that was measured just before
SEED = 11
SPARE = 1024  #: pages
WARM_UP = 1000  #: requests at most
REMOVED = 4096  #: objects in one call, after the puts
Call = Callable[[str], object]


class LoadClient:
    """Puts and gets objects in the segment of another process."""

    def __init__(self, cache: NanoKVCache, requests: int) -> None:
        self._cache = cache
        self._value = torch.randint(0, 256, (SIZE,), dtype=torch.uint8)
        self._into = torch.zeros_like(self._value)
        self.keys = [f"request {number}" for number in range(requests)]

    def put(self, key: str) -> None:
        """One request."""
        self._cache.put(key, self._value, preferred_segment=OWNER)

    def get(self, key: str) -> None:
        """One request."""
        self._cache.get(key, dst=self._into)

    def remove_all(self) -> None:
        """Remove what the puts have put; untimed."""
        for at in range(0, len(self.keys), REMOVED):
            self._cache.remove_many(self.keys[at : at + REMOVED])

    def check(self) -> None:
        """Raises Mismatch: the last object has other bytes than were put."""
        self._into.zero_()
        self.get(self.keys[-1])
        if not torch.equal(self._into, self._value):
            raise Mismatch(f"a get of {self.keys[-1]!r} gave other bytes than were put")


def serve(call: Call, keys: Sequence[str], starts: Sequence[int], samples: Samples) -> int:
    """Make each request at its time, or as soon as the one before has returned.

    Args:
        starts: when each request is meant to begin, in ns after the first; the client spins until then.
        samples: get the time from then to the return of each request: a request that had to wait for the one before
            counts that time too.

    Returns:
        Nanoseconds from the first request's time to the last one's return.
    """
    begin = end = perf_counter_ns()
    for key, after in zip(keys, starts, strict=True):
        due = begin + after
        while perf_counter_ns() < due:
            pass
        call(key)
        end = perf_counter_ns()
        samples.add(end - due)
    return end - begin


def arrivals(requests: int, per_second: float) -> list[int]:
    """Times in ns of requests that come independently of each other (Poisson); always the same, but for their rate."""
    gaps = np.random.default_rng(SEED).exponential(1e9 / per_second, requests)
    return [int(when) for when in np.cumsum(gaps)]


def loads(client: LoadClient, call: Call, after: Callable[[], None]) -> tuple[float, dict[int, Samples]]:
    """The capacity in requests per second, and the samples of each load; `after` each, the client cleans up."""
    keys = client.keys
    serve(call, keys[:WARM_UP], [0] * len(keys[:WARM_UP]), Samples(len(keys)))
    after()
    took = serve(call, keys, [0] * len(keys), Samples(len(keys)))
    after()
    capacity = len(keys) / took * 1e9
    found = {}
    for load in LOADS:
        found[load] = Samples(len(keys))
        serve(call, keys, arrivals(len(keys), capacity * load / 100), found[load])
        after()
    return capacity, found


def repetition(run: Run, requests: int) -> dict[str, tuple[float, dict[int, Samples]]]:
    """Measure by operation, in a world of its own."""
    heap = (requests + SPARE) * SIZE
    with run.worlds.open("shm", "device", heap, page_bytes=SIZE) as (cache, _):
        client = LoadClient(cache, requests)
        for key in client.keys:  # touches the memory
            client.put(key)
        client.remove_all()
        puts = loads(client, client.put, client.remove_all)
        for key in client.keys:
            client.put(key)
        gets = loads(client, client.get, lambda: None)
        client.check()
    return {"put": puts, "get": gets}


def measure(run: Run) -> Iterator[Figure]:
    """All loads, one after the other, again and again."""
    requests = run.settings.rounds_of(SIZE)
    (found,) = run.in_turns({"all loads": partial(repetition, run, requests)}).values()
    for operation in ("put", "get"):
        case: Case = {"operation": operation, "size": SIZE}
        rates = [one[operation][0] / 1e6 for one in found]
        yield quantity("load", case | {"what": "capacity"}, "M/s", "higher", rates)
    for operation in ("put", "get"):
        for load in LOADS:
            case = {"operation": operation, "size": SIZE, "load": load}
            yield latency("load", case, [one[operation][1][load] for one in found])


QUESTION = Question(
    "load",
    "How long do put and get take when requests come at times of their own?",
    measure,
    "Open loop: each request has a time at which it is meant to begin, and its latency counts from then, also if "
    "the client is still busy with the one before. The times are those of a Poisson process with a fixed seed, at "
    "a rate that is a part of the capacity, which the same loop has measured just before with all times at 0. The "
    "client spins until a request is due. Objects of 1 KiB go from one process into the segment of another; what "
    "was put is removed between the loads.",
    why_not=needs_processes,
)
