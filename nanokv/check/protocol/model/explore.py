"""Takes a scenario through executions. A failure is a short string that replays it.

The string: SCENARIO/MEMORY: SCHEDULE (`device/sim/schedule.py`), made as small as delta debugging can; of compiled code
(`check/compiled`), SCENARIO/MEMORY/TARGET: SCHEDULE.
"""

import random
import time
from array import array
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from nanokv.check.protocol.model.scenario import Scenario
from nanokv.check.protocol.model.scenarios import SCENARIOS
from nanokv.check.protocol.model.small_world import SmallWorld
from nanokv.check.report import CheckFailure
from nanokv.device.machines.native import NativeMachine
from nanokv.device.segment.layout import READY, unpack
from nanokv.device.sim.exhaustive import Exhaustive, Redundant
from nanokv.device.sim.limits import Stuck, limited
from nanokv.device.sim.memory import Memory, WeakMemory
from nanokv.device.sim.schedule import Schedule, parse
from nanokv.device.sim.schedulers import Priorities, RandomWalk, Replay, Scheduler
from nanokv.device.sim.shrink import shrink
from nanokv.device.sim.simulation import Decider, InTasks
from nanokv.fsck import check_segments
from nanokv.host_poller.index import HeaderIndex

# --- what must hold when all has come to rest -------------------------------------------------
# When all tasks have ended or were killed, the production sweepers run natively on a copy of memory until they rest.
# Then fsck must find nothing at all: everything that the dead held is back (I2, I5, I6). And no task may have counted
# anything as corrupt: no scenario damages a word, so an operation that met impossible ones believed what it should
# have validated, or another one left them there.
MOST_SWEEPS = 60


def come_to_rest(world: SmallWorld) -> None:
    """Let the production sweepers run on a copy of memory until they have nothing to do; then fsck must be clean.

    Where no host code took part, the result depends on memory only: each content is checked once.
    """
    dead = world.deaths()
    content = (array("q", world.simulation.memory.words).tobytes(), *sorted(dead))
    if world.hosts or content not in world.sound:
        _check(world, dead)
        world.sound.add(content)


def _check(world: SmallWorld, dead: set[int]) -> None:
    views = world.segments.views()
    corrupt = [int(view.ctl[0]["corrupt"]) for view in views]
    if any(corrupt):
        raise CheckFailure(f"nothing is corrupt, and the segments count {corrupt}")
    bases = [int(view.raw.ctypes.data) for view in views]
    tables = [world.geometry.world_table(rank, 1, bases) for rank in range(world.geometry.world_size)]
    machines = [NativeMachine(world.geometry, table, views, lambda rank: None) for table in tables]
    if dead or world.hosts:
        used = {rank for rank, view in enumerate(views) if int(view.ctl[0]["hdr_head"])}
        _sweep(world, machines, sorted({0, *world.hosts, *used}))
    report = check_segments(views, mode="device", quiescent=True, alive=lambda rank, incarnation: rank not in dead)
    ranks = world.geometry.world_size
    left = {f"activity of rank {one}" if one < ranks else f"activity of guest {one - ranks}" for one in dead}
    # counts of operations of the dead stay until one attaches again
    findings = [str(finding) for finding in report.findings if finding.where not in left]
    if findings:
        raise CheckFailure("fsck: " + "; ".join(findings))


def _sweep(world: SmallWorld, machines: list[NativeMachine], ranks: list[int]) -> None:
    for rank in ranks:
        if rank not in world.hosts:
            world.sweeper(rank)
        world.hosts[rank].machine.machine = machines[rank]
    hosts = [world.hosts[rank] for rank in ranks]
    for step in range(MOST_SWEEPS):
        for host in hosts:
            if host.poller is not None:
                host.poller.drain(1e6 + step)
            host.sweeper.step(1e6 + step)
        if step > 1 and not any(host.sweeper.pending for host in hosts):
            break
    else:
        raise CheckFailure(f"I6: the sweeper does not come to rest in {MOST_SWEEPS} sweeps")
    for rank, host in zip(ranks, hosts, strict=True):
        _check_index(host.sweeper.index, machines[rank], rank)


