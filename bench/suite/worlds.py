"""The worlds that are measured: rank 0 here, and rank 1 beside it or in another process."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from nanokv import NanoKVCache, local_world
from nanokv.bench.suite.crew import Crew
from nanokv.bench.suite.other_process import STARTUP, Peer
from nanokv.bench.suite.owner import Owner, OwnerHere

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


class Worlds(Crew):
    """Opens worlds. The other process is started for the first world that needs it, and serves all of them."""

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
        peer = self.peer()
        shared = wishes | {"name": self.new_name(), "world_size": 2, "attach_timeout": STARTUP}
        peer.send("open", rank=OWNER, **shared)
        with NanoKVCache(rank=1 - OWNER, **shared) as cache:
            peer.answer()
            yield MeasuredWorld(cache, peer)
        peer.ask("close")

    def peer(self) -> Peer:
        """The other process; it is started if it does not run yet."""
        return self.peers(1)[0]
