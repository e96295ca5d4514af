"""The owner and the reader as the benchmark sees them: two processes, which are ended with it."""

import tempfile
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from nanokv.bench.nodes.reader import NodeReader
from nanokv.bench.nodes.transports import TRANSPORTS
from nanokv.bench.peers.server import Ours
from nanokv.bench.suite.settings import KIB, MIB
from nanokv.check.command_process import Program

HEAP_BYTES = 384 * MIB
PLACES_BYTES = 64 * MIB  #: for bare transfers: more than the processor's cache has
LEAST_PAGE = 4 * KIB


class ReaderProcess(Program):
    """The process of the reader."""

    end_seconds = 30.0


class Pair(AbstractContextManager["Pair"]):
    """Two nodes. Used in a `with` block.

    Args:
        transport: of TRANSPORTS.
        size: bytes of an object.

    Raises:
        SystemFailed: the owner ended.
    """

    def __init__(self, transport: str, size: int) -> None:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nanokv-bench-")))
            members = folder / "members"
            members.mkdir()
            way = TRANSPORTS[transport]
            environment = dict(way.environment)
            page_bytes = max(size, LEAST_PAGE)
            place_bytes = min(128 * page_bytes, 8 * MIB)
            arguments: list[int | str] = [
                str(members),
                way.link,
                way.guests,
                HEAP_BYTES,
                page_bytes,
                PLACES_BYTES // place_bytes,
                place_bytes,
            ]
            owner = Ours("nanokv.bench.nodes.owner", folder, stack, arguments, environment)
            commands = partial(NodeReader, str(members), transport, owner.note(), place_bytes)
            reader = ReaderProcess("the reader", commands, environment=environment, log=folder / "reader.log")
            self._reader = stack.enter_context(reader)
            self._stack = stack.pop_all()

    def lap(self, what: str, nbytes: int, calls: int) -> dict[str, dict[str, list[int]]]:
        """See `NodeReader.lap`. Raises CheckFailure: the reader failed."""
        found: dict[str, dict[str, list[int]]] = self._reader.ask("lap", what, nbytes, calls)
        return found

    def connections(self, count: int, calls: int) -> dict[str, float]:
        """See `NodeReader.connections`. Raises CheckFailure: the reader failed."""
        found: dict[str, float] = self._reader.ask("connections", count, calls)
        return found

    def __exit__(self, *error: object) -> None:
        self._stack.close()
