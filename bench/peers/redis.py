"""Redis over a unix socket: its own server, without persistence, and the client with hiredis."""

import shutil
import subprocess
from collections.abc import Sequence

import numpy as np
import torch

from nanokv.bench.peers.base import Guarantees, System, SystemFailed
from nanokv.bench.peers.server import Server

_PROGRAM = "redis-server"


class Redis(System):
    """SET, GET, EXISTS, UNLINK."""

    name = "Redis"
    module = "redis"
    packages = ("redis", "hiredis")
    guarantees = Guarantees(
        keys="yes",
        allocation="by the server",
        process="the memory is the server's, which receives and answers each time",
        copies="into and out of a socket, and in the client: SET packs them, GET returns bytes that are copied",
        checksum="none",
        promise="every client of the server can get the object; nothing is on disk",
    )

    @classmethod
    def why_not(cls) -> str | None:
        if shutil.which(_PROGRAM) is None:
            return f"there is no {_PROGRAM} (Debian: redis-server)"
        return super().why_not()

    @classmethod
    def versions(cls) -> dict[str, str]:
        program = shutil.which(_PROGRAM)
        if program is None:
            return super().versions()
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
        words = dict(word.split("=", 1) for word in said.split() if "=" in word)
        return super().versions() | {"redis-server": words.get("v", "unknown")}

    def start(self) -> None:
        import redis

        folder = self.folder()
        socket = folder / "redis.sock"
        options = {
            "port": "0",
            "unixsocket": socket,
            "unixsocketperm": "700",
            "save": "",
            "appendonly": "no",
            "dir": folder,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        server = Server([_PROGRAM, *words], folder / "log", self.stack)
        server.until(socket.exists)
        self._client = redis.Redis(unix_socket_path=str(socket), single_connection_client=True)
        self.stack.callback(self._client.close)
        self._client.ping()

    def put(self, key: str, tensor: torch.Tensor) -> None:
        self._client.set(key, tensor.numpy().data)

    def get_into(self, key: str, tensor: torch.Tensor) -> None:
        value = self._client.get(key)
        if value is None:
            raise SystemFailed("Redis does not have the object")
        tensor.numpy()[:] = np.frombuffer(value, np.uint8)

    def exists(self, key: str) -> bool:
        return bool(self._client.exists(key))

    def remove(self, key: str) -> None:
        if self._client.unlink(key) != 1:
            raise SystemFailed("Redis did not have the object that was removed")

    def exists_many(self, keys: Sequence[str]) -> Sequence[bool]:
        """One EXISTS with all keys, which answers how many there are."""
        return [True] * int(self._client.exists(*keys))
