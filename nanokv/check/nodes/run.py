"""The rows of `nanokv check nodes`: how many faults of each kind, what they looked like, and whether all held."""

import contextlib
import os
import random
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from time import monotonic

from nanokv.check.lab.guard import guarded
from nanokv.check.lab.layout import Layout, LayoutError, loopback, namespaces
from nanokv.check.nodes.crew import Crew
from nanokv.check.nodes.faults import FAULTS, Fault, Scene
from nanokv.check.nodes.keys import MOST_ROUNDS
from nanokv.check.nodes.rounds import Lab, Round
from nanokv.check.nodes.times import Times
from nanokv.check.report import CheckFailure, Row, tell
from nanokv.errors import InvalidArgument

PART = "nodes"
NODES = ("a", "b", "c")
TIMEOUT, TTL = 1.0, 2.0  #: seconds; etcd has no shorter leases
_PROBE = "from nanokv.cluster.links import open_link; open_link('nixl', 'probe').close()"
_PATIENCE = 120.0  #: seconds
MOST_TOLD = 5  #: failures of a round


def lacking() -> str | None:
    """Why nodes cannot be run here; None: they can."""
    if not sys.platform.startswith("linux"):
        return "nodes need Linux"
    if find_spec("zmq") is None:
        return "nodes need ZeroMQ: pip install 'nanokv[cluster]'"
    # in another process: UCX changes signal handlers, and how a process ends
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", "-c", _PROBE]
    try:
        probe = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return f"nodes need NIXL, which did not load within {_PATIENCE:.0f} s"
    if probe.returncode:
        return f"nodes need NIXL: {probe.stderr.strip().rpartition(': ')[2]}"
    return None


def run_nodes(
    seconds: float, seed: int, *, faults: Sequence[str] = (), apart: bool = True, mutant: str = ""
) -> list[Row]:
    """Do faults to nodes for about so many seconds, at least one: a row for each kind, and three for what is common.

    Args:
        seed: of faults, victims, times and calls. The machine decides which calls a fault meets.
        faults: names of FAULTS; default: all that are possible here.
        apart: whether to make network namespaces, where that is possible.
        mutant: a deliberate bug of all nodes, one of `mutants.MUTANTS`.

    Raises:
        InvalidArgument: NIXL or ZeroMQ is missing, or there is no such fault, or none of them can be had here.
    """
    problem = lacking()
    if problem:
        raise InvalidArgument(problem)
    unknown = set(faults) - {fault.name for fault in FAULTS}
    if unknown:
        raise InvalidArgument(f"no fault {', '.join(sorted(unknown))}; there are: {'; '.join(f.name for f in FAULTS)}")
    with _laid_out(apart) as (layout, why):
        some = [fault for fault in FAULTS if fault.is_possible(layout) and (not faults or fault.name in faults)]
        if not some:
            raise InvalidArgument(f"{'; '.join(faults)}: cannot be had here {f'({why})' if why else ''}")
        left_out = [fault.name for fault in FAULTS if not fault.is_possible(layout)]
        return _Run(layout, seed, mutant).run(some, seconds, _place(layout, why, left_out, seed))


@contextlib.contextmanager
def _laid_out(apart: bool) -> Iterator[tuple[Layout, str]]:
    """The best layout that this machine allows, and why it is not a better one."""
    name = f"nanokv-check-{os.getpid()}-{secrets.token_hex(2)}"
    with contextlib.ExitStack() as stack:
        why = "not wanted"
        if apart:
            try:
                layout = _namespaces(stack, name)
            except LayoutError as error:
                why = str(error)
            else:
                yield layout, ""
                return
        yield stack.enter_context(loopback(name, NODES, own_session=False)), why


def _namespaces(stack: contextlib.ExitStack, name: str) -> Layout:
    with contextlib.ExitStack() as trial:
        layout = trial.enter_context(namespaces(name, NODES))
        trial.enter_context(guarded(name))  # also if this process is killed
        stack.push(trial.pop_all())
    return layout


