"""The rows of `nanokv check nodes`: how many faults of each kind, what they looked like, and whether all held."""

import contextlib
import math
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from nanokv.check.lab.guard import guarded
from nanokv.check.lab.layout import LabLayout, LayoutError, loopback, namespaces
from nanokv.check.machine.histories.key_model import KILLED
from nanokv.check.machine.histories.linearizability import NEVER
from nanokv.check.nodes import keys, times
from nanokv.check.nodes.caller import BULK
from nanokv.check.nodes.calls import LOST, NO_HOME, Call, forget_calls, is_putting, read_calls
from nanokv.check.nodes.crew import UCX, Crew
from nanokv.check.nodes.faults import FAULTS, Fault, Scene
from nanokv.check.nodes.judge import Facts, Judgement, judge, stored_for_good, to_be_found
from nanokv.check.nodes.keys import MOST_ROUNDS
from nanokv.check.nodes.times import FaultTimes
from nanokv.check.report import CheckFailure, Row, tell
from nanokv.errors import InvalidArgument

# --- a round -----------------------------------------------------------------------------------
# 1. Every node has an object at which the others look without a pause, and its threads begin to work.
# 2. The fault begins. It lasts for a random time, or until all others have seen the victim go, and a while longer.
# 3. It is undone. All nodes must reach each other again; they work on for a while, and pause.
# 4. Every node reads every key that may be there. All calls are judged (`judge`).
# 5. No world stores what nobody has put. All is removed; then fsck finds nothing, and no page is in use.
#
# Times are reported. They are bounded only by patience: a machine may be busy.
PATIENCE = (
    90.0  #: seconds until a lease must have ended, and until nodes must reach each other again: seconds are usual
)
BEFORE, AFTER = (0.4, 1.0), (0.3, 0.6)  #: seconds of work before the fault, and after its end
_LOOK = 0.02  #: seconds
_AIM, _LOOK_CLOSELY = 0.5, 0.0002  #: seconds
_PUT_SECONDS = 0.01  #: about as long as the put takes at which a fault aims


class RoundReport(NamedTuple):
    """What a round has to tell."""

    judgement: Judgement
    times: FaultTimes
    worlds: int  #: that were looked at


class Lab:
    """Nodes that are there for all rounds.

    Args:
        timeout: the option of all nodes, in seconds.
        seed: of the calls of all threads.
    """

    def __init__(self, layout: LabLayout, crew: Crew, timeout: float, seed: int) -> None:
        self.layout, self.crew, self.timeout, self.seed = layout, crew, timeout, seed
        self.folder: Path = layout.folder
        self.numbers = {name: number for number, name in enumerate(crew.names)}
        self.late: set[int] = set()  #: keys of earlier rounds that a late message may still put

    def wait(self, what: str, is_so: Callable[[], bool], missing: Callable[[], str] = str) -> None:
        """Wait until something is so.

        Args:
            missing: says what it lacks.

        Raises:
            CheckFailure: after PATIENCE seconds.
        """
        end = time.monotonic() + PATIENCE
        while not is_so():
            if time.monotonic() > end:
                raise CheckFailure(f"{what}: not within {PATIENCE:.0f} s {missing()}".rstrip())
            time.sleep(_LOOK)

    def homes(self, some: list[int]) -> dict[int, int]:
        """The number of the home of each key. All nodes are members."""
        answers = self.crew.nodes[self.crew.names[0]].ask("homes", some)
        return {key: self.numbers[name] for key, name in zip(some, answers, strict=True)}


