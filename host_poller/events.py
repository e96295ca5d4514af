"""Events for listeners: an object became READY in this rank's segment, was removed or evicted; a rank came, or went."""

import logging
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from nanokv.types import KeyDigest, ObjMeta

_log = logging.getLogger("nanokv.events")


class EventKind(Enum):
    """What has happened to an object in this rank's segment, or to a rank."""

    STORED = "stored"
    REMOVED = "removed"
    EVICTED = "evicted"  # it went to make room; where the ring's hint was missed, an eviction is told as REMOVED
    RANK_JOINED = "rank joined"
    RANK_LEFT = "rank left"  # it closed, or its process ended


class Event(NamedTuple):
    """One change of a rank's index, or of the ranks that live.

    An object that came and went between two looks of the poller causes no event.
    """

    kind: EventKind
    key: KeyDigest | None  #: of the object; None for a rank
    meta: ObjMeta | None  #: of the object; None for a rank
    rank: int  #: the rank that came or went; for an object its owner


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
