"""The asker's end of the wire: connections to one member, each used by one thread at a time, and exchanges over them.

An exchange is one call of native code (`device.wire.asker`), which has let go of the interpreter's lock. A connection
whose exchange did not end well is closed; another one is made when it is needed.
"""

import contextlib
import ctypes
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nanokv.cluster.card import WorldId
from nanokv.cluster.messages import tcp, unix
from nanokv.cluster.messages.replies import Refused, Unanswered
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.resolving import address_of
from nanokv.cluster.seals import ALL, HEADS
from nanokv.cluster.wire.ciphers import Ciphers, libcrypto
from nanokv.cluster.wire.handshake import OF_SEAL, WELCOME_BYTES, Greeting, NoHandshake
from nanokv.device.fabric.records import PULL
from nanokv.device.machines.native_code import wire_code
from nanokv.device.machines.records import Descriptor, Words
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import DTYPE_MASK, DTYPE_SHIFT, MAX_DIMS, WORD
from nanokv.device.segment.record import words_of
from nanokv.device.wire.calls import UNUSUAL_CALL
from nanokv.device.wire.records import (
    BROKEN,
    CONNECTION,
    DONE,
    EXISTS,
    FRAME_ROOM,
    GOT,
    HEAD,
    LATE,
    MAC,
    MOST_CALL,
    MOST_KEYS,
    MOST_RECORDS,
    PARCEL_ROOM,
    REMOVE,
    WANTED,
    WRONG,
)
from nanokv.errors import CacheClosed, InvalidArgument
from nanokv.types import KeyDigest

Learn = Callable[[WorldId, int], object]
_NO_WORLD = WorldId("", b"")
SMALL = 64 * 1024  #: bytes of an object that is read without knowing its size
_TICK = struct.pack("ll", 0, 100_000)  # struct timeval: a tenth of a second, the longest that a system call waits
RESTED = 5.0  #: seconds without use, after which a connection is looked at before it is used
_MOST_FREE = 16  #: connections that are kept for later
_WHY = {BROKEN.value: "has gone", LATE.value: "did not answer", WRONG.value: "sends what is no answer"}
_UNUSUAL: int = UNUSUAL_CALL.value
_DONE: int = DONE.value
_OK, _SIZE = int(Status.OK), int(Status.SIZE)
_DTYPE: int = DTYPE_MASK.value << DTYPE_SHIFT.value
_GOT_NBYTES, _GOT_WHAT = GOT.offsets["nbytes"] // WORD, GOT.offsets["what"] // WORD


class Unreached(Unanswered):
    """A member cannot be reached: it was sent nothing."""


