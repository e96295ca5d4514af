"""Several nodes are asked at once, each by one of a few threads: a call takes as long as the slowest one."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from nanokv.background import Handle, Worker
from nanokv.cluster.nodes import Node
from nanokv.errors import CacheClosed, PeerLost

THREADS = 16  #: that wait for nodes at the same time
T = TypeVar("T")


class AtOnce:
    """The threads of one process, each made when a call first needs it. A node has always the same one."""

    def __init__(self) -> None:
        self._threads = [Worker("nanokv-cluster-ask") for _ in range(THREADS)]

    def ask(self, asks: Sequence[tuple[Node, Any]], ask: Callable[[Node, Any], T]) -> list[T | PeerLost]:
        """Call `ask` with each node and what belongs to it. Returns the answers, or why there is none.

        Raises:
            Exception: what else a call raised, when all have ended.
            CacheClosed: this was closed.
        """
        if len(asks) == 1:
            return [_answer(ask, *asks[0])]
        handles: list[Handle[T | PeerLost]] = []
        try:
            for node, what in asks:
                handles.append(self._threads[node.number % THREADS].submit(partial(_answer, ask, node, what)))
        except CacheClosed:
            raise CacheClosed("this cluster is closed") from None
        finally:
            for handle in handles:
                with suppress(Exception):
                    handle.result()
        return [handle.result() for handle in handles]

    def close(self) -> None:
        """Take no more calls. What is under way ends by itself."""
        for thread in self._threads:
            thread.close(0)


def _answer(ask: Callable[[Node, Any], T], node: Node, what: Any) -> T | PeerLost:
    try:
        return ask(node, what)
    except PeerLost as error:
        return error
