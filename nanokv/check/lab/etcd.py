"""An etcd of one member, which can be killed and started again with what it had stored."""

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

END_SECONDS = 10.0  #: for a process that was killed


class Etcd:
    """An etcd that runs from now on. It may not answer yet: members wait for it.

    Args:
        folder: for its data and its log, `etcd.log`.
        address: of its interface.
        clients, peers: its ports.
        enter: begins a command line that runs where it is to run.
        own_session: whether signals of the terminal do not reach it, so that members end before it does.
    """

    def __init__(
        self,
        folder: Path,
        address: str,
        clients: int,
        peers: int,
        enter: Sequence[str] = (),
        *,
        own_session: bool = True,
    ) -> None:
        client, peer = (f"http://{address}:{port}" for port in (clients, peers))
        options = {
            "name": "one",
            "data-dir": str(folder / "etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"one={peer}",
            "logger": "zap",
            "log-outputs": str(folder / "etcd.log"),
        }
        self._command = [*enter, "etcd", *(f"--{option}={value}" for option, value in options.items())]
        self._own_session = own_session
        self._process = self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        nowhere = subprocess.DEVNULL
        return subprocess.Popen(
            self._command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=self._own_session
        )

    def kill(self) -> None:
        """SIGKILL, and wait until it has ended."""
        self._process.kill()
        self._process.wait(END_SECONDS)

    def start(self) -> None:
        """Start it again after `kill`, with what it had stored."""
        self._process = self._started()


def is_installed() -> bool:
    """Whether this machine has an etcd."""
    return shutil.which("etcd") is not None


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
