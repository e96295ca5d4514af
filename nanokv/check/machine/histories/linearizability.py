"""Is a history linearizable? Each operation must take effect at one moment between its call and its return.

Source: Wing and Gong (1993), with the cache of configurations of Lowe (2017): a configuration is the set of operations
that have taken effect and the state they led to, and each is explored once. An operation whose process was killed never
returned: it may have taken effect at any later moment, or never. Histories of different objects are checked apart:
linearizability is local (Herlihy and Wing 1990).

Operations are in the order of their calls, and a configuration names the first one that is left and, as bits from it
on, those behind it that are done. So at a moment at which no operation is under way only the possible states remain,
and thousands of operations cost little more than each stretch between two such moments.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

NEVER = 1 << 62  #: the time of return of an operation that did not return
State = Hashable


class Operation(NamedTuple):
    """One call, as its caller saw it. Times are of any clock that all callers share."""

    called: int
    returned: int  #: NEVER if its process was killed meanwhile
    call: str  #: "put", "get", "remove", "exists"
    value: int  #: stored by a put, or returned by a get
    answer: str  #: "" if it never returned
    caller: str = ""
    excused: bool = False  #: another operation at the same time may explain its answer (`key_model`)


Step = Callable[[Any, Operation], Iterable[Any]]  #: (state, operation) -> the states that it may lead to


@dataclass
class Verdict:
    """Whether a history is linearizable; None if too many configurations had to be tried."""

    holds: bool | None
    explored: int
    done: int = 0  #: operations that had taken effect where the search got furthest
    state: State = None  #: after those
    left: list[Operation] = field(default_factory=list)  #: one of these would have to come next there


def check(history: Iterable[Operation], step: Step, initial: State, most: int = 2_000_000) -> Verdict:
    """Search an order of the operations that fits their times and the specification.

    Args:
        step: the specification of one object; no states: the operation could not have given this answer there.
        most: configurations to explore before giving up.
    """
    operations = sorted(history, key=lambda operation: operation.called)
    return _Search(operations, step, most).run(initial)


def shortest_prefix(history: Sequence[Operation], step: Step, initial: State, most: int = 2_000_000) -> list[Operation]:
    """The operations called before the first answer that fits no order, of a history that is not linearizable.

    The last operation that returned is the one with this answer.

    Raises:
        ValueError: every prefix may hold.
    """
    ends = sorted({operation.returned for operation in history if operation.returned != NEVER})
    # a history that holds up to a moment holds up to each earlier one
    at = bisect_left(ends, True, key=lambda end: check(until(history, end), step, initial, most).holds is False)
    if at == len(ends):
        raise ValueError(f"no prefix of these {len(history)} operations is known not to be linearizable")
    return until(history, ends[at])


def until(history: Iterable[Operation], end: int) -> list[Operation]:
    """A history as it was known at a moment: without later calls and later answers."""
    return [
        operation if operation.returned <= end else operation._replace(returned=NEVER, answer="")
        for operation in history
        if operation.called <= end
    ]


class _Search:
    def __init__(self, operations: list[Operation], step: Step, most: int) -> None:
        self._operations = operations
        self._step = step
        self._most = most

    def run(self, initial: State) -> Verdict:
        seen: set[tuple[int, int, State]] = set()
        stack = [(0, 0, initial)]
        furthest = Verdict(False, 0, -1)
        while stack:
            config = stack.pop()
            if config in seen:
                continue
            seen.add(config)
            first, done, state = config
            if first == len(self._operations):
                return Verdict(True, len(seen), first, state)
            candidates = self._candidates(first, done)
            if first + done.bit_count() > furthest.done:
                left = [self._operations[at] for at in candidates]
                furthest = Verdict(False, 0, first + done.bit_count(), state, left)
            if len(seen) > self._most:
                furthest.holds = None
                break
            # the operation that returns last is tried last: it is rarely next, and one that never returned hardly ever
            for at in sorted(candidates, key=lambda at: -self._operations[at].returned):
                stack.extend((*_with(first, done, at), after) for after in self._after(state, at))
        furthest.explored = len(seen)
        return furthest

    def _after(self, state: State, at: int) -> set[State]:
        """The states that an operation may lead to. One that never returned may do nothing."""
        operation = self._operations[at]
        nothing = {state} if operation.returned == NEVER else set()
        return nothing | set(self._step(state, operation))

    def _candidates(self, first: int, done: int) -> list[int]:
        """Operations that can come next: called before any that is left returned."""
        found: list[int] = []
        earliest = NEVER
        left = ~done
        while True:
            lowest = left & -left
            at = first + lowest.bit_length() - 1
            if at >= len(self._operations) or self._operations[at].called > earliest:
                return found
            found.append(at)
            earliest = min(earliest, self._operations[at].returned)
            left ^= lowest


def _with(first: int, done: int, at: int) -> tuple[int, int]:
    done |= 1 << (at - first)
    ones = (~done & (done + 1)).bit_length() - 1
    return first + ones, done >> ones
