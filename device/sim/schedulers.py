"""Schedulers choose the executions that are tried: at random, by random priorities (PCT), or from a list.

`exhaustive` has the one that tries all. Each drawn execution has its own seed and draws its own habits, so that
executions differ in kind: some switch tasks at every step, some seldom; some memories are nearly always new, some are
often old.
"""

import random
from collections.abc import Iterable
from typing import Protocol, Self

from nanokv.device.sim.schedule import Schedule
from nanokv.device.sim.simulation import Decider, Simulation, Task

_SWITCHING = (0.5, 0.2, 0.08, 0.03)  #: how often another task goes on
_STALENESS = (0.0, 0.1, 0.4)  #: how often memory does not do the plain thing
_DISORDER = 0.6  #: how often a transfer does not move its words as they lie


class Scheduler(Protocol):
    """Chooses executions, one after the other."""

    def new_execution(self) -> Decider | None:
        """The schedule of the next execution, valid until the next call; None: nothing is left to try."""


class Replay:
    """Tries the given schedules. Each is asked for when the one before has run."""

    def __init__(self, schedules: Iterable[Schedule]) -> None:
        self._schedules = iter(schedules)

    def new_execution(self) -> Schedule | None:
        return next(self._schedules, None)


class RandomWalk:
    """At every step, with some probability another task goes on.

    Args:
        executions: for each its seed, and the tasks that are killed in it.
    """

    def __init__(self, executions: Iterable[tuple[int, dict[str, int]]]) -> None:
        self.random = random.Random()
        self.kills: dict[str, int] = {}
        self._executions = iter(executions)

    def new_execution(self) -> Self | None:
        execution = next(self._executions, None)
        if execution is None:
            return None
        seed, self.kills = execution
        self.random.seed(seed)
        self._switching = self.random.choice(_SWITCHING)
        self._staleness = self.random.choice(_STALENESS)
        return self

    def start(self, simulation: Simulation) -> None:
        """Nothing to prepare."""

    def task(self, simulation: Simulation, current: Task | None, runnable: list[Task]) -> Task:
        if current is not None and (len(runnable) == 1 or self.random.random() >= self._switching):
            return current
        return runnable[int(self.random.random() * len(runnable))]

    def data(self, simulation: Simulation, count: int) -> int:
        if self.random.random() >= (_DISORDER if simulation.choosing_order else self._staleness):
            return 0
        return int(self.random.random() * count)


class Priorities(RandomWalk):
    """PCT (Burckhardt et al. 2010): the task of highest priority runs; at a few random steps it becomes the lowest.

    A bug that needs d ordering constraints is found with a probability of at least 1 / (tasks * steps ** (d - 1)) in
    each execution. The number of steps is estimated by that of the execution before.
    """

    CONSTRAINTS = 5
    FIRST_STEPS = 200  #: the estimate for the first execution

    def __init__(self, executions: Iterable[tuple[int, dict[str, int]]]) -> None:
        super().__init__(executions)
        self._steps = self.FIRST_STEPS
        self._last: Simulation | None = None

    def new_execution(self) -> Self | None:
        if self._last is not None:
            self._steps = max(self._last.steps, 10)
        return super().new_execution()

    def start(self, simulation: Simulation) -> None:
        self._last = simulation
        self._order = list(simulation.tasks)
        self.random.shuffle(self._order)
        depth = self.random.randint(1, self.CONSTRAINTS) - 1
        self._changes = {int(self.random.random() * self._steps) for _ in range(depth)}

    def task(self, simulation: Simulation, current: Task | None, runnable: list[Task]) -> Task:
        if simulation.steps in self._changes and current is not None:
            self._order.remove(current)
            self._order.append(current)
        for task in self._order:
            if task in runnable:
                return task
        raise AssertionError("no task can run")
