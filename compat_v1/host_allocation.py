"""v1: the master allocates. The Allocation of `alloc="host"`.

On the master's rank, and in a local world, whose ranks share a process, requests are calls; elsewhere they are
messages. The producer itself makes the object READY and announces it to the owner's poller, so that index, events and
statistics work as in v2. COMMIT tells the master afterwards; without it the master learns the same from the header.
"""

import contextlib
import secrets
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nanokv.allocation.base import NOWHERE
from nanokv.allocation.routing import Routing
from nanokv.allocation.writers import writer_in
from nanokv.compat_v1.dispatch import Dispatch, LocalDispatch
from nanokv.compat_v1.eviction import Policy
from nanokv.compat_v1.headers import State, split
from nanokv.compat_v1.master import Master
from nanokv.compat_v1.messages import NOBODY, Op, Reply, Request, new_message, pack, unpack_reply
from nanokv.compat_v1.server import CALLS, Server, meeting_place, remove_meeting_places
from nanokv.compat_v1.transport import CLIENT, MASTER, Link, LinkBroken
from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Begun, Descriptor, Found, Place, What, Words
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.layout import OBJ_DESC, READY, WRITING
from nanokv.errors import NanoKVError, PeerLost
from nanokv.heap.base import Heap
from nanokv.heap.local import LocalHeap
from nanokv.heap.world_file import directory
from nanokv.keys.digests import Digests
from nanokv.types import KeyDigest

if TYPE_CHECKING:
    from nanokv.device.machines.batch import Batch
    from nanokv.device.machines.engine_cache import Pages

# --- the client of a master in another process ------------------------------------------------
# A request ends before its deadline, with a reply or with PeerLost.
#
# The first request makes the connection; the next one after the connection broke, or the master came back, makes it
# anew. A request is never sent twice: after PeerLost the master may have done it, or not.
START_SECONDS = 60.0  #: how long the first request waits for a master that lives and does not serve yet
_LOOK_SECONDS = 0.005  #: between two looks whether it serves


class MasterClient:
    """Sends one rank's requests to the master; requests of several threads go one after the other.

    Args:
        rank, incarnation: of this rank.
        master: the master's rank, for error messages.
        place: returns the meeting place of the master's present incarnation, or None if that has ended.
        timeout: seconds for a request, and for connecting (there at least 1).
    """

    def __init__(
        self, rank: int, incarnation: int, master: int, place: Callable[[], Path | None], timeout: float
    ) -> None:
        self._me = f"{rank}.{incarnation}"
        self._master = master
        self._place = place
        self._timeout = timeout
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._met: Path | None = None  # where the link was made
        self._number = 0
        self._out, self._in = new_message(), new_message()

    def ask(self, request: Request) -> Reply:
        """Send a request and wait for its reply.

        Raises:
            PeerLost: the master has ended, has closed, or does not answer within `timeout` seconds.
        """
        deadline = time.monotonic() + self._timeout
        if not self._lock.acquire(timeout=self._timeout):
            raise self._lost(f"does not answer within {self._timeout} s")
        try:
            link, deadline = self._connected(deadline)
            return self._exchange(link, request, deadline)
        except LinkBroken as error:
            self._drop()
            if self._place() is None:
                raise self._lost("has ended") from None
            raise self._lost(f"did not answer within {self._timeout} s, or has closed: {error}") from None
        except BaseException:
            self._drop()  # interrupted: the next message on this link would be the reply to this request
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the connection, and remove the meeting place of a master that was killed. Idempotent."""
        if self._lock.acquire(timeout=self._timeout):
            self._drop()
            if self._met is not None and self._place() != self._met:
                shutil.rmtree(self._met, ignore_errors=True)
            self._lock.release()

    def _exchange(self, link: Link, request: Request, deadline: float) -> Reply:
        self._number += 1
        pack(request._replace(number=self._number), self._out)
        expected = link.expect(MASTER, self._in)
        link.send(MASTER, self._out, deadline - time.monotonic())
        link.take(expected, deadline - time.monotonic())
        reply = unpack_reply(self._in)
        if reply is None or reply.number != self._number:
            raise LinkBroken(f"no reply to request {self._number}: {self._in.tolist()}")
        return reply

    def _connected(self, deadline: float) -> tuple[Link, float]:
        """The link to the present master, and the deadline, which is later if the master had to be waited for."""
        place = self._place()
        if self._link is None or place != self._met:
            self._drop()
            started = time.monotonic()
            place = self._find_master()
            deadline += time.monotonic() - started
            self._link = self._connect(place)
            self._met = place
        return self._link, deadline

    def _find_master(self) -> Path:
        """Wait until the master serves; returns its meeting place. A master that was met there before has closed."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            place = self._place()
            if place is None:
                raise self._lost("has ended")
            if (place / CALLS).is_dir():
                return place
            if place == self._met:
                raise self._lost("has closed")
            if time.monotonic() >= deadline:
                raise self._lost(f"does not serve after {START_SECONDS} s")
            time.sleep(_LOOK_SECONDS)

    def _connect(self, place: Path) -> Link:
        name = f"{self._me}.{secrets.token_hex(8)}"
        try:
            (place / CALLS / name).touch(mode=0o600, exist_ok=False)
        except OSError as error:
            raise LinkBroken(str(error)) from None
        return Link(place, name, CLIENT, self._timeout)

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _lost(self, why: str) -> PeerLost:
        return PeerLost(f"rank {self._master}, the master, {why}")


