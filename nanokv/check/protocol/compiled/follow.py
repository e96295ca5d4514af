"""Takes compiled code through an execution of the source: the same accesses in the same order, where they are there.

An execution that notices a broken ordering in the source so leads to one that notices it in PTX, which random schedules
would find after many more, and each is ten times slower.
"""

from dataclasses import dataclass, field

from nanokv.check.protocol.model.explore import Explorer
from nanokv.device.sim.schedule import Schedule
from nanokv.device.sim.simulation import MODIFY, STORE, Decider, Simulation, Task

SOON = 16  #: steps of a task that may be left out at once


@dataclass
class Step:
    """One access of an execution, and what memory was told to do."""

    task: str
    kind: str
    address: int
    choices: list[int] = field(default_factory=list)

    def is_next_of(self, task: Task) -> bool:
        """Whether a task is about to make this access; a store that releases is an exchange when it is compiled."""
        writes = (STORE, MODIFY)
        return task.address == self.address and (
            task.kind == self.kind or (task.kind in writes and self.kind in writes)
        )


class Recorder:
    """Decides as another decider does, and notes the steps."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self.kills = decider.kills
        self.steps: list[Step] = []

    def start(self, simulation: Simulation) -> None:
        self._decider.start(simulation)

    def task(self, simulation: Simulation, current: Task | None, runnable: list[Task]) -> Task:
        chosen = self._decider.task(simulation, current, runnable)
        self.steps.append(Step(chosen.name, chosen.kind, chosen.address))
        return chosen

    def data(self, simulation: Simulation, count: int) -> int:
        chosen = self._decider.data(simulation, count)
        if not simulation.choosing_late:
            self.steps[-1].choices.append(chosen)
        return chosen


class Follower:
    """Decides so that steps come as they were noted. Steps that are not there are left out, others happen in between.

    Args:
        late: whether copies are late.
    """

    def __init__(self, steps: list[Step], kills: dict[str, int], late: bool) -> None:
        self._steps, self.kills, self._late = steps, kills, late

    def start(self, simulation: Simulation) -> None:
        self._left = list(self._steps)
        self._choices: list[int] = []

    def task(self, simulation: Simulation, current: Task | None, runnable: list[Task]) -> Task:
        self._choices = []
        tasks = {task.name: task for task in runnable}
        while self._left:
            step = self._left[0]
            task = tasks.get(step.task)
            if task is None:
                del self._left[0]
            elif step.is_next_of(task):
                del self._left[0]
                self._choices = list(step.choices)
                return task
            elif not self._leave_out(task):
                return task
        return current if current is not None else runnable[0]

    def _leave_out(self, task: Task) -> bool:
        """Leave out the steps of a task before the one that it does next, if that one comes soon."""
        own = [step for step in self._left if step.task == task.name][:SOON]
        for number, step in enumerate(own):
            if step.is_next_of(task):
                missing = {id(each) for each in own[:number]}
                self._left = [each for each in self._left if id(each) not in missing]
                return True
        return False

    def data(self, simulation: Simulation, count: int) -> int:
        if simulation.choosing_late:
            return int(self._late)
        return min(self._choices.pop(0), count - 1) if self._choices else 0


def follow(source: Explorer, schedule: Schedule, compiled: Explorer) -> Schedule | None:
    """An execution of compiled code that fails, along one of the source that does; None if it does not lead there."""
    recorder = Recorder(schedule)
    source.execute(recorder)
    for late in (False, True):
        if compiled.execute(Follower(recorder.steps, schedule.kills, late)) is not None:
            return Schedule(tuple(compiled.world.simulation.taken), schedule.kills)
    return None
