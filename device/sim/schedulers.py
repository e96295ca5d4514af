"""Schedulers that draw: uniformly at random, and by priorities with a few change points (PCT).

Each execution has its own seed and draws its own habits, so that runs differ in kind: some switch tasks at every step,
some seldom; some memories are nearly always new, some often old.
"""

import random

from nanokv.device.sim.simulation import Simulation, Task

_SWITCHING = (0.5, 0.2, 0.08, 0.03)  #: how often another task goes on
_STALENESS = (0.0, 0.1, 0.4)  #: how often memory does not do the plain thing


class RandomWalk:
    """At every step, with some probability another task goes on."""

    name = "random"

    def __init__(self) -> None:
        self.random = random.Random()

    def seed(self, seed: int) -> None:
        """Choose the habits of the next execution."""
        self.random.seed(seed)
        self._switching = self.random.choice(_SWITCHING)
        self._staleness = self.random.choice(_STALENESS)

    def start(self, simulation: Simulation) -> None:
        """Nothing to prepare."""

    def task(self, simulation: Simulation, current: Task | None, runnable: list[Task]) -> Task:
        if current is not None and (len(runnable) == 1 or self.random.random() >= self._switching):
            return current
        return runnable[int(self.random.random() * len(runnable))]

    def data(self, simulation: Simulation, count: int) -> int:
        if self.random.random() >= self._staleness:
            return 0
        return int(self.random.random() * count)


class Priorities(RandomWalk):
    """PCT (Burckhardt et al. 2010): the task of highest priority runs; at a few random steps it becomes the lowest.

    A bug that needs d ordering constraints is found with a probability of at least 1 / (tasks * steps ** (d - 1)) in
    each execution. Steps are estimated by those of the execution before.
    """

    name = "pct"
    CONSTRAINTS = 5

    def __init__(self) -> None:
        super().__init__()
        self._steps = 200
        self._last: Simulation | None = None

    def seed(self, seed: int) -> None:
        if self._last is not None:
            self._steps = max(self._last.steps, 10)
        super().seed(seed)

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
