"""`BufferPool`: memory for the calls that take addresses, registered once and leased again and again.

A pool takes the local buffer of its client first, and then memory of its own ("overflow"), which it registers with the
store as it leases it. It guarantees:

- Its leases have `max_bytes` and `max_regions` together at most: `Quota` counts what it gives, under a lock.
- Nobody waits for memory that came back. One who waits has put a queue among the waiters before it looks, and whoever
  gives back notes that in a deque, and then wakes all waiters. So the look sees the note, or the waiter is woken.
- Memory that is leased is nobody else's. It goes back once, by `release` or when the lease is dropped, and never while
  a memoryview of it exists. Three things suffice for that. `weakref.finalize` runs once, or is detached once, whichever
  thread comes first. A view keeps its lease, so a lease with views is not dropped. And every view has a token in a set
  of the lease, which goes away with the view: an empty set is a lease without views.
- Giving back takes no lock of the pool, because it runs in finalizers, and in the `__del__` of callers. A release of
  overflow memory calls the store; a drop leaves that to a later call.
"""

import contextlib
import operator
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from nanokv.integrations.mooncake.arguments import number
from nanokv.integrations.mooncake.local_buffer import Bytes, LocalBuffer, address, mapped

__all__ = ["BufferPool", "RegisteredBufferPool"]

_CLIENT = "_get_pyclient_capsule"  #: the real one's name for how a pool gets at the client behind a store
_LARGEST = (1 << 64) - 1
_POINTER = 8  #: bytes
_ALIGNMENT = 8 << 20  #: bytes, of overflow memory


class Loan(NamedTuple):
    """What a pool hands to a lease: memory, and how it goes back."""

    memory: Bytes
    size: int  #: bytes, as asked for
    is_overflow: bool
    give_back: Callable[[Bytes, bool], None]
    drop: Callable[[Bytes, bool], None]  #: for a finalizer: takes no lock, and calls no store


class BufferLeaseView(np.ndarray[Any, np.dtype[np.uint8]]):
    """What the memoryviews of a lease look at. The bytes of the lease, in one dimension."""

    _lease: "BufferLease"

    @classmethod
    def over(cls, memory: Bytes, lease: "BufferLease") -> "BufferLeaseView":
        """A view that keeps its lease."""
        made = memory.view(cls)
        made._lease = lease
        return made

    @property
    def buffer(self) -> memoryview:
        """Another memoryview of it."""
        return self.data


class BufferLease:
    """Some bytes of a pool. Ends with `release`, with a `with` block, or when it is dropped. Only pools make it."""

    __slots__ = ("__weakref__", "_end", "_give_back", "_is_overflow", "_memory", "_size", "_views")

    def __init__(self, *given: object) -> None:
        if len(given) != 1 or not isinstance(given[0], Loan):
            raise TypeError("BufferLease: No constructor defined: a pool makes it")
        loan = given[0]  # not kept: it has the memory, which ends with the release
        self._memory: Bytes | None = loan.memory
        self._size, self._is_overflow, self._give_back = loan.size, loan.is_overflow, loan.give_back
        self._views: set[object] = set()
        self._end = weakref.finalize(self, loan.drop, loan.memory, loan.is_overflow)
        self._end.atexit = False

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
        view = BufferLeaseView.over(memory[: self._size], self)
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
                self._give_back(memory, self._is_overflow)
                return
        except BaseException:
            self._memory = memory
            raise
        raise RuntimeError("buffer lease is not active")

    def __enter__(self) -> "BufferLease":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Quota:
    """How much the leases of a pool may have together, how much they have, and who waits for some of it."""

    def __init__(self, max_bytes: int, max_regions: int | None) -> None:
        self.max_bytes, self.max_regions = max_bytes, max_regions
        self.lock = threading.Lock()
        self.waiters: list[queue.SimpleQueue[None]] = []
        self._closed = False
        self._bytes = self._regions = 0  #: what is leased, or about to be; less what is in `_returned`
        self._returned: deque[int] = deque()

    def reserve(self, nbytes: int) -> bool:
        """Count memory that will be leased, if there is room for it.

        Raises:
            RuntimeError: the pool is closed.
        """
        with self.lock:
            self._settle()
            if self._closed:
                raise RuntimeError("buffer pool is closed")
            full = self.max_regions is not None and self._regions >= self.max_regions
            if full or self._bytes + nbytes > self.max_bytes:
                return False
            self._bytes += nbytes
            self._regions += 1
            return True

    def note(self, nbytes: int) -> None:
        """Tell that memory came back. Takes no lock."""
        self._returned.append(nbytes)
        self._wake()

    def _settle(self) -> None:
        """Count what came back. The lock is held."""
        while self._returned:
            self._bytes -= self._returned.popleft()
            self._regions -= 1

    def _wake(self) -> None:
        for wake in tuple(self.waiters):
            wake.put(None)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[queue.SimpleQueue[None]]:
        """A queue that gets something whenever memory has come back, or the pool was closed."""
        wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.waiters.append(wake)
        try:
            yield wake
        finally:
            self.waiters.remove(wake)

    def close(self) -> None:
        """`reserve` raises from now on.

        Raises:
            RuntimeError: there are leases. The pool goes on.
        """
        with self.lock:
            self._settle()
            if self._regions:
                raise RuntimeError("cannot close buffer pool with active leases")
            self._closed = True
        self._wake()


