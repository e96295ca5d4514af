"""One client of a store: how it comes and goes, and what it has meanwhile."""

import ctypes
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from nanokv.arguments import size as parsed_size
from nanokv.cache.cache import NanoKVCache
from nanokv.errors import DuplicateKey, InvalidArgument, NanoKVError, OutOfMemory, PeerLost
from nanokv.integrations.mooncake import place
from nanokv.integrations.mooncake.arguments import PLAIN, config_code, number
from nanokv.integrations.mooncake.codes import ErrorCode
from nanokv.integrations.mooncake.config import ReplicateConfig
from nanokv.integrations.mooncake.local_buffer import LocalBuffer
from nanokv.integrations.mooncake.memory import Part, RegisteredRanges, part_of
from nanokv.integrations.mooncake.objects import Objects, hold_of, tail_bytes, tail_of
from nanokv.integrations.mooncake.replicas import Tasks
from nanokv.transfer.pinned import Pinned


# --- values that are written, or read, in several calls, from a start to an end ---------------
# Nobody sees a new value before that.
#
# A session that writes is an open plan of the world: an unfinished object, which the sweeper frees if its process
# dies or takes longer than `write_timeout`. One that reads is a pin: the object stays in place until the end.
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
            ErrorCode.INVALID_PARAMS
            if key in known or not key or not nbytes
            else self._begin(objects, key, nbytes, config)
            for key, nbytes in zip(keys, sizes, strict=True)
        ]

    def _begin(self, objects: Objects, key: bytes, nbytes: int, config: ReplicateConfig) -> int:
        world, tail, hold = objects.world, tail_of(key), hold_of(config)
        if nbytes + len(tail) > objects.most:
            return ErrorCode.NO_AVAILABLE_HANDLE
        for owner in objects.owners(objects.digest(key), config):
            try:
                plan = world.open_for_write(key, nbytes + len(tail), preferred_segment=owner, hold=hold)
            except (OutOfMemory, PeerLost):
                continue
            except DuplicateKey:
                return ErrorCode.OBJECT_ALREADY_EXISTS
            except NanoKVError:
                return ErrorCode.INTERNAL_ERROR
            address = world.remote_ptr(plan.dst_rank, plan.payload_base)
            ctypes.memmove(address + nbytes, part_of(tail)[0].address, len(tail))
            with self._lock:
                self._writes[key] = _Write(address, nbytes, config, plan.dst_rank)
            return ErrorCode.OK
        return ErrorCode.NO_AVAILABLE_HANDLE

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
            return ErrorCode.INVALID_PARAMS
        for target, piece in moves:
            ctypes.memmove(target, piece.address, piece.nbytes)
        return sum(piece.nbytes for _, piece in moves)

    def finish(self, objects: Objects, key: bytes, *, commit: bool) -> int:
        """End the session of a value: make it visible, or give it up."""
        with self._lock:
            known = key in self._writes
            begun = self._writes.pop(key, None)
        if not known:
            return ErrorCode.INVALID_PARAMS
        if begun is None:
            return ErrorCode.OBJECT_NOT_FOUND if commit and not objects.exists(key) else ErrorCode.OK
        try:
            (objects.world.commit if commit else objects.world.abort)(key)
            if commit and begun.config.replica_num > 1:
                objects.copy_further(key, begun.config, begun.owner)
        except NanoKVError:  # it took too long, and was given up
            return ErrorCode.INVALID_WRITE
        return ErrorCode.OK

    # --- reading ---
    def hold(self, objects: Objects, key: bytes) -> int:
        """Hold a value in place."""
        with self._lock:
            if key in self._reads:
                return ErrorCode.OK
        if not key or not objects.exists(key):
            return ErrorCode.OBJECT_NOT_FOUND
        try:
            pinned = objects.world.pin(key)
        except OutOfMemory:
            return ErrorCode.NO_AVAILABLE_HANDLE
        except NanoKVError:
            return ErrorCode.OBJECT_NOT_FOUND
        meta = pinned.meta
        address = objects.world.remote_ptr(meta.owner_rank, meta.payload_off)
        with self._lock:
            known = self._reads.setdefault(key, _Read(address, meta.bytes_total - tail_bytes(key), pinned))
        if known.pinned is not pinned:  # another thread has begun the same session
            pinned.release()
        return ErrorCode.OK

    def read(self, key: bytes, pieces: Sequence[Part] | None, offsets: Sequence[int]) -> int:
        """Copy from offsets of a value that is held to pieces of memory: the bytes copied. `pieces`: as for `write`."""
        with self._lock:
            held = self._reads.get(key)
        moves = None if held is None else _moves(pieces, held.address, held.nbytes, offsets)
        if moves is None:
            return ErrorCode.INVALID_PARAMS
        for source, piece in moves:
            ctypes.memmove(piece.address, source, piece.nbytes)
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


