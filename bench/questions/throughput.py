"""How fast bytes are copied by put and get, beside `copy_` of the same bytes into and out of the same memory.

Laps of one kind follow each other, so that all kinds meet the same machine: puts of the whole ring, copies into its
twin, gets of the whole ring, copies out of its twin. Calls and copies take turns at being first, since what was touched
last may still be in the processor's cache. A lap is timed as a whole: what stands between two calls counts.
"""

from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter_ns

import torch

from nanokv.bench.suite.checked import check_object, check_same, random_bytes
from nanokv.bench.suite.environment import torch_threads
from nanokv.bench.suite.figure import Case, Figure, quantity
from nanokv.bench.suite.question import Question, Run, needs_processes
from nanokv.bench.suite.ring import Plan
from nanokv.bench.suite.settings import KIB, Settings, show_size
from nanokv.bench.suite.twin import places
from nanokv.bench.suite.worlds import OWNER, MeasuredWorld

LEAST = 64 * KIB  #: bytes; the copy of a smaller object is not what its call takes
THREADS = (1, 2)
LAPS = 4  #: of each kind in a repetition, at most: on a busy machine two threads of torch take seconds for each
SYSTEM, COPY = "NanoKV v2", "copy_"
OPERATIONS = ("put", "get")
ORDERS = [
    [(operation, system) for operation in OPERATIONS for system in both] for both in ((SYSTEM, COPY), (COPY, SYSTEM))
]
Nanoseconds = dict[tuple[str, str], int]  #: by operation and system


def laps(world: MeasuredWorld, plan: Plan, count: int) -> Nanoseconds:
    """The time of `count` laps of each kind together, after one that does not count.

    Raises:
        Mismatch: bytes differ from what was put.
    """
    cache, keys = world.cache, [f"object {i}" for i in range(plan.slots)]
    source, target = random_bytes(plan.size), torch.zeros(plan.size, dtype=torch.uint8)
    spent: Nanoseconds = {}
    with places(cache, OWNER, plan.slots, plan.size) as twin:
        kinds: dict[tuple[str, str], Callable[[], None]] = {
            ("put", SYSTEM): lambda: _each(partial(cache.put, tensor=source, preferred_segment=OWNER), keys),
            ("put", COPY): lambda: _each(lambda place: place.copy_(source), twin),
            ("get", SYSTEM): lambda: _each(partial(cache.get, dst=target), keys),
            ("get", COPY): lambda: _each(target.copy_, twin),
        }
        for lap in range(-1, count):
            if lap >= 0:
                cache.remove_many(keys)
            for kind in ORDERS[lap % 2]:
                start = perf_counter_ns()
                kinds[kind]()
                spent[kind] = (spent.get(kind, 0) if lap > 0 else 0) + perf_counter_ns() - start
        check_same("the last copy", twin[-1], source)
        check_same("what was read last", target, source)
        check_object(cache, world.owner, keys[-1], source)
    return spent


def _each(call: Callable[..., object], arguments: list[str] | list[torch.Tensor]) -> None:
    for argument in arguments:
        call(argument)


def measure(run: Run) -> Iterator[Figure]:
    """Each size, by one thread of torch and by two, in turns; a repetition is a world of its own."""
    settings = run.settings

    def once(size: int, threads: int) -> Nanoseconds:
        plan = Plan(size, settings.ring_bytes)
        with torch_threads(threads), run.worlds.open("shm", "device", _heap_bytes(plan)) as world:
            return laps(world, plan, _laps(settings, plan))

    for size in sizes(settings):
        ways = {(show_size(size), threads): partial(once, size, threads) for threads in THREADS}
        for (_, threads), repetitions in run.in_turns(ways).items():
            plan = Plan(size, settings.ring_bytes)
            moved = size * plan.slots * _laps(settings, plan)
            for kind in ORDERS[0]:
                case: Case = {"operation": kind[0], "size": size, "threads": threads, "system": kind[1]}
                rates = [moved / spent[kind] for spent in repetitions]  # bytes per ns are GB per s
                yield quantity("throughput", case | {"what": "throughput"}, "GB/s", "higher", rates)
                times = [1e3 / rate for rate in rates]
                yield quantity("throughput", case | {"what": "time per MB"}, "us", "lower", times)


def _heap_bytes(plan: Plan) -> int:
    """Room for the ring and its twin."""
    return 2 * (plan.slots + 1) * plan.stride


def _laps(settings: Settings, plan: Plan) -> int:
    """An even number, so that each order comes as often."""
    return min(2 * -(-settings.rounds_of(plan.size) // (2 * plan.slots)), LAPS)


def sizes(settings: Settings) -> list[int]:
    """The sizes of the run that are large enough."""
    return [size for size in settings.sizes if size >= LEAST]


def why_not(settings: Settings) -> str | None:
    """Why this question cannot be asked: it is about large objects between two processes."""
    if not sizes(settings):
        return f"none of --sizes is {show_size(LEAST)} or more"
    return needs_processes(settings)


QUESTION = Question(
    "throughput",
    "How many bytes a second do put and get move, beside a plain copy?",
    measure,
    "One call after the other, without a look at the clock between them: a ring of objects is put into the segment of "
    "another process, then read into one tensor. Beside it `copy_` of the same bytes into and out of a twin of the "
    "ring in the same segment; the two take turns at being first. `threads` are those of torch. MB: 1,000,000 bytes. "
    "Removals are not timed.",
    beside=("system", COPY),
    why_not=why_not,
)
