"""Reads from other nodes are uses too: they are told to the owners, whose evictions then see them.

A reader writes nothing into an owner's segment. So it collects rank, slot and epoch of what it has read, and tells them
in one message per node and 50 ms. Best effort: a use that is not told makes an object look older than it is, and leaves
a lease as it is.
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
from nanokv.errors import CacheClosed

MOST_USES = 4096  #: of one node, that wait to be told; more are not told
_COLLECT = 0.05  #: seconds
_PATIENCE = 0.5  #: seconds that a node has to take them
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
        while not self._closed:
            self._some.wait()
            time.sleep(_COLLECT)
            self._some.clear()
            with self._lock:
                noted, self._noted = self._noted, {}
            for name, uses in noted.items():
                self._tell(name, uses.words())

    def _tell(self, name: str, uses: Words) -> None:
        node = self._nodes.find(name)
        cards = [] if node is None else node.cards
        if cards and len(uses):
            try:
                self._ways.ask(cards[0], Kind.USED, uses.tobytes(), _PATIENCE)
            except (Unanswered, Refused, CacheClosed) as error:
                _log.debug("node %s was not told of %d reads: %s", name, len(uses), error)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._closed = True
        self._some.set()
        self._thread.join()
