"""A node of the check: the commands of its process."""

import contextlib
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import torch

import nanokv
from nanokv.check.command_process import Commands
from nanokv.check.machine.histories.key_model import MISS, OK
from nanokv.check.machine.payloads import check_payload, name, payload
from nanokv.check.nodes import keys
from nanokv.check.nodes.caller import Caller, Job, noted_get
from nanokv.check.nodes.calls import LOST, CallLog
from nanokv.check.nodes.mutants import MUTANTS
from nanokv.check.report import CheckFailure
from nanokv.cluster import NanoKVCluster
from nanokv.errors import CacheClosed, KeyNotFound, NanoKVError, NotReady, PeerLost
from nanokv.fsck import check_cache
from nanokv.types import KeyDigest

# --- threads of a node that look at the other nodes without a pause ----------------------------
# They see when one is lost, and when it is no member any more. Each node has an object for that, its canary. One thread
# reads the canary of one node.
LOOK = 0.003  #: seconds between two looks
WRONG = "WRONG"


class NodeView(NamedTuple):
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
        self.changes: list[NodeView] = []
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
                    self.changes.append(NodeView(self.last[1], what))
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
        """What it saw."""
        return {"changes": list(self.changes), "last": self.last, "wrong": self.wrong}


class Members:
    """One thread, which looks who is a member, and whether the registry answers.

    Attributes:
        changes: the names, ascending, with commas between them.
        away: the longest that the registry did not answer, in seconds.
        is_away: whether it does not answer now; away_until: the ns when that was so for the last time.
    """

    def __init__(self, cluster: NanoKVCluster) -> None:
        self._cluster = cluster
        self.changes: list[NodeView] = []
        self.away, self.is_away, self.away_until = 0.0, False, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="members", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(LOOK):
                names = ",".join(self._cluster.nodes)
                if not self.changes or self.changes[-1].what != names:
                    self.changes.append(NodeView(time.monotonic_ns(), names))
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
        """What was seen."""
        looks = {node: look.as_dict() for node, look in self._looks.items()}
        members = self._members
        registry = {"away": members.away, "is_away": members.is_away, "away_until": members.away_until}
        return {"members": list(members.changes), "registry": registry, "looks": looks}

    @property
    def wrong(self) -> list[str]:
        """What must not have been seen."""
        return [look.wrong for look in self._looks.values() if look.wrong]

    def stop(self) -> None:
        """End all threads."""
        self._members.stop()
        for look in self._looks.values():
            look.stop()


# --- a world in which nobody works -------------------------------------------------------------
REST_SECONDS = 20.0  #: for transfers that were given up to end, and for what the dead had begun to come back
_LOOK = 0.02  #: seconds
_COUNTS = ("ready", "unfinished", "quarantined", "used_pages", "late_reads", "late_pulls")


def unknown_objects(cluster: NanoKVCluster, known: Collection[KeyDigest]) -> list[str]:
    """What this node's world stores beside the objects of known keys, and whether the counts agree with the objects."""
    world = cluster.world
    world.flush()
    found = list(world.segment_keys())
    wrong = [f"an object of a key that nobody put: {digest}" for digest in found if digest not in known]
    stats = world.stats()
    nbytes = sum(tensor.nbytes for tensor in map(world.get, found))
    if (stats["ready"], stats["bytes_stored"]) != (len(found), nbytes):
        wrong.append(
            f"{stats['ready']} objects of {stats['bytes_stored']} bytes are counted, "
            f"and {len(found)} of {nbytes} bytes can be read"
        )
    return wrong


def empty(cluster: NanoKVCluster, patience: float = REST_SECONDS) -> list[str]:
    """Remove everything from this node's world, until nothing is left. Returns what is left after `patience` seconds.

    Late messages of a network that was cut may still bring objects: those are removed too.
    """
    world, end = cluster.world, time.monotonic() + patience
    while True:
        try:
            world.clear()
            stats: dict[str, Any] = cluster.stats()
            left = [f"{count} is {stats[count]}, not 0" for count in _COUNTS if stats[count]]
            left = left or [str(finding) for finding in check_cache([world], patience=1.0).findings]
        except NanoKVError as error:
            left = [f"{type(error).__name__}: {error}"]
        if not left or time.monotonic() >= end:
            return left
        time.sleep(_LOOK)


# --- the node ---------------------------------------------------------------------------------
HEAP_BYTES, PAGE_BYTES = 64 << 20, 16 << 10
CANARY_WORDS = 200
AUDITOR = 7  #: the number of the thread that looks afterwards
AUDIT_SECONDS = 20.0  #: until all that must be there is found, and no node is lost
REGISTERED_BYTES = 200_000  #: of one object: more than a message brings
_REST = 0.05  #: seconds between two tries


