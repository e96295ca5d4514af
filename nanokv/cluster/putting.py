"""Puts to other nodes: the producer offers its bytes, and the node's member pulls them (`pulling`).

The bytes must not change while the member reads them. So each question has a ticket, a word that the member reads after
the bytes: it is the question's number as long as the caller waits, and is cleared before the caller goes on.
"""

import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nanokv.cluster.kinds import Kind
from nanokv.cluster.links.base import Link
from nanokv.cluster.messages.asker import Asker, Refused, Unanswered
from nanokv.cluster.nodes import Node
from nanokv.cluster.pull_message import MOST_PULLS, Question, Records, answered
from nanokv.cluster.reading import Reading
from nanokv.cluster.relative_terms import relative
from nanokv.cluster.staging import Staging
from nanokv.device.fabric.records import LOOK_LINE, PULL
from nanokv.device.machines.records import Terms, Words
from nanokv.device.segment.layout import WORD
from nanokv.errors import PeerLost
from nanokv.transfer.descriptors import describe, flat_bytes, is_plain

_TICKETS = 64
_ALIGN = 64  #: bytes between sources
_BYTES_A_SECOND = 50_000_000  #: at least so fast a member reads


class _CardForgotten(Exception):
    """A member refused a question that came without the card of the link, which it may not have (any more)."""


class Registered:
    """Memory of the caller that other nodes may read: an engine's cache. Its objects are not copied before a put."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._known: dict[int, torch.Tensor] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Register the memory of a contiguous tensor."""
        if tensor.data_ptr() not in self._known:
            self._link.register(tensor.data_ptr(), tensor.nbytes)
            self._known[tensor.data_ptr()] = tensor

    def has(self, address: int, nbytes: int) -> bool:
        """Whether memory is part of a tensor that was added."""
        return any(
            start <= address and address + nbytes <= start + tensor.nbytes for start, tensor in self._known.items()
        )


