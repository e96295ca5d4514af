"""Objects of another node of this host, whose memory this process has mapped: no message, and no copy but one.

Its owner has let this process in as a guest (`wire/guests.py`). The calls here are those of the node's own ranks, by
the same native code, so what `transfers` promises holds as it does within a world. Where a node is not mapped, its
objects go over the wire: it is on another host, or takes no (more) guests, or runs as another user.
"""

import contextlib
import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from nanokv.allocation import stored_layouts
from nanokv.allocation.producer import ProducerAllocation
from nanokv.allocation.routing import Routing
from nanokv.cache.engine import machine_of
from nanokv.cluster.card import Card, WorldId
from nanokv.cluster.counts import MemberCounts
from nanokv.cluster.fetched import FetchedObjects, FetchedTensor, Got
from nanokv.cluster.locations import Locations
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.nodes import Node, Nodes
from nanokv.cluster.patience import Patience
from nanokv.cluster.place import is_near
from nanokv.cluster.pull_message import Records
from nanokv.cluster.serving import HEADERS_AT_ONCE
from nanokv.cluster.staging import ALIGN, Staging
from nanokv.cluster.statuses import is_one_of
from nanokv.cluster.transfers import Take
from nanokv.cluster.wire.guests import Admitted, enter, user_of
from nanokv.cluster.wire.handshake import NoHandshake
from nanokv.config import Options
from nanokv.device.fabric.records import PULLED
from nanokv.device.machines.records import NO_TERMS, Descriptor, Found, Terms, What, Words
from nanokv.device.protocol.status import Status
from nanokv.device.segment.host_records import NOT_TAKEN
from nanokv.device.segment.layout import LOW32
from nanokv.errors import NanoKVError, PeerLost
from nanokv.heap.guest import GuestHeap
from nanokv.keys.digests import Digests
from nanokv.keys.hashing import Hasher
from nanokv.seldom import Seldom
from nanokv.transfer.batched import BatchedTransfer
from nanokv.transfer.descriptors import what_of
from nanokv.transfer.object_calls import NativeRecords, checked_segment, object_calls
from nanokv.transfer.single import TRIES, SingleTransfer
from nanokv.types import Key, KeyDigest

_log = logging.getLogger("nanokv.cluster")
_seldom = Seldom(_log)

_OK, _MISS, _TORN, _FULL = (int(Status[name]) for name in ("OK", "MISS", "TORN", "FULL"))
_AGAIN = (_TORN, int(Status.BUSY))
_MOST_ROOM = 64 << 20  #: bytes that are read together
ENTER_SECONDS = 10.0  #: for which a thread waits until it is let in: meanwhile objects go over the wire
LOOK_SECONDS = 0.5  #: between two looks at whether the ranks of a mapped world live
REFUSED_SECONDS = 30.0  #: after which a member is asked again that has not let this process in


class StatusCalls:
    """put and get of a guest, in Python: `CallsInPython` that answer with a Status where those of a cache raise.

    Args:
        hasher: a guest's own, of the same identity and namespace as its cache's.
    """

    promotion = None

    def __init__(self, heap: GuestHeap, allocation: ProducerAllocation, hasher: Hasher, single: SingleTransfer) -> None:
        self.heap, self.allocation, self.hasher, self._single = heap, allocation, hasher, single
        self._native: NativeRecords | None = None

    def serve(self, native: NativeRecords) -> None:
        """See `CallsInPython`."""
        self._native = native

    def put(self, key: KeyDigest, tensor: torch.Tensor, *, preferred_segment: int | None = None) -> int:
        """Store a tensor: a Status; None stands for OK in the answer of a native call."""
        return self._single.put(key, tensor, checked_segment(self.heap, preferred_segment))

    def put_refused(self, key: KeyDigest, tensor: torch.Tensor, preferred: int | None, *more: Any) -> int:
        """Store a tensor after a first try was answered FULL by the rank that comes last."""
        return self._single.put(key, tensor, preferred, refused_by=more[-1])

    def get(self, key: Key, *, dst: torch.Tensor | None = None) -> torch.Tensor | int:
        """A new tensor, or `dst`; or a Status."""
        digest = self.hasher(key)
        if dst is not None:
            return self._single.get_into(digest, dst) or dst
        found = self._single.get(digest)
        if not isinstance(found, int) and self._native is not None:
            self._native.see_new(found)
        return found

    def exists(self, key: KeyDigest) -> bool:
        """Whether an object can be read now."""
        return self.allocation.exists(key) == _OK

    def remove(self, key: KeyDigest) -> int:
        """Remove an object: a Status."""
        return self.allocation.remove(key)

    def take(self, key: KeyDigest, address: int, room: int) -> int:
        """No guest takes bytes to an address."""
        return int(NOT_TAKEN.value)

    def _status(self, status: int, *_: object) -> int:
        return status

    put_failed = get_failed = remove_failed = _status


