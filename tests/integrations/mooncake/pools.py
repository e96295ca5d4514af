"""What the tests of pools share: a store behind another object, how much a pool has room for, and threads that end."""

import threading
from collections.abc import Callable
from typing import Any

from nanokv.integrations.mooncake import BufferPool, MooncakeDistributedStore

Store = MooncakeDistributedStore
MIB = 1 << 20
LOCAL = 8 * MIB  #: the local buffer of the fixture's stores
SECONDS = 60.0  #: after which a thread that should have ended has not


class Wrapper:
    """A store behind an object of another class, as programs have one. Tells what was registered."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.registered: dict[int, int] = {}
        self.code: Any = None

    def _get_pyclient_capsule(self) -> object:
        return self.store._get_pyclient_capsule()

    def register_buffer(self, ptr: int, size: int) -> Any:
        if self.code is None:
            self.registered[ptr] = size
        return self.store.register_buffer(ptr, size) if self.code is None else self.code

    def unregister_buffer(self, ptr: int) -> Any:
        if self.code is None:
            del self.registered[ptr]
        return self.store.unregister_buffer(ptr) if self.code is None else self.code


def ended(work: Callable[[], object]) -> bool:
    """Whether a call ends in another thread."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return not thread.is_alive()


def waiting(pool: BufferPool, count: int) -> None:
    """Come back once so many wait for memory of the pool."""
    while len(pool.quota.waiters) < count:
        threading.Event().wait(0.001)


def leased(pool: BufferPool, sizes: list[int]) -> int:
    """How many of these sizes a pool has room for. It is closed afterwards."""
    leases = []
    for size in sizes:
        try:
            leases.append(pool.acquire(size, block=False))
        except RuntimeError as error:
            assert str(error) == "buffer pool is exhausted"
            break
    for lease in leases:
        lease.release()
    pool.close()
    return len(leases)
