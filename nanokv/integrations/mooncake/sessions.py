"""Values that are written, or read, in several calls, from a start to an end. Nobody sees a new value before that.

A session that writes is an open plan of the world: an unfinished object, which the sweeper frees if its process dies or
takes longer than `write_timeout`. One that reads is a pin: the object stays in place until the end.
"""

import ctypes
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from nanokv.errors import DuplicateKey, NanoKVError, OutOfMemory, PeerLost
from nanokv.integrations.mooncake.codes import Code
from nanokv.integrations.mooncake.config import ReplicateConfig
from nanokv.integrations.mooncake.memory import Part, part_of
from nanokv.integrations.mooncake.objects import Objects, hold_of, tail_bytes, tail_of
from nanokv.transfer.pinned import Pinned


class _Write(NamedTuple):
    """A value that is begun: where it lies, how long it is, and how it is stored."""

    address: int
    nbytes: int
    config: ReplicateConfig
    owner: int


class _Read(NamedTuple):
    """A value that is held: where it lies, and how long it is."""

    address: int
    nbytes: int
    pinned: Pinned


class Sessions:
    """The sessions of a client, by key. Every call answers with a code, or with bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes: dict[bytes, _Write | None] = {}  #: None: an upsert of this client has taken its place
        self._reads: dict[bytes, _Read] = {}

    # --- writing ---
    def begin(self, objects: Objects, keys: list[bytes], sizes: list[int], config: ReplicateConfig) -> list[int]:
        """Begin a value of so many bytes for each key that has no session."""
        with self._lock:
            known = set(self._writes)
        return [
            Code.INVALID_PARAMS if key in known or not key or not nbytes else self._begin(objects, key, nbytes, config)
            for key, nbytes in zip(keys, sizes, strict=True)
        ]

    def _begin(self, objects: Objects, key: bytes, nbytes: int, config: ReplicateConfig) -> int:
        world, tail, hold = objects.world, tail_of(key), hold_of(config)
        if nbytes + len(tail) > objects.most:
            return Code.NO_AVAILABLE_HANDLE
        for owner in objects.owners(objects.digest(key), config):
            try:
                plan = world.open_for_write(key, nbytes + len(tail), preferred_segment=owner, hold=hold)
            except (OutOfMemory, PeerLost):
                continue
            except DuplicateKey:
                return Code.OBJECT_ALREADY_EXISTS
            except NanoKVError:
                return Code.INTERNAL_ERROR
            address = world.remote_ptr(plan.dst_rank, plan.payload_base)
            ctypes.memmove(address + nbytes, part_of(tail)[0].address, len(tail))
            with self._lock:
                self._writes[key] = _Write(address, nbytes, config, plan.dst_rank)
            return Code.OK
        return Code.NO_AVAILABLE_HANDLE

    def overtake(self, objects: Objects, key: bytes) -> None:
        """Give up what a session has begun, for an upsert. The session stays: its end tells if there is a value."""
        if not self._writes:
            return
        with self._lock:
            if self._writes.get(key) is None:
                return
            self._writes[key] = None
        with suppress(NanoKVError):  # it took too long, and was given up
            objects.world.abort(key)

    def write(self, key: bytes, pieces: Sequence[Part] | None, offsets: Sequence[int]) -> int:
        """Copy pieces of memory to offsets of a value that is begun: the bytes written. `pieces`: None is refused."""
        with self._lock:
            begun = self._writes.get(key)
        moves = None if begun is None else _moves(pieces, begun.address, begun.nbytes, offsets)
        if moves is None:
            return Code.INVALID_PARAMS
        for place, piece in moves:
            ctypes.memmove(place, piece.address, piece.nbytes)
        return sum(piece.nbytes for _, piece in moves)

    def finish(self, objects: Objects, key: bytes, *, commit: bool) -> int:
        """End the session of a value: make it visible, or give it up."""
        with self._lock:
            known = key in self._writes
            begun = self._writes.pop(key, None)
        if not known:
            return Code.INVALID_PARAMS
        if begun is None:
            return Code.OBJECT_NOT_FOUND if commit and not objects.exists(key) else Code.OK
        try:
            (objects.world.commit if commit else objects.world.abort)(key)
            if commit and begun.config.replica_num > 1:
                objects.copy_further(key, begun.config, begun.owner)
        except NanoKVError:  # it took too long, and was given up
            return Code.INVALID_WRITE
        return Code.OK

    # --- reading ---
    def hold(self, objects: Objects, key: bytes) -> int:
        """Hold a value in place."""
        with self._lock:
            if key in self._reads:
                return Code.OK
        if not key or not objects.exists(key):
            return Code.OBJECT_NOT_FOUND
        try:
            pinned = objects.world.pin(key)
        except OutOfMemory:
            return Code.NO_AVAILABLE_HANDLE
        except NanoKVError:
            return Code.OBJECT_NOT_FOUND
        meta = pinned.meta
        address = objects.world.remote_ptr(meta.owner_rank, meta.payload_off)
        with self._lock:
            known = self._reads.setdefault(key, _Read(address, meta.bytes_total - tail_bytes(key), pinned))
        if known.pinned is not pinned:  # another thread has begun the same session
            pinned.release()
        return Code.OK

    def read(self, key: bytes, pieces: Sequence[Part] | None, offsets: Sequence[int]) -> int:
        """Copy from offsets of a value that is held to pieces of memory: the bytes copied. `pieces`: as for `write`."""
        with self._lock:
            held = self._reads.get(key)
        moves = None if held is None else _moves(pieces, held.address, held.nbytes, offsets)
        if moves is None:
            return Code.INVALID_PARAMS
        for place, piece in moves:
            ctypes.memmove(piece.address, place, piece.nbytes)
        return sum(piece.nbytes for _, piece in moves)

    def release(self, key: bytes) -> None:
        """Let a value go, if it is held."""
        with self._lock:
            held = self._reads.pop(key, None)
        if held is not None:
            held.pinned.release()

    # --- the end ---
    def close(self) -> None:
        """Let go what is held, and forget what is begun: the world aborts its open plans as it closes."""
        with self._lock:
            held, self._reads, self._writes = self._reads, {}, {}
        for each in held.values():
            each.pinned.release()


def _moves(
    pieces: Sequence[Part] | None, value: int, nbytes: int, offsets: Sequence[int]
) -> list[tuple[int, Part]] | None:
    """Where in a value each piece of memory belongs; None if there is not an offset for each, or one lies outside."""
    if pieces is None or len(pieces) != len(offsets):
        return None
    moves = list(zip(offsets, pieces, strict=True))
    if not all(piece.address and piece.nbytes and offset + piece.nbytes <= nbytes for offset, piece in moves):
        return None
    return [(value + offset, piece) for offset, piece in moves]
