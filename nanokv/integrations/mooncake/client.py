"""The life of a client: set up, healthy, closed; and segments beyond the one of its set-up, which NanoKV has not."""

import logging
from typing import Any

from nanokv.arguments import size as parsed_size
from nanokv.errors import InvalidArgument, NanoKVError
from nanokv.integrations.mooncake import place
from nanokv.integrations.mooncake.codes import Code
from nanokv.integrations.mooncake.local_buffer import LocalBuffer
from nanokv.integrations.mooncake.objects import Objects
from nanokv.integrations.mooncake.replicas import Replicas
from nanokv.integrations.mooncake.values import number

logger = logging.getLogger(__name__)

_DEFAULT_SIZE = 16 << 20  #: bytes, of segment and local buffer of a configuration that names none
_LEAVE_SECONDS = 5.0
_PROTOCOLS = ("tcp", "rdma", "efa", "nvlink", "nvlink_intra", "hip", "barex", "cxl", "ascend", "ub", "ubshmem", "maca")
_MUST = ("local_hostname", "metadata_server")
_NO = {"ret": Code.NOT_SUPPORTED, "segment_ids": []}


class Client(Replicas):
    """How a client comes and goes."""

    def __init__(self) -> None:
        super().__init__()
        self._hostname = ""
        self._has_segment = False
        self._pooled: LocalBuffer | None = None

    def setup(self, *args: Any, **kwargs: Any) -> int:
        """Join the store that a master's address names: 0, or a code. Either of

        - `setup(local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol, rdma_devices,
          master_server_addr, engine=None, enable_ssd_offload=False, ssd_offload_path="", tenant_id="default",
          enable_client_http_server=False, client_http_port=9300)`
        - `setup(config)`, a dict of those by name; only the first two must be there, and sizes may be texts ("16MB").

        No master has to run there, and no metadata server.
        """
        if args and isinstance(args[0], dict) and len(args) == 1 and not kwargs:
            return self._setup_from(args[0])
        if "config" in kwargs and not args:
            return self._setup_from(kwargs["config"])
        return self._setup(*args, **kwargs)

    def _setup_from(self, config: dict[str, Any]) -> int:
        given = {name: config[name] for name in _OF_CONFIG if name in config}
        if not all(given.get(name) for name in _MUST):
            return Code.INVALID_PARAMS
        try:
            for name in ("global_segment_size", "local_buffer_size"):
                given[name] = parsed_size(name, given.get(name, _DEFAULT_SIZE))
        except InvalidArgument:
            return Code.INVALID_PARAMS
        given.setdefault("protocol", "tcp")
        given.setdefault("rdma_devices", "")
        given.setdefault("master_server_addr", "127.0.0.1:50051")
        flags = {name: str(given[name]).lower() in ("1", "true") for name in _FLAGS if name in given}
        return self._setup(**(given | flags))

    def _setup(
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
        if self._objects is not None:
            return Code.OK  # as the real one: it is set up
        return self._join(place.Asked(local_hostname, master_server_addr, tenant_id, segment), local_buffer)

    def _join(self, asked: place.Asked, local_buffer: int) -> int:
        try:
            world = place.join(asked)
        except InvalidArgument as error:
            logger.error("NanoKV: %s", error)
            return Code.INVALID_PARAMS
        except NanoKVError as error:
            logger.error("NanoKV: the store cannot be joined: %s", error)
            return Code.INTERNAL_ERROR
        try:
            segments = place.Segments(world)
            segments.withdraw()  # what a process that had this rank before, and died, may have told
            if asked.segment:
                place.check_memory(world, segments)
            self._hostname = place.named(asked.hostname, list(segments.names().values()))
            self._has_segment = asked.segment > 0
            if self._has_segment:
                segments.announce(self._hostname)
            self._local_buffer = local_buffer
            self._pooled = LocalBuffer(local_buffer, self._registered)
            self._objects = Objects(world, segments)
        except NanoKVError as error:
            logger.error("NanoKV: the store cannot be joined: %s", error)
            world.close()
            return Code.INTERNAL_ERROR
        except BaseException:
            world.close()
            raise
        return Code.OK

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """NOT_SUPPORTED: every client of NanoKV reaches the memory of all others by itself, with `setup`."""
        number("mem_pool_size", mem_pool_size), number("local_buffer_size", local_buffer_size)
        if not isinstance(server_address, str):
            raise TypeError(f"setup_dummy(): incompatible function arguments: {server_address!r} is no str")
        logger.error(
            "NanoKV has no clients of another process (mooncake_client at %s), and setup_dummy is refused: call "
            "setup(...) with the address of the master and global_segment_size=0, which reaches the same memory",
            server_address,
        )
        return Code.NOT_SUPPORTED

    def init_all(self, protocol: str, device_name: str, mount_segment_size: int, /) -> int:
        """Set up with the addresses of this host: 0, or a code; INVALID_PARAMS for a client that is set up."""
        there = self._objects is not None
        done = self._setup(
            "localhost", "P2PHANDSHAKE", mount_segment_size, _DEFAULT_SIZE, protocol, device_name, "127.0.0.1:50051"
        )
        return Code.INVALID_PARAMS if there else done

    def close(self) -> int:
        """Leave the store. The values in this client's segment go with it. Idempotent; `setup` may follow."""
        objects, self._objects = self._set_up, None
        if objects is None or objects.world.closed:  # that of a child of a fork is
            return Code.OK
        self._end_sessions()
        pooled, self._pooled = self._pooled, None
        if pooled is not None:
            pooled.close()
        if self._has_segment:
            objects.segments.withdraw()
        place.leave(objects.world, _LEAVE_SECONDS)
        return Code.OK

    def health_check(self) -> int:
        """0: set up; 1: not, or closed."""
        return int(self._objects is None)

    def get_hostname(self) -> str:
        """The name of this client, and of its segment: host and port."""
        return self._hostname if self._objects is not None else ""

    def _get_pyclient_capsule(self) -> LocalBuffer | None:
        """What pools take their memory from; None for a client that is not set up. The name is the real one's."""
        return self._pooled

    # --- what NanoKV has not ---
    def mount_segment(
        self, path: str, size: int, offset: int = 0, protocol: str = "tcp", location: str = ""
    ) -> dict[str, Any]:
        """Refused: a client of NanoKV has the segment of its set-up, and no other."""
        return dict(_NO)

    def allocate_and_mount_segment(self, size: int, protocol: str = "tcp", location: str = "") -> dict[str, Any]:
        """Refused, as `mount_segment`."""
        return {**_NO, "allocated_size": 0}

    def unmount_segment(self, segment_ids: list[str], grace_period_seconds: int = 0) -> int:
        """Refused, as `mount_segment`."""
        return Code.NOT_SUPPORTED

    def unmount_and_free_segment(self, segment_ids: list[str], grace_period_seconds: int = 0) -> int:
        """Refused, as `mount_segment`."""
        return Code.NOT_SUPPORTED

    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int:
        """0: there is none."""
        return Code.OK

    def get_offload_rpc_read_count(self) -> int:
        """0: nothing is offloaded."""
        return 0


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
