"""What stands around each call of SGLang's threads: whatever fails becomes a miss, is counted, and told once a minute.

SGLang's controller computes what it does not find, so a miss is always right; an exception would end the thread that
backs up or prefetches. `close` waits for the calls that have begun, because they use memory that goes away with it.
"""

import logging
import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from nanokv.cache.ending import refuse_fork
from nanokv.errors import CacheClosed, Forked
from nanokv.integrations.refusals import Refusals

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


class Calls:
    """The calls that are under way, and what has failed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way = 0
        self._open = True
        self._process = os.getpid()
        self._refusals = Refusals(logger)

    def __enter__(self) -> None:
        refuse_fork(self._process)  # before the lock, which a thread that the child lacks may hold
        with self._changed:
            if not self._open:
                raise CacheClosed("the storage backend was closed before the call")
            self._under_way += 1

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()

    def close(self) -> bool:
        """Let no call begin any more, and wait for those that have. False if it was closed before."""
        if os.getpid() != self._process:
            return False
        with self._changed:
            was_open, self._open = self._open, False
            self._changed.wait_for(lambda: not self._under_way)
        return was_open

    def note(self, name: str, error: BaseException) -> None:
        """Count a failure, and log it, once a minute each kind."""
        self._refusals.note(name, error, f"{name}: {type(error).__name__}, which counts as a miss")

    def failures(self) -> dict[str, int]:
        """How often each kind of failure has come, as "call: error"."""
        return self._refusals.counts()


def or_else(answer: Callable[..., Any]) -> Callable[[F], F]:
    """Make a method of an object that has `calls` answer what `answer` makes of its arguments where it would raise."""

    def decorated(method: F) -> F:
        @wraps(method)
        def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                with self.calls:
                    return method(self, *args, **kwargs)
            except Forked:
                raise
            except Exception as error:
                self.calls.note(method.__name__.strip("_"), error)
                return answer(*args, **kwargs)

        return cast(F, guarded)

    return decorated
