"""Many keys, without their objects: which are there, and their removal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nanokv.cluster.asking import Asking
from nanokv.cluster.nodes import Node
from nanokv.device.machines.records import Words
from nanokv.device.protocol.status import Status
from nanokv.digests import Digests
from nanokv.types import Key

_OK, _MISS = int(Status.OK), int(Status.MISS)
_FIRST_LOOK, _MOST = 64, 4096  #: keys that are looked up at once for a prefix: twice as many each time


class Lookups(Asking):
    """Calls about many keys that read no object."""

    def exists_many(self, keys: Sequence[Key]) -> list[bool]:
        """Per key, whether its object can be read now, from this node or its home.

        Raises:
            PeerLost: as `exists`.
        """
        self._check_open()
        found: list[bool] = (self._find(self._digests(keys)) == _OK).tolist()
        return found

    def prefix_length(self, keys: Sequence[Key]) -> int:
        """How many of the first keys have objects that can be read now: the longest cached prefix of a chain.

        Raises:
            PeerLost: as `exists`.
        """
        self._check_open()
        digests = self._digests(keys)
        start, look = 0, _FIRST_LOOK
        while start < len(digests):
            absent = self._find(digests[start : start + look]) != _OK
            if absent.any():
                return start + int(absent.argmax())
            start, look = start + look, min(2 * look, _MOST)
        return len(digests)

    def _find(self, digests: Digests) -> Words:
        statuses = np.array(self._find_here(digests))
        absent = np.flatnonzero(statuses != _OK)
        if len(absent):

            def look(node: Node, which: Words, known: bool) -> Words:
                find = self._reading.find_known_each if known else self._reading.find_each
                return find(node, digests.words[which])

            self._ask_known(digests, absent, statuses, look)
            self._ask_each(digests, absent, statuses, lambda node, which: look(node, which, False))
        return statuses

    def remove_many(self, keys: Sequence[Key]) -> list[bool]:
        """Remove each object; per key False if there was none, or if it is being written or pinned.

        Raises:
            PeerLost: a node that may have one of them cannot be reached.
        """
        self._check_open()
        digests = self._digests(keys)
        removed = np.array(self.world._batched.remove(digests)) == _OK
        statuses = np.full(len(digests), _MISS, np.int64)

        def remove(node: Node, which: Words) -> Words:
            return self._remove_each(node, digests.words[which])

        self._ask_each(digests, np.arange(len(digests)), statuses, remove)
        answers: list[bool] = (removed | (statuses == _OK)).tolist()
        return answers
