"""The worker processes as the parent sees them: it starts them together, listens to them, and always ends them."""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import IO, Any

from nanokv.tools.demo.job import ROLES, Job, send

SILENCE = 120.0  #: seconds without any message after which the demo has failed; compiling takes some of them
GOODBYE = 10.0  #: seconds for workers to leave by themselves
NOTICE = 1.0  #: seconds: the kernel closes the sockets of a killed worker some time before its parent sees its end

Message = dict[str, Any]


class DemoFailed(Exception):
    """A worker failed, ended, or sent no message for too long."""


class Crew(AbstractContextManager["Crew"]):
    """One process per role. Used in a `with` block; at its end no process is left."""

    def __init__(self, seed: int) -> None:
        self._inbox: queue.Queue[tuple[str, Message]] = queue.Queue()
        self._logs: dict[str, IO[bytes]] = {}
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._listeners: list[threading.Thread] = []
        try:
            for role in ROLES:
                self._start(role, seed)
        except BaseException:
            self.stop()
            raise

    def _start(self, role: str, seed: int) -> None:
        self._logs[role] = tempfile.TemporaryFile()  # noqa: SIM115 - `stop` closes it
        # -P and sys.path: workers import what this process imports, not what lies in the working directory
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        process = self._processes[role] = subprocess.Popen(
            [sys.executable, "-P", "-m", "nanokv.tools.demo.worker", role, str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._logs[role],
            text=True,
            encoding="utf-8",
            env=environment,
        )
        listener = threading.Thread(target=self._listen, args=(role, process), name=f"demo-{role}", daemon=True)
        self._listeners.append(listener)
        listener.start()

    def _listen(self, role: str, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._inbox.put((role, json.loads(line)))
        self._inbox.put((role, {"event": "ended"}))

    @property
    def pids(self) -> list[int]:
        """The process ids of all workers."""
        return [process.pid for process in self._processes.values()]

    def give(self, role: str, job: Job) -> None:
        """Give a worker a job."""
        self._command(role, asdict(job))

    def go_on(self, role: str) -> None:
        """Let a rank that is done leave the world."""
        self._command(role, {})

    def _command(self, role: str, command: Message) -> None:
        stream = self._processes[role].stdin
        assert stream is not None
        try:
            send(stream, command)
        except BrokenPipeError:
            raise DemoFailed(self._ended(role)) from None

    def listen(self) -> tuple[str, Message]:
        """The next message, and the role of its worker.

        Raises:
            DemoFailed: the worker reports an error, or has ended, or no worker sent a message for SILENCE seconds.
        """
        try:
            role, message = self._inbox.get(timeout=SILENCE)
        except queue.Empty:
            raise DemoFailed(f"no worker said anything for {SILENCE:.0f} s") from None
        if message["event"] == "failed":
            if killed := self._killed():  # this worker noticed before their parent
                raise DemoFailed(self._ended(killed))
            raise DemoFailed(f"the {role} process failed: {message['error']}\n{self._log(role)}")
        if message["event"] == "ended":
            raise DemoFailed(self._ended(role))
        return role, message

    def _killed(self) -> str | None:
        """The role of a worker that a signal has ended; None if there is none within NOTICE."""
        deadline = time.monotonic() + NOTICE
        while True:
            for role, process in self._processes.items():
                if (process.poll() or 0) < 0:
                    return role
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)

    def _ended(self, role: str) -> str:
        try:
            status: object = self._processes[role].wait(GOODBYE)
        except subprocess.TimeoutExpired:
            status = "unknown"
        return f"the {role} process ended unexpectedly (exit status {status})\n{self._log(role)}"

    def _log(self, role: str) -> str:
        """The end of a worker's stderr."""
        log = self._logs[role]
        log.seek(0)
        return log.read().decode(errors="replace")[-2000:].strip()

    def stop(self) -> None:
        """End all workers: by SIGTERM, and those that do not leave in time by SIGKILL. Idempotent."""
        for process in self._processes.values():
            process.terminate()
        deadline = time.monotonic() + GOODBYE
        for process in self._processes.values():
            try:
                process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for listener in self._listeners:
            listener.join(GOODBYE)
        streams = [stream for process in self._processes.values() for stream in (process.stdin, process.stdout)]
        for stream in (*streams, *self._logs.values()):
            if stream is not None:
                stream.close()

    def __exit__(self, *error: object) -> None:
        self.stop()
