"""Finds schedules in which an audit always looks while a page, or a header slot, passes from one place to another.

No random schedule does that four times in a row. Here the task `one` is stopped at a step, `host` goes on until it has
looked, and if it saw one in no place, `one` is stopped a second time; and so on, until the audit gives back what
somebody alive holds. Tried are the last step of each passage, and for the last look every step.
"""

from typing import Any
from unittest import mock

from nanokv.check.model.explore import Explorer
from nanokv.check.model.scenario import Scenario
from nanokv.check.model.scenarios import host
from nanokv.device.sim.schedule import Replay, Schedule
from nanokv.device.sim.simulation import Simulation, Task
from nanokv.host_poller import audit
from nanokv.host_poller.audit import Audit

PATIENCE = 60  #: steps of `host` until it has looked


class _Stops:
    """The scheduler: `one` up to each stop in turn, `host` until it has looked and asked for the next grace period."""

    def __init__(self, stops: tuple[int, ...], kind: str) -> None:
        self._stops = (0, *stops)
        self._kind = kind
        self.audit: Audit | None = None
        self.saw = False  #: the last look saw one in no place, as all looks before it did

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
            looked = self.audit._looks == self._stop and self.audit._grace._flipped
            if not looked and tasks["host"].steps < self._since + PATIENCE:
                return tasks["host"]
            missing = self.audit._missing
            self.saw = looked and missing is not None and len(getattr(missing, self._kind)) > 0
            self._stop, self._since = self._stop + 1, 0
        return tasks["host"]

    def data(self, simulation: Simulation, count: int) -> int:
        return 0


def find(scenario: Scenario, replaced: dict[Any, Any] | None = None) -> str | None:
    """`find_kind`, of pages and of slots."""
    return find_kind("pages", scenario, replaced) or find_kind("slots", scenario, replaced)


def find_kind(kind: str, scenario: Scenario, replaced: dict[Any, Any] | None = None) -> str | None:
    """A replay string of an audit that gives back what somebody holds, or None if there is none.

    Args:
        kind: of nodes, "pages" or "slots".
        scenario: with the tasks `one` and `host`. replaced: mutants (`Simulation`).
    """
    explorer = Explorer(scenario, "sc", replaced)

    def run(stops: tuple[int, ...]) -> tuple[str | None, bool]:
        scheduler = _Stops(stops, kind)

        class Watched(Audit):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                scheduler.audit = self

        with mock.patch.object(host, "Audit", Watched):
            why = explorer.execute(scheduler, {})
        return why, scheduler.saw

    explorer.execute(Replay(Schedule()), {})
    most = next(task.steps for task in explorer.stage.simulation.tasks if task.name == "one")

    def search(stops: tuple[int, ...]) -> str | None:
        before = False
        for stop in range(stops[-1] + 1 if stops else 1, most):
            why, saw = run((*stops, stop))
            if why is not None:
                return f"{scenario.name}/sc: {Schedule(tuple(explorer.stage.simulation.taken))}"
            # the last step of a passage is the one after its stamp
            found = search((*stops, stop - 1)) if before and not saw and len(stops) + 1 < audit.LOOKS else None
            if found is not None:
                return found
            before = saw
        return None

    return search(())
