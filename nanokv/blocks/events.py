"""Events: a block was registered in a pool, or its registration has ended.

What it guarantees: who registers a block gets a `PublishHandle`, which sends Store at once, and Remove once, when it is
closed or nothing refers to it any more. So each Store of a publisher that lives has its Remove, in this order. A
handle may be collected by the garbage collector, in any thread and under any lock: so sending is one append to a deque,
which takes no lock, and the publisher delivers later, in `flush`.

A batch holds events of one kind that were sent one after the other: Stores by ascending position, Removes by descending
position, so that a prefix tree grows from its root and shrinks from its leaves. Source: `lib/kvbm-logical/src/events`.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from operator import attrgetter
from types import TracebackType
from typing import Any, Self

from nanokv.arguments import integer, seconds
from nanokv.blocks.hashes import SequenceHash
from nanokv.errors import InvalidArgument
from nanokv.host_poller.events import Listeners


class EventType(Enum):
    """What has happened to a block; SHUTDOWN: nothing will happen any more."""

    STORE = "Store"
    REMOVE = "Remove"
    SHUTDOWN = "Shutdown"


@dataclass(frozen=True)
class KvEvent:
    """One event, with the fields of KVBM's event plane."""

    sequence_hash: SequenceHash
    prefix_hash: SequenceHash | None  #: of the block before in its sequence; None: it is the first one
    block_size: int  #: bytes
    storage_location: str
    event_type: EventType
    extra_metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def position(self) -> int:
        """The place of the block in its sequence."""
        return self.sequence_hash.position


@dataclass(frozen=True)
class EventBatch:
    """Events of one kind, in their order; none of SHUTDOWN."""

    event_type: EventType
    events: tuple[KvEvent, ...]
    instance_id: int  #: of the publisher


Policy = Callable[[SequenceHash], bool]  #: whether events of a block are sent


def every_block(_: SequenceHash) -> bool:
    """The policy that sends all events."""
    return True


@dataclass(frozen=True)
class PowerOfTwo:
    """The policy that sends events of the blocks at positions that are powers of two, from `first` to `last`.

    A hub that knows these finds a block's neighbourhood in a few steps, and hears of few blocks. The defaults are
    KVBM's.
    """

    first: int = 1 << 4
    last: int = 1 << 16

    def __call__(self, found: SequenceHash) -> bool:
        at = found.position
        return self.first <= at <= self.last and at & (at - 1) == 0


class PublishHandle:
    """A block that was announced. `close` it, or let it go: then its Remove is sent, once."""

    def __init__(self, stored: KvEvent, pending: deque[KvEvent]) -> None:
        self.stored = stored
        gone = KvEvent(**{**vars(stored), "event_type": EventType.REMOVE})
        pending.append(stored)
        self._end = weakref.finalize(self, pending.append, gone)
        self._end.atexit = False  # who listened is gone by then

    def close(self) -> None:
        """Send Remove, unless that was done."""
        self._end()


class EventPublisher:
    """Collects events, and delivers them in batches to subscribers.

    Args:
        period: seconds between two deliveries by a thread of its own; None: only `flush` and `close` deliver.
        policy: which blocks' events are sent.
        instance_id: u128, names this publisher to subscribers.
        most: events in a batch.

    Raises:
        InvalidArgument: a value cannot be.

    A subscriber is called with a list of batches, by one thread at a time. One that raises is logged, and stays.
    """

    def __init__(
        self, *, period: float | None = None, policy: Policy = every_block, instance_id: int = 0, most: int = 1024
    ) -> None:
        self.instance_id = integer("instance_id", instance_id, 0, (1 << 128) - 1)
        self._most = integer("most", most, 1)
        self._policy = policy
        self._pending: deque[KvEvent] = deque()
        self._listeners: Listeners[EventBatch] = Listeners()
        self._before: tuple[Callable[[], object], ...] = ()
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if period is not None:
            period = seconds("period", period)
            if period <= 0:
                raise InvalidArgument(f"period must be positive seconds or None, not {period!r}")
            self._thread = threading.Thread(target=self._run, args=(period,), name="nanokv-block-events", daemon=True)
            self._thread.start()

    def subscribe(self, subscriber: Callable[[Sequence[EventBatch]], None]) -> Callable[[], None]:
        """Deliver to `subscriber` from now on; the function returned ends that."""
        if not callable(subscriber):
            raise InvalidArgument(f"a subscriber must be a function of batches, not {subscriber!r}")
        return self._listeners.add(subscriber)

    def store(
        self,
        sequence_hash: SequenceHash,
        prefix_hash: SequenceHash | None,
        block_size: int,
        storage_location: str,
        extra_metadata: Mapping[str, Any] | None = None,
    ) -> PublishHandle | None:
        """Announce a block; None if the policy leaves it out, or the publisher was closed: nobody listens any more."""
        if self._closed.is_set() or not self._policy(sequence_hash):
            return None
        more = dict(extra_metadata or {})
        event = KvEvent(sequence_hash, prefix_hash, block_size, storage_location, EventType.STORE, more)
        return PublishHandle(event, self._pending)

    def before_flush(self, look: Callable[[], object]) -> Callable[[], None]:
        """Call `look` before each delivery: it may find blocks that have gone. The function returned ends that."""
        with self._lock:
            self._before = (*self._before, look)
        return lambda: self._forget(look)

    def _forget(self, look: Callable[[], object]) -> None:
        with self._lock:
            self._before = tuple(each for each in self._before if each != look)

    def flush(self) -> int:
        """Deliver what is pending; returns the number of events."""
        with self._lock:
            for look in self._before:
                look()
            events: list[KvEvent] = []
            while self._pending:
                events.append(self._pending.popleft())
            self._listeners.tell(list(self._batches(events)))
            return len(events)

    def close(self) -> None:
        """Deliver the rest, and a batch SHUTDOWN. Idempotent."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            self.flush()
            self._listeners.tell([EventBatch(EventType.SHUTDOWN, (), self.instance_id)])
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _batches(self, events: list[KvEvent]) -> Iterator[EventBatch]:
        for kind, group in groupby(events, attrgetter("event_type")):
            run = list(group)
            for first in range(0, len(run), self._most):
                part = sorted(
                    run[first : first + self._most], key=attrgetter("position"), reverse=kind is EventType.REMOVE
                )
                yield EventBatch(kind, tuple(part), self.instance_id)

    def _run(self, period: float) -> None:
        while not self._closed.wait(period):
            self.flush()
