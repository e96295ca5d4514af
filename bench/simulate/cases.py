"""A world with a load, and one run of it."""

import math
from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.bench.simulate.assumptions import Assumptions
from nanokv.bench.simulate.queues import Collapsed, Gate, Operation, Queues, Station, Step

# --- the accesses of a put and a get, in their order, and who waits for what ------------------
# v2: the compiled code on the PTX machine waits 18 times for the owner or the key's home in a put, and 12 times in a
# get (docs/cost.md; a test compares the list below with what the machine sees). Words that several ranks change are
# stations:
#
# activity  of a producer in the owner's segment: entry and exit of each of its operations
# slots     one of the owner's free lists of header slots; extents: the same for pages
# ticket    the head of the owner's announce ring, an addition for each put
# state     the STATE word of an object, to which each reader adds 0; access: its ACCESS word
#
# A free list is a stack: a compare-and-swap that finds that another one came between reads the link and tries again.
# A load of a word waits behind the atomics that arrived before it: it sees what they have left. Words of the
# directory are spread over the buckets by a hash: they count as accesses, and nobody meets there. v1: the master is a
# station; the producer copies, commits and announces itself (`compat_v1/host_allocation.py`).
PUT_WAITS, GET_WAITS = 18, 12
MASTER: Station = ("master", 0, 0)


class Path(NamedTuple):
    """From a rank to memory of `there`.

    Attributes:
        half: the way there, in us, with its share of the work between two accesses; `back`: the way back.
        message: us that the NIC of `there` takes for a message; 0: no NIC is between.
        word: us between two atomics on one word.
        per_byte: us. `link`: whose ports the payload passes; "" : none.
    """

    here: int
    there: int
    half: float
    back: float
    message: float
    word: float
    per_byte: float
    link: str


class Steps:
    """Makes operations of a world.

    Args:
        chained: a magazine is filled by a chain that is taken whole, not by a walk from link to link.
        magazine: slots, and extents, that a producer takes at once; it keeps what it does not need yet.

    Attributes:
        lost: compare-and-swaps on free lists that had to be repeated.
    """

    def __init__(self, given: Assumptions, magazine: int = 1, chained: bool = False) -> None:
        self.given, self._magazine, self._chained = given, magazine, chained
        self._left: dict[Station, int] = {}
        self._version: defaultdict[Station, int] = defaultdict(int)
        self.lost = 0

    def path(self, here: int, there: int, work_us: float) -> Path:
        """How `here` reaches `there`. `work_us`: between two accesses of the operation."""
        a = self.given
        if here == there:
            return Path(here, there, work_us, 0, 0, a.word_ns / 1e3, 1e-3 / a.own_gbps, "")
        if here // a.node == there // a.node:
            half = a.nvlink_us / 2
            return Path(here, there, half + work_us, half, 0, a.word_ns / 1e3, 1e-3 / a.nvlink_gbps, "NVLink")
        half, message = a.nic_us / 2, a.nic_message_ns / 1e3
        return Path(here, there, half + work_us, half, message, a.nic_word_ns / 1e3, 1e-3 / a.nic_gbps, "NIC")

    # --- the operations ---
    def put(self, here: int, owner: int, home: int, shard: int, nbytes: int) -> Operation:
        """A put of v2 by `here` into the segment of `owner`; the key's entry is at `home`."""
        work = self.given.put_work_us / PUT_WAITS
        to, key = self.path(here, owner, work), self.path(here, home, work)
        activity, ticket = ("activity", owner, here), ("ticket", owner, 0)
        yield from _accesses(key, 1)  # a look at the directory
        yield from _atomic(to, activity)
        yield from self._take(to, "slots", shard)
        yield from _accesses(to, 1)  # the slot's header
        yield from _accesses(key, 4)  # tentative, turnstile, look, final
        yield from self._take(to, "extents", shard)
        yield from _accesses(to, 1)  # WRITING
        yield from _stream(to, nbytes, inwards=True)
        yield from _accesses(to, 1)  # READY
        yield from _atomic(to, ticket)
        yield from _accesses(to, 1)  # the hint
        yield from _atomic(to, activity)

    def get(self, here: int, owner: int, home: int, key: int, nbytes: int) -> Operation:
        """A get of v2 by `here`, from the copy at `owner`."""
        work = self.given.get_work_us / GET_WAITS
        to, directory = self.path(here, owner, work), self.path(here, home, work)
        yield from _accesses(directory, 2)  # a look, and the entry
        yield from _accesses(to, 6)  # STATE, key, place, pages, link, flags
        yield from _accesses(to, 1)  # asks for the payload
        yield from _stream(to, nbytes, inwards=False)
        yield from _atomic(to, ("state", owner, key))
        yield from _accesses(to, 1)
        yield from _atomic(to, ("access", owner, key))

    def put_by_master(self, here: int, owner: int, nbytes: int) -> Operation:
        """A put of v1: OPEN_FOR_WRITE, copy, commit, hint, COMMIT."""
        to = self.path(here, owner, self.given.put_work_us / PUT_WAITS)
        yield self._request()
        yield from _stream(to, nbytes, inwards=True)
        yield from _accesses(to, 1)
        yield from _atomic(to, ("ticket", owner, 0))
        yield from _accesses(to, 1)
        yield self._request()

    def get_by_master(self, here: int, owner: int, key: int, nbytes: int) -> Operation:
        """A get of v1: GET_LOCATION, copy, validate."""
        to = self.path(here, owner, self.given.get_work_us / GET_WAITS)
        yield self._request()
        yield from _accesses(to, 1)
        yield from _stream(to, nbytes, inwards=False)
        yield from _atomic(to, ("state", owner, key))

    # --- their parts ---
    def _request(self) -> Step:
        half = self.given.message_us / 2
        return half, MASTER, self.given.master_us, half

    def _take(self, to: Path, kind: str, shard: int) -> Operation:
        """Take a node from a free list, or from the producer's magazine."""
        mine: Station = (kind, to.here, to.there)
        if mine not in self._left:  # a run begins in the midst of things: magazines are filled to any level
            self._left[mine] = to.here * 40503 % self._magazine
        if self._left[mine] > 0:
            self._left[mine] -= 1
            return
        word: Station = (kind, to.there, shard)
        yield from _reach(to, word, 0)  # the head
        most, seen = self._magazine, self._version[word]
        while True:
            yield from _accesses(to, 1 if self._chained else most)  # the links
            yield from _reach(to, word, to.word)
            if self._version[word] == seen:
                break
            seen, self.lost = self._version[word], self.lost + 1
            most = (most + 1) // 2
        self._version[word] += 1
        self._left[mine] += most - 1


