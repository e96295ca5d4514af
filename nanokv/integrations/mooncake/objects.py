"""The objects of a store: values under keys, in the segments of its clients. Answers with Mooncake's codes.

An object is a value, its key behind it, and eight bytes that tell the length of the key. NanoKV itself keeps digests of
keys, but a store lists its keys and removes by regular expression. A reader knows the key, and so from the length of
the object how long the value is.

A write allocates in the segment that its key chooses among those of the clients (or a preferred one), fills the pages
and makes the object visible with one atomic word (`device/protocol/put.py`), so no reader sees half of one. A read
finds the object, copies it, and validates afterwards that it was the same object all the time
(`device/protocol/get.py`); else it begins again. So it needs no lease. The lease that Mooncake's interface promises is
the time of the last read, which each read leaves in the object's header: a removal that is not forced is refused for
some time after it, because programs count on that.
"""

import ctypes
import logging
import os
import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import lru_cache
from typing import Any, TypeVar

import torch

from nanokv.allocation.terms import Hold, terms_of
from nanokv.cache.cache import NanoKVCache
from nanokv.device.machines.records import NO_TERMS, Found, Place, Terms, What
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.layout import ACCESS_TIME, HIGH, KEPT, READY, STATE_MASK, unpack
from nanokv.errors import PeerLost
from nanokv.host_poller.index import key_of
from nanokv.integrations.mooncake.codes import ErrorCode
from nanokv.integrations.mooncake.config import ReplicateConfig, SoftPinAction
from nanokv.integrations.mooncake.memory import Part, address_of, part_of, take
from nanokv.integrations.mooncake.place import Segments
from nanokv.keys.hashing import Hasher
from nanokv.seldom import Seldom
from nanokv.transfer.descriptors import RAW
from nanokv.transfer.single import TRIES
from nanokv.types import KeyDigest

logger = logging.getLogger(__name__)

R = TypeVar("R")
LEASE_VARIABLE = "NANOKV_MOONCAKE_LEASE_MS"
_DEFAULT_LEASE, _NS_PER_MS = 10_000, 1_000_000  #: milliseconds, as the real master's
_SMALL = 64 << 10  #: bytes of an object that is written, or read, in one native call
_SLICE = 16 << 10  #: header slots that are looked at together
_OTHERS_SECONDS, _REST = 1.0, 0.0002  #: for values that others are writing, in one upsert; and between two looks
_NAMESPACE = "\0mooncake reserving"  #: of keys that only hold room for a moment: no tenant can have a NUL

_OF_STATUS = {
    Status.MISS: ErrorCode.OBJECT_NOT_FOUND,
    Status.NOT_READY: ErrorCode.REPLICA_IS_NOT_READY,
    Status.PINNED: ErrorCode.OBJECT_REPLICA_BUSY,
    Status.CORRUPT: ErrorCode.CHECKSUM_MISMATCH,
    Status.FULL: ErrorCode.NO_AVAILABLE_HANDLE,
    Status.NO_HEADER: ErrorCode.NO_AVAILABLE_HANDLE,
    Status.NO_ENTRY: ErrorCode.NO_AVAILABLE_HANDLE,
    Status.NO_PIN: ErrorCode.NO_AVAILABLE_HANDLE,
    Status.TOO_LARGE: ErrorCode.NO_AVAILABLE_HANDLE,
    Status.DUPLICATE: ErrorCode.OBJECT_ALREADY_EXISTS,
}
_NO_ROOM = (Status.FULL, Status.NO_HEADER)


def code_of(status: int) -> int:
    """The code for a status of the protocol."""
    return ErrorCode.OK if not status else _OF_STATUS.get(Status(status), ErrorCode.INTERNAL_ERROR)


# --- how an object lies in a segment ---
_TAIL = struct.Struct("<II")
_MAGIC = 0x4B4D4B4E  # "NKMK"


def tail_of(key: bytes) -> bytes:
    """What lies behind the value of a key's object."""
    return key + _TAIL.pack(len(key), _MAGIC)


def tail_bytes(key: bytes) -> int:
    """The length of `tail_of(key)`."""
    return len(key) + _TAIL.size


