"""Numbers that several processes take, each number once, where any of the processes may be killed at any moment.

A lock in shared memory stays taken when its holder is killed. The kernel's lock on a file ends with its holder, and
the owner of the numbers takes no lock at all: it reads a word, and sets another that ends the taking.
"""

import fcntl
import multiprocessing
from collections.abc import Iterator
from pathlib import Path

_PROCESSES = multiprocessing.get_context("spawn")


class Tickets:
    """The numbers 0 to count - 1. It goes to other processes as an argument of theirs.

    Args:
        lock: a file that nothing else uses.
    """

    def __init__(self, count: int, lock: Path) -> None:
        lock.touch()
        self._count, self._lock = count, lock
        self._next, self._ended = _PROCESSES.RawValue("q", 0), _PROCESSES.RawValue("b", 0)

    @property
    def taken(self) -> int:
        """How many are taken."""
        return int(self._next.value)

    def end(self) -> None:
        """No process takes another one."""
        self._ended.value = 1

    def take(self) -> Iterator[int]:
        """All numbers that this process gets, until none is left.

        A process that is killed loses at most the number that it was about to take, and stops nobody.
        """
        with self._lock.open() as file:
            while (number := self._take(file.fileno())) < self._count and not self._ended.value:
                yield number

    def _take(self, file: int) -> int:
        fcntl.flock(file, fcntl.LOCK_EX)
        number = self.taken
        self._next.value = min(number + 1, self._count)
        fcntl.flock(file, fcntl.LOCK_UN)
        return number
