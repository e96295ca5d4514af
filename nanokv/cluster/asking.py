"""Which nodes are asked for many keys: those of which events have told, then the homes of the keys; all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from nanokv.cluster.nodes import Node
from nanokv.cluster.objects import Objects
from nanokv.cluster.patience import Patience
from nanokv.device.machines.records import Words
from nanokv.device.protocol.status import Status
from nanokv.digests import Digests
from nanokv.errors import PeerLost
from nanokv.types import Key

_OK, _MISS = int(Status.OK), int(Status.MISS)

Asks = list[tuple[Node, Words]]  #: nodes, and the numbers of the keys for which each is asked
#: asks a node for the keys of these numbers, only where they are known to be, or wherever they lie: a status each
Read = Callable[[Node, Words, bool], Words]


class Asking(Objects):
    """What calls about many keys share. A status for each key is in `statuses`, int64."""

    def _digests(self, keys: Iterable[Key]) -> Digests:
        return self.world.engine.digests(keys)

    def _find_here(self, digests: Digests) -> Words:
        return self.world.engine.batched.find(digests)

    def _ask(self, digests: Digests, missing: Words, statuses: Words, read: Read, patience: Patience) -> None:
        """Ask the nodes that may have objects (`_others`), for those whose status is not OK yet, many at once.

        Raises:
            PeerLost: one that may have an object cannot be reached, and no other one has it.
        """
        known = self._where_known(digests, missing)
        lost, unsure = None, []
        asked: list[tuple[Node, Words]] = []
        for is_known, asks in self._rounds_of_asks(digests, missing, statuses, known, asked):
            answers = self._parts.at_once.ask(asks, lambda node, which: read(node, which, is_known))  # noqa: B023
            patience.meet()
            for (node, which), found in zip(asks, answers, strict=True):
                if isinstance(found, PeerLost):
                    lost = lost or found
                    unsure.append(which)
                    asked.append((node, which))
                    continue
                if not is_known:
                    asked.append((node, which))
                takes = (found == _OK) if is_known else (found != _MISS)
                statuses[which[takes]] = found[takes]
        if lost is not None and any((statuses[which] != _OK).any() for which in unsure):
            self._lost(lost)

    def _where_known(self, digests: Digests, which: Words) -> Asks:
        """The nodes where objects are known to be."""
        places, names = self._parts.locations.nodes_of(chosen(digests, which).words)
        return [
            (node, some)
            for place, some in by_place(places, which)
            if place and (node := self._nodes.find(names[place])) is not None
        ]

    def _rounds_of_asks(
        self, digests: Digests, missing: Words, statuses: Words, known: Asks, asked: Asks
    ) -> Iterator[tuple[bool, Asks]]:
        """Whom to ask at the same time, and whether for what is known; then the next ones, for what is still missing.

        asked: who was asked for what, or did not answer.
        """
        if known:
            yield True, known
        for homes in self._nodes.homes:
            missing = missing[statuses[missing] != _OK]
            if not len(missing):
                return
            places = by_place(homes.of_each(chosen(digests, missing).words), missing)
            asks = [(self._nodes.find(homes.nodes[place]), theirs) for place, theirs in places]
            if more := _not_asked(asks, asked):
                yield False, more
        left = [(node, which[statuses[which] != _OK]) for node, which in known]
        if more := _not_asked(left, asked):
            yield False, more


def _not_asked(asks: Sequence[tuple[Node | None, Words]], asked: Asks) -> Asks:
    """What was not asked yet, of nodes that are there."""
    found = []
    for node, which in asks:
        left = which
        for before, done in asked:
            if before is node:
                left = np.setdiff1d(left, done, assume_unique=True)
        if node is not None and len(left):
            found.append((node, left))
    return found


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
