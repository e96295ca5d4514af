"""Puts to other nodes: the producer offers its bytes, and the node's member pulls them (`pulling`).

For memory of GPUs, and networks where one-sided reads are faster than a socket. The bytes must not change while the
member reads them. So each question has a ticket, a word that the member reads after the bytes: it is the question's
number as long as the caller waits, and is cleared before the caller goes on. Few bytes, and removals, go over the wire
where the node serves its objects there; else few bytes travel in the question itself, which nobody changes.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from nanokv.cluster.card import Card
from nanokv.cluster.kept import Kept
from nanokv.cluster.kinds import Kind
from nanokv.cluster.links.base import Link
from nanokv.cluster.locations import Locations
from nanokv.cluster.messages.replies import Refused, Unanswered
from nanokv.cluster.nodes import Node
from nanokv.cluster.offering import Offers, RegisteredMemory, are_few
from nanokv.cluster.patience import Patience
from nanokv.cluster.pull_message import HEAD, MOST_PULLS, NEEDS_CARD, BadMessage, Question, Records, answered
from nanokv.cluster.relative_terms import relative
from nanokv.cluster.removal_message import MOST_REMOVED, removed
from nanokv.cluster.staging import Staging
from nanokv.cluster.wire.exchanges import WirePuts
from nanokv.cluster.wire.ways import Ways
from nanokv.device.fabric.records import LOOK_LINE, PULL
from nanokv.device.machines.own_memory import plain_tensor, plainly
from nanokv.device.machines.records import Terms, Words
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.layout import WORD
from nanokv.device.wire.records import MOST_CALL
from nanokv.errors import PeerLost
from nanokv.types import KeyDigest

_TICKETS = 64
_NO_TICKET = 0
_CARD_GROWS = 4096  #: bytes, at most, by the staging that is registered for one question
_BYTES_A_SECOND = 50_000_000  #: at least so fast a member reads


class _CardForgotten(Exception):
    """A member does not have the card of the link (any more)."""


class RemotePuts:
    """The puts of one process to other nodes.

    Attributes:
        kept: what other nodes may still read.
    """

    def __init__(
        self,
        link: Link,
        ways: Ways,
        wire: WirePuts,
        staging: Staging,
        registered: RegisteredMemory,
        locations: Locations,
        timeout: float,
    ) -> None:
        self._link, self._ways, self._wire, self._locations = link, ways, wire, locations
        self._offers = Offers(registered, staging)
        self._tickets_room = staging.room(_TICKETS * LOOK_LINE)
        self._tickets = self._tickets_room.view(_TICKETS * LOOK_LINE).view(np.uint64)
        self._tickets[:] = 0
        self._free = threading.Semaphore(_TICKETS)
        self._lines = list(range(_TICKETS))
        self._numbers = itertools.count(1)
        self.told: dict[int, bytes] = {}  #: by incarnation of a member: the card of the link that it has
        self.kept = Kept(ways, timeout)
        self._unanswered = self.kept.members

    def put(
        self, node: Node, key: KeyDigest, tensor: torch.Tensor, rank: int | None, terms: Terms, patience: Patience
    ) -> int:
        """See `Puts`."""
        plain = plain_tensor(tensor)
        if node.serves and are_few([plain]):
            return self._wire.put(node, key, plain, rank, terms, patience)
        if plain.nbytes > node.geometry.max_object_bytes:
            return int(Status.TOO_LARGE)
        return int(self.put_each(node, np.array([key], np.int64), [plain], rank, terms, patience)["status"][0])

    def put_each(
        self,
        node: Node,
        keys: Words,
        tensors: Sequence[torch.Tensor],
        rank: int | None,
        terms: Terms,
        patience: Patience,
    ) -> Records:
        """Put each tensor, a plain one, under its key (int64 [n, 2]): PULLED [n].

        Raises:
            PeerLost: the node did not answer. What was put is not known.
        """
        if node.serves and are_few(tensors):
            return self._wire.put_each(node, keys, tensors, rank, terms, patience)
        pulls = np.zeros(len(keys), PULL.dtype)
        pulls["key_hash"], pulls["key_check"] = keys[:, 0], keys[:, 1]
        pulls["rank"] = -1 if rank is None else rank
        pulls["access"], pulls["group"], pulls["until"] = relative(terms, now_ns())
        with plainly():
            brought = self._offers.bring(pulls, tensors)
        if brought:
            return self._bring(node, pulls, brought, patience)
        found, most = [], self._most_pulls()
        for first in range(0, len(pulls), most):
            part = pulls[first : first + most]
            with plainly():
                kept = self._offers.offer(part, tensors[first : first + most])
            found.append(self._ask(node, part, kept, patience))
        return np.concatenate(found)

    def _most_pulls(self) -> int:
        """How many PULLs a question has beside the card of the link, which grows with what is registered."""
        nbytes = len(self._link.card())
        found = min(MOST_PULLS, (MOST_CALL - HEAD.size - nbytes - _CARD_GROWS) // PULL.size)
        if found < 1:
            raise PeerLost(f"the card of the link has {nbytes} bytes, too many for a message: register less memory")
        return found

    def _bring(self, node: Node, pulls: Records, brought: bytes, patience: Patience) -> Records:
        """Ask, and bring the bytes along."""
        timeout, begun = self._time_for(node, pulls, patience), time.monotonic()
        question = Question(pulls, b"", _NO_TICKET, next(self._numbers), timeout, brought)
        try:
            return self._answer(node, node.puller(), question)
        except Unanswered as error:
            patience.waited(begun)
            raise PeerLost(f"node {node.name} did not answer: {error}") from None
        except (Refused, BadMessage) as error:
            raise PeerLost(f"node {node.name} could not take the objects: {error}") from None

    def remove_each(self, node: Node, keys: Words, patience: Patience) -> Words:
        """See `Puts`."""
        if node.serves:
            return self._wire.remove_each(node, keys, patience)
        parts = (keys[i : i + MOST_REMOVED] for i in range(0, len(keys), MOST_REMOVED))
        return np.concatenate([self._remove_some(node, part, patience) for part in parts])

    def _remove_some(self, node: Node, keys: Words, patience: Patience) -> Words:
        """Remove as `remove_each` does, as many keys as one message has."""
        to, timeout, begun = node.puller(), patience.left(node.name), time.monotonic()
        try:
            body = self._ways.ask(to, Kind.REMOVE, np.ascontiguousarray(keys).tobytes(), timeout)
            return removed(body, len(keys))
        except Unanswered as error:
            patience.waited(begun)
            raise PeerLost(f"node {node.name} did not remove the objects: {error}") from None
        except (Refused, BadMessage) as error:
            raise PeerLost(f"node {node.name} did not remove the objects: {error}") from None

    # --- the question ---
    def _ask(self, node: Node, pulls: Records, kept: Any, patience: Patience) -> Records:
        try:
            return self._ask_once(node, pulls, kept, patience)
        except _CardForgotten:  # it let go of this process when that was no member for a while
            return self._ask_once(node, pulls, kept, patience)

    def _ask_once(self, node: Node, pulls: Records, kept: Any, patience: Patience) -> Records:
        to, card = node.puller(), self._link.card()
        self.kept.check_room(to)
        told = self.told.get(to.incarnation) == card
        timeout, begun = self._time_for(node, pulls, patience), time.monotonic()
        try:
            with self._ticket() as (ticket, number):
                question = Question(pulls, b"" if told else card, ticket, number, timeout)
                try:
                    found = self._answer(node, to, question)
                except (Unanswered, Refused, BadMessage):  # it may be reading, now or later
                    self.kept.add(to, number, int(pulls["nbytes"].sum()), kept)
                    raise
        except (Unanswered, Refused, BadMessage) as error:
            self.told.pop(to.incarnation, None)
            if isinstance(error, Unanswered):
                patience.waited(begun)
                raise PeerLost(f"node {node.name} did not answer: {error}") from None
            raise PeerLost(f"node {node.name} could not take the objects: {error}") from None
        except _CardForgotten:
            self.told.pop(to.incarnation, None)
            raise
        self.told[to.incarnation] = card
        return found

    @contextlib.contextmanager
    def _ticket(self) -> Iterator[tuple[int, int]]:
        """A ticket for a question: its address and number. It is cleared before the caller goes on."""
        with self._free:
            line, number = self._lines.pop(), next(self._numbers)
            at = line * (LOOK_LINE // WORD)
            self._tickets[at] = number
            try:
                yield self._tickets_room.address + line * LOOK_LINE, number
            finally:
                self._tickets[at] = 0
                self._lines.append(line)

    @staticmethod
    def _time_for(node: Node, pulls: Records, patience: Patience) -> float:
        return patience.left(node.name) + int(pulls["nbytes"].sum()) / _BYTES_A_SECOND

    def _answer(self, node: Node, to: Card, question: Question) -> Records:
        """Ask a member of a node: PULLED [n].

        Raises:
            Unanswered, Refused: see `WireClient.ask`.
            _CardForgotten: the member asks for the card. It has begun nothing.
        """
        body = self._ways.ask(to, Kind.PULL, question.packed(), question.timeout)
        if body == NEEDS_CARD:
            raise _CardForgotten
        found = answered(body, len(question.pulls))
        self._locations.learn_put(to.world, question.pulls, found)
        return found

    @property
    def late(self) -> int:
        """How many questions were given up for which other nodes may still read."""
        return sum(map(len, list(self._unanswered.values())))

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept for them."""
        return self.kept.nbytes

    def close(self) -> None:
        """Ask nobody any more whether it still reads. Idempotent."""
        self.kept.close()

    def forget(self, incarnation: int) -> None:
        """A member has left the cluster: let go of what it may have read, a while later."""
        self.kept.left(incarnation)
        self.told.pop(incarnation, None)
