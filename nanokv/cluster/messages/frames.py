"""Messages in a stream of bytes: each after its length, four bytes, the lowest first."""

import struct
from collections.abc import Iterator

from nanokv.cluster.messages.sealed import MESSAGE_LIMIT

LONGEST = 2 * MESSAGE_LIMIT  #: twice: what is a little too long is counted, and its sender not cut off
_LENGTH = struct.Struct("<I")


class TooLong(Exception):
    """What follows is no message, and where the next one begins is not known."""


def framed(message: bytes) -> bytes:
    """A message as it is sent."""
    return _LENGTH.pack(len(message)) + message


class Frames:
    """The messages of one stream, as its bytes come."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that are whole with these bytes.

        Raises:
            TooLong: the stream is of no use any more.
        """
        data = self._rest + data if self._rest else data
        at = 0
        while len(data) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, at)
            if length > LONGEST:
                raise TooLong(f"a message of {length} bytes")
            start, end = at + _LENGTH.size, at + _LENGTH.size + length
            if end > len(data):
                break
            yield data[start:end]
            at = end
        self._rest = data[at:]
