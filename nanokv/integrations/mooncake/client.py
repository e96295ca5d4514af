"""One client of a store: how it comes and goes, and what it has meanwhile."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from nanokv.arguments import size as parsed_size
from nanokv.cache.cache import NanoKVCache
from nanokv.errors import InvalidArgument, NanoKVError
from nanokv.integrations.mooncake import place
from nanokv.integrations.mooncake.arguments import PLAIN, config_code, number
from nanokv.integrations.mooncake.codes import Code
from nanokv.integrations.mooncake.config import ReplicateConfig
from nanokv.integrations.mooncake.local_buffer import LocalBuffer
from nanokv.integrations.mooncake.memory import Part, Registered
from nanokv.integrations.mooncake.objects import Objects
from nanokv.integrations.mooncake.replicas import Tasks
from nanokv.integrations.mooncake.sessions import Sessions

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


class Client:
    """A client, before it is set up, while it is, and after its end.

    Attributes:
        registered: the memory that it may read and write.
        sessions, tasks: what it has begun.
        local_buffer: bytes; a value that a call copies has no more.
        pooled: the local buffer as memory, for pools; None for a client that is not set up.
    """

    def __init__(self) -> None:
        self.registered, self.sessions, self.tasks = Registered(), Sessions(), Tasks()
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
            return Code.INVALID_PARAMS
        try:
            for name in ("global_segment_size", "local_buffer_size"):
                given[name] = parsed_size(name, given.get(name, DEFAULT_SIZE))
        except InvalidArgument:
            return Code.INVALID_PARAMS
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
            return Code.NOT_SUPPORTED
        if protocol.lower() not in _PROTOCOLS or not local_hostname:
            return Code.INTERNAL_ERROR if local_hostname else Code.INVALID_PARAMS
        if self.is_set_up:
            return Code.OK  # as the real one
        return self._join(place.Setup(local_hostname, master_server_addr, tenant_id, segment), local_buffer)

    def _join(self, setup: place.Setup, local_buffer: int) -> int:
        try:
            world = place.join(setup)
        except InvalidArgument as error:
            logger.error("NanoKV: %s", error)
            return Code.INVALID_PARAMS
        except NanoKVError as error:
            logger.error("NanoKV: the store cannot be joined: %s", error)
            return Code.INTERNAL_ERROR
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
            return Code.INTERNAL_ERROR
        except BaseException:
            world.close()
            raise
        return Code.OK

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
            return Code.INVALID_PARAMS
        if replace:
            self.sessions.overtake(objects, key)
        code = config_code(config)
        if code:
            return code
        chosen = None if config is PLAIN else config
        if replace:
            return objects.replace(key, parts, chosen)
        done = objects.write(key, parts, chosen)
        return Code.OK if done == Code.OBJECT_ALREADY_EXISTS else done

    def read(self, key: bytes, take: Callable[[int, int], R]) -> R | int:
        """What `take(address, nbytes)` makes of a value (`Objects.read`), or a code."""
        objects = self.objects
        if objects is None or not key:
            return Code.OBJECT_NOT_FOUND
        return objects.read(key, take)
