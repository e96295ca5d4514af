"""The other ranks: who lives, waiting for what they write, leaving them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast, get_args

from nanokv.allocation.producer import ProducerAllocation
from nanokv.api.base import CacheBase
from nanokv.arguments import FOREVER, integer, seconds
from nanokv.device.protocol.status import Status
from nanokv.errors import InvalidArgument, WaitTimeout
from nanokv.heap.base import ElasticHeap
from nanokv.membership.empty import Emptying, Fate
from nanokv.membership.leave import adopt_segment, leave_world
from nanokv.types import Key, KeyDigest, Left
from nanokv.waiting import Waiter


class World(CacheBase):
    """Waiting, and membership."""

    def alive(self, rank: int) -> bool:
        """False if a rank has closed its cache, or its process has ended (seen some milliseconds later).

        Raises:
            InvalidArgument: there is no such rank.
        """
        self._check_open()
        return not self._heap.peer_closed(integer("rank", rank, 0, self.world_size - 1))

    def wait(self, keys: Key | Iterable[Key], *, timeout: float | None) -> None:
        """Wait until every object can be read. Returns within microseconds of a put by a host, in any process.

        Args:
            timeout: seconds; None: no limit.

        Raises:
            WaitTimeout: after `timeout` seconds; the message gives the number of missing objects.
            PeerLost: the rank that was writing one of them has ended; or v1's master has.
            InvalidArgument: a listener calls it (`subscribe`) for an object that is not there.
        """
        self._check_open()
        digests = [self._hash(keys)] if isinstance(keys, str | bytes | KeyDigest) else list(self._digests(keys))
        self._wait_for(digests, FOREVER if timeout is None else seconds("timeout", timeout))

    def _wait_for(self, digests: list[KeyDigest], timeout: float | None) -> None:
        if self._poller.is_this_thread and any(self._look(digest) != Status.OK for digest in digests):
            self._poller.refuse_own_thread("a wait for objects that are not there")
        waiter = Waiter(self._heap, self._allocation, self._look, self._watch)
        try:  # not `counting_timeouts`: ending a context takes microseconds after a sleep
            waiter.wait(digests, timeout)
        except WaitTimeout:
            self._traffic.timed_out()
            raise

    def flush(self, *, timeout: float = 10.0) -> None:
        """Wait until this rank's index (keys, stats, events) includes every commit in its segment before this call.

        Raises:
            WaitTimeout: after `timeout` seconds.
            InvalidArgument: a listener calls it (`subscribe`): the index is kept by the thread that calls listeners.
        """
        self._check_open()
        with self._traffic.counting_timeouts():
            self._poller.flush(seconds("timeout", timeout))

    # --- elastic membership ---
    def members(self) -> list[int]:
        """The ranks that live, ascending."""
        self._check_open()
        return [rank for rank in range(self.world_size) if not self._heap.peer_closed(rank)]

    def leave(self, keys: Fate = "move", *, timeout: float = 60.0) -> Left:
        """Leave an elastic world for good, and close (docs/elastic.md). The rank may join again, with an empty segment.

        Operations that are under way in this rank's segment are waited for, and so are pins; its open plans are
        aborted. The memory of the segment goes back to the system.

        Args:
            keys: "move": its objects go to the segments of the other ranks, those that were used last first, and
                nothing is evicted for them. What finds no room, or no other rank, is dropped. "drop": all are.
            timeout: seconds.

        Raises:
            InvalidArgument: the world is not elastic, or `keys` is something else; or a listener calls it.
            WaitTimeout: objects were pinned or being written all the time. The rank stays, and can be used on, without
                the objects that were moved or dropped so far, and without its open plans.
        """
        heap, emptying = self._emptying(self.rank, keys)
        self._poller.refuse_own_thread("leave")
        timeout = seconds("timeout", timeout)
        assert isinstance(self._allocation, ProducerAllocation)
        with self._leave_lock:
            self._check_open()
            self._plans.abort_all()
            self._pins.give_back_dropped()
            go_around = self._allocation.routing.leave_out_this_rank
            left = leave_world(heap, self._machine, self._poller, emptying, go_around, timeout)
            self.close()
        return left

    def adopt(self, rank: int, keys: Fate = "move", *, timeout: float = 60.0) -> Left:
        """Let a rank leave that has crashed, or closed without leaving (docs/elastic.md). Any rank may do that.

        Meanwhile the rank cannot come back. Afterwards it can, with an empty segment.

        Args:
            keys, timeout: as for `leave`.

        Raises:
            InvalidArgument: as `leave`; or there is no such rank.
            HeapUnavailable: the rank is there, or absent already, or is being adopted.
            WaitTimeout: objects were pinned or being written all the time. The rank is as it was, without the objects
                that were moved or dropped so far.
        """
        self._check_open()
        rank = integer("rank", rank, 0, self.world_size - 1)
        heap, emptying = self._emptying(rank, keys)
        timeout = seconds("timeout", timeout)
        with self._leave_lock:
            self._check_open()
            return adopt_segment(heap, self._machine, emptying, rank, timeout)

    def _emptying(self, rank: int, keys: Fate) -> tuple[ElasticHeap, Emptying]:
        """What takes the objects out of a segment."""
        self._check_open()
        if not self._heap.elastic:
            raise InvalidArgument("leave needs a world made with elastic=True; `close` ends a rank of any other")
        if keys not in get_args(Fate):
            raise InvalidArgument(f"keys must be one of {get_args(Fate)}, not {keys!r}")
        emptying = Emptying(self._heap, self._machine, self._allocation, self._single, rank, keys)
        return cast(ElasticHeap, self._heap), emptying
