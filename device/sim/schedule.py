"""A schedule by name: where tasks are killed, and the decisions in which the plain alternative was not taken.

As text: `producer@37 12.1 45.2`. The task `producer` is killed after 37 steps; decision 12 takes the first alternative
to the plain one, decision 45 the second. All other decisions are plain. `parse(str(schedule)) == schedule`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from nanokv.device.sim.simulation import Simulation, Task


@dataclass(frozen=True)
class Schedule:
    """One execution, given its tasks and the first words of memory. It decides that execution (`Decider`)."""

    taken: tuple[tuple[int, int], ...] = ()  #: (decision, alternative), ascending
    kills: dict[str, int] = field(default_factory=dict)  #: task -> steps that it does

    def __str__(self) -> str:
        kills = [f"{name}@{step}" for name, step in sorted(self.kills.items())]
        return " ".join([*kills, *(f"{at}.{alternative}" for at, alternative in self.taken)]) or "plain"

    @cached_property
    def _alternatives(self) -> dict[int, int]:
        return dict(self.taken)

    def moved(self, reach: int) -> Iterator["Schedule"]:
        """This one, and those in which from some decision on all come earlier or later, by at most `reach`.

        After a change of the code one of them often does what this one did.
        """
        yield self
        for first in range(len(self.taken)):
            before, later = self.taken[:first], self.taken[first:]
            least = before[-1][0] + 1 if before else 0
            for by in range(max(-reach, least - later[0][0]), reach + 1):
                if by:
                    yield Schedule((*before, *((at + by, other) for at, other in later)), self.kills)

    def start(self, simulation: Simulation) -> None:
        """Nothing to prepare."""

    def task(self, simulation: Simulation, current: Task | None, runnable: list[Task]) -> Task:
        """The task that was chosen. A decision that no longer has the alternative is plain."""
        plain = current if current is not None else runnable[0]
        alternative = self._alternatives.get(simulation.decisions, 0) if len(runnable) > 1 else 0
        if not alternative:
            return plain
        others = [task for task in runnable if task is not plain]
        return others[alternative - 1] if alternative <= len(others) else plain

    def data(self, simulation: Simulation, count: int) -> int:
        """The outcome that was chosen; 0 where there are fewer outcomes now."""
        alternative = self._alternatives.get(simulation.decisions, 0)
        return alternative if alternative < count else 0


def parse(text: str) -> Schedule:
    """The schedule of a text.

    Raises:
        ValueError: the text is none; the message names the wrong word.
    """
    taken: list[tuple[int, int]] = []
    kills: dict[str, int] = {}
    for part in text.split():
        if part == "plain":
            continue
        name, at, step = part.rpartition("@")
        decision, dot, alternative = part.partition(".")
        if at and name and step.isdecimal():
            kills[name] = int(step)
        elif dot and decision.isdecimal() and alternative.isdecimal():
            taken.append((int(decision), int(alternative)))
        else:
            raise ValueError(f"{part!r} is neither TASK@STEP nor DECISION.ALTERNATIVE")
    return Schedule(tuple(sorted(taken)), kills)