class BufferPool:
    """Leases memory of a store that is set up, or of an object that wraps one (see `docs/mooncake.md`).

    `max_bytes`: what all leases together may have, but never less than the local buffer; 0 for twice the local buffer.
    `alignment` (bytes, a power of two) is that of overflow memory. `default_timeout` is in seconds. `min_size_class`,
    `max_size_class`, `prewarm_size` and `prewarm_count` are checked, and change nothing, as in the real one.

    Raises:
        RuntimeError: the store is not set up, or has no local buffer, or an argument makes no sense.
        TypeError: an argument has another type.
    """

    def __init__(
        self,
        store: Any,
        max_bytes: int = 0,
        min_size_class: int = 64 << 10,
        max_size_class: int | None = None,
        alignment: int = _ALIGNMENT,
        block_on_exhaustion: bool = True,
        default_timeout: float | None = None,
        max_regions: int | None = None,
        prewarm_size: int | None = None,
        prewarm_count: int = 0,
    ) -> None:
        most, smallest = _size("max_bytes", max_bytes), _size("min_size_class", min_size_class)
        alignment, prewarm_count = _size("alignment", alignment), _size("prewarm_count", prewarm_count)
        try:
            self._blocks = _flag("block_on_exhaustion", block_on_exhaustion)
        except RuntimeError as error:
            raise TypeError(f"incompatible constructor arguments: {error}") from None
        self.local = _local_buffer_of(store)
        if not smallest or not alignment:
            raise RuntimeError("min_size_class and alignment must be positive")
        if alignment < _POINTER or alignment & (alignment - 1):
            raise RuntimeError(f"alignment must be a power of two, and {_POINTER} or more")
        if not self.local.nbytes:
            raise RuntimeError("BufferPool requires a store configured with a local buffer")
        self._store = store
        self._alignment = alignment
        _cast_size("max_size_class", max_size_class)
        self._timeout = _seconds("default_timeout", default_timeout)
        regions = _cast_size("max_regions", max_regions)
        if prewarm_count:
            _cast_size("prewarm_size", prewarm_size)
        most = max(most, self.local.nbytes) if most else 2 * self.local.nbytes
        self.quota = Quota(most, regions)

    def acquire(self, size: int, block: bool | None = None, timeout: float | None = None) -> BufferLease:
        """Lease `size` bytes; what is in them is anything. Without room wait for it, or raise if not `block`.

        `block` and `timeout` (seconds) are those of the pool if None.

        Raises:
            RuntimeError: there is no room, or none came in time; the pool could never have room for it, or is closed;
                the store did not register the memory; or `timeout` is negative, or no number.
            TypeError: `size` is none.
        """
        nbytes = _size("size", size)
        blocks = self._blocks if block is None else _flag("block", block)
        seconds = self._timeout if timeout is None else _seconds("timeout", timeout)
        if seconds is not None and not seconds >= 0:
            raise RuntimeError("timeout must be non-negative")
        taken = max(nbytes, 1)
        if taken > self.quota.max_bytes:
            raise RuntimeError("requested buffer size exceeds pool capacity")
        self.local.unregister_dropped()
        found = self._take(taken) or (self._wait(taken, seconds) if blocks else None)
        if found is None:
            raise RuntimeError("timed out waiting for buffer" if blocks else "buffer pool is exhausted")
        return BufferLease(Loan(found[0], nbytes, found[1], self._give_back, self._drop))

    def buffer(self, size: int, block: bool | None = None, timeout: float | None = None) -> BufferLease:
        """Acquire a buffer: another name of `acquire`."""
        return self.acquire(size, block, timeout)

    def prewarm(self, size: int, count: int) -> None:
        """Checks its arguments, and changes nothing, as in the real one.

        Raises:
            TypeError: an argument is no size.
        """
        _size("size", size), _size("count", count)

    def close(self) -> None:
        """End the pool: `acquire` raises from now on, also where it waits. Idempotent.

        Raises:
            RuntimeError: there are leases. The pool goes on.
        """
        self.local.unregister_dropped()
        self.quota.close()

    # --- giving ---
    def _wait(self, nbytes: int, seconds: float | None) -> tuple[Bytes, bool] | None:
        """`_take` until there is room, or `seconds` are over."""
        deadline = None if seconds is None else time.monotonic() + seconds
        with self.quota.waiting() as wake:
            while True:
                found = self._take(nbytes)
                left = None if deadline is None else min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
                if found is not None or (left is not None and left <= 0):
                    return found
                with contextlib.suppress(queue.Empty):  # after which the next look is the last one
                    wake.get(timeout=left)

    def _take(self, nbytes: int) -> tuple[Bytes, bool] | None:
        """Memory, and whether it is overflow; None if there is no room."""
        if not self.quota.reserve(nbytes):
            return None
        try:
            piece = self.local.piece(nbytes)
            return (piece, False) if piece is not None else (self._overflow(nbytes), True)
        except BaseException:
            self.quota.note(nbytes)
            raise

    def _overflow(self, nbytes: int) -> Bytes:
        memory = mapped(nbytes, self._alignment)
        if memory is None:  # whether it blocks or not: no lease that ends is sure to change that
            raise RuntimeError("buffer pool is exhausted: the system has no memory")
        if _code(self._store.register_buffer(address(memory), nbytes)):
            raise RuntimeError("overflow buffer registration failed")
        return memory

    # --- taking back ---
    def _give_back(self, memory: Bytes, overflow: bool) -> None:
        try:
            if not overflow:
                self.local.give_back(memory)
            elif _code(self._store.unregister_buffer(address(memory))):
                raise RuntimeError("overflow buffer unregistration failed")
        finally:
            self.quota.note(memory.nbytes)

    def _drop(self, memory: Bytes, overflow: bool) -> None:
        """`_give_back` of a lease that was dropped. Takes no lock, and calls no store."""
        if overflow:
            self.local.give_up(self._store, memory)
        else:
            self.local.give_back(memory)
        self.quota.note(memory.nbytes)


