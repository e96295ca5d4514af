"""What becomes of objects and nodes, told to listeners of this process.

The news are those of `events`, and as good as hints: they come a little late, and some may be lost. Then a listener is
told that they were, and once more of all that the node has.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from nanokv.device.machines.records import Words
from nanokv.device.segment.layout import OBJ_HEADER, READY, WORD, key_checks, unpack
from nanokv.device.segment.location import EVICTED_NODE, GONE_NODE, LOCATION
from nanokv.host_poller.events import Listeners
from nanokv.types import KeyDigest, known_digest

_NO_RANK = -1
_HASH, _CHECK, _NODE, _RANK, _NBYTES = (
    LOCATION.offsets[name] // WORD for name in ("key_hash", "key_check", "node", "rank", "nbytes")
)


class ChangeKind(Enum):
    """What has happened to an object, or to a node."""

    STORED = "stored"
    REMOVED = "removed"
    EVICTED = "evicted"
    MISSED = "missed"  #: events of a node were lost: forget its objects. All that it has are told as STORED next
    NODE_JOINED = "node joined"
    NODE_LEFT = "node left"  #: with all of its objects


class Change(NamedTuple):
    """One change in a cluster."""

    kind: ChangeKind
    node: str  #: that has, or had, the object; or that joined or left
    rank: int = _NO_RANK  #: of it whose segment that is; -1 for a node
    key: KeyDigest | None = None  #: of the object; None for a node
    nbytes: int = 0  #: of the object


Listener = Callable[[Sequence[Change]], None]
_GONE = {GONE_NODE.value: ChangeKind.REMOVED, EVICTED_NODE.value: ChangeKind.EVICTED}


class Changes:
    """The listeners of one process. They are called one after the other, by threads that may be different ones.

    No thread waits for a listener that another one calls: it leaves what it has to tell to that one. Else a listener
    that waits for the poller would wait for itself, as the poller's thread tells too.
    """

    def __init__(self, here: str) -> None:
        self._lock = threading.Lock()  # of `_nodes`, and of the order in which its changes are told
        self._listeners = Listeners[Change]()
        self._nodes = {here}
        self._untold: deque[list[Change]] = deque()
        self._telling = threading.Lock()

    def add(self, listener: Listener) -> Callable[[], None]:
        """Subscribe a listener; returns the function that unsubscribes it."""
        return self._listeners.add(listener)

    # --- what is to be told: by `tell`, in this order ---
    def rows(self, node: str, rows: Words) -> None:
        """Events of a node: LOCATIONs as words, int64 [n, 9]."""
        if self._listeners:
            self._leave(
                Change(
                    _GONE.get(row[_NODE], ChangeKind.STORED),
                    node,
                    row[_RANK],
                    known_digest(row[_HASH], row[_CHECK]),
                    row[_NBYTES],
                )
                for row in rows.tolist()
            )

    def missed(self, node: str) -> None:
        """Events of a node were lost."""
        self._leave([Change(ChangeKind.MISSED, node)])

    def headers(self, node: str, rank: int, headers: Words) -> None:
        """What a rank of a node has: copied headers, int64 [n, 8]."""
        if self._listeners and len(headers):
            records = headers.view(OBJ_HEADER.dtype)[:, 0]
            records = records[unpack("STATE", "state", records["state"]) == READY.value]
            checks = key_checks(records).view(np.int64).tolist()
            hashes, sizes = records["key_hash"].view(np.int64).tolist(), records["bytes_total"].tolist()
            found = zip(hashes, checks, sizes, strict=True)
            self._leave(Change(ChangeKind.STORED, node, rank, known_digest(*key), nbytes) for *key, nbytes in found)

    def nodes(self, names: Iterable[str]) -> None:
        """The nodes that there are now: told at once."""
        with self._lock:
            before, self._nodes = self._nodes, set(names)
            come = [Change(ChangeKind.NODE_JOINED, name) for name in sorted(self._nodes - before)]
            gone = [Change(ChangeKind.NODE_LEFT, name) for name in sorted(before - self._nodes)]
            self._untold.append([*come, *gone])
        self.tell()

    def _leave(self, changes: Iterable[Change]) -> None:
        if self._listeners:
            self._untold.append(list(changes))

    # --- telling ---
    def tell(self) -> None:
        """Call the listeners with what is to be told, unless another thread does so now: then it goes on with this."""
        while self._untold and self._telling.acquire(blocking=False):
            try:
                while self._untold:
                    self._listeners.tell(self._untold.popleft())
            finally:
                self._telling.release()
