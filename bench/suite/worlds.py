"""The worlds that are measured: rank 0 here, and rank 1 beside it or in another process."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, NamedTuple

from nanokv import NanoKVCache, local_world
from nanokv.bench.suite.other_process import STARTUP, Peer
from nanokv.bench.suite.owner import Owner, OwnerHere
from nanokv.heap.shm import list_worlds, remove_world

OWNER = 1  #: the rank whose segment gets the objects, and v1's master: in shm each allocation of v1 sends it a message
PAGE_BYTES = 256 << 10
SYSTEMS = {"device": "NanoKV v2", "host": "NanoKV v1"}  #: what a case calls the system, by allocator
_OPTIONS: dict[str, Any] = {
    "page_bytes": PAGE_BYTES,
    "master_rank": OWNER,
    "evict": False,  # the bench removes what it has put: no timed put may evict
    "write_timeout": 3600.0,
}


class MeasuredWorld(NamedTuple):
    """A world, as the measured process sees it."""

    cache: NanoKVCache
    owner: Owner


class Worlds:
    """Opens worlds. The other process is started for the first world that needs it, and serves all of them."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._peer: Peer | None = None
        self._names: list[str] = []  #: of all worlds of processes

    def __enter__(self) -> "Worlds":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @contextmanager
    def open(self, heap: str, alloc: str, heap_bytes: int, **options: Any) -> Iterator[MeasuredWorld]:
        """Open a world of two ranks; it is closed at the end of the block.

        Raises:
            NanoKVError, CheckFailure: the world could not be made.
        """
        wishes = _OPTIONS | {"heap_bytes": heap_bytes, "alloc": alloc} | options
        with ExitStack() as stack:
            if heap == "local":
                here, there = (stack.enter_context(cache) for cache in local_world(2, **wishes))
                yield MeasuredWorld(here, OwnerHere(there))
            else:
                yield stack.enter_context(self._processes(wishes))

    @contextmanager
    def _processes(self, wishes: dict[str, Any]) -> Iterator[MeasuredWorld]:
        peer, name = self.peer(), f"bench-{secrets.token_hex(6)}"
        self._names.append(name)
        shared = wishes | {"name": name, "world_size": 2, "attach_timeout": STARTUP}
        peer.send("open", rank=OWNER, **shared)
        with NanoKVCache(rank=1 - OWNER, **shared) as cache:
            peer.answer()
            yield MeasuredWorld(cache, peer)
        peer.ask("close")

    def peer(self) -> Peer:
        """The other process; it is started if it does not run yet."""
        if self._peer is None:
            self._stack.callback(self._remove_worlds)
            self._peer = self._stack.enter_context(Peer())
            self._peer.answer(STARTUP)
        return self._peer

    def _remove_worlds(self) -> None:
        """Remove the memory of worlds that an error has left behind: both processes have ended, or left."""
        for name in set(self._names) & set(list_worlds()):
            remove_world(name, force=True)
