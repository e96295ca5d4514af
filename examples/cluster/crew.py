"""The processes of the nodes as the demo sees them: it starts them, talks to them, kills one, and always ends them."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from nanokv.check.lab.layout import Host, LabLayout
from nanokv.tools.demo.job import send

SILENCE = 90.0  #: seconds without any message after which the demo has failed; compiling takes some of them
GOODBYE = 10.0  #: seconds for nodes to leave by themselves

Message = dict[str, Any]


class DemoFailed(Exception):
    """A node failed, ended, or sent no message for too long."""


class Crew(contextlib.AbstractContextManager["Crew"]):
    """A process for each host of a layout. Used in a `with` block; at its end no process is left."""

    def __init__(self, layout: LabLayout, **settings: Any) -> None:
        self._inbox: queue.Queue[tuple[str, Message]] = queue.Queue()
        self._folder, self._registry = layout.folder, layout.registry
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._killed: set[str] = set()
        try:
            for host in layout.hosts:
                self._start(host, settings)
        except BaseException:
            self.stop()
            raise

    def _start(self, host: Host, settings: Message) -> None:
        options = {"node": host.name, "bind": host.address}
        arguments = json.dumps({"registry": self._registry, "options": options} | settings)
        # -P and sys.path: nodes import what this process imports
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",
        }
        with self._log(host.name).open("wb") as log:
            process = self._processes[host.name] = subprocess.Popen(
                [*host.enter, sys.executable, "-P", "-m", "examples.cluster.node", arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env=environment,
            )
        threading.Thread(target=self._listen, args=(host.name, process), daemon=True).start()

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _listen(self, name: str, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._inbox.put((name, json.loads(line)))
        self._inbox.put((name, {"event": "ended"}))

    def give(self, name: str, do: str, **arguments: Any) -> None:
        """Give a node something to do."""
        stream = self._processes[name].stdin
        assert stream is not None
        try:
            send(stream, {"do": do} | arguments)
        except BrokenPipeError:
            raise DemoFailed(self._ended(name)) from None

    def listen(self) -> tuple[str, Message]:
        """The next message, and the name of its node.

        Raises:
            DemoFailed: a node reports an error, or has ended unkilled, or no message came for SILENCE seconds.
        """
        end = time.monotonic() + SILENCE
        while True:
            try:
                name, message = self._inbox.get(timeout=max(end - time.monotonic(), 0.0))
            except queue.Empty:
                raise DemoFailed(f"no node said anything for {SILENCE:.0f} s") from None
            if message["event"] == "ended" and name in self._killed:
                continue
            if message["event"] == "ended":
                raise DemoFailed(self._ended(name))
            if message["event"] == "failed":
                raise DemoFailed(f"node {name} failed: {message['error']}\n{self._tail(name)}")
            return name, message

    def _ended(self, name: str) -> str:
        status = self._processes[name].wait(GOODBYE)  # it has closed its pipe
        return f"node {name} ended unexpectedly (exit status {status})\n{self._tail(name)}"

    def _tail(self, name: str) -> str:
        """The end of what a node and etcd have logged."""
        logs = (self._log(name), self._folder / "etcd.log")
        return "\n".join(log.read_text(errors="replace")[-1500:] for log in logs if log.exists()).strip()

    def kill(self, name: str) -> float:
        """SIGKILL to a node. Returns when that was, by `time.monotonic`."""
        self._killed.add(name)
        when = time.monotonic()
        self._processes[name].kill()
        return when

    def stop(self) -> None:
        """End all nodes: by SIGTERM, and those that do not leave in time by SIGKILL. Idempotent."""
        for process in self._processes.values():
            process.terminate()
        end = time.monotonic() + GOODBYE
        for process in self._processes.values():
            try:
                process.wait(max(end - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(GOODBYE)
            with contextlib.suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.close()

    def __exit__(self, *error: object) -> None:
        self.stop()
