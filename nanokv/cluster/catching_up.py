"""What nodes have of which events were missed: their headers are read anew, by a thread, until it succeeds."""

import logging
import queue
import threading
import time
from collections.abc import Callable

from nanokv.cluster.links.base import LinkLost
from nanokv.cluster.nodes import AVOIDED, Node, Nodes
from nanokv.errors import NanoKVError

_log = logging.getLogger("nanokv.cluster")

_REST = 2 * AVOIDED  #: seconds until a node is tried again that could not be read


class CatchingUp:
    """The nodes whose headers are to be read.

    Args:
        read: reads those of a node; a NanoKVError or LinkLost means that it is tried again later.
    """

    def __init__(self, nodes: Nodes, read: Callable[[Node], None]) -> None:
        self._nodes, self._read = nodes, read
        self._wanted: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._failed: dict[str, float] = {}  # by name: when it is tried again
        self._thread = threading.Thread(target=self._run, name="nanokv-cluster-scan", daemon=True)
        self._thread.start()

    def add(self, node: str) -> None:
        """Read the headers of a node, soon. From any thread."""
        self._wanted.put(node)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._wanted.put(None)
        if self._thread is not threading.current_thread():  # a listener closes
            self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                name = self._wanted.get(timeout=self._pause())
            except queue.Empty:
                name = min(self._failed, key=self._failed.__getitem__)
            if name is None:
                return
            self._try(name)

    def _pause(self) -> float | None:
        """Seconds until the first node is tried again; None: there is none."""
        return max(min(self._failed.values()) - time.monotonic(), 0.0) if self._failed else None

    def _try(self, name: str) -> None:
        self._failed.pop(name, None)
        node = self._nodes.find(name)
        if node is None:  # it has left; when it comes back, it is heard for the first time again
            return
        try:
            self._read(node)
        except (NanoKVError, LinkLost) as error:
            _log.info("the headers of node %s are read later: %s", name, error)
            self._failed[name] = time.monotonic() + _REST
