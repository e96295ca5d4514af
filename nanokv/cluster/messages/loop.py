"""The thread of a server or a subscriber: it sleeps until a socket or another thread wakes it."""

import contextlib
import os
import threading
from collections.abc import Callable


class Wake:
    """A file descriptor, `fd`, that becomes readable when another thread rings. A child of a fork rings nobody."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)
        self._process = os.getpid()

    def ring(self) -> None:
        """Make it readable."""
        if self._process == os.getpid():
            with contextlib.suppress(BlockingIOError):  # full: it has been readable for long
                os.write(self._write, b"!")

    def reset(self) -> None:
        """Make it not readable."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)

    def __del__(self) -> None:  # not earlier: a thread may still poll it
        os.close(self.fd)
        os.close(self._write)


class Loop:
    """Calls `turn` in a thread until it is stopped, and then `end` there.

    Args:
        turn: sleeps by itself, and no longer than until `wake` rings. Raises nothing.
    """

    def __init__(self, name: str, wake: Wake, turn: Callable[[], None], end: Callable[[], None]) -> None:
        self._wake, self._turn, self._end = wake, turn, end
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the turn that is under way, and wait for that, except in the thread itself. Idempotent."""
        self._stopping = True
        self._wake.ring()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._end()