class Round:
    """One round.

    Args:
        number: from 1 on.
        chance: of the times.
    """

    def __init__(self, lab: Lab, number: int, fault: Fault, scene: Scene, chance: random.Random) -> None:
        self._lab, self._number, self._fault, self._scene, self._chance = lab, number, fault, scene, chance
        self._crew = lab.crew
        self._canaries: dict[str, int] = {}
        self._begun = self._dead = self._ended = NEVER

    def run(self) -> RoundReport:
        """All of it.

        Raises:
            CheckFailure: a node failed, hangs, or does not come back. What calls prove is in the judgement.
        """
        self._meet()
        self._work()
        time.sleep(self._chance.uniform(*BEFORE))
        self._do_fault()
        self._wait_until_all_is_well(f"after {self._fault.name}, all nodes reach each other", self._ended)
        time.sleep(self._chance.uniform(*AFTER))
        wrong = self._each("pause")
        wrong += self._audit() + self._each("put_to_others", self._number)
        seen = self._crew.ask_each("seen")
        wrong += self._each("stop_watching")
        calls = list(read_calls(self._lab.folder, self._number))
        homes = self._lab.homes(sorted({call.key for call in calls}))
        judgement = judge(calls, self._facts(seen, homes))
        judgement.failures = wrong + judgement.failures + self._look_at_worlds(calls)
        forget_calls(self._lab.folder, self._number)
        return RoundReport(judgement, self._times(seen, calls, homes), len(self._crew.names))

    # --- the work ---
    def _meet(self) -> None:
        """Let each node put its canary, and all look at those of the others."""
        everybody = self._crew.names
        self._lab.wait("all nodes know each other", lambda: self._all_know(everybody))
        for name, number in self._lab.numbers.items():
            homes = self._lab.homes(list(keys.canaries(self._number, number)))
            self._canaries[name] = next(key for key, home in homes.items() if home == number)
        for name in everybody:
            self._show(name)
        for name in everybody:
            self._look(name)
        self._wait_until_all_is_well("all nodes reach each other", 0)

    def _all_know(self, names: list[str]) -> bool:
        return all(known == names for known in self._crew.ask_each("nodes").values())

    def _show(self, name: str) -> None:
        self._crew.nodes[name].ask("put_canary", self._canaries[name])

    def _look(self, name: str) -> None:
        self._crew.nodes[name].ask("watch", {other: key for other, key in self._canaries.items() if other != name})

    def _wait_until_all_is_well(self, what: str, since: int) -> None:
        """Wait until all nodes are members for all, and each reads from all others, in calls since a moment (ns)."""

        def missing() -> list[str]:
            seen = self._crew.ask_each("seen")
            return [f"{name}: {why}" for name, saw in seen.items() for why in _missing(saw, self._crew.names, since)]

        self._lab.wait(what, lambda: not missing(), lambda: f"({'; '.join(missing())})")

    def _work(self, *names: str) -> None:
        """Let nodes work: these, or all."""
        folder = str(self._lab.folder)
        self._crew.ask_each("begin", folder, self._number, self._lab.seed, only=names or None)

    # --- the fault ---
    def _do_fault(self) -> None:
        fault, scene = self._fault, self._scene
        self._aim()
        self._begun = time.monotonic_ns()
        fault.begin(scene)
        if fault.kills:
            self._dead = time.monotonic_ns()
        try:
            if fault.until_left:
                self._lab.wait(f"the lease of {scene.victim} ends", self._has_left)
            time.sleep(self._chance.uniform(fault.least, fault.most) * self._lab.timeout)
        finally:
            fault.end(scene)
        self._ended = time.monotonic_ns()
        if fault.kills:
            self._show(scene.victim)
            self._look(scene.victim)
            self._work(scene.victim)

    def _aim(self) -> None:
        """Wait until the victim is in the middle of putting large objects, or for a moment."""
        victim, end = self._scene.victim, time.monotonic() + _AIM
        who = self._number, self._lab.numbers[victim], self._crew.runs[victim], BULK
        rest = self._chance.uniform(0.0, _PUT_SECONDS)
        while time.monotonic() < end:
            if is_putting(self._lab.folder, *who):
                time.sleep(rest)
                if is_putting(self._lab.folder, *who):
                    return
            time.sleep(_LOOK_CLOSELY)

    def _has_left(self) -> bool:
        """Whether all others have seen the victim go."""
        victim = self._scene.victim
        others = [name for name in self._crew.names if name != victim]
        seen = self._crew.ask_each("seen", only=others)
        return len(times.departures({name: _later(saw, self._begun) for name, saw in seen.items()}, 0, victim)) == len(
            others
        )

    # --- afterwards ---
    def _each(self, command: str, *arguments: Any) -> list[str]:
        """Have all nodes do something that tells what is wrong. Returns that, with their names."""
        return [f"{name}: {why}" for name, some in self._crew.ask_each(command, *arguments).items() for why in some]

    def _audit(self) -> list[str]:
        """Let every node read what may be there. Returns what is wrong.

        A lease may end late: what was read while members went or came is forgotten, and read again.
        """
        calls = list(read_calls(self._lab.folder, self._number))
        some = keys.mixed(self._number) + to_be_found(calls)
        folder, certain = str(self._lab.folder), stored_for_good(calls, self._killed(), self._ended)
        wrong: list[str] = []

        def is_read() -> bool:
            self._wait_until_all_is_well("all nodes reach each other again", time.monotonic_ns())
            before = self._member_changes()
            wrong[:] = self._each("audit", folder, self._number, some, certain)
            return self._member_changes() == before

        self._lab.wait("members stay while everything is read", is_read)
        return wrong

    def _member_changes(self) -> list[int]:
        """How often each node has seen members go or come."""
        return [len(saw["members"]) for saw in self._crew.ask_each("seen").values()]

    def _killed(self) -> int:
        return self._lab.numbers[self._scene.victim] if self._fault.kills else NO_HOME

    def _facts(self, seen: dict[str, times.Seen], homes: dict[int, int]) -> Facts:
        names = set(self._crew.names)
        away = {
            self._lab.numbers[name]
            for saw in seen.values()
            for _, known in saw["members"]
            for name in names - set(known.split(","))
        }
        killed = self._killed()
        away |= {killed} - {NO_HOME}
        return Facts(homes, away, self._begun, self._ended, killed, self._dead)

    def _look_at_worlds(self, calls: list[Call]) -> list[str]:
        """What worlds store that nobody put, and what is left when all is removed."""
        known = {call.key for call in calls if call.call == "put"} | self._lab.late
        known |= {key for node in self._lab.numbers.values() for key in keys.canaries(self._number, node)}
        unknown = self._crew.ask_each("unknown", sorted(known))
        left = self._crew.ask_each("empty")
        self._lab.late |= {call.key for call in calls if call.call == "put" and call.answer in (LOST, KILLED)}
        wrong = [(name, why) for name, some in unknown.items() for why in some]
        wrong += [(name, f"when all is removed, {why}") for name, some in left.items() for why in some]
        return [f"the world of {name}: {why}" for name, why in wrong]

    def _times(self, seen: dict[str, times.Seen], calls: list[Call], homes: dict[int, int]) -> FaultTimes:
        fault, scene, names = self._fault, self._scene, self._crew.names

        def is_cut(one: int, two: int) -> bool:
            return fault.is_cut(scene, names[one], names[two])

        worker = NO_HOME if fault.between_two or not fault.cuts else self._lab.numbers[scene.victim]
        found = times.of_calls(calls, homes, self._begun, self._ended, is_cut, worker)
        watching = {name: saw for name, saw in seen.items() if name != scene.victim or fault.between_two}
        found.lost = times.losses(watching, self._begun, lambda one, two: fault.is_cut(scene, one, two))
        found.left = times.departures(seen, self._begun, scene.victim) if fault.cuts else []
        last = [look["changes"][-1][0] for saw in seen.values() for look in saw["looks"].values()]
        last += [saw["registry"]["away_until"] for saw in seen.values()]
        found.back = [max([0.0, *((at - self._ended) / times.NS for at in last)])]
        found.away = [saw["registry"]["away"] for saw in seen.values()] if fault.needs_etcd else []
        return found


