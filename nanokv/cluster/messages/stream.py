"""A connection as a server has it: the messages that come by it, and what waits to go out."""

import socket
import time
from collections.abc import Iterator

from nanokv.cluster.messages.frames import LONGEST, Frames, framed
from nanokv.cluster.messages.sealed import MESSAGE_LIMIT

FIRST = 4096  #: bytes of a message, as long as none was authentic
MOST_REFUSED = 16  #: messages that were not authentic, before one that was
MOST_WAITING = 16 * MESSAGE_LIMIT  #: bytes of answers that the other end has not taken
_CHUNK = 1 << 16  #: bytes: more would be memory that the allocator takes from the kernel each time


class Stream:
    """A connected socket, which never blocks.

    Args:
        peer: where the other end is, for the log.

    Attributes:
        is_stranger: no authentic message has come yet. Until then it may cost little.
        since: when it was connected, of time.monotonic.
        refused: how many messages of a stranger were not authentic.
    """

    def __init__(self, made: socket.socket, peer: str = "") -> None:
        self.socket, self.number, self.peer = made, made.fileno(), peer
        self.is_stranger, self.since, self.refused = True, time.monotonic(), 0
        self._frames = Frames(FIRST)
        self._waiting = bytearray()

    def welcome(self) -> None:
        """An authentic message has come."""
        self.is_stranger, self._frames.longest = False, LONGEST

    def receive(self) -> Iterator[bytes]:
        """The messages that have come.

        Raises:
            OSError: it has ended.
            TooLong: what comes is of no use any more.
        """
        try:
            data = self.socket.recv(_CHUNK)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("the other end has closed")
        yield from self._frames.feed(data)

    def send(self, message: bytes) -> bool:
        """Send, or keep what does not go out now. False: some was kept, for `flush`.

        Raises:
            OSError: it has ended, or too much waits.
        """
        self._waiting += framed(message)
        if len(self._waiting) > MOST_WAITING:
            raise BlockingIOError("the other end does not take its answers")
        return self.flush()

    def flush(self) -> bool:
        """Send what was kept: whether that is all. Raises OSError: it has ended."""
        try:
            while self._waiting:
                del self._waiting[: self.socket.send(self._waiting)]
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close the socket. What waits is lost."""
        self.socket.close()
