"""Allocation in compiled code, by one thread and by two that share a segment: the free list, and a whole extent.

`free list`: a pop and a push of `protocol.freelist`, on one list, whose head the threads share. `extent`:
`protocol.extent.take` and `give`, which put and remove call: the lists of its size class, the marks in the page's link,
and everything that they check. A segment with one list, and a segment per thread, show what sharing costs.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np
import triton
import triton.language as tl

from nanokv.bench.suite.figure import Case, Figure
from nanokv.bench.suite.parallel import ParallelRuns, run_together
from nanokv.bench.suite.question import Question, Run
from nanokv.cache.engine import plan_geometry
from nanokv.config import Options
from nanokv.device.machines.native_code import native_function
from nanokv.device.memory.triton import word
from nanokv.device.protocol.extent import give, take
from nanokv.device.protocol.freelist import pop, push
from nanokv.device.protocol.reclaim import walk_pages
from nanokv.device.protocol.shards import home_for
from nanokv.device.segment.layout import HEAP_CTL, LOW32, WORD_BYTES
from nanokv.device.segment.record import LINE
from nanokv.device.segment.world_table import World, segment

NODES = 1024  #: of the free list; and free extents of the segment
PAGE_BYTES = 256 << 10
THREADS = (1, 2)
COUNT = tl.constexpr(LINE)  # from the head to the word that counts lost compare-and-swaps
# mypy: disallow-untyped-decorators=false


@triton.jit
def push_all(head: tl.int64, links: tl.int64, count: tl.int64) -> Any:
    """Push the nodes 0 to `count` - 1."""
    node = word(0)
    while node < count:
        push(head, links, node, head + COUNT)
        node += 1
    return node


@triton.jit
def pop_and_push(head: tl.int64, links: tl.int64, count: tl.int64, pairs: tl.int64) -> Any:
    """Pop a node and push it back, `pairs` times. Returns how often the list looked empty."""
    done = word(0)
    empty = word(0)
    while done < pairs:
        node = pop(head, links, count, head + COUNT)
        if node >= 0:
            push(head, links, node, head + COUNT)
        else:
            empty += 1
        done += 1
    return empty


@triton.jit
def take_and_give(world: World, owner: tl.int64, slot: tl.int64, pairs: tl.int64) -> Any:
    """Take an extent of one page for a header slot and give it back, `pairs` times. Returns how often there was none.

    The list that is asked first is chosen as puts choose it; their keys change from pair to pair.
    """
    seg = segment(world, owner)
    done = word(0)
    empty = word(0)
    while done < pairs:
        home = home_for(world, ((done + slot) * 0x9E3779B1) >> 20)
        page = take(world, seg, word(0), home, slot)
        if page >= 0:
            give(world, seg, page, word(0))
        else:
            empty += 1
        done += 1
    return empty


@triton.jit
def take_all(world: World, owner: tl.int64, slot: tl.int64, count: tl.int64) -> Any:
    """Take `count` extents of one page that were never used, and give each back afterwards. Returns how many."""
    seg = segment(world, owner)
    taken = word(0)
    while taken < count:
        page = take(world, seg, word(0), taken, slot)
        taken = taken + 1 if page == taken else count + 1
    page = word(0)
    while page < count:
        give(world, seg, page, word(0))
        page += 1
    return taken


class Lost(RuntimeError):
    """A node or an extent was lost or doubled, or an allocation was refused though there was room."""


class Allocator(Protocol):
    """What threads allocate from."""

    def turn(self, me: int, pairs: int) -> int:
        """Allocate and free `pairs` times as thread `me`. Returns how often nothing was found."""
        ...

    def free(self) -> list[int]:
        """What is free, at rest: 0 to NODES - 1, once each, in any order."""
        ...


class FreeList:
    """A list whose head has a cache line to itself, as in a segment; lost compare-and-swaps are counted in the next."""

    def __init__(self) -> None:
        self._head = np.zeros(2 * LINE // WORD_BYTES.value, np.int64)
        self._links = np.zeros(NODES, np.int64)
        self._turn = native_function(pop_and_push)
        native_function(push_all)(*self._addresses, NODES)

    @property
    def _addresses(self) -> tuple[int, int]:
        return self._head.ctypes.data, self._links.ctypes.data

    def turn(self, me: int, pairs: int) -> int:
        """See `Allocator`."""
        return int(self._turn(*self._addresses, NODES, pairs))

    def free(self) -> list[int]:
        """See `Allocator`."""
        found: list[int] = []
        node = int(self._head[0]) & LOW32.value
        while node and len(found) <= NODES:
            found.append(node - 1)
            node = int(self._links[node - 1]) & LOW32.value
        return found


class Extents:
    """The control regions of a segment of NODES pages, as a cache of this host plans them, without its payload.

    Args:
        shards: free lists of a size class, if not the default.
    """

    def __init__(self, shards: int | None = None) -> None:
        geometry = plan_geometry(NODES * PAGE_BYTES, PAGE_BYTES, 1, Options(shards=shards))
        control = geometry.offsets["heap_base"]
        self._memory = np.zeros(control + LINE, np.uint8)
        skip = -self._memory.ctypes.data % LINE
        self._control = self._memory[skip : skip + control]
        ctl = geometry.control_block(0, 1, "device", may_evict=False, water=(100, 100))
        self._control[: HEAP_CTL.size] = ctl.view(np.uint8)
        self._table = geometry.world_table(0, 1, [self._control.ctypes.data])
        self._turn = native_function(take_and_give)
        self._walk = native_function(walk_pages)
        if native_function(take_all)(self._table.ctypes.data, 0, 0, NODES) != NODES:
            raise Lost("a segment that is new has other extents than its pages")

    def turn(self, me: int, pairs: int) -> int:
        """See `Allocator`."""
        return int(self._turn(self._table.ctypes.data, 0, me, pairs))

    def free(self) -> list[int]:
        """See `Allocator`. Empty if the protocol found a control word corrupt."""
        if int(self._control[: HEAP_CTL.size].view(HEAP_CTL.dtype)[0]["corrupt"]):
            return []
        marks = np.zeros(NODES, np.int64)
        self._walk(self._table.ctypes.data, 0, NODES, marks.ctypes.data)
        return np.flatnonzero(marks == 1).tolist()


class ExtentsApart:
    """Each thread has a segment of its own: what two threads reach that share nothing."""

    def __init__(self) -> None:
        self._own = [Extents() for _ in range(max(THREADS))]

    def turn(self, me: int, pairs: int) -> int:
        """See `Allocator`."""
        return self._own[me].turn(me, pairs)

    def free(self) -> list[int]:
        """See `Allocator`. Of the first segment; empty if another one has lost something."""
        first, *others = (each.free() for each in self._own)
        return first if all(sorted(other) == sorted(first) for other in others) else []


KINDS: dict[str, Callable[[], Allocator]] = {
    "free list": FreeList,
    "extent": Extents,
    "extent, one list": partial(Extents, shards=1),
    "extent, a segment per thread": ExtentsApart,
}


def time_pairs(shared: Allocator, threads: int, pairs: int) -> tuple[float, float]:
    """Millions of pairs a second over all threads, and the share of a processor that each had (`run_together`).

    Raises:
        Lost: what is free afterwards is not what was free before.
    """
    empty = [0] * threads

    def work(me: int) -> None:
        empty[me] = shared.turn(me, pairs)

    slowest, share = run_together(threads, work)
    free = shared.free()
    if any(empty) or sorted(free) != list(range(NODES)):
        raise Lost(f"{len(set(free))} of {NODES} are free at the end; nothing was found {empty} times")
    return threads * pairs / slowest * 1e3, share


def measure(run: Run) -> Iterator[Figure]:
    """Every kind and number of threads; their runs take turns."""
    made = {what: make() for what, make in KINDS.items()}  # compiled before anything is timed
    for shared in made.values():
        time_pairs(shared, 1, run.settings.pairs // 10 + 1)
    found = {(what, threads): ParallelRuns(run.settings.repeats) for what in made for threads in THREADS}
    while not all(counted.over for counted in found.values()):
        run.say(f"alloc: run {1 + max(len(counted.runs) for counted in found.values())}")
        for (what, threads), counted in found.items():
            if not counted.over:
                counted.runs.append(time_pairs(made[what], threads, run.settings.pairs))
    for (what, threads), counted in found.items():
        case: Case = {"what": what, "threads": threads}
        repetitions = [{"value": value} for value in counted.values]
        yield Figure("alloc", case, "M/s", "higher", repetitions, note=counted.note)


QUESTION = Question(
    "alloc",
    "How many allocations and releases does a segment take in a second, from one thread and from two?",
    measure,
    "Compiled code, without Python: a pop and a push of one free list; an extent taken and given back by the functions "
    "that put and remove call, in one segment for all threads, also with one free list, and in a segment per thread. "
    "Each thread is bound to a processor of its own; runs in which one had less than 90 % of it do not count, since "
    "threads that take turns do not meet. The rate is that of all threads together, by the clock of the slowest. After "
    "each run everything must be free again, once.",
)
