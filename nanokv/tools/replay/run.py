"""One capacity: the real cache, beside simulated policies and the best that is possible."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nanokv.config import Policy
from nanokv.tools.replay.limits import best_rate
from nanokv.tools.replay.policies import POLICIES, hit_rate
from nanokv.tools.replay.producers import Nanoseconds, Outcome, replay
from nanokv.tools.replay.trace import Trace


class Times(NamedTuple):
    """Of one operation, in microseconds; None if there was none."""

    p50: float | None
    p99: float | None


class Row(NamedTuple):
    """A capacity in blocks, block hit rates, and how the real cache came to its own."""

    capacity: int
    rate: float
    policies: dict[str, float]  #: by name
    possible: float  #: no policy has more
    evicted: int
    refused: int
    put_us: Times
    get_us: Times

    @property
    def best(self) -> str:
        """The name of the best simulated policy."""
        return max(self.policies, key=self.policies.__getitem__)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return self._asdict() | {"put_us": self.put_us._asdict(), "get_us": self.get_us._asdict()}


def run(
    trace: Trace, capacity: int, producers: int, progress: Callable[[int], None], policy: Policy | None = None
) -> Row:
    """Replay a trace. Arguments and errors are those of `producers.replay`."""
    room = min(capacity, trace.different + producers)  # a larger cache is never full
    found: Outcome = replay(trace, room, producers, progress, policy)
    return Row(
        capacity,
        found.hits / len(trace.blocks),
        {name: hit_rate(trace, policy(capacity)) for name, policy in POLICIES.items()},
        best_rate(trace, capacity),
        found.evicted,
        found.refused,
        _times(found.put_ns),
        _times(found.get_ns),
    )


def _times(ns: Nanoseconds) -> Times:
    return Times(*(np.percentile(ns, [50, 99]) / 1000).round(1).tolist()) if len(ns) else Times(None, None)
