"""The connection by which one thread asks one address. Other threads may end it, also while it is used."""

import math
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from nanokv.cluster.messages import tcp
from nanokv.cluster.messages.frames import Frames, TooLong, framed
from nanokv.cluster.messages.loop import Wake

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  #: seconds between two tries to connect
_CHUNK = 1 << 16  #: bytes: more would be memory that the allocator takes from the kernel each time


class Connection:
    """It connects when it has something to send. `take` it before use, and `give_back` it.

    Args:
        wake: when it rings, who waits here stops waiting.

    Attributes:
        lost: the other end has gone since the last message was sent: no answer will come.

    Raises:
        InvalidArgument: `address` is none.
    """

    def __init__(self, address: str, wake: Wake) -> None:
        self.address, self._target, self._wake = address, tcp.host_and_port(address), wake
        self._process = os.getpid()
        self._socket: socket.socket | None = None
        self._is_connected = False
        self._poll = select.poll()
        self._poll.register(wake.fd, select.POLLIN)
        self._frames, self._come = Frames(), deque[bytes]()
        self._message, self._sent = b"", 0
        self._whole: bytes = b""  # with the greeting, if the connection is new
        self._greeting: Callable[[], bytes] = bytes
        self._pause = _FIRST_PAUSE
        self._lock = threading.Lock()  # held while it is used or closed
        self.ended = self.lost = False

    # --- whose it is ---
    def take(self) -> bool:
        """Begin to use it. False if it has ended."""
        self._lock.acquire()
        if self.ended:
            self._lock.release()
            return False
        return True

    def give_back(self) -> None:
        """Stop using it."""
        self._lock.release()
        if self.ended:
            self.end()

    def end(self) -> None:
        """Close it, once nobody uses it. From any thread; idempotent."""
        self.ended = True
        if os.getpid() != self._process:  # in a child of a fork the lock may be held by a thread that is not there
            self._close()
        elif self._lock.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._lock.release()

    def _close(self) -> None:
        made, self._socket, self._is_connected = self._socket, None, False
        if made is not None:
            if os.getpid() == self._process:
                self._poll.unregister(made)
            made.close()
        self._frames, self._sent = Frames(), 0
        self._come.clear()

    # --- what goes ---
    def begin(self, message: bytes, greeting: Callable[[], bytes]) -> None:
        """What `send` sends; and what makes the message that goes before it, each time that this connects."""
        self._message, self._greeting, self._sent, self.lost = framed(message), greeting, 0, False
        self._whole = self._message
        if self._is_connected and self._has_gone():
            self._close()

    def send(self, until: float) -> bool:
        """Connect, and send. False: not done at `until` of time.monotonic; another call goes on with it."""
        while self._sent < len(self._whole):
            if not self._is_connected and not self._connect(until):
                return False
            assert self._socket is not None
            try:
                self._sent += self._socket.send(memoryview(self._whole)[self._sent :])
            except BlockingIOError:
                if not self._wait(select.POLLOUT, until):
                    return False
            except OSError:
                self._close()
        return True

    def _connect(self, until: float) -> bool:
        try:
            if self._socket is None:
                self._socket = tcp.connecting(self._target, until)
                self._poll.register(self._socket, 0)
            if not self._wait(select.POLLOUT, until):
                return False
            self._is_connected = tcp.has_connected(self._socket)
        except OSError:
            self._is_connected = False
        if self._is_connected:
            self._pause = _FIRST_PAUSE
            self._whole, self._sent = framed(self._greeting()) + self._message, 0
            return True
        self._close()
        self._rest(until)
        return False

    def _rest(self, until: float) -> None:
        """Nobody is there. The next try comes a little later."""
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        self._poll.poll(_ms_until(min(until, time.monotonic() + pause)))

    def _has_gone(self) -> bool:
        assert self._socket is not None
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    # --- what comes ---
    def receive(self, until: float) -> bytes | None:
        """A message. None: none has come at about `until` of time.monotonic; or none will (`lost`)."""
        while not self._come:
            if self._socket is None or not self._wait(select.POLLIN, until):
                return None
            if not self._hear(self._socket):
                self._close()
                self.lost = True
                return None
        return self._come.popleft()

    def _hear(self, made: socket.socket) -> bool:
        """Take what has come. False: the other end has gone, or sends what is no message."""
        try:
            data = made.recv(_CHUNK)
            self._come.extend(self._frames.feed(data))
        except BlockingIOError:
            return True
        except (OSError, TooLong):
            return False
        return bool(data)

    def _wait(self, events: int, until: float) -> bool:
        """Whether the socket is ready, or has failed, before `until`."""
        made = self._socket
        assert made is not None
        self._poll.modify(made, events)
        ready = self._poll.poll(_ms_until(until))
        return any(number == made.fileno() for number, _ in ready)


def _ms_until(deadline: float) -> int:
    """For a poll, which takes no more than 31 bits."""
    return min(max(0, math.ceil((deadline - time.monotonic()) * 1000)), 1 << 30)
