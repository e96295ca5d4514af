"""A schedule by name: which tasks are killed where, and the decisions in which the plain alternative was not taken.

As text: `producer@37 12.1 45.2`: the task `producer` is killed before its 37th step; at decision 12 the first other
alternative happens, at decision 45 the second. Everything else is plain. `parse(str(schedule)) == schedule`.
"""

from dataclasses import dataclass, field

from nanokv.device.sim.simulation import Simulation, Task


@dataclass(frozen=True)
class Schedule:
    """A whole execution, given the tasks and the first words of memory."""

    taken: tuple[tuple[int, int], ...] = ()  #: (decision, alternative), ascending
    kills: dict[str, int] = field(default_factory=dict)  #: task -> steps that it does

    def __str__(self) -> str:
        kills = [f"{name}@{step}" for name, step in sorted(self.kills.items())]
        return " ".join([*kills, *(f"{at}.{alternative}" for at, alternative in self.taken)]) or "plain"


def parse(text: str) -> Schedule:
    """The schedule of a text.

    Raises:
        ValueError: it is none; says which word is wrong.
    """
    taken: list[tuple[int, int]] = []
    kills: dict[str, int] = {}
    for said in text.split():
        if said == "plain":
            continue
        name, at, step = said.rpartition("@")
        decision, dot, alternative = said.partition(".")
        if at and name and step.isdecimal():
            kills[name] = int(step)
        elif dot and decision.isdecimal() and alternative.isdecimal():
            taken.append((int(decision), int(alternative)))
        else:
            raise ValueError(f"{said!r} is neither TASK@STEP nor DECISION.ALTERNATIVE")
    return Schedule(tuple(sorted(taken)), kills)


class Replay:
    """The scheduler that does what a schedule says; a decision that no longer has the alternative is plain."""

    def __init__(self, schedule: Schedule) -> None:
        self._taken = dict(schedule.taken)

    def start(self, simulation: Simulation) -> None:
        """Nothing to prepare."""

    def task(self, simulation: Simulation, current: Task | None, runnable: list[Task]) -> Task:
        plain = current if current is not None else runnable[0]
        alternative = self._taken.get(simulation.decisions, 0) if len(runnable) > 1 else 0
        if not alternative:
            return plain
        others = [task for task in runnable if task is not plain]
        return others[alternative - 1] if alternative <= len(others) else plain

    def data(self, simulation: Simulation, count: int) -> int:
        alternative = self._taken.get(simulation.decisions, 0)
        return alternative if alternative < count else 0
