"""Leases: memory of a pool, for as long as somebody has it.

Guarantees: memory that is leased is nobody else's, and it goes back to its pool once, by `release` or when the lease is
dropped, and never while a memoryview of it exists. Three things suffice for that:

- `weakref.finalize` runs once, or is detached once, whichever thread comes first.
- A view keeps its lease, so a lease with views is not dropped.
- Every view has a token in a set of the lease, which goes away with the view: an empty set is a lease without views.

Giving back takes no lock of the pool, because it runs in finalizers, and in the `__del__` of callers. A release of
overflow memory calls the store; a drop leaves that to a later call.
"""

import weakref
from typing import Any, Protocol

import numpy as np

from nanokv.integrations.mooncake.local_buffer import Bytes, address


class Lender(Protocol):
    """Where memory goes back to."""

    def _give_back(self, memory: Bytes, overflow: bool) -> None: ...

    def _drop(self, memory: Bytes, overflow: bool) -> None: ...


class BufferLeaseView(np.ndarray[Any, np.dtype[np.uint8]]):
    """What the memoryviews of a lease look at. The bytes of the lease, in one dimension."""

    _lease: "BufferLease"

    @property
    def buffer(self) -> memoryview:
        """Another memoryview of it."""
        return self.data


class BufferLease:
    """Some bytes of a pool. Ends with `release`, with a `with` block, or when it is dropped. Pools make it."""

    __slots__ = ("__weakref__", "_end", "_memory", "_overflow", "_pool", "_size", "_views")

    def __init__(self) -> None:
        raise TypeError("BufferLease: No constructor defined: a pool makes it")

    @classmethod
    def _made(cls, pool: Lender, memory: Bytes, size: int, overflow: bool) -> "BufferLease":
        made = cls.__new__(cls)
        made._memory = memory
        made._size = size
        made._views = set()
        made._pool = pool
        made._overflow = overflow
        made._end = weakref.finalize(made, pool._drop, memory, overflow)
        made._end.atexit = False
        return made

    _memory: Bytes | None
    _size: int
    _views: set[object]
    _pool: Lender
    _overflow: bool
    _end: "weakref.finalize[..., BufferLease]"

    @property
    def ptr(self) -> int:
        """The address of the first byte.

        Raises:
            RuntimeError: the lease was released.
        """
        memory = self._memory
        if memory is None:
            raise RuntimeError("buffer lease is closed")
        return address(memory)

    @property
    def size(self) -> int:
        """Bytes, as asked for; also after the release."""
        return self._size

    @property
    def buffer(self) -> memoryview:
        """A writable memoryview (format "B") of the bytes, which holds the lease until it is released, or dropped.

        Raises:
            BufferError: the lease was released.
        """
        token = object()
        self._views.add(token)  # first, so that a release beside this call sees it
        memory = self._memory
        if memory is None:
            self._views.discard(token)
            raise BufferError("buffer lease is closed")
        view = memory[: self._size].view(BufferLeaseView)
        view._lease = self
        weakref.finalize(view, self._views.discard, token).atexit = False
        return view.data

    def release(self) -> None:
        """Give the memory back. Nothing happens if that was done.

        Raises:
            RuntimeError: a memoryview of it exists, or the store did not take the registration of overflow memory back.
        """
        memory, self._memory = self._memory, None  # first, so that `buffer` beside this call sees it
        if memory is None:
            return
        try:
            if self._views:
                raise RuntimeError("cannot release buffer while exported views exist")
            if self._end.detach() is not None:
                self._pool._give_back(memory, self._overflow)
                return
        except BaseException:
            self._memory = memory
            raise
        raise RuntimeError("buffer lease is not active")

    def __enter__(self) -> "BufferLease":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
