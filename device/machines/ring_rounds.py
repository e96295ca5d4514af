"""Rounds of a poller in native code: it takes hints into the index, and pauses, without the interpreter's lock.

A poller that holds that lock, 0.1 ms of each millisecond, lets the other threads of its process wait: a put that should
take 5 µs took 150. Here the lock is free until the host has something to do. The pauses are short after a round with
hints, and become longer: so an index is some tens of microseconds behind the producers while they are at work, and the
poller takes little of a core when they are not.
"""

import sys
import time
from functools import partial
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import triton
import triton.language as tl
from numba.core import types

from nanokv.device.machines.native_code import native_function
from nanokv.device.machines.records import NO_HOLE, Position, Words
from nanokv.device.memory.native import store64 as store
from nanokv.device.memory.native import table64
from nanokv.device.memory.triton import load64, select, store64, word
from nanokv.device.protocol.ingest import ingest
from nanokv.device.segment.host_records import (
    CHANGE,
    R_ASKED,
    R_CHANGED,
    R_CLOCK,
    R_END,
    R_HEAD,
    R_HOLE,
    R_HOLE_HEAD,
    R_HOLE_PATIENCE,
    R_HOLE_SINCE,
    R_LEAST_PAUSE,
    R_MOST_PAUSE,
    R_PATIENCE,
    R_TAIL,
    R_TAKEN,
    R_WANTED,
    ROUNDS,
)
from nanokv.device.segment.layout import ANN_TAIL, WORD
from nanokv.device.segment.world_table import World, segment

MOST_HINTS = 4096  #: taken from the ring in one round
LEAST_PAUSE = 20_000  #: ns
MOST_PAUSE = 500_000  #: ns
PATIENCE = 10_000_000  #: ns
_NO_HOLE = tl.constexpr(NO_HOLE)
_SECOND = 1_000_000_000
_MONOTONIC = 1  # Linux' number of the clock of `time.monotonic_ns`

_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))
_nanosleep: Any = types.ExternalFunction("nanosleep", types.int32(types.int64, types.int64))


@numba.njit(inline="always")
def now_ns(room: Any) -> Any:
    """The time of `time.monotonic_ns`. `room`: two words."""
    _clock_gettime(_MONOTONIC, room)
    return table64(room) * _SECOND + table64(room + WORD)


@numba.njit(inline="always")
def nap(room: Any, ns: Any) -> None:
    """Sleep for less than a second. `room`: two words."""
    store(room, 0, "relaxed")
    store(room + WORD, ns, "relaxed")
    _nanosleep(room, 0)


@triton.jit
def advance(box: tl.int64, head: tl.int64, hole: tl.int64, now: tl.int64) -> None:
    """`Position.advanced`."""
    waits = load64(box + R_HOLE, "relaxed")
    tail = head
    if hole == head:
        waits = word(_NO_HOLE)
    elif (waits == _NO_HOLE) | (waits < load64(box + R_TAIL, "relaxed")):
        tail, waits = hole, hole
        store64(box + R_HOLE_SINCE, now, "relaxed")
        store64(box + R_HOLE_HEAD, head, "relaxed")
    elif now - load64(box + R_HOLE_SINCE, "relaxed") > load64(box + R_HOLE_PATIENCE, "relaxed"):
        tail, waits = load64(box + R_HOLE_HEAD, "relaxed"), word(_NO_HOLE)
    else:
        tail = load64(box + R_TAIL, "relaxed")
    store64(box + R_HOLE, waits, "relaxed")
    store64(box + R_TAIL, tail, "relaxed")


@triton.jit
def one_round(world: World, owner: tl.int64, box: tl.int64, now: tl.int64) -> Any:
    """Take hints once, and let producers have the ring slots back. Returns how many."""
    before = load64(box + R_TAKEN, "relaxed")
    tail = load64(box + R_TAIL, "relaxed")
    head, hole = ingest(world, owner, box)
    store64(box + R_HEAD, head, "relaxed")
    if head != tail:
        advance(box, head, hole, now)
        store64(segment(world, owner) + ANN_TAIL, load64(box + R_TAIL, "relaxed"), "relaxed")
    return load64(box + R_TAKEN, "relaxed") - before


@triton.jit
def rounds(world: World, owner: tl.int64, box: tl.int64) -> Any:
    """Take hints, round after round, until the host has something to do (ROUNDS record at `box`).

    That is: the time is over, somebody asks for the end, there are changes that a listener waits for, a producer was
    refused, or no hint came for a while: then 1, else 0.
    """
    now = now_ns(box + R_CLOCK)
    quiet_since = now
    pause = load64(box + R_LEAST_PAUSE, "relaxed")
    idle = word(0)
    ends = word(0)
    while ends == 0:
        if one_round(world, owner, box, now) > 0:
            quiet_since = now
            pause = load64(box + R_LEAST_PAUSE, "relaxed")
        idle = select(now - quiet_since >= load64(box + R_PATIENCE, "relaxed"), word(1), word(0))
        late = now >= load64(box + R_END, "relaxed")
        heard = (load64(box + R_CHANGED, "relaxed") | load64(box + R_WANTED, "relaxed")) != 0
        asked = load64(load64(box + R_ASKED, "relaxed"), "relaxed") != 0
        ends = select((idle != 0) | late | heard | asked, word(1), word(0))
        if ends == 0:
            nap(box + R_CLOCK, pause)
            if now != quiet_since:
                most = load64(box + R_MOST_PAUSE, "relaxed")
                pause = select(pause * 2 > most, most, pause * 2)
            now = now_ns(box + R_CLOCK)
    return idle


def supported() -> bool:
    """Whether this system has the clock and the sleep that the native code calls."""
    return sys.platform == "linux"


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
        self._box["patience"], self._box["hole_patience"] = PATIENCE, int(hole_patience * _SECOND)
        self._box["least_pause"], self._box["most_pause"] = LEAST_PAUSE, MOST_PAUSE
        self._code = partial(native_function(rounds, 3), table, owner, self._fields.ctypes.data)

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
        box["end"] = time.monotonic_ns() + int(seconds * _SECOND)
        box["changes"] = self._changes.ctypes.data if listens else 0
        idle = self._code()
        where = Position(*(int(box[name]) for name in Position._fields))
        taken, removed, corrupt, wanted = (int(box[name]) for name in ("taken", "removed", "corrupt", "wanted"))
        return Rounds(where, taken, removed, corrupt, wanted - 1, bool(idle), self._changes[: int(box["changed"])])
