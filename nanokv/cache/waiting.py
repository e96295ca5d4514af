"""Waiting for objects that other ranks write: woken by the hints that producers leave (`heap.futex`).

A waiter looks, sleeps until a hint is left in any segment, and looks again: in one native call where segments lie in
host memory (`device/native/waits.py`), else by `Heap.wait_for_any_hint`. A kernel that publishes by itself rings no
bell, so a sleep is short: a millisecond at first, and later a hundredth of the time waited, so that an idle wait takes
no core. (Segments on a GPU, where kernels publish, are looked at each millisecond: `Heap.wait_for_any_hint`.) Of many
keys only the first that is missing is looked up each time.
"""

import time
from collections.abc import Callable

from nanokv.allocation.base import Allocation
from nanokv.device.protocol.status import Status
from nanokv.errors import PeerLost, WaitTimeout
from nanokv.heap.base import Heap
from nanokv.types import KeyDigest

_OK = int(Status.OK)
_SPIN = 0.00003  #: seconds of looking without a sleep: for an object that is being written just now
_PAUSE, _LONGEST_PAUSE = 0.001, 0.01  #: seconds between two looks: at first at most, and at last
_FRUITLESS = 0.0001  #: seconds of rest after a hint about another object: a stream of them must not take a core

Watch = Callable[[KeyDigest, float, float], int]


class Waiter:
    """One wait of a rank for objects in any segment.

    Args:
        look: the status of a key's object: OK, NOT_READY or MISS.
        watch: `Machine.waits_on` the heap's bell; None: there is none.
    """

    def __init__(
        self, heap: Heap, allocation: Allocation, look: Callable[[KeyDigest], int], watch: Watch | None = None
    ) -> None:
        self._heap = heap
        self._look = look
        self._watch = watch
        self._owed = _ProducerWatch(heap, allocation, look)

    def wait(self, keys: list[KeyDigest], timeout: float | None) -> None:
        """Return when each object was READY at some time since the call.

        Args:
            timeout: seconds; None: no limit.

        Raises:
            WaitTimeout: after `timeout` seconds, with the number of missing objects.
            PeerLost: the rank that was writing one of them has ended.
        """
        started = time.monotonic()
        missing = keys[::-1]
        while not self._drop_ready(missing):
            waited = time.monotonic() - started
            if timeout is not None and waited >= timeout:
                left = sum(self._look(key) != Status.OK for key in missing)
                if left:
                    raise WaitTimeout(f"{left} of {len(keys)} objects are not READY after {timeout} s")
                return
            if waited >= _SPIN:
                self._owed.check(missing)
                left_over = timeout - waited if timeout is not None else _LONGEST_PAUSE
                longest = min(max(_PAUSE, waited / 100), _LONGEST_PAUSE)
                spin, seconds = 0.0, min(longest, waited / 8, left_over)
            else:
                spin = seconds = _SPIN - waited
            if self._watch is None:
                if not spin:
                    self._pause(missing, seconds)
            elif self._watch(missing[-1], spin, seconds) == _OK:
                missing.pop()
                if not missing:  # at once: after a sleep each line of Python takes ten times as long
                    return

    def _drop_ready(self, missing: list[KeyDigest]) -> bool:
        """Drop the keys at the end whose objects are READY. True if none is left."""
        while missing and self._look(missing[-1]) == Status.OK:
            missing.pop()
        return not missing

    def _pause(self, missing: list[KeyDigest], seconds: float) -> None:
        count = len(missing)
        began = time.monotonic()
        self._heap.wait_for_any_hint(seconds, lambda: not self._drop_ready(missing))
        if missing and time.monotonic() - began < seconds:
            self._drop_ready(missing)
            if len(missing) == count:
                time.sleep(min(_FRUITLESS, seconds))


class _ProducerWatch:
    """Finds out that the producer of an object has ended before the object was READY."""

    def __init__(self, heap: Heap, allocation: Allocation, look: Callable[[KeyDigest], int]) -> None:
        self._heap = heap
        self._allocation = allocation
        self._look = look
        self._writers: dict[KeyDigest, tuple[int, int]] = {}  # rank and incarnation that were last seen writing
        self._next = 0.0

    def check(self, missing: list[KeyDigest]) -> None:
        """Look at the missing objects, but not more often than each _PAUSE.

        Raises:
            PeerLost: the producer of one of them has ended.
        """
        now = time.monotonic()
        if now < self._next:
            return
        for key in missing:
            status = self._look(key)
            if status == Status.OK:
                continue
            writer = self._allocation.writer_of(key) if status == Status.NOT_READY else None
            if writer is not None:
                self._writers[key] = writer
            writer = self._writers.get(key)
            if writer is not None and not self._heap.alive(*writer) and self._look(key) != Status.OK:
                raise PeerLost(f"rank {writer[0]} of {self._heap.name!r} has ended while it wrote an object waited for")
        self._next = time.monotonic() + max(_PAUSE, 10 * (time.monotonic() - now))
