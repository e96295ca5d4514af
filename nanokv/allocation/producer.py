"""v2: the producer allocates in the owner's segment itself, through the machine. No server, no message."""

import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nanokv.allocation.routing import Routing
from nanokv.allocation.writers import writer_in
from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Begun, Descriptor, Found, Place, What, Words
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.layout import unpack
from nanokv.errors import NanoKVError, PeerLost
from nanokv.heap.backing import Backing
from nanokv.keys.digests import Digests
from nanokv.space.make_room import make_room, put_before
from nanokv.types import KeyDigest

if TYPE_CHECKING:
    from nanokv.device.machines.batch import Batch
    from nanokv.device.machines.engine_cache import Pages

_FULL = int(Status.FULL)  # a comparison with the enumeration costs 2 % of a put
_ROOM_TRIES = 8  #: how often a put makes room: others may take, or join, the pages that it joined or evicted
_EXTENT_TRIES = 4  #: at how many extents without memory a put looks, before it takes all of them out of the lists


class ProducerAllocation:
    """The Allocation of `alloc="device"`.

    Args:
        machine: of this rank.
        routing: of this world.
        backing: reserves the memory that objects take, where that is not there from the start.
        checksum: whether objects have one.
        note_owner: called with the rank that gets an object, before that is put; what it raises refuses the object.
    """

    alloc = "device"

    def __init__(
        self,
        machine: Machine,
        rank: int,
        routing: Routing,
        note_owner: Callable[[int], None] | None = None,
        *,
        backing: Backing | None = None,
        checksum: bool = False,
    ) -> None:
        self._machine = machine
        self.backing, self._checksum = backing, checksum
        self._machine_put = machine.put_now
        self.get: Callable[[KeyDigest, int, What], int] = machine.get_now  # a method would only call it
        self._rank = rank
        self.routing = routing
        self._route = routing.owner_of
        self._others = routing.others
        self.note_owner = note_owner
        self.owner_of = routing.owner_of if note_owner is None else self._noted_owner_of

    def when_noted(self, tell: Callable[[int], None]) -> None:
        """Let `tell` be called with each rank that `note_owner` has noted: native calls need not ask for it again."""
        note = self.note_owner
        if note is not None:

            def note_and_tell(owner: int) -> None:
                note(owner)
                tell(owner)

            self.note_owner = note_and_tell

    def _noted_owner_of(self, key: KeyDigest, preferred: int | None) -> int:
        assert self.note_owner is not None
        owner = self._route(key, preferred)
        self.note_owner(owner)
        return owner

    def put(self, key: KeyDigest, src: int, what: What, preferred: int | None) -> int:
        owner = self.owner_of(key, preferred) if preferred is None or self.note_owner is not None else preferred
        put_now = self._machine_put if self.backing is None else self._put_backed
        status = put_now(owner, key, src, what)
        return status if status != _FULL else self._put_with_room(owner, key, src, what, preferred)

    def put_refused(self, key: KeyDigest, src: int, what: What, preferred: int | None, owner: int) -> int:
        return self._put_with_room(owner, key, src, what, preferred)

    def _put_with_room(self, owner: int, key: KeyDigest, src: int, what: What, preferred: int | None) -> int:
        """After FULL: put it elsewhere if the owner has gone, else make room and try again."""
        put_now = self._machine_put if self.backing is None else self._put_backed
        status = _FULL
        while status == _FULL and (other := self._instead_of(owner, key, preferred)) is not None:
            owner = other
            status = put_now(owner, key, src, what)
        if status == _FULL:
            status = self._with_room(owner, what.nbytes, lambda: put_now(owner, key, src, what))
        return status

    def put_copied(
        self, key: KeyDigest, src: int, nbytes: int, preferred: int | None, descriptor: Descriptor, count: int
    ) -> tuple[int, list[int]]:
        """`put`, and a copy in each of the next `count` segments that live: (status, the ranks that have a copy)."""
        made: list[int] = []

        def put(owner: int) -> int:
            nonlocal made
            if not self.has_memory(owner, nbytes):
                return _FULL
            targets = [rank for rank in self._others(owner, count) if self.may_have(rank)]
            targets = [rank for rank in targets if self.has_memory(rank, nbytes)]
            now = now_ns()
            status, made = self._machine.put_copied(owner, key, src, nbytes, descriptor, now, targets)
            return status

        owner = self.owner_of(key, preferred)
        status = put(owner)
        while status == _FULL and (other := self._instead_of(owner, key, preferred)) is not None:
            owner = other
            status = put(owner)
        if status == _FULL and self.has_memory(owner, nbytes):
            status = self._with_room(owner, nbytes, lambda: put(owner))
        return status, made

    def replicate(self, key: KeyDigest, target: int) -> int:
        """Copy an object into the segment of `target`: see `Machine.replicate`.

        Raises:
            OutOfMemory, ReuseViolation: as `owner_of`.
        """
        if self.note_owner is not None:
            self.note_owner(target)
        if self.backing is not None and not self.has_memory(target, self._machine.lookup(key).place.nbytes):
            return _FULL
        status = self._machine.replicate(target, key, now_ns())
        if status == _FULL:
            found = self._machine.lookup(key)
            if found.status == Status.OK:
                again = partial(self._machine.replicate, target, key)
                status = self._with_room(target, found.place.nbytes, lambda: again(now_ns()))
        return status

    def may_have(self, rank: int) -> bool:
        """Whether a segment can take objects of this identity: a copy that it cannot have is left out."""
        try:
            if self.note_owner is not None:
                self.note_owner(rank)
        except NanoKVError:
            return False
        return True

    def begin(self, key: KeyDigest, nbytes: int, preferred: int | None, descriptor: Descriptor, *, plan: bool) -> Begun:
        owner = self.owner_of(key, preferred)
        begun = self._begin(owner, key, nbytes, descriptor, plan=plan)

        def begin() -> int:
            nonlocal begun
            begun = self._begin(owner, key, nbytes, descriptor, plan=plan)
            return begun.status

        while begun.status == _FULL and (other := self._instead_of(owner, key, preferred)) is not None:
            owner = other
            begin()
        if begun.status == _FULL:
            self._with_room(owner, nbytes, begin)
        return begun

    def _begin(self, owner: int, key: KeyDigest, nbytes: int, descriptor: Descriptor, *, plan: bool) -> Begun:
        """Begin an object in pages that have memory. If it gets others, an object goes, and it looks at more of them.

        Pages without memory stay taken meanwhile, for a key that nobody knows: they would be found again.
        """
        passed: list[tuple[KeyDigest, Begun]] = []
        try:
            while True:
                if plan:
                    begun = self._machine.plan_now(owner, key, nbytes, descriptor)
                else:
                    begun = self._machine.begin(owner, key, nbytes, 0, descriptor, now_ns())
                if begun.status != Status.OK or self._has_its_memory(begun.place):
                    return begun
                self.abort(key, begun)
                if len(passed) == _EXTENT_TRIES:
                    return begun._replace(status=_FULL)
                if not passed:
                    self._evict_one(owner)
                unknown = KeyDigest(secrets.randbits(63), key[1] ^ secrets.randbits(32))
                passed.append((unknown, self._machine.begin(owner, unknown, nbytes, 0, descriptor, now_ns())))
        finally:
            for unknown, taken in passed:
                if taken.status == Status.OK:
                    self.abort(unknown, taken)

    def _with_room(self, owner: int, nbytes: int, put: Callable[[], int]) -> int:
        """Make room for a put that was answered FULL, and put, until it is answered otherwise, or none can be made."""
        for _ in range(_ROOM_TRIES):
            end = None
            if self.backing is not None:
                self.backing.is_ready(owner, nbytes)  # pages that have memory may be joined
                end = self.backing.end_of(owner)
            if end is not None:
                status = put_before(self._machine, owner, nbytes, end, put)
                if status is not None:
                    return status
            elif not make_room(self._machine, owner, nbytes):
                break
            elif (status := put()) != _FULL:
                return status
        return _FULL

    # --- memory that is not there from the start ---
    def has_memory(self, owner: int, nbytes: int) -> bool:
        """Whether puts of so many bytes into a segment cannot meet pages without memory."""
        return self.backing is None or self.backing.is_ready(owner, nbytes)

    def have_memory(self, owners: Words, sizes: Words) -> bool:
        """`has_memory` of all puts, of so many bytes each, into these segments."""
        if self.backing is None:
            return True
        return all(self.has_memory(owner, int(sizes[owners == owner].sum())) for owner in np.unique(owners).tolist())

    def _has_its_memory(self, place: Place) -> bool:
        return self.backing is None or not place.nbytes or self.backing.reach(place.owner, place.payload + place.nbytes)

    def _evict_one(self, owner: int) -> None:
        if self._machine.control(owner)[0]["may_evict"]:
            self._machine.evict_pages(owner, 1, 1, now_ns())

    def _put_backed(self, owner: int, key: KeyDigest, src: int, what: What) -> int:
        """Put as `Machine.put_now` does, but for pages without memory."""
        assert self.backing is not None
        if self.backing.is_ready(owner, what.nbytes):
            return self._machine_put(owner, key, src, what)
        begun = self._begin(owner, key, what.nbytes, what.descriptor, plan=False)
        if begun.status != Status.OK:
            return begun.status
        self._machine.store_payload(begun.place, src)
        if self._checksum:
            self._machine.seal(key, begun.place, what.descriptor)
        return self.finish(key, begun)

    def _instead_of(self, owner: int, key: KeyDigest, preferred: int | None) -> int | None:
        """The segment to try after one without room, if the rank of that one has gone since it was chosen, or None.

        Raises:
            PeerLost: it was the preferred one.
        """
        if not self.routing.has_gone(owner):
            return None
        if preferred is not None:
            raise PeerLost(f"rank {owner} has left the world, or ended")
        other = self.owner_of(key, None)
        return other if other != owner else None

    def finish(self, key: KeyDigest, begun: Begun) -> int:
        if begun.phase < 0:
            return self._machine.commit(begun.place)
        return self._machine.finish(begun.place, begun.phase)

    def abort(self, key: KeyDigest, begun: Begun) -> int:
        owner = begun.place.owner
        phase = self._machine.enter(owner) if begun.phase < 0 else begun.phase
        status = self._machine.abort(begun.place)
        self._machine.leave(owner, phase)
        return status

    def locate(self, key: KeyDigest) -> Found:
        return self._machine.lookup(key)

    def exists(self, key: KeyDigest) -> int:
        return self._machine.find(key)

    def exist_each(self, keys: Digests) -> Words:
        return self._machine.find_each(keys.words)

    def put_each(self, keys: Digests, sources: Words, what: What, preferred: int | None) -> Words | None:
        owners = self._owners_of(keys, preferred)
        if owners is None or not self.have_memory(owners, np.full(len(owners), what.nbytes)):
            return None
        return self._machine.put_each(owners, keys.words, sources, what)

    def _owners_of(self, keys: Digests, preferred: int | None) -> Words | None:
        """`owner_of` each key, int64 [n]; None if one cannot have its object: the call for that key raises why."""
        try:
            if preferred is None:
                owners = self.routing.owners_of(keys)
                if self.note_owner is not None:
                    for owner in np.unique(owners).tolist():
                        self.note_owner(owner)
                return owners
            if self.note_owner is not None:
                self.note_owner(preferred)
            return np.full(len(keys), preferred)
        except NanoKVError:
            return None

    def get_each(self, keys: Digests, targets: Words, what: What) -> Words | None:
        return self._machine.get_each(keys.words, targets, what)

    def remove_each(self, keys: Digests) -> Words:
        return self._machine.remove_each(keys.words)

    def writer_of(self, key: KeyDigest) -> tuple[int, int] | None:
        status, entry = self._machine.call("find", *key)
        if status != Status.NOT_READY:
            return None
        return writer_in(self._machine, unpack("ENTRY", "rank", entry), unpack("ENTRY", "header", entry), key)

    def remove(self, key: KeyDigest) -> int:
        return self._machine.remove(key)

    def remove_slot(self, owner: int, slot: int, epoch: int) -> int:
        return self._machine.remove_slot(owner, slot, epoch)

    def evict_slot(self, owner: int, slot: int, epoch: int) -> int:
        return self._machine.evict_slot(owner, slot, epoch, now_ns())

    def evicted(self) -> int:
        ranks = range(self._machine.geometry.world_size)
        return sum(int(self._machine.activity(owner)[self._rank]["evicted"]) for owner in ranks)

    def batch(self, capacity: int, pages: "Pages | None" = None) -> "Batch | None":
        return self._machine.batch(capacity, pages)

    def close(self) -> None:
        """Nothing to end."""
