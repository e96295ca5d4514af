"""put, get, exists and remove in a closed loop, each beside a plain copy of the same bytes."""

from collections.abc import Iterator
from functools import partial

from nanokv.bench.suite.distribution import latency
from nanokv.bench.suite.environment import torch_threads
from nanokv.bench.suite.figure import Case, Figure
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.ring import COPIED, OPERATIONS, Plan, Ring, check_bytes
from nanokv.bench.suite.settings import show_size
from nanokv.bench.suite.turns import in_turns
from nanokv.bench.suite.worlds import SYSTEMS

COPY = "copy_"  #: the system that is torch's plain copy
WARM_UP = 100  #: rounds at most


def repetition(run: Run, heap: str, alloc: str, size: int) -> Ring:
    """A ring in a world of its own, after all its rounds.

    Raises:
        Mismatch: a read returned other bytes than were put.
    """
    plan, rounds = Plan(size, run.settings.ring_bytes), run.settings.rounds_of(size, alloc)
    with run.worlds.open(heap, alloc, plan.heap_bytes) as (cache, owner):
        check_bytes(cache, owner, size)
        ring = Ring(cache, plan, rounds)
        ring.run(min(rounds // 10 + 1, rounds, WARM_UP), rounds)
        ring.close_lanes()
    return ring


def measure(run: Run) -> Iterator[Figure]:
    """Every heap and size; v2 and v1 take turns, and the copies are those beside the first of them."""
    settings = run.settings
    with torch_threads(settings.threads):
        for heap in settings.heaps:
            for size in settings.sizes:
                ways = {
                    (heap, show_size(size), SYSTEMS[alloc]): partial(repetition, run, heap, alloc, size)
                    for alloc in settings.allocs
                }
                found = in_turns(ways, settings.repeats, say=run.say)
                rings = {system: repetitions for (*_, system), repetitions in found.items()}
                yield from _figures({"heap": heap, "size": size}, rings)


def _figures(case: Case, rings: dict[str, list[Ring]]) -> Iterator[Figure]:
    beside = next(iter(rings.values()))
    for name in OPERATIONS:
        for system, repetitions in rings.items():
            yield _figure(case | {"operation": name, "system": system}, [ring.operations[name] for ring in repetitions])
        if name in COPIED:
            yield _figure(case | {"operation": name, "system": COPY}, [ring.copies[name] for ring in beside])


_figure = partial(latency, "latency")

QUESTION = Question(
    name="latency",
    asks="How long does each call take, beside a plain copy of the same bytes?",
    measure=measure,
    how=(
        "Closed loop: the next call begins when the last one has returned. Rank 0 puts into the segment of rank 1 "
        "and reads from there; heap local is one process, shm two. The heap holds a ring of objects: each round "
        "removes the oldest, puts a new one, and reads one from the middle into a tensor of the caller (get) and "
        "into a new one (get new). Plain copies (copy_; clone for get new) walk a twin of the ring in the same "
        "segment, and take turns with the calls at being first. A repetition is a world of its own, whose first "
        "lap does not count; v2 and v1 take turns. Bytes are compared before and after the rounds, untimed."
    ),
    beside=("system", COPY),
)
