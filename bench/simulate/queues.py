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


class Collapsed(Exception):
    """The operations keep each other from ending."""


class Queues:
    """The stations, and the operations on their way between them.

    Attributes:
        busy: station -> us that it has served.
        served: steps so far.
    """

    def __init__(self) -> None:
        self._free: defaultdict[Station, float] = defaultdict(float)
        self.busy: defaultdict[Station, float] = defaultdict(float)
        self.served = 0

    def run(
        self,
        arrivals: Sequence[float],
        begin: Callable[[int], Operation],
        rank_of: Sequence[int] | None = None,
        at_once: int | None = None,
    ) -> list[float]:
        """Run operations until all have ended: the time at which each did.

        Args:
            arrivals: when each operation arrives, in us, ascending.
            begin: makes the steps of the i-th operation when it begins.
            rank_of: the rank of each operation, of which at most `at_once` are in flight; later ones wait at home.

        Raises:
            Collapsed: they took more than MOST_STEPS steps each.
        """
        ends = [0.0] * len(arrivals)
        running: defaultdict[int, int] = defaultdict(int)
        waiting: defaultdict[int, deque[int]] = defaultdict(deque)
        steps: dict[int, Operation] = {}
        now_at: dict[int, Step] = {}
        events = [(when, i, i) for i, when in enumerate(arrivals)]  # (time, tie-break, operation): sorted, so a heap
        number, most = len(events), MOST_STEPS * len(events)
        while events:
            now, _, i = heapq.heappop(events)
            if i in now_at:
                now = self._serve(now, now_at.pop(i))
            elif i in steps:  # the end
                ends[i] = now
                del steps[i]
                if at_once is None or rank_of is None:
                    continue
                running[rank_of[i]] -= 1
                if not waiting[rank_of[i]]:
                    continue
                i = waiting[rank_of[i]].popleft()
                running[rank_of[i]] += 1
                steps[i] = begin(i)
            elif at_once is not None and rank_of is not None and running[rank_of[i]] >= at_once:
                waiting[rank_of[i]].append(i)
                continue
            else:
                if rank_of is not None:
                    running[rank_of[i]] += 1
                steps[i] = begin(i)
            step = next(steps[i], None)
            if step is not None:
                now_at[i] = step
                now += step[0]
            number += 1
            if number > most:
                raise Collapsed(f"more than {MOST_STEPS} steps an operation")
            heapq.heappush(events, (now, number, i))
        return ends

    def _serve(self, now: float, step: Step) -> float:
        """Serve a step that arrives now: when it is back."""
        _, station, service, back = step
        self.served += 1
        if station is not None:
            now = max(now, self._free[station]) + service
            self._free[station] = now
            self.busy[station] += service
        return now + back
