"""Gets from other nodes over the wire, and puts and removals there: each an exchange of one question and one answer."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from nanokv.cluster.card import Card, WorldId
from nanokv.cluster.counts import MemberCounts
from nanokv.cluster.fetched import FetchedObjects, Got, Kinds
from nanokv.cluster.kinds import Kind
from nanokv.cluster.locations import Locations
from nanokv.cluster.messages.replies import Refused, Unanswered
from nanokv.cluster.nodes import Node
from nanokv.cluster.patience import Patience
from nanokv.cluster.pull_message import Records
from nanokv.cluster.relative_terms import relative
from nanokv.cluster.serving import HEADERS_AT_ONCE, headers_question
from nanokv.cluster.staging import ALIGN, Staging
from nanokv.cluster.statuses import is_one_of
from nanokv.cluster.transfers import Take
from nanokv.cluster.wire.client import SMALL, Unreached, WireClient
from nanokv.cluster.wire.ways import Ways
from nanokv.device.fabric.records import PULL, PULLED
from nanokv.device.machines.own_memory import plain_tensor, plainly
from nanokv.device.machines.records import NO_TERMS, Terms, What, Words
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.wire.records import MOST_RECORDS, WANTED
from nanokv.errors import PeerLost
from nanokv.keys.hashing import Hasher
from nanokv.transfer.descriptors import descriptor_of, is_plain
from nanokv.transfer.host_tensors import all_in_host_memory, native_look
from nanokv.transfer.object_calls import hashing_record
from nanokv.types import Key, KeyDigest

_OK, _MISS, _TORN, _SIZE, _FULL = (int(Status[name]) for name in ("OK", "MISS", "TORN", "SIZE", "FULL"))
_AGAIN = (_TORN, int(Status.BUSY))
_MOST_CLAIMED = 256 << 20  #: bytes of objects that are claimed at once, if they are more than one
_HEADERS_SECONDS = 1.0  #: for each part of a header arena
TRIES = 16  #: how often a get begins anew because the object was replaced meanwhile
T = TypeVar("T")
Work = Callable[[WireClient, float], T]


class _Exchanges:
    """Exchanges with one of the processes of a node; with the next one if that is lost."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways

    def _exchange(
        self, node: Node, patience: Patience, work: Work[T], *, once: bool = False, avoids: bool = True
    ) -> tuple[T, Card]:
        """What `work` answers, with a client and seconds, and the card of whom it has asked.

        once: another process is asked only if the first one was sent nothing.
        avoids: who gives no answer is not asked by others for a while. Not where Python answers: it may be busy, while
            puts and gets are answered without it.

        Raises:
            PeerLost: nobody answers.
        """
        first: PeerLost | None = None  # why the first one was lost: those after it have less time
        tried: set[int] = set()
        for _ in range(max(len(node.cards), 1)):
            try:
                timeout, card = patience.left(node.name), node.reachable(tried)
            except PeerLost as error:
                raise first or error from None
            begun = time.monotonic()
            try:
                return work(self._ways.to(card), timeout), card
            except Unanswered as error:
                patience.waited(begun)
                tried.add(card.incarnation)
                if avoids:
                    node.avoid(card, str(error))
                first = first or PeerLost(f"node {node.name} cannot be reached: {error}")
                if once and not isinstance(error, Unreached):
                    break
            except Refused as error:
                raise PeerLost(f"node {node.name} refuses: {error}") from None
        assert first is not None
        raise first


