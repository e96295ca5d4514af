"""The bytes alone: a socket, native code at both ends, and nothing else. What no exchange over the wire is faster than.

An asker sends a HEAD: how many bytes follow, and how many are to come back; and those. The answerer sleeps in
`epoll_wait`, as who serves several connections must, and takes and sends memory of the place whose turn it is.
"""

import ctypes
import secrets
import select
import socket
import threading
from typing import Any

import numba
import numpy as np

from nanokv.device.native.sockets import EVENT_BYTES, MORE_COMES, NO_SIGNAL, epoll_wait, receive, send

_HEAD = 16  #: bytes: two words
_WHOLE, _QUIET, _MORE = 0x100, NO_SIGNAL.value, NO_SIGNAL.value | MORE_COMES.value  # MSG_WAITALL
_SMALL = 64 << 10  #: bytes that go with their HEAD, in one piece
_FOREVER = -1


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def _moved(fd: int, at: int, nbytes: int, sends: bool) -> bool:
    """Whether all bytes went, or came."""
    done = 0
    while done < nbytes:
        some = send(fd, at + done, nbytes - done, _QUIET) if sends else receive(fd, at + done, nbytes - done, _WHOLE)
        if some <= 0:
            return False
        done += some
    return True


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def _answer(fd: int, epoll: int, events: int, head: Any, memory: int, nbytes: int) -> None:
    """Answer until the asker has gone."""
    place = 0
    while True:
        if epoll_wait(epoll, events, 1, _FOREVER) != 1 or not _moved(fd, head.ctypes.data, _HEAD, False):
            return
        come, go = head[0], head[1]
        if place + max(come, go) > nbytes:
            place = 0
        if not _moved(fd, memory + place, come, False) or not _moved(fd, memory + place, go, True):
            return
        place += max(come, go)


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def _ask(fd: int, frame: int, at: int, nbytes: int, into: int, wanted: int) -> bool:
    """Send what lies behind the HEAD of a frame, or at an address; receive the answer."""
    if nbytes <= _SMALL:
        sent = _moved(fd, frame, _HEAD + nbytes, True)
    else:
        sent = send(fd, frame, _HEAD, _MORE) == _HEAD and _moved(fd, at, nbytes, True)
    return bool(sent and _moved(fd, into, wanted, False))


class Answerer:
    """Answers one asker after the other, in threads.

    Attributes:
        addresses: of the UNIX socket, and of TCP.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._memory = np.ones(memory_bytes, np.uint8)
        self._unix, self._tcp = socket.socket(socket.AF_UNIX), socket.create_server(("127.0.0.1", 0))
        name = f"nanokv-bench-{secrets.token_hex(8)}"
        self._unix.bind(f"\0{name}")
        self._unix.listen()
        self.addresses = [f"\0{name}", self._tcp.getsockname()[1]]
        for listener in (self._unix, self._tcp):
            threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            made, _ = listener.accept()
            if made.family != socket.AF_UNIX:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with made, select.epoll() as epoll:
                epoll.register(made, select.EPOLLIN)
                events, head = np.zeros(EVENT_BYTES.value, np.uint8), np.zeros(2, np.int64)
                at = self._memory.ctypes.data
                _answer(made.fileno(), epoll.fileno(), events.ctypes.data, head, at, len(self._memory))


class Echo:
    """One asker.

    Args:
        address: one of `Answerer.addresses`.
        memory: address of the bytes that go and come.
    """

    def __init__(self, address: str | int, memory: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        self._socket.connect(address if isinstance(address, str) else ("127.0.0.1", address))
        if not isinstance(address, str):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frame, self._memory = np.zeros(_HEAD + _SMALL, np.uint8), memory
        self._head, self._fd = self._frame[:_HEAD].view(np.int64), self._socket.fileno()

    def exchange(self, nbytes: int, wanted: int) -> None:
        """Send so many bytes, and receive so many."""
        head, frame = self._head, self._frame
        head[0], head[1] = nbytes, wanted
        at = frame.ctypes.data
        if nbytes <= _SMALL:
            ctypes.memmove(at + _HEAD, self._memory, nbytes)
        if not _ask(self._fd, at, self._memory, nbytes, self._memory, wanted):
            raise ConnectionError("a bare exchange has failed")
