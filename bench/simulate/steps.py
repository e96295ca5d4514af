"""The accesses of a put and a get, in their order, and who waits for what.

v2: the compiled code on the PTX machine waits 18 times for the owner or the key's home in a put, and 12 times in a get
(docs/cost.md; a test compares the list below with what the machine sees). Words that several ranks change are stations:

    activity  of a producer in the owner's segment: entry and exit of each of its operations
    slots     one of the owner's free lists of header slots; extents: the same for pages
    ticket    the head of the owner's announce ring, an addition for each put
    state     the STATE word of an object, to which each reader adds 0; access: its ACCESS word

A free list is a stack: a compare-and-swap that finds that another one came between reads the link and tries again.
A load of a word waits behind the atomics that arrived before it: it sees what they have left. Words of the directory
are spread over the buckets by a hash: they count as accesses, and nobody meets there.
v1: the master is a station; the producer copies, commits and announces itself (`compat_v1/host_allocation.py`).
"""

from collections import defaultdict
from collections.abc import Generator
from typing import NamedTuple

from nanokv.bench.simulate.assumptions import Assumptions
from nanokv.bench.simulate.queues import Operation, Station, Step

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
