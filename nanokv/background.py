"""Asynchronous operations: one background thread per cache, started by the first operation."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import cache
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import torch

from nanokv.arguments import seconds
from nanokv.device.machines.gpu_threads import follows
from nanokv.errors import CacheClosed, Cancelled, InvalidArgument, WaitTimeout

T = TypeVar("T")
_Work = tuple[Future[Any], Callable[[], Any]]

_here = threading.local()
_CPU = torch.device("cpu")

EXIT_SECONDS = 5.0  #: that a program which ends waits for the queued operations of all workers, at most


class Handle(Generic[T]):
    """An operation under way. `await` it in asyncio, or wait for its `result`."""

    def __init__(self, future: Future[T], queue: object = None) -> None:
        self._future = future
        self._queue = queue  # of the thread that does it

    def done(self) -> bool:
        """True once it has ended, with a result or an error, or was cancelled."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> T:
        """The result of the operation, or the error that the blocking call would have raised.

        Raises:
            WaitTimeout: it has not ended after `timeout` seconds.
            Cancelled: it was cancelled.
            InvalidArgument: it has not ended, and this is the background thread (of a callback), which does it later.
        """
        if not self._future.done() and self._queue is not None and getattr(_here, "queue", None) is self._queue:
            raise InvalidArgument("a callback cannot wait for an operation that its own thread does after it")
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
        """Wait as `result`, without blocking the event loop. A cancelled operation raises asyncio.CancelledError."""
        import asyncio  # costs a program that does not use it 30 ms

        return asyncio.wrap_future(self._future).__await__()


class Worker:
    """Runs operations one after the other, in a background thread.

    `device`: where they work. On a GPU each follows what its caller had queued there.

    The thread is a daemon that `close` joins. A program that ends without `close` closes all workers first: what is
    queued is done, what waits gives up (`closed`).
    """

    def __init__(self, name: str, device: torch.device = _CPU) -> None:
        self._name = name
        self._device = device
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        _all.add(self)

    @property
    def closed(self) -> bool:
        """True once `close` has begun. An operation that waits for something looks, and ends."""
        return self._closed

    def submit(self, work: Callable[[], T], *tensors: torch.Tensor | None) -> Handle[T]:
        """Queue an operation.

        Args:
            tensors: those of the caller's that it reads or writes: what is queued on their GPUs comes first.

        Raises:
            CacheClosed: this worker is closed.
            InvalidArgument: as `gpu_threads.follows`.
        """
        devices = [self._device, *(tensor.device for tensor in tensors if isinstance(tensor, torch.Tensor))]
        work = follows(work, devices)
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise CacheClosed("this cache is closed")
            if self._thread is None:
                self._thread = self._started()
            self._queue.put((future, work))
        return Handle(future, self._queue)

    def _started(self) -> threading.Thread:
        _close_all_at_exit()
        thread = threading.Thread(target=_run, args=(self._queue,), name=self._name, daemon=True)
        thread.start()
        weakref.finalize(self, self._queue.put, None).atexit = False  # dropped without `close`: the thread ends
        return thread

    def close(self, timeout: float | None = None) -> None:
        """Finish the queued operations, then stop. Idempotent.

        timeout: seconds to wait for them at most; then they end by themselves.
        """
        thread = self._end()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _end(self) -> threading.Thread | None:
        """Take no more operations. Returns the thread that does those that are queued."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
            if thread is not None:
                self._queue.put(None)
        return thread


def _run(queue: "SimpleQueue[_Work | None]") -> None:
    """The thread of a worker. It refers to none: one that was dropped is collected."""
    _here.queue = queue
    while (work := queue.get()) is not None:
        _do(*work)
        del work  # it may refer to a cache


def _do(future: "Future[Any] | None", work: Callable[[], Any] | None) -> None:
    assert future is not None and work is not None
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
        future = work = None  # the traceback of the error refers to this frame


# --- the end of the program ---
_all: "weakref.WeakSet[Worker]" = weakref.WeakSet()


def _close_all() -> None:
    deadline = time.monotonic() + EXIT_SECONDS
    for thread in [worker._end() for worker in list(_all)]:
        if thread is not None:
            thread.join(max(deadline - time.monotonic(), 0.0))


@cache
def _close_all_at_exit() -> None:
    """Close all as `concurrent.futures`: before the ends of heaps (`atexit`), in processes of `multiprocessing` too.

    Raises:
        CacheClosed: the program is at its end.
    """
    register = getattr(threading, "_register_atexit", atexit.register)
    try:
        register(_close_all)
    except RuntimeError as error:
        raise CacheClosed(f"the program ends: {error}") from None


def _after_fork() -> None:
    """Forget, in a child of a fork, the threads: they are the parent's."""
    global _all
    _all = weakref.WeakSet()


os.register_at_fork(after_in_child=_after_fork)
