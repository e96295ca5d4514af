"""Whether a block is there, asked by the scheduler, which must not wait.

In a world of one host the answer takes a microsecond, so it is given at once. In a cluster it may take a question to
another node, so a thread of vLLM's own `AsyncLookupManager` asks, and the scheduler comes back one step later.

A block that was found and could not be loaded is missing for the request that wanted it, until that ends: else the
scheduler would find it, and fail to load it, for ever.
"""

from collections.abc import Collection, Iterable
from typing import Protocol

from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager

from nanokv.integrations.joining import Store


class Lookups(Protocol):
    """What the tier asks."""

    def begin(self, request: str) -> None:
        """A request begins."""

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool | None:
        """Whether the block is there; None: ask again in the next step."""

    def missed(self, request: str, keys: Collection[OffloadKey]) -> None:
        """These blocks could not be loaded for a request."""

    def flush(self) -> None:
        """The step ends."""

    def end(self, request: str) -> None:
        """A request has ended."""

    def close(self) -> None:
        """Ask no more."""


class DirectLookups:
    """Answers at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._missed: dict[str, set[OffloadKey]] = {}  #: per request that has not ended

    def begin(self, request: str) -> None:
        self._missed[request] = set()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool:
        return key not in self._missed.get(req_context.req_id, ()) and self._store.exists(key)

    def missed(self, request: str, keys: Collection[OffloadKey]) -> None:
        if request in self._missed:
            self._missed[request].update(keys)

    def flush(self) -> None:
        pass

    def end(self, request: str) -> None:
        self._missed.pop(request, None)

    def close(self) -> None:
        self._missed.clear()


class BackgroundLookups(AsyncLookupManager):
    """Answers in the next step."""

    def __init__(self, store: Store, tier_type: str) -> None:
        self._store = store
        super().__init__(tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        return self._store.exists_many(keys)

    def begin(self, request: str) -> None:
        pass

    def missed(self, request: str, keys: Collection[OffloadKey]) -> None:
        self.mark_miss(keys)

    def end(self, request: str) -> None:
        self.cleanup(request)

    def close(self) -> None:
        self.shutdown()
