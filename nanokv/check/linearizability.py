"""Is a history linearizable? Each operation must take effect at one moment between its call and its return.

Source: Wing and Gong (1993), with the cache of configurations of Lowe (2017): a configuration is the set of operations
that have taken effect and the state they led to, and each is explored once. An operation whose process was killed never
returned: it may have taken effect at any later moment, or never. Histories of different objects are checked apart:
linearizability is local (Herlihy and Wing 1990).
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

NEVER = 1 << 62  #: when an operation returned that did not
State = Hashable


class Operation(NamedTuple):
    """One call, as its caller saw it. Times are of any clock that all callers share."""

    called: int
    returned: int  #: NEVER if its process was killed meanwhile
    what: str
    value: int  #: of a put, or that a get returned
    answer: str  #: "" if it never returned
    who: str = ""

    def __str__(self) -> str:
        ended = "never" if self.returned == NEVER else str(self.returned)
        return f"{self.called}..{ended} {self.who} {self.what}({self.value or ''}) -> {self.answer}"


Step = Callable[[Any, Operation], Iterable[Any]]  #: (state, operation) -> the states that it may lead to


@dataclass
class Verdict:
    """Whether a history is linearizable; None if too many configurations had to be tried."""

    holds: bool | None
    explored: int
    stuck: list[Operation]  #: operations of which none could come next, where the search got furthest


def check(history: Sequence[Operation], step: Step, initial: State, most: int = 2_000_000) -> Verdict:
    """Search an order of the operations that fits their times and the specification.

    Args:
        step: the specification of one object; no states: the operation could not have given this answer there.
        most: configurations to explore before giving up.
    """
    operations = sorted(history, key=lambda operation: operation.called)
    return _Search(operations, step, most).run(initial)


class _Search:
    """`first`: all operations before it have taken effect; `done`: those behind it that have, as bits from it on."""

    def __init__(self, operations: list[Operation], step: Step, most: int) -> None:
        self._operations = operations
        self._step = step
        self._most = most
        never = [at for at, operation in enumerate(operations) if operation.returned == NEVER]
        self._returned = min(never, default=len(operations))  #: before it all returned

    def run(self, initial: State) -> Verdict:
        seen: set[tuple[int, int, State]] = set()
        stack = [(0, 0, initial)]
        furthest = 0
        stuck: list[Operation] = []
        while stack:
            config = stack.pop()
            if config in seen:
                continue
            seen.add(config)
            first, done, state = config
            if self._is_over(first, done):
                return Verdict(True, len(seen), [])
            if len(seen) > self._most:
                return Verdict(None, len(seen), stuck)
            candidates = self._candidates(first, done)
            if first >= furthest:
                furthest, stuck = first, [self._operations[at] for at in candidates]
            for at in candidates:
                for after in self._step(state, self._operations[at]):
                    stack.append((*self._with(first, done, at), after))
        return Verdict(False, len(seen), stuck)

    def _is_over(self, first: int, done: int) -> bool:
        """Whether all that is left never returned: it need not have taken effect."""
        return first >= self._returned and all(
            done >> at & 1 or operation.returned == NEVER for at, operation in enumerate(self._operations[first:])
        )

    def _candidates(self, first: int, done: int) -> list[int]:
        """Operations that can come next: called before any that is left returned."""
        found = []
        earliest = NEVER
        for at in range(first, len(self._operations)):
            operation = self._operations[at]
            if operation.called > earliest:
                break
            if not done >> (at - first) & 1:
                found.append(at)
                earliest = min(earliest, operation.returned)
        return found

    def _with(self, first: int, done: int, at: int) -> tuple[int, int]:
        done |= 1 << (at - first)
        while done & 1:
            first, done = first + 1, done >> 1
        return first, done
