"""Notes of calls: a file of words for each thread and round, mapped into memory, so that a SIGKILL loses none.

A call is noted before it begins. One whose row has no time of return was cut off.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanokv.check.machine.histories.key_model import DUPLICATE, FULL, KILLED, MISS, NOT_READY, OK
from nanokv.check.machine.histories.linearizability import NEVER

LOST, WRONG, NOTHING = "LOST", "WRONG", "NOTHING"  #: PeerLost; wrong bytes; a put that stored nothing
CALLS = ("put", "get", "remove", "exists")
ANSWERS = (KILLED, OK, MISS, DUPLICATE, NOT_READY, FULL, LOST, WRONG, NOTHING)
MOST_ROWS = 20_000  #: of a thread in a round; it makes no more calls then
NO_HOME = -1
_CALLED, _RETURNED, _CALL, _KEY, _VALUE, _ANSWER, _HOME, _MANY, _AUDIT, _WORDS = range(10)


class Call(NamedTuple):
    """A call about one key. One for many keys is a call for each of them, all at the same time.

    Attributes:
        called, returned: ns of the clock that all processes of this host share; NEVER: it did not return.
        value: the version that was put or read.
        home: the number of the node that was the key's home before and after a put, for its caller; or NO_HOME.
        many: it was a call for many keys.
        audit: it was made after the round, when all nodes reached each other again.
        node: the number of the caller's node.
        caller: its name, for people.
    """

    called: int
    returned: int
    call: str
    key: int
    value: int
    answer: str
    home: int
    many: bool
    audit: bool
    node: int
    caller: str


class CallLog:
    """The notes of one thread in one round.

    Args:
        folder: where the files of all are.
        node, run, thread: who it is; run: of the node's process.
    """

    def __init__(self, folder: Path, round_: int, node: int, run: int, thread: int) -> None:
        self._rows = np.memmap(_path(folder, round_, node, run, thread), np.int64, "w+", shape=(MOST_ROWS, _WORDS))
        self._count = 0

    def has_room(self, count: int) -> bool:
        """Whether so many more calls can be noted."""
        return self._count + count <= MOST_ROWS

    def begin(self, called: int, call: str, key: int, value: int, *, many: bool = False, audit: bool = False) -> int:
        """Note a call that begins now: the number of its row."""
        row = self._rows[self._count]
        row[_CALL], row[_KEY], row[_VALUE], row[_HOME] = CALLS.index(call), key, value, NO_HOME
        row[_MANY], row[_AUDIT] = many, audit
        row[_CALLED] = called
        self._count += 1
        return self._count - 1

    def end(self, row: int, returned: int, answer: str, value: int | None = None, home: int = NO_HOME) -> None:
        """Note what was answered. value: of a get."""
        words = self._rows[row]
        if value is not None:
            words[_VALUE] = value
        words[_ANSWER], words[_HOME] = ANSWERS.index(answer), home
        words[_RETURNED] = returned


def read_calls(folder: Path, round_: int) -> Iterator[Call]:
    """All calls of a round, of all threads. Nobody writes meanwhile."""
    for path in sorted(folder.glob(f"{round_}.*.calls")):
        node = int(path.name.split(".")[1])
        caller = "node {} run {} thread {}".format(*path.name.split(".")[1:4])
        rows = np.memmap(path, np.int64, "r", shape=(MOST_ROWS, _WORDS))
        for row in rows[: int((rows[:, _CALLED] == 0).argmax()) or MOST_ROWS].tolist():
            if row[_CALLED]:
                yield _call(row, node, caller)


def is_putting(folder: Path, round_: int, node: int, run: int, thread: int) -> bool:
    """Whether a thread is in the middle of a put, as far as its notes tell now."""
    rows = np.memmap(_path(folder, round_, node, run, thread), np.int64, "r", shape=(MOST_ROWS, _WORDS))
    last = rows[int((rows[:, _CALLED] == 0).argmax()) - 1]
    return bool(last[_CALLED] and not last[_RETURNED] and last[_CALL] == CALLS.index("put"))


def forget_calls(folder: Path, round_: int) -> None:
    """Remove the notes of a round."""
    for path in folder.glob(f"{round_}.*.calls"):
        path.unlink()


def _path(folder: Path, round_: int, node: int, run: int, thread: int) -> Path:
    return folder / f"{round_}.{node}.{run}.{thread}.calls"


def _call(row: list[int], node: int, caller: str) -> Call:
    answer = ANSWERS[row[_ANSWER]]
    returned = row[_RETURNED] or NEVER
    return Call(
        row[_CALLED],
        returned,
        CALLS[row[_CALL]],
        row[_KEY],
        row[_VALUE],
        answer if row[_RETURNED] else KILLED,
        row[_HOME],
        bool(row[_MANY]),
        bool(row[_AUDIT]),
        node,
        caller,
    )