class Connection:
    """One connection.

    Args:
        spin, seal: as of `WireClient`.

    Attributes:
        at: address of its CONNECTION record. scratch: address of room for a PULL, or for a GOT, a WANTED and a word.
        small: address of room for SMALL bytes. used: when it was last taken, by time.monotonic.

    Raises:
        OSError, NoHandshake: it cannot be made.
    """

    def __init__(
        self, address: str, secret: bytes, me: Sender, to: Sender, until: float, spin: float, seal: str
    ) -> None:
        self.socket = connected(address, until)
        try:
            greeting = Greeting(secret, me, to, OF_SEAL[seal])
            self.socket.settimeout(max(until - time.monotonic(), 0.001))
            self.socket.sendall(greeting.hello)
            keys = greeting.keys(exactly(self.socket, WELCOME_BYTES, until))
            self.socket.settimeout(None)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self.socket.setsockopt(socket.SOL_SOCKET, option, _TICK)
        except BaseException:
            self.socket.close()
            raise
        self.address, self.used = address, 0.0
        self._record, self._asked = np.zeros(1, CONNECTION.dtype), np.zeros(1, np.int64)
        self._rooms = [np.empty(FRAME_ROOM, np.uint8) for _ in range(2)]
        self._scratch = np.zeros(max(PULL.size, GOT.size + WANTED.size + WORD) // WORD, np.int64)
        row = self._record[0]
        row["fd"], row["asked"] = self.socket.fileno(), self._asked.ctypes.data
        row["spin"] = int(spin * 1e9)
        self._ciphers: Ciphers | None = None
        if seal == ALL:
            self._rooms.append(np.empty(PARCEL_ROOM, np.uint8))
            self._ciphers = Ciphers(keys, asks=True)
            self._ciphers.fill(row, self._rooms[-1].ctypes.data)
        else:
            row["key_out"], row["key_in"] = (np.frombuffer(key, np.int64) for key in keys)
        row["input"], row["output"] = (room.ctypes.data for room in self._rooms[:2])
        self.at, self.scratch = int(self._record.ctypes.data), int(self._scratch.ctypes.data)
        self._words, self._got = words_of(self._record), words_of(self._scratch)
        self._small = np.empty(SMALL, np.uint8)  # untouched it takes no memory
        self.small = int(self._small.ctypes.data)

    def give(self, timeout: float) -> None:
        """Let a member have so many seconds, from the last byte that moved."""
        self._words[_TIMEOUT] = int(timeout * 1e9)

    def got(self) -> tuple[int, Descriptor]:
        """The size and the descriptor in the GOT at `scratch`, as the last get left it."""
        return self._got[_GOT_NBYTES], tuple(self._got[_GOT_WHAT : _GOT_WHAT + 1 + MAX_DIMS])

    def head(self) -> Any:
        """The HEAD of the last answer."""
        return self._rooms[0][: HEAD.size].view(HEAD.dtype)[0]

    def has_gone(self) -> bool:
        """Whether the other end, or what is between, has closed it since it was used."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def interrupt(self) -> None:
        """End the wait of the thread that uses it. From any thread."""
        self._asked[0] = 1

    def close(self) -> None:
        """Close the socket. Nobody uses it any more."""
        shut(self.socket)
        if self._ciphers is not None:
            self._ciphers.close()


class WireClient:
    """The connections of one process to one member. From any thread.

    Args:
        secret: the cluster's. me: this member. to: the other one, as its card has it.
        addresses: where it listens, the best first: "unix:name", "tcp://host:port".
        spin: seconds for which a thread looks for an answer before it sleeps.
        world: of that member, by its card; told to `learn` of `put_one`.
        seal: of the cluster.

    Raises:
        LinkUnavailable: it is to be sealed, and the library for it is not there.

    All exchanges raise `Unanswered` if the member cannot be reached, or does not answer, and CacheClosed when this is
    closed. `timeout`: seconds that may pass without a byte.
    """

    def __init__(
        self,
        secret: bytes,
        me: Sender,
        to: Sender,
        addresses: tuple[str, ...],
        spin: float = 0.0,
        world: WorldId = _NO_WORLD,
        seal: str = HEADS,
    ) -> None:
        self.to, self.world = to, world
        self._secret, self._me, self._addresses, self._spin, self._seal = secret, me, addresses, spin, seal
        if seal == ALL:
            libcrypto()
        self._code = wire_code()
        self._code.require_common()
        self._put_one, self._get_one, self._get_any = (self._code[name] for name in ("put_one", "get_one", "get_any"))
        self._free: list[Connection] = []
        self._busy: set[Connection] = set()
        self._lock = threading.Lock()
        self._closed, self._has_left, self._process = False, False, os.getpid()
        self.way = ""  #: the address of the last connection that was made

    # --- connections ---
    def _take(self, timeout: float) -> Connection:
        """A connection of the caller's own."""
        now = time.monotonic()
        while True:
            try:
                connection = self._free.pop()
            except IndexError:
                connection = self._made(timeout)
                break
            if now - connection.used < RESTED or not connection.has_gone():
                break
            connection.close()
        connection.used = now
        connection.give(timeout)
        self._busy.add(connection)
        if self._closed:
            self._lose(connection)
            raise self._end()
        return connection

    def _end(self) -> Exception:
        """What exchanges raise when this is closed."""
        if self._has_left:
            return Unreached(f"{self.to.id} has left the cluster")
        return CacheClosed(f"the connections to {self.to.id} are closed")

    def _made(self, timeout: float) -> Connection:
        if self._closed or os.getpid() != self._process:
            raise self._end()
        until, why = time.monotonic() + timeout, "it has no address"
        for address in self._addresses:
            try:
                made = Connection(address, self._secret, self._me, self.to, until, self._spin, self._seal)
            except NoHandshake as error:
                why = str(error)
            except TimeoutError:
                why = f"it did not answer within {timeout:g} s"
            except OSError as error:
                why = error.strerror or str(error)
            else:
                self.way = address
                return made
        raise Unreached(f"{self.to.id} cannot be reached: {why}")

    @contextlib.contextmanager
    def _exchange(self, timeout: float) -> Iterator[Connection]:
        """A connection for one exchange. What is raised meanwhile (Ctrl-C) leaves it of no use."""
        connection = self._take(timeout)
        try:
            yield connection
        except BaseException:
            if connection in self._busy:
                self._lose(connection)
            raise

    def _done(self, connection: Connection, how: int) -> None:
        """Give a connection back after an exchange; or lose it, and say why."""
        if how >= _DONE:
            self._busy.discard(connection)
            if len(self._free) < _MOST_FREE and not self._closed:
                self._free.append(connection)
            else:
                connection.close()
            return
        self._lose(connection)
        while self._free:  # they have met the same
            self._free.pop().close()
        if self._closed:
            raise self._end()
        raise Unanswered(f"{self.to.id} {_WHY.get(how, 'has failed')}")

    def _lose(self, connection: Connection) -> None:
        self._busy.discard(connection)
        connection.close()

    def leave(self) -> None:
        """End all connections to a member that has left the cluster: exchanges raise Unanswered."""
        self._has_left = True
        self.close()

    def close(self) -> None:
        """End all connections; exchanges of other threads raise CacheClosed. Idempotent."""
        self._closed = True
        if os.getpid() != self._process:
            return
        for connection in list(self._busy):
            connection.interrupt()
        while self._free:
            self._free.pop().close()

    # --- objects ---
    def put_one(
        self,
        key: Any,
        tensor: torch.Tensor,
        rank: int,
        hashing: int,
        look: int,
        timeout: float,
        learn: Learn | None = None,
    ) -> int | None:
        """Put a tensor: a Status; None: Python must look at key and tensor.

        learn: told of this member's world, and of the address of the PULL as it has answered, if the object is stored.
        """
        connection = self._take(timeout)
        try:
            status: int = self._put_one(key, tensor, connection.at, connection.scratch, rank, hashing, look)
            if status == _OK and learn is not None:
                learn(self.world, connection.scratch)
        except BaseException:
            self._lose(connection)
            raise
        self._done(connection, _DONE if status == _UNUSUAL else status)
        return None if status == _UNUSUAL else status

    def get_one(
        self, key: Any, tensor: torch.Tensor, hashing: int, look: int, timeout: float, *, exact: bool = False
    ) -> int | None:
        """Read an object into a tensor of its dtype and shape: a Status; None: as `put_one`.

        exact: an object without a dtype and a shape, which suits any tensor of its size, is answered SIZE.
        """
        connection = self._take(timeout)
        try:
            status: int = self._get_one(key, tensor, connection.at, connection.scratch, hashing, look)
            if exact and status == _OK and not connection.got()[1][0] & _DTYPE:
                status = _SIZE
        except BaseException:
            self._lose(connection)
            raise
        self._done(connection, _DONE if status == _UNUSUAL else status)
        return None if status == _UNUSUAL else status

    def get_any(
        self, key: KeyDigest, target: int, room: int, hashing: int, timeout: float
    ) -> tuple[int, int, Descriptor, bytes]:
        """Read an object of at most `room` bytes to an address: a Status, its size and descriptor, and b"".

        target: 0: nowhere, but at most SMALL bytes, which are returned. SIZE: it has more bytes than there is room for.
        """
        connection = self._take(timeout)
        try:
            to, most = (target, room) if target else (connection.small, SMALL)
            status: int = self._get_any(key, to, most, connection.at, connection.scratch, hashing)
            assert status != _UNUSUAL, f"{key!r} is no digest of this world's"
            nbytes, descriptor = connection.got()
            data = ctypes.string_at(to, nbytes) if status == _OK and not target else b""
        except BaseException:
            self._lose(connection)
            raise
        self._done(connection, status)
        return status, nbytes, descriptor, data

    def put(self, pulls: npt.NDArray[Any], timeout: float) -> None:
        """Put the objects of up to MOST_RECORDS PULLs, whose `source` is an address: what the owner says stands there.

        Their memory is read before this returns, and not after.
        """
        assert 0 < len(pulls) <= MOST_RECORDS and pulls.flags.c_contiguous
        with self._exchange(timeout) as connection:
            self._done(connection, self._code["put_pulls"](connection.at, pulls.ctypes.data, len(pulls)))

    def get(self, wanted: npt.NDArray[Any], targets: Words, timeout: float) -> npt.NDArray[Any]:
        """Read the objects of up to MOST_RECORDS WANTEDs to addresses, int64 [n]: a GOT for each.

        Their memory is written to before this returns, and not after; what counts is where the status is OK.
        """
        assert 0 < len(wanted) <= MOST_RECORDS and wanted.flags.c_contiguous and targets.flags.c_contiguous
        gots = np.zeros(len(wanted), GOT.dtype)
        at = wanted.ctypes.data, len(wanted), targets.ctypes.data, gots.ctypes.data
        with self._exchange(timeout) as connection:
            self._done(connection, self._code["get_wanted"](connection.at, *at))
        return gots

    def exists(self, keys: Words, timeout: float) -> Words:
        """Whether objects can be read: a Status for each key, int64 [n, 2]."""
        return self._ask_keys(EXISTS.value, keys, timeout)

    def remove(self, keys: Words, timeout: float) -> Words:
        """Remove objects: a Status for each key, int64 [n, 2]."""
        return self._ask_keys(REMOVE.value, keys, timeout)

    def _ask_keys(self, kind: int, keys: Words, timeout: float) -> Words:
        keys, statuses = np.ascontiguousarray(keys), np.empty(len(keys), np.int64)
        for first in range(0, len(keys), MOST_KEYS):
            some, answers = keys[first : first + MOST_KEYS], statuses[first : first + MOST_KEYS]
            at = kind, some.ctypes.data, len(some), answers.ctypes.data
            with self._exchange(timeout) as connection:
                self._done(connection, self._code["ask_keys"](connection.at, *at))
        return statuses

    # --- messages ---
    def ask(self, kind: int, body: bytes, timeout: float) -> bytes:
        """The answer to a message.

        Raises:
            Refused: it is an error.
            InvalidArgument: the body is longer than MOST_CALL bytes.
        """
        if len(body) > MOST_CALL:
            raise InvalidArgument(f"a message has at most {MOST_CALL} bytes, not {len(body)}")
        sent = np.frombuffer(body or b"\0", np.uint8)
        with self._exchange(timeout) as connection:
            size: int = self._code["call"](connection.at, kind, sent.ctypes.data, len(body))
            if size < 0:
                self._done(connection, size)
            room = np.empty(HEAD.size + -(-size // WORD) * WORD + MAC, np.uint8)
            how = self._code["receive_called"](connection.at, room.ctypes.data)
            failed = bool(connection.head()["more"])
            self._done(connection, how)
        answer = room[HEAD.size : HEAD.size + size].tobytes()
        if failed:
            raise Refused(answer.decode(errors="replace"))
        return answer


def shut(made: socket.socket) -> None:
    """Close a socket so that the other end sees it, though a child of a fork may have a copy."""
    with contextlib.suppress(OSError):
        made.shutdown(socket.SHUT_RDWR)
    made.close()


def connected(address: str, until: float) -> socket.socket:
    """A socket that is connected, and blocks."""
    timeout = max(until - time.monotonic(), 0.001)
    target: Any = unix.target(address)
    if target is not None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        name, port = tcp.host_and_port(address)
        host = address_of(name, until)
        made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        target = (host, port)
    try:
        if made.family != socket.AF_UNIX:
            tcp.prepare(made)
        made.settimeout(timeout)
        made.connect(target)
        if made.family != socket.AF_UNIX and made.getpeername() == made.getsockname():
            raise ConnectionRefusedError(None, "nobody listens")  # connected to itself, as TCP allows
    except BaseException:
        made.close()
        raise
    return made


def exactly(made: socket.socket, count: int, until: float) -> bytes:
    """Receive so many bytes. Raises NoHandshake: the other end has closed."""
    data = b""
    while len(data) < count:
        made.settimeout(max(until - time.monotonic(), 0.001))
        some = made.recv(count - len(data))
        if not some:
            raise NoHandshake("who listens refuses this member: another secret, incarnation, version or seal")
        data += some
    return data


_TIMEOUT = CONNECTION.offsets["timeout"] // WORD
