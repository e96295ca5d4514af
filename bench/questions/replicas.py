"""What a put with copies costs, a copy made later, and a removal."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

import nanokv
from nanokv.bench.suite.distribution import latency
from nanokv.bench.suite.figure import Case, Figure
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.ring import Mismatch
from nanokv.bench.suite.settings import KIB, MIB, show_size
from nanokv.bench.suite.timing import Samples

RANKS, CALLS = 4, 2000
SIZES = (4 * KIB, 64 * KIB, MIB)
HEAP = 256 * MIB  #: bytes of objects at most
PUT, LATER, REMOVE = "put", "replicate", "remove"


def samples_of(calls: int, call: Callable[[str], object]) -> Samples:
    """The durations of `call("0")`, `call("1")`, ..."""
    samples = Samples(calls)
    for key in map(str, range(calls)):
        samples.time(call, key)
    return samples


def repetition(size: int, calls: int) -> dict[tuple[str, int], Samples]:
    """Measure by call and number of copies, in a world of its own, whose first lap is dropped: it touches the memory.

    Raises:
        Mismatch: a copy has other bytes than were put.
    """
    caches = nanokv.local_world(RANKS, (calls + 16) * size, page_bytes=size, max_objects=2 * calls + 64)
    for each in caches:
        each.engine.poller.stop()  # in a world of processes it takes no time of the producer's interpreter
    cache, value = caches[0], torch.randint(0, 256, (size,), dtype=torch.uint8)
    found: dict[tuple[str, int], Samples] = {}
    for copies in (RANKS - 1, *range(RANKS)):
        found[PUT, copies] = samples_of(calls, partial(cache.put, tensor=value, preferred_segment=0, replicas=copies))
        if copies == 0:
            found[LATER, 1] = samples_of(calls, partial(cache.replicate, rank=1))
        if not all(torch.equal(each.get("0"), value) for each in caches):
            raise Mismatch(f"an object of {size} bytes with {copies} copies has other bytes than were put")
        found[REMOVE, copies or 1] = samples_of(calls, cache.remove)
    for each in caches:
        each.close()
    return found


def measure(run: Run) -> Iterator[Figure]:
    """Every size."""
    for size in SIZES:
        calls = max(min(run.settings.rounds, CALLS, HEAP // size), 1)
        ways = {show_size(size): partial(repetition, size, calls)}
        (found,) = run.in_turns(ways).values()
        for call, copies in sorted(found[0]):
            case: Case = {"size": size, "operation": call, "copies": copies}
            yield latency("replicas", case, [one[call, copies] for one in found])


QUESTION = Question(
    "replicas",
    "What do copies in other segments cost a put and a removal?",
    measure,
    "Four ranks of one process, without their pollers: in a world of processes those take no time of the "
    "producer's interpreter. Each repetition is a world of its own, whose first lap is dropped because it "
    "touches the memory. `replicate` makes one copy of an object that has none.",
)
