"""One object: put, get, remove, across nodes. An object of this node takes the same path as without a cluster."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable
from typing import Any, TypeVar, overload

import numpy as np
import torch

from nanokv.api.objects import check_reinterpret
from nanokv.arguments import FOREVER, seconds
from nanokv.cluster.base import ClusterBase, Segment
from nanokv.cluster.fetched import Got
from nanokv.cluster.kinds import Kind
from nanokv.cluster.messages.asker import Refused, Unanswered
from nanokv.cluster.nodes import Node
from nanokv.device.machines.own_memory import plain_tensor, plainly
from nanokv.device.machines.records import Found, Place, What, Words
from nanokv.device.protocol.status import Status
from nanokv.errors import InvalidArgument, PeerLost, WaitTimeout
from nanokv.replicas import NO_COPIES
from nanokv.room import NO_ROOM, NO_WAIT
from nanokv.terms import Hold
from nanokv.transfer.descriptors import RAW, checked_destination, flat_bytes, shape_of, unsuited, what_of
from nanokv.types import Key, KeyDigest

_ABSENT: Any = object()
_OK, _MISS, _DUPLICATE = int(Status.OK), int(Status.MISS), int(Status.DUPLICATE)
_NOT_READY, _PINNED = int(Status.NOT_READY), int(Status.PINNED)
_SHORTEST_LOOK, _LONGEST_LOOK = 0.001, 0.1  #: seconds between two looks for an object, if no event comes
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
        deadline = time.monotonic() + seconds("timeout", timeout)
        status = self._put_to(node, rank, digest, plain, hold)
        while status in NO_ROOM and time.monotonic() < deadline:
            time.sleep(_ROOM_REST)
            status = self._put_to(node, rank, digest, plain, hold)
        if status and not (exist_ok and status == _DUPLICATE):
            raise self._error(status, key, node, nbytes)

    def _put_to(
        self, node: Node, rank: int | None, digest: KeyDigest, tensor: torch.Tensor, hold: float | Hold | None
    ) -> int:
        if tensor.nbytes > node.geometry.max_object_bytes:
            return int(Status.TOO_LARGE)
        keys = np.array([digest], np.int64)
        status = int(self._putting.put_each(node, keys, [tensor], rank, self._terms(hold))["status"][0])
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
        digest = self._hash(key)
        found = self.world.get(digest, _ABSENT, dst=dst, reinterpret=reinterpret)
        if found is not _ABSENT:
            return found
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
        known = self._get_known(digest)
        if known is not None:
            return known
        status, answered, lost = _MISS, None, None
        for node in self._others(digest):
            try:
                got = self._reading.get(node, digest)
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

    def _get_known(self, digest: KeyDigest) -> tuple[Got, Node] | None:
        """The object of a key from where events say that it lies; None: it is not there, or nothing is known."""
        name = self._parts.locations.node_of(digest)
        node = None if name is None else self._nodes.find(name)
        if node is None:
            return None
        try:
            got = self._reading.get_known(node, digest)
        except PeerLost:
            return None  # its home may have it too; if not, that is asked next, and says so
        if got is None:
            return None
        return got, node

    def _as_tensor(self, got: Got, key: Key, dst: torch.Tensor | None, reinterpret: bool) -> torch.Tensor:
        """The object that was read, as a tensor of its own memory, or in `dst`."""
        if dst is None:
            return self._new_tensor(got, key)
        plain = self.world._single.destination(dst)
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
        digest = self._hash(key)
        if self.world.exists(digest) or self._is_known(digest):
            return True
        keys, lost = np.array([digest], np.int64), None
        for node in self._others(digest):
            try:
                if self._reading.find_each(node, keys)[0] == _OK:
                    return True
            except PeerLost as error:
                lost = lost or error
        if lost is not None:
            self._lost(lost)
        return False

    __contains__ = exists

    def _is_known(self, digest: KeyDigest) -> bool:
        """Whether the object of a key lies where events say."""
        name = self._parts.locations.node_of(digest)
        node = None if name is None else self._nodes.find(name)
        try:
            return node is not None and self._reading.is_known(node, digest)
        except PeerLost:
            return False

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
        digests = [self._hash(keys)] if one else list(self.world._digests(keys))  # type: ignore[arg-type]
        deadline = time.monotonic() + (FOREVER if timeout is None else seconds("timeout", timeout))
        pause, missing = _SHORTEST_LOOK, digests
        while True:
            heard = self._parts.events.heard
            missing = [digest for digest in missing if not self.exists(digest)]
            left = deadline - time.monotonic()
            if not missing:
                return
            if left <= 0:
                raise WaitTimeout(f"{len(missing)} of {len(digests)} objects are not READY after {timeout} s")
            self._parts.events.wait(heard, min(pause, left))
            pause = min(2 * pause, _LONGEST_LOOK)

    def remove(self, key: Key) -> None:
        """Remove an object, from this node and from its home.

        Raises:
            KeyNotFound, NotReady, ObjectPinned: as `NanoKVCache.remove`.
            PeerLost: a node that may have it cannot be reached; it may have removed the object.
        """
        self._check_open()
        digest = self._hash(key)
        status = self.world._allocation.remove(digest)
        keys, lost = np.array([digest], np.int64), None
        for node in self._others(digest):
            try:
                status = _better(status, int(self._remove_each(node, keys)[0]))
            except PeerLost as error:
                lost = lost or error
        if lost is not None:
            raise lost
        if status:
            raise self._error(status, key, None)

    def _remove_each(self, node: Node, keys: Words) -> Words:
        """Have a node remove objects: a status each."""
        cards = node.cards
        if not cards:
            raise PeerLost(f"node {node.name} has left")
        to, timeout = cards[0], self.options.timeout
        try:
            body = self._parts.asker.ask(
                to.messages,
                to.member,
                Kind.REMOVE,
                keys.tobytes(),
                timeout,
                to_incarnation=to.incarnation,
                meanwhile=lambda: self._reading.probe(node),
            )
        except (Unanswered, Refused) as error:
            raise PeerLost(f"node {node.name} did not remove the objects: {error}") from None
        return np.frombuffer(body, np.int64)


def _better(one: int, two: int) -> int:
    """The answer about an object that two nodes may have: OK, or why it is still there, before MISS."""
    return one if two == _MISS or one == _OK else two