class WireGets(_Exchanges):
    """`transfers.Gets` over the wire. The owner notes each get as a use itself."""

    def __init__(
        self, ways: Ways, staging: Staging, locations: Locations, counts: MemberCounts, hasher: Hasher
    ) -> None:
        super().__init__(ways)
        self._staging, self._locations, self._counts = staging, locations, counts
        self._hasher, self._record, self._look = hasher, hashing_record(hasher), native_look().record
        self._hashing, self._kinds = int(self._record.ctypes.data), Kinds()

    # --- one ---
    def get(self, node: Node, key: KeyDigest, patience: Patience, into: torch.Tensor | None = None) -> Got | int:
        """See `Gets`."""
        if into is not None and (status := self._get_into(node, key, patience, into)) is not None:
            return Got(into.nbytes, (0,) * 8, None) if status == _OK else status
        nbytes = self._locations.size_of(key)  # of what nobody has told the size, more than SMALL bytes are asked twice
        if not 0 <= nbytes <= node.geometry.max_object_bytes:  # a torn entry
            nbytes = 0
        for _ in range(TRIES):
            room = self._staging.room(nbytes) if nbytes > SMALL else None
            to = 0 if room is None else room.address
            (status, size, what, data), _ = self._exchange(
                node,
                patience,
                lambda way, timeout: way.get_any(key, to, nbytes, self._hashing, timeout),  # noqa: B023
            )
            if status == _OK:
                self._counts.read(1, size)
                return Got(size, what, data if room is None else room.view(size))
            if status == _SIZE:
                nbytes = size
            elif status not in _AGAIN:
                return status
        return _MISS

    def get_at_once(
        self, node: Node, key: Key, patience: Patience, into: torch.Tensor | None = None
    ) -> torch.Tensor | int | None:
        """See `Gets`."""
        if into is not None:
            status = self._get_into(node, key, patience, into)
            return into if status == _OK else status
        digest = self._hasher(key)

        def read_into(made: torch.Tensor) -> torch.Tensor | int | None:
            status = self._get_into(node, digest, patience, made, exact=True)
            return made if status == _OK else status

        return self._kinds.read(self._locations.size_of(digest), read_into, lambda: self.get(node, digest, patience))

    def _get_into(
        self, node: Node, key: Key, patience: Patience, into: torch.Tensor, *, exact: bool = False
    ) -> int | None:
        """Read an object by one native call: a Status; None: it does not suit the tensor, or Python must look at it.

        exact: bytes without a dtype and a shape do not suit.
        """
        hashing, look = self._hashing, self._look
        for _ in range(TRIES):
            status, _ = self._exchange(
                node, patience, lambda way, timeout: way.get_one(key, into, hashing, look, timeout, exact=exact)
            )
            if status is None or status == _SIZE:
                return None
            if status not in _AGAIN:
                break
        if status == _OK:
            self._counts.read(1, into.nbytes)
        return _MISS if status in _AGAIN else status

    def get_known(self, node: Node, key: KeyDigest, patience: Patience, into: torch.Tensor | None = None) -> Got | None:
        """See `Gets`."""
        found = self.get(node, key, patience, into)
        return found if isinstance(found, Got) else None

    def is_known(self, node: Node, key: KeyDigest, patience: Patience) -> bool:
        """See `Gets`."""
        return bool(self.find_each(node, np.array([key], np.int64), patience)[0] == _OK)

    # --- many ---
    def find_each(self, node: Node, keys: Words, patience: Patience) -> Words:
        """See `Gets`."""
        found, _ = self._exchange(node, patience, lambda way, timeout: way.exists(keys, timeout))
        return np.where(is_one_of(found, _AGAIN), _MISS, found)

    def find_known_each(self, node: Node, keys: Words, patience: Patience) -> Words:
        """See `Gets`."""
        found = self.find_each(node, keys, patience)
        return np.where(found == _OK, _OK, _MISS)

    def get_each(self, node: Node, keys: Words, patience: Patience, take: Take, *, known: bool = False) -> Words:
        """See `Gets`.

        Of what nobody has told the size, few bytes come at once, of those that have no more; the owner says the sizes
        of the others, and these come next.
        """
        statuses = np.full(len(keys), _TORN, np.int64)
        sizes = self._locations.sizes_of(keys)
        sizes[(sizes < 0) | (sizes > node.geometry.max_object_bytes)] = 0  # torn entries
        for first in range(0, len(keys), MOST_RECORDS):
            which = np.arange(first, min(first + MOST_RECORDS, len(keys)))
            wanted = np.zeros(len(which), WANTED.dtype)
            wanted["room"], wanted["any_size"] = SMALL // len(which) // ALIGN * ALIGN, 1
            wanted["room"] = np.where(sizes[which] > 0, sizes[which], wanted["room"])
            for _ in range(TRIES):
                gots = self._get_some(node, keys, which, wanted, patience, take, statuses)
                left = is_one_of(gots["status"], (*_AGAIN, _SIZE))
                if not left.any():
                    break
                which, wanted, gots = which[left], wanted[left].copy(), gots[left]
                sized = gots["status"] == _SIZE
                wanted["any_size"] = np.where(sized, 0, wanted["any_size"])
                wanted["room"] = np.where(sized, gots["nbytes"], wanted["room"])
                wanted["what"] = np.where(sized[:, None], gots["what"], wanted["what"])
        statuses[is_one_of(statuses, (*_AGAIN, _SIZE))] = _MISS
        return statuses

    def _get_some(
        self,
        node: Node,
        keys: Words,
        which: Words,
        wanted: npt.NDArray[Any],
        patience: Patience,
        take: Take,
        statuses: Words,
    ) -> npt.NDArray[Any]:
        """Get the objects of the keys `which` into new memory, and hand over what has come: a GOT for each."""
        wanted["key_hash"], wanted["key_check"] = keys[which, 0], keys[which, 1]
        rooms = -(-wanted["room"] // ALIGN) * ALIGN
        starts = np.cumsum(rooms) - rooms
        block = self._staging.room(max(int(rooms.sum()), 1))
        targets = block.address + starts
        gots, _ = self._exchange(node, patience, lambda way, timeout: way.get(wanted, targets, timeout))
        statuses[which] = gots["status"]
        good = np.flatnonzero(gots["status"] == _OK)
        if len(good):
            self._counts.read(len(good), int(gots["nbytes"][good].sum()))
            take(which[good], FetchedObjects(block, gots["nbytes"][good], starts[good], gots["what"][good]))
        return gots

    def get_into_each(
        self, node: Node, keys: Words, patience: Patience, targets: Words, what: What, *, known: bool = False
    ) -> Words:
        """See `Gets`."""
        statuses = np.full(len(keys), _TORN, np.int64)
        for first in range(0, len(keys), MOST_RECORDS):
            which = np.arange(first, min(first + MOST_RECORDS, len(keys)))
            for _ in range(TRIES):
                wanted = np.zeros(len(which), WANTED.dtype)
                wanted["key_hash"], wanted["key_check"] = keys[which, 0], keys[which, 1]
                wanted["room"], wanted["what"] = what.nbytes, what.descriptor
                gots, _ = self._exchange(
                    node,
                    patience,
                    lambda way, timeout: way.get(wanted, np.ascontiguousarray(targets[which]), timeout),  # noqa: B023
                )
                statuses[which] = gots["status"]
                which = which[is_one_of(gots["status"], _AGAIN)]
                if not len(which):
                    break
        good = int((statuses == _OK).sum())
        self._counts.read(good, good * what.nbytes)
        statuses[is_one_of(statuses, _AGAIN)] = _MISS
        return statuses

    def headers(self, node: Node, rank: int) -> Iterator[tuple[WorldId, int, Words]]:
        """See `Gets`."""
        first, used = 0, 1
        while first < used:
            question = headers_question(rank, first)
            answer, card = self._exchange(
                node,
                Patience(_HEADERS_SECONDS),
                lambda way, timeout: way.ask(Kind.HEADERS, question, timeout),  # noqa: B023
                avoids=False,
            )
            words = np.frombuffer(answer, np.int64)
            used = int(words[0])
            yield card.world, first, words[1:].reshape(-1, 8).copy()
            first += HEADERS_AT_ONCE


class WirePuts(_Exchanges):
    """`transfers.Puts` over the wire. Nothing is kept for anybody: bytes are read only while a put goes on."""

    def __init__(self, ways: Ways, locations: Locations, hasher: Hasher) -> None:
        super().__init__(ways)
        self._locations = locations
        self._record, self._look = hashing_record(hasher), native_look().record
        self._hashing = int(self._record.ctypes.data)

    def put(
        self, node: Node, key: KeyDigest, tensor: torch.Tensor, rank: int | None, terms: Terms, patience: Patience
    ) -> int:
        """See `Puts`."""
        if terms == NO_TERMS:
            hashing, look, to, learn = (
                self._hashing,
                self._look,
                -1 if rank is None else rank,
                self._locations.learn_one,
            )
            status, _ = self._exchange(
                node,
                patience,
                lambda way, timeout: way.put_one(key, tensor, to, hashing, look, timeout, learn),
                once=True,
            )
            if status is not None:
                return status
        plain = plain_tensor(tensor)
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
        """See `Puts`."""
        pulls = np.zeros(len(keys), PULL.dtype)
        pulls["key_hash"], pulls["key_check"] = keys[:, 0], keys[:, 1]
        pulls["rank"] = -1 if rank is None else rank
        pulls["access"], pulls["group"], pulls["until"] = relative(terms, now_ns())
        kept = _describe(pulls, tensors)
        answers = np.concatenate([self._put_some(node, lot, rank, patience) for lot in _lots(pulls)])
        del kept
        return answers

    def _put_some(self, node: Node, pulls: Records, rank: int | None, patience: Patience) -> Records:
        """Put as many as one frame has. What found no room beside the others is put again when those are committed."""
        which = np.arange(len(pulls))
        while True:
            lot = np.ascontiguousarray(pulls[which])
            lot["rank"] = -1 if rank is None else rank
            _, card = self._exchange(node, patience, lambda way, timeout: way.put(lot, timeout), once=True)  # noqa: B023
            pulls[which] = lot
            full = lot["status"] == _FULL
            if full.all() or not full.any():
                return self._learn(card, pulls)
            which = which[full]

    def _learn(self, card: Card, pulls: Records) -> Records:
        """Note where objects lie now: PULLED [n]."""
        found = np.zeros(len(pulls), PULLED.dtype)
        for name in PULLED.offsets:
            found[name] = pulls[name]
        self._locations.learn_put(card.world, pulls, found)
        return found

    def remove_each(self, node: Node, keys: Words, patience: Patience) -> Words:
        """See `Puts`."""
        try:
            found, _ = self._exchange(node, patience, lambda way, timeout: way.remove(keys, timeout), once=True)
        except PeerLost as error:
            raise PeerLost(f"node {node.name} did not remove the objects: {error}") from None
        return found


def _lots(pulls: Records) -> Iterator[Records]:
    """PULLs in lots of one frame each. What is claimed for a lot is WRITING until the last byte of it has come."""
    first, nbytes = 0, 0
    for i, size in enumerate(pulls["nbytes"].tolist()):
        if i > first and (i - first == MOST_RECORDS or nbytes + size > _MOST_CLAIMED):
            yield pulls[first:i]
            first, nbytes = i, 0
        nbytes += size
    yield pulls[first:]


def _describe(pulls: Records, tensors: Sequence[torch.Tensor]) -> Any:
    """Fill in size, descriptor and address of tensors, plain ones. Returns what keeps their bytes where they are."""
    alike = all_in_host_memory(tensors)
    if alike is not None:
        what, addresses = alike
        pulls["nbytes"], pulls["what"], pulls["source"] = what.nbytes, what.descriptor, addresses
        return tensors
    kept = []
    with plainly():
        for pull, tensor in zip(pulls, tensors, strict=True):
            pull["nbytes"], pull["what"] = descriptor_of(tensor.dtype, tensor.shape)
            there = tensor
            if tensor.device.type != "cpu" or not is_plain(tensor):
                there = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
            pull["source"] = there.data_ptr()
            kept.append(there)
    return kept
