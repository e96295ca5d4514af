"""Tasks of one kind, run by threads, as LMCache's controllers want them: numbered, and told of by an event fd.

What the controllers count on: each task that was submitted ends with one result, whatever happens to it, and the fd is
readable from then on until somebody consumes it. A result is kept before the fd is signalled, by what a future calls
when it ends, and a future ends when its work has returned, failed, or been cancelled; so both hold.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Generic, TypeVar

from lmcache.v1.platform import create_event_notifier

from nanokv.ending import refuse_fork
from nanokv.integrations.refusals import Refusals

R = TypeVar("R")


class Tasks(Generic[R]):
    """Tasks with results of one type. Any thread may call.

    Args:
        name: for logs and threads.
        numbers: of tasks; kinds of tasks may share them.
        threads: that work at a time.
        refusals: counts tasks that fail.
    """

    def __init__(self, name: str, numbers: "count[int]", threads: int, refusals: Refusals) -> None:
        self._name, self._numbers, self._refusals = name, numbers, refusals
        self._pool = ThreadPoolExecutor(threads, f"nanokv-lmcache-{name}")
        self._notifier = create_event_notifier()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._running = 0
        self._done: dict[int, R] = {}

    def fileno(self) -> int:
        """The event fd."""
        return int(self._notifier.fileno())

    @property
    def in_flight(self) -> int:
        """Tasks that have not ended."""
        return self._running

    def submit(self, work: Callable[[], R], failed: R) -> int:
        """Begin a task; returns its number.

        Args:
            failed: the result if the work raises, or is cancelled because the tasks are closed.

        Raises:
            Forked: this is a child of a fork, which has no threads of ours.
        """
        refuse_fork(self._process)
        number = next(self._numbers)
        with self._lock:
            self._running += 1
        try:
            future = self._pool.submit(work)
        except RuntimeError:  # closed
            with self._lock:
                self._running -= 1
                self._done[number] = failed
            return number
        future.add_done_callback(partial(self._end, number, failed))
        return number

    def take(self, number: int) -> R | None:
        """The result of a task that has ended; once."""
        with self._lock:
            return self._done.pop(number, None)

    def take_all(self) -> dict[int, R]:
        """The results of all tasks that have ended since the last call."""
        with self._lock:
            done, self._done = self._done, {}
        return done

    def cancel(self) -> None:
        """Cancel the tasks that have not begun; later ones fail at once."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def wait(self) -> None:
        """Wait for the tasks that have begun. `cancel` comes before."""
        self._pool.shutdown(wait=True)

    def close(self) -> None:
        """Close the event fd. `wait` comes before."""
        self._notifier.close()

    def _end(self, number: int, failed: R, future: "Future[R]") -> None:
        result = failed
        if not future.cancelled():
            error = future.exception()
            if error is None:
                result = future.result()
            else:
                self._refusals.note(self._name, error, f"a {self._name} task failed: {type(error).__name__}")
        with self._lock:
            self._running -= 1
            self._done[number] = result
        self._notifier.notify()
