"""Events for listeners: an object became READY in this rank's segment, was removed or evicted; a rank came, or went."""

import logging
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

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
E = TypeVar("E")


class Listeners(Generic[E]):
    """Who is told of events, in batches. One that raises is logged and kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: tuple[Callable[[Sequence[E]], None], ...] = ()

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, listener: Callable[[Sequence[E]], None]) -> Callable[[], None]:
        """Subscribe a listener; returns the function that unsubscribes it."""
        with self._lock:
            self._all = (*self._all, listener)
        return lambda: self._drop(listener)

    def _drop(self, listener: Callable[[Sequence[E]], None]) -> None:
        with self._lock:
            self._all = tuple(one for one in self._all if one is not listener)

    def tell(self, events: Sequence[E]) -> None:
        """Call every listener with a batch of events, unless it is empty."""
        for listener in self._all if events else ():
            try:
                listener(events)
            except BaseException:  # also SystemExit, CancelledError: the thread that tells serves everybody
                _log.exception("a listener raised; it stays subscribed")
