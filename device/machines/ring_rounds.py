"""Rounds of a poller in native code: it takes hints into the index, and pauses, without the interpreter's lock.

A poller that holds that lock, 0.1 ms of each millisecond, lets the other threads of its process wait: a put that should
take 5 µs took 150. Here the lock is free until the host has something to do. The pauses are short after a round with
hints, and become longer: so an index is some tens of microseconds behind the producers while they are at work, and the
poller takes little of a core when they are not. In a member of a cluster it is up to 0.25 ms behind: there each of
these rounds is taken from the thread that serves others.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.native_code import compiled
from nanokv.device.machines.records import Position, Words
from nanokv.device.segment.host_records import CHANGE, ROUNDS, SECOND
from nanokv.device.segment.layout import WORD

MOST_HINTS = 4096  #: taken from the ring in one round
LEAST_PAUSE = 20_000  #: ns
TELLING_PAUSE = 250_000  #: ns, instead: while outboxes alone hear of changes, whose readers rest for milliseconds
MOST_PAUSE = 500_000  #: ns
PATIENCE = 10_000_000  #: ns

_END, _CHANGES, _LEAST_PAUSE, _OUTBOXES, _OUTBOX_COUNT = (
    ROUNDS.offsets[name] // WORD for name in ("end", "changes", "least_pause", "outboxes", "outbox_count")
)


def _words_of(names: Sequence[str]) -> slice:
    """The words of fields that lie side by side."""
    first = ROUNDS.offsets[names[0]] // WORD
    assert [ROUNDS.offsets[name] // WORD - first for name in names] == list(range(len(names))), names
    return slice(first, first + len(names))


_POSITION = _words_of(Position._fields)
_ANSWERS = _words_of(("taken", "removed", "corrupt", "wanted", "changed"))


class RoundsDone(NamedTuple):
    """What a call of `RingRounds.run` has done."""

    position: Position
    taken: int  #: hints
    removed: int  #: of these: removals
    corrupt: int  #: of these: of no known kind, or about a slot that does not exist
    wanted: int  #: the largest size class that a producer did not get, or -1
    idle: bool  #: whether no hint came for a while
    changes: npt.NDArray[Any]  #: CHANGE records, if they were asked for; valid until the next call


class RingRounds:
    """The native rounds of one rank's poller. For one thread at a time, the owner of the ring's tail.

    Args:
        table: the address of the rank's world table.
        lives: of the index: int64 [slots], per slot the STATE word of its row, without pins, or NO_ROW.
        rows: of the index: int64 [slots, words of a header].
        asked: int64 [1]; not 0 ends a call soon. Any thread may write it.
        hole_patience: seconds to come back to a ring slot whose producer took the ticket and has not filled it.
    """

    def __init__(self, table: int, owner: int, lives: Words, rows: Words, asked: Words, hole_patience: float) -> None:
        self._hints = np.empty(MOST_HINTS, np.int64)
        self._changes = np.empty(2 * MOST_HINTS, CHANGE.dtype)
        self._kept = lives, rows, asked  # the code has their addresses
        self._changes_at = int(self._changes.ctypes.data)
        fields = np.zeros(1, ROUNDS.dtype)
        self._words = fields.view(np.int64)  # numpy sets words in a quarter of the time of fields
        for name, array in (("lives", lives), ("rows", rows), ("asked", asked), ("hints", self._hints)):
            fields[name] = array.ctypes.data
        fields["room"] = MOST_HINTS
        fields["patience"], fields["hole_patience"] = PATIENCE, int(hole_patience * SECOND)
        fields["most_pause"] = MOST_PAUSE
        self._code = partial(compiled()["rounds"], table, owner, self._words.ctypes.data)

    def run(self, position: Position, seconds: float, *, listens: bool, outboxes: Words) -> RoundsDone:
        """Take hints until the host has something to do, at most for `seconds`.

        Args:
            listens: the call ends after a round that has changed the index, and says how.
            outboxes: addresses of OUTBOXes that hear of each change; for them it does not end.
        """
        words = self._words
        words[_POSITION] = position
        words[_ANSWERS] = 0
        words[_END] = time.monotonic_ns() + int(seconds * SECOND)
        words[_CHANGES] = self._changes_at if listens else 0
        words[_LEAST_PAUSE] = TELLING_PAUSE if len(outboxes) and not listens else LEAST_PAUSE
        words[_OUTBOX_COUNT] = len(outboxes)
        if len(outboxes):
            words[_OUTBOXES] = outboxes.ctypes.data
        idle = self._code()
        where = Position(*words[_POSITION].tolist())
        taken, removed, corrupt, wanted, changed = words[_ANSWERS].tolist()
        return RoundsDone(where, taken, removed, corrupt, wanted - 1, bool(idle), self._changes[:changed])
