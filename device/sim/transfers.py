"""Transfers between hosts in simulated memory: torn copies, of which only the end is ordered.

The words of a transfer are read in any order, each at a moment of its own, while all other tasks go on. What is read,
and what comes before it, is behind whoever knows that the transfer has ended (`Memory.glance`). A transfer that nobody
waits for any more goes on all the same.
"""

import random
from collections.abc import Sequence

from nanokv.device.sim.memory import SHARED, View, join
from nanokv.device.sim.simulation import STORE, Simulation, private_word

ORDERS = 8  #: of the words: as they lie, backwards, and some without order
_WORD = 8

Row = tuple[int, int, int]  #: (address to which bytes are copied, address from which they come, how many)


class TransferInMemory:
    """A copy of rows of words that is under way. Its words move when `move` is called, in a task.

    The task that calls `move` is the one that posted the transfer: it is the reader, also if it does other things
    meanwhile.
    """

    def __init__(self, simulation: Simulation, rows: Sequence[Row]) -> None:
        self._simulation = simulation
        words = [(here + at, there + at) for here, there, nbytes in rows for at in range(0, nbytes, _WORD)]
        self.count = len(words)
        self._left = _arranged(words, simulation.decide_order(ORDERS))
        self._seen: list[View] = []

    @property
    def ended(self) -> bool:
        """Whether all bytes are there."""
        return not self._left

    def move(self, count: int) -> None:
        """Move some more words. With the last one, what the transfer saw comes before what its reader does next."""
        simulation = self._simulation
        for _ in range(min(count, len(self._left))):
            to, source = self._left.pop()
            value, seen = simulation.glance(source)
            self._seen.append(seen)
            self._put(to, value)
        if self.ended and simulation.current is not None:
            for seen in self._seen:
                join(simulation.current.view, seen)
                simulation.current.behind = dict(simulation.current.view)
            self._seen.clear()

    def _put(self, to: int, value: int) -> None:
        simulation = self._simulation
        if to < SHARED:
            private_word(to).value = value
        else:
            simulation.memory.store(simulation.point(STORE, to), to, value, "relaxed")


def _arranged(words: list[tuple[int, int]], order: int) -> list[tuple[int, int]]:
    """The words in one of ORDERS, the first one last."""
    if order > 1:
        random.Random(order).shuffle(words)
    elif order == 0:
        words.reverse()
    return words
