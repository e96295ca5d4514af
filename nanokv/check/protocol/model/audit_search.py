"""Finds schedules in which an audit always looks while a page, or a header slot, passes from one place to another.

No random schedule does that four times in a row. Here the task `one` is stopped at a step, `host` goes on until it has
looked, and if it saw a node in no place, `one` is stopped a second time; and so on, until the audit gives back a node
that a living rank holds. Tried are the last step of each passage, and for the last look every step.
"""

from typing import Any
from unittest import mock

from nanokv.check.protocol.model.explore import Explorer
from nanokv.check.protocol.model.scenario import Scenario
from nanokv.check.protocol.model.scenarios import host
from nanokv.device.sim.schedule import Schedule
from nanokv.device.sim.simulation import Simulation, Task
from nanokv.host_poller import audit
from nanokv.host_poller.audit import Audit

PATIENCE = 60  #: steps of `host` until it has looked


class _Stops:
    """Decides an execution: `one` runs up to each stop in turn, `host` then until it has looked and waits again."""

    def __init__(self, stops: tuple[int, ...], kind: str) -> None:
        self.kills: dict[str, int] = {}
        self._stops = (0, *stops)
        self._kind = kind
        self.audit: Audit | None = None
        self.saw = False  #: the last look saw a node in no place, as all looks before it did

    def start(self, simulation: Simulation) -> None:
        self._stop, self._since = 0, 0

    def task(self, simulation: Simulation, current: Task | None, runnable: list[Task]) -> Task:
        tasks = {task.name: task for task in runnable}
        if len(tasks) == 1 or self.audit is None:
            self.saw = self.saw and self._stop == len(self._stops)
            return runnable[0]
        while self._stop < len(self._stops):
            if tasks["one"].steps < self._stops[self._stop]:
                return tasks["one"]
            self._since = self._since or tasks["host"].steps + 1
            progress = self.audit.progress
            looked = progress.looks == self._stop and progress.flipped
            if not looked and tasks["host"].steps < self._since + PATIENCE:
                return tasks["host"]
            self.saw = looked and len(getattr(progress.nowhere, self._kind)) > 0
            self._stop, self._since = self._stop + 1, 0
        return tasks["host"]

    def data(self, simulation: Simulation, count: int) -> int:
        return 0


def find(scenario: Scenario, replaced: dict[Any, Any] | None = None) -> str | None:
    """A replay string of an audit that gives back a node that a living rank holds, or None if there is none.

    Args:
        scenario: with the tasks `one` and `host`.
        replaced: a mutant (`Simulation`).
    """
    return _find("pages", scenario, replaced) or _find("slots", scenario, replaced)


def _find(kind: str, scenario: Scenario, replaced: dict[Any, Any] | None) -> str | None:
    """`find`, of nodes of one kind: "pages" or "slots"."""
    explorer = Explorer(scenario, "sc", replaced)
    simulation = explorer.world.simulation

    def run(stops: tuple[int, ...]) -> tuple[str | None, bool]:
        decider = _Stops(stops, kind)

        class Watched(Audit):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                decider.audit = self

        with mock.patch.object(host, "Audit", Watched):
            why = explorer.execute(decider)
        return why, decider.saw

    explorer.execute(Schedule())
    most = next(task.steps for task in simulation.tasks if task.name == "one")

    def search(stops: tuple[int, ...]) -> str | None:
        before = False
        for stop in range(stops[-1] + 1 if stops else 1, most):
            why, saw = run((*stops, stop))
            if why is not None:
                return f"{scenario.name}/sc: {Schedule(tuple(simulation.taken))}"
            # the last step of a passage is the one after its stamp
            found = search((*stops, stop - 1)) if before and not saw and len(stops) + 1 < audit.LOOKS else None
            if found is not None:
                return found
            before = saw
        return None

    return search(())
