"""The questions: which worlds are compared, where each saturates, and what p99 is at the same load."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from nanokv.bench.simulate.assumptions import Assumptions, changed
from nanokv.bench.simulate.cases import Case, Outcome, run

BLOCK, SMALL = 2 << 20, 4096  #: bytes of an object: a block of KV, and one whose bytes hardly matter
FAST_MASTER = ("master_us=10", "message_us=10")
IDLE = 10.0  #: operations a second in an idle world
SHARES = (0.5, 0.9)  #: of the load at which the first row saturates
BISECTIONS = 7
MOST = 12  #: times as many operations as asked for, at most, where many are in flight at once
Say = Callable[[str], None]


class Row(NamedTuple):
    """One world of a question; its settings change assumptions."""

    label: str
    case: Case
    settings: tuple[str, ...] = ()


class Question(NamedTuple):
    """What is asked, and the rows for a number of ranks; the first one is what the others are compared with."""

    name: str
    asks: str
    rows: Callable[[int], list[Row]]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to simulate: operations of a run, and where chance begins."""

    operations: int = 12_000
    seed: int = 1


class Answer(NamedTuple):
    """Of one row.

    Attributes:
        idle: the world with next to nothing to do.
        saturates: the load, in operations a second of all ranks, above which p99 passes the limit.
        at_least: True if it passed it at no load that could be simulated: `saturates` is the highest of those.
        last: the run at that load; its busiest station is what limits.
        curve: all runs, by load.
        common: runs at SHARES of the load at which the question's first row saturates.
    """

    row: Row
    idle: Outcome
    saturates: float
    at_least: bool
    last: Outcome
    curve: list[Outcome]
    common: list[Outcome]


def _master(ranks: int) -> list[Row]:
    case = Case(ranks=ranks, nbytes=BLOCK)
    return [
        Row("v1", replace(case, design="v1")),
        Row("v1, master of 10 µs", replace(case, design="v1"), FAST_MASTER),
        Row("v2", case),
    ]


def _hot_owner(ranks: int) -> list[Row]:
    return [
        Row("one owner, 2 MiB", Case(ranks=ranks, nbytes=BLOCK, owners=1)),
        Row("one owner, 4 KiB", Case(ranks=ranks, nbytes=SMALL, owners=1)),
        Row("all own alike, 2 MiB", Case(ranks=ranks, nbytes=BLOCK)),
    ]


def _magazines(ranks: int) -> list[Row]:
    case = Case(ranks=ranks, nbytes=SMALL, owners=1)
    rows = [Row("one at a time", case)]
    rows += [Row(f"{each} by a walk", replace(case, magazine=each)) for each in (4, 16)]
    rows += [Row(f"{each} as a chain", replace(case, magazine=each, chained=1)) for each in (4, 16)]
    return rows


def _replicas(ranks: int) -> list[Row]:
    case, few = Case(do="get", ranks=ranks, nbytes=BLOCK), min(8, max(ranks // 4, 1))
    rows = [Row("one copy", case)]
    if 1 < few < ranks:
        rows.append(Row(f"{few} copies, side by side", replace(case, copies=few)))
        rows.append(Row(f"{few} copies, spread", replace(case, copies=few, spread=1)))
    return [*rows, Row("a copy in each segment", replace(case, copies=0))]


def _sharding(ranks: int) -> list[Row]:
    case = Case(ranks=ranks, nbytes=BLOCK)
    counts = [count for count in (1, 2, 4, 8) if count <= ranks]
    return [Row("one owner" if count == 1 else f"{count} owners", replace(case, owners=count)) for count in counts]


QUESTIONS = (
    Question("master", "At which load of puts of 2 MiB does v1's master saturate, and v2?", _master),
    Question("hot-owner", "All ranks put into one segment: at which load does its owner saturate?", _hot_owner),
    Question("magazines", "Puts of 4 KiB into one segment: what if producers take several slots at once?", _magazines),
    Question("replicas", "Gets of 2 MiB, hot keys: what do copies of the 64 hottest do?", _replicas),
    Question("sharding", "Puts of 2 MiB: what if the keys are spread over several owners?", _sharding),
)


def answer(rows: Sequence[Row], given: Assumptions, effort: Effort, say: Say = lambda _: None) -> Iterator[Answer]:
    """Answer for each row.

    Raises:
        ValueError: a case or a setting that cannot be.
    """
    common: list[float] = []
    for row in rows:
        say(f"{row.case.ranks} ranks: {row.label}")
        assumed: Assumptions = changed(given, row.settings)
        found = _saturation(row, assumed, effort)
        common = common or [share * found.saturates for share in SHARES]
        yield found._replace(common=[run(row.case, assumed, load, effort.operations, effort.seed) for load in common])


def _saturation(row: Row, given: Assumptions, effort: Effort) -> Answer:
    idle = run(row.case, given, IDLE, effort.operations, effort.seed)
    curve, limit = [idle], given.limit * idle.p50

    def holds(load: float) -> bool | None:
        """Whether p99 keeps the limit; None: there would be too many operations in flight to simulate."""
        count = math.ceil(10 * load * idle.p50 / 1e6)  # so that the run lasts ten times as long as an operation
        if count > MOST * effort.operations:
            return None
        curve.append(run(row.case, given, load, max(count, effort.operations), effort.seed))
        return curve[-1].p99 <= limit

    high = IDLE / idle.use * 2  # its busiest station would be busy twice as long as there is time
    low, top = high / 100, holds(high)
    while top and (low := high):
        high *= 4
        top = holds(high)
    while not holds(low) and low > IDLE:
        low, high = max(low / 10, IDLE), low
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        if holds(middle):
            low = middle
        else:
            high = middle
    curve.sort()
    last = next(each for each in curve if each.load == low)
    at_least = all(each.p99 <= limit for each in curve)
    return Answer(row, idle, low, at_least, last, curve, [])