class Putting:
    """The puts of one process to other nodes."""

    def __init__(
        self, link: Link, asker: Asker, reading: Reading, staging: Staging, registered: Registered, timeout: float
    ) -> None:
        self._reading = reading
        self._link, self._asker, self._staging, self._timeout = link, asker, staging, timeout
        self._registered = registered
        self._lock = threading.Lock()
        self._tickets_room = staging.room(_TICKETS * LOOK_LINE)
        self._tickets = self._tickets_room.view(_TICKETS * LOOK_LINE).view(np.uint64)
        self._tickets[:] = 0
        self._free = threading.Semaphore(_TICKETS)
        self._lines = list(range(_TICKETS))
        self._numbers = itertools.count(1)
        self._told: dict[int, bytes] = {}  # by incarnation of a member: the card of the link that it has
        self._unanswered: dict[int, list[Any]] = {}  # by incarnation: what it may still read

    def put_each(
        self, node: Node, keys: Words, tensors: Sequence[torch.Tensor], rank: int | None, terms: Terms
    ) -> Records:
        """Put each tensor under its key (int64 [n, 2]): PULLED [n].

        Raises:
            PeerLost: the node did not answer. What was put is not known.
            InvalidArgument: a tensor cannot be stored.
        """
        pulls = np.zeros(len(keys), PULL.dtype)
        pulls["key_hash"], pulls["key_check"] = keys[:, 0], keys[:, 1]
        pulls["rank"] = -1 if rank is None else rank
        pulls["access"], pulls["group"], pulls["until"] = relative(terms, time.time_ns())
        kept = self._offer(pulls, tensors)
        parts = (pulls[i : i + MOST_PULLS] for i in range(0, len(pulls), MOST_PULLS))
        return np.concatenate([self._ask(node, part, kept) for part in parts])

    # --- sources ---
    def _offer(self, pulls: Records, tensors: Sequence[torch.Tensor]) -> Any:
        """Fill in size, descriptor and source of each. Returns what keeps the sources."""
        if isinstance(tensors, torch.Tensor) and len(tensors) and is_plain(tensors):
            nbytes, descriptor = describe(tensors[0])
            pulls["nbytes"], pulls["what"] = nbytes, descriptor
            if tensors.device.type == "cpu":
                return self._offer_rows(pulls, tensors, nbytes)
        for pull, tensor in zip(pulls, tensors, strict=True):
            pull["nbytes"], pull["what"] = describe(tensor)
        return self._offer_each(pulls, tensors)

    def _offer_rows(self, pulls: Records, rows: torch.Tensor, nbytes: int) -> Any:
        start = rows.data_ptr()
        kept: Any = rows
        if not self._registered.has(start, rows.nbytes):
            kept = self._staging.room(rows.nbytes)
            torch.from_numpy(kept.view(rows.nbytes)).copy_(flat_bytes(rows.detach()))
            start = kept.address
        pulls["source"] = start + nbytes * np.arange(len(pulls))
        return kept

    def _offer_each(self, pulls: Records, tensors: Sequence[torch.Tensor]) -> Any:
        ready = [
            tensor.device.type == "cpu" and is_plain(tensor) and self._registered.has(tensor.data_ptr(), tensor.nbytes)
            for tensor in tensors
        ]
        places, total = [], 0
        for tensor, is_ready in zip(tensors, ready, strict=True):
            places.append(total)
            total += 0 if is_ready else -(-tensor.nbytes // _ALIGN) * _ALIGN
        room = self._staging.room(max(total, 1))
        memory = torch.from_numpy(room.view(max(total, 1)))
        for pull, tensor, is_ready, place in zip(pulls, tensors, ready, places, strict=True):
            pull["source"] = tensor.data_ptr() if is_ready else room.address + place
            if not is_ready and tensor.nbytes:
                into = memory[place : place + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                into.copy_(tensor.detach())
        return room, tensors

    # --- the question ---
    def _ask(self, node: Node, pulls: Records, kept: Any) -> Records:
        try:
            return self._ask_once(node, pulls, kept)
        except _CardForgotten:  # it let go of this process when that was no member for a while
            return self._ask_once(node, pulls, kept)

    def _ask_once(self, node: Node, pulls: Records, kept: Any) -> Records:
        cards = node.cards
        if not cards:
            raise PeerLost(f"node {node.name} has left")
        to, card = cards[0], self._link.card()
        told = self._told.get(to.incarnation) == card
        self._free.acquire()
        line = self._lines.pop()
        number = next(self._numbers)
        at = line * (LOOK_LINE // WORD)
        self._tickets[at] = number
        timeout = self._timeout + int(pulls["nbytes"].sum()) / _BYTES_A_SECOND
        ticket = self._tickets_room.address + line * LOOK_LINE
        question = Question(pulls, b"" if told else card, ticket, number, timeout)
        try:
            body = self._asker.ask(
                to.messages,
                to.member,
                Kind.PULL,
                question.packed(),
                timeout,
                to_incarnation=to.incarnation,
                meanwhile=lambda: self._reading.probe(node),
            )
        except PeerLost:
            self._told.pop(to.incarnation, None)
            raise
        except Unanswered as error:
            with self._lock:
                self._unanswered.setdefault(to.incarnation, []).append(kept)
            raise PeerLost(f"node {node.name} did not answer: {error}") from None
        except Refused as error:
            if told:
                self._told.pop(to.incarnation, None)
                raise _CardForgotten from None
            raise PeerLost(f"node {node.name} could not take the objects: {error}") from None
        finally:
            self._tickets[at] = 0  # before the caller goes on
            self._lines.append(line)
            self._free.release()
        self._told[to.incarnation] = card
        return answered(body, len(pulls))

    def forget(self, incarnation: int) -> None:
        """Let go of what a member may have read that has left the cluster."""
        with self._lock:
            self._unanswered.pop(incarnation, None)
            self._told.pop(incarnation, None)
