"""NanoKV beside its peers, in one run, on the same bytes."""

import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

from nanokv.bench.peers import isolation, systems
from nanokv.bench.peers.base import Ring
from nanokv.bench.peers.child import Wishes
from nanokv.bench.peers.lane import PeerLane
from nanokv.bench.peers.systems import SYSTEMS
from nanokv.bench.peers.turns import Found
from nanokv.bench.suite.distribution import latency
from nanokv.bench.suite.figure import Case, Figure
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.settings import KIB, Settings, show_size
from nanokv.bench.suite.turns import in_turns
from nanokv.heap import shm

LEAST_SIZE = KIB  #: smaller objects are left out: the slowest systems take the same time for them
TURNS = 10  #: of each system in a repetition
WARM_ROUNDS = 20  #: at the beginning of a turn: the processes have slept, and their memory is in no cache
SMALL_SIZE = 256 * KIB
SMALL_ROUNDS, LARGE_ROUNDS = 10_000, 1000  #: in a repetition, at most: enough for p99.9, and for p99
TURN_SECONDS = 10.0  #: a system that is slower has fewer samples


class PeersFailed(Exception):
    """Some systems crashed, hung, or returned other bytes than were put; the figures of the others stand."""


def versions() -> dict[str, str]:
    """The versions of the peers on this machine, for the record of a run."""
    return systems.versions()


def measure(run: Run) -> Iterator[Figure]:
    """The figures of each size, when all systems are through with it.

    Raises:
        PeersFailed: at the end.
    """
    left_out = systems.left_out()
    for name, why in left_out.items():
        print(f"peers: {name} is left out: {why}", file=sys.stderr)
    names = [name for name in SYSTEMS if name not in left_out]
    sizes = [size for size in run.settings.sizes if size >= LEAST_SIZE]
    errors: list[str] = []
    for size in sizes:
        yield from measure_size(run, names, size, errors, control=size == min(sizes))
    if errors:
        raise PeersFailed("\n".join(errors))


def measure_size(run: Run, names: Sequence[str], size: int, errors: list[str], *, control: bool) -> Iterator[Figure]:
    """The figures of some systems at one size; a system that failed has none, and is added to the errors."""
    with ExitStack() as stack:
        lanes = _started(run, names, size, stack, control=control)
        turn = (_rounds(run.settings, size), TURN_SECONDS, WARM_ROUNDS)
        ways = {(show_size(size), lane.name): partial(lane.turn, *turn) for lane in lanes}
        found = in_turns(ways, run.settings.repeats * TURNS, warm_up=1, say=run.say)
    errors += [f"{lane.name}, {show_size(size)}: {lane.error}" for lane in lanes if lane.error is not None]
    good = {lane.name: found[show_size(size), lane.name] for lane in lanes if lane.error is None}
    yield from _figures(good, size)


def _started(run: Run, names: Sequence[str], size: int, stack: ExitStack, *, control: bool) -> list[PeerLane]:
    """All at the same time, since most of what they do is to import. The stack ends them."""
    slots, seed = Ring.of(size, run.settings.ring_bytes).slots, secrets.randbits(32)
    isolated = isolation.prefix() is not None
    lanes = []
    for name in names:
        lanes.append(PeerLane(Wishes(name, size, slots, seed, run.settings.threads, control, isolated)))
        stack.callback(lanes[-1].close)
    for lane in lanes:
        run.say(f"{show_size(size)}, {lane.name}, starting")
        lane.wait()
    return lanes


def _rounds(settings: Settings, size: int) -> int:
    """How many rounds one turn has."""
    most = SMALL_ROUNDS if size <= SMALL_SIZE else LARGE_ROUNDS
    return -(-min(settings.rounds, most) // TURNS)


def _figures(found: dict[str, list[Found]], size: int) -> Iterator[Figure]:
    operations = dict.fromkeys(name for turns in found.values() for name in turns[0])
    for operation in operations:
        for system, turns in found.items():
            if operation in turns[0]:
                case: Case = {"size": size, "operation": operation, "system": system}
                yield latency("peers", case, _repetitions(turns, operation), note(system))


def _repetitions(turns: list[Found], operation: str) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The samples of each repetition's turns together."""
    samples = [np.array(turn[operation], np.int64) for turn in turns]
    return [np.concatenate(samples[at : at + TURNS]) for at in range(0, len(samples), TURNS)]


def note(name: str) -> str:
    """What the figures of a system pay for, and its versions."""
    system = SYSTEMS[name]
    numbers = ", ".join(f"{package} {number}" for package, number in system.versions().items())
    return f"{name} ({numbers}): {system.guarantees}."


def why_not(settings: Settings) -> str | None:
    """Why nothing can be measured: no shared memory, or only smaller sizes; or None."""
    if max(settings.sizes) < LEAST_SIZE:
        return f"peers are measured from {show_size(LEAST_SIZE)} up"
    return shm.why_not()


QUESTION = Question(
    "peers",
    "How long do put and get take beside other systems, in the same run and on the same bytes?",
    measure,
    "Closed loop, one client. Each system is in a process of its own, and most have others beside it; all get the "
    "same payload and hold as many objects: each round removes the oldest, puts a new one, and reads one from the "
    "middle into a tensor of the caller. The systems take short turns, A B C A B C; the first rounds of a turn do "
    "not count. The bytes read are compared with those put, untimed. What a call pays for differs: the notes "
    "say it, system by system. docs/peers.md says how each is run.",
    beside=("system", "NanoKV"),
    why_not=why_not,
)
