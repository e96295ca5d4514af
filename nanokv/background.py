"""Asynchronous operations: one background thread per cache, started by the first operation."""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Generic, TypeVar

from nanokv.arguments import seconds
from nanokv.errors import CacheClosed, Cancelled, WaitTimeout

T = TypeVar("T")


class Handle(Generic[T]):
    """An operation under way. `await` it in asyncio, or wait for its `result`."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def done(self) -> bool:
        """True once it has ended, with a result or an error, or was cancelled."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> T:
        """The result of the operation, or the error that the blocking call would have raised.

        Raises:
            WaitTimeout: it has not ended after `timeout` seconds.
            Cancelled: it was cancelled.
        """
        try:
            return self._future.result(None if timeout is None else seconds("timeout", timeout))
        except FutureTimeout:
            if self._future.done():
                raise
            raise WaitTimeout(f"the operation is still under way after {timeout} s") from None
        except CancelledError:
            raise Cancelled("the operation was cancelled before it began") from None

    wait = result

    def cancel(self) -> bool:
        """Give the operation up if it has not begun. False if it has: then it goes on to its end."""
        return self._future.cancel()

    def add_done_callback(self, function: "Callable[[Handle[T]], object]") -> None:
        """Call `function` with this handle when the operation has ended: on the background thread, or here if it has
        already. What it raises is logged."""
        self._future.add_done_callback(lambda future: function(self))

    def __await__(self) -> Generator[Any, None, T]:
        """As `result`, without blocking the event loop. A cancelled operation raises asyncio.CancelledError."""
        import asyncio  # costs a program that does not use it 30 ms

        return asyncio.wrap_future(self._future).__await__()


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
