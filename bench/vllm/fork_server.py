"""Processes of engines, forked from one that has imported vLLM: an engine is spared the 6.7 s of CPU of its imports.

The server starts with the first engine of a process, and ends with that process. What is forked has imported modules,
and nothing else: no engine, no thread. It has the environment, PYTHONPATH too, and the files that it is given.
"""

import atexit
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

MOST = 1 << 17  #: bytes of an environment
END_SECONDS = 30.0
MODULES = (
    "nanokv.bench.vllm.child",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.worker.cpu_worker",
    "nanokv.integrations.vllm",
)
_starting = threading.Lock()
_servers: list[socket.socket] = []  #: of this process, at most one


class ChildProcess:
    """A process that runs `child.main`; it has those methods of `subprocess.Popen` that an `Engine` needs.

    Args:
        environment: all of it.
        log: where everything goes that is no answer.
    """

    def __init__(self, environment: dict[str, str], log: IO[str]) -> None:
        their_in, our_out = os.pipe()
        our_in, their_out = os.pipe()
        with _starting:
            server = _server(log)
            socket.send_fds(server, [json.dumps(environment).encode()], [their_in, their_out, log.fileno()])
            answer, fds, _, _ = socket.recv_fds(server, 32, 1)
        os.close(their_in)
        os.close(their_out)
        self.pid = int(answer or -1)
        (self._handle,) = fds  # a pidfd: the number of a process that has ended may be another one's
        self.stdin, self.stdout = os.fdopen(our_out, "w", encoding="utf-8"), os.fdopen(our_in, encoding="utf-8")

    def poll(self) -> int | None:
        """0 once it has ended, however it did; None before."""
        return 0 if select.select([self._handle], [], [], 0)[0] else None

    def wait(self, timeout: float) -> None:
        """Wait until it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        if not select.select([self._handle], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("an engine", timeout)

    def kill(self) -> None:
        """SIGKILL."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._handle)


def _server(log: IO[str]) -> socket.socket:
    if not _servers:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MOST)
        command = [sys.executable, "-m", "nanokv.bench.vllm.fork_server", str(theirs.fileno())]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}  # read when torch is loaded
        nowhere, fds = subprocess.DEVNULL, [theirs.fileno()]
        process = subprocess.Popen(command, pass_fds=fds, stdin=nowhere, stdout=nowhere, stderr=log, env=environment)
        theirs.close()
        _servers.append(ours)
        atexit.register(_end, ours, process)
    return _servers[0]


def _end(server: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    server.close()
    process.wait(END_SECONDS)


def main(number: int) -> int:
    """Import, then fork a process for each message, until the other end hangs up."""
    for name in MODULES:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever ends is gone at once
    connection = socket.socket(fileno=number)
    while True:
        message, fds, _, _ = socket.recv_fds(connection, MOST, 3)
        if not message:
            return 0
        threads = len(list(Path("/proc/self/task").iterdir()))
        assert threads == 1, f"the server has {threads} threads: a fork would have only one of them"
        pid = os.fork()
        if pid == 0:
            connection.close()
            return _become(json.loads(message), fds)
        handle = os.pidfd_open(pid)
        socket.send_fds(connection, [str(pid).encode()], [handle])
        for fd in (*fds, handle):
            os.close(fd)


def _become(environment: dict[str, str], fds: list[int]) -> int:
    """Be an engine's process, whose stdin, stdout and stderr are these files."""
    from nanokv.bench.vllm import child

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(child.SETTINGS | environment)
    # Python reads this variable at its start only, which was the server's
    sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.stdin = os.fdopen(0, encoding="utf-8")
    child.main()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
