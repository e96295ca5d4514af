"""Rank 1 as a process of its own."""

import importlib
from typing import Any

from nanokv import NanoKVCache
from nanokv.bench.suite.environment import child_environment
from nanokv.bench.suite.owner import PATIENCE, OwnerHere
from nanokv.check.command_process import Commands, Program

IMPATIENCE = 2.0  #: seconds for the other process to end, after an error here: it may be waiting for this one
STARTUP = 120.0  #: seconds for the first answer: imports torch, and compiles if no process has done it yet


class PeerCommands(Commands):
    """What the other process does. It goes on after an error, which is raised here."""

    raises = (Exception,)

    def __init__(self) -> None:
        self._cache: NanoKVCache | None = None
        self._owner: OwnerHere | None = None

    def ready(self) -> None:
        """Answers as soon as the process has started."""

    def open(self, **options: Any) -> None:
        """Join a world."""
        self.close()  # the world that a failed measurement left open
        self._cache = NanoKVCache(**options)
        self._owner = OwnerHere(self._cache)

    def call(self, function: str, **what: Any) -> Any:
        """Call a function of the bench with the cache."""
        module, _, name = function.partition(":")
        assert module.startswith("nanokv.bench."), module
        return getattr(importlib.import_module(module), name)(self._cache, **what)

    def __getattr__(self, command: str) -> Any:
        return getattr(self._owner, command)

    def close(self) -> None:
        """Leave the world."""
        cache, self._cache, self._owner = self._cache, None, None
        if cache is not None:
            cache.close()

    at_end = close


class Peer(Program):
    """The other process; an Owner. It starts in the background: the first `answer` waits until it has."""

    patience = 2 * PATIENCE

    def __init__(self) -> None:
        environment = child_environment()
        # Ctrl-C is for this process, which ends the other one
        super().__init__("the other process", PeerCommands, environment=environment, process_group=0)
        self.send("ready")

    def call(self, function: str, **what: Any) -> Any:
        """Call a function of the bench there, "module:function", with that process' cache and these arguments."""
        return self.ask("call", function, **what)

    def digest(self, key: str) -> str:
        return str(self.ask("digest", key))

    def listen(self) -> None:
        self.ask("listen")

    def stored(self, count: int) -> list[tuple[int, int]]:
        return list(self.ask("stored", count))

    def await_each(self, keys: list[str]) -> None:
        self.ask("await_each", keys)

    def woken(self, count: int) -> list[int]:
        return list(self.ask("woken", count))

    def __exit__(self, *error: object) -> None:
        self.end(PATIENCE if error[0] is None else IMPATIENCE)
