"""Rank 1 as a process of its own; the measured process and it exchange lines of JSON.

`python -m nanokv.bench.suite.other_process` serves until its input ends.
"""

import importlib
import json
import queue
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any

from nanokv import NanoKVCache
from nanokv.bench.suite.environment import child_environment
from nanokv.bench.suite.owner import PATIENCE, OwnerHere

IMPATIENCE = 2.0  #: seconds for the other process to end, after an error here: it may be waiting for this one
STARTUP = 120.0  #: seconds for the first answer: imports torch, and compiles if no process has done it yet


class PeerFailed(Exception):
    """The other process reported an error, ended, or did not answer."""


class Peer:
    """The other process; an Owner. The end of its `with` block ends the process."""

    def __init__(self) -> None:
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "nanokv.bench.suite.other_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
            process_group=0,  # Ctrl-C is for this process, which ends the other one
        )
        self._listener = threading.Thread(target=self._listen, name="nanokv.bench.suite.other_process", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def tell(self, do: str, **what: Any) -> None:
        """Send a request."""
        assert self._process.stdin is not None
        try:
            print(json.dumps({"do": do} | what), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise PeerFailed("the other process has ended") from None

    def answer(self, timeout: float = 2 * PATIENCE) -> Any:
        """The answer to the oldest request.

        Raises:
            PeerFailed: the answer is an error, or there is none.
        """
        try:
            answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise PeerFailed(f"the other process did not answer in {timeout:.0f} s") from None
        if answer is None:
            raise PeerFailed("the other process has ended; its messages are above")
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return answer["result"]

    def ask(self, do: str, **what: Any) -> Any:
        """Send a request and wait for the answer."""
        self.tell(do, **what)
        return self.answer()

    def call(self, function: str, **what: Any) -> Any:
        """Call a function of the bench there, "module:function", with that process' cache and these arguments."""
        return self.ask("call", function=function, **what)

    def digest(self, key: str) -> str:
        return str(self.ask("digest", key=key))

    def listen(self) -> None:
        self.ask("listen")

    def stored(self, count: int) -> list[tuple[int, int]]:
        return [(key_hash, when) for key_hash, when in self.ask("stored", count=count)]

    def await_each(self, keys: list[str]) -> None:
        self.ask("await_each", keys=keys)

    def woken(self, count: int) -> list[int]:
        return [int(when) for when in self.ask("woken", count=count)]

    def stop(self, patience: float = PATIENCE) -> None:
        """End the process by the end of its input; kill it if that is not enough after `patience` seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(PATIENCE)
        self._process.stdout.close()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(PATIENCE if kind is None else IMPATIENCE)


class Server:
    """The other end: serves requests, one after the other."""

    def __init__(self) -> None:
        self._cache: NanoKVCache | None = None
        self._owner: OwnerHere | None = None

    def do(self, do: str, **what: Any) -> Any:
        """Serve one request."""
        if do == "open":
            self.close()  # the world that a failed measurement left open
            self._cache = NanoKVCache(**what)
            self._owner = OwnerHere(self._cache)
            return None
        if do == "close":
            self.close()
            return None
        if do == "call":
            module, _, name = what.pop("function").partition(":")
            assert module.startswith("nanokv.bench."), module
            return getattr(importlib.import_module(module), name)(self._cache, **what)
        assert do in ("digest", "listen", "stored", "await_each", "woken"), do
        return getattr(self._owner, do)(**what)

    def close(self) -> None:
        """Leave the world."""
        cache, self._cache, self._owner = self._cache, None, None
        if cache is not None:
            cache.close()


def main() -> None:
    """Serve requests until standard input ends."""
    server = Server()
    print(json.dumps({"result": "ready"}), flush=True)
    for line in sys.stdin:
        try:
            answer = {"result": server.do(**json.loads(line))}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    server.close()


if __name__ == "__main__":
    main()
