"""A process that stores blocks and waits to be killed."""

from functools import partial
from typing import Any

import torch

from nanokv.check.command_process import Commands, Program
from nanokv.integrations.joining import join, parse
from nanokv.keys.identity import Identity


class NodeCommands(Commands):
    """What it does, in its process."""

    def __init__(self, settings: dict[str, Any], identity: Identity) -> None:
        self._joined = join(parse(settings), identity)

    def store(self, blocks: dict[bytes, bytes], unfinished: bool) -> None:
        """Store blocks in its own segment; or leave them half-written."""
        world = self._joined.world
        for key, value in blocks.items():
            if unfinished:
                world.open_for_write(key, len(value), preferred_segment=world.rank)
            else:
                payload = torch.frombuffer(bytearray(value), dtype=torch.uint8)
                self._joined.cache.put(key, payload, preferred_segment=world.rank)


class OtherNode(Program):
    """That process, seen from a test, when it has stored. The end of a `with` block kills it."""

    def __init__(
        self, settings: dict[str, Any], identity: Identity, blocks: dict[bytes, bytes], *, unfinished: bool = False
    ) -> None:
        mine = Identity(model=identity.model, revision=identity.revision)
        super().__init__("the other node", partial(NodeCommands, settings, mine))
        self.ask("store", blocks, unfinished)

    def __exit__(self, *error: object) -> None:
        self.kill()
