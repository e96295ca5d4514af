"""One object: put, get, remove, across nodes. An object of this node takes the same path as without a cluster."""

from __future__ import annotations

import ctypes
import time
from typing import Any, TypeVar, overload

import numpy as np
import torch

from nanokv.arguments import seconds
from nanokv.cluster.base import ClusterBase, Segment
from nanokv.cluster.fetched import Got
from nanokv.cluster.kinds import Kind
from nanokv.cluster.messages.asker import Refused, Unanswered
from nanokv.cluster.nodes import Node
from nanokv.cluster.patience import Patience
from nanokv.cluster.pull_message import BadMessage
from nanokv.cluster.removal_message import MOST_REMOVED, removed
from nanokv.device.machines.own_memory import plain_tensor, plainly
from nanokv.device.machines.records import Found, Place, What, Words
from nanokv.device.protocol.status import Status
from nanokv.errors import InvalidArgument, PeerLost
from nanokv.replicas import NO_COPIES
from nanokv.room import NO_ROOM, NO_WAIT
from nanokv.terms import Hold
from nanokv.transfer.descriptors import RAW, checked_destination, flat_bytes, shape_of, unsuited, what_of
from nanokv.transfer.object_calls import check_reinterpret
from nanokv.types import Key, KeyDigest

_ABSENT: Any = object()
_OK, _MISS, _DUPLICATE = int(Status.OK), int(Status.MISS), int(Status.DUPLICATE)
_NOT_READY = int(Status.NOT_READY)
_ROOM_REST = 0.01  #: seconds between two tries of a put that found no room on another node
D = TypeVar("D")


def copy_to(dst: torch.Tensor, got: Got) -> None:
    """Copy the bytes of an object to a contiguous, plain tensor."""
    if isinstance(got.data, bytes) and dst.device.type == "cpu":
        ctypes.memmove(dst.data_ptr(), got.data, got.nbytes)
        return
    source = np.frombuffer(got.data, np.uint8).copy() if isinstance(got.data, bytes) else got.data
    with torch.inference_mode(), plainly():
        flat_bytes(dst).copy_(torch.from_numpy(source))


