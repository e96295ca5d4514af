"""An etcd of its own for tests: started, killed, stopped, restarted with or without its data."""

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nanokv.check.lab.etcd import free_ports
from nanokv.check.machine.rank_process import wait_until
from tests.support.needed import is_needed

__all__ = ["Etcd", "etcd_cluster", "needs_etcd"]

needs_etcd = pytest.mark.skipif(
    shutil.which("etcd") is None and not is_needed("etcd"), reason="there is no etcd on this machine"
)


class Etcd:
    """One etcd process.

    Args:
        folder: for its data and its log.
        peers: the ports for peers of all etcds that belong together, this one's first.
        options: more of its command line.
        scheme: of the port for clients.
    """

    def __init__(self, folder: Path, peers: Sequence[int], options: Sequence[str] = (), scheme: str = "http") -> None:
        self.folder = folder
        self.port = free_ports(1)[0]
        self._peers = peers
        self._options = options
        self._scheme = scheme
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, name: str, credentials: str = "") -> str:
        """Of a cluster in it."""
        return f"etcd://{credentials}127.0.0.1:{self.port}/{name}"

    def begin(self) -> None:
        """Start the process."""
        client, peer = (f"{scheme}://127.0.0.1:{port}" for scheme, port in self._ports())
        members = ",".join(f"m{port}=http://127.0.0.1:{port}" for port in sorted(self._peers))
        options = {
            "name": f"m{self._peers[0]}",
            "data-dir": str(self.folder / "data"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": members,
            "logger": "zap",
            "log-outputs": str(self.folder / "log"),
        }
        command = ["etcd", *(f"--{option}={value}" for option, value in options.items()), *self._options]
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere)

    def start(self) -> "Etcd":
        """Start the process, and wait until it answers."""
        self.begin()
        wait_until("the start of etcd", self.answers, self.log, pause=0.02)
        return self

    def log(self) -> str:
        """The end of what it has told."""
        path = self.folder / "log"
        return path.read_text()[-2000:] if path.exists() else ""

    def answers(self) -> bool:
        """Whether it takes connections, and has a leader; with TLS, only the former."""
        if self._scheme == "https":
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                return bool(json.load(answer)["health"] == "true")
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except (OSError, ValueError):
            return False

    def call(self, path: str, **body: object) -> dict[str, object]:
        """A request to its gateway, as an administrator."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            return dict(json.load(answer))

    def signal(self, number: int) -> None:
        """Send a signal, such as SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, if it runs; returns when it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def restart(self, *, empty: bool = False) -> None:
        """Kill it, and start it again with its data, or without."""
        self.kill()
        if empty:
            shutil.rmtree(self.folder / "data")
        self.start()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """It is stopped by SIGSTOP meanwhile: connections are taken, and nothing is answered."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def _ports(self) -> list[tuple[str, int]]:
        return [(self._scheme, self.port), ("http", self._peers[0])]


@contextlib.contextmanager
def etcd_cluster(
    folder: Path, count: int = 1, options: Sequence[str] = (), scheme: str = "http"
) -> Iterator[list[Etcd]]:
    """Some etcds that belong together, all of which answer."""
    ports = free_ports(count)
    etcds = []
    for port in ports:
        own = folder / f"etcd-{port}"
        own.mkdir()
        etcds.append(Etcd(own, [port, *(other for other in ports if other != port)], options, scheme))
    try:
        for etcd in etcds:
            etcd.begin()
        for etcd in etcds:
            wait_until("the start of etcd", etcd.answers, etcd.log, pause=0.02)
        yield etcds
    finally:
        for etcd in etcds:
            etcd.kill()