def _later(saw: dict[str, Any], begun: int) -> dict[str, Any]:
    """Only the members that were seen since a moment."""
    return saw | {"members": [change for change in saw["members"] if change[0] >= begun]}


def _missing(saw: dict[str, Any], names: list[str], since: int) -> list[str]:
    """What a node's view lacks: members, the registry, or others that it reads from in a call since a moment (ns)."""
    members = saw["members"][-1][1] if saw["members"] else ""
    missing = [] if members == ",".join(names) else [f"its members are {members or 'none'}"]
    missing += ["the registry is away"] if saw["registry"]["is_away"] else []
    for other, look in saw["looks"].items():
        sees = look["changes"][-1][1] if look["changes"] else "nothing"
        if look["last"][0] <= since or sees != "OK":
            age = (time.monotonic_ns() - look["last"][1]) / times.NS if look["last"][1] else math.inf
            missing.append(f"it saw {sees} at {other}, last {age:.1f} s ago {look['wrong']}".rstrip())
    return missing


# --- the run ----------------------------------------------------------------------------------
PART = "nodes"
NODES = ("a", "b", "c")
TIMEOUT, TTL = 1.0, 2.0  #: seconds; etcd has no shorter leases
#: how nodes exchange objects, and how a row says it. Those of one host map each other's memory
LINKS = {"wire": "the wire", "mapped": "in mapped memory", "nixl": "NIXL over TCP"}
_PROBE = "from nanokv.cluster.links import open_link; open_link('nixl', 'probe').close()"
_PATIENCE = 120.0  #: seconds
MOST_TOLD = 5  #: failures of a round


