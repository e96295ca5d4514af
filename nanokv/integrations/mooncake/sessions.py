"""Values that are written, or read, in several calls: from a start to an end. Until its end nobody sees a new value.

A session that writes is an open plan of the world: an unfinished object, which the sweeper frees if its process dies or
takes longer than `write_timeout`. One that reads is a pin: the object stays in place until the end.
"""

import ctypes
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from nanokv.errors import DuplicateKey, NanoKVError, OutOfMemory, PeerLost
from nanokv.integrations.mooncake.batches import Batches, pieces_of
from nanokv.integrations.mooncake.codes import Code
from nanokv.integrations.mooncake.config import ReplicateConfig
from nanokv.integrations.mooncake.memory import Part, part_of
from nanokv.integrations.mooncake.objects import Objects, hold_of
from nanokv.integrations.mooncake.stored import tail_bytes, tail_of
from nanokv.integrations.mooncake.values import PLAIN, config_code, key_bytes, listed, number
from nanokv.pinned import Pinned
from nanokv.types import ObjMeta


class _Piece(NamedTuple):
    ptr: int
    nbytes: int
    offset: int  #: in the value


class _Open(NamedTuple):
    """A session: where the value lies, and how long it is; of one that writes also how it is stored, and where."""

    address: int
    nbytes: int
    pinned: Pinned | None = None
    config: ReplicateConfig = PLAIN
    owner: int = -1


_OVERTAKEN = _Open(0, 0)