def _check_index(index: HeaderIndex, machine: NativeMachine, rank: int) -> None:
    headers = machine.headers(rank, 0, machine.geometry.hdr_count)
    state = unpack("STATE", "state", headers["state"])
    want = [int(row["epoch"]) if at == READY.value else -1 for row, at in zip(headers, state, strict=True)]
    have = index.epochs().tolist()
    if want != have:
        raise CheckFailure(f"I5: the index of rank {rank} has epochs {have}, the headers have {want}")
    slots, rows = index.rows()
    for name in ("key_hash", "key_check", "payload_base", "bytes_total", "n_pages"):
        if (rows[name] != headers[slots][name]).any():
            raise CheckFailure(
                f"I5: the index of rank {rank} has {name} {rows[name]}, the headers have {headers[slots][name]}"
            )


# --- executions --------------------------------------------------------------------------------
MEMORIES: dict[str, type[Memory]] = {"sc": Memory, "weak": WeakMemory}
SCHEDULERS: dict[str, type[RandomWalk]] = {"random": RandomWalk, "pct": Priorities}

ALTERNATIVES = 3  #: to the plain outcome of a decision, that `deviate` tries
REACH = 40  #: decisions by which `near` moves later ones
PILOTS = 30  #: executions that tell how many steps a task does
MOST_EXHAUSTIVE = 50_000  #: executions that `exhaust` tries


@dataclass
class Failure:
    """What went wrong, and the schedule that shows it."""

    scenario: str
    memory: str
    schedule: Schedule
    why: str

    @property
    def replay(self) -> str:
        """The string that replays it."""
        return f"{self.scenario}/{self.memory}: {self.schedule}"

    @property
    def is_stuck(self) -> bool:
        """Whether it took as long as the limit allows, as each other try would."""
        return self.why.startswith(Stuck.__name__)

    def __str__(self) -> str:
        return f"{self.why}\n    replay: {self.replay}"


@dataclass
class Exploration:
    """The outcome of a number of executions."""

    executions: int = 0
    longest: int = 0  #: most steps in which no operation ended
    complete: bool = False  #: no schedule is left
    failure: Failure | None = None