def _key_length(ending: bytes, nbytes: int) -> int | None:
    """The length of an object's key, which ends where its last bytes begin; None: it is no object of a store.

    Args:
        ending: those last bytes.
        nbytes: of the whole object.
    """
    length, magic = _TAIL.unpack(ending)
    return length if magic == _MAGIC and length <= nbytes - _TAIL.size else None


class _Room:
    """Memory of one thread, for one small object."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(_SMALL)
        self.address = ctypes.addressof(self._memory)


class Objects:
    """The objects of a store, as one of its clients reaches them. `key`: the bytes of a key, not empty."""

    def __init__(self, world: NanoKVCache, segments: Segments) -> None:
        self.world, self.segments = world, segments
        engine = world.engine
        self._machine, self._allocation, self._single = engine.machine, engine.allocation, engine.single
        self._bases = engine.heap.bases
        self._take_object, self._rooms = engine.calls.take, threading.local()
        self._lease_ns = int(os.environ.get(LEASE_VARIABLE) or _DEFAULT_LEASE) * _NS_PER_MS
        self.digest: Callable[[bytes], KeyDigest] = world.engine.hasher
        self.most = world.engine.geometry.max_object_bytes
        self._reserving = Hasher(_NAMESPACE)
        self._seldom = Seldom(logger)

    # --- reading ---
    def read(self, key: bytes, take: Callable[[int, int], R]) -> R | int:
        """What `take(address, nbytes)` makes of a value. It may be called again: the object was replaced meanwhile."""
        digest = self.digest(key)
        for _ in range(TRIES):
            status, place, _ = self._allocation.locate(digest)
            if status:
                return code_of(status)
            if place.nbytes < tail_bytes(key):  # not a value: one of the store's own objects
                return ErrorCode.OBJECT_NOT_FOUND
            got = take(self._bases[place.owner] + place.payload, place.nbytes - tail_bytes(key))
            if not self._machine.validate(place):
                self._machine.touch(place, now_ns())
                return got
        return ErrorCode.OBJECT_NOT_FOUND

    def read_into(self, key: bytes, address: int, room: int) -> int:
        """Copy a value to an address: its bytes, or a code. Nothing is copied if there is no room for all of it."""

        def copy(source: int, nbytes: int) -> int:
            if nbytes > room:
                return ErrorCode.INVALID_PARAMS
            ctypes.memmove(address, source, nbytes)
            return nbytes

        return self.read(key, copy)

    def read_small(self, key: str) -> bytes | None:
        """A copy of a small value; None: it is none, and `read` answers why."""
        address, nbytes = self._take_small(key)
        return ctypes.string_at(address, nbytes) if nbytes >= 0 else None

    def read_small_into(self, key: str, address: int, room: int) -> int:
        """Copy a small value to an address: its bytes; below 0: nothing was copied, and `read_into` answers why."""
        taken, nbytes = self._take_small(key)
        if not 0 <= nbytes <= room:
            return -1
        ctypes.memmove(address, taken, nbytes)
        return nbytes

    def _take_small(self, key: str) -> tuple[int, int]:
        """Copy an object to memory of this thread: where it lies, and the bytes of the value; below 0: none."""
        room = getattr(self._rooms, "room", None)
        if room is None:
            room = self._rooms.room = _Room()
        name = len(key) if key.isascii() else len(key.encode("utf-8", "surrogatepass"))
        return room.address, self._take_object(key, room.address, _SMALL) - name - _TAIL.size

    def exists(self, key: bytes) -> bool:
        """Whether a value can be read. It counts as a read."""
        found = self._allocation.locate(self.digest(key))
        if found.status:
            return False
        self._machine.touch(found.place, now_ns())
        return True

    def exist(self, keys: Sequence[bytes]) -> list[bool]:
        """`exists` for each key, in one call."""
        statuses = self._machine.use_each(self.world.engine.digests(keys).words, now_ns())
        found: list[bool] = (statuses == 0).tolist()
        return found

    # --- writing ---
    def write(self, key: bytes, parts: Sequence[Part], config: ReplicateConfig | None = None) -> int:
        """Store the parts, one after another, under a key that has none. `config`: None is the default one."""
        if _bytes_of(parts) + tail_bytes(key) > self.most:
            return ErrorCode.NO_AVAILABLE_HANDLE
        digest, hold = self.digest(key), hold_of(config)
        terms = NO_TERMS if hold is None else terms_of(hold, self.world.engine.hasher.group)
        for owner in self.owners(digest, config):
            try:
                status = self._write_to(owner, digest, key, parts, terms)
            except PeerLost:
                self.segments.forget()
                continue
            if status not in _NO_ROOM:
                if not status and config is not None and config.replica_num > 1:
                    self.copy_further(key, config, owner)
                return code_of(status)
        return ErrorCode.NO_AVAILABLE_HANDLE

    def replace(self, key: bytes, parts: Sequence[Part], config: ReplicateConfig | None = None) -> int:
        """Store the parts under a key, in place of what it has. A reader may miss the key for some microseconds.

        The pins of the old value stay. If there is no room for the new one, the old one stays, with its pins. A value
        that another process is writing is waited for.
        """
        if _bytes_of(parts) + tail_bytes(key) > self.most:
            return ErrorCode.NO_AVAILABLE_HANDLE
        digest, priority, code = self.digest(key), 0, ErrorCode.OBJECT_REPLICA_BUSY
        deadline = time.monotonic() + _OTHERS_SECONDS
        while time.monotonic() < deadline:
            found = self._allocation.locate(digest)
            if found.status == Status.NOT_READY:
                code = ErrorCode.REPLICA_IS_NOT_READY
                time.sleep(_REST)
                continue
            if found.status not in (Status.OK, Status.MISS):
                return code_of(found.status)
            if found.status:
                code = self.write(key, parts, _with_pins(config, priority))
            else:
                if priority != KEPT.value:  # of a value that this upsert has removed, before another one took its place
                    priority = self.priority(found.place)
                code = self._exchange(key, found, parts, config, priority)
            if code not in (ErrorCode.OBJECT_ALREADY_EXISTS, ErrorCode.REPLICA_IS_NOT_READY):
                return code
        return code if code == ErrorCode.REPLICA_IS_NOT_READY else ErrorCode.OBJECT_REPLICA_BUSY

    def _exchange(
        self, key: bytes, found: Found, parts: Sequence[Part], config: ReplicateConfig | None, priority: int
    ) -> int:
        """Store the parts in place of an object.

        OBJECT_ALREADY_EXISTS, or REPLICA_IS_NOT_READY: another process did so first, or does so now.
        """
        digest, nbytes = self.digest(key), _bytes_of(parts) + tail_bytes(key)
        pages_of, names = self.world.engine.geometry.pages_of, self.segments.names()
        in_place = found.place.owner in names and pages_of(nbytes) <= pages_of(found.place.nbytes)
        if not in_place and not self._has_room(digest, nbytes, config) and (priority or not names):
            return ErrorCode.NO_AVAILABLE_HANDLE
        leased = found.place.nbytes == nbytes and self._is_leased(digest, found)
        kept = self.read(key, take) if priority or not in_place else ErrorCode.OBJECT_NOT_FOUND
        status = self.remove_exactly(digest, found.place)
        if status:
            return ErrorCode.OBJECT_ALREADY_EXISTS if status == Status.MISS else code_of(status)
        code = self.write(key, parts, _with_pins(config, priority))
        if code and code != ErrorCode.OBJECT_ALREADY_EXISTS and isinstance(kept, bytes):  # others took the room
            self._put_back(key, kept, priority)
        if not code and leased:
            self.exists(key)  # as in the real one, where a value of the same size is written in place
        return code

    def remove_exactly(self, digest: KeyDigest, place: Place) -> int:
        """Remove the object at a place, and its copies: OK, PINNED, or MISS if another one has taken its place.

        A removal by key would also remove what another process has just stored, whose pin nobody would know of.
        """
        lives = {each[:3] for each in self._machine.find_copies(digest)}
        if place[:3] not in lives:
            return Status.MISS
        status = self._allocation.remove_slot(*place[:3])
        if not status:  # then the others are copies of it: no other object has had the key when they were seen
            for other in lives - {place[:3]}:
                self._allocation.remove_slot(*other)
        return status

    def _has_room(self, digest: KeyDigest, nbytes: int, config: ReplicateConfig | None) -> bool:
        """Whether a segment has room for so many bytes, or has now: what is put there may evict others."""
        reserved = self._reserving(secrets.token_bytes(16))
        for owner in self.owners(digest, config):
            with suppress(PeerLost):
                begun = self._allocation.begin(reserved, nbytes, owner, RAW, plan=False)
                if not begun.status:
                    self._allocation.abort(reserved, begun)
                    return True
        return False

    def _put_back(self, key: bytes, value: bytes, priority: int) -> None:
        code = self.write(key, [part_of(value)[0]], _with_pins(None, priority))
        if code and code != ErrorCode.OBJECT_ALREADY_EXISTS:
            self._seldom.warn("lost", f"NanoKV: an upsert found no room, and its old value none any more: code {code}")

    def _write_to(self, owner: int, digest: KeyDigest, key: bytes, parts: Sequence[Part], terms: Terms) -> int:
        tail, nbytes = tail_of(key), _bytes_of(parts)
        if nbytes + len(tail) <= _SMALL and terms is NO_TERMS:
            joined = b"".join([*[ctypes.string_at(*part) for part in parts], tail])
            return self._allocation.put(digest, address_of(joined), _raw(len(joined)), owner)

        def fill(payload: torch.Tensor) -> None:
            at = payload.data_ptr()
            for part in (*parts, part_of(tail)[0]):
                ctypes.memmove(at, part.address, part.nbytes)
                at += part.nbytes

        return self._single.put_filled(digest, nbytes + len(tail), owner, RAW, fill, terms)

    # --- where ---
    def owners(self, digest: KeyDigest, config: ReplicateConfig | None) -> list[int]:
        """The ranks whose segments may get an object, in the order in which they are tried."""
        names = self.segments.names()
        ranks = sorted(names)
        if not ranks:
            return []
        first = digest.key_hash % len(ranks)
        order = ranks[first:] + ranks[:first]
        wanted: list[str] = []
        if config is not None:
            wanted = config.preferred_segments or ([config.preferred_segment] if config.preferred_segment else [])
            if config.prefer_alloc_in_same_node and self.world.rank in names:
                wanted = [*wanted, names[self.world.rank]]
        if not wanted:
            return order
        preferred = [rank for name in wanted for rank in order if names[rank] == name]
        return [*preferred, *(rank for rank in order if rank not in preferred)]

    def copy_further(self, key: bytes, config: ReplicateConfig, owner: int) -> None:
        """Copy a new object into further segments, as many as there are and the config wants."""
        wanted = config.replica_num - 1
        for rank in self.owners(self.digest(key), config):
            if wanted and rank != owner and not self.copy_to(key, rank):
                wanted -= 1

    def copy_to(self, key: bytes, rank: int) -> int:
        """Copy an object into the segment of a rank; OK also if it has one."""
        try:
            status = self.world.engine.replicas.copy(self.digest(key), rank)
        except PeerLost:
            return ErrorCode.SEGMENT_NOT_FOUND
        return ErrorCode.OK if status == Status.DUPLICATE else code_of(status)

    def places(self, key: bytes) -> list[Place]:
        """Where the replicas of an object lie, with the payload of each; the order is that of the ranks."""
        found = self._allocation.locate(self.digest(key))
        if found.status:
            return []
        self._machine.touch(found.place, now_ns())
        copies = [self._whole(place) for place in self._machine.find_copies(self.digest(key))]
        return sorted({found.place.owner: found.place, **{place.owner: place for place in copies}}.values())

    def _whole(self, place: Place) -> Place:
        header = self._machine.headers(place.owner, place.slot, 1)
        return place._replace(payload=int(header["payload_base"][0]), nbytes=int(header["bytes_total"][0]))

    def address(self, place: Place) -> int:
        """Where a replica lies in this process."""
        return self._bases[place.owner] + place.payload

    # --- removing ---
    def remove(self, key: bytes, *, force: bool = False) -> int:
        """Remove an object and its copies; refused while a lease protects it, except by force."""
        digest = self.digest(key)
        found = self._allocation.locate(digest)
        if found.status:
            return code_of(found.status)
        if not force and self._is_leased(digest, found):
            return ErrorCode.OBJECT_HAS_LEASE
        return code_of(self._allocation.remove(digest))

    def remove_at(self, key: bytes, rank: int) -> int:
        """Remove the replica in the segment of a rank."""
        for place in self._machine.find_copies(self.digest(key)):
            if place.owner == rank:
                return code_of(self._allocation.remove_slot(rank, place.slot, place.epoch))
        return ErrorCode.REPLICA_NOT_FOUND

    def leased(self, key: bytes) -> bool:
        """Whether a read protects an object at this moment."""
        digest = self.digest(key)
        found = self._allocation.locate(digest)
        return not found.status and self._is_leased(digest, found)

    def _is_leased(self, digest: KeyDigest, found: Found) -> bool:
        """Whether a read of the object that was found, or of a copy of it, protects it at this moment."""
        now = now_ns()
        return self._is_in_use(found.place, now) or any(
            self._is_in_use(place, now) for place in self._machine.find_copies(digest)
        )

    def _is_in_use(self, place: Place, now: int) -> bool:
        access = self._access(place)
        return bool(unpack("ACCESS", "use", access)) and (access & ACCESS_TIME.value) + self._lease_ns > now

    def priority(self, place: Place) -> int:
        """The priority that an object has by its pin."""
        return int(unpack("ACCESS", "priority", self._access(place)))

    def _access(self, place: Place) -> int:
        return int(self._machine.headers(place.owner, place.slot, 1)["last_access"][0])

    # --- listing ---
    def keys(self) -> Iterator[bytes]:
        """The keys of all values that can be read, in no order."""
        seen: set[bytes] = set()
        for owner in range(self.world.world_size):
            for first in range(0, self.world.engine.geometry.hdr_count, _SLICE):
                headers = self._machine.headers(owner, first, _SLICE)
                for at in ((headers["state"] & STATE_MASK.value) == READY.value).nonzero()[0].tolist():
                    key = self._key_of(owner, headers[at])
                    if key is not None and key not in seen:
                        seen.add(key)
                        yield key

    def _key_of(self, owner: int, header: Any) -> bytes | None:
        """The key of a READY object of this tenant; None if it is another's, or gone."""
        nbytes, base = int(header["bytes_total"]), int(header["payload_base"])
        if nbytes < _TAIL.size or base + nbytes > self.world.engine.geometry.segment_bytes:
            return None
        end = self._bases[owner] + base + nbytes - _TAIL.size
        length = _key_length(ctypes.string_at(end, _TAIL.size), nbytes)
        if not length:
            return None
        key = ctypes.string_at(end - length, length)
        return key if tuple(self.world.digest(key)) == tuple(key_of(header)) else None  # else it was replaced just now