# --- the client -------------------------------------------------------------------------------
logger = logging.getLogger(__name__)

R = TypeVar("R")
DEFAULT_SIZE = 16 << 20  #: bytes, of segment and local buffer of a configuration that names none
_LEAVE_SECONDS = 5.0
_PROTOCOLS = ("tcp", "rdma", "efa", "nvlink", "nvlink_intra", "hip", "barex", "cxl", "ascend", "ub", "ubshmem", "maca")
_MUST = ("local_hostname", "metadata_server")
_FLAGS = ("enable_ssd_offload", "enable_client_http_server")
_OF_CONFIG = (
    *_MUST,
    "global_segment_size",
    "local_buffer_size",
    "protocol",
    "rdma_devices",
    "master_server_addr",
    "tenant_id",
    "client_http_port",
    "ssd_offload_path",
    *_FLAGS,
)


class StoreClient:
    """A client, before it is set up, while it is, and after its end.

    Attributes:
        registered: the memory that it may read and write.
        sessions, tasks: what it has begun.
        local_buffer: bytes; a value that a call copies has no more.
        pooled: the local buffer as memory, for pools; None for a client that is not set up.
    """

    def __init__(self) -> None:
        self.registered, self.sessions, self.tasks = RegisteredRanges(), Sessions(), Tasks()
        self.local_buffer = 0
        self.pooled: LocalBuffer | None = None
        self._hostname, self._has_segment = "", False
        self._objects: Objects | None = None

    # --- its state ---
    @property
    def objects(self) -> Objects | None:
        """The objects of the store; None for a client that is not set up. Raises Forked: the client is the parent's."""
        found = self._objects
        if found is not None and found.world.closed:
            found.world.engine.check_open()
        return found

    @property
    def is_set_up(self) -> bool:
        """Whether it is, and not closed."""
        return self.objects is not None

    @property
    def world(self) -> NanoKVCache:
        """The world of a client that is set up."""
        assert self._objects is not None, "the client is not set up"
        return self._objects.world

    @property
    def hostname(self) -> str:
        """The name of the client, and of its segment: host and port. Empty for one that is not set up."""
        return self._hostname if self.is_set_up else ""

    # --- how it comes ---
    def set_up_from(self, config: dict[str, Any]) -> int:
        """`set_up` with arguments by name, of which some have defaults, and sizes may be texts."""
        given = {name: config[name] for name in _OF_CONFIG if name in config}
        if not all(given.get(name) for name in _MUST):
            return ErrorCode.INVALID_PARAMS
        try:
            for name in ("global_segment_size", "local_buffer_size"):
                given[name] = parsed_size(name, given.get(name, DEFAULT_SIZE))
        except InvalidArgument:
            return ErrorCode.INVALID_PARAMS
        given.setdefault("protocol", "tcp")
        given.setdefault("rdma_devices", "")
        given.setdefault("master_server_addr", "127.0.0.1:50051")
        flags = {name: str(given[name]).lower() in ("1", "true") for name in _FLAGS if name in given}
        return self.set_up(**(given | flags))

    def set_up(
        self,
        local_hostname: str,
        metadata_server: str,
        global_segment_size: int,
        local_buffer_size: int,
        protocol: str,
        rdma_devices: str,
        master_server_addr: str,
        engine: Any = None,
        enable_ssd_offload: bool = False,
        ssd_offload_path: str = "",
        tenant_id: str = "default",
        enable_client_http_server: bool = False,
        client_http_port: int = 9300,
    ) -> int:
        """Join the store that a master's address names: 0 or a code. The arguments are Mooncake's."""
        segment = number("global_segment_size", global_segment_size)
        local_buffer = number("local_buffer_size", local_buffer_size)
        for text in (local_hostname, metadata_server, protocol, rdma_devices, master_server_addr, tenant_id):
            if not isinstance(text, str):
                raise TypeError(f"setup(): incompatible function arguments: {text!r} is no str")
        if enable_ssd_offload or enable_client_http_server:
            logger.error("NanoKV has no SSD tier and no HTTP server under this interface: set-up is refused")
            return ErrorCode.NOT_SUPPORTED
        if protocol.lower() not in _PROTOCOLS or not local_hostname:
            return ErrorCode.INTERNAL_ERROR if local_hostname else ErrorCode.INVALID_PARAMS
        if self.is_set_up:
            return ErrorCode.OK  # as the real one
        return self._join(place.Setup(local_hostname, master_server_addr, tenant_id, segment), local_buffer)

    def _join(self, setup: place.Setup, local_buffer: int) -> int:
        try:
            world = place.join(setup)
        except InvalidArgument as error:
            logger.error("NanoKV: %s", error)
            return ErrorCode.INVALID_PARAMS
        except NanoKVError as error:
            logger.error("NanoKV: the store cannot be joined: %s", error)
            return ErrorCode.INTERNAL_ERROR
        try:
            segments = place.Segments(world)
            segments.withdraw()  # what a process that had this rank before, and died, may have told
            if setup.segment:
                place.check_memory(world, segments)
            self._hostname = place.named(setup.hostname, list(segments.names().values()))
            self._has_segment = setup.segment > 0
            if self._has_segment:
                segments.announce(self._hostname)
            self.local_buffer = local_buffer
            self.pooled = LocalBuffer(local_buffer, self.registered)
            self._objects = Objects(world, segments)
        except NanoKVError as error:
            logger.error("NanoKV: the store cannot be joined: %s", error)
            world.close()
            return ErrorCode.INTERNAL_ERROR
        except BaseException:
            world.close()
            raise
        return ErrorCode.OK

    # --- how it goes ---
    def close(self) -> None:
        """Leave the store. The values in this client's segment go with it. Idempotent; a set-up may follow."""
        objects, self._objects = self._objects, None
        if objects is None or objects.world.closed:  # that of a child of a fork is
            return
        self.sessions.close()
        pooled, self.pooled = self.pooled, None
        if pooled is not None:
            pooled.close()
        if self._has_segment:
            objects.segments.withdraw()
        place.leave(objects.world, _LEAVE_SECONDS)

    # --- values ---
    def store(self, key: bytes, parts: Sequence[Part], config: ReplicateConfig, *, replace: bool) -> int:
        """Store the parts, none of them empty, one after another under a key: 0 or a code.

        A key that exists keeps its value, which is no error, unless `replace`.
        """
        objects = self.objects
        if objects is None or not key:
            return ErrorCode.INVALID_PARAMS
        if replace:
            self.sessions.overtake(objects, key)
        code = config_code(config)
        if code:
            return code
        chosen = None if config is PLAIN else config
        if replace:
            return objects.replace(key, parts, chosen)
        done = objects.write(key, parts, chosen)
        return ErrorCode.OK if done == ErrorCode.OBJECT_ALREADY_EXISTS else done

    def read(self, key: bytes, take: Callable[[int, int], R]) -> R | int:
        """What `take(address, nbytes)` makes of a value (`Objects.read`), or a code."""
        objects = self.objects
        if objects is None or not key:
            return ErrorCode.OBJECT_NOT_FOUND
        return objects.read(key, take)
