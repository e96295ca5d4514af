"""put, get, exists and remove in a closed loop, each beside a plain copy of the same bytes.

Objects of up to 64 KiB are also put and got with other keys and tensors than the usual, and those of 1 KiB beside a
thread that computes. What a larger one takes is its copy.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from nanokv.bench.suite.busy import CALLS, HEAP_BYTES, PAGE_BYTES, SIZE, Beside
from nanokv.bench.suite.distribution import latency
from nanokv.bench.suite.environment import torch_threads
from nanokv.bench.suite.figure import Case, Figure
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.ring import (
    EMPTY,
    PUT_GET,
    WARM_UP,
    Calls,
    Plan,
    Prefixes,
    Ring,
    TakesTurns,
    UsualCalls,
    check_bytes,
    kinds,
    take_turns,
)
from nanokv.bench.suite.settings import KIB, show_size
from nanokv.bench.suite.timing import Samples
from nanokv.bench.suite.worlds import SYSTEMS

COPY = "copy_"  #: the system that is torch's plain copy
SMALL = 64 * KIB  #: the largest objects that are measured with other kinds of keys and tensors, too
KIND_ROUNDS = 10_000  #: of each kind, at most: p99.9 needs so many
KIND_TURN = 500  #: steps of a kind in a turn
STEPS_A_PREFIX = 5  #: of a kind, for each prefix_length


class OperationSamples(NamedTuple):
    """The samples of an operation in one repetition, and of what is beside it, by system."""

    ours: Samples
    beside: dict[str, Samples]


Rows = dict[str, OperationSamples]  #: by operation


def repetition(run: Run, heap: str, alloc: str, size: int) -> Rows:
    """All rows of one world.

    Raises:
        Mismatch: a read returned other bytes than were put.
    """
    settings = run.settings
    plan, rounds = Plan(size, settings.ring_bytes), settings.rounds_of(size, alloc)
    steps = -(-min(rounds, KIND_ROUNDS) // Calls.step)  # of each of the other kinds
    asked = -(-steps // STEPS_A_PREFIX)
    with run.worlds.open(heap, alloc, plan.heap_bytes) as (cache, owner):
        check_bytes(cache, owner, size)
        ring = Ring(cache, plan)
        calls = UsualCalls(ring, rounds)
        prefixes = Prefixes(ring, calls.kind, asked)
        calls.turn(0, min(rounds // 10 + 1, rounds, WARM_UP))
        if alloc == "device" and size <= SMALL:
            others = [Calls(ring, kind, steps) for kind in kinds(size)]
            parts: list[tuple[TakesTurns, int]] = [(calls, rounds), (prefixes, asked)]
            parts += [(one, steps) for one in others]
            take_turns(parts, max(1, steps // KIND_TURN))
        else:
            others = []
            calls.turn(rounds)
        for one in (calls, *others):
            one.turn(0)
            one.check_last()
            one.close()
        ring.close_lanes()
    rows = {name: row for one in (calls, *others) for name, row in _rows(one).items()}
    return rows | ({"prefix_length": OperationSamples(prefixes.samples, {})} if others else {})


def _rows(calls: Calls) -> Rows:
    beside = {name: {COPY: samples} for name, samples in calls.copies.items()}
    if isinstance(calls, UsualCalls):
        beside["get new"][EMPTY] = calls.empty
    names = {name: f"{name} {calls.kind.name}".rstrip() for name in calls.operations}
    return {names[name]: OperationSamples(samples, beside.get(name, {})) for name, samples in calls.operations.items()}


def beside_busy(run: Run, heap: str) -> Rows:
    """put and get of 1 KiB beside a thread that computes, in a world of their own."""
    found = Beside(min(run.settings.rounds, CALLS))
    with run.worlds.open(heap, "device", HEAP_BYTES, page_bytes=PAGE_BYTES) as world:
        found.run(world)
    return {f"{name} busy": OperationSamples(found.operations[name], {COPY: found.copies[name]}) for name in PUT_GET}


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
                found = run.in_turns(ways)
                yield from _figures({"heap": heap, "size": size}, {way[-1]: rows for way, rows in found.items()})
                if size == SIZE and "device" in settings.allocs:
                    alone = {(heap, show_size(size), "beside a busy thread"): partial(beside_busy, run, heap)}
                    (busy,) = run.in_turns(alone).values()
                    yield from _figures({"heap": heap, "size": size}, {SYSTEMS["device"]: busy})


def _figures(case: Case, found: dict[str, list[Rows]]) -> Iterator[Figure]:
    """`found`: rows of each repetition, by system."""
    most = max((repetitions[0] for repetitions in found.values()), key=len)
    for name in most:
        beside: dict[str, list[Samples]] = {}
        for system, repetitions in found.items():
            rows = [one[name] for one in repetitions if name in one]
            if rows:
                yield _figure(case | {"operation": name, "system": system}, [row.ours for row in rows])
                beside = beside or {other: [row.beside[other] for row in rows] for other in rows[0].beside}
        for system, samples in beside.items():
            yield _figure(case | {"operation": name, "system": system}, samples)


_figure = partial(latency, "latency")

QUESTION = Question(
    "latency",
    "How long does each call take, beside a plain copy of the same bytes?",
    measure,
    "Closed loop: the next call begins when the last one has returned. Rank 0 puts into the segment of rank 1 "
    "and reads from there; heap local is one process, shm two. The heap holds a ring of objects: each round "
    "removes the oldest, puts a new one, and reads one from the middle into a tensor of the caller (get) and "
    "into a new one (get new). Plain copies (copy_; clone for get new) walk a twin of the ring in the same "
    "segment, and take turns with the calls at being first. torch.empty: a new tensor alone. A repetition is a "
    "world of its own, whose first lap does not count; v2 and v1 take turns. Bytes are compared before and after "
    "the rounds, untimed. Up to 64 KiB v2 has more rows, which take turns with these in the same ring: put "
    "without a preferred segment (default), keys of bytes (bytes key), float32 tensors, and two kinds of tensors "
    "by turns (two kinds); and prefix_length of 250 keys that are there. Busy: 1 KiB beside a thread of the same "
    "process that computes in Python; at most 50,000 calls of each kind, or a second of them.",
    beside=("system", COPY),
)
