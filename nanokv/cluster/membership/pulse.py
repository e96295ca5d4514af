"""Whether a registry answers, and since when, by the monotonic clock of this process.

Members that vanish from a registry which has just come back may only not have joined again yet: it restarted without
its data, or ended their leases after it had been stopped. So for `grace` seconds after a return nobody is dropped.
A return is also noticed if nothing failed: by the time since the registry was last heard of.
"""

import logging
import math
import threading
import time

logger = logging.getLogger("nanokv.cluster")


class Pulse:
    """The pulse of one registry. It is heard by several parts (a lease, a watch); it is away while any of them fails.

    Args:
        what: names the registry in the log.
        ttl: seconds of a lease. Each part hears of the registry every ttl / 3 or oftener.
    """

    def __init__(self, what: str, ttl: float) -> None:
        self.grace = ttl  #: seconds; raised by a registry whose leases are longer
        self._what = what
        self._gap = ttl / 2  # after ttl / 3 comes the next sign of life; no lease ends before 2/3 ttl of silence
        self._lock = threading.Lock()
        self._heard = time.monotonic()
        self._returned = -math.inf
        self._failing: dict[str, float] = {}  # part: when the registry had last been heard of

    def heard(self, part: str) -> None:
        """A part had an answer of the registry. Call it before anything is made of that answer."""
        now = time.monotonic()
        with self._lock:
            since = self._failing.pop(part, None)
            again = since is not None and not self._failing
            if again or now - self._heard > self._gap:
                self._returned = now
            self._heard = now
        if again and since is not None:
            logger.warning("%s answers again, after %.1f s", self._what, now - since)

    def lost(self, part: str, error: Exception) -> None:
        """A part had no answer, or a wrong one. Logged if all had been well."""
        with self._lock:
            first = not self._failing
            self._failing.setdefault(part, self._heard)
        if first:
            logger.warning("%s does not answer (%s): %s", self._what, part, error)

    def returned(self) -> None:
        """What the registry says may have a gap, as after a connection that was lost."""
        with self._lock:
            self._returned = time.monotonic()

    def away_for(self) -> float:
        """Seconds since the registry was last heard of; 0.0 while it answers."""
        now = time.monotonic()
        with self._lock:
            if self._failing:
                return now - min(self._failing.values())
            silent = now - self._heard
        return silent if silent > self._gap else 0.0

    def answering_for(self) -> float:
        """Seconds for which the registry has answered without a break; 0.0 while it is away."""
        now = time.monotonic()
        with self._lock:
            if self._failing or now - self._heard > self._gap:
                return 0.0
            return now - self._returned

    def settled(self) -> bool:
        """Whether who is not in the registry is really gone."""
        return self.answering_for() >= self.grace
