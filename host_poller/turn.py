"""A lock whose holder works in native code for long, and lets go of it soon after somebody else asks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from nanokv.device.machines.records import Words


class Turn:
    """Taken by `with turn` from any thread, shortly: the poller's native rounds end then.

    Attributes:
        asked: int64 [1]: how many threads wait for it, or have it; native code reads it.
    """

    def __init__(self) -> None:
        self.asked: Words = np.zeros(1, np.int64)
        self._lock = threading.Lock()
        self._counting = threading.Lock()

    @contextmanager
    def for_long(self) -> Iterator[None]:
        """Take it without asking. The holder looks at `asked`, and lets go of it when that is not 0."""
        with self._lock:
            yield

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Let the holder let go of it, during the block, without taking it."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def __enter__(self) -> None:
        self._count(1)
        try:
            self._lock.acquire()
        except BaseException:  # a signal's
            self._count(-1)
            raise

    def __exit__(self, *error: object) -> None:
        self._lock.release()
        self._count(-1)

    def _count(self, change: int) -> None:
        with self._counting:
            self.asked[0] += change
