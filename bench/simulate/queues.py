"""Servers that take turns: a simulation by events, in the order of time.

An operation is a generator of steps. A step travels, is served by a station, and travels on. A station serves one step
after the other, in the order in which they arrive, each for a fixed time: it needs no list of who waits, only the time
at which it will be free. So what a step sees at a station is what all steps that arrived before it have left there.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence

Station = tuple[str, int, int]  #: (kind, rank, number)
Step = tuple[float, Station | None, float, float]  #: (way there, station or None, time of service, way back): in us
Operation = Generator[Step, None, None]

MOST_STEPS = 200  #: of an operation, on average: with more, operations mostly repeat what others have undone
LATE = 0.01  #: the share of operations that may be late


class Collapsed(Exception):
    """The operations keep each other from ending, or too many of them are late."""


class Gate:
    """Lets so many operations of a rank begin; the others wait at home, in their order. No limit: `at_once` is None."""

    def __init__(self, rank_of: Sequence[int], at_once: int | None) -> None:
        self._rank_of, self._at_once = rank_of, at_once
        self._inside: defaultdict[int, int] = defaultdict(int)
        self._waiting: defaultdict[int, deque[int]] = defaultdict(deque)

    def enter(self, i: int) -> bool:
        """Whether an operation may begin now; if not, `leave` returns it later."""
        if self._at_once is None:
            return True
        rank = self._rank_of[i]
        if self._inside[rank] >= self._at_once:
            self._waiting[rank].append(i)
            return False
        self._inside[rank] += 1
        return True

    def leave(self, i: int) -> int | None:
        """An operation has ended: the one that begins in its place."""
        if self._at_once is None:
            return None
        rank = self._rank_of[i]
        if self._waiting[rank]:
            return self._waiting[rank].popleft()
        self._inside[rank] -= 1
        return None


class Queues:
    """The stations, and the operations on their way between them.

    Attributes:
        busy: station -> us that it has served; visits: how many steps.
        in_flight: us that operations took from their beginning, all together.
    """

    def __init__(self) -> None:
        self._free: defaultdict[Station, float] = defaultdict(float)
        self.busy: defaultdict[Station, float] = defaultdict(float)
        self.visits: defaultdict[Station, int] = defaultdict(int)
        self.in_flight = 0.0

    def run(
        self,
        arrivals: Sequence[float],
        begin: Callable[[int], Operation],
        gate: Gate,
        late: float | None = None,
        most: int | None = None,
    ) -> list[float]:
        """Run operations until all have ended: the time at which each did.

        Args:
            arrivals: when each operation arrives, in us, ascending.
            begin: makes the steps of the i-th operation when it begins.
            late: us; None: no operation is late.
            most: steps of all operations together; None: MOST_STEPS for each.

        Raises:
            Collapsed: they took more than `most` steps, or more than a share LATE of them longer than `late`.
        """
        ends = [0.0] * len(arrivals)
        doing: list[Operation | None] = [None] * len(arrivals)
        steps: list[Step | None] = [None] * len(arrivals)
        events = [(when, i, i) for i, when in enumerate(arrivals)]  # (time, tie-break, operation): sorted, so a heap
        patience, number = LATE * len(arrivals), len(arrivals)
        most = most or MOST_STEPS * len(arrivals)
        while events:
            now, _, i = heapq.heappop(events)
            step, operation = steps[i], doing[i]
            if operation is not None and step is not None:
                now = self._serve(now, step)
            elif operation is not None:
                ends[i], doing[i] = now, None
                self.in_flight += now
                patience -= late is not None and now - arrivals[i] > late
                following = gate.leave(i)
                if patience < 0:
                    raise Collapsed
                if following is None:
                    continue
                i = following
            elif not gate.enter(i):
                continue
            if operation is None or step is None:
                self.in_flight -= now
                operation = doing[i] = begin(i)
            step = steps[i] = next(operation, None)
            number += 1
            if number > most:
                raise Collapsed
            heapq.heappush(events, (now + step[0] if step else now, number, i))
        return ends

    def _serve(self, now: float, step: Step) -> float:
        """Serve a step that arrives now: when it is back."""
        _, station, service, back = step
        if station is not None:
            free = self._free[station]
            now = (free if free > now else now) + service
            self._free[station] = now
            self.busy[station] += service
            self.visits[station] += 1
        return now + back
