"""Which nodes are asked for many keys: those of which events have told, then the homes of the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nanokv.cluster.objects import Objects
from nanokv.device.machines.records import Words
from nanokv.device.protocol.status import Status
from nanokv.digests import Digests
from nanokv.errors import PeerLost
from nanokv.types import Key

_OK = int(Status.OK)


class Asking(Objects):
    """What calls about many keys share. A status for each key is in `statuses`, int64."""

    def _digests(self, keys: Sequence[Key]) -> Digests:
        return self.world._digests(keys)

    def _find_here(self, digests: Digests) -> Words:
        return self.world._batched.find(digests)

    def _ask_known(self, digests: Digests, missing: Words, statuses: Words, read: Any) -> None:
        """Read what lies where events say; the rest stays as it is."""
        places, names = self._parts.locations.nodes_of(np.ascontiguousarray(digests.words[missing]))
        for place in np.unique(places[places > 0]).tolist():
            node = self._nodes.find(names[place])
            if node is None:
                continue
            which = missing[places == place]
            try:
                found = read(node, which, True)
            except PeerLost:
                continue  # their homes may have them too; if not, those are asked next, and say so
            statuses[which] = np.where(found == _OK, _OK, statuses[which])

    def _ask_each(self, digests: Digests, missing: Words, statuses: Words, ask: Any) -> None:
        """Ask the nodes that may have objects, for those whose status is not OK yet.

        Raises:
            PeerLost: one that may have an object cannot be reached, and no other one has it.
        """
        lost: PeerLost | None = None
        unsure = np.zeros(len(digests), bool)
        asked: dict[str, Any] = {}  # by node: whether it was asked for each
        for homes in self._nodes.homes:
            missing = missing[statuses[missing] != _OK]
            if not len(missing):
                break
            places = homes.of_each(np.ascontiguousarray(digests.words[missing]))
            for place in np.unique(places).tolist():
                node = self._nodes.find(homes.nodes[place])
                which = missing[places == place]
                if node is None:
                    continue
                done = asked.setdefault(node.name, np.zeros(len(digests), bool))
                which = which[~done[which]]
                if not len(which):
                    continue
                done[which] = True
                try:
                    statuses[which] = ask(node, which)
                except PeerLost as error:
                    lost = lost or error
                    unsure[which] = True
        if lost is not None and (unsure & (statuses != _OK)).any():
            self._counts.peer_lost += 1
            raise lost


def chosen(digests: Digests, which: Words) -> Digests:
    """Some of several digests."""
    if len(which) == len(digests):
        return digests
    return Digests.own(np.ascontiguousarray(digests.words[which]), digests.tag)
