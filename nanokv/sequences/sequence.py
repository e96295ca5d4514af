"""What a cache knows of one sequence, and the table of all of them.

Guarantees:
- One thread at a time changes a sequence: who does holds its lock.
- A request id names one sequence. It is looked up and inserted under the lock of its stripe, one of STRIPES.
- `all_locked` stops all: it takes the stripes, so that no sequence comes, and then the sequences. Who holds the lock
  of a sequence waits neither for a stripe nor for another sequence (`try_lock` does not wait), so nobody waits for
  ever.
"""

import itertools
import threading
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from nanokv.errors import InvalidArgument, KeyNotFound, ObjectPinned
from nanokv.sequences.allocator import REFUSED, KVHandle
from nanokv.sequences.arena import HostCopy

STRIPES = 64


class Sequence:
    """One sequence. All but `last_use` is read and changed under `lock`.

    Attributes:
        handle: its blocks; false while it is in host memory.
        host: its K and V while it is in host memory.
        blocks: of its extent; in host memory, of the one that it shall have again.
        positions: of each token, its place in the sequence as it was before any token was dropped; ascending.
        importance: of each token; 0.0 if none was stated.
        appended: the position of the next token.
        pins: readers that hold it in place.
        last_use: a time that only grows, of the table's clock.
        live: False once it was freed.
    """

    __slots__ = (
        "appended",
        "blocks",
        "handle",
        "host",
        "importance",
        "last_use",
        "live",
        "lock",
        "pins",
        "positions",
        "request_id",
    )

    def __init__(self, request_id: str, tokens: int, handle: KVHandle, last_use: int) -> None:
        self.request_id, self.last_use = request_id, last_use
        self.lock = threading.Lock()
        self.handle, self.blocks = handle, handle.num_blocks
        self.host: HostCopy | None = None
        self.positions = array("q", range(tokens))
        self.importance = array("d", bytes(8 * tokens))
        self.appended = tokens
        self.pins, self.live = 0, True

    @property
    def tokens(self) -> int:
        """How many it has."""
        return len(self.positions)

    def append(self, importance: float) -> None:
        """One token more."""
        self.positions.append(self.appended)
        self.importance.append(importance)
        self.appended += 1

    def keep(self, kept: list[int]) -> None:
        """Forget the tokens at all other places."""
        self.positions = array("q", (self.positions[place] for place in kept))
        self.importance = array("d", (self.importance[place] for place in kept))

    def move_to(self, handle: KVHandle) -> None:
        """Note that its blocks are these now."""
        self.handle, self.blocks, self.host = handle, handle.num_blocks, None

    def move_to_host(self, copy: HostCopy) -> None:
        """Note that its bytes are in host memory now."""
        self.handle, self.host = REFUSED, copy

    def refuse_if_pinned(self, act: str) -> None:
        """Raise ObjectPinned if a reader holds it in place."""
        if self.pins:
            raise ObjectPinned(f"sequence {self.request_id!r} is pinned by {self.pins} readers: {act}")


class SequenceTable:
    """The sequences of a cache by request id."""

    def __init__(self) -> None:
        self._sequences: dict[str, Sequence] = {}
        self._stripes = [threading.Lock() for _ in range(STRIPES)]
        self._clock = itertools.count(1)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._sequences

    def __len__(self) -> int:
        return len(self._sequences)

    def listed(self) -> list[Sequence]:
        """All of now, in the order in which they came."""
        return list(self._sequences.values())

    def now(self) -> int:
        """The time, one later at each call."""
        return next(self._clock)

    @contextmanager
    def coming(self, request_id: str) -> Iterator[None]:
        """Hold the stripe of an id, so that nobody else adds it."""
        with self._stripes[hash(_checked(request_id)) % STRIPES]:
            yield

    def add(self, sequence: Sequence) -> None:
        """Add one whose stripe is held, and whose id is new."""
        self._sequences[sequence.request_id] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Take out one whose lock is held."""
        sequence.live = False
        del self._sequences[sequence.request_id]

    @contextmanager
    def locked(self, request_id: str) -> Iterator[Sequence]:
        """Hold the lock of a sequence. Raises KeyNotFound if there is none of this id."""
        while True:
            sequence = self._sequences.get(_checked(request_id))
            if sequence is None:
                raise KeyNotFound(f"no sequence {request_id!r}")
            with sequence.lock:
                if sequence.live:
                    yield sequence
                    return
            # it was freed before its lock was ours: another one may have its id

    @contextmanager
    def all_locked(self) -> Iterator[list[Sequence]]:
        """Hold all sequences, while no other one can come."""
        with ExitStack() as locks:
            for stripe in self._stripes:
                locks.enter_context(stripe)
            held = self.listed()
            for sequence in held:
                locks.enter_context(sequence.lock)
            yield [sequence for sequence in held if sequence.live]

    @contextmanager
    def try_lock(self, sequence: Sequence) -> Iterator[bool]:
        """Hold the lock of a live sequence if nobody has it. Never waits."""
        if not sequence.lock.acquire(blocking=False):
            yield False
            return
        try:
            yield sequence.live
        finally:
            sequence.lock.release()


def _checked(request_id: object) -> str:
    if not isinstance(request_id, str):
        raise InvalidArgument(f"request_id must be a str, not {request_id!r}")
    return request_id