class Sessions(Batches):
    """Sessions of this client, by key."""

    def __init__(self) -> None:
        super().__init__()
        self._session_lock = threading.Lock()
        self._writing: dict[bytes, _Open] = {}
        self._reading_now: dict[bytes, _Open] = {}

    def _store(self, key: object, parts: Sequence[Part], config: ReplicateConfig, *, replace: bool) -> int:
        """As `Values._store`. An upsert takes the place of a value that this client has begun."""
        if replace and self._writing:
            self._overtake(key_bytes(key))
        return super()._store(key, parts, config, replace=replace)

    def _overtake(self, key: bytes) -> None:
        """Give up what a session has begun. The session stays, and its end tells whether the key has a value."""
        with self._session_lock:
            known = self._writing.get(key)
            if known is None or not known.nbytes:
                return
            self._writing[key] = _OVERTAKEN
        if self._objects is not None:
            with suppress(NanoKVError):  # it took too long, and was given up
                self._objects.world.abort(key)

    # --- writing ---
    def batch_put_session_start(self, keys: list[str], sizes: list[int], config: ReplicateConfig = PLAIN) -> list[int]:
        """Begin a value of so many bytes for each key: 0, or a code; -705 if the key exists."""
        keys, sizes = listed("keys", keys), listed("sizes", sizes)
        code = config_code(config, len(keys))
        if self._objects is None:
            return []
        if len(keys) != len(sizes) or code:
            return [code or Code.INVALID_PARAMS] * len(keys)
        with self._session_lock:
            known = set(self._writing)
        names = [key_bytes(key) for key in keys]
        return [
            Code.INVALID_PARAMS if name in known else self._begin(name, number("size", size), config)
            for name, size in zip(names, sizes, strict=True)
        ]

    def _begin(self, key: bytes, nbytes: int, config: ReplicateConfig) -> int:
        objects = self._objects
        if not key or not nbytes or objects is None:
            return Code.INVALID_PARAMS
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
            with self._session_lock:
                self._writing[key] = _Open(address, nbytes, None, config, plan.dst_rank)
            return Code.OK
        return Code.NO_AVAILABLE_HANDLE

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        all_dst_offsets: list[list[int]],
    ) -> list[int]:
        """Write pieces of memory at offsets of values that were begun: the bytes written, or a code."""
        return self._ranges(self._writing, keys, all_buffer_ptrs, all_sizes, all_dst_offsets, into=False)

    def batch_put_session_end(self, keys: list[str]) -> list[int]:
        """Make the values visible: 0, or a code for each key."""
        return self._finish(keys, commit=True)

    def batch_put_session_revoke(self, keys: list[str]) -> list[int]:
        """Give the values up: 0, or a code for each key."""
        return self._finish(keys, commit=False)

    def _finish(self, keys: Sequence[str | bytes], *, commit: bool) -> list[int]:
        keys = listed("keys", keys)
        if self._objects is None:
            return []
        objects, world, answers = self._objects, self._objects.world, []
        for name in map(key_bytes, keys):
            with self._session_lock:
                known = self._writing.pop(name, None)
            if known is None:
                answers.append(Code.INVALID_PARAMS)
                continue
            if known is _OVERTAKEN:
                gone = commit and not objects.exists(name)
                answers.append(Code.OBJECT_NOT_FOUND if gone else Code.OK)
                continue
            try:
                (world.commit if commit else world.abort)(name)
                if commit and known.config.replica_num > 1:
                    objects.copy_further(name, known.config, known.owner)
                answers.append(Code.OK)
            except NanoKVError:  # it took too long, and was given up
                answers.append(Code.INVALID_WRITE)
        return answers

    # --- reading ---
    def batch_get_session_start(self, keys: list[str]) -> list[int]:
        """Hold the value of each key in place: 0, or a code."""
        if self._objects is None:
            return []
        return [int(self._hold(self._objects, key_bytes(key))) for key in listed("keys", keys)]

    def _hold(self, objects: Objects, key: bytes) -> int:
        with self._session_lock:
            if key in self._reading_now:
                return Code.OK
        if not key or not objects.exists(key):
            return Code.OBJECT_NOT_FOUND
        try:
            pinned = objects.world.pin(key)
        except OutOfMemory:
            return Code.NO_AVAILABLE_HANDLE
        except NanoKVError:
            return Code.OBJECT_NOT_FOUND
        address = _address(objects, pinned.meta)
        with self._session_lock:
            known = self._reading_now.setdefault(key, _Open(address, pinned.meta.bytes_total - tail_bytes(key), pinned))
        if known.pinned is not pinned:
            pinned.release()
        return Code.OK

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        all_src_offsets: list[list[int]],
    ) -> list[int]:
        """Copy ranges of values that are held to pieces of memory: the bytes copied, or a code."""
        return self._ranges(self._reading_now, keys, all_buffer_ptrs, all_sizes, all_src_offsets, into=True)

    def batch_get_session_end(self, keys: list[str]) -> int:
        """Let the values go."""
        if self._objects is None:
            return Code.INTERNAL_ERROR
        for name in map(key_bytes, listed("keys", keys)):
            with self._session_lock:
                known = self._reading_now.pop(name, None)
            if known is not None and known.pinned is not None:
                known.pinned.release()
        return Code.OK

    # --- both ---
    def _ranges(
        self, sessions: dict[bytes, _Open], keys: list[str], ptrs: object, sizes: object, offsets: object, *, into: bool
    ) -> list[int]:
        keys, offsets = listed("keys", keys), listed("offsets", offsets)
        pieces = pieces_of(ptrs, sizes)
        if pieces is None or not len(pieces) == len(keys) == len(offsets):
            return [Code.INVALID_PARAMS] * len(keys)
        answers = []
        for key, of_key, its in zip(keys, pieces, offsets, strict=True):
            with self._session_lock:
                session = sessions.get(key_bytes(key))
            if session is None or of_key is None or len(of_key) != len(its):
                answers.append(Code.INVALID_PARAMS)
                continue
            starts = [number("offset", offset) for offset in its]
            ranges = [_Piece(ptr, size, offset) for (ptr, size), offset in zip(of_key, starts, strict=True)]
            answers.append(_moved(session, ranges, into=into))
        return answers

    def _end_sessions(self) -> None:
        """Give up what is begun, and let go what is held: the client closes."""
        with self._session_lock:
            held, self._reading_now = self._reading_now, {}
            self._writing = {}  # closing the world aborts its open plans
        for session in held.values():
            if session.pinned is not None:
                session.pinned.release()


def _moved(session: _Open, ranges: Sequence[_Piece], *, into: bool) -> int:
    if any(not piece.ptr or not piece.nbytes or piece.offset + piece.nbytes > session.nbytes for piece in ranges):
        return Code.INVALID_PARAMS
    for piece in ranges:
        target, source = (piece.ptr, session.address + piece.offset)
        if not into:
            target, source = source, target
        ctypes.memmove(target, source, piece.nbytes)
    return sum(piece.nbytes for piece in ranges)


def _address(objects: Objects, meta: ObjMeta) -> int:
    return objects.world.remote_ptr(meta.owner_rank, meta.payload_off)
