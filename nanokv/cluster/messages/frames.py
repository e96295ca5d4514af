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
    """The messages of one stream, as its bytes come. However they are cut, each is looked at a few times.

    Attributes:
        longest: bytes of a message; more is TooLong.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self.longest = longest
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that are whole with these bytes.

        Raises:
            TooLong: the stream is of no use any more.
        """
        at, come = 0, data if not self._rest else self._rest
        if come is self._rest:
            self._rest += data
        while len(come) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(come, at)
            if length > self.longest:
                raise TooLong(f"a message of {length} bytes")
            start, end = at + _LENGTH.size, at + _LENGTH.size + length
            if end > len(come):
                break
            yield bytes(come[start:end])
            at = end
        if come is self._rest:
            del self._rest[:at]
        else:
            self._rest += come[at:]
