"""Many objects in one call, across nodes: one pass of rounds, or one question, for each node that has some."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import torch

from nanokv.arguments import seconds
from nanokv.cache import listed_tensors
from nanokv.cluster.asking import by_place, chosen
from nanokv.cluster.base import Segment
from nanokv.cluster.fetched import Fetched
from nanokv.cluster.lookups import Lookups
from nanokv.cluster.nodes import Node
from nanokv.cluster.offering import storable
from nanokv.cluster.patience import Patience
from nanokv.cluster.statuses import is_one_of
from nanokv.device.machines.records import What, Words
from nanokv.device.protocol.status import Status
from nanokv.digests import Digests
from nanokv.errors import InvalidArgument, NanoKVError, PeerLost
from nanokv.room import NO_ROOM
from nanokv.terms import Hold
from nanokv.transfer.batched import Tensors
from nanokv.transfer.descriptors import RAW, check_apart
from nanokv.transfer.host_tensors import alike_destinations
from nanokv.transfer.object_calls import check_reinterpret
from nanokv.types import Key

_OK, _MISS, _NOT_READY, _SIZE = (int(Status[name]) for name in ("OK", "MISS", "NOT_READY", "SIZE"))
_HARMLESS = (_OK, _MISS, _NOT_READY)
_LOST = -1  #: no status: the node did not answer
_ROOM_REST = 0.01  #: seconds


class Many(Lookups):
    """Calls about many keys."""

    def put_many(
        self,
        keys: Sequence[Key],
        tensors: Sequence[torch.Tensor] | torch.Tensor,
        *,
        preferred_segment: Segment | None = None,
        hold: float | Hold | None = None,
        timeout: float = 0.0,
    ) -> list[NanoKVError | None]:
        """Put each tensor: see `NanoKVCache.put_many`. Each node gets its objects in one question.

        Returns per key an error or None; PeerLost for all of a node that did not answer: some may have been stored.
        """
        self._check_open()
        digests = self._digests(keys)
        tensors = listed_tensors("tensors", tensors)
        if len(digests) != len(tensors):
            raise InvalidArgument(f"{len(digests)} keys and {len(tensors)} tensors")
        deadline = time.monotonic() + seconds("timeout", timeout)
        tensors, sizes = storable(tensors)
        outcomes: list[NanoKVError | None] = [None] * len(digests)
        patience = self._patience()
        rank, targets = self._targets(digests, preferred_segment)

        def keep(which: Words, found: list[NanoKVError | None]) -> None:
            for i, outcome in zip(which.tolist(), found, strict=True):
                outcomes[i] = outcome

        def put(node: Node, which: Words) -> None:
            some, parts = chosen(digests, which), _rows(tensors, which)
            keep(which, self._put_many_to(node, rank, some, parts, sizes[which], hold, deadline, patience))

        for node, which in targets:
            if node is None:
                some, parts, left = chosen(digests, which), _rows(tensors, which), max(deadline - time.monotonic(), 0.0)
                keep(which, self.world.put_many(some, parts, preferred_segment=rank, hold=hold, timeout=left))
        self._parts.at_once.ask([(node, which) for node, which in targets if node is not None], put)
        return outcomes

    def _put_many_to(
        self,
        node: Node,
        rank: int | None,
        keys: Digests,
        tensors: Tensors,
        sizes: Words,
        hold: Any,
        deadline: float,
        patience: Patience,
    ) -> list[NanoKVError | None]:
        statuses = np.full(len(keys), int(Status.FULL), np.int64)
        too_large = sizes > node.geometry.max_object_bytes
        statuses[too_large] = int(Status.TOO_LARGE)
        left, lost = np.flatnonzero(~too_large), None
        try:
            while len(left):
                parts = _rows(tensors, left)
                found = self._putting.put_each(node, keys.words[left], parts, rank, self._terms(hold), patience)
                statuses[left] = found["status"]
                left = np.flatnonzero(is_one_of(statuses, NO_ROOM))
                if not len(left) or time.monotonic() >= deadline:
                    break
                self._check_stays()
                time.sleep(_ROOM_REST)
        except PeerLost as error:
            self._counts.peer_lost += 1
            lost = error
            statuses[left] = _LOST
        good = statuses == _OK
        self._counts.put(int(good.sum()), int(sizes[good].sum()))
        outcomes: list[NanoKVError | None] = [None] * len(keys)
        for i in np.flatnonzero(~good).tolist():
            status = int(statuses[i])
            outcomes[i] = lost if status == _LOST else self._error(status, keys[i], node, int(sizes[i]))
        return outcomes

    @overload
    def get_many(
        self, keys: Sequence[Key], *, dsts: Sequence[torch.Tensor] | None = None, reinterpret: bool = False
    ) -> list[torch.Tensor | None]: ...
    @overload
    def get_many(self, keys: Sequence[Key], *, dsts: torch.Tensor, reinterpret: bool = False) -> list[bool]: ...
    def get_many(
        self,
        keys: Sequence[Key],
        *,
        dsts: Sequence[torch.Tensor] | torch.Tensor | None = None,
        reinterpret: bool = False,
    ) -> list[torch.Tensor | None] | list[bool]:
        """Get each object: see `NanoKVCache.get_many`. What this node does not have takes four rounds per node.

        New tensors of objects of one node share memory, which is free again when none of them is left.

        Raises:
            InvalidArgument, SegmentCorrupt: as `NanoKVCache.get_many`.
            PeerLost: a node that may have one of them cannot be reached, and no other one has it.
        """
        self._check_open()
        digests = self._digests(keys)
        if reinterpret is not False:
            check_reinterpret(reinterpret, dsts)
        if dsts is not None:
            dsts = listed_tensors("dsts", dsts)
            if len(digests) != len(dsts):
                raise InvalidArgument(f"{len(digests)} keys and {len(dsts)} dsts")
        here = np.array(self._find_here(digests))
        answers: list[Any] = [None] * len(digests)
        mine = np.flatnonzero(here == _OK)
        if dsts is not None and len(mine) < len(digests):  # else the world looks at them all
            self._into_rows(dsts, reinterpret)
        if len(mine):
            given = {} if dsts is None else {"dsts": _rows(dsts, mine), "reinterpret": reinterpret}
            for i, answer in zip(mine.tolist(), self.world.get_many(chosen(digests, mine), **given), strict=True):
                answers[i] = answer
                if answer is None or answer is False:
                    here[i] = _MISS
        missing = np.flatnonzero(here != _OK)
        if len(missing):
            self._get_others(keys, digests, missing, dsts, reinterpret, answers)
        if isinstance(dsts, torch.Tensor):
            return [answer is not None and answer is not False for answer in answers]
        return answers

    def _get_others(
        self, keys: Sequence[Key], digests: Digests, missing: Words, dsts: Any, reinterpret: bool, answers: list[Any]
    ) -> None:
        """Read what this node does not have into `answers`."""
        statuses = np.full(len(digests), _MISS, np.int64)
        self._counts.remote_gets += len(missing)
        patience = self._patience()
        rows = None if dsts is None else self._into_rows(dsts, reinterpret)

        def read(node: Node, which: Words, known: bool) -> Words:
            words = chosen(digests, which).words
            if rows is not None:
                what, targets = rows
                found = self._reading.get_into_each(node, words, patience, targets[which], what, known=known)
                are_rows = isinstance(dsts, torch.Tensor)
                for i in which[found == _OK].tolist():
                    answers[i] = True if are_rows else dsts[i]
                return found

            def take(some: Words, fetched: Fetched) -> None:
                self._take(keys, which[some].tolist(), fetched, dsts, reinterpret, answers)

            return self._reading.get_each(node, words, patience, take, known=known)

        self._ask(digests, missing, statuses, read, patience)
        wrong = missing[~is_one_of(statuses[missing], _HARMLESS)]
        for i in wrong.tolist():
            if statuses[i] == _SIZE and dsts is not None:  # the call for this key alone says how it differs
                self.get(digests[i], dst=dsts[i], reinterpret=reinterpret)
            raise self._error(int(statuses[i]), keys[i], None)

    def _take(
        self, keys: Sequence[Key], which: list[int], fetched: Fetched, dsts: Any, reinterpret: bool, answers: list[Any]
    ) -> None:
        """Take objects that were read, of the keys `which`, as new tensors or into `dsts`."""
        if dsts is not None:
            for i, got in zip(which, fetched.each(), strict=True):
                answers[i] = self._as_tensor(got, keys[i], dsts[i], reinterpret)
            return
        for i, tensor in zip(which, fetched.tensors(self.device), strict=True):
            if tensor is None:
                raise self._error(Status.CORRUPT, keys[i], None)
            answers[i] = tensor

    def _into_rows(self, dsts: Any, reinterpret: bool) -> tuple[What, Words] | None:
        """Size, dtype and shape of the destinations, and their addresses; None: they are not alike.

        Raises:
            InvalidArgument: one cannot be filled, or two share memory.
        """
        alike = alike_destinations(dsts) if self.device.type == "cpu" else None
        if alike is None:
            check_apart([self.world.engine.single.destination(dst) for dst in dsts])
            return None
        what, targets = alike
        self.world.engine.single.check_places(targets, what.nbytes)
        return (What.of(what.nbytes, RAW) if reinterpret else what), targets

    # --- which node ---
    def _targets(
        self, digests: Digests, preferred: Segment | None
    ) -> tuple[int | None, list[tuple[Node | None, Words]]]:
        """The rank that gets new objects; the nodes, None for this one, and the numbers of their keys."""
        if not len(digests):
            return None, []
        every = np.arange(len(digests))
        if preferred is not None:
            node, rank = self._target(digests[0], preferred)
            return rank, [(node, every)]
        homes = self._nodes.homes[0]
        places = by_place(homes.of_each(digests.words), every)
        return None, [(self._nodes.find(homes.nodes[place]), which) for place, which in places]


def _rows(tensors: Any, which: Words) -> Any:
    """Some of several tensors: of one tensor its rows, as one tensor if they follow each other."""
    if len(which) == len(tensors):
        return tensors
    if isinstance(tensors, torch.Tensor):
        first, last = int(which[0]), int(which[-1])
        if last - first + 1 == len(which):
            return tensors[first : last + 1]
    return [tensors[i] for i in which.tolist()]
