"""The local buffer of a client, as memory that pools lease.

Guarantees: pieces that are out do not overlap; a piece begins at a multiple of 64 bytes, in memory that is registered
with the client; and a piece may be given back anywhere, in a finalizer too. Giving back takes no lock, which suffices
for the last: it only notes the piece in a deque, and the next call that asks for a piece makes it free.
"""

import bisect
import logging
import mmap
import threading
from collections import deque
from typing import Any

import numpy as np

from nanokv.integrations.mooncake.memory import RegisteredRanges

logger = logging.getLogger(__name__)

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_ALIGNMENT = 64  #: bytes, of the pieces
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  #: takes memory as it is written


def mapped(nbytes: int, alignment: int = 1) -> Bytes | None:
    """New memory at a multiple of `alignment`, a power of two; None if the system has none."""
    more = alignment if alignment > mmap.PAGESIZE else 0
    try:
        found = np.frombuffer(mmap.mmap(-1, nbytes + more, _PRIVATE), np.uint8)
    except (OSError, OverflowError, ValueError):
        return None
    start = -address(found) % alignment
    return found[start : start + nbytes]


def address(memory: Bytes) -> int:
    """Where memory begins."""
    return int(memory.ctypes.data)


class LocalBuffer:
    """Memory of one client, of which its pools take pieces. It is mapped with the first piece.

    After the end of the client it is memory as any other.
    """

    def __init__(self, nbytes: int, registered: RegisteredRanges) -> None:
        self.nbytes = nbytes
        self._registered = registered
        self.lock = threading.Lock()  #: of the pieces; giving back does without
        self._memory: Bytes | None = None
        self._closed = False
        self._room = _rounded(nbytes)
        self._free = [(0, self._room)]  #: first byte and end of what nobody has, in order, and never side by side
        self._back: deque[tuple[int, int]] = deque()
        self._dropped: deque[tuple[Any, Bytes]] = deque()

    def piece(self, nbytes: int) -> Bytes | None:
        """Some bytes, the first that are free; None if so many do not lie together."""
        taken = _rounded(nbytes)
        with self.lock:
            while self._back:
                self._join(*self._back.popleft())
            at = next((at for at, (start, end) in enumerate(self._free) if end - start >= taken), None)
            if at is None or not self._map():
                return None
            start, end = self._free[at]
            self._free[at : at + 1] = [(start + taken, end)] if start + taken < end else []
            assert self._memory is not None
            return self._memory[start : start + nbytes]

    def give_back(self, piece: Bytes) -> None:
        """Others may have a piece again. Takes no lock."""
        assert self._memory is not None
        start = address(piece) - address(self._memory)
        self._back.append((start, start + _rounded(piece.nbytes)))

    def give_up(self, store: Any, memory: Bytes) -> None:
        """Memory beyond the buffer, registered with a store, whose lease was dropped. Takes no lock."""
        self._dropped.append((store, memory))

    def unregister_dropped(self) -> None:
        """Do what `give_up` left undone. Every call of a pool begins so, and so does the end of the client."""
        while self._dropped:
            try:
                store, memory = self._dropped.popleft()
            except IndexError:  # another thread has it
                return
            try:
                if store.unregister_buffer(address(memory)):
                    logger.warning("NanoKV: the buffer of a dropped lease stays registered: the store refused")
            except Exception:
                logger.warning("NanoKV: the buffer of a dropped lease stays registered", exc_info=True)

    def close(self) -> None:
        """The client ends. Memory that is out stays until it is given back."""
        self.unregister_dropped()
        with self.lock:
            self._closed = True
            if self._memory is not None:
                self._registered.drop(address(self._memory))

    def _map(self) -> bool:
        if self._memory is None:
            self._memory = mapped(self._room)
            if self._memory is not None and not self._closed:
                self._registered.add(address(self._memory), self.nbytes)
        return self._memory is not None

    def _join(self, start: int, end: int) -> None:
        """Put a free range among the others, as one with those at its sides."""
        at = bisect.bisect(self._free, (start, end))
        if at < len(self._free) and self._free[at][0] == end:
            end = self._free.pop(at)[1]
        if at and self._free[at - 1][1] == start:
            at -= 1
            start = self._free.pop(at)[0]
        self._free.insert(at, (start, end))


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
