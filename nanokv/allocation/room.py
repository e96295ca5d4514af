"""Waiting for room: a put that a full segment refuses tries again until its time is over.

Room comes with a removal, an unpinned object, a lease that ends, or an object that may go after its first read. A
removal or an eviction leaves a hint, which wakes the waiter; nothing tells of the others, so it looks each 10 ms.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from nanokv.background import Worker
from nanokv.device.protocol.status import Status
from nanokv.errors import CacheClosed
from nanokv.heap.base import Heap
from nanokv.host_poller.poller import Poller

T = TypeVar("T")

NO_WAIT = 0.0  #: the default of a put
NO_ROOM = (Status.FULL, Status.NO_HEADER, Status.NO_ENTRY)
_LONGEST_SLEEP = 0.01  #: seconds
_REST = (
    0.0005  #: seconds between two tries: each looks for something to evict, and a stream of hints must not take a core
)


class RoomWait:
    """How the puts of one cache wait for room.

    Args:
        worker: ends waits when it is closed.
        poller: a listener that it calls must not wait: the room that it waits for would never be seen.
    """

    def __init__(self, heap: Heap, worker: Worker, poller: Poller) -> None:
        self._heap, self._worker, self._poller = heap, worker, poller

    def __call__(self, timeout: float, put: Callable[[], T | int]) -> T | int:
        """Call `put` until it answers anything but a status of NO_ROOM, at most for `timeout` seconds: its last answer.

        It is called at least once, and once more when the time is over.

        Raises:
            CacheClosed: the cache is being closed.
            InvalidArgument: a listener waits.
        """
        deadline = time.monotonic() + timeout
        answer = put()
        while answer in NO_ROOM and (left := deadline - time.monotonic()) > 0:
            self.check()
            rest = min(_REST, left)
            self._heap.wait_for_any_hint(min(_LONGEST_SLEEP, left) - rest, lambda: True)
            time.sleep(rest)
            answer = put()
        return answer

    def check(self) -> None:
        """Raise CacheClosed or InvalidArgument if nothing may wait here."""
        if self._worker.closed:
            raise CacheClosed(f"rank {self._heap.rank} of {self._heap.name!r} is being closed")
        self._poller.refuse_own_thread("a wait for room")