class MappedWorld:
    """The world of another process, as its guest.

    The connection by which it came ends when nobody refers to this object any more: so a call refers to it while it
    works in the memory. The owner then takes back what is left.

    Attributes:
        heap, machine, allocation, single, batched: as those of an `Engine`. put, get: `StatusCalls`, by native code.
        world: by its card.

    Raises:
        HeapUnavailable: the memory cannot be mapped, or is that of another world or build.
    """

    def __init__(self, admitted: Admitted, card: Card, options: Options) -> None:
        # a number, as the system has it: a socket object would be finalised in no order with this one
        self._connection, self._process, self.world = admitted.connection.detach(), os.getpid(), card.world
        try:
            self._map(admitted, card, options)
        except BaseException:
            self._end()  # now, though what is raised refers to this object
            raise

    def _map(self, admitted: Admitted, card: Card, options: Options) -> None:
        self.heap = heap = GuestHeap(card.member, admitted.file, card.geometry)
        self.machine = machine_of(heap, checksum=card.checksum)
        routing = Routing(heap.world_size, None, heap.peer_closed)
        # as over the wire, the quota is the owner's
        note_owner = stored_layouts.writer(self.machine, options.identity, options.namespace)
        self.allocation = ProducerAllocation(
            self.machine, heap.rank, routing, note_owner, backing=heap.backing, checksum=card.checksum
        )
        self.single = SingleTransfer(heap, self.machine, self.allocation, checksum=card.checksum)
        self.batched = BatchedTransfer(self.single, self.allocation)
        hasher = Hasher(options.namespace, options.identity)
        calls = object_calls(StatusCalls(heap, self.allocation, hasher, self.single), self.machine)
        self.put, self.get = calls.put, calls.get

    def descriptors(self) -> list[int]:
        """Descriptors of the caller's own, of which one can be read when the owner has gone, or wants its guests to go.

        A child of a fork may keep the connection open when the owner has died, so its process is looked at too.
        """
        found = [os.dup(self._connection)]
        with socket.socket(fileno=os.dup(self._connection)) as connection:
            process, _ = user_of(connection)
        with contextlib.suppress(OSError, AttributeError):
            found += [os.pidfd_open(process)] if process else []
        return found

    def _end(self) -> None:
        number, self._connection = self._connection, -1
        if number >= 0 and os.getpid() == self._process:  # a child of a fork has a copy, and no say
            if hasattr(self, "heap"):
                self.heap.close()
            with socket.socket(fileno=number) as connection, contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        self._end()


