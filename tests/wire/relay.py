"""What stands between two ends of a sealed connection, and does with parcels what it likes."""

import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from nanokv.cluster.wire.client import connected, shut
from nanokv.cluster.wire.handshake import HELLO_BYTES, WELCOME_BYTES
from nanokv.device.wire.records import PARCEL

Deed = Callable[[int, bytes], Sequence[bytes] | None]  #: number of a parcel, and itself -> what goes on; None: the end


def pass_on(number: int, parcel: bytes) -> Sequence[bytes]:
    """Change nothing."""
    return (parcel,)


class Relay:
    """Listens for one asker, and connects it with an owner. Close it.

    Args:
        to: address of the owner. asks, answers: what is done with the parcels of each direction, from number 0.

    Attributes:
        address: where it listens. heard: all bytes behind the handshake as they came, of both directions.
    """

    def __init__(self, to: str, asks: Deed = pass_on, answers: Deed = pass_on, seconds: float = 20.0) -> None:
        self._to, self._deeds, self._seconds = to, (asks, answers), seconds
        self.heard = bytearray()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind("")  # the system finds a name
        self._listener.listen()
        self._listener.settimeout(seconds)
        self.address = "unix:" + self._listener.getsockname()[1:].decode()
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError), closing(self._listener):
            asker, _ = self._listener.accept()
            owner = connected(self._to, self._seconds)
            self._sockets += [asker, owner]
            owner.settimeout(self._seconds)
            asker.settimeout(self._seconds)
            owner.sendall(_exactly(asker, HELLO_BYTES))
            asker.sendall(_exactly(owner, WELCOME_BYTES))
            other = threading.Thread(target=self._pump, args=(owner, asker, self._deeds[1]))
            other.start()
            self._pump(asker, owner, self._deeds[0])
            other.join()

    def _pump(self, source: socket.socket, sink: socket.socket, deed: Deed) -> None:
        number = 0
        with suppress(OSError, EOFError):
            while True:
                head = _exactly(source, PARCEL.size)
                parcel = head + _exactly(source, struct.unpack_from("<q", head)[0])
                self.heard += parcel
                goes = deed(number, parcel)
                if goes is None:
                    break
                sink.sendall(b"".join(goes))
                number += 1
        for each in (source, sink):
            shut(each)

    def close(self) -> None:
        """End both connections."""
        for each in (self._listener, *self._sockets):
            shut(each)
        self._thread.join()


def _exactly(made: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        some = made.recv(count - len(data))
        if not some:
            raise EOFError
        data += some
    return data
