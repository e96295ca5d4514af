"""A world with a load, and one run of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.bench.simulate.assumptions import Assumptions
from nanokv.bench.simulate.queues import Collapsed, Gate, Operation, Queues
from nanokv.bench.simulate.steps import Steps

DOUBT = 3.0  #: standard deviations of a number of arrivals
WARM_UP = 0.2  #: of the operations, which are simulated and do not count
Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Case:
    """A world and what is done in it. Operations come from all ranks alike, at random times (Poisson).

    Attributes:
        design: "v2", or "v1": with a master.
        do: all operations are that.
        owners: of puts: how many ranks, evenly spaced, get the objects; 0: all. 1 is a hot owner.
        magazine, chained: see `Steps`.
        copies: of the hottest keys, the first one included; 0: one in each segment.
        spread: copies lie evenly spaced over the ranks, not in the segments next to the owner's.
    """

    design: Literal["v1", "v2"] = "v2"
    do: Literal["put", "get"] = "put"
    ranks: int = 64
    nbytes: int = 4096
    owners: int = 0
    magazine: int = 1
    chained: int = 0
    copies: int = 1
    spread: int = 0

    def check(self) -> None:
        """Raises ValueError: there can be no such world."""
        if self.design not in ("v1", "v2") or self.do not in ("put", "get"):
            raise ValueError(f"design is v1 or v2 and do is put or get, not {self.design!r} and {self.do!r}")
        if self.ranks < 1 or self.nbytes < 0 or self.magazine < 1:
            raise ValueError(f"a case needs ranks and a magazine of at least 1 and no negative nbytes: {self}")
        if not (0 <= self.owners <= self.ranks and 0 <= self.copies <= self.ranks):
            raise ValueError(
                f"owners and copies must be 0 to {self.ranks}, the ranks, not {self.owners}, {self.copies}"
            )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run found.

    Attributes:
        load: operations a second, of all ranks.
        p50, p99, p999: us from arrival to end; each is one operation's, infinite if they kept each other from ending.
        lost: compare-and-swaps that were repeated, per operation.
        busiest: the kind of station that had most to do, or "CTAs" if they had.
        use: what arrived for it, as a share of the time that it had.
        overload: True if more arrived for it than it could serve, beyond the doubt that chance leaves.
    """

    load: float
    p50: float
    p99: float
    p999: float
    lost: float
    busiest: str
    use: float
    overload: bool


class Drawn(NamedTuple):
    """What chance decided."""

    gaps: npt.NDArray[np.float64]  #: between arrivals, of mean 1
    here: Array
    owner: Array
    home: Array
    shard: Array
    key: Array


def drawn(case: Case, given: Assumptions, count: int, seed: int) -> Drawn:
    """Draw `count` operations; the same for the same arguments."""
    rng = np.random.default_rng(seed)
    gaps, here = rng.exponential(1.0, count), rng.integers(case.ranks, size=count)
    shard, home = rng.integers(given.lists, size=count), rng.integers(case.ranks, size=count)
    key = np.zeros(count, np.int64)
    owners = case.owners or case.ranks
    owner = rng.integers(owners, size=count) * case.ranks // owners
    if case.do == "get":
        shares = np.arange(1, given.keys + 1, dtype=np.float64) ** -given.zipf
        key = np.searchsorted(np.cumsum(shares), rng.random(count) * shares.sum()).clip(0, given.keys - 1)
        places = rng.integers(case.ranks, size=(2, given.keys))
        owner, home = places[0][key], places[1][key]
        nearest = [
            _nearest(case, given, *each) for each in zip(here.tolist(), owner.tolist(), key.tolist(), strict=True)
        ]
        owner = np.array(nearest, np.int64)
    return Drawn(gaps, here, owner, home, shard, key)


def _nearest(case: Case, given: Assumptions, here: int, owner: int, key: int) -> int:
    """The copy that a reader takes: its own, one behind NVLink, or else that of the next rank after its own."""
    copies = case.copies or case.ranks
    if copies == 1 or key >= given.copied_keys:
        return owner
    if copies == case.ranks:
        return here
    gap = case.ranks // copies if case.spread else 1
    places = [(owner + i * gap) % case.ranks for i in range(copies)]
    return min(places, key=lambda at: (at != here, at // given.node != here // given.node, (at - here) % case.ranks))


def run(case: Case, given: Assumptions, load: float, count: int, seed: int, hopeless: float | None = None) -> Outcome:
    """Simulate `count` operations at `load` a second. A run whose p99 will pass `hopeless` us ends early.

    Raises:
        ValueError: `case` cannot be, or `load` or `count` is not positive.
    """
    case.check()
    if not (load > 0 and count > 0):
        raise ValueError(f"a run needs a positive load and count, not {load} and {count}")
    chance, queues = drawn(case, given, count, seed), Queues()
    steps = Steps(given, case.magazine, bool(case.chained))
    arrivals = np.cumsum(chance.gaps) * (1e6 / load)
    gate = Gate(chance.here.tolist(), given.ctas)
    try:
        ends = np.array(queues.run(arrivals.tolist(), _beginning(case, steps, chance), gate, hopeless))
    except Collapsed:
        return Outcome(load, np.inf, np.inf, np.inf, steps.lost / count, "no end", np.inf, True)
    took = np.sort((ends - arrivals)[int(WARM_UP * count) :])
    p50, p99, p999 = (float(took[min(int(share * len(took)), len(took) - 1)]) for share in (0.5, 0.99, 0.999))
    span = float(arrivals[-1])
    uses = {each: us / span for each, us in queues.busy.items()}
    uses["CTAs", 0, 0] = queues.in_flight / span / case.ranks / given.ctas
    busiest = max(uses, key=lambda each: uses[each])
    overload = any(use > 1 + DOUBT / math.sqrt(queues.visits.get(each, count)) for each, use in uses.items())
    return Outcome(load, p50, p99, p999, steps.lost / count, busiest[0], uses[busiest], overload)


def _beginning(case: Case, steps: Steps, chance: Drawn) -> Callable[[int], Operation]:
    """What makes the steps of the i-th operation."""
    rows = list(zip(*(column.tolist() for column in chance[1:]), strict=True))

    def begin(i: int) -> Operation:
        here, owner, home, shard, key = rows[i]
        if case.design == "v1":
            if case.do == "put":
                return steps.put_by_master(here, owner, case.nbytes)
            return steps.get_by_master(here, owner, key, case.nbytes)
        if case.do == "put":
            return steps.put(here, owner, home, shard, case.nbytes)
        return steps.get(here, owner, home, key, case.nbytes)

    return begin
