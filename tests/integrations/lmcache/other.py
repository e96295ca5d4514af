"""A process with a connector, or an adapter, that waits to be killed."""

import asyncio
import threading
from typing import Any

from nanokv.check.command_process import Commands, Program
from tests.integrations.lmcache import parts
from tests.integrations.lmcache.calls import load, look_up, store

Numbers = tuple[int, ...]  #: of chunks, whose bytes are made from them


class OtherCommands(Commands):
    """What it does, in its process: each command returns the bytes of chunks that it was to read first, or None."""

    def connector(self, settings: dict[str, Any], read: Numbers = (), put: Numbers = ()) -> list[bytes | None]:
        """Read, and store, with a connector."""
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        self._made = made = parts.Backends(loop, settings)
        found = [made.remote.get_blocking(parts.key(number)) for number in read]
        for number in put:
            made.remote.submit_put_task(parts.key(number), made.chunk(number)).result(60)
        return [None if each is None else parts.content(each) for each in found]

    def adapter(
        self, settings: dict[str, Any], read: Numbers = (), put: Numbers = (), lock: Numbers = ()
    ) -> list[bytes | None]:
        """Read, store, and lock, with an adapter."""
        self._adapter = adapter = parts.adapter(parts.spec(**settings))
        objects = [parts.memory() for _ in read]
        there = load(adapter, [parts.object_key(n) for n in read], objects) if read else []
        if put:
            store(adapter, [parts.object_key(n) for n in put], [parts.memory(n) for n in put])
        if lock:
            assert all(look_up(adapter, [parts.object_key(n) for n in lock]))
        return [parts.content(each) if is_there else None for each, is_there in zip(objects, there, strict=True)]


class Other(Program):
    """That process, seen from a test, when it has done a command. The end of a `with` block kills it.

    Attributes:
        found: what it has read.
    """

    def __init__(self, kind: str, settings: dict[str, Any], **what: Numbers) -> None:
        super().__init__("the other process", OtherCommands)
        self.found = self.ask(kind, settings, **what)

    def __exit__(self, *error: object) -> None:
        self.kill()
