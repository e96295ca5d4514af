"""Reads from other nodes are uses too: they are told to the owners, whose evictions then see them.

A reader writes nothing into an owner's segment. So it collects rank, slot and epoch of what it has read, and tells them
in one message per node and about 50 ms. Best effort: a use that is not told makes an object look older than it is, and
leaves a lease as it is.
"""

import logging
import threading
import time

import numpy as np

from nanokv.cluster.kinds import Kind
from nanokv.cluster.messages.replies import Refused, Unanswered
from nanokv.cluster.nodes import Nodes
from nanokv.cluster.wire.ways import Ways
from nanokv.device.machines.records import Words
from nanokv.errors import CacheClosed, PeerLost

MOST_USES = 4096  #: of one node, that wait to be told; more are not told
_COLLECT = 0.05  #: seconds
_PATIENCE = 0.2  #: seconds that a node has to take them
_RESTS = 5.0  #: seconds for which one that has not taken them is told nothing: others wait for it
_log = logging.getLogger("nanokv.cluster")

Use = tuple[int, int, int]  #: rank, slot, epoch
_WORDS = 3  #: of a use


class _NodeUses:
    """The uses of one node that wait to be told."""

    def __init__(self) -> None:
        self.ones: list[Use] = []
        self.parts: list[Words] = []
        self.room = MOST_USES

    def words(self) -> Words:
        """int64 [n, 3]."""
        ones = np.array(self.ones, np.int64).reshape(-1, _WORDS)
        return np.concatenate([ones, *self.parts])


class Uses:
    """Collects and tells the uses of one process."""

    def __init__(self, nodes: Nodes, ways: Ways) -> None:
        self._nodes, self._ways = nodes, ways
        self._lock = threading.Lock()
        self._noted: dict[str, _NodeUses] = {}
        self._some = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="nanokv-cluster-uses", daemon=True)
        self._thread.start()

    def note(self, node: str, use: Use) -> None:
        """Note a use of an object of a node."""
        with self._lock:
            noted = self._of(node)
            if noted.room:
                noted.ones.append(use)
                noted.room -= 1
        if not self._some.is_set():
            self._some.set()

    def note_each(self, node: str, uses: Words) -> None:
        """Note uses: int64 [n, 3], which is kept."""
        with self._lock:
            noted = self._of(node)
            noted.parts.append(uses[: noted.room])
            noted.room -= len(noted.parts[-1])
        self._some.set()

    def _of(self, node: str) -> _NodeUses:
        noted = self._noted.get(node)
        if noted is None:
            noted = self._noted[node] = _NodeUses()
        return noted

    def _run(self) -> None:
        silent: dict[str, float] = {}  # nodes that have not answered, and until when they are told nothing
        while not self._closed:
            self._some.wait()
            time.sleep(_COLLECT)
            self._some.clear()
            with self._lock:
                noted, self._noted = self._noted, {}
            for name, uses in noted.items():
                if not self._closed and time.monotonic() >= silent.get(name, 0.0):
                    silent.pop(name, None)
                    if not self._tell(name, uses.words()):
                        silent[name] = time.monotonic() + _RESTS

    def _tell(self, name: str, uses: Words) -> bool:
        """Whether a node answers."""
        node = self._nodes.find(name)
        if node is None or not len(uses):
            return True
        try:
            self._ways.ask(node.reachable(), Kind.USED, uses.tobytes(), _PATIENCE)
        except (Unanswered, Refused, PeerLost, CacheClosed) as error:
            _log.debug("node %s was not told of %d reads: %s", name, len(uses), error)
            return False
        return True

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._closed = True
        self._some.set()
        self._thread.join()