class Objects(ClusterBase):
    """Calls about one key."""

    def put(
        self,
        key: Key,
        tensor: torch.Tensor,
        *,
        preferred_segment: Segment | None = None,
        exist_ok: bool = False,
        hold: float | Hold | None = None,
        timeout: float = NO_WAIT,
        replicas: int = NO_COPIES,
    ) -> None:
        """Store a tensor: see `NanoKVCache.put`. It can be read at once, from every node if it is put at its home.

        At another node only that one and this one find it at once; the others when they have heard of it, some
        milliseconds later.

        Args:
            preferred_segment: (node, rank), (node, None), or a rank of this node. Default: the key's home (`home`).
            replicas: only for objects that this node gets.

        Raises:
            DuplicateKey, OutOfMemory, InvalidArgument, WriteLost: nothing was stored.
            PeerLost: the node cannot be reached, or did not answer: then the object may have been stored.
        """
        self._check_open()
        digest = self._hash(key)
        node, rank = self._target(digest, preferred_segment)
        if node is None:
            self.world.put(
                digest,
                tensor,
                preferred_segment=rank,
                exist_ok=exist_ok,
                hold=hold,
                timeout=timeout,
                replicas=replicas,
            )
            return
        if replicas:
            raise InvalidArgument(f"replicas are for objects that this node gets, not node {node.name}")
        plain = plain_tensor(tensor)
        nbytes = what_of(plain.dtype, plain.shape).nbytes
        deadline, patience = time.monotonic() + seconds("timeout", timeout), self._patience()
        status = self._put_to(node, rank, digest, plain, hold, patience)
        while status in NO_ROOM and time.monotonic() < deadline:
            self._check_stays()
            time.sleep(_ROOM_REST)
            status = self._put_to(node, rank, digest, plain, hold, patience)
        if status and not (exist_ok and status == _DUPLICATE):
            raise self._error(status, key, node, nbytes)

    def _put_to(
        self,
        node: Node,
        rank: int | None,
        digest: KeyDigest,
        tensor: torch.Tensor,
        hold: float | Hold | None,
        patience: Patience,
    ) -> int:
        if tensor.nbytes > node.geometry.max_object_bytes:
            return int(Status.TOO_LARGE)
        keys = np.array([digest], np.int64)
        try:
            answers = self._putting.put_each(node, keys, [tensor], rank, self._terms(hold), patience)
        except PeerLost:
            self._counts.peer_lost += 1
            raise
        status = int(answers["status"][0])
        if not status:
            self._counts.put(1, tensor.nbytes)
        return status

    @overload
    def get(self, key: Key, *, dst: torch.Tensor | None = None, reinterpret: bool = False) -> torch.Tensor: ...
    @overload
    def get(
        self, key: Key, default: D, *, dst: torch.Tensor | None = None, reinterpret: bool = False
    ) -> torch.Tensor | D: ...
    def get(
        self, key: Key, default: Any = _ABSENT, *, dst: torch.Tensor | None = None, reinterpret: bool = False
    ) -> Any:
        """Read an object: see `NanoKVCache.get`. It is looked for on this node, then at its home.

        Raises:
            KeyNotFound, NotReady, SegmentCorrupt: the contents of `dst` are undefined.
            PeerLost: a node that may have the object cannot be reached, and no other one has it.
            InvalidArgument: `dst` does not suit the object; nothing was copied.
        """
        if not self._open:
            self._check_open()
        found = self.world.get(key, _ABSENT, dst=dst, reinterpret=reinterpret)
        if found is not _ABSENT:
            return found
        digest = self._hash(key)
        if reinterpret is not False:
            check_reinterpret(reinterpret, dst)
        got, node = self._get_elsewhere(digest)
        if isinstance(got, Got):
            return self._as_tensor(got, key, dst, reinterpret)
        if default is not _ABSENT and got in (_MISS, _NOT_READY):
            return default
        raise self._error(got, key, node)

    def _get_elsewhere(self, digest: KeyDigest) -> tuple[Got | int, Node | None]:
        """The object of a key on another node; or why there is none, and whose answer that is.

        Raises:
            PeerLost: a node that may have it cannot be reached, and no other one has it.
        """
        self._counts.remote_gets += 1
        patience, known = self._patience(), self._known(digest)
        status, answered, lost, silent = _MISS, None, None, None
        if known is not None:
            try:
                there = self._reading.get_known(known, digest, patience)
                if there is not None:
                    return there, known
            except PeerLost as error:  # another one may have it too
                lost, silent = error, known
        for node in self._others(digest):
            if node is silent:
                continue
            try:
                got = self._reading.get(node, digest, patience)
            except PeerLost as error:
                lost = lost or error
                continue
            if isinstance(got, Got):
                return got, node
            if status == _MISS:
                status, answered = got, node
        if lost is not None:
            self._lost(lost)
        return status, answered

    def _as_tensor(self, got: Got, key: Key, dst: torch.Tensor | None, reinterpret: bool) -> torch.Tensor:
        """The object that was read, as a tensor of its own memory, or in `dst`."""
        if dst is None:
            return self._new_tensor(got, key)
        plain = self.world.engine.single.destination(dst)
        what: What = what_of(plain.dtype, plain.shape)
        found = Found(_OK, Place(0, 0, 0, 0, got.nbytes), got.descriptor)
        if not found.suits(what.nbytes, RAW if reinterpret else what.descriptor):
            raise unsuited(plain, found)
        if got.nbytes:
            copy_to(plain, got)
        return dst

    def _new_tensor(self, got: Got, key: Key) -> torch.Tensor:
        known = shape_of(got.descriptor, got.nbytes)
        if known is None:
            raise self._error(Status.CORRUPT, key, None)
        dtype, shape = known
        if isinstance(got.data, bytes) or not got.nbytes:
            with plainly():
                made = torch.empty(shape, dtype=dtype, device=self.device)
            if got.nbytes:
                copy_to(checked_destination(made, self.device), got)
            return made
        with plainly():
            return torch.from_numpy(got.data).view(dtype).view(shape).to(self.device)  # its memory becomes the tensor's

    def exists(self, key: Key) -> bool:
        """True if the object can be read now, from this node or its home.

        Raises:
            PeerLost: a node that may have it cannot be reached, and no other one has it.
        """
        self._check_open()
        if self.world.exists(key):
            return True
        digest = self._hash(key)
        keys, patience, known = np.array([digest], np.int64), self._patience(), self._known(digest)
        lost, silent = None, None
        if known is not None:
            try:
                if self._reading.is_known(known, digest, patience):
                    return True
            except PeerLost as error:
                lost, silent = error, known
        for node in self._others(digest):
            if node is silent:
                continue
            try:
                if self._reading.find_each(node, keys, patience)[0] == _OK:
                    return True
            except PeerLost as error:
                lost = lost or error
        if lost is not None:
            self._lost(lost)
        return False

    __contains__ = exists

    def remove(self, key: Key) -> None:
        """Remove an object, wherever it lies: from this node, and from all others.

        Raises:
            KeyNotFound: there was none.
            NotReady, ObjectPinned: as `NanoKVCache.remove`, on some node.
            PeerLost: a node cannot be reached, and may have an object of the key; those of other nodes are removed.
        """
        self._check_open()
        keys = np.array([self._hash(key)], np.int64)
        statuses = np.array([self.world.engine.allocation.remove(KeyDigest(*keys[0].tolist()))], np.int64)
        lost = self._remove_elsewhere(keys, statuses)
        if lost is not None:
            self._counts.peer_lost += 1
            raise lost
        if statuses[0]:
            raise self._error(int(statuses[0]), key, None)

    def _remove_elsewhere(self, keys: Words, statuses: Words) -> PeerLost | None:
        """Have all other nodes remove objects: only they know what they have. `statuses` has what this node did.

        Afterwards that of a key is OK: one was removed, and none is left; MISS; or why one is left. Returns why a node
        did not answer.
        """
        asks = [(node, keys) for node in self._nodes.others()]
        lost, patience = None, self._patience()
        answers = self._parts.at_once.ask(asks, lambda node, keys: self._remove_each(node, keys, patience))
        for answer in answers:
            if isinstance(answer, PeerLost):
                lost = lost or answer
                continue
            is_left = (answer != _OK) & (answer != _MISS)
            takes = is_left | ((statuses == _MISS) & (answer == _OK))
            statuses[takes] = answer[takes]
        return lost

    def _remove_each(self, node: Node, keys: Words, patience: Patience) -> Words:
        """Have a node remove objects: a status each."""
        parts = (keys[i : i + MOST_REMOVED] for i in range(0, len(keys), MOST_REMOVED))
        return np.concatenate([self._remove_some(node, part, patience) for part in parts])

    def _remove_some(self, node: Node, keys: Words, patience: Patience) -> Words:
        to, timeout, begun = node.member(), patience.left(node.name), time.monotonic()
        try:
            body = self._parts.asker.ask(
                to.messages,
                to.member,
                Kind.REMOVE,
                np.ascontiguousarray(keys).tobytes(),
                timeout,
                to_incarnation=to.incarnation,
                meanwhile=lambda: self._reading.probe(node),
            )
            return removed(body, len(keys))
        except Unanswered as error:
            patience.waited(begun)
            raise PeerLost(f"node {node.name} did not remove the objects: {error}") from None
        except (Refused, BadMessage) as error:
            raise PeerLost(f"node {node.name} did not remove the objects: {error}") from None
