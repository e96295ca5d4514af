"""File descriptors that are kept for the heartbeat: a process that has none left must not lose its lease by that."""

import contextlib
import errno
import os
import threading
from collections.abc import Callable

_KEPT = 3  #: a folder, a file in it, and its temporary one; or a connection to etcd
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)


class Reserve:
    """Descriptors of nothing, which are given up while work needs them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[int] = []
        self._fill()

    def work(self, work: Callable[[], None]) -> None:
        """Do some work; once more with the descriptors that are kept, if there were no others."""
        self._fill()
        try:
            work()
        except OSError as error:
            if _errno_of(error) not in _NONE_LEFT or not self._kept:
                raise
            self._release()
            try:
                work()
            finally:
                self._fill()

    def close(self) -> None:
        """Keep none any more. Idempotent."""
        self._release()

    def _fill(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            while len(self._kept) < _KEPT:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _release(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, []
        for descriptor in kept:
            os.close(descriptor)


def _errno_of(error: BaseException | None) -> int | None:
    """Of an error, or of the one that caused it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        error = error.__cause__
    return None