def _place(layout: Layout, why: str, left_out: list[str], seed: int) -> Row:
    """The row that says where the nodes are."""
    name = "nodes in network namespaces" if layout.is_apart else "nodes on LOOPBACK, without namespaces"
    said = [f"({why})"] if why else []
    said += ["etcd" if layout.etcd is not None else "no etcd here: the registry is a folder"]
    said += [f"NIXL over TCP, timeout {TIMEOUT:g} s, ttl {TTL:g} s, seed {seed}"]
    said += [f"LEFT OUT: {'; '.join(left_out)}"] if left_out else []
    return Row(PART, name, len(layout.hosts), "nodes", note=", ".join(said))


class _Run:
    """All rounds on one layout."""

    def __init__(self, layout: Layout, seed: int, mutant: str) -> None:
        self._layout, self._seed, self._mutant = layout, seed, mutant
        self._calls = Row(PART, "calls and answers", unit="calls")
        self._worlds = Row(PART, "nothing is left, fsck", unit="worlds")
        self._kinds: dict[str, tuple[Row, Times]] = {}
        self._unsure = self._undecided = self._explored = 0

    def run(self, faults: Sequence[Fault], seconds: float, place: Row) -> list[Row]:
        """Rounds until the time is over, or one fails. At least one."""
        chance = random.Random(self._seed)
        with place.timed(), Crew(self._layout, {"timeout": TIMEOUT, "ttl": TTL}, self._mutant) as crew:
            lab, end = Lab(self._layout, crew, TIMEOUT, self._seed), monotonic() + seconds
            for number, fault in zip(range(1, MOST_ROUNDS), _in_turn(faults, chance), strict=False):
                if number > 1 and monotonic() >= end:
                    break
                victim, other = chance.sample(crew.names, 2)
                tell(f"nodes: round {number}: {fault.name}, node {victim}")
                if not self._round(lab, number, fault, Scene(crew, self._layout, victim, other), chance):
                    break
        return self._rows(place, faults)

    def _round(self, lab: Lab, number: int, fault: Fault, scene: Scene, chance: random.Random) -> bool:
        """Whether it held."""
        row, times = self._kinds.setdefault(fault.name, (Row(PART, fault.name, unit="faults"), Times()))
        row.tried += 1
        before = f"seed {self._seed}, round {number}, node {scene.victim}"
        with row.timed():
            try:
                told = Round(lab, number, fault, scene, chance).run()
            except (CheckFailure, LayoutError) as failure:
                raise CheckFailure(f"{before}: {failure}") from None
            times.add(told.times)
            row.failures += [f"{before}: {failure}" for failure in _some(told.judgement.failures)]
            self._calls.tried += told.judgement.calls
            self._worlds.tried += told.worlds
            self._unsure += told.judgement.unsure
            self._undecided += told.judgement.undecided
            self._explored += told.judgement.explored
        return not row.failures

    def _rows(self, place: Row, faults: Sequence[Fault]) -> list[Row]:
        self._calls.note = f"{self._unsure} of unknown effect, {self._explored} configurations"
        self._calls.note += f", {self._undecided} keys UNDECIDED" if self._undecided else ""
        later = sum(fault.name not in self._kinds for fault in faults)
        place.note += f"; no time for {later} of {len(faults)} kinds of faults: give more --seconds" if later else ""
        for row, times in self._kinds.values():
            row.note, row.numbers = times.as_note(), times.as_numbers()
        rows = [place, *(row for row, _ in self._kinds.values())]
        return rows + [row for row in (self._calls, self._worlds) if row.tried]


def _some(failures: list[str]) -> list[str]:
    """The first ones, and how many more there are: a bug breaks many calls."""
    more = len(failures) - MOST_TOLD
    return failures[:MOST_TOLD] + ([f"and {more} more"] if more > 0 else [])


def _in_turn(faults: Sequence[Fault], chance: random.Random) -> Iterator[Fault]:
    """All faults in a random order, and again."""
    while faults:
        yield from chance.sample(faults, len(faults))
