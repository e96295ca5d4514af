"""Rounds of a poller in native code: it takes hints into the index, and pauses, without the interpreter's lock.

A poller that holds that lock, 0.1 ms of each millisecond, lets the other threads of its process wait: a put that should
take 5 µs took 150. Here the lock is free until the host has something to do. The pauses are short after a round with
hints, and become longer: so an index is some tens of microseconds behind the producers while they are at work, and the
poller takes little of a core when they are not.
"""

import time
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.native_code import compiled
from nanokv.device.machines.records import Position, Words
from nanokv.device.segment.host_records import (
    CHANGE,
    ROUNDS,
    SECOND,
)

MOST_HINTS = 4096  #: taken from the ring in one round
LEAST_PAUSE = 20_000  #: ns
MOST_PAUSE = 500_000  #: ns
PATIENCE = 10_000_000  #: ns


class Rounds(NamedTuple):
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
        self._fields = np.zeros(1, ROUNDS.dtype)
        self._box = self._fields[0]
        for name, array in (("lives", lives), ("rows", rows), ("asked", asked), ("hints", self._hints)):
            self._box[name] = array.ctypes.data
        self._box["room"] = MOST_HINTS
        self._box["patience"], self._box["hole_patience"] = PATIENCE, int(hole_patience * SECOND)
        self._box["least_pause"], self._box["most_pause"] = LEAST_PAUSE, MOST_PAUSE
        self._code = partial(compiled()["rounds"], table, owner, self._fields.ctypes.data)

    def run(self, position: Position, seconds: float, *, listens: bool) -> Rounds:
        """Take hints until the host has something to do, at most for `seconds`.

        Args:
            listens: the call ends after a round that has changed the index, and says how.
        """
        box = self._box
        for name, value in position._asdict().items():
            box[name] = value
        for name in ("taken", "removed", "corrupt", "wanted", "changed"):
            box[name] = 0
        box["end"] = time.monotonic_ns() + int(seconds * SECOND)
        box["changes"] = self._changes.ctypes.data if listens else 0
        idle = self._code()
        where = Position(*(int(box[name]) for name in Position._fields))
        taken, removed, corrupt, wanted = (int(box[name]) for name in ("taken", "removed", "corrupt", "wanted"))
        return Rounds(where, taken, removed, corrupt, wanted - 1, bool(idle), self._changes[: int(box["changed"])])
