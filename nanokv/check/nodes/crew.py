"""The processes of the nodes as the check sees them: it starts them, has them do something, kills and stops them."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nanokv.check.lab.layout import Host, LabLayout
from nanokv.check.report import CheckFailure

PATIENCE = 120.0  #: seconds for an answer; the longest, of `empty` and `pause`, take seconds. More is a hang
GOODBYE = 10.0  #: seconds for a node to leave by itself


class NodeProcess:
    """The process of one node. It is there at once; `joined` waits until it is a member.

    All methods raise CheckFailure if it ended, failed, or did not answer for PATIENCE seconds.
    """

    def __init__(self, layout: LabLayout, host: Host, settings: dict[str, Any]) -> None:
        self.name = host.name
        self._log = layout.folder / f"{host.name}.{settings['run']}.log"
        environment = os.environ | {
            # -P and sys.path: nodes import what this process imports
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
            "UCX_TLS": "tcp,self",  # else UCX sees that all are on one host, and takes its shared memory
        }
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*host.enter, sys.executable, "-P", "-m", "nanokv.check.nodes.node", json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env=environment,
            )
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._answers.put(json.loads(line))
        self._answers.put(None)

    def joined(self) -> list[str]:
        """Wait until it is a member. Returns the members that it knows."""
        names: list[str] = self._answer("join the cluster")
        return names

    def ask(self, command: str, *arguments: Any) -> Any:
        """Have it do something, and wait for the answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps([command, *arguments]) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise CheckFailure(f"node {self.name} ended unexpectedly: {self._tail()}") from None
        return self._answer(command)

    def _answer(self, what: str) -> Any:
        try:
            answer = self._answers.get(timeout=PATIENCE)
        except queue.Empty:
            raise CheckFailure(f"node {self.name} hangs: it did not {what} within {PATIENCE:.0f} s") from None
        if answer is None:
            raise CheckFailure(f"node {self.name} ended unexpectedly, told to {what}: {self._tail()}")
        if "error" in answer:
            raise CheckFailure(f"node {self.name} failed, told to {what}: {answer['error']}; {self._tail()}")
        return answer["answer"]

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-1500:].strip()

    def kill(self) -> None:
        """SIGKILL, and wait until it has ended."""
        self.process.kill()
        self.end()

    def stop(self) -> None:
        """SIGSTOP. It has stopped when this returns."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Let it leave, and kill it if it does not. Idempotent."""
        if self.process.poll() is None:
            self.go_on()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(GOODBYE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(GOODBYE)
        self._listener.join()


class Crew(contextlib.AbstractContextManager["Crew"]):
    """A node on each host of a layout. Used in a `with` block; at its end no process is left.

    Args:
        options: of `NanoKVCluster`, for each node.
        mutant: one of `mutants.MUTANTS`; "": none.
    """

    def __init__(self, layout: LabLayout, options: dict[str, Any], mutant: str = "") -> None:
        self._layout, self._options, self._mutant = layout, options, mutant
        self.hosts = {host.name: host for host in layout.hosts}
        self.names = sorted(self.hosts)
        self.runs = dict.fromkeys(self.names, -1)  #: how often each was started again
        self.nodes: dict[str, NodeProcess] = {}
        try:
            for name in self.names:
                self.start(name)
            for node in self.nodes.values():
                node.joined()
        except BaseException:
            self.stop()
            raise

    def start(self, name: str) -> NodeProcess:
        """Start a node that is not there, in a new process."""
        host = self.hosts[name]
        self.runs[name] += 1
        options = {"node": name, "bind": host.address, "devices": host.device} | self._options
        registry, run = self._layout.registry, self.runs[name]
        settings = {"registry": registry, "options": options, "names": self.names, "run": run, "mutant": self._mutant}
        self.nodes[name] = NodeProcess(self._layout, host, settings)
        return self.nodes[name]

    def kill(self, name: str) -> None:
        """SIGKILL to a node; `start` brings it back."""
        self.nodes.pop(name).kill()

    def ask_each(self, command: str, *arguments: Any, only: Iterable[str] | None = None) -> dict[str, Any]:
        """Have all nodes do something at the same time. Returns their answers, by name."""
        names = self.names if only is None else list(only)
        with ThreadPoolExecutor(len(names)) as pool:
            answers = pool.map(lambda name: self.nodes[name].ask(command, *arguments), names)
            return dict(zip(names, answers, strict=True))

    def stop(self) -> None:
        """End all nodes. Idempotent."""
        with ThreadPoolExecutor(max(len(self.nodes), 1)) as pool:
            list(pool.map(NodeProcess.end, self.nodes.values()))

    def __exit__(self, *error: object) -> None:
        self.stop()
