"""Registered memory into which objects of other hosts are read, and of which the tensors that are returned are made.

A transfer that was given up may write to its destination at any time. So nothing is ever read into memory of a caller:
it comes here, and what is given up stays here until the link says that the transfer has ended. Late bytes reach nobody.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.cluster.links.base import Link
from nanokv.cluster.workspace import Workspace, page_aligned

ALIGN = 16  #: bytes, at whose multiples objects begin in a room: an element of the widest dtype
_PAGE = 4096
_LEAST = 1 << 21  #: bytes of a chunk that is registered at once
_KEPT = 1 << 28  #: bytes that are kept for later, of all that has been given back
_MOST_SPACES = 32  #: workspaces that are kept for later
_LOOK_AGAIN = 0.1  #: seconds between two looks at transfers that were given up


class Room:
    """Bytes at an address. It goes back when nothing refers to it any more, nor to `bytes`."""

    __slots__ = ("_back", "_chunk", "address")

    def __init__(self, chunk: Any, back: "deque[Any]") -> None:
        self._chunk, self._back, self.address = chunk, back, int(chunk.ctypes.data)

    def view(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """The first bytes: an array that keeps this room."""
        return np.asarray(_ArrayInterface(self, nbytes))

    def __del__(self) -> None:
        self._back.append(self._chunk)  # no more: the garbage collector may call it in any thread, under any lock


class _ArrayInterface:
    """What numpy asks for memory."""

    __slots__ = ("__array_interface__", "_room")

    def __init__(self, room: Room, nbytes: int) -> None:
        self._room = room
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (room.address, False)}


class Staging:
    """The memory of one process. From any thread.

    Args:
        shared: whether other processes may read it.
    """

    def __init__(self, link: Link, *, shared: bool = False) -> None:
        self.link, self._shared = link, shared
        self._lock = threading.Lock()
        self._free: dict[int, list[Any]] = {}
        self._kept = 0
        self._returned: deque[Any] = deque()
        self._spaces: list[Workspace] = []
        self._late: list[tuple[Callable[[], bool], tuple[Any, ...], int]] = []
        self._next_look = 0.0
        self._closed = False

    def room(self, nbytes: int) -> Room:
        """Room for so many bytes, at the beginning of a page. Its contents are arbitrary."""
        size = max(1 << max(nbytes - 1, 0).bit_length(), _PAGE)
        if nbytes > _LEAST:
            size = -(-nbytes // _LEAST) * _LEAST
        self._take_back()
        with self._lock:
            free = self._free.get(size)
            if free:
                self._kept -= size
                return Room(free.pop(), self._returned)
        chunk = page_aligned(size)
        self.link.register(int(chunk.ctypes.data), size, shared=self._shared)
        return Room(chunk, self._returned)

    def _take_back(self) -> None:
        """Keep the memory of rooms that nobody uses any more for others, or let go of it."""
        while self._returned:
            try:
                chunk = self._returned.popleft()
            except IndexError:  # another thread was faster
                return
            with self._lock:
                is_kept = not self._closed and self._kept + len(chunk) <= _KEPT
                if is_kept:
                    self._free.setdefault(len(chunk), []).append(chunk)
                    self._kept += len(chunk)
            if not is_kept and not self._closed:
                self.link.deregister(int(chunk.ctypes.data))

    def workspace(self) -> Workspace:
        """A workspace, to be given back or left in `keep`."""
        if self._late:
            self._look_at_late()
        if self._returned:
            self._take_back()
        try:
            return self._spaces.pop()
        except IndexError:
            return Workspace(self.link)

    def give(self, workspace: Workspace) -> None:
        """Give a workspace back, to which no transfer writes. A few are kept for later."""
        workspace.room = None
        if len(self._spaces) < _MOST_SPACES or self._closed:
            self._spaces.append(workspace)
        else:
            workspace.close()

    def keep(self, is_over: Callable[[], bool], *memory: Any, node: int = -1) -> None:
        """Keep memory to which a transfer may still write, until it is over. `node`: its number, for `late_of`."""
        with self._lock:
            self._late.append((is_over, memory, node))

    def late_of(self, node: int) -> int:
        """How many transfers from the node of a number were given up, and are not over."""
        if not self._late:
            return 0
        self._look_at_late()
        return sum(each[2] == node for each in list(self._late))

    @property
    def late(self) -> int:
        """How many transfers that were given up are not over."""
        self._next_look = 0.0
        self._look_at_late()
        return len(self._late)

    def _look_at_late(self) -> None:
        now = time.monotonic()
        with self._lock:
            if now < self._next_look:
                return
            self._next_look = now + _LOOK_AGAIN
            over = [each for each in self._late if each[0]()]
            self._late = [each for each in self._late if each not in over]
        for _, memory, _ in over:
            for each in memory:
                if isinstance(each, Workspace):
                    self.give(each)

    def close(self) -> None:
        """Let go of all that is not in use. Rooms that are, and what late transfers may write to, stay with those."""
        with self._lock:
            self._closed = True
            self._free.clear()
        self._spaces.clear()