class Explorer:
    """Runs one scenario, with one memory, over and over.

    Args:
        replaced: a mutant (`Simulation`).
        in_tasks: makes what tasks call (`Simulation`).
    """

    def __init__(
        self,
        scenario: Scenario,
        memory: str,
        replaced: dict[Any, Any] | None = None,
        in_tasks: InTasks | None = None,
    ) -> None:
        self.scenario = scenario
        self._is_limited = in_tasks is None  # else it compiles meanwhile
        self.memory = memory if in_tasks is None else f"{memory}/{in_tasks.name}"
        self.world = SmallWorld(
            MEMORIES[memory],
            scenario.geometry,
            may_evict=scenario.may_evict,
            checksum=scenario.checksum,
            replaced=replaced,
            in_tasks=in_tasks,
        )
        try:
            with self._limited():
                scenario.prepare(self.world)
        except Stuck as error:
            raise CheckFailure(f"{scenario.name}/{self.memory}, while it is prepared: {error}") from None
        self.world.segments.keep()
        self._versions = {key: dict(versions) for key, versions in self.world.versions.items()}

    def _limited(self) -> AbstractContextManager[None]:
        simulation = self.world.simulation
        return limited(lambda: simulation.steps) if self._is_limited else nullcontext()

    def execute(self, decider: Decider) -> str | None:
        """One execution: None, or what went wrong.

        Raises:
            Redundant: of an exhaustive scheduler.
        """
        world = self.world
        world.restart()
        world.versions = {key: dict(versions) for key, versions in self._versions.items()}
        self.scenario.tasks(world)
        try:
            with self._limited():
                world.simulation.run(decider)
            if self.scenario.rests:
                come_to_rest(world)
            self.scenario.judge(world)
        except Redundant:
            raise
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def explore(self, scheduler: Scheduler, most: int = 1 << 60, seconds: float = 1e9) -> Exploration:
        """Run the executions that a scheduler chooses, until one fails or none is left.

        Args:
            most: executions; those that turn out to be redundant count, but not in the result.
            seconds: after which no other execution begins.
        """
        found = Exploration()
        simulation = self.world.simulation
        end = time.monotonic() + seconds
        for _ in range(most):
            if time.monotonic() > end or found.failure is not None:
                break
            decider = scheduler.new_execution()
            if decider is None:
                found.complete = True
                break
            try:
                why = self.execute(decider)
            except Redundant:
                continue
            found.executions += 1
            found.longest = max(found.longest, simulation.longest)
            if why is not None:
                schedule = Schedule(tuple(simulation.taken), dict(decider.kills))
                found.failure = Failure(self.scenario.name, self.memory, schedule, why)
        return found

    # --- which executions ---
    def draw(self, scheduler: str, executions: int, seed: int, *, seconds: float = 1e9) -> Exploration:
        """Run random schedules, and kill mortal tasks in some of them."""
        drawn = (
            (_mixed(seed, number), self._draw_kills(random.Random(seed * 1_000_003 + number)))
            for number in range(executions)
        )
        return self.explore(SCHEDULERS[scheduler](drawn), seconds=seconds)

    def _draw_kills(self, dice: random.Random) -> dict[str, int]:
        if not self.scenario.mortal or dice.random() < 0.3:
            return {}
        return {name: int(160 ** dice.random()) for name in self.scenario.mortal if dice.random() < 0.7}

    def kill_everywhere(self, seed: int, rounds: int = 1) -> Exploration:
        """Kill each mortal task before each of its steps, each time under `rounds` random schedules."""
        killed = (
            (_mixed(seed, step, number), {name: step})
            for name in self.scenario.mortal
            for step in range(self._most_steps(name, seed))
            for number in range(rounds)
        )
        return self.explore(RandomWalk(killed))

    def _most_steps(self, name: str, seed: int) -> int:
        """The most steps that a task does in some executions in which nobody is killed."""
        most = 0
        pilots = RandomWalk((_mixed(seed, number), {}) for number in range(PILOTS))
        while (pilot := pilots.new_execution()) is not None:
            why = self.execute(pilot)
            if why is not None and why.startswith(Stuck.__name__):
                break
            most = max([most, *(task.steps for task in self.world.simulation.tasks if task.name == name)])
        return most

    def deviate(self, times: int) -> Exploration:
        """Run every schedule that is the plain one except for at most `times` decisions.

        Source: preemption bounding (Musuvathi, Qadeer 2007): most bugs need very few.
        """
        return self.explore(Replay(self._deviations(Schedule(), times)))

    def _deviations(self, schedule: Schedule, times: int) -> Iterator[Schedule]:
        yield schedule
        first = schedule.taken[-1][0] + 1 if schedule.taken else 0
        for at in range(first, self.world.simulation.decisions if times else 0):  # of the execution that just ran
            for alternative in range(1, ALTERNATIVES + 1):
                yield from self._deviations(Schedule((*schedule.taken, (at, alternative))), times - 1)

    def near(self, schedule: Schedule) -> Failure | None:
        """The first failure of an execution like a known one (`Schedule.moved`)."""
        return self.explore(Replay(schedule.moved(REACH))).failure

    def exhaust(self) -> Exploration:
        """Run all schedules that differ, up to MOST_EXHAUSTIVE."""
        return self.explore(Exhaustive(), MOST_EXHAUSTIVE)

    def smallest(self, failure: Failure) -> Failure:
        """Find the same kind of failure with as few decisions as can be found."""
        if failure.is_stuck:
            return failure
        kind = failure.why.partition(":")[0]

        def fails(schedule: Schedule) -> bool:
            why = self.execute(schedule)
            return why is not None and why.partition(":")[0] == kind

        schedule = shrink(failure.schedule, fails)
        return Failure(failure.scenario, failure.memory, schedule, self.execute(schedule) or failure.why)


def _mixed(*numbers: int) -> int:
    """A seed made of some numbers."""
    return hash(numbers) & 0xFFFFFFFF


# --- replay strings ---------------------------------------------------------------------------
def named(
    text: str, replaced: dict[Any, Any] | None = None, in_tasks: InTasks | None = None
) -> tuple[Explorer, Schedule]:
    """The execution that a replay string names, of the protocol or of a mutant.

    Raises:
        ValueError: the string is none.
        InvalidArgument: it needs compiled code, and nothing can be compiled here for that target.
    """
    place, colon, schedule = text.partition(": ")
    name, _, rest = place.partition("/")
    memory, _, target = rest.partition("/")
    if target and in_tasks is None:
        from nanokv.check.protocol.compiled.tasks import CompiledTasks  # which takes Triton's compiler

        in_tasks = CompiledTasks(target)
    if not colon or name not in SCENARIOS or memory not in MEMORIES:
        raise ValueError(f"a replay string is SCENARIO/MEMORY: SCHEDULE, with one of {', '.join(SCENARIOS)}: {text!r}")
    return Explorer(SCENARIOS[name], memory, replaced, in_tasks), parse(schedule)


def replay(text: str, replaced: dict[Any, Any] | None = None) -> str | None:
    """Run the execution that a replay string names: None, or what goes wrong.

    Raises:
        ValueError: the string is none.
    """
    explorer, schedule = named(text, replaced)
    return explorer.execute(schedule)
