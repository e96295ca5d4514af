"""Which nodes are asked for many keys: those of which events have told, then the homes of the keys; all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from nanokv.cluster.nodes import Node
from nanokv.cluster.objects import Objects
from nanokv.device.machines.records import Words
from nanokv.device.protocol.status import Status
from nanokv.digests import Digests
from nanokv.errors import PeerLost
from nanokv.types import Key

_OK = int(Status.OK)

Ask = Callable[[Node, Words], Words]  #: asks a node for the keys of these numbers: a status each


class Asking(Objects):
    """What calls about many keys share. A status for each key is in `statuses`, int64."""

    def _digests(self, keys: Sequence[Key]) -> Digests:
        return self.world._digests(keys)

    def _find_here(self, digests: Digests) -> Words:
        return self.world._batched.find(digests)

    def _ask_known(
        self, digests: Digests, missing: Words, statuses: Words, read: Callable[[Node, Words, bool], Words]
    ) -> None:
        """Read what lies where events say; the rest stays as it is."""
        places, names = self._parts.locations.nodes_of(chosen(digests, missing).words)
        asks = [
            (node, which)
            for place, which in by_place(places, missing)
            if place and (node := self._nodes.find(names[place])) is not None
        ]
        answers = self._parts.at_once.ask(asks, lambda node, which: read(node, which, True))
        for (_, which), found in zip(asks, answers, strict=True):
            if not isinstance(found, PeerLost):  # else their homes are asked next, and say so
                good = which[found == _OK]
                statuses[good] = _OK

    def _ask_each(self, digests: Digests, missing: Words, statuses: Words, ask: Ask) -> None:
        """Ask the nodes that may have objects, for those whose status is not OK yet.

        Raises:
            PeerLost: one that may have an object cannot be reached, and no other one has it.
        """
        lost: PeerLost | None = None
        unsure: list[Words] = []
        asked: list[tuple[Node, Words]] = []
        for homes in self._nodes.homes:
            missing = missing[statuses[missing] != _OK]
            if not len(missing):
                break
            asks = []
            for place, theirs in by_place(homes.of_each(chosen(digests, missing).words), missing):
                node, which = self._nodes.find(homes.nodes[place]), theirs
                for before, done in asked:
                    if before is node:
                        which = np.setdiff1d(which, done, assume_unique=True)
                if node is not None and len(which):
                    asks.append((node, which))
            asked += asks
            for (_, which), found in zip(asks, self._parts.at_once.ask(asks, ask), strict=True):
                if isinstance(found, PeerLost):
                    lost = lost or found
                    unsure.append(which)
                else:
                    statuses[which] = found
        if lost is not None and any((statuses[which] != _OK).any() for which in unsure):
            self._lost(lost)


def by_place(places: Words, numbers: Words) -> Iterator[tuple[int, Words]]:
    """Each place that occurs, and the numbers that have it."""
    if len(places) and (places == places[0]).all():  # np.unique takes longer than a look-up
        yield int(places[0]), numbers
        return
    for place in np.unique(places).tolist():
        yield place, numbers[places == place]


def chosen(digests: Digests, which: Words) -> Digests:
    """Some of several digests."""
    if len(which) == len(digests):
        return digests
    return Digests.own(np.ascontiguousarray(digests.words[which]), digests.tag)
