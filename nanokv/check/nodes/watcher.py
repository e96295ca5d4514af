"""Threads of a node that look at the other nodes without a pause: when one is lost, and when it is no member any more.

Each node has an object for that, its canary. One thread reads the canary of one node.
"""

import threading
import time
from typing import Any, NamedTuple

from nanokv.check.histories.key_model import MISS, OK
from nanokv.check.nodes.calls import LOST
from nanokv.check.payloads import check_payload, name
from nanokv.check.report import CheckFailure
from nanokv.cluster import NanoKVCluster
from nanokv.errors import CacheClosed, KeyNotFound, NanoKVError, NotReady, PeerLost

LOOK = 0.003  #: seconds between two looks
WRONG = "WRONG"


class Change(NamedTuple):
    """From `at` on (ns, when the call returned) a node looked like that: OK, LOST, MISS, WRONG; or members changed."""

    at: int
    what: str


class Looks:
    """One thread, which reads the canary of one node.

    Attributes:
        changes: what it saw, whenever that was another thing than before.
        last: when its last call began and ended, in ns.
    """

    def __init__(self, cluster: NanoKVCluster, key: int) -> None:
        self._cluster, self._key = cluster, key
        self.changes: list[Change] = []
        self.last = (0, 0)
        self.wrong = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(LOOK):
                called = time.monotonic_ns()
                what = self._look()
                self.last = called, time.monotonic_ns()
                if not self.changes or self.changes[-1].what != what:
                    self.changes.append(Change(self.last[1], what))
        except CacheClosed:
            pass

    def _look(self) -> str:
        try:
            check_payload(self._key, self._cluster.get(name(self._key)))
        except PeerLost:
            return LOST
        except (KeyNotFound, NotReady):  # a node that has come back puts its canary again
            return MISS
        except CacheClosed:
            raise
        except (NanoKVError, CheckFailure) as error:
            self.wrong = f"the canary {self._key}: {type(error).__name__}: {error}"
            return WRONG
        return OK

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def as_dict(self) -> dict[str, Any]:
        """What it saw, as JSON."""
        return {"changes": self.changes, "last": self.last}


class Members:
    """One thread, which looks who is a member, and whether the registry answers.

    Attributes:
        changes: the names, ascending, with commas between them.
        away: the longest that the registry did not answer, in seconds.
        is_away: whether it does not answer now; away_until: the ns when that was so for the last time.
    """

    def __init__(self, cluster: NanoKVCluster) -> None:
        self._cluster = cluster
        self.changes: list[Change] = []
        self.away, self.is_away, self.away_until = 0.0, False, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="members", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(LOOK):
                names = ",".join(self._cluster.nodes)
                if not self.changes or self.changes[-1].what != names:
                    self.changes.append(Change(time.monotonic_ns(), names))
                away = self._cluster.registry_away
                self.away, self.is_away = max(self.away, away), away > 0
                if self.is_away:
                    self.away_until = time.monotonic_ns()
        except CacheClosed:
            pass

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()


class Watcher:
    """All of them.

    Args:
        canaries: the key of each other node's.
    """

    def __init__(self, cluster: NanoKVCluster, canaries: dict[str, int]) -> None:
        self._members = Members(cluster)
        self._looks = {node: Looks(cluster, key) for node, key in canaries.items()}

    def as_dict(self) -> dict[str, Any]:
        """What was seen, as JSON."""
        looks = {node: look.as_dict() for node, look in self._looks.items()}
        members = self._members
        registry = {"away": members.away, "is_away": members.is_away, "away_until": members.away_until}
        return {"members": members.changes, "registry": registry, "looks": looks}

    @property
    def wrong(self) -> list[str]:
        """What must not have been seen."""
        return [look.wrong for look in self._looks.values() if look.wrong]

    def stop(self) -> None:
        """End all threads."""
        self._members.stop()
        for look in self._looks.values():
            look.stop()
