"""Mooncake Store on one host: over TCP, and by the shared memory of its client process.

A master, and a client process (`mooncake_client`) whose memory holds the objects. Over TCP this process is a second
client, without memory of its own. By shared memory it is a "dummy" client of that process: requests go to it, and it
copies between a pool that both map and its segment.
"""

import ctypes
import os
import socket
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch

from nanokv.bench.peers.base import Guarantees, System, SystemFailed
from nanokv.bench.peers.server import Server

_HOST = "127.0.0.1"
_MASTER, _METRICS, _CLIENT = 50051, 19003, 50052  #: ports: the network is this system's own
_MIB = 1 << 20
#: A connection is kept from one transfer to the next, which is off by default; nothing is counted.
ENVIRONMENT = {"MC_FORCE_TCP": "1", "MC_TCP_ENABLE_CONNECTION_POOL": "1", "MC_STORE_CLIENT_METRIC": "0"}
_LIBRARIES = {"libibverbs.so.1": "libibverbs1", "libnuma.so.1": "libnuma1", "libcurl.so.4": "libcurl4"}


def _has(library: str) -> bool:
    with suppress(OSError):
        return bool(ctypes.CDLL(library))
    return False


class _Mooncake(System):
    module = "mooncake"
    packages: ClassVar[tuple[str, ...]] = ("mooncake-transfer-engine-non-cuda",)
    everywhere = True

    @classmethod
    def why_not(cls) -> str | None:
        why = super().why_not()
        missing = [name for name in _LIBRARIES if not _has(name)]
        if why is None and missing:
            packages = " ".join(_LIBRARIES[name] for name in missing)
            return f"{', '.join(missing)} cannot be loaded (Debian: {packages})"
        return why

    def start(self) -> None:
        os.environ.update(ENVIRONMENT)
        room = (2 * self.ring.nbytes >> 20) + 64  # it evicts before its segment is full
        master = [f"-rpc_address={_HOST}", f"-rpc_port={_MASTER}"]
        master += [f"-metrics_host={_HOST}", f"-metrics_port={_METRICS}", "-enable_http_metadata_server=false"]
        holder = [f"-host={_HOST}", f"-port={_CLIENT}", f"-master_server_address={_HOST}:{_MASTER}"]
        holder += ["-metadata_server=P2PHANDSHAKE", f"-global_segment_size={room}MB", "-protocol=tcp"]
        folder = self.folder()
        self._serve(folder, "mooncake_master", master, _MASTER)
        self._serve(folder, "mooncake_client", holder, _CLIENT)
        from mooncake.store import MooncakeDistributedStore

        self._store: Any = MooncakeDistributedStore()
        self._checked("setup", self._connect())
        self.stack.callback(self._store.close)

    def _serve(self, folder: Path, program: str, options: list[str], port: int) -> None:
        """Start a program of the package, and wait until it listens."""
        package = find_spec("mooncake")
        assert package is not None and package.origin is not None
        command: list[str | Path] = [Path(package.origin).parent / program, *options]
        Server(command, folder / program, self.stack, ENVIRONMENT).until(lambda: _listens(port))

    @abstractmethod
    def _connect(self) -> int: ...

    def _checked(self, what: str, code: int, wanted: int = 0) -> None:
        if code != wanted:
            raise SystemFailed(f"{what} returned {code}, not {wanted}")

    def put(self, key: str, tensor: torch.Tensor) -> None:
        self._checked("put_from", self._store.put_from(key, tensor.data_ptr(), self.ring.size))

    def get_into(self, key: str, tensor: torch.Tensor) -> None:
        self._checked("get_into", self._store.get_into(key, tensor.data_ptr(), self.ring.size), self.ring.size)

    def exists(self, key: str) -> bool:
        return bool(self._store.is_exist(key) == 1)

    def remove(self, key: str) -> None:
        """Remove by force: without it, what was read in the last seconds stays."""
        self._checked("remove", self._store.remove(key, True))

    def exists_many(self, keys: Sequence[str]) -> Sequence[bool]:
        return [found == 1 for found in self._store.batch_is_exist(keys)]


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection((_HOST, port), timeout=1.0):
        return True
    return False


class MooncakeTCP(_Mooncake):
    """`put_from` and `get_into` of registered buffers, over TCP to the process that has the memory."""

    name = "Mooncake TCP"
    guarantees = Guarantees(
        keys="yes",
        allocation="by the master, which is asked before and told after each put",
        process="the memory is another process's, which receives and sends each time; the master is a third one",
        copies="by the kernel's TCP over loopback, into a socket and out of it",
        checksum="none",
        promise="every client of the master can get the object, which has one copy",
    )

    def _connect(self) -> int:
        local = max(64 * _MIB, 4 * self.ring.size)
        return int(self._store.setup(_HOST, "P2PHANDSHAKE", 0, local, "tcp", "", f"{_HOST}:{_MASTER}"))

    def buffer(self) -> torch.Tensor:
        tensor = super().buffer()
        self._checked("register_buffer", self._store.register_buffer(tensor.data_ptr(), self.ring.size))
        return tensor


class MooncakeSharedMemory(_Mooncake):
    """`put_from` and `get_into` of buffers in the pool that this process shares with the one that has the memory."""

    name = "Mooncake shared memory"
    guarantees = MooncakeTCP.guarantees._replace(
        process="the memory is another process's, which is asked and copies each time; the master is a third one",
        copies="1 and 1, by the other process, if the tensor is in its pool: engines copy it in and out, not counted",
    )

    def _connect(self) -> int:
        pool = 64 * _MIB + 4 * self.ring.size
        return int(self._store.setup_dummy(pool, pool, f"{_HOST}:{_CLIENT}"))

    def buffer(self) -> torch.Tensor:
        address = self._store.alloc_from_mem_pool(self.ring.size)
        if not address:
            raise SystemFailed("alloc_from_mem_pool returned no memory")
        self._checked("register_buffer", self._store.register_buffer(address, self.ring.size))
        return torch.frombuffer((ctypes.c_uint8 * self.ring.size).from_address(address), dtype=torch.uint8)
