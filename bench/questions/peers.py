"""NanoKV beside its peers, in one run, on the same bytes."""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

from nanokv.bench.peers import isolation, systems
from nanokv.bench.peers.base import Ring
from nanokv.bench.peers.child import Wishes
from nanokv.bench.peers.lane import Lane
from nanokv.bench.peers.systems import SYSTEMS
from nanokv.bench.peers.turns import Found
from nanokv.bench.suite.distribution import latency
from nanokv.bench.suite.figure import Figure
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.settings import KIB, Settings, show_size
from nanokv.bench.suite.turns import in_turns

NAME = "peers"
LEAST_SIZE = KIB  #: smaller objects are left out: the slowest systems take the same time for them
TURNS = 10  #: of each system in a repetition
WARM_ROUNDS = 20  #: at the beginning of a turn: the system's processes have slept
MOST_ROUNDS = 10_000  #: in a repetition: p99.9
LEAST_ROUNDS = 1000  #: in a repetition, for large objects: p99
REPETITION_SECONDS = 20.0  #: of one system: a slower one has fewer samples

problems: list[str] = []  #: of the last run: which systems were left out or failed, and why


def versions() -> dict[str, str]:
    """The versions of the peers on this machine, for the record of a run."""
    return systems.versions()


def _rounds(settings: Settings, size: int) -> int:
    """In one turn."""
    wanted = max(min(settings.rounds_of(size), MOST_ROUNDS), min(LEAST_ROUNDS, settings.rounds))
    return -(-wanted // TURNS)


def measure(run: Run) -> Iterator[Figure]:
    """The figures of each size, when all systems are through with it."""
    left_out = systems.left_out()
    problems[:] = [f"{name} is left out: {why}" for name, why in left_out.items()]
    for problem in problems:
        run.say(problem)
    names = [name for name in SYSTEMS if name not in left_out]
    sizes = [size for size in run.settings.sizes if size >= LEAST_SIZE]
    for size in sizes:
        yield from measure_size(run, names, size, control=size == min(sizes))


def measure_size(run: Run, names: Sequence[str], size: int, *, control: bool) -> Iterable[Figure]:
    """The figures of some systems at one size."""
    ring = Ring.of(size, run.settings.ring_bytes)
    seed = secrets.randbits(32)
    with ExitStack() as stack:
        lanes = []
        for name in names:
            isolated = isolation.prefix() is not None
            wishes = Wishes(name, size, ring.slots, seed, run.settings.threads, control, isolated)
            lanes.append(Lane(wishes))
            stack.callback(lanes[-1].close)
        for lane in lanes:
            run.say(f"{show_size(size)}: {lane.name} starts")
            lane.wait()
        rounds, seconds = _rounds(run.settings, size), REPETITION_SECONDS / TURNS
        ways = {lane.name: partial(lane.turn, rounds, seconds, WARM_ROUNDS) for lane in lanes}
        found = in_turns(ways, run.settings.repeats * TURNS, 1, lambda text: run.say(f"{show_size(size)}: {text}"))
    return [figure for lane in lanes for figure in _figures(lane, found[lane.name], size, run)]


def _figures(lane: Lane, turns: list[Found], size: int, run: Run) -> list[Figure]:
    """Of one system; none, and a problem, if it failed at this size."""
    if lane.error is not None:
        problems.append(f"{lane.name} has no figures at {show_size(size)}: {lane.error}")
        run.say(problems[-1])
        return []
    system = SYSTEMS[lane.name]
    numbers = ", ".join(f"{package} {number}" for package, number in system.versions().items())
    repetitions = [turns[at : at + TURNS] for at in range(0, len(turns), TURNS)]
    return [
        latency(
            NAME,
            {"system": lane.name, "operation": operation, "size": size},
            [np.concatenate([np.array(one[operation], np.int64) for one in some]) for some in repetitions],
            f"{system.guarantees} ({numbers})",
        )
        for operation in turns[0]
    ]


def why_not(settings: Settings) -> str | None:
    """None, unless all sizes are too small."""
    if max(settings.sizes) < LEAST_SIZE:
        return f"peers are measured from {show_size(LEAST_SIZE)} up"
    return None


QUESTION = Question(
    NAME,
    "How fast are put and get beside other systems, on the same bytes in the same run?",
    measure,
    how=(
        "One client, one operation at a time. Each system is in a process of its own, and most have others beside it; "
        "all have the same payload and as many objects. They take short turns, A B C A B C. What is read is compared "
        "with what was put, outside the timed part. Guarantees differ and stand beside each row."
    ),
    why_not=why_not,
)