RegisteredBufferPool = BufferPool


def _local_buffer_of(store: Any) -> LocalBuffer:
    if store is None:
        raise RuntimeError("MooncakeDistributedStore is not initialized")
    if not hasattr(store, _CLIENT):
        raise RuntimeError(f"BufferPool store parameter must be a store, or a wrapper that implements {_CLIENT}()")
    found = getattr(store, _CLIENT)()
    if found is None:
        raise RuntimeError("MooncakeDistributedStore is not initialized")
    if not isinstance(found, LocalBuffer):
        raise RuntimeError(f"store wrapper returned {found!r} for its client, not what the store returns")
    return found


def _size(name: str, given: object) -> int:
    found = number(name, given)
    if found > _LARGEST:
        raise TypeError(f"incompatible function arguments: {name} must be less than 2**64, not {found}")
    return found


def _cast_size(name: str, given: object) -> int | None:
    try:
        return None if given is None else _size(name, given)
    except TypeError:
        raise RuntimeError(f"{name} must be an int >= 0, not {given!r}") from None


def _seconds(name: str, given: Any) -> float | None:
    if given is None:
        return None
    if not hasattr(given, "__float__") and not hasattr(given, "__index__"):
        raise RuntimeError(f"{name} must be a number of seconds, not {given!r}")
    return float(given)


def _flag(name: str, given: object) -> bool:
    if given is not None and not hasattr(given, "__bool__"):
        raise RuntimeError(f"{name} must be a bool, not {given!r}")
    return bool(given)


def _code(answer: object) -> int:
    try:
        return operator.index(answer)  # type: ignore[arg-type]  # what a store answers may be anything
    except TypeError:
        raise RuntimeError(f"the store answered {answer!r}, which is no code") from None
