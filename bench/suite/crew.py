"""Several other processes at once, each a rank of one world. This process only tells them what to do."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

from nanokv.bench.suite.other_process import STARTUP, Peer
from nanokv.heap.shm import list_worlds, remove_world


class Crew:
    """Processes that are started when a world first needs them, and serve all worlds. A `with` block ends them."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._peers: list[Peer] = []
        self._names: list[str] = []
        self._stack.callback(self._remove_worlds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @contextmanager
    def world(self, ranks: int, heap_bytes: int, **options: Any) -> Iterator[list[Peer]]:
        """A world of so many processes, in the order of their ranks.

        Raises:
            CheckFailure: a process could not be started, or the world could not be made.
        """
        wishes = {"heap_bytes": heap_bytes, "world_size": ranks, "evict": False, "attach_timeout": STARTUP} | options
        members = self.peers(ranks)
        name = self.new_name()
        for rank, peer in enumerate(members):
            peer.send("open", name=name, rank=rank, **wishes)
        for peer in members:
            peer.answer(STARTUP)
        yield members
        for peer in members:
            peer.send("close")
        for peer in members:
            peer.answer()

    def new_name(self) -> str:
        """A name for a world; what an error leaves of it is removed at the end of the block."""
        self._names.append(f"bench-{secrets.token_hex(6)}")
        return self._names[-1]

    def _remove_worlds(self) -> None:
        for name in set(self._names) & set(list_worlds()):
            remove_world(name, force=True)

    def peers(self, count: int) -> list[Peer]:
        """Return so many processes; those that do not run yet are started."""
        new = [self._stack.enter_context(Peer()) for _ in range(len(self._peers), count)]
        for peer in new:
            peer.answer(STARTUP)
        self._peers += new
        return self._peers[:count]


def together(peers: list[Peer], function: str, each: list[dict[str, Any]]) -> list[Any]:
    """Call a function in all processes at once (`Peer.call`), with arguments of each; their answers."""
    for peer, what in zip(peers, each, strict=True):
        peer.send("call", function, **what)
    return [peer.answer() for peer in peers]
