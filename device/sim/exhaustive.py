"""All executions that differ: dynamic partial-order reduction with source sets and sleep sets.

Two executions that differ only in the order of accesses that do not touch each other end alike; one of them is enough.
Source: source-DPOR (Abdulla et al. 2014). After each execution its races are found with vector clocks (two accesses to
one word, at least one of them a write, not ordered by others). For each, somebody is tried at the earlier
access who can bring the later one before it. Sleep sets (Godefroid 1996) cut off what was tried already. Choices of
memory (`Scheduler.data`) are all tried.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from nanokv.device.sim.simulation import LOAD, Simulation, Task

Access = tuple[str, int]


class Redundant(Exception):
    """This execution has an equal that was tried."""


@dataclass
class _Node:
    """One decision on the way: of a task (`enabled`), or of memory (`count`)."""

    chosen: int
    count: int = 0
    enabled: dict[int, Access] = field(default_factory=dict)  #: what each task does next
    wanted: set[int] = field(default_factory=set)
    tried: set[int] = field(default_factory=set)
    sleep: dict[int, Access] = field(default_factory=dict)


def _depends(one: Access, other: Access) -> bool:
    return one[1] == other[1] != 0 and not (one[0] == other[0] == LOAD)


class Exhaustive:
    """Drives executions until none is left: `while explorer.more(): run one with it`."""

    name = "exhaustive"

    def __init__(self) -> None:
        self._path: list[_Node] = []
        self._depth = 0
        self._begun = False
        self.executions = 0
        self.redundant = 0

    def more(self) -> bool:
        """Prepare the next execution; False when all were tried."""
        if not self._begun:
            self._begun = True
            return True
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
        self.executions += 1
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
            awake = [who for who in enabled if who not in sleep]
            if not awake:
                self.redundant += 1
                raise Redundant
            mine = number[id(current)] if current is not None else -1
            chosen = mine if mine in awake else awake[0]
            self._path.append(_Node(chosen, 0, enabled, {chosen}, set(), sleep))
        node = self._path[self._depth]
        node.enabled = enabled
        self._depth += 1
        return simulation.tasks[node.chosen]

    def _sleep_after(self) -> dict[int, Access]:
        """The sleep set that the last decision of a task leaves: who need not run before something it depends on."""
        node = next((node for node in reversed(self._path) if not node.count), None)
        if node is None:
            return {}
        done = node.enabled[node.chosen]
        asleep = node.sleep | {who: node.enabled[who] for who in node.tried if who != node.chosen}
        return {who: access for who, access in asleep.items() if not _depends(access, done) and who != node.chosen}

    def _find_races(self) -> None:
        """For each race, let somebody be tried at its first access who can bring the second one before it."""
        events: list[_Event] = []
        for node in self._path[: self._depth]:
            if not node.count:
                raced = _follow(events, node)
                for first in raced:
                    instead = _initials(events, first)
                    if not instead & events[first].node.wanted:
                        events[first].node.wanted.add(min(instead))


class _Event(NamedTuple):
    """One step of an execution. `clock`: of each task, how many of its steps come before or are this one."""

    who: int
    when: int
    access: Access
    clock: dict[int, int]
    node: _Node

    def follows(self, other: "_Event") -> bool:
        return self.clock.get(other.who, 0) >= other.when


def _follow(events: list[_Event], node: _Node) -> list[int]:
    """Append the step of a node; returns the numbers of the earlier steps that it races with."""
    who, access = node.chosen, node.enabled[node.chosen]
    clock = next((dict(event.clock) for event in reversed(events) if event.who == who), {})
    raced = []
    for number in range(len(events) - 1, -1, -1):
        event = events[number]
        if event.who != who and _depends(event.access, access):
            if clock.get(event.who, 0) < event.when:
                raced.append(number)
            for task, count in event.clock.items():
                clock[task] = max(clock.get(task, 0), count)
    clock[who] = clock.get(who, 0) + 1
    events.append(_Event(who, clock[who], access, clock, node))
    return raced


def _initials(events: list[_Event], first: int) -> set[int]:
    """Who can begin what comes after the step `first` without it, up to the last step."""
    without: list[_Event] = []
    found: set[int] = set()
    for event in [*(event for event in events[first + 1 : -1] if not event.follows(events[first])), events[-1]]:
        if not any(event.follows(earlier) for earlier in without):
            found.add(event.who)
        without.append(event)
    return found
