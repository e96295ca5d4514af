"""All executions that differ: dynamic partial-order reduction with sleep sets.

Two executions that differ only in the order of accesses that do not touch each other end alike; one of them is enough.
Source: Flanagan and Godefroid (2005). After each execution its races are found with vector clocks (two accesses to one
word, at least one of them a write, not ordered by others): the later task is tried first at the earlier access. Sleep
sets (Godefroid 1996) cut off what was tried already. Choices of memory (`Scheduler.data`) are all tried.
"""

from dataclasses import dataclass, field

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
        clocks: dict[int, dict[int, int]] = {}
        accesses: dict[int, list[tuple[int, int, str, dict[int, int], _Node]]] = {}
        for node in self._path[: self._depth]:
            if node.count:
                continue
            who = node.chosen
            kind, address = node.enabled[who]
            clock = clocks.setdefault(who, {})
            before = accesses.setdefault(address, []) if address else []
            raced = False
            joined = dict(clock)
            for other, when, what, seen, at in reversed(before):
                if what == kind == LOAD:
                    continue
                if other != who and clock.get(other, 0) < when and not raced:
                    at.wanted.add(who)
                    raced = True
                for task, count in seen.items():
                    joined[task] = max(joined.get(task, 0), count)
            joined[who] = clock.get(who, 0) + 1
            clocks[who] = joined
            before.append((who, joined[who], kind, joined, node))
