"""Several other processes at once, each a rank of one world. This process only tells them what to do."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from nanokv.bench.suite.other_process import STARTUP, Peer


class Crew:
    """Processes that are started when a world first needs them, and serve all worlds. A `with` block ends them."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._peers: list[Peer] = []

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @contextmanager
    def world(self, ranks: int, heap_bytes: int, **options: Any) -> Iterator[list[Peer]]:
        """A world of so many processes, in the order of their ranks.

        Raises:
            PeerFailed: a process could not be started, or the world could not be made.
        """
        wishes = {"heap_bytes": heap_bytes, "world_size": ranks, "evict": False, "attach_timeout": STARTUP} | options
        members = self._members(ranks)
        name = f"bench-{secrets.token_hex(6)}"
        for rank, peer in enumerate(members):
            peer.tell("open", name=name, rank=rank, **wishes)
        for peer in members:
            peer.answer(STARTUP)
        yield members
        for peer in members:
            peer.tell("close")
        for peer in members:
            peer.answer()

    def _members(self, count: int) -> list[Peer]:
        new = [self._stack.enter_context(Peer()) for _ in range(len(self._peers), count)]
        for peer in new:
            peer.answer(STARTUP)
        self._peers += new
        return self._peers[:count]


def together(peers: list[Peer], function: str, each: list[dict[str, Any]]) -> list[Any]:
    """Call a function in all processes at once (`Peer.call`), with arguments of each; their answers."""
    for peer, what in zip(peers, each, strict=True):
        peer.tell("call", function=function, **what)
    return [peer.answer() for peer in peers]