class MappedWorlds:
    """The worlds of other processes that this one has mapped, or may map. From any thread.

    Args:
        secret: the cluster's. me: this member.
        place: of this process (`place.here`): only who is near it has memory that can be mapped.
        options: of this process' cache.
    """

    def __init__(self, secret: bytes, me: Sender, place: str, options: Options) -> None:
        self._secret, self._me, self._place, self._options = secret, me, place, options
        self._worlds: dict[int, MappedWorld] = {}  # by incarnation of the member
        self._not_before: dict[int, float] = {}  # by incarnation, of who has not let this process in
        self._entering: set[WorldId] = set()  # one member of a world is asked at a time
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()

    def of(self, node: Node) -> MappedWorld | None:
        """The mapped world of a node; None: it is not mapped (yet). Where that may be, a thread asks to be let in."""
        for card in node.cards:
            found = self._worlds.get(card.incarnation)
            if found is not None:
                return found
        for card in node.cards:
            if card.geometry.guests:
                self._may_enter(card)
        return None

    def __getitem__(self, node: Node) -> MappedWorld:
        """The mapped world of a node that was mapped a moment ago. Raises PeerLost: it has gone since."""
        found = self.of(node)
        if found is None:
            raise PeerLost(f"node {node.name} has just ended, or left the cluster")
        return found

    def known(self, node: Node) -> bool:
        """Whether the world of a node is mapped."""
        return any(card.incarnation in self._worlds for card in node.cards)

    def _may_enter(self, card: Card) -> None:
        """Ask a member to let this process in, if it is near, and was not asked just now. Waits for nobody."""
        now = time.monotonic()
        if now < self._not_before.get(card.incarnation, 0.0):
            return
        near = is_near(card, self._place)
        with self._lock:
            if self._closed or os.getpid() != self._process or now < self._not_before.get(card.incarnation, 0.0):
                return
            if card.world in self._entering:
                return
            self._not_before[card.incarnation] = now + REFUSED_SECONDS
            if not near:
                return
            self._entering.add(card.world)
        try:
            threading.Thread(target=self._be_guest, args=(card,), name="nanokv-guest", daemon=True).start()
        except RuntimeError:  # no thread can be started: later, perhaps
            self._entering.discard(card.world)

    def _be_guest(self, card: Card) -> None:
        """Enter, and look until the owner has gone: the work of a thread, which does not keep the world meanwhile."""
        number = card.incarnation
        try:
            to = Sender(card.member, number)
            world = MappedWorld(enter(card.local, self._secret, self._me, to, ENTER_SECONDS), card, self._options)
            watched = world.descriptors()
            with self._lock:
                if not self._closed:
                    self._worlds[number] = world
        except (NanoKVError, NoHandshake, OSError) as error:
            why = str(error)
            _log.info("the memory of member %s is not mapped, its objects go over the wire: %s", card.member, why)
            return
        except Exception:
            _log.exception("the memory of member %s is not mapped, its objects go over the wire", card.member)
            return
        finally:
            with self._lock:
                self._entering.discard(card.world)
        there = weakref.ref(world)
        del world
        _wait_for_the_end(watched, there)
        with self._lock:
            self._not_before[number] = time.monotonic() + REFUSED_SECONDS
            self._worlds.pop(number, None)  # calls that work in its memory come to their end
        for each in watched:
            os.close(each)

    def forget(self, incarnation: int) -> None:
        """A process is no member any more."""
        with self._lock:
            self._worlds.pop(incarnation, None)
            self._not_before.pop(incarnation, None)

    def close(self) -> None:
        """Let go of all. Idempotent."""
        with self._lock:
            self._closed = True
            self._worlds.clear()


def _wait_for_the_end(watched: list[int], world: "weakref.ref[MappedWorld]") -> None:
    """Wait until a descriptor can be read, or all ranks of a mapped world have ended, or nobody uses it any more.

    Where the owner's process cannot be seen (it is in another namespace of processes), a child that it has forked may
    keep the connection open after its death.
    """
    poll = select.poll()
    for each in watched:
        poll.register(each, select.POLLIN)
    while not poll.poll(LOOK_SECONDS * 1e3):
        there = world()
        if there is None or all(map(there.heap.peer_closed, range(there.heap.world_size))):
            return
        del there


def _kind_of(found: Found) -> Descriptor:
    """The dtype and the shape of an object; (0, ...): it has none, or is not there."""
    return (found.descriptor[0] & LOW32.value if found.status == _OK else 0, *found.descriptor[1:])


