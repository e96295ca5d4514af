"""Drives a scenario through schedules. A failure is a short string that replays it.

The string: SCENARIO/MEMORY: SCHEDULE (`device/sim/schedule.py`), made as small as delta debugging can.
"""

import random
import time
from dataclasses import dataclass
from typing import Any

from nanokv.check.model.at_rest import come_to_rest
from nanokv.check.model.scenario import Scenario
from nanokv.check.model.small_world import Stage
from nanokv.device.sim.exhaustive import Exhaustive, Redundant
from nanokv.device.sim.memory import Memory, WeakMemory
from nanokv.device.sim.schedule import Replay, Schedule
from nanokv.device.sim.schedulers import Priorities, RandomWalk
from nanokv.device.sim.shrink import shrink
from nanokv.device.sim.simulation import Scheduler

MEMORIES: dict[str, type[Memory]] = {"sc": Memory, "weak": WeakMemory}
SCHEDULERS: dict[str, type[RandomWalk]] = {"random": RandomWalk, "pct": Priorities}

ALTERNATIVES = 3  #: to what a decision would be, that `deviate` tries
PILOTS = 30  #: executions that tell how many steps a task does


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

    def __str__(self) -> str:
        return f"{self.why}\n    replay: {self.replay}"


@dataclass
class Explored:
    """What a number of executions came to."""

    executions: int = 0
    steps: int = 0
    longest: int = 0  #: most steps in which no operation ended
    complete: bool = False  #: no schedule is left
    failure: Failure | None = None


class Explorer:
    """Runs one scenario, with one memory, over and over.

    Args:
        replaced: a mutant (`Simulation`).
    """

    def __init__(self, scenario: Scenario, memory: str, replaced: dict[Any, Any] | None = None) -> None:
        self.scenario = scenario
        self.memory = memory
        self.stage = Stage(
            MEMORIES[memory],
            scenario.geometry,
            may_evict=scenario.may_evict,
            replaced=replaced,
            small=scenario.small,
        )
        scenario.prepare(self.stage)
        self.stage.world.keep()
        self._versions = {key: dict(said) for key, said in self.stage.versions.items()}

    def execute(self, scheduler: Scheduler, kills: dict[str, int]) -> str | None:
        """One execution: None, or what went wrong."""
        stage = self.stage
        stage.restart()
        stage.kills = kills
        stage.versions = {key: dict(said) for key, said in self._versions.items()}
        self.scenario.tasks(stage)
        try:
            stage.simulation.run(scheduler)
            if self.scenario.rests:
                come_to_rest(stage)
            self.scenario.judge(stage)
        except Redundant:
            raise
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def replay(self, schedule: Schedule) -> str | None:
        """Run one schedule again: None, or what goes wrong."""
        return self.execute(Replay(schedule), schedule.kills)

    # many executions
    def draw(self, scheduler: str, executions: int, seed: int, *, seconds: float = 1e9) -> Explored:
        """Run random schedules, and kill mortal tasks in some of them, until one fails or `executions` have run."""
        drawn = SCHEDULERS[scheduler]()
        found = Explored()
        end = time.monotonic() + seconds
        for number in range(executions):
            if time.monotonic() > end:
                break
            drawn.seed(hash((seed, number)) & 0xFFFFFFFF)
            kills = self._draw_kills(random.Random(seed * 1_000_003 + number))
            if self._one(drawn, kills, found):
                break
        return found

    def _draw_kills(self, dice: random.Random) -> dict[str, int]:
        if not self.scenario.mortal or dice.random() < 0.3:
            return {}
        return {name: int(160 ** dice.random()) for name in self.scenario.mortal if dice.random() < 0.7}

    def kill_everywhere(self, seed: int, rounds: int = 1) -> Explored:
        """Kill each mortal task before each of its steps, each time under `rounds` random schedules."""
        found = Explored()
        drawn = RandomWalk()
        for name in self.scenario.mortal:
            for step in range(self._most_steps(name, drawn, seed)):
                for number in range(rounds):
                    drawn.seed(hash((seed, step, number)) & 0xFFFFFFFF)
                    if self._one(drawn, {name: step}, found):
                        return found
        return found

    def _most_steps(self, name: str, drawn: RandomWalk, seed: int) -> int:
        """The most steps that a task does in some executions in which nobody is killed."""
        most = 0
        for number in range(PILOTS):
            drawn.seed(hash((seed, number)) & 0xFFFFFFFF)
            self.execute(drawn, {})
            most = max([most, *(task.steps for task in self.stage.simulation.tasks if task.name == name)])
        return most

    def deviate(self, times: int) -> Explored:
        """Run every schedule that is the plain one but for at most `times` decisions, or until one fails.

        Source: preemption bounding (Musuvathi, Qadeer 2007): most bugs need very few.
        """
        found = Explored()
        self._deviate(Schedule(), times, found)
        return found

    def _deviate(self, schedule: Schedule, times: int, found: Explored) -> bool:
        if self._one(Replay(schedule), {}, found):
            return True
        first = schedule.taken[-1][0] + 1 if schedule.taken else 0
        return times > 0 and any(
            self._deviate(Schedule((*schedule.taken, (at, alternative))), times - 1, found)
            for at in range(first, self.stage.simulation.decisions)
            for alternative in range(1, ALTERNATIVES + 1)
        )

    def exhaust(self, most: int) -> Explored:
        """Run all schedules that differ, at most `most`."""
        found = Explored()
        explorer = Exhaustive()
        while explorer.executions < most:
            if not explorer.more():
                found.complete = True
                break
            try:
                if self._one(explorer, {}, found):
                    break
            except Redundant:
                continue
        return found

    def _one(self, scheduler: Scheduler, kills: dict[str, int], found: Explored) -> bool:
        """One execution, counted. True if it failed; the failure is made small."""
        why = self.execute(scheduler, kills)
        simulation = self.stage.simulation
        found.executions += 1
        found.steps += simulation.steps
        found.longest = max(found.longest, simulation.longest)
        if why is not None:
            schedule = Schedule(tuple(simulation.taken), dict(kills))
            found.failure = Failure(self.scenario.name, self.memory, schedule, why)
        return why is not None

    def smallest(self, failure: Failure) -> Failure:
        """The same kind of failure with as few decisions as can be found."""
        kind = failure.why.partition(":")[0]

        def fails(schedule: Schedule) -> bool:
            why = self.replay(schedule)
            return why is not None and why.partition(":")[0] == kind

        schedule = shrink(failure.schedule, fails)
        return Failure(failure.scenario, failure.memory, schedule, self.replay(schedule) or failure.why)