def lacking(link: str = "wire") -> str | None:
    """Why nodes that exchange objects over a link cannot be run here; None: they can."""
    if not sys.platform.startswith("linux"):
        return "nodes need Linux"
    for module, name in (("zmq", "ZeroMQ"), ("cryptography", "cryptography")):
        if find_spec(module) is None:
            return f"nodes need {name}: pip install 'nanokv[cluster]'"
    if link != "nixl":
        return None
    # in another process: UCX changes signal handlers, and how a process ends
    environment = os.environ | UCX | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", "-c", _PROBE]
    try:
        probe = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return f"nodes need NIXL, which did not load within {_PATIENCE:.0f} s"
    if probe.returncode:
        return f"nodes need NIXL: {probe.stderr.strip().rpartition(': ')[2]}"
    return None


def run_nodes(
    seconds: float, seed: int, *, link: str = "wire", faults: Sequence[str] = (), apart: bool = True, mutant: str = ""
) -> list[Row]:
    """Do faults to nodes for about so many seconds, at least one: a row for each kind, and three for what is common.

    Args:
        seed: of faults, victims, times and calls. The machine decides which calls a fault meets.
        link: of LINKS: how the nodes exchange objects.
        faults: names of FAULTS; default: all that are possible here.
        apart: whether to make network namespaces, where that is possible. Never if they map each other's memory.
        mutant: a deliberate bug of all nodes, one of `mutants.MUTANTS`.

    Raises:
        InvalidArgument: NIXL or ZeroMQ is missing, or there is no such fault, or none of them can be had here.
    """
    problem = lacking(link)
    if problem:
        raise InvalidArgument(problem)
    unknown = set(faults) - {fault.name for fault in FAULTS}
    if unknown:
        raise InvalidArgument(f"no fault {', '.join(sorted(unknown))}; there are: {'; '.join(f.name for f in FAULTS)}")
    with _laid_out(apart and link != "mapped") as (layout, why):
        some = [fault for fault in FAULTS if fault.is_possible(layout) and (not faults or fault.name in faults)]
        if not some:
            raise InvalidArgument(f"{'; '.join(faults)}: cannot be had here {f'({why})' if why else ''}")
        left_out = [fault.name for fault in FAULTS if not fault.is_possible(layout)]
        return _Run(layout, seed, link, mutant).run(some, seconds, _place(layout, why, left_out, link, seed))


@contextlib.contextmanager
def _laid_out(apart: bool) -> Iterator[tuple[LabLayout, str]]:
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


def _namespaces(stack: contextlib.ExitStack, name: str) -> LabLayout:
    with contextlib.ExitStack() as trial:
        layout = trial.enter_context(namespaces(name, NODES))
        trial.enter_context(guarded(name))  # also if this process is killed
        stack.push(trial.pop_all())
    return layout


def _place(layout: LabLayout, why: str, left_out: list[str], link: str, seed: int) -> Row:
    """The row that says where the nodes are."""
    name = "nodes in network namespaces" if layout.is_apart else "nodes on LOOPBACK, without namespaces"
    said = [f"({why})"] if why else []
    said += ["etcd" if layout.etcd is not None else "no etcd here: the registry is a folder"]
    said += [f"{LINKS[link]}, timeout {TIMEOUT:g} s, ttl {TTL:g} s, seed {seed}"]
    said += [f"LEFT OUT: {'; '.join(left_out)}"] if left_out else []
    return Row(PART, name, len(layout.hosts), "nodes", note=", ".join(said))


class _Run:
    """All rounds on one layout."""

    def __init__(self, layout: LabLayout, seed: int, link: str, mutant: str) -> None:
        self._layout, self._seed, self._mutant = layout, seed, mutant
        self._options = {"timeout": TIMEOUT, "ttl": TTL, "link": link}
        self._calls = Row(PART, "calls and answers", unit="calls")
        self._worlds = Row(PART, "nothing is left, fsck", unit="worlds")
        self._kinds: dict[str, tuple[Row, FaultTimes]] = {}
        self._unsure = self._undecided = self._explored = 0

    def run(self, faults: Sequence[Fault], seconds: float, place: Row) -> list[Row]:
        """Rounds until the time is over, or one fails. At least one."""
        chance = random.Random(self._seed)
        with place.timed(), Crew(self._layout, self._options, self._mutant) as crew:
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
        row, times = self._kinds.setdefault(fault.name, (Row(PART, fault.name, unit="faults"), FaultTimes()))
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
        for row, taken in self._kinds.values():
            row.note, row.numbers = taken.as_note(), taken.as_numbers()
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