# --- the allocation ----------------------------------------------------------------------------
_SHARED = "compat_v1.master"  #: the master in `LocalWorld.shared`


class HostAllocation:
    """How a rank allocates, finds and removes objects through the master.

    Args:
        heap, machine: of this rank.
        master_rank: where the master lives.
        may_evict, water, policy, write_timeout: of the `Master`; without effect on the other ranks.
        rpc_timeout: seconds after which the master counts as lost; at least 1 when there is no connection yet.
        checksum: whether objects get checksums.
        note_owner: called with the rank that gets an object, before that is written; what it raises refuses the object.

    Raises:
        SegmentCorrupt: on the master's rank: the headers in the segments contradict each other.
    """

    alloc = "host"

    def __init__(
        self,
        heap: Heap,
        machine: Machine,
        master_rank: int,
        *,
        may_evict: bool = True,
        water: tuple[int, int] = (85, 95),
        policy: Policy = "last_access",
        write_timeout: float = 30.0,
        rpc_timeout: float = 5.0,
        checksum: bool = False,
        note_owner: Callable[[int], None] | None = None,
    ) -> None:
        self._checksum = checksum
        self._note_owner = note_owner
        self._heap = heap
        self._machine = machine
        self._evicted = 0
        routing = Routing(heap.world_size, heap.rank, heap.peer_closed)
        self.owner_of = routing.owner_of
        self._server: Server | None = None
        self.master: Master | None = None  #: on the master's rank
        if heap.rank == master_rank:
            self.master = Master(
                machine,
                heap.alive,
                routing,
                may_evict=may_evict,
                water=water,
                policy=policy,
                write_timeout=write_timeout,
            )
            self.master.recover(lambda rank: _descriptors(heap, rank))
            self._server = _serve(heap, machine, self.master, rpc_timeout)
        self._dispatch = self._make_dispatch(master_rank, rpc_timeout)

    def _make_dispatch(self, master_rank: int, rpc_timeout: float) -> Dispatch:
        heap, machine = self._heap, self._machine
        if heap.rank == master_rank:
            me = weakref.ref(self)  # no cycle: the memory that this object holds goes with the last reference to it
            return LocalDispatch(lambda: None if (here := me()) is None else here.master, master_rank)
        if isinstance(heap, LocalHeap):
            shared = heap.world.shared
            return LocalDispatch(lambda: shared.get(_SHARED), master_rank)
        world_id = _world_id(heap, machine)

        def place() -> Path | None:
            incarnation = int(machine.activity(heap.rank)["incarnation"][master_rank])
            if not heap.alive(master_rank, incarnation):
                return None
            return meeting_place(directory(), world_id, incarnation)

        return MasterClient(heap.rank, heap.incarnation, master_rank, place, rpc_timeout)

    def _ask(self, op: Op, key: KeyDigest | None = None, **fields: Any) -> Reply:
        if key is not None:
            fields.update(key_hash=key.key_hash, key_check=key.key_check)
        return self._dispatch.ask(Request(op, rank=self._heap.rank, incarnation=self._heap.incarnation, **fields))

    # --- the Allocation ---
    def put(self, key: KeyDigest, src: int, what: What, preferred: int | None) -> int:
        begun = self.begin(key, what.nbytes, preferred, what.descriptor, plan=False)
        if begun.status != Status.OK:
            return begun.status
        try:
            self._machine.store_payload(begun.place, src)
            if self._checksum:
                self._machine.seal(key, begun.place, what.descriptor)
        except BaseException:
            self.abort(key, begun)
            raise
        return self.finish(key, begun)

    def put_refused(self, key: KeyDigest, src: int, what: What, preferred: int | None, owner: int) -> int:
        return self.put(key, src, what, preferred)  # the master makes room by itself

    def get(self, key: KeyDigest, dst: int, what: What) -> int:
        found = self.locate(key)
        if found.status != Status.OK:
            return found.status
        if not found.suits(what.nbytes, what.descriptor):
            return self._machine.validate(found.place) or Status.SIZE
        return self._machine.read(key, found.place, dst, now_ns())

    def begin(self, key: KeyDigest, nbytes: int, preferred: int | None, what: Descriptor, *, plan: bool) -> Begun:
        geometry = self._machine.geometry
        if nbytes > geometry.n_pages * geometry.page_bytes:
            return Begun(Status.TOO_LARGE, NOWHERE, -1)
        wish = Place(NOBODY if preferred is None else preferred, 0, 0, nbytes=nbytes)
        reply = self._ask(Op.OPEN_FOR_WRITE, key, place=wish, plan=int(plan), descriptor=tuple(what))
        self._evicted += reply.gone
        begun = Begun(reply.status, reply.place, -1)
        if self._note_owner is not None and begun.status == Status.OK:
            try:
                self._note_owner(begun.place.owner)
            except NanoKVError:
                self.abort(key, begun)
                raise
        return begun

    def finish(self, key: KeyDigest, begun: Begun) -> int:
        status = self._machine.commit(begun.place)
        # without a master the header tells the next one: READY, or DEAD and acknowledged
        with contextlib.suppress(PeerLost):
            self._ask(Op.COMMIT, key, place=begun.place)
        return status

    def abort(self, key: KeyDigest, begun: Begun) -> int:
        place = begun.place
        try:
            return self._ask(Op.ABORT, key, place=place).status
        except PeerLost:
            # without a master: give the object up in its header for the next master to find, and acknowledge
            seen = split(self._machine.kill(place.owner, place.slot, WRITING.value, place.epoch))
            if seen.phase != READY.value:
                self._machine.commit(place)  # answered LOST: it sets FLAG_ACK
            return Status.OK if seen == State(WRITING.value, 0, place.epoch) else Status.LOST

    def locate(self, key: KeyDigest) -> Found:
        reply = self._ask(Op.GET_LOCATION, key)
        return Found(reply.status, reply.place, reply.descriptor)

    def exists(self, key: KeyDigest) -> int:
        return self._ask(Op.EXISTS, key).status

    # each key is a message to the master
    def exist_each(self, keys: Digests) -> Words:
        return np.fromiter(map(self.exists, keys), np.int64, len(keys))

    def put_each(self, keys: Digests, sources: Words, what: What, preferred: int | None) -> None:
        return None

    def get_each(self, keys: Digests, targets: Words, what: What) -> None:
        return None

    def remove_each(self, keys: Digests) -> Words:
        return np.fromiter(map(self.remove, keys), np.int64, len(keys))

    def writer_of(self, key: KeyDigest) -> tuple[int, int] | None:
        found = self.locate(key)
        if found.status != Status.NOT_READY:
            return None
        return writer_in(self._machine, found.place.owner, found.place.slot, key)

    def remove(self, key: KeyDigest) -> int:
        return self._ask(Op.REMOVE, key).status

    def remove_slot(self, owner: int, slot: int, epoch: int) -> int:
        return self._ask(Op.REMOVE_SLOT, place=Place(owner, slot, epoch)).status

    def evict_slot(self, owner: int, slot: int, epoch: int) -> int:
        return self._ask(Op.EVICT_SLOT, place=Place(owner, slot, epoch)).status

    def evicted(self) -> int:
        return self._evicted

    def evict(self, owner: int, limit: int) -> int:
        """Evict until at most `limit` pages of a segment are in use. One request; returns how many objects went."""
        return self._ask(Op.EVICT, place=Place(owner, 0, 0), limit=limit).gone

    def batch(self, capacity: int, pages: "Pages | None" = None) -> "Batch | None":
        """None: v1's keys stand in no directory, where a launch could look them up."""
        return None

    def close(self) -> None:
        self._dispatch.close()
        server, self._server = self._server, None
        if server is not None:
            if isinstance(self._heap, LocalHeap):
                self._heap.world.shared.pop(_SHARED, None)
            self.master = None
            server.close()


def _serve(heap: Heap, machine: Machine, master: Master, timeout: float) -> Server:
    if isinstance(heap, LocalHeap):
        heap.world.shared[_SHARED] = master
        return Server(master, None, heap.alive, timeout)
    world_id = _world_id(heap, machine)
    remove_meeting_places(directory(), world_id)
    place = meeting_place(directory(), world_id, heap.incarnation)
    return Server(master, place if heap.world_size > 1 else None, heap.alive, timeout)


def _world_id(heap: Heap, machine: Machine) -> int:
    return int(machine.control(heap.rank)[0]["world_id"])


def _descriptors(heap: Heap, rank: int) -> npt.NDArray[Any]:
    """The OBJ_DESC records of a segment, copied."""
    geometry = heap.geometry
    at = geometry.offsets["desc_base"]
    raw = heap.segment(rank)[at : at + geometry.hdr_count * OBJ_DESC.size]
    return np.frombuffer(raw.cpu().numpy().tobytes(), OBJ_DESC.dtype)
