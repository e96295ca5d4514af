"""Events for listeners: an object became READY in this rank's segment, was removed or evicted."""

import logging
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from nanokv.types import KeyDigest, ObjMeta

_log = logging.getLogger("nanokv.events")


class EventKind(Enum):
    """STORED; REMOVED; or EVICTED: it went to make room. Where the hint was missed, an eviction is told as REMOVED."""

    STORED = "stored"
    REMOVED = "removed"
    EVICTED = "evicted"


class Event(NamedTuple):
    """One change of a rank's index. An object that came and went between two looks of the poller causes no event."""

    kind: EventKind
    key: KeyDigest
    meta: ObjMeta


Listener = Callable[[Sequence[Event]], None]


class Listeners:
    """The listeners of one rank, called on the poller's thread with batches. One that raises is logged and kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: tuple[Listener, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, listener: Listener) -> Callable[[], None]:
        """Subscribe a listener; returns the function that unsubscribes it."""
        with self._lock:
            self._all = (*self._all, listener)
        return lambda: self._drop(listener)

    def _drop(self, listener: Listener) -> None:
        with self._lock:
            self._all = tuple(one for one in self._all if one is not listener)

    def tell(self, events: Sequence[Event]) -> None:
        """Call every listener with a batch of events, unless it is empty."""
        for listener in self._all if events else ():
            try:
                listener(events)
            except Exception:
                _log.exception("a listener raised; it stays subscribed")