class NodeCommands(Commands):
    """What a node does; one method a command. Each returns its answer."""

    def __init__(
        self, registry: str, options: dict[str, Any], world: dict[str, Any], names: list[str], run: int, mutant: str
    ) -> None:
        if mutant:
            MUTANTS[mutant]()
        self._names, self._run = names, run
        self._callers: list[Caller] = []
        self._watcher: Watcher | None = None
        with contextlib.ExitStack() as ends:
            cache = ends.enter_context(nanokv.NanoKVCache(HEAP_BYTES, page_bytes=PAGE_BYTES, evict=False, **world))
            self._cluster = ends.enter_context(NanoKVCluster(cache, registry, **options))
            self._number = names.index(self._cluster.node)
            self._registered = torch.zeros(len(names), REGISTERED_BYTES, dtype=torch.uint8)
            self._cluster.register(self._registered)
            ends.callback(self.stop_watching)
            ends.callback(self.pause)
            self._ends = ends.pop_all()

    def nodes(self) -> list[str]:
        """The members that it knows."""
        return self._cluster.nodes

    def homes(self, some: list[int]) -> list[str]:
        """The home of each key."""
        return [self._cluster.home(name(key)) for key in some]

    def put_canary(self, key: int) -> None:
        """Put the object of this node at which the others look."""
        self._cluster.put(name(key), payload(key, 1, CANARY_WORDS), preferred_segment=0)

    def watch(self, canaries: dict[str, int]) -> None:
        """Look at the others from now on, and at nothing else."""
        self.stop_watching()
        self._watcher = Watcher(self._cluster, canaries)

    def seen(self) -> dict[str, Any]:
        """What was seen since `watch`."""
        assert self._watcher is not None
        return self._watcher.as_dict()

    def stop_watching(self) -> list[str]:
        """End that. Returns what is wrong."""
        watcher, self._watcher = self._watcher, None
        if watcher is None:
            return []
        watcher.stop()
        return watcher.wrong

    def begin(self, folder: str, round_: int, seed: int) -> None:
        """Let all threads work, until `pause`."""
        job = Job(Path(folder), self._names, round_, self._number, self._run, seed)
        self._callers = [Caller(self._cluster, job, thread) for thread in range(keys.CALLERS)]

    def pause(self) -> list[str]:
        """Let all calls that are under way end. Returns what is wrong."""
        wrong = []
        for caller in self._callers:
            caller.stop()
            wrong += caller.wrong
        self._callers = []
        return wrong

    def audit(self, folder: str, round_: int, some: list[int], certain: list[int]) -> list[str]:
        """Read every key, and note that. Returns what is wrong.

        Args:
            certain: of these, the keys of objects that must be there. They may be found a while later: where an object
                lies that was put while its home was away, nodes learn from events.
        """
        log, wrong = CallLog(Path(folder), round_, self._number, self._run, AUDITOR), []
        end, must = time.monotonic() + AUDIT_SECONDS, set(certain)
        for key in some:
            answer, why = noted_get(self._cluster, log, key, audit=True)
            while time.monotonic() < end and (answer == LOST or (answer == MISS and key in must)):
                time.sleep(_REST)
                answer, why = noted_get(self._cluster, log, key, audit=True)
            wrong += [why] if why else []
            if answer == LOST:
                wrong.append(f"key {key}: PeerLost for {AUDIT_SECONDS:.0f} s after all was well again")
        return wrong

    def put_to_others(self, round_: int) -> list[str]:
        """Put a large object of registered memory to each other node: it must succeed, soon. Returns what is wrong."""
        pairs = zip(self._names, keys.probes(round_, self._number), strict=False)
        end = time.monotonic() + AUDIT_SECONDS
        tried = [self._put_until_stored(other, key, end) for other, key in pairs if other != self._cluster.node]
        return [why for why in tried if why]

    def _put_until_stored(self, other: str, key: int, end: float) -> str:
        value = self._registered[self._names.index(other)]
        while True:
            try:
                self._cluster.put(name(key), value, preferred_segment=(other, None), exist_ok=True)
                return ""
            except PeerLost as error:
                if time.monotonic() > end:
                    return f"a put to {other} is PeerLost for {AUDIT_SECONDS:.0f} s after all was well again: {error}"
            time.sleep(_REST)

    def unknown(self, known: list[int]) -> list[str]:
        """What this node stores beside these keys."""
        return unknown_objects(self._cluster, {self._cluster.digest(name(key)) for key in known})

    def empty(self) -> list[str]:
        """Remove everything; what is left after a while?"""
        return empty(self._cluster)

    def at_end(self) -> None:
        """Leave."""
        self._ends.close()
