"""A rank leaves a running world for good: its objects are moved or dropped, and its memory goes back to the system.

1. It is marked: every rank sees it as closed, so that no host chooses its segment any more. Its poller goes on.
2. Its objects are moved or dropped, as often as new ones come: of puts that had chosen the segment before, or of
   kernels that choose it by themselves. What is pinned or unfinished is waited for; the sweeper gives up what is stuck.
3. Between two rounds of the poller all free pages are taken, as by a host that joins them. If these are all pages of
   the segment, no operation in flight has any, and none gets one any more: the segment is ABSENT, and its memory goes.
   Else they are given back, and step 2 goes on.
4. The caller closes the cache.

No step needs another rank. A process that dies in step 2 leaves a closed segment with the objects that are left; one
that dies in step 3 may leave pages in no place: if the rank comes back, its audit finds them.
"""

import time
from collections.abc import Callable
from typing import Protocol, cast

from nanokv.device.machines.base import Machine
from nanokv.errors import WaitTimeout
from nanokv.heap.base import ElasticHeap, Heap
from nanokv.host_poller.index import HeaderIndex
from nanokv.host_poller.poller import Poller
from nanokv.host_poller.sweeper import Sweeper
from nanokv.leaving.empty import Evacuation
from nanokv.space.coalesce import join_free_extents
from nanokv.types import Left

_FIRST_REST, _LONGEST_REST = 0.001, 0.05  #: seconds between two rounds of step 2


def leave_world(
    heap: ElasticHeap,
    machine: Machine,
    poller: Poller,
    emptying: Evacuation,
    go_around: Callable[[bool], None],
    timeout: float,
) -> Left:
    """Steps 1 to 3. The poller has ended then.

    Args:
        emptying: of this rank's segment.
        go_around: called with True to let this process' own puts choose other segments, with False to take that back.

    Raises:
        WaitTimeout: objects were still in use after `timeout` seconds. The rank stays in the world, without the objects
            that were moved or dropped so far.
    """
    deadline = time.monotonic() + timeout
    go_around(True)
    heap.mark_leaving(True)
    try:
        _wait_until_absent(heap, heap.rank, machine, poller, emptying, deadline, timeout)
    except BaseException:
        heap.mark_leaving(False)
        go_around(False)
        raise
    return emptying.done


def adopt_segment(heap: ElasticHeap, machine: Machine, emptying: Evacuation, rank: int, timeout: float) -> Left:
    """Do for a rank that has ended what it would have done in `leave_world`.

    The sweeper of its segment runs here, in this thread: it gives up what the dead left, and takes back their pins.

    Raises:
        HeapUnavailable: as `ElasticHeap.begin_adoption`.
        WaitTimeout: objects were still in use after `timeout` seconds. The segment is as a crash would leave it.
    """
    deadline = time.monotonic() + timeout
    heap.begin_adoption(rank)
    try:
        _wait_until_absent(heap, rank, machine, _Orphan(heap, machine, rank), emptying, deadline, timeout)
    finally:
        heap.end_adoption(rank)
    return emptying.done


class Caretaker(Protocol):
    """What looks after a segment: the poller of its rank, or `_Orphan`."""

    sweeper: Sweeper

    def flush(self, timeout: float) -> None:
        """Sweep."""
        ...

    def at_rest(self, do: Callable[[], bool]) -> bool:
        """Call `do` while nothing sweeps; if it returns True, nothing does any more."""
        ...


class _Orphan:
    """The caretaker of a rank that has ended."""

    def __init__(self, heap: ElasticHeap, machine: Machine, rank: int) -> None:
        index = HeaderIndex(machine.geometry, rank)
        self.sweeper = Sweeper(machine, cast(Heap, _OfAnother(heap, rank)), index, 0.0, True)

    def flush(self, timeout: float) -> None:
        self.sweeper.step(time.monotonic())

    def at_rest(self, do: Callable[[], bool]) -> bool:
        return do()


class _OfAnother:
    """The heap, as the sweeper of another rank's segment asks it."""

    def __init__(self, heap: ElasticHeap, rank: int) -> None:
        self.rank = rank
        self.kind, self.backing = heap.kind, heap.backing
        self.recovered = True  # the sweeper audits: the rank may have died with pages in its hands
        self.alive = heap.alive


def _wait_until_absent(
    heap: ElasticHeap,
    rank: int,
    machine: Machine,
    tended: Caretaker,
    emptying: Evacuation,
    deadline: float,
    timeout: float,
) -> None:
    rest = _FIRST_REST
    while True:
        emptying.step(deadline)
        tended.flush(max(deadline - time.monotonic(), 1.0))
        if tended.at_rest(lambda: _make_absent(heap, rank, machine, tended, emptying)):
            return
        if time.monotonic() >= deadline:
            left = emptying.what_is_left() or "pages are in the hands of operations that have not ended"
            moved, dropped, _ = emptying.done
            raise WaitTimeout(
                f"rank {rank} of {heap.name!r} did not leave within {timeout} s, and stays: {left} in its segment; "
                f"{moved} objects were moved and {dropped} dropped before"
            )
        time.sleep(min(rest, max(deadline - time.monotonic(), 0)))
        rest = min(2 * rest, _LONGEST_REST)


def _make_absent(heap: ElasticHeap, rank: int, machine: Machine, tended: Caretaker, emptying: Evacuation) -> bool:
    """Take all pages, if all are free, and let the segment be ABSENT. False if something is in use.

    Nothing sweeps, so no audit looks for the pages; one that is under way ends first (`pending`).
    """
    if tended.sweeper.pending or not emptying.is_empty():
        return False
    absent: list[bool] = []

    def leave_them() -> None:
        heap.make_absent(rank)
        absent.append(True)

    join_free_extents(machine, rank, if_all=leave_them)
    return bool(absent)
