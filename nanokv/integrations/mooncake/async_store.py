"""`MooncakeDistributedStoreAsync`: a store whose calls are also coroutines. Each runs on a thread; the loop goes on."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from nanokv.integrations.mooncake.store import MooncakeDistributedStore


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """`await store.async_get(key)` is `store.get(key)` on a thread; so for each other call.

    Raises AttributeError for an `async_` name without such a call.
    """

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        call = getattr(self, name.removeprefix("async_")) if name.startswith("async_") else None
        if not callable(call):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(call, *args, **kwargs)

        return awaited
