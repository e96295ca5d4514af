"""A node in a process of its own, and the handle by which a test holds one.

The process takes lines of JSON, `[name, argument, ...]`, and answers each with a line. It ends with its input.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import nanokv
from nanokv.cluster import NanoKVCluster
from nanokv.errors import NanoKVError

from .conftest import HEAP_BYTES, PAGE, PATIENCE


def value_of(key: str, nbytes: int) -> torch.Tensor:
    """The bytes that tests put under a key."""
    seed = sum(key.encode()) % 251
    return (torch.arange(nbytes, dtype=torch.int64) * 7 + seed).to(torch.uint8)


class _Commands:
    """What the process does; one method a command."""

    def __init__(self, node: str, url: str, world: dict[str, Any], options: dict[str, Any]) -> None:
        self._world = nanokv.NanoKVCache(HEAP_BYTES, page_bytes=PAGE, **world)
        self._cluster = NanoKVCluster(self._world, url, node=node, **options)

    def nodes(self) -> list[str]:
        """The nodes that it knows."""
        return self._cluster.nodes

    def put(self, key: str, nbytes: int, node: str | None = None) -> None:
        """Put the bytes of a key."""
        target = None if node is None else (node, None)
        self._cluster.put(key, value_of(key, nbytes), preferred_segment=target)

    def get(self, key: str, nbytes: int) -> str:
        """Whether a key has the right bytes: "right", "wrong" or "none"."""
        got = self._cluster.get(key, None)
        return "none" if got is None else "right" if torch.equal(got, value_of(key, nbytes)) else "wrong"

    def puts(self, prefix: str, count: int, nbytes: int, node: str) -> int:
        """Put many at once: how many were stored."""
        keys = [f"{prefix}{i}" for i in range(count)]
        return self._cluster.put_many(
            keys, [value_of(key, nbytes) for key in keys], preferred_segment=(node, None)
        ).count(None)

    def put_forever(self, prefix: str, nbytes: int, node: str) -> None:
        """Answer, and put until the process is killed."""
        print(json.dumps({"answer": None}), flush=True)
        i = 0
        while True:
            keys = [f"{prefix}{i + k}" for k in range(16)]
            self._cluster.put_many(keys, [value_of(key, nbytes) for key in keys], preferred_segment=(node, None))
            i += 16

    def stats(self) -> dict[str, Any]:
        """Its counters."""
        return self._cluster.stats()

    def generation(self) -> int:
        """Of its world, which it does not compare with others."""
        return self._world.generation()

    def close(self) -> None:
        """Leave."""
        self._cluster.close()
        self._world.close()


class NodeProcess:
    """A running process. A command is a call: `node.put("key", 100)`."""

    def __init__(self, node: str, url: str, world: dict[str, Any] | None = None, **options: Any) -> None:
        arguments = json.dumps([node, url, world or {}, {"ttl": 2.0, "timeout": PATIENCE} | options])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.node_process", arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self._answer()

    def __getattr__(self, command: str) -> Any:
        def call(*arguments: Any) -> Any:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps([command, *arguments]) + "\n")
            self._process.stdin.flush()
            return self._answer()

        return call

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the process ended: {self._process.wait()}"
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["answer"]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. A process that it stops has stopped when this returns."""
        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitpid(self._process.pid, os.WUNTRACED)

    def kill(self) -> None:
        """Kill it, and wait until it has ended."""
        self._process.kill()
        self.end()

    def end(self) -> int:
        """Let it end by itself: its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        return self._process.wait(60)


def main() -> None:
    """The process."""
    node, url, world, options = json.loads(sys.argv[1])
    commands = _Commands(node, url, world, options)
    print(json.dumps({"answer": os.getpid()}), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = {"answer": getattr(commands, name)(*arguments)}
        except NanoKVError as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    commands.close()


if __name__ == "__main__":
    main()
