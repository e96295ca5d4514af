"""The questions: which worlds are compared, where each saturates, and what p99 is at the same load."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from nanokv.bench.simulate.assumptions import Assumptions, changed
from nanokv.bench.simulate.cases import Case, SimulationResult, run

BLOCK, SMALL = 2 << 20, 4096  #: bytes of an object: a block of KV, and one whose bytes hardly matter
FAST_MASTER = ("master_us=10", "message_us=10")
IDLE = 10.0  #: operations a second in an idle world
SHARES = (0.5, 0.9)  #: of the load at which the first row saturates
HIGHEST = 1e12  #: where the search ends in a world without costs
BISECTIONS = 6
DRAWN = (0.05, 0.2, 0.4, 0.6, 0.8)  #: of the load at which a row saturates: further points of its curve
HOPELESS = 3.0  #: times the limit: no run needs to find out how much higher p99 rises
LASTS = 20.0  #: times as long as an operation takes when nothing else happens: at least so long is a run
MOST = 12  #: times as many operations as asked for, at most, where many are in flight at once
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SimulatedWorld:
    """One world of a question; its settings change assumptions."""

    label: str
    case: Case
    settings: tuple[str, ...] = ()


class Question(NamedTuple):
    """What is asked, and the rows for a number of ranks; the first one is what the others are compared with."""

    name: str
    asks: str
    rows: Callable[[int], list[SimulatedWorld]]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to simulate: operations of a run, and where chance begins."""

    operations: int = 5_000
    seed: int = 1


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """What was simulated of one row.

    Attributes:
        idle: the world with next to nothing to do.
        saturates: the highest load, in operations a second of all ranks, with which the world keeps up.
        at_least: True if it kept up with every load that could be simulated.
        last: the run at that load.
        curve: all runs, by load.
        common: runs at SHARES of the load at which the question's first row saturates.
    """

    row: SimulatedWorld
    idle: SimulationResult
    saturates: float
    at_least: bool
    last: SimulationResult
    curve: list[SimulationResult]
    common: list[SimulationResult]


def _master(ranks: int) -> list[SimulatedWorld]:
    case = Case(ranks=ranks, nbytes=BLOCK)
    return [
        SimulatedWorld("v1", replace(case, design="v1")),
        SimulatedWorld("v1, master of 10 µs", replace(case, design="v1"), FAST_MASTER),
        SimulatedWorld("v2", case),
    ]


def _hot_owner(ranks: int) -> list[SimulatedWorld]:
    return [
        SimulatedWorld("one owner, 2 MiB", Case(ranks=ranks, nbytes=BLOCK, owners=1)),
        SimulatedWorld("one owner, 4 KiB", Case(ranks=ranks, nbytes=SMALL, owners=1)),
    ]


def _magazines(ranks: int) -> list[SimulatedWorld]:
    case = Case(ranks=ranks, nbytes=SMALL, owners=1)
    rows = [SimulatedWorld("one at a time", case)]
    rows += [SimulatedWorld(f"{each} by a walk", replace(case, magazine=each)) for each in (4, 16)]
    rows += [SimulatedWorld(f"{each} as a chain", replace(case, magazine=each, chained=1)) for each in (4, 16)]
    return rows


def _replicas(ranks: int) -> list[SimulatedWorld]:
    case, few = Case(do="get", ranks=ranks, nbytes=BLOCK), min(8, max(ranks // 4, 1))
    rows = [SimulatedWorld("one copy", case)]
    if 1 < few < ranks:
        rows.append(SimulatedWorld(f"{few} copies, next to it", replace(case, copies=few)))
        rows.append(SimulatedWorld(f"{few} copies, spread", replace(case, copies=few, spread=1)))
    return [*rows, SimulatedWorld("a copy everywhere", replace(case, copies=0))]


def _sharding(ranks: int) -> list[SimulatedWorld]:
    case = Case(ranks=ranks, nbytes=BLOCK)
    counts = [count for count in (1, 2, 4, 8) if count <= ranks]
    return [
        SimulatedWorld("one owner" if count == 1 else f"{count} owners", replace(case, owners=count))
        for count in counts
    ]


QUESTIONS = (
    Question("master", "At which load of puts of 2 MiB does v1's master saturate, and v2?", _master),
    Question("hot-owner", "All ranks put into one segment: at which load does its owner saturate?", _hot_owner),
    Question("magazines", "Puts of 4 KiB into one segment: what if producers take several slots at once?", _magazines),
    Question("replicas", "Gets of 2 MiB, hot keys: what do copies of the 64 hottest do?", _replicas),
    Question("sharding", "Puts of 2 MiB: what if the keys are spread over several owners?", _sharding),
)


def answer(
    rows: Sequence[SimulatedWorld], given: Assumptions, effort: Effort, say: Say = lambda _: None
) -> Iterator[RowAnswer]:
    """Answer for each row.

    Raises:
        ValueError: a case or a setting that cannot be.
    """
    common: list[float] = []
    for row in rows:
        row.case.check()
        say(f"{row.case.ranks} ranks: {row.label}")
        search = Search(row, changed(given, row.settings), effort)
        found = search.answer()
        common = common or [share * found.saturates for share in SHARES]
        yield replace(found, common=[search.run(load, endless=True) for load in common])


class Search:
    """Finds the load at which a row's world saturates."""

    def __init__(self, row: SimulatedWorld, given: Assumptions, effort: Effort) -> None:
        self._row, self._given, self._effort = row, given, effort
        self._idle = run(row.case, given, IDLE, effort.operations, effort.seed)
        self._limit = given.limit * self._idle.p50
        self._curve = [self._idle]

    def _count(self, load: float) -> int:
        """How many operations to simulate: the run lasts LASTS times as long as one of them."""
        return max(self._effort.operations, math.ceil(LASTS * load * self._idle.p50 / 1e6))

    def run(self, load: float, *, endless: bool = False) -> SimulationResult:
        """One run. `endless`: also if it is hopeless."""
        count = min(self._count(load), MOST * self._effort.operations)
        hopeless = None if endless else HOPELESS * self._limit
        return run(self._row.case, self._given, load, count, self._effort.seed, hopeless)

    def _holds(self, load: float) -> bool:
        """Whether the world keeps up. A load that has too many operations in flight to simulate does not count."""
        if self._count(load) > MOST * self._effort.operations:
            return False
        self._curve.append(self.run(load))
        return self._keeps_up(self._curve[-1])

    def _keeps_up(self, outcome: SimulationResult) -> bool:
        return outcome.p99 <= self._limit and not outcome.overload

    def answer(self) -> RowAnswer:
        """Search by halves, on a logarithmic scale; `common` is empty."""
        high = 1.25 * IDLE / max(self._idle.use, 1e-9)  # its busiest station would have more to do than there is time
        low = high / 20
        while high < HIGHEST and self._holds(high):
            low, high = high, 4 * high
        while low > IDLE and not self._holds(low):
            low, high = max(low / 8, IDLE), low
        for _ in range(BISECTIONS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._holds(middle) else (low, middle)
        self._curve += [self.run(share * low) for share in DRAWN]
        self._curve.sort(key=lambda each: each.load)
        last = next((each for each in self._curve if each.load == low), self._idle)
        at_least = all(self._keeps_up(each) for each in self._curve)
        return RowAnswer(self._row, self._idle, low, at_least, last, self._curve, [])
