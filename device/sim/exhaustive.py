"""All executions that differ: dynamic partial-order reduction with source sets and sleep sets.

Two executions that differ only in the order of accesses that do not touch each other end alike, so one of them is
enough. Source: source-DPOR (Abdulla et al. 2014). After each execution its races are found with vector clocks (two
accesses to one word, at least one of them a write, not ordered by others). For each race, the scheduler tries at the
earlier access a task that can bring the later one before it. Sleep sets (Godefroid 1996) cut off what was tried
already. All outcomes of memory (`Decider.data`) are tried.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Self

from nanokv.device.sim.simulation import LOAD, Simulation, Task

Access = tuple[str, int]  #: (kind, address)


class Redundant(Exception):
    """An equal of this execution was tried already."""


@dataclass
class _Node:
    """One decision of an execution: about a task (`enabled`), or about memory (`count`)."""

    chosen: int
    count: int = 0
    enabled: dict[int, Access] = field(default_factory=dict)  #: the next access of each task
    wanted: set[int] = field(default_factory=set)
    tried: set[int] = field(default_factory=set)
    sleep: dict[int, Access] = field(default_factory=dict)


def _depends(one: Access, other: Access) -> bool:
    return one[1] == other[1] != 0 and not (one[0] == other[0] == LOAD)


class Exhaustive:
    """The scheduler that tries all executions that differ. `Simulation.run` raises Redundant for one that does not."""

    def __init__(self) -> None:
        self.kills: dict[str, int] = {}
        self.executions = 0  #: begun so far, those that turned out to be redundant included
        self._path: list[_Node] = []
        self._depth = 0

    def new_execution(self) -> Self | None:
        if self.executions and not self._turn_back():
            return None
        self.executions += 1
        return self

    def _turn_back(self) -> bool:
        """Change the last decision that has an alternative left; False if there is none."""
        self._find_races()
        while self._path:
            node = self._path[-1]
            node.tried.add(node.chosen)
            if node.count:
                left = [at for at in range(node.count) if at not in node.tried]
            else:
                left = sorted(node.wanted - node.tried - node.sleep.keys())
            if left:
                node.chosen = left[0]
                return True
            self._path.pop()
        return False

    def start(self, simulation: Simulation) -> None:
        self._depth = 0
        self._numbers = {id(task): number for number, task in enumerate(simulation.tasks)}

    def data(self, simulation: Simulation, count: int) -> int:
        if self._depth == len(self._path):
            self._path.append(_Node(0, count))
        node = self._path[self._depth]
        self._depth += 1
        return node.chosen

    def task(self, simulation: Simulation, current: Task | None, runnable: list[Task]) -> Task:
        number = self._numbers
        enabled = {number[id(task)]: (task.kind, task.address) for task in runnable}
        if self._depth == len(self._path):
            sleep = self._sleep_after()
            awake = [task for task in enabled if task not in sleep]
            if not awake:
                raise Redundant
            mine = number[id(current)] if current is not None else -1
            chosen = mine if mine in awake else awake[0]
            self._path.append(_Node(chosen, 0, enabled, {chosen}, set(), sleep))
        node = self._path[self._depth]
        node.enabled = enabled
        self._depth += 1
        return simulation.tasks[node.chosen]

    def _sleep_after(self) -> dict[int, Access]:
        """The sleep set after the last decision about a task: tasks that wait for an access that theirs depends on."""
        node = next((node for node in reversed(self._path) if not node.count), None)
        if node is None:
            return {}
        done = node.enabled[node.chosen]
        asleep = node.sleep | {task: node.enabled[task] for task in node.tried if task != node.chosen}
        return {task: access for task, access in asleep.items() if not _depends(access, done) and task != node.chosen}

    def _find_races(self) -> None:
        """Have, for each race, a task tried at its first access that can bring the second one before it."""
        events: list[_Event] = []
        for node in self._path[: self._depth]:
            if not node.count:
                raced = _follow(events, node)
                for first in raced:
                    instead = _initials(events, first)
                    if not instead & events[first].node.wanted:
                        events[first].node.wanted.add(min(instead))


class _Event(NamedTuple):
    """One step of an execution. `clock`: task -> how many of its steps come before this one, or are it."""

    task: int
    when: int
    access: Access
    clock: dict[int, int]
    node: _Node

    def follows(self, other: "_Event") -> bool:
        return self.clock.get(other.task, 0) >= other.when


def _follow(events: list[_Event], node: _Node) -> list[int]:
    """Append the step of a node; returns the numbers of the earlier steps that it races with."""
    task, access = node.chosen, node.enabled[node.chosen]
    clock = next((dict(event.clock) for event in reversed(events) if event.task == task), {})
    raced = []
    for number in range(len(events) - 1, -1, -1):
        event = events[number]
        if event.task != task and _depends(event.access, access):
            if clock.get(event.task, 0) < event.when:
                raced.append(number)
            for other, count in event.clock.items():
                clock[other] = max(clock.get(other, 0), count)
    clock[task] = clock.get(task, 0) + 1
    events.append(_Event(task, clock[task], access, clock, node))
    return raced


def _initials(events: list[_Event], first: int) -> set[int]:
    """The tasks that can begin the steps after `first` that do not follow it, up to the last step."""
    without: list[_Event] = []
    found: set[int] = set()
    for event in [*(event for event in events[first + 1 : -1] if not event.follows(events[first])), events[-1]]:
        if not any(event.follows(earlier) for earlier in without):
            found.add(event.task)
        without.append(event)
    return found
