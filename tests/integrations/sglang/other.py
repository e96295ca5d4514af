"""A process that stores objects and waits to be killed."""

from functools import partial
from typing import Any

import torch

from nanokv.check.command_process import Commands, Program
from nanokv.integrations.joining import join, parse
from nanokv.keys.identity import Identity


class OtherCommands(Commands):
    """What it does, in its process."""

    def __init__(self, settings: dict[str, Any], model: str) -> None:
        self._world = join(parse(settings), Identity(model)).world

    def store(self, objects: dict[str, bytes], unfinished: bool, own: bool) -> None:
        """Store objects, or leave them half-written; in its own segment, or in the first one."""
        segment = self._world.rank if own else 0
        for key, value in objects.items():
            if unfinished:
                self._world.open_for_write(key, len(value), preferred_segment=segment)
            else:
                payload = torch.frombuffer(bytearray(value), dtype=torch.uint8)
                self._world.put(key, payload, preferred_segment=segment)


class Other(Program):
    """That process, seen from a test, when it has stored. The end of a `with` block kills it.

    Args:
        backend: whose store and identity it has.
        objects: bytes by key, without the scope.
    """

    def __init__(self, backend: Any, objects: dict[str, bytes], *, unfinished: bool = False, own: bool = True) -> None:
        settings, model = backend.storage_config.extra_config["nanokv"], backend.cache.options.identity.model
        scope = backend.pools.get("kv").scopes[0]
        super().__init__("the other process", partial(OtherCommands, settings, model))
        self.ask("store", {f"{scope}/{key}": value for key, value in objects.items()}, unfinished, own)

    def __exit__(self, *error: object) -> None:
        self.kill()
