"""The blocks that requests have found, held in place from the look-up until they are loaded.

vLLM 0.32 ends the engine if a load fails. So a look-up answers HIT only when it has pinned the parts of all workers:
NanoKV neither evicts nor removes what is pinned, and its owner's end leaves it readable. The pins of a request end when
its load has ended, or when the request ends without one.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack

from vllm.v1.kv_offload.base import OffloadKey

from nanokv.cache import NanoKVCache
from nanokv.errors import KeyNotFound, NanoKVError, NotReady, SegmentCorrupt
from nanokv.pinned import Pinned

Held = dict[OffloadKey, list[Pinned]]


class Pins:
    """The pins of one manager.

    Args:
        names: of the objects of a block, one per worker.
        refused: called with why a block that is there cannot be held: it is damaged, or no pin is left.
    """

    def __init__(
        self,
        world: NanoKVCache,
        names: Callable[[OffloadKey], Sequence[bytes]],
        refused: Callable[[NanoKVError], None],
    ) -> None:
        self._world, self._names, self._refused = world, names, refused
        self._found: dict[str, Held] = {}  #: per request
        self._loading: dict[str, Held] = {}

    def find(self, request: str, key: OffloadKey) -> bool:
        """Whether a block can be loaded now: then it is pinned for the request."""
        held = self._found.setdefault(request, {})
        if key in held:
            return True
        with ExitStack() as stack:
            pinned = []
            for name in self._names(key):
                try:
                    pinned.append(self._world.pin(name))
                except (KeyNotFound, NotReady):
                    return False  # gone; or not finished, by a process that may be dead
                except NanoKVError as error:
                    self._refused(error)
                    if isinstance(error, SegmentCorrupt):
                        self._world.remove_many([name])
                    return False
                stack.callback(pinned[-1].release)
            stack.pop_all()
        held[key] = pinned
        return True

    def begin_load(self, request: str, keys: Collection[OffloadKey]) -> None:
        """These blocks are going to be loaded, and no others that the request has found.

        Raises:
            KeyNotFound: the request has not found one of them.
        """
        for key in keys:
            if not self.find(request, key):
                raise KeyNotFound(f"request {request} loads block {key.hex()} without having found it")
        found = self._found.pop(request, {})
        self._loading.setdefault(request, {}).update({key: found.pop(key) for key in dict.fromkeys(keys)})
        _release(found)

    def end_load(self, request: str, keys: Collection[OffloadKey]) -> int:
        """These blocks have been loaded; returns how many."""
        loading = self._loading.get(request, {})
        ended = {key: loading.pop(key) for key in keys if key in loading}
        if not loading:
            self._loading.pop(request, None)
        _release(ended)
        return len(ended)

    def end_request(self, request: str) -> None:
        """The request finds nothing more. A load under way goes on."""
        _release(self._found.pop(request, {}))

    def take_all(self) -> list[Pinned]:
        """Forget all requests: the pins of loads under way are the caller's, all others end."""
        for found in self._found.values():
            _release(found)
        left = [pinned for held in self._loading.values() for each in held.values() for pinned in each]
        self._found, self._loading = {}, {}
        return left


def _release(held: Held) -> None:
    for each in held.values():
        for pinned in each:
            pinned.release()
