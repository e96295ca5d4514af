"""The wire in plain Python: frames as their bytes are documented, for who sends wrong ones or none."""

import socket
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.seals import ALL, HEADS
from nanokv.cluster.wire import ciphers
from nanokv.cluster.wire.handshake import OF_SEAL, WELCOME_BYTES, Greeting
from nanokv.device.fabric.records import PULL, PULLED
from nanokv.device.machines.native_code import wire_code
from nanokv.device.wire.records import COVERED, GOT, HEAD, MAC, MOST_PARCEL, PARCEL, WANTED

_MASK = (1 << 64) - 1
Bytes = bytes | bytearray


def plain_siphash(key: bytes, data: bytes) -> bytes:
    """SipHash-2-4 with 128 bits, after the paper and its reference code."""
    k0, k1 = struct.unpack("<2Q", key)
    v = [0x736F6D6570736575 ^ k0, 0x646F72616E646F6D ^ k1 ^ 0xEE, 0x6C7967656E657261 ^ k0, 0x7465646279746573 ^ k1]

    def turn(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) & _MASK

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = v[0] + v[1] & _MASK
            v[2] = v[2] + v[3] & _MASK
            v[1], v[3] = turn(v[1], 13) ^ v[0], turn(v[3], 16) ^ v[2]
            v[0] = turn(v[0], 32)
            v[2] = v[2] + v[1] & _MASK
            v[0] = v[0] + v[3] & _MASK
            v[1], v[3] = turn(v[1], 17) ^ v[2], turn(v[3], 21) ^ v[0]
            v[2] = turn(v[2], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for (m,) in struct.iter_unpack("<Q", padded):
        v[3] ^= m
        rounds(2)
        v[0] ^= m
    v[2] ^= 0xEE
    rounds(4)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return struct.pack("<2Q", low, v[0] ^ v[1] ^ v[2] ^ v[3])


def siphash(key: bytes, data: bytes) -> bytes:
    """The same by native code, which is compared with it."""
    held = np.frombuffer(key, np.int64).copy()
    room = np.frombuffer(data + b"\xff" * 8, np.uint8).copy()  # what is behind them counts for nothing
    state, tag = np.zeros(4, np.int64), np.zeros(2, np.int64)
    wire_code()["siphash"](held.ctypes.data, room.ctypes.data, len(data), state.ctypes.data, tag.ctypes.data)
    return tag.tobytes()


def pull(
    key: tuple[int, int], nbytes: int, *, rank: int = -1, what: tuple[int, ...] = (0,) * 8, **more: int
) -> npt.NDArray[Any]:
    """A PULL [1]."""
    made = np.zeros(1, PULL.dtype)
    made["key_hash"], made["key_check"] = key
    made["nbytes"], made["rank"], made["what"] = nbytes, rank, what
    for name, value in more.items():
        made[name] = value
    return made


def wanted(key: tuple[int, int], room: int, *, any_size: int = 1) -> npt.NDArray[Any]:
    """A WANTED [1]."""
    made = np.zeros(1, WANTED.dtype)
    made["key_hash"], made["key_check"] = key
    made["room"], made["any_size"] = room, any_size
    return made


class PlainParcels:
    """One direction of a sealed connection: parcels, after the text of `device.wire.parcels`.

    Args:
        each: parcels of a key.
    """

    def __init__(self, key: bytes, each: int) -> None:
        self._key, self._each, self._number = key, each, 0

    def _next(self) -> tuple[AESGCM, bytes]:
        """The cipher and the nonce of the next parcel."""
        if self._number and self._number % self._each == 0:
            self._key = AESGCM(self._key).encrypt(bytes(4) + bytes([0xFF] * 8), bytes(32), None)[:32]
        self._number += 1
        return AESGCM(self._key), struct.pack(">4xQ", self._number - 1)

    def sealed(self, data: bytes) -> bytes:
        """The next parcel, with up to MOST_PARCEL bytes in it."""
        cipher, nonce = self._next()
        made = cipher.encrypt(nonce, data, None)
        return struct.pack("<q", len(data)) + made[-MAC:] + made[:-MAC]

    def opened(self, head: bytes, body: bytes) -> bytes:
        """The bytes in the next parcel.

        Raises:
            InvalidTag: it is not the next one, or was changed.
        """
        cipher, nonce = self._next()
        return cipher.decrypt(nonce, body + head[-MAC:], None)


class PlainWire:
    """An asker's end, which sends whatever it is told.

    Args:
        seal: as of `ClusterOptions`. If it is "all", each `send` makes a parcel, or as many as its bytes need.

    Attributes:
        parcels: what seals the bytes that go; None: nothing does.
    """

    def __init__(
        self, address: str, secret: bytes, me: Sender, to: Sender, timeout: float = 20.0, seal: str = HEADS
    ) -> None:
        if address.startswith("unix:"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout)
            self.socket.connect(f"\0{address.removeprefix('unix:')}")
        else:
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            self.socket = socket.create_connection((host, int(port)), timeout)
        self.parcels: PlainParcels | None = None
        self._opening: PlainParcels | None = None
        self._opened = b""
        greeting = Greeting(secret, me, to, OF_SEAL[seal])
        self.socket.sendall(greeting.hello)
        self.keys = greeting.keys(self.exactly(WELCOME_BYTES))
        if seal == ALL:
            each = ciphers.PARCELS_A_KEY
            self.parcels, self._opening = PlainParcels(self.keys.asks, each), PlainParcels(self.keys.answers, each)
        self.sent = self.seen = 0

    def frame(
        self,
        kind: int,
        count: int,
        records: Bytes = b"",
        payload: Bytes = b"",
        *,
        size: int | None = None,
        number: int | None = None,
        tag: bytes | None = None,
        whole: bool = False,
    ) -> bytes:
        """The next frame.

        Args:
            size: bytes of the payload that HEAD names. number, tag: others than the right ones. whole: it is covered.
        """
        self.sent += 1
        padded = bytes(payload) + bytes(-len(payload) % 8)
        head = np.zeros(1, HEAD.dtype)
        head["kind"], head["count"], head["number"] = kind, count, self.sent if number is None else number
        head["payload"] = len(payload) if size is None else size
        covered = head.tobytes() + bytes(records) + (padded if whole or len(payload) <= COVERED.value else b"")
        mac = (siphash(self.keys.asks, covered) if self.parcels is None else bytes(MAC)) if tag is None else tag
        return head.tobytes() + bytes(records) + padded + mac

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.send_raw(self.raw(data))

    def raw(self, data: bytes) -> bytes:
        """Bytes as `send` sends them: themselves, or the next parcels that bring them, all but the last one full."""
        if self.parcels is None:
            return data
        return b"".join(self.parcels.sealed(data[at : at + MOST_PARCEL]) for at in range(0, len(data), MOST_PARCEL))

    def send_raw(self, data: bytes) -> None:
        """Send bytes past all seals."""
        self.socket.sendall(data)

    def answer(self) -> tuple[int, int, bytes]:
        """The kind, the count and the rest of an answer that is one frame, whose MAC and number are right."""
        head = self.exactly(HEAD.size)
        fields = np.frombuffer(head, HEAD.dtype)[0]
        kind, count, payload = (int(fields[name]) for name in ("kind", "count", "payload"))
        padded = -(-payload // 8) * 8
        each = {17: PULLED.size, 18: PULLED.size, 19: GOT.size, 20: 8, 21: 0}[kind]
        body = self.exactly(count * each if kind != 21 else 0) + self.exactly(padded)
        body += self.exactly(count * 8 if kind == 19 else 0)
        mac = self.exactly(MAC)
        self.seen += 1
        assert int(fields["number"]) == self.seen
        if kind == 19 and payload > COVERED.value:
            covered = head + body[: count * each] + body[len(body) - count * 8 :]
        else:
            covered = head + body
        assert mac == (siphash(self.keys.answers, covered) if self._opening is None else bytes(MAC))
        return kind, count, body

    def exactly(self, count: int) -> bytes:
        """Receive `count` bytes. Raises EOFError: the other end has closed, or sends what it has not sealed."""
        if self._opening is None:
            return self.exactly_raw(count)
        while len(self._opened) < count:
            head = self.exactly_raw(PARCEL.size)
            try:
                self._opened += self._opening.opened(head, self.exactly_raw(struct.unpack_from("<q", head)[0]))
            except InvalidTag:
                raise EOFError from None
        found, self._opened = self._opened[:count], self._opened[count:]
        return found

    def exactly_raw(self, count: int) -> bytes:
        """Receive `count` bytes as they come. Raises EOFError: the other end has closed."""
        data = b""
        while len(data) < count:
            try:
                some = self.socket.recv(count - len(data))
            except ConnectionResetError:
                some = b""
            if not some:
                raise EOFError
            data += some
        return data

    def is_ended(self) -> bool:
        """Whether the other end closes, and says nothing before."""
        try:
            self.exactly(1)
        except EOFError:
            return True
        return False

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