def _accesses(to: Path, count: int) -> Operation:
    """Accesses that wait for each other, to words at which nobody meets."""
    if to.message:
        for _ in range(count):
            yield to.half, ("NIC messages", to.there, 0), to.message, to.back
    else:
        yield count * (to.half + to.back), None, 0, 0


def _reach(to: Path, word: Station, service: float) -> Operation:
    """An access to a word at which operations meet."""
    if to.message:
        yield to.half, ("NIC messages", to.there, 0), to.message, 0
        yield 0, word, service, to.back
    else:
        yield to.half, word, service, to.back


def _atomic(to: Path, word: Station) -> Operation:
    return _reach(to, word, to.word)


def _stream(to: Path, nbytes: int, *, inwards: bool) -> Generator[Step, None, None]:
    """The payload, through the port of its source and then through that of its destination; they overlap."""
    takes = nbytes * to.per_byte
    if not to.link:
        yield takes, None, 0, 0
        return
    source, destination = (to.here, to.there) if inwards else (to.there, to.here)
    yield 0, (f"{to.link} out", source, 0), takes, -takes
    yield to.back, (f"{to.link} in", destination, 0), takes, 0


# --- the cases --------------------------------------------------------------------------------
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
class SimulationResult:
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


def run(
    case: Case, given: Assumptions, load: float, count: int, seed: int, hopeless: float | None = None
) -> SimulationResult:
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
        return SimulationResult(load, np.inf, np.inf, np.inf, steps.lost / count, "no end", np.inf, True)
    took = np.sort((ends - arrivals)[int(WARM_UP * count) :])
    p50, p99, p999 = (float(took[min(int(share * len(took)), len(took) - 1)]) for share in (0.5, 0.99, 0.999))
    span = float(arrivals[-1])
    uses = {each: us / span for each, us in queues.busy.items()}
    uses["CTAs", 0, 0] = queues.in_flight / span / case.ranks / given.ctas
    busiest = max(uses, key=lambda each: uses[each])
    overload = any(use > 1 + DOUBT / math.sqrt(queues.visits.get(each, count)) for each, use in uses.items())
    return SimulationResult(load, p50, p99, p999, steps.lost / count, busiest[0], uses[busiest], overload)


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
