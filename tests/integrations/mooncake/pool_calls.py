"""Random calls of a pool of registered memory. See `program`."""

import random
from collections.abc import Callable
from typing import Any

from mooncake.store import BufferPool

from tests.integrations.mooncake.program import run

_LOCAL = 1 << 20  #: bytes of the client's local buffer
_SIZES = (0, 1, 63, 4096, 100_000, _LOCAL // 2, _LOCAL, _LOCAL + 1, 2 * _LOCAL, 3 * _LOCAL, 1 << 40)
_KEYS = [f"k{number}" for number in range(8)]


class Calls:
    """A client, pools, their leases and views, and what is done with them."""

    def __init__(self, seed: int, store: Any) -> None:
        self.random = random.Random(seed)
        self.store = store
        self.pools: list[Any] = [BufferPool(store)]
        self.leases: list[Any] = []  #: released ones, too
        self.views: list[memoryview] = []

    def step(self) -> dict[str, Any]:
        """One call, and its answer."""
        kinds: list[tuple[int, Callable[[], Any]]] = [
            (2, self.pool),
            (30, self.acquire),
            (10, self.look),
            (10, self.unlook),
            (14, self.release),
            (8, self.drop),
            (6, self.ask),
            (8, self.put),
            (8, self.get),
            (2, self.close),
        ]
        call = self.random.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]
        try:
            answer = call()
        except RuntimeError as error:
            answer = f"RuntimeError: {error}"
        except (BufferError, TypeError) as error:
            answer = type(error).__name__
        return {"call": call.__name__, "answer": answer, "leases": len(self.leases), "views": len(self.views)}

    def pool(self) -> Any:
        chosen = {
            "max_bytes": self.random.choice([0, 1, 3 * _LOCAL]),
            "max_regions": self.random.choice([None, 0, 1, 4]),
            "default_timeout": self.random.choice([None, 0, -1]),
            "alignment": self.random.choice([8, 4096, 8 << 20]),
            "min_size_class": self.random.choice([4096, 4096, 0]),
        }
        self.pools.append(BufferPool(self.store, **chosen))
        return len(self.pools)

    def acquire(self) -> Any:
        timeout = self.random.choice([0, 0, 0.001, -1])
        block = self.random.choice([False, True])
        lease = self.random.choice(self.pools).acquire(self.random.choice(_SIZES), block, timeout)
        lease.buffer[:] = bytes([len(self.leases) % 251]) * lease.size
        self.leases.append(lease)
        return lease.size

    def look(self) -> Any:
        view = self._lease().buffer
        half = view[len(view) // 2 :] if self.random.random() < 0.5 else view
        self.views.append(half)
        return len(half), half.format, half[0] if len(half) else None, half[-1] if len(half) else None

    def unlook(self) -> Any:
        if self.views:
            self.views.pop(self.random.randrange(len(self.views)))

    def release(self) -> Any:
        return self._lease().release()

    def drop(self) -> Any:
        if self.leases:
            self.leases.pop(self.random.randrange(len(self.leases)))

    def ask(self) -> Any:
        lease = self._lease()
        return lease.size, lease.ptr != 0

    def put(self) -> Any:
        lease = self._lease()
        if not lease.size:
            raise TypeError
        return self.store.put_from(self.random.choice(_KEYS), lease.ptr, min(lease.size, 1000))

    def get(self) -> Any:
        lease = self._lease()
        done = self.store.get_into(self.random.choice(_KEYS), lease.ptr, lease.size)
        return done, bytes(lease.buffer[: max(done, 0)]).hex()[:20]

    def close(self) -> Any:
        pool = self.random.choice(self.pools)
        pool.close()
        if len(self.pools) > 3:
            self.pools.remove(pool)
        return len(self.pools)

    def _lease(self) -> Any:
        if not self.leases:
            raise TypeError
        return self.random.choice(self.leases)


if __name__ == "__main__":
    run(Calls, 64 << 20, _LOCAL)
