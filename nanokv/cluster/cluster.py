"""NanoKVCluster: the public API across hosts, one object per process of a node.

A call hashes its keys, asks this node's world, and then the nodes that may have what that does not. It hands the work
to a part of the member (`nanokv.cluster.member`), which it names. An object of this node takes the same path as without
a cluster.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, cast, overload

import numpy as np
import torch

from nanokv.allocation.room import NO_ROOM, NO_WAIT
from nanokv.allocation.status_errors import error_for
from nanokv.allocation.terms import Hold, terms_of
from nanokv.arguments import FLAG, FOREVER, integer, seconds
from nanokv.cache.cache import NanoKVCache, listed_tensors
from nanokv.cluster.changes import Listener
from nanokv.cluster.fetched import FetchedObjects, FetchedTensor, Got
from nanokv.cluster.first_asked import FirstAsked
from nanokv.cluster.member import Member
from nanokv.cluster.nodes import Node
from nanokv.cluster.offering import storable
from nanokv.cluster.options import make_cluster_options
from nanokv.cluster.paged import ClusterPagedKV
from nanokv.cluster.patience import Patience
from nanokv.cluster.statuses import is_one_of
from nanokv.device.machines.own_memory import plain_tensor
from nanokv.device.machines.records import NO_TERMS, Found, Place, Terms, What, Words
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import LOW32
from nanokv.errors import CacheClosed, InvalidArgument, NanoKVError, PeerLost, WaitTimeout
from nanokv.keys.digests import Digests
from nanokv.transfer.batched import Tensors
from nanokv.transfer.descriptors import RAW, check_apart, unsuited, what_of
from nanokv.transfer.host_tensors import alike_destinations
from nanokv.transfer.object_calls import check_reinterpret
from nanokv.transfer.replicas import NO_COPIES
from nanokv.types import Key, KeyDigest

_ABSENT: Any = object()
_OK, _MISS, _NOT_READY, _SIZE, _DUPLICATE = (
    int(Status[name]) for name in ("OK", "MISS", "NOT_READY", "SIZE", "DUPLICATE")
)
_HARMLESS = (_OK, _MISS, _NOT_READY)
_LOST = -1  #: no status: the node did not answer
_ROOM_REST = 0.01  #: seconds between two tries of a put that found no room on another node
_SHORTEST_LOOK, _LONGEST_LOOK = 0.001, 0.1  #: seconds between two looks for an object, if no event comes
_FIRST_LOOK, _MOST = 64, 4096  #: keys that are looked up at once for a prefix: twice as many each time
D = TypeVar("D")

#: a node and one of its ranks; None: the node chooses. An int: a rank of this node
Segment = tuple[str, int | None] | int
Asks = list[tuple[Node, Words]]  #: nodes, and the numbers of the keys for which each is asked
#: asks a node for the keys of these numbers, only where they are known to be, or wherever they lie: a status each
Read = Callable[[Node, Words, bool], Words]


class Asked(NamedTuple):
    """What the node that was asked first has answered."""

    node: Node
    status: int | None  #: why it has no object
    lost: PeerLost | None  #: or why there is no answer


class NanoKVCluster:
    """A world, and those of other hosts, as one cache.

    Each object lies in one segment of one node: by default of the key's home, which all members compute from the same
    list of nodes. Nodes exchange objects over sockets, by native code at both ends. Over a link, for RDMA and
    memory of GPUs, a node reads the objects of others by one-sided transfers, and what it puts to them they pull.

    Args:
        world: this node's world: an open cache with `alloc="device"`. It stays usable by itself. Closing it, or this,
            leaves the cluster.
        cluster: the registry of the cluster: "etcd://host:port/name", or "file:///folder", a folder that all nodes see.
        options: fields of `nanokv.cluster.options.ClusterOptions`.

    Raises:
        InvalidArgument: an argument is wrong.
        ClusterUnavailable: the registry does not answer, or another living process is this member.
        LinkUnavailable: the link does not work on this machine.

    It may be used from any thread. A key's object may be on two nodes: if it was put with different preferred segments,
    or before and after nodes came or went. Objects are immutable, so that is the same object for whoever names them by
    their contents.
    """

    def __init__(self, world: NanoKVCache, cluster: str, **options: Any) -> None:
        if not isinstance(world, NanoKVCache):
            raise InvalidArgument(f"world must be a NanoKVCache, not {type(world).__name__}")
        world.engine.check_open()
        if world.alloc != "device":
            raise InvalidArgument("a cluster needs a world with alloc='device': v1's objects are found by its master")
        self.world = world
        self.options = make_cluster_options(world.engine.heap.name, options)
        self.member = Member(world, cluster, self.options)  #: its parts, for the rest of the project
        self._hash = self.member.hash_of
        self._first_asked = FirstAsked(self.member.locations, self.member.nodes)
        self._here = self.options.node
        self._open, self._process = True, os.getpid()
        self._has_compared = False  # generations
        try:
            self._stay_at_close = world.engine.before_close(self.close)
        except BaseException:  # the world was closed meanwhile
            self.member.close()
            raise

    # --- who this is ---
    @property
    def node(self) -> str:
        """The name of this node."""
        return self._here

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes that are known to live, this one too, ascending."""
        self._check_open()
        return list(self.member.nodes.names)

    @property
    def registry_away(self) -> float:
        """Seconds since the registry was last heard of; 0.0 while it answers. Meanwhile the nodes stay as they were."""
        self._check_open()
        return self.member.membership.away_for()

    @property
    def device(self) -> torch.device:
        """The device of the tensors that `get` returns."""
        return self.world.device

    def digest(self, key: Key) -> KeyDigest:
        """The digest of a key: see `NanoKVCache.digest`."""
        return self._hash(key)

    def home(self, key: Key) -> str:
        """The node that gets the object of a key, if no other is preferred."""
        self._check_open()
        return self.member.nodes.homes[0].of(self._hash(key))

    def about(self) -> dict[str, str]:
        """What the members of the other nodes say of themselves (`ClusterOptions.about`): of each its first."""
        self._check_open()
        known = self.member.nodes
        nodes = [node for name in known.names if (node := known.find(name)) is not None]
        return {node.name: cards[0].about for node in nodes if (cards := node.cards)}

    def stats(self) -> dict[str, Any]:
        """Counters of this rank (`NanoKVCache.stats`), and of what it did with other nodes."""
        self._check_open()
        mine = cast("dict[str, Any]", self.world.stats())
        more = {"node": self.node, "nodes": self.nodes, "registry_away": self.registry_away}
        return mine | more | {"ways": self.member.ways_to_nodes()} | self.member.figures.as_dict()

    def register(self, tensor: torch.Tensor) -> None:
        """Let other nodes read the memory of a tensor, so that its rows are put to them without a copy in between.

        For the cache of an engine. The tensor is kept until this cluster is closed.

        Raises:
            InvalidArgument: it is not contiguous, or has no memory of its own.
        """
        self._check_open()
        plain = plain_tensor(tensor)
        if not plain.is_contiguous():
            raise InvalidArgument("register needs a contiguous tensor")
        self.member.registered.add(plain)

    def __repr__(self) -> str:
        if not self._open:
            return f"<NanoKVCluster, node {self._here}, closed>"
        return f"<NanoKVCluster, node {self._here}, of {len(self.member.nodes.names)} nodes, {self.world!r}>"

    # --- the end ---
    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the world was closed."""
        return not self._open

    def close(self) -> None:
        """Leave the cluster. The world stays open, with its objects. Idempotent.

        Calls of other threads that are under way raise CacheClosed or PeerLost.
        """
        if self._open:
            self._open = False
            if os.getpid() == self._process:  # else nothing here is this process'
                self._stay_at_close()
                self.member.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- one object ---
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
        if exist_ok is not False:  # each of these costs a tenth of a put to a node that is mapped
            FLAG("exist_ok", exist_ok)
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
        deadline = 0.0 if timeout is NO_WAIT else time.monotonic() + seconds("timeout", timeout)
        patience, terms = self._patience(), self._terms(hold)
        status = self._put_to(node, rank, digest, tensor, terms, patience)
        while status and status in NO_ROOM and time.monotonic() < deadline:
            self._check_stays()
            time.sleep(_ROOM_REST)
            status = self._put_to(node, rank, digest, tensor, terms, patience)
        if status and not (exist_ok and status == _DUPLICATE):
            raise self._error(status, key, node, tensor.nbytes)

    def _put_to(
        self, node: Node, rank: int | None, digest: KeyDigest, tensor: torch.Tensor, terms: Terms, patience: Patience
    ) -> int:
        """Put to another node, once: a Status."""
        member = self.member
        try:
            status = member.puts(node).put(node, digest, tensor, rank, terms, patience)
        except PeerLost:
            member.counts.peer_lost += 1
            raise
        if not status:
            member.counts.put(1, tensor.nbytes)
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
        patience, engine, asked = self._patience(), self.world.engine, None
        if reinterpret is False and (node := self._first_asked(engine.calls, key, dst)) is not None:
            found, lost = None, None
            try:
                found = self.member.gets(node).get_at_once(node, key, patience, dst)
            except PeerLost as error:  # another one may have it too
                lost = error
            if isinstance(found, torch.Tensor):
                engine.traffic.get(_MISS, 0)  # on this node
                self.member.counts.remote_gets += 1
                return found
            if found is not None or lost is not None:
                asked = Asked(node, found, lost)
        digest = self._hash(key)
        if (status := engine.allocation.exists(digest)) not in (_MISS, _NOT_READY):
            found = self.world.get(key, _ABSENT, dst=dst, reinterpret=reinterpret)
            if found is not _ABSENT:
                return found
        else:
            engine.traffic.get(status, 0)
        if reinterpret is not False:
            check_reinterpret(reinterpret, dst)
        into = None if dst is None or reinterpret else self.world.engine.single.destination(dst)
        got, node = self._get_elsewhere(digest, into, patience, asked)
        if isinstance(got, Got):
            if got.data is None:  # it is in `dst`
                return dst
            return self._as_tensor(got, key, dst, reinterpret)
        if default is not _ABSENT and got in (_MISS, _NOT_READY):
            return default
        raise self._error(got, key, node)

    def _get_elsewhere(
        self, digest: KeyDigest, into: torch.Tensor | None, patience: Patience, asked: Asked | None
    ) -> tuple[Got | int, Node | None]:
        """The object of a key on another node; or why there is none, and whose answer that is. Raises as `_ask_around`.

        It may go `into` a tensor that it suits at once.

        Where it is not any more where it was known to lie, that is no answer yet.
        """
        member = self.member
        member.counts.remote_gets += 1
        answer: tuple[Got | int, Node | None] = _MISS, None
        if asked is not None and asked.status is not None:
            answer = asked.status, asked.node

        def read(node: Node, is_known: bool) -> bool:
            nonlocal answer
            gets = member.gets(node)
            get = gets.get_known if is_known else gets.get
            got = get(node, digest, patience, into)
            if isinstance(got, Got):
                answer = got, node
                return True
            if got is not None and answer[0] == _MISS:
                answer = got, node
            return False

        self._ask_around(digest, read, asked)
        return answer

    def _as_tensor(self, got: Got, key: Key, dst: torch.Tensor | None, reinterpret: bool) -> torch.Tensor:
        """The object that was read, as a tensor of its own memory, or in `dst`."""
        if dst is None:
            made = got.tensor(self.device)
            if made is None:
                raise self._error(Status.CORRUPT, key, None)
            return made
        plain = self.world.engine.single.destination(dst)
        what: What = what_of(plain.dtype, plain.shape)
        found = Found(_OK, Place(0, 0, 0, 0, got.nbytes), got.descriptor)
        if not found.suits(what.nbytes, RAW if reinterpret else what.descriptor):
            raise unsuited(plain, found)
        if got.nbytes:
            got.copy_to(plain)
        return dst

    def exists(self, key: Key) -> bool:
        """True if the object can be read now, from this node or its home.

        Raises:
            PeerLost: a node that may have it cannot be reached, and no other one has it.
        """
        self._check_open()
        if self.world.exists(key):
            return True
        digest = self._hash(key)
        member, patience, keys = self.member, self._patience(), np.array([digest], np.int64)

        def look(node: Node, is_known: bool) -> bool:
            if is_known:
                return member.gets(node).is_known(node, digest, patience)
            return bool(member.gets(node).find_each(node, keys, patience)[0] == _OK)

        return self._ask_around(digest, look)

    __contains__ = exists

    def _ask_around(self, digest: KeyDigest, has: Callable[[Node, bool], bool], asked: Asked | None = None) -> bool:
        """Ask the nodes that may have an object, one after the other, until one has it: whether one has.

        Args:
            has: asks a node, and whether it is asked only for what it is known to have.
            asked: a node that was asked before, and is not again.

        Raises:
            PeerLost: one that may have it cannot be reached, and no other one has it.
        """
        lost, silent = (None, None) if asked is None else (asked.lost, asked.node)
        known = self._known(digest)
        if known is not None and known is not silent:
            try:
                if has(known, True):
                    return True
            except PeerLost as error:  # another one may have it too
                lost, silent = lost or error, known
        for node in self._others(digest):
            if node is silent or (asked is not None and node is asked.node):
                continue
            try:
                if has(node, False):
                    return True
            except PeerLost as error:
                lost = lost or error
        if lost is not None:
            self._lost(lost)
        return False

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
            self.member.counts.peer_lost += 1
            raise lost
        if statuses[0]:
            raise self._error(int(statuses[0]), key, None)

    def _remove_elsewhere(self, keys: Words, statuses: Words) -> PeerLost | None:
        """Have all other nodes remove objects: only they know what they have. `statuses` has what this node did.

        Afterwards that of a key is OK: one was removed, and none is left; MISS; or why one is left. Returns why a node
        did not answer.
        """
        asks = [(node, keys) for node in self.member.nodes.others()]
        lost, patience = None, self._patience()
        puts = self.member.puts
        answers = self.member.at_once.ask(asks, lambda node, keys: puts(node).remove_each(node, keys, patience))
        for answer in answers:
            if isinstance(answer, PeerLost):
                lost = lost or answer
                continue
            is_left = (answer != _OK) & (answer != _MISS)
            takes = is_left | ((statuses == _MISS) & (answer == _OK))
            statuses[takes] = answer[takes]
        return lost

    # --- many: put and get ---
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
            some, parts = _chosen(digests, which), _rows(tensors, which)
            keep(which, self._put_many_to(node, rank, some, parts, sizes[which], hold, deadline, patience))

        for node, which in targets:
            if node is None:
                some, parts = _chosen(digests, which), _rows(tensors, which)
                left = max(deadline - time.monotonic(), 0.0)
                keep(which, self.world.put_many(some, parts, preferred_segment=rank, hold=hold, timeout=left))
        self.member.at_once.ask([(node, which) for node, which in targets if node is not None], put)
        return outcomes

    def _put_many_to(
        self,
        node: Node,
        rank: int | None,
        keys: Digests,
        tensors: Tensors,
        sizes: Words,
        hold: float | Hold | None,
        deadline: float,
        patience: Patience,
    ) -> list[NanoKVError | None]:
        """Put to another node, until the deadline while there is no room."""
        member = self.member
        statuses = np.full(len(keys), int(Status.FULL), np.int64)
        too_large = sizes > node.geometry.max_object_bytes
        statuses[too_large] = int(Status.TOO_LARGE)
        left, lost = np.flatnonzero(~too_large), None
        try:
            while len(left):
                parts = _rows(tensors, left)
                found = member.puts(node).put_each(node, keys.words[left], parts, rank, self._terms(hold), patience)
                statuses[left] = found["status"]
                left = np.flatnonzero(is_one_of(statuses, NO_ROOM))
                if not len(left) or time.monotonic() >= deadline:
                    break
                self._check_stays()
                time.sleep(_ROOM_REST)
        except PeerLost as error:
            member.counts.peer_lost += 1
            lost = error
            statuses[left] = _LOST
        good = statuses == _OK
        member.counts.put(int(good.sum()), int(sizes[good].sum()))
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
        """Get each object: see `NanoKVCache.get_many`. What this node does not have is one exchange per node.

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
        here = self._find_here(digests)
        answers: list[Any] = [None] * len(digests)
        mine = np.flatnonzero(here == _OK)
        if dsts is not None and len(mine) < len(digests):  # else the world looks at them all
            self._into_rows(dsts, reinterpret)
        if len(mine):
            given = {} if dsts is None else {"dsts": _rows(dsts, mine), "reinterpret": reinterpret}
            for i, answer in zip(mine.tolist(), self.world.get_many(_chosen(digests, mine), **given), strict=True):
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
        member, patience = self.member, self._patience()
        statuses = np.full(len(digests), _MISS, np.int64)
        self.member.counts.remote_gets += len(missing)
        rows = None if dsts is None else self._into_rows(dsts, reinterpret)

        def read(node: Node, which: Words, known: bool) -> Words:
            words = _chosen(digests, which).words
            if rows is not None:
                what, targets = rows
                found = member.gets(node).get_into_each(node, words, patience, targets[which], what, known=known)
                are_rows = isinstance(dsts, torch.Tensor)
                for i in which[found == _OK].tolist():
                    answers[i] = True if are_rows else dsts[i]
                return found

            def take(some: Words, fetched: FetchedObjects | FetchedTensor) -> None:
                self._take(keys, which[some].tolist(), fetched, dsts, reinterpret, answers)

            return member.gets(node).get_each(node, words, patience, take, known=known)

        self._ask(digests, missing, statuses, read, patience)
        wrong = missing[~is_one_of(statuses[missing], _HARMLESS)]
        for i in wrong.tolist():
            if statuses[i] == _SIZE and dsts is not None:  # the call for this key alone says how it differs
                self.get(digests[i], dst=dsts[i], reinterpret=reinterpret)
            raise self._error(int(statuses[i]), keys[i], None)

    def _take(
        self,
        keys: Sequence[Key],
        which: list[int],
        fetched: FetchedObjects | FetchedTensor,
        dsts: Any,
        reinterpret: bool,
        answers: list[Any],
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
        single = self.world.engine.single
        alike = alike_destinations(dsts) if self.device.type == "cpu" else None
        if alike is None:
            check_apart([single.destination(dst) for dst in dsts])
            return None
        what, targets = alike
        single.check_places(targets, what.nbytes)
        return (What.of(what.nbytes, RAW) if reinterpret else what), targets

    # --- many, without their bytes ---
    def exists_many(self, keys: Sequence[Key]) -> list[bool]:
        """Per key, whether its object can be read now, from this node or its home.

        Raises:
            PeerLost: as `exists`.
        """
        self._check_open()
        found: list[bool] = (self._find(self._digests(keys), self._patience()) == _OK).tolist()
        return found

    def prefix_length(self, keys: Sequence[Key]) -> int:
        """How many of the first keys have objects that can be read now: the longest cached prefix of a chain.

        Raises:
            PeerLost: as `exists`.
        """
        self._check_open()
        digests = self._digests(keys)
        start, look, patience = 0, _FIRST_LOOK, self._patience()
        while start < len(digests):
            absent = self._find(digests[start : start + look], patience) != _OK
            if absent.any():
                return start + int(absent.argmax())
            start, look = start + look, min(2 * look, _MOST)
        return len(digests)

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
        digests = self._digests([keys] if one else keys)  # type: ignore[arg-type, list-item]
        deadline = time.monotonic() + (FOREVER if timeout is None else seconds("timeout", timeout))
        pause, missing, events = _SHORTEST_LOOK, np.arange(len(digests)), self.member.events
        while True:
            heard = events.heard
            wanted = _chosen(digests, missing)
            absent = self._find(wanted, self._patience()) != _OK
            missing, wanted = missing[absent], _chosen(wanted, np.flatnonzero(absent))
            left = deadline - time.monotonic()
            if not len(missing):
                return
            self._check_stays()
            if left <= 0:
                raise WaitTimeout(f"{len(missing)} of {len(digests)} objects are not READY after {timeout} s")
            events.wait(heard, min(pause, left), lambda: self._heard_of(wanted))  # noqa: B023
            pause = min(2 * pause, _LONGEST_LOOK)

    def _heard_of(self, digests: Digests) -> bool:
        """Whether one of these objects is here, or another node is known to have it. No node is asked."""
        known, _ = self.member.locations.nodes_of(digests.words)
        return bool(known.any()) or bool((self._find_here(digests) == _OK).any())

    def remove_many(self, keys: Sequence[Key]) -> list[bool]:
        """Remove each object, wherever it lies; per key False if there was none, or if one is being written or pinned.

        Raises:
            PeerLost: a node cannot be reached, and may have one of them; those of other nodes are removed.
        """
        self._check_open()
        digests = self._digests(keys)
        statuses = np.array(self.world.engine.batched.remove(digests))
        lost = self._remove_elsewhere(digests.words, statuses) if len(digests) else None
        if lost is not None:
            self._lost(lost)
        answers: list[bool] = (statuses == _OK).tolist()
        return answers

    def _find(self, digests: Digests, patience: Patience) -> Words:
        """Whether objects can be read, from this node or others: a status each. Raises as `_ask`."""
        member, statuses = self.member, self._find_here(digests)
        absent = np.flatnonzero(statuses != _OK)
        if len(absent):

            def look(node: Node, which: Words, known: bool) -> Words:
                gets = member.gets(node)
                find = gets.find_known_each if known else gets.find_each
                return find(node, digests.words[which], patience)

            self._ask(digests, absent, statuses, look, patience)
        return statuses

    # --- other nodes' objects brought here ---
    def bring(self, keys: Sequence[Key]) -> list[bool]:
        """Copy objects of other nodes into this rank's segment, so that kernels, pins and `paged_kv` can use them.

        Per key, whether this node has its object now. An object that finds no room is left where it is.

        Raises:
            PeerLost: a node that may have one of them cannot be reached, and no other one has it.
        """
        self._check_open()
        digests = self._digests(keys)
        here = self._find_here(digests) == _OK
        missing = np.flatnonzero(~here)
        if len(missing):
            member, patience = self.member, self._patience()
            statuses = np.full(len(digests), _MISS, np.int64)
            self.member.counts.remote_gets += len(missing)

            def read(node: Node, which: Words, known: bool) -> Words:
                def take(some: Words, fetched: FetchedObjects | FetchedTensor) -> None:
                    for i, got in zip(which[some].tolist(), fetched.each(), strict=True):
                        here[i] = self._keep(digests[i], got)

                return member.gets(node).get_each(node, digests.words[which], patience, take, known=known)

            self._ask(digests, missing, statuses, read, patience)
        found: list[bool] = here.tolist()
        return found

    def _keep(self, digest: KeyDigest, got: Got) -> bool:
        """Put what was read into this rank's segment."""
        rank, kind = self.world.rank, got.descriptor[0] & LOW32.value  # its checksum is made anew
        what = (kind, *got.descriptor[1:])
        return self.world.engine.single.put_filled(digest, got.nbytes, rank, what, got.copy_to) in (_OK, _DUPLICATE)

    def paged_kv(self, layers: Sequence[torch.Tensor], *, kv_dim: int | None) -> ClusterPagedKV:
        """Access to an engine's paged KV cache: see `NanoKVCache.paged_kv`; its `get` finds blocks on all nodes.

        Raises:
            InvalidArgument: as `NanoKVCache.paged_kv`.
        """
        self._check_open()
        return ClusterPagedKV(self.world.paged_kv(layers, kv_dim=kv_dim), self.bring, self.world.engine.worker)

    # --- events and generations ---
    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of objects that come to this rank's segment, or to any of other nodes, or go; and of nodes.

        It gets a sequence of `Change`s, on threads of the cluster, one call at a time; a slow one delays what comes
        after. Of what is there already nothing is told, except if events of a node were missed (MISSED): then all that
        it has. The function returned ends that.

        Raises:
            InvalidArgument: `listener` is no function; or this member follows no events (`locations=0`).
        """
        self._check_open()
        if not callable(listener):
            raise InvalidArgument(f"listener must be a function of a sequence of changes, not {listener!r}")
        if not self.options.locations:
            raise InvalidArgument("a member with locations=0 follows no events, so it has none to tell")
        return self.member.changes.add(listener)

    def generation(self) -> int:
        """The generation of this world's identity (`NanoKVCache.generation`). The first call compares it with those of
        the other nodes, and all take the highest; a node that does not answer is told again later."""
        self._check_open()
        if not self._has_compared:
            self._has_compared = True
            self.member.generations.tell()
        return self.world.generation()

    def advance_generation(self) -> int:
        """Begin a new generation on all nodes, and return it: see `NanoKVCache.advance_generation`.

        Raises:
            PeerLost: nodes did not answer, and are told again until they do: this node, and those that answered, have
                the new generation, and find nothing that was stored under an older one, wherever it lies.
        """
        self._check_open()
        number = self.world.advance_generation()
        unheard = self.member.generations.tell()
        if unheard:
            raise PeerLost(f"generation {number} has begun, but not on {', '.join(unheard)}: no answer")
        return number

    # --- what calls share: checks, terms, errors ---
    def _check_open(self) -> None:
        if not self._open:
            raise CacheClosed(f"node {self._here} has left the cluster")
        if self.world.closed:
            self.world.engine.check_open()  # this is a child of a fork, and the threads and sockets are its parent's

    def _check_stays(self) -> None:
        """Raise CacheClosed, to what waits, also when the program ends."""
        self._check_open()
        self.world.engine.check_waits()

    def _patience(self) -> Patience:
        """The patience of one call."""
        return Patience(self.options.timeout)

    def _terms(self, hold: float | Hold | None) -> Terms:
        return NO_TERMS if hold is None else terms_of(hold, self.world.engine.hasher.group)

    def _error(self, status: int, key: Key, node: Node | None, nbytes: int = 0) -> NanoKVError:
        """The error that a status stands for, of a node; None: of this one."""
        geometry = self.world.engine.geometry if node is None else node.geometry
        owner = f"node {self._here if node is None else node.name}"
        return error_for(status, key, geometry, nbytes=nbytes, owner=owner)

    def _lost(self, error: PeerLost) -> None:
        """A node that may have an object which was not found elsewhere cannot be reached: see the option `lost`."""
        self.member.counts.peer_lost += 1
        if self.options.lost == "raise":
            raise error

    def _digests(self, keys: Iterable[Key]) -> Digests:
        return self.world.engine.digests(keys)

    def _find_here(self, digests: Digests) -> Words:
        """A status for each key, of this node: an array of the caller's own."""
        return np.array(self.world.engine.batched.find(digests))

    # --- what calls share: which nodes ---
    def _target(self, key: KeyDigest, preferred: Segment | None) -> tuple[Node | None, int | None]:
        """The node that gets a new object, None for this one, and its rank there."""
        nodes = self.member.nodes
        if preferred is None:
            return nodes.find(nodes.homes[0].of(key)), None
        if not isinstance(preferred, tuple):
            return None, integer("preferred_segment", preferred, 0, self.world.world_size - 1)
        if len(preferred) != 2 or not isinstance(preferred[0], str):
            raise InvalidArgument(f"preferred_segment must be (node, rank) or a rank of this node, not {preferred!r}")
        name, rank = preferred
        if name == self._here:
            return None, rank
        node = nodes[name]
        return node, None if rank is None else integer("the rank of preferred_segment", rank, 0, node.ranks - 1)

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
        nodes = self.member.nodes
        homes = nodes.homes[0]
        places = _by_place(homes.of_each(digests.words), every)
        return None, [(nodes.find(homes.nodes[place]), which) for place, which in places]

    def _known(self, key: KeyDigest) -> Node | None:
        """The other node that has the object of a key, as far as events and own puts tell."""
        member = self.member
        name = member.locations.node_of(key)
        return None if name is None else member.nodes.find(name)

    def _others(self, key: KeyDigest) -> Iterator[Node]:
        """The other nodes that may have the object of a key: its home, those before the last joins, and the one where
        it is known to be. (That one is asked first, for what it has where the object was: `_known`.)

        An object may also lie where nobody here has heard of it. So whoever removes asks all nodes.
        """
        nodes, asked = self.member.nodes, {self._here}
        for homes in nodes.homes:
            name = homes.of(key)
            if name not in asked:
                asked.add(name)
                node = nodes.find(name)
                if node is not None:
                    yield node
        known = self._known(key)
        if known is not None and known.name not in asked:
            yield known

    def _ask(self, digests: Digests, missing: Words, statuses: Words, read: Read, patience: Patience) -> None:
        """Ask the nodes that may have objects (`_others`), for those whose status is not OK yet, many at once.

        Raises:
            PeerLost: one that may have an object cannot be reached, and no other one has it.
        """
        known = self._where_known(digests, missing)
        lost, unsure = None, []
        asked: Asks = []
        for is_known, asks in self._rounds_of_asks(digests, missing, statuses, known, asked):
            answers = self.member.at_once.ask(asks, lambda node, which: read(node, which, is_known))  # noqa: B023
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
        places, names = self.member.locations.nodes_of(_chosen(digests, which).words)
        return [
            (node, some)
            for place, some in _by_place(places, which)
            if place and (node := self.member.nodes.find(names[place])) is not None
        ]

    def _rounds_of_asks(
        self, digests: Digests, missing: Words, statuses: Words, known: Asks, asked: Asks
    ) -> Iterator[tuple[bool, Asks]]:
        """Whom to ask at the same time, and whether for what is known; then the next ones, for what is still missing.

        asked: who was asked for what, or did not answer.
        """
        nodes = self.member.nodes
        if known:
            yield True, known
        for homes in nodes.homes:
            missing = missing[statuses[missing] != _OK]
            if not len(missing):
                return
            places = _by_place(homes.of_each(_chosen(digests, missing).words), missing)
            asks = [(nodes.find(homes.nodes[place]), theirs) for place, theirs in places]
            if more := _not_asked(asks, asked):
                yield False, more
        left = [(node, which[statuses[which] != _OK]) for node, which in known]
        if more := _not_asked(left, asked):
            yield False, more


# --- keys by number ---------------------------------------------------------------------------
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


def _by_place(places: Words, numbers: Words) -> Iterator[tuple[int, Words]]:
    """Each place that occurs, and the numbers that have it."""
    if len(places) and (places == places[0]).all():  # np.unique takes longer than a look-up
        yield int(places[0]), numbers
        return
    for place in np.unique(places).tolist():
        yield place, numbers[places == place]


def _chosen(digests: Digests, which: Words) -> Digests:
    """Some of several digests."""
    if len(which) == len(digests):
        return digests
    return Digests.own(np.ascontiguousarray(digests.words[which]), digests.tag)


def _rows(tensors: Any, which: Words) -> Any:
    """Some of several tensors: of one tensor its rows, as one tensor if they follow each other."""
    if len(which) == len(tensors):
        return tensors
    if isinstance(tensors, torch.Tensor):
        first, last = int(which[0]), int(which[-1])
        if last - first + 1 == len(which):
            return tensors[first : last + 1]
    return [tensors[i] for i in which.tolist()]
