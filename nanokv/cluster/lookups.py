"""Many keys, without their objects: which are there, and their removal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from nanokv.arguments import FOREVER, seconds
from nanokv.cluster.asking import Asking, chosen
from nanokv.cluster.nodes import Node
from nanokv.cluster.patience import Patience
from nanokv.device.machines.records import Words
from nanokv.device.protocol.status import Status
from nanokv.digests import Digests
from nanokv.errors import WaitTimeout
from nanokv.types import Key, KeyDigest

_OK = int(Status.OK)
_SHORTEST_LOOK, _LONGEST_LOOK = 0.001, 0.1  #: seconds between two looks for an object, if no event comes
_FIRST_LOOK, _MOST = 64, 4096  #: keys that are looked up at once for a prefix: twice as many each time


class Lookups(Asking):
    """Calls about many keys that read no object."""

    def exists_many(self, keys: Sequence[Key]) -> list[bool]:
        """Per key, whether its object can be read now, from this node or its home.

        Raises:
            PeerLost: as `exists`.
        """
        self._check_open()
        found: list[bool] = (self._find(self._digests(keys), self._patience()) == _OK).tolist()
        return found

    def prefix_length(self, keys: Sequence[Key]) -> int:
        """How many of the first keys have objects that can be read now: the longest cached prefix of a chain.

        Raises:
            PeerLost: as `exists`.
        """
        self._check_open()
        digests = self._digests(keys)
        start, look, patience = 0, _FIRST_LOOK, self._patience()
        while start < len(digests):
            absent = self._find(digests[start : start + look], patience) != _OK
            if absent.any():
                return start + int(absent.argmax())
            start, look = start + look, min(2 * look, _MOST)
        return len(digests)

    def wait(self, keys: Key | Iterable[Key], *, timeout: float | None) -> None:
        """Wait until every object can be read, from this node or from where it may lie. Events wake the wait.

        Args:
            timeout: seconds; None: no limit.

        Raises:
            WaitTimeout: after `timeout` seconds; the message gives the number of missing objects.
            PeerLost: a node that may have one of them cannot be reached.
        """
        self._check_open()
        one = isinstance(keys, str | bytes | KeyDigest)
        digests = self._digests([keys] if one else keys)  # type: ignore[arg-type, list-item]
        deadline = time.monotonic() + (FOREVER if timeout is None else seconds("timeout", timeout))
        pause, missing = _SHORTEST_LOOK, np.arange(len(digests))
        while True:
            heard = self._parts.events.heard
            missing = missing[self._find(chosen(digests, missing), self._patience()) != _OK]
            left = deadline - time.monotonic()
            if not len(missing):
                return
            self._check_stays()
            if left <= 0:
                raise WaitTimeout(f"{len(missing)} of {len(digests)} objects are not READY after {timeout} s")
            self._parts.events.wait(heard, min(pause, left))
            pause = min(2 * pause, _LONGEST_LOOK)

    def _find(self, digests: Digests, patience: Patience) -> Words:
        statuses = np.array(self._find_here(digests))
        absent = np.flatnonzero(statuses != _OK)
        if len(absent):

            def look(node: Node, which: Words, known: bool) -> Words:
                find = self._reading.find_known_each if known else self._reading.find_each
                return find(node, digests.words[which], patience)

            self._ask(digests, absent, statuses, look, patience)
        return statuses

    def remove_many(self, keys: Sequence[Key]) -> list[bool]:
        """Remove each object, wherever it lies; per key False if there was none, or if one is being written or pinned.

        Raises:
            PeerLost: a node cannot be reached, and may have one of them; those of other nodes are removed.
        """
        self._check_open()
        digests = self._digests(keys)
        statuses = np.array(self.world.engine.batched.remove(digests))
        lost = self._remove_elsewhere(digests.words, statuses) if len(digests) else None
        if lost is not None:
            self._lost(lost)
        answers: list[bool] = (statuses == _OK).tolist()
        return answers