class MappedGets:
    """`transfers.Gets` of nodes that are mapped."""

    def __init__(self, worlds: MappedWorlds, staging: Staging, counts: MemberCounts) -> None:
        self._worlds, self._staging, self._counts = worlds, staging, counts

    def get(self, node: Node, key: KeyDigest, patience: Patience, into: torch.Tensor | None = None) -> Got | int:
        """See `Gets`."""
        world, there = self._worlds[node], into is not None and into.device.type == "cpu"
        try:
            found = world.get(key, dst=into) if there else world.get(key)
        except NanoKVError:
            del world  # what is raised refers to these variables: it keeps no guest
            raise
        if isinstance(found, int):
            return found
        if there:
            self._counts.read(1, found.nbytes)
            return Got(found.nbytes, (0,) * 8, None)
        self._counts.read(1, found.nbytes)
        descriptor = what_of(found.dtype, found.shape).descriptor
        if found.dtype is torch.uint8 and found.ndim == 1:  # or it is bytes that a kernel wrote, of any dtype and shape
            located = world.allocation.locate(key)
            if located.status == _OK and located.place.nbytes == found.nbytes:
                descriptor = located.descriptor
        return Got(found.nbytes, descriptor, found)

    def get_at_once(
        self, node: Node, key: Key, patience: Patience, into: torch.Tensor | None = None
    ) -> torch.Tensor | int | None:
        """See `Gets`."""
        world = self._worlds[node]
        try:
            found: torch.Tensor | int = world.get(key, dst=into) if into is not None else world.get(key)
        except NanoKVError:
            del world  # as in `get`
            raise
        if isinstance(found, torch.Tensor):
            self._counts.read(1, found.nbytes)
        return found

    def get_known(self, node: Node, key: KeyDigest, patience: Patience, into: torch.Tensor | None = None) -> Got | None:
        """See `Gets`."""
        found = self.get(node, key, patience, into)
        return found if isinstance(found, Got) else None

    def is_known(self, node: Node, key: KeyDigest, patience: Patience) -> bool:
        """See `Gets`."""
        world = self._worlds[node]
        return world.allocation.exists(key) == _OK

    def find_each(self, node: Node, keys: Words, patience: Patience) -> Words:
        """See `Gets`."""
        world = self._worlds[node]
        found = world.allocation.exist_each(Digests.own(keys))
        return np.where(is_one_of(found, _AGAIN), _MISS, found)

    def find_known_each(self, node: Node, keys: Words, patience: Patience) -> Words:
        """See `Gets`."""
        return np.where(self.find_each(node, keys, patience) == _OK, _OK, _MISS)

    def get_each(self, node: Node, keys: Words, patience: Patience, take: Take, *, known: bool = False) -> Words:
        """See `Gets`. Objects of one kind are read together, those like the first one."""
        world, statuses = self._worlds[node], self.find_each(node, keys, patience)
        there = np.flatnonzero(statuses == _OK)
        while len(there):
            first = world.allocation.locate(KeyDigest._make(keys[there[0]].tolist()))
            kind, nbytes = _kind_of(first), first.place.nbytes
            step = max(-(-nbytes // ALIGN) * ALIGN, ALIGN)
            lot, there = np.split(there, [max(_MOST_ROOM // step, 1)])
            if kind[0] and nbytes and len(lot) > 1:  # 0: bytes of any dtype and shape
                each = map(world.allocation.locate, map(KeyDigest._make, keys[lot].tolist()))
                alike = np.array([_kind_of(found) == kind and found.place.nbytes == nbytes for found in each])
                good = self._get_alike(world, keys, lot[alike], step, What.of(nbytes, kind), take)
                lot = np.setdiff1d(lot, good, assume_unique=True)
            for i in lot.tolist():
                got = self.get(node, KeyDigest._make(keys[i].tolist()), patience)
                statuses[i] = _OK if isinstance(got, Got) else got
                if isinstance(got, Got):
                    take(np.array([i]), FetchedTensor(got))
        return statuses

    def _get_alike(self, world: MappedWorld, keys: Words, which: Words, step: int, what: What, take: Take) -> Words:
        """Read objects of one kind. Returns the numbers of those that were not replaced meanwhile."""
        room, starts = self._staging.room(step * max(len(which), 1)), np.arange(len(which)) * step
        good = world.machine.get_each(np.ascontiguousarray(keys[which]), room.address + starts, what) == _OK
        read: Words = which[good]
        if len(read):
            self._counts.read(len(read), len(read) * what.nbytes)
            descriptors = np.tile(np.array(what.descriptor, np.int64), (len(read), 1))
            take(read, FetchedObjects(room, np.full(len(read), what.nbytes), starts[good], descriptors))
        return read

    def get_into_each(
        self, node: Node, keys: Words, patience: Patience, targets: Words, what: What, *, known: bool = False
    ) -> Words:
        """See `Gets`."""
        world, statuses = self._worlds[node], np.full(len(keys), _TORN, np.int64)
        which = np.arange(len(keys))
        for _ in range(TRIES):
            some, there = np.ascontiguousarray(keys[which]), np.ascontiguousarray(targets[which])
            statuses[which] = world.machine.get_each(some, there, what)
            which = which[is_one_of(statuses[which], _AGAIN)]
            if not len(which):
                break
        good = int((statuses == _OK).sum())
        self._counts.read(good, good * what.nbytes)
        statuses[is_one_of(statuses, _AGAIN)] = _MISS
        return statuses

    def headers(self, node: Node, rank: int) -> Iterator[tuple[WorldId, int, Words]]:
        """See `Gets`."""
        world = self._worlds[node]
        machine = world.machine
        used = min(int(machine.control(rank)[0]["hdr_head"]), machine.geometry.hdr_count)
        for first in range(0, used, HEADERS_AT_ONCE):
            headers = machine.headers(rank, first, min(HEADERS_AT_ONCE, used - first))
            yield world.world, first, headers.view(np.int64).reshape(len(headers), -1).copy()


class MappedPuts:
    """`transfers.Puts` of nodes that are mapped."""

    def __init__(self, worlds: MappedWorlds, locations: Locations, nodes: Nodes) -> None:
        self._worlds, self._locations, self._nodes = worlds, locations, nodes

    def put(
        self, node: Node, key: KeyDigest, tensor: torch.Tensor, rank: int | None, terms: Terms, patience: Patience
    ) -> int:
        """See `Puts`."""
        world = self._worlds[node]
        try:
            if terms == NO_TERMS:
                status = world.put(key, tensor) if rank is None else world.put(key, tensor, preferred_segment=rank)
            else:
                status = world.single.put(key, tensor, checked_segment(world.heap, rank), terms)
        except NanoKVError as error:
            del world
            if isinstance(error, PeerLost):
                raise PeerLost(f"node {node.name}: {error}") from None
            raise
        if not status and self._nodes.homes[0].of(key) != node.name:
            self._locations.learn_keys(world.world, np.array([key], np.int64), tensor.nbytes)
        return status or _OK

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
        world, answers = self._worlds[node], np.zeros(len(keys), PULLED.dtype)
        checked_segment(world.heap, rank)
        for i, outcome in enumerate(world.batched.put(Digests.own(keys), tensors, rank, terms)):
            if isinstance(outcome, PeerLost):
                raise outcome
            if isinstance(outcome, NanoKVError):  # it is answered FULL, as over the wire
                _seldom.warn(type(outcome).__name__, f"no room could be made on node {node.name}: {outcome}")
            answers["status"][i] = _FULL if isinstance(outcome, NanoKVError) else outcome
        homes = self._nodes.homes[0]
        away = np.array(homes.nodes)[homes.of_each(keys)] != node.name
        learnt = np.flatnonzero((answers["status"] == _OK) & away)
        sizes = np.array([tensors[i].nbytes for i in learnt.tolist()], np.int64)
        for size in np.unique(sizes).tolist():
            self._locations.learn_keys(world.world, keys[learnt[sizes == size]], size)
        return answers

    def remove_each(self, node: Node, keys: Words, patience: Patience) -> Words:
        """See `Puts`."""
        world = self._worlds[node]
        return world.allocation.remove_each(Digests.own(keys))
