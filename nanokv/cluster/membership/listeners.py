"""Tells listeners who is in the cluster, on a thread of its own: a slow listener must not delay a heartbeat."""

import logging
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

from nanokv.cluster.membership.base import Listener

logger = logging.getLogger("nanokv.cluster")


class Listeners:
    """Each listener gets the newest mapping, if that is another one than it got last.

    Changes that come while a listener runs are told together.
    """

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._members: Mapping[str, bytes] = MappingProxyType({})
        self._told: dict[int, tuple[Listener, Mapping[str, bytes] | None]] = {}
        self._next = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="nanokv-members-tell", daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def publish(self, members: Mapping[str, bytes]) -> None:
        """There is a new mapping."""
        with self._news:
            self._members = members
            self._news.notify()

    def add(self, listener: Listener) -> Callable[[], None]:
        """Tell a listener the mapping soon, and each new one from then on. Returns what ends that; it is idempotent."""
        with self._news:
            number, self._next = self._next, self._next + 1
            self._told[number] = (listener, None)
            self._news.notify()

        def unsubscribe() -> None:
            with self._news:
                self._told.pop(number, None)

        return unsubscribe

    def close(self, timeout: float) -> None:
        """Begin no further call, and wait for one that runs, at most `timeout` seconds. Idempotent."""
        with self._news:
            self._closed = True
            self._news.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        while (turn := self._wait()) is not None:
            listener, members = turn
            try:
                listener(members)
            except BaseException:  # also SystemExit: the thread must live on
                logger.exception("a listener of the membership failed; it stays subscribed")

    def _wait(self) -> tuple[Listener, Mapping[str, bytes]] | None:
        """The next call to make; None at the end."""
        with self._news:
            while not self._closed:
                for number, (listener, told) in self._told.items():
                    if told is not self._members:
                        self._told[number] = (listener, self._members)
                        return listener, self._members
                self._news.wait()
        return None
