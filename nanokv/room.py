"""Waiting for room: a put that a full segment refuses tries again until its time is over.

Room comes with a removal, an unpinned object, a lease that ends, or an object that may go after its first read. A
removal or an eviction leaves a hint, which wakes the waiter; nothing tells of the others, so it looks each 10 ms.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from nanokv.device.protocol.status import Status
from nanokv.heap.base import Heap

T = TypeVar("T")

NO_WAIT = 0.0  #: the default of a put, known by its identity: other values are checked
NO_ROOM = (Status.FULL, Status.NO_HEADER, Status.NO_ENTRY)
_LONGEST_SLEEP = 0.01  #: seconds
_REST = (
    0.0005  #: seconds between two tries: each looks for something to evict, and a stream of hints must not take a core
)


def until_room(heap: Heap, timeout: float, put: Callable[[], T | int], check: Callable[[], None]) -> T | int:
    """Call `put` until it answers anything but a status of NO_ROOM, at most for `timeout` seconds: its last answer.

    It is called at least once, and once more when the time is over. `check` is called before each sleep: it raises if
    the wait is to end.
    """
    deadline = time.monotonic() + timeout
    answer = put()
    while answer in NO_ROOM and (left := deadline - time.monotonic()) > 0:
        check()
        rest = min(_REST, left)
        heap.wait_for_any_hint(min(_LONGEST_SLEEP, left) - rest, lambda: True)
        time.sleep(rest)
        answer = put()
    return answer
