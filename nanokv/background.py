"""Asynchronous operations: one background thread per cache, started by the first operation."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Generic, TypeVar

from nanokv.errors import CacheClosed, WaitTimeout

T = TypeVar("T")


class Handle(Generic[T]):
    """An operation under way."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def done(self) -> bool:
        """True once it has ended, with a result or an error."""
        return self._future.done()

    def wait(self, timeout: float | None = None) -> T:
        """The result of the operation, or the error that the blocking call would have raised.

        Raises:
            WaitTimeout: it has not ended after `timeout` seconds.
        """
        try:
            return self._future.result(timeout)
        except FutureTimeout:
            if self._future.done():
                raise
            raise WaitTimeout(f"the operation is still under way after {timeout} s") from None


class Worker:
    """Runs operations one after the other, in a background thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    def submit(self, work: Callable[[], T]) -> Handle[T]:
        """Queue an operation.

        Raises:
            CacheClosed: this worker is closed.
        """
        with self._lock:
            if self._closed:
                raise CacheClosed("this cache is closed")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, self._name)
            return Handle(self._pool.submit(work))

    def close(self) -> None:
        """Finish the queued operations, then stop. Idempotent."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