@lru_cache(_SMALL)
def _raw(nbytes: int) -> What:
    """The descriptor of so many bytes that are nothing but bytes. Made once: it is a record in memory."""
    return What.of(nbytes, RAW)


def hold_of(config: ReplicateConfig | None) -> Hold | None:
    """The pin of a new object."""
    if config is None:
        return None
    if config.with_hard_pin:
        return _HARD_PIN
    return _SOFT_PIN if config.soft_pin_action == SoftPinAction.ENABLE else None


def _with_pins(config: ReplicateConfig | None, priority: int) -> ReplicateConfig | None:
    """The config of a value that replaces one of this priority: a hard pin stays, and a soft one if it is to."""
    hard = priority == KEPT.value
    soft = priority == HIGH.value and (config is None or config.soft_pin_action == SoftPinAction.PRESERVE)
    if not hard and not soft:
        return config
    pinned = ReplicateConfig() if config is None else copy(config)
    if hard:
        pinned.with_hard_pin = True
    else:
        pinned.soft_pin_action = SoftPinAction.ENABLE
    return pinned


def _bytes_of(parts: Sequence[Part]) -> int:
    return sum([part.nbytes for part in parts])


_HARD_PIN, _SOFT_PIN = Hold(priority="kept"), Hold(priority="high")
